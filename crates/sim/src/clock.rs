//! A clock: what a broker, or the store, takes for the time.
//!
//! In: the true time. Out: what this clock says. It begins off by some milliseconds, runs a little too fast or too slow, and may be set on;
//! it never goes back, as `server/clock.rs` promises.

use punctual_core::Timestamp;

const MILLION: i128 = 1_000_000;

/// A clock that is wrong in its own way.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    /// The true time from which it was counted,
    since: u64,
    /// and what it said then.
    said: u64,
    /// How much too fast it runs, in millionths.
    fast_by: i64,
}

impl Clock {
    pub(crate) fn new(now: u64, ahead_ms: i64, fast_by: i64) -> Self {
        Self { since: now, said: now.saturating_add_signed(ahead_ms), fast_by }
    }

    /// What it says.
    pub(crate) fn at(&self, now: u64) -> Timestamp {
        let passed = i128::from(now.saturating_sub(self.since));
        let counted = passed * (MILLION + i128::from(self.fast_by)) / MILLION;
        Timestamp::from_millis(self.said + u64::try_from(counted).unwrap_or(0))
    }

    /// The true time at which it first says so; never before `now`.
    pub(crate) fn when(&self, says: Timestamp, now: u64) -> u64 {
        let missing = says.as_millis().saturating_sub(self.at(now).as_millis());
        let counted = i128::from(missing) * MILLION / (MILLION + i128::from(self.fast_by));
        let mut at =
            now.saturating_add(u64::try_from(counted).unwrap_or(0)).saturating_sub(1).max(now);
        // Rounded at both ends: a step or two are missing.
        while self.at(at) < says && says < Timestamp::MAX {
            at += 1;
        }
        at
    }

    /// Sets it on.
    pub(crate) fn set_on(&mut self, now: u64, by_ms: u64) {
        self.said = self.at(now).as_millis() + by_ms;
        self.since = now;
    }

    /// By how much it is ahead of the true time.
    pub(crate) fn ahead_ms(&self, now: u64) -> i64 {
        let says = i64::try_from(self.at(now).as_millis()).unwrap_or(i64::MAX);
        says - i64::try_from(now).unwrap_or(i64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_says_so_first_when_it_was_asked_for() {
        for fast_by in [-9_000, 0, 7_000] {
            let mut clock = Clock::new(1_000_000, -40, fast_by);
            clock.set_on(1_000_500, 17);
            for ahead in [1, 2, 333, 60_000] {
                let says = Timestamp::from_millis(clock.at(1_000_600).as_millis() + ahead);
                let at = clock.when(says, 1_000_600);
                assert!(clock.at(at) >= says && clock.at(at - 1) < says, "{fast_by} {ahead}");
            }
        }
    }
}
