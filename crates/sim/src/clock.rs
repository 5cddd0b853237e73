//! The clock of a broker or of the store.
//!
//! It differs from the true time by some milliseconds, runs slightly too fast or too slow, and may
//! be set forward. It never goes back, as `server/clock.rs` guarantees.

use punctual_core::Timestamp;

const MILLION: i128 = 1_000_000;

/// A clock with an offset and a drift.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SimClock {
    /// The true time of the last setting.
    since: u64,
    /// What the clock read at that time.
    reading: u64,
    /// How much too fast it runs, in millionths.
    drift_ppm: i64,
}

impl SimClock {
    pub(crate) fn new(now: u64, ahead_ms: i64, drift_ppm: i64) -> Self {
        Self { since: now, reading: now.saturating_add_signed(ahead_ms), drift_ppm }
    }

    /// Returns what the clock reads at a true time.
    pub(crate) fn at(&self, now: u64) -> Timestamp {
        let passed = i128::from(now.saturating_sub(self.since));
        let counted = passed * (MILLION + i128::from(self.drift_ppm)) / MILLION;
        Timestamp::from_millis(self.reading + u64::try_from(counted).unwrap_or(0))
    }

    /// Returns the true time, not before `now`, at which the clock first reads `target`.
    pub(crate) fn true_time_of(&self, target: Timestamp, now: u64) -> u64 {
        let missing = target.as_millis().saturating_sub(self.at(now).as_millis());
        let counted = i128::from(missing) * MILLION / (MILLION + i128::from(self.drift_ppm));
        let mut at =
            now.saturating_add(u64::try_from(counted).unwrap_or(0)).saturating_sub(1).max(now);
        // Rounding may leave a step or two.
        while self.at(at) < target && target < Timestamp::MAX {
            at += 1;
        }
        at
    }

    /// Sets the clock forward.
    pub(crate) fn set_forward(&mut self, now: u64, by_ms: u64) {
        self.reading = self.at(now).as_millis() + by_ms;
        self.since = now;
    }

    /// Returns how far it is ahead of the true time.
    pub(crate) fn ahead_ms(&self, now: u64) -> i64 {
        let target = i64::try_from(self.at(now).as_millis()).unwrap_or(i64::MAX);
        target - i64::try_from(now).unwrap_or(i64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn true_time_of_is_the_first_time_at_which_the_clock_reads_the_target() {
        for drift_ppm in [-9_000, 0, 7_000] {
            let mut clock = SimClock::new(1_000_000, -40, drift_ppm);
            clock.set_forward(1_000_500, 17);
            for ahead in [1, 2, 333, 60_000] {
                let target = Timestamp::from_millis(clock.at(1_000_600).as_millis() + ahead);
                let at = clock.true_time_of(target, 1_000_600);
                assert!(clock.at(at) >= target && clock.at(at - 1) < target, "{drift_ppm} {ahead}");
            }
        }
    }
}
