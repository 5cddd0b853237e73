//! The receiver in a random life: which attempts it was sent, and what it said to them in time.
//!
//! Whatever the life is about, nothing comes early, no attempt comes twice, and nothing that was acked comes again, unless the owner
//! crashed in between or somebody asked for it.

use std::collections::HashSet;

use punctual_core::{AttemptNo, FireId, Outcome};
use punctual_engine::Delivery;

use super::{Dice, World, failed};

#[derive(Debug, Default)]
pub(crate) struct Receiver {
    attempts: HashSet<(FireId, AttemptNo)>,
    /// Fires that it has said in time to be done.
    pub(crate) acked: HashSet<FireId>,
}

impl Receiver {
    /// A delivery comes in, which may come `again` or not.
    pub(crate) fn takes(&mut self, delivery: &Delivery, again: bool) {
        assert!(delivery.fired_at >= delivery.fire_at, "early: {delivery:?}");
        let twice = !self.attempts.insert((delivery.fire_id, delivery.attempt));
        assert!(!twice || again, "twice without a crash: {delivery:?}");
        let acked = self.acked.contains(&delivery.fire_id);
        assert!(!acked || again, "acked, and sent again: {delivery:?}");
    }

    /// Some courier comes back with something. Out: the fire that it never sent, if it did not: then nothing was received.
    pub(crate) fn courier_returns(&mut self, world: &mut World, dice: &mut Dice) -> Option<FireId> {
        if world.carried.is_empty() {
            return None;
        }
        let index = dice.index(world.carried.len());
        let outcome = match dice.roll(9) {
            0..2 => failed(),
            2..4 => Outcome::Expired,
            4 => {
                let Delivery { fire_id, attempt, .. } = world.carried[index];
                self.attempts.remove(&(fire_id, attempt));
                world.reported(index, None);
                return Some(fire_id);
            }
            _ => {
                let delivery = &world.carried[index];
                self.acked.extend(world.in_time(delivery).then_some(delivery.fire_id));
                Outcome::Acked
            }
        };
        world.comes_back_from(index, outcome);
        None
    }
}
