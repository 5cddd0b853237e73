//! The promises of `guarantees.md` that one owner can keep, over random lives: commands, outcomes and answers of the store in
//! any order, bad weather, crashes at any point. The receiver is the witness. Every failing seed is printed; run one with
//! `PUNCTUAL_SEED=n`, more of them with `PUNCTUAL_SEEDS=n`.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that is surprised should stop")]

mod world;

use std::collections::HashMap;

use punctual_core::{
    Backoff, DeadReason, FireEnd, Guarantee, Jitter, NewTask, Outcome, RetryPolicy, Task, TaskId,
};
use punctual_engine::{Cancelled, Condition, Scheduled, Subject};
use punctual_store::TaskStore;
use tokio::sync::oneshot::error::TryRecvError;
use world::{Answer, Weather, World, failed, key, millis, named, once, ready, secs, shop};

const SEEDS_DEFAULT: u64 = 300;
const STEPS: u32 = 400;

#[test]
fn the_promises_hold_over_random_lives() {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seeds = match number("PUNCTUAL_SEED") {
        Some(seed) => seed..seed + 1,
        None => 1..1 + number("PUNCTUAL_SEEDS").unwrap_or(SEEDS_DEFAULT),
    };
    for seed in seeds {
        let life = std::panic::catch_unwind(|| Life::new(seed).live());
        assert!(life.is_ok(), "PUNCTUAL_SEED={seed} breaks a promise; see above");
    }
}

/// What was promised about a task.
#[derive(Debug)]
struct Promise {
    task: Task,
    /// Since when it must not be sent any more: cancelled, or replaced.
    over: bool,
}

struct Life {
    world: World,
    dice: Dice,
    promises: HashMap<TaskId, Promise>,
    /// How often each task was sent, promised or not.
    received: HashMap<TaskId, u32>,
    scheduling: Vec<(Option<String>, Answer<Scheduled>)>,
    cancelling: Vec<(Subject, Answer<Cancelled>)>,
    /// The task that a key names, as far as callers know.
    names: HashMap<String, TaskId>,
}

