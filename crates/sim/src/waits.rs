//! What a run with waits has beyond others: deliveries that wait in their couriers before the first
//! byte, queues whose workers come and go, commands about tasks whose deliveries wait, and brokers
//! that are stopped meanwhile.
//!
//! Waits have random numbers of their own, derived from the seed, so that runs without them are the
//! same as before waits were added.

use punctual_core::Target;

use crate::random::SimRandom;

/// Two of five runs have waits. With this value, no seed that was kept before waits were added has
/// them.
const WAITS: u64 = 0xa5b9_6b00_0000;
/// The queues of a run.
pub(crate) const QUEUES: [&str; 2] = ["orders", "mails"];
/// How long a delivery is held for a worker, as in `server/src/courier/queue/hub.rs`.
const HOLD_MAX_MS: u64 = 2_000;
/// How long deliveries wait at most after all faults have ended.
const CALM_MAX_MS: u64 = 500;

/// What becomes of a delivery in its courier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CourierWait {
    /// The first byte is to leave after this many milliseconds.
    Sends(u64),
    /// No connection can be opened: the attempt fails after this many milliseconds.
    Fails(u64),
    /// No worker takes it: it goes back to its owner unsent after this many milliseconds.
    Returns(u64),
}

pub(crate) struct Waits {
    pub(crate) random: SimRandom,
    lease_ms: u64,
}

impl Waits {
    /// Returns `None` if the run of this seed has no waits.
    pub(crate) fn new(seed: u64, lease_ms: u64) -> Option<Self> {
        let mut random = SimRandom::new(seed ^ WAITS);
        (random.below(5) < 2).then_some(Self { random, lease_ms })
    }

    /// Decides how long a delivery waits for a lookup, a connection or a worker: often not at all,
    /// sometimes longer than the lease.
    pub(crate) fn next(&mut self, target: &Target, is_calm: bool) -> CourierWait {
        let (random, lease) = (&mut self.random, self.lease_ms);
        let wait = match random.below(10) {
            0..4 => 0,
            4..6 => random.between(1, 300),
            6..8 => random.between(300, 3_000),
            8 => random.between(lease / 2, lease * 2),
            _ => random.between(lease, lease * 3),
        };
        let wait = if is_calm { wait.min(CALM_MAX_MS) } else { wait };
        match target {
            Target::Queue(_) if wait > HOLD_MAX_MS => CourierWait::Returns(HOLD_MAX_MS),
            Target::Http(_) if wait > 0 && random.below(12) == 0 => CourierWait::Fails(wait),
            _ => CourierWait::Sends(wait),
        }
    }

    /// Returns how long a courier takes to notice that a delivery was recalled.
    pub(crate) fn notice(&mut self) -> u64 {
        self.random.below(50)
    }

    /// If the broker is to be stopped while a delivery waits, returns after how long, and for how
    /// long: beyond its lease.
    pub(crate) fn stop(&mut self) -> Option<(u64, u64)> {
        let (random, lease) = (&mut self.random, self.lease_ms);
        (random.below(40) == 0).then(|| (random.below(100), random.between(lease, lease * 3)))
    }

    /// Returns for how long a queue has this many workers.
    pub(crate) fn workers(&mut self) -> (u64, usize) {
        let capacity = [0, 0, 1, 4, 16];
        let capacity = self.random.pick(&capacity).unwrap_or(1);
        (self.random.between(200, 8_000), capacity)
    }
}
