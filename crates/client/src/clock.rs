//! Waiting, in one file, because `clippy.toml` keeps it out of all others.
//!
//! The broker's time comes from its `Clock`. A client has nothing to simulate: it waits for the network, and its
//! tests run against real sockets.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use tokio::time::{Instant, Sleep};

/// The first pause after a failure: a broker that restarts is back in about a second.
pub(crate) const PAUSE_MIN: Duration = Duration::from_millis(25);
/// The longest pause: soon enough after an outage, and no load during one.
const PAUSE_MAX: Duration = Duration::from_secs(2);

#[expect(clippy::disallowed_methods, reason = "see the head of this file")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

#[expect(clippy::disallowed_methods, reason = "see the head of this file")]
pub(crate) fn after(pause: Duration) -> Sleep {
    tokio::time::sleep(pause)
}

/// Pauses between attempts to reach the broker: doubled each time, and never the same for two clients.
#[derive(Debug)]
pub(crate) struct Backoff {
    pause: Duration,
}

impl Backoff {
    pub(crate) fn new() -> Self {
        Self { pause: PAUSE_MIN }
    }

    /// The broker was there: the next failure begins anew.
    pub(crate) fn reset(&mut self) {
        self.pause = PAUSE_MIN;
    }

    /// The next pause, between half of it and all of it.
    pub(crate) fn wait(&mut self) -> Sleep {
        let half = self.pause / 2;
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        after(half + half.mul_f64(chance()))
    }
}

/// From 0 to 1. Each `RandomState` has keys of its own, which is all the chance that a pause needs.
fn chance() -> f64 {
    let [low, high, ..] = RandomState::new().hash_one(0_u8).to_le_bytes();
    f64::from(u16::from_le_bytes([low, high])) / f64::from(u16::MAX)
}