impl Life {
    fn new(seed: u64) -> Self {
        Self {
            world: World::new(),
            dice: Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1),
            promises: HashMap::new(),
            received: HashMap::new(),
            scheduling: Vec::new(),
            cancelling: Vec::new(),
            names: HashMap::new(),
        }
    }

    fn live(mut self) {
        for _ in 0..STEPS {
            self.step();
            self.witness();
        }
        self.world.weather = Weather::Fair;
        self.heal();
        self.check_at_rest();
    }

    fn step(&mut self) {
        match self.dice.roll(100) {
            0..25 => self.schedule(),
            25..35 => self.cancel(),
            35..65 => self.store_answers(),
            65..80 => self.courier_returns(),
            80..95 => self.time_passes(),
            95..98 => {
                let all = [
                    Weather::Fair,
                    Weather::Fair,
                    Weather::Away,
                    Weather::AnswerLost,
                    Weather::Full,
                ];
                self.world.weather = all[self.dice.index(all.len())];
            }
            _ => self.crash(),
        }
    }

    fn schedule(&mut self) {
        let delay = match self.dice.roll(4) {
            0 => millis(0),
            1 => millis(self.dice.roll(50)),
            2 => secs(self.dice.roll(40)),
            _ => secs(self.dice.roll(200)),
        };
        let name = (self.dice.roll(2) == 0).then(|| format!("key-{}", self.dice.roll(6)));
        let new_task = match &name {
            Some(name) => named(name, delay),
            None => once(delay),
        };
        let guarantee = match self.dice.roll(3) {
            0 => Guarantee::AtMostOnce,
            _ => Guarantee::AtLeastOnce,
        };
        let backoff = Backoff::Fixed(millis(self.dice.roll(20_000)));
        let retry = RetryPolicy { attempts_max: 3, backoff, jitter: Jitter::default() };
        let new_task = NewTask { guarantee, retry, ..new_task };
        let answer = self.world.send_schedule(new_task, Condition::Always);
        self.scheduling.push((name, answer));
    }

    fn cancel(&mut self) {
        let subject = if self.dice.roll(2) == 0 || self.promises.is_empty() {
            key(&format!("key-{}", self.dice.roll(6)))
        } else {
            let mut ids: Vec<_> = self.promises.keys().copied().collect();
            ids.sort();
            Subject::Id(shop(), ids[self.dice.index(ids.len())])
        };
        let answer = self.world.send_cancel(subject.clone());
        self.cancelling.push((subject, answer));
    }

    fn store_answers(&mut self) {
        if !self.world.wanted.is_empty() {
            let index = self.dice.index(self.world.wanted.len());
            self.world.perform(index);
        }
    }

    fn courier_returns(&mut self) {
        if self.world.carried.is_empty() {
            return;
        }
        let outcome = match self.dice.roll(4) {
            0 => failed(),
            1 => Outcome::Expired,
            _ => Outcome::Acked,
        };
        let index = self.dice.index(self.world.carried.len());
        self.world.comes_back_from(index, outcome);
    }

    fn time_passes(&mut self) {
        self.world.now = self.world.now.after(match self.dice.roll(3) {
            0 => millis(1),
            1 => millis(self.dice.roll(100)),
            _ => secs(self.dice.roll(20)),
        });
        self.world.act();
    }

    fn crash(&mut self) {
        self.scheduling.clear();
        self.cancelling.clear();
        self.world.crash();
    }

    /// Everything is answered and every courier succeeds, until nothing is left to do.
    fn heal(&mut self) {
        for _ in 0..400 {
            self.world.act();
            self.witness();
            while !self.world.wanted.is_empty() || !self.world.carried.is_empty() {
                if self.world.wanted.is_empty() {
                    self.world.comes_back(Outcome::Acked);
                } else {
                    self.world.perform(0);
                }
                self.witness();
            }
            self.world.now = self.world.now.after(secs(1));
        }
    }

    /// Takes in the answers that callers got.
    fn hear(&mut self) {
        for (name, mut answer) in std::mem::take(&mut self.scheduling) {
            match answer.try_recv() {
                Ok(Ok(Scheduled::Created(task) | Scheduled::Replaced(task))) => {
                    if let Some(name) = name {
                        let old = self.names.insert(name, task.id);
                        if let Some(old) = old.and_then(|old| self.promises.get_mut(&old)) {
                            old.over = true;
                        }
                    }
                    self.promises.entry(task.id).or_insert(Promise { task, over: false });
                }
                Err(TryRecvError::Empty) => {
                    self.scheduling.push((name, answer));
                }
                _ => {}
            }
        }
        for (subject, mut answer) in std::mem::take(&mut self.cancelling) {
            match answer.try_recv() {
                Ok(Ok(Cancelled::Cancelled)) => {
                    if let Subject::Id(_, id) = &subject
                        && let Some(promise) = self.promises.get_mut(id)
                    {
                        promise.over = true;
                    }
                }
                Err(TryRecvError::Empty) => {
                    self.cancelling.push((subject, answer));
                }
                _ => {}
            }
        }
    }

    /// The receiver looks at what was sent, after the callers have looked at their answers.
    fn witness(&mut self) {
        self.hear();
        for delivery in self.world.sent.drain(..) {
            let id = delivery.fire_id.task;
            assert!(delivery.fired_at >= delivery.fire_at, "early: {delivery:?}");
            let times = self.received.entry(id).or_default();
            *times += 1;
            if delivery.definition.guarantee == Guarantee::AtMostOnce {
                assert_eq!(*times, 1, "at most once, and received twice: {delivery:?}");
            }
            if let Some(promise) = self.promises.get(&id) {
                assert!(!promise.over, "sent after it was cancelled or replaced: {delivery:?}");
                assert_eq!(delivery.version, promise.task.version);
            }
        }
    }

    fn check_at_rest(&self) {
        let counts = self.world.counts();
        assert_eq!((counts.scheduled, counts.paused), (0, 0), "nothing stays overdue: {counts:?}");
        assert_eq!(self.world.owner.loaded(), 0, "memory is empty");
        assert!(self.world.owner.is_quiet());
        for (id, promise) in &self.promises {
            if !promise.over && !self.received.contains_key(id) {
                self.check_unreceived(promise);
            }
        }
    }

    /// An acknowledged task that was never sent has a reason, and it is on record.
    fn check_unreceived(&self, promise: &Promise) {
        let id = promise.task.id;
        let end = ready(self.world.store.history(id.partition(), id, 1)).unwrap()[0].end;
        let claimed = promise.task.definition.guarantee == Guarantee::AtMostOnce;
        match end {
            // A crash came between the claim and the first byte.
            FireEnd::Dead(DeadReason::Unknown) => assert!(claimed, "{promise:?}"),
            // The caller asked for it, and a crash took the answer.
            FireEnd::Cancelled | FireEnd::Replaced => {}
            end => panic!("{end:?} without ever being sent: {promise:?}"),
        }
    }
}

/// A small generator, so that a seed means the same for ever.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % sides
    }

    fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.roll(len as u64)).unwrap()
    }
}
