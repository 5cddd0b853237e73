//! The clock and the pauses of the client. `clippy.toml` forbids both in all other files.
//!
//! Brokers take the time from a `Clock`, which tests can move. A client only waits for the network,
//! and its tests use real sockets, so it uses the clock of the runtime.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use tokio::time::{Instant, Sleep};

/// The first pause after a failure. A restart of a broker takes about a second.
pub(crate) const PAUSE_MIN: Duration = Duration::from_millis(25);
/// The longest pause: short enough to reconnect soon after an outage, long enough to cause no load
/// during one.
const PAUSE_MAX: Duration = Duration::from_secs(2);

#[expect(clippy::disallowed_methods, reason = "see the head of this file")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

#[expect(clippy::disallowed_methods, reason = "see the head of this file")]
pub(crate) fn after(pause: Duration) -> Sleep {
    tokio::time::sleep(pause)
}

/// Pauses between attempts to reach a broker: doubled each time, with random jitter.
#[derive(Debug)]
pub(crate) struct Backoff {
    pause: Duration,
}

impl Backoff {
    pub(crate) fn new() -> Self {
        Self { pause: PAUSE_MIN }
    }

    /// Starts again with the shortest pause, after a success.
    pub(crate) fn reset(&mut self) {
        self.pause = PAUSE_MIN;
    }

    /// Waits for half of the next pause to all of it.
    pub(crate) fn wait(&mut self) -> Sleep {
        let half = self.pause / 2;
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        after(half + half.mul_f64(random()))
    }
}

/// A random number from 0 to 1. Each `RandomState` has random keys, which is random enough for
/// pauses.
fn random() -> f64 {
    let [low, high, ..] = RandomState::new().hash_one(0_u8).to_le_bytes();
    f64::from(u16::from_le_bytes([low, high])) / f64::from(u16::MAX)
}
