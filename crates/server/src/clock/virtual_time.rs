//! Virtual time as a value: it is frozen, or passes at a speed, and can be moved forward.
//!
//! It never goes back. The readings of the steady clock, in nanoseconds, are arguments.

use std::time::Duration;

use punctual_core::Timestamp;

/// Virtual seconds that pass in a second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Speed(f64);

impl Speed {
    /// A day of virtual time takes ten days.
    pub(crate) const MIN: f64 = 0.1;
    /// A day of virtual time takes a second. Faster, a delivery takes minutes of virtual time.
    pub(crate) const MAX: f64 = 86_400.0;

    /// Makes a speed, unless it is out of range.
    pub(crate) fn new(speed: f64) -> Option<Self> {
        (Self::MIN..=Self::MAX).contains(&speed).then_some(Self(speed))
    }

    pub(crate) const fn get(self) -> f64 {
        self.0
    }
}

/// Virtual time since its last change.
#[derive(Debug)]
pub(super) struct VirtualTime {
    /// The time at the last change.
    changed_at: Duration,
    /// The reading of the steady clock at the last change.
    changed_reading: u64,
    /// `None` while time is frozen.
    speed: Option<Speed>,
}

impl VirtualTime {
    pub(super) const fn frozen_at(at: Timestamp) -> Self {
        let changed_at = Duration::from_millis(at.as_millis());
        Self { changed_at, changed_reading: 0, speed: None }
    }

    pub(super) const fn speed(&self) -> Option<Speed> {
        self.speed
    }

    pub(super) fn now(&self, reading: u64) -> Timestamp {
        let millis = u64::try_from(self.since_epoch(reading).as_millis());
        Timestamp::from_millis(millis.unwrap_or(u64::MAX))
    }

    /// How long the machine waits until an instant; zero if it is past, and without end while time
    /// is frozen.
    pub(super) fn until(&self, at: Timestamp, reading: u64) -> Duration {
        let at = Duration::from_millis(at.as_millis());
        let left = at.saturating_sub(self.since_epoch(reading));
        match self.speed {
            _ if left.is_zero() => Duration::ZERO,
            Some(Speed(speed)) => left.div_f64(speed),
            None => Duration::MAX,
        }
    }

    pub(super) fn set_speed(&mut self, speed: Option<Speed>, reading: u64) {
        self.change(self.since_epoch(reading), reading);
        self.speed = speed;
    }

    pub(super) fn move_to(&mut self, at: Timestamp, reading: u64) {
        let at = Duration::from_millis(at.as_millis());
        self.change(at.max(self.since_epoch(reading)), reading);
    }

    const fn change(&mut self, now: Duration, reading: u64) {
        (self.changed_at, self.changed_reading) = (now, reading);
    }

    fn since_epoch(&self, reading: u64) -> Duration {
        let Some(Speed(speed)) = self.speed else { return self.changed_at };
        let passed = Duration::from_nanos(reading.saturating_sub(self.changed_reading));
        self.changed_at.saturating_add(passed.mul_f64(speed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_millis(seconds * 1_000)
    }

    #[test]
    fn time_stands_still_until_it_is_moved_and_never_goes_back() {
        let mut time = VirtualTime::frozen_at(at(100));
        assert_eq!(time.now(50 * SECOND), at(100));
        assert_eq!(time.until(at(100), 0), Duration::ZERO);
        assert_eq!(time.until(at(101), 0), Duration::MAX);
        time.move_to(at(200), 60 * SECOND);
        assert_eq!(time.now(70 * SECOND), at(200));
        time.move_to(at(150), 80 * SECOND);
        assert_eq!(time.now(80 * SECOND), at(200));
    }

    #[test]
    fn time_passes_at_its_speed_and_stays_where_it_is_frozen() {
        let mut time = VirtualTime::frozen_at(at(100));
        time.set_speed(Speed::new(60.0), 10 * SECOND);
        assert_eq!(time.now(12 * SECOND), at(220));
        assert_eq!(time.until(at(280), 12 * SECOND), Duration::from_secs(1));
        time.set_speed(Speed::new(2.0), 12 * SECOND);
        assert_eq!(time.now(13 * SECOND), at(222));
        time.move_to(at(300), 13 * SECOND);
        assert_eq!(time.now(14 * SECOND), at(302));
        time.set_speed(None, 14 * SECOND);
        assert_eq!(time.now(99 * SECOND), at(302));
    }

    #[test]
    fn a_speed_out_of_range_is_refused() {
        for speed in [0.0, -1.0, 0.09, 86_400.1, f64::NAN, f64::INFINITY] {
            assert_eq!(Speed::new(speed), None, "{speed}");
        }
        for speed in [0.1, 1.0, 86_400.0] {
            assert_eq!(Speed::new(speed).map(Speed::get), Some(speed));
        }
    }
}
