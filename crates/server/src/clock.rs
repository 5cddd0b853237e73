//! The machine's clock: the one file that reads it.
//!
//! In: the wall clock once, at the start, and the monotonic clock from then on. Out: a time that never goes back
//! and never jumps. Somebody who sets the machine's clock while a broker runs changes nothing for it: no task
//! becomes due by that, and none is missed. A restart takes the new time over.

#![expect(clippy::disallowed_methods, reason = "this is the one file that may")]

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use punctual_core::{Clock, Timestamp};

/// The machine's time.
#[derive(Debug, Clone)]
pub(crate) struct SystemClock {
    /// The wall clock at the start, as time since the Unix epoch,
    wall: Duration,
    /// and the monotonic clock at the same moment.
    started: Instant,
}

impl SystemClock {
    /// Reads the wall clock; the only time that it is read.
    #[must_use]
    pub(crate) fn start() -> Self {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { wall, started: Instant::now() }
    }

    /// As precise as the machine goes, to see how long something took.
    pub(crate) fn reading(&self) -> Duration {
        self.since_epoch()
    }

    fn since_epoch(&self) -> Duration {
        self.wall + self.started.elapsed()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        let millis = self.since_epoch().as_millis();
        u64::try_from(millis).map_or(Timestamp::MAX, Timestamp::from_millis)
    }

    fn until(&self, at: Timestamp) -> Duration {
        Duration::from_millis(at.as_millis()).saturating_sub(self.since_epoch())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_until_an_instant_ends_in_its_first_millisecond_and_not_before() {
        let clock = SystemClock::start();
        let at = clock.now().after(Duration::from_millis(3));
        let (until, now) = (clock.until(at), clock.since_epoch());
        assert!(until <= Duration::from_millis(3), "{until:?}");
        assert!(now + until >= Duration::from_millis(at.as_millis()), "{until:?}");
        assert_eq!(clock.until(Timestamp::EPOCH), Duration::ZERO);
    }
}
