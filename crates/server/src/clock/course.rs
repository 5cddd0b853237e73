//! The course of time: what time it is when the steady clock shows so much.
//!
//! In: readings of the steady clock, and how far time is to be shifted. Out: instants. The course is straight but for *bends*: stretches
//! in which time runs a little faster or slower until it has been shifted.
//! Invariant: of two readings the later one never gives the earlier instant, also when a bend is put in between. Therefore a bend
//! begins a while after it was published, and the course is the same until then.
//! Readers never wait: there are two places for a bend, and a number says which one counts.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering, fence};
use std::time::Duration;

/// How long after its publication a bend begins, in nanoseconds.
const LEAD_NANOS: u64 = 250_000_000;
/// How long a bend is. With the lead it is over before the clocks are compared again.
const LENGTH_NANOS: u64 = 700_000_000;

/// An instant to the nanosecond, since the Unix epoch. It ends in the year 2262.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Instant(i64);

/// How far one clock is ahead of another; negative if it is behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Offset(i64);

impl Instant {
    pub(super) fn from_epoch(since: Duration) -> Self {
        Self(nanos(since))
    }

    pub(super) fn since_epoch(self) -> Duration {
        Duration::from_nanos(u64::try_from(self.0).unwrap_or_default())
    }

    pub(super) fn as_millis(self) -> u64 {
        u64::try_from(self.0 / 1_000_000).unwrap_or_default()
    }

    pub(super) const fn offset_from(self, other: Self) -> Offset {
        Offset(self.0.saturating_sub(other.0))
    }
}

impl Offset {
    pub(super) const NONE: Self = Self(0);

    pub(super) fn ahead(by: Duration) -> Self {
        Self(nanos(by))
    }

    pub(super) fn behind(by: Duration) -> Self {
        Self(-nanos(by))
    }

    pub(super) fn within(self, bound: Duration) -> bool {
        self.size() <= bound
    }

    pub(super) const fn size(self) -> Duration {
        Duration::from_nanos(self.0.unsigned_abs())
    }

    pub(super) const fn is_ahead(self) -> bool {
        self.0 > 0
    }

    pub(super) const fn since(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    #[expect(clippy::cast_precision_loss, reason = "nobody needs the nanoseconds of a year")]
    pub(crate) fn as_seconds(self) -> f64 {
        self.0 as f64 / 1e9
    }
}

fn nanos(length: Duration) -> i64 {
    i64::try_from(length.as_nanos()).unwrap_or(i64::MAX)
}

/// The offset of time from the steady clock is `before`, then moves evenly from `from` to `to`, then is `after`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Bend {
    from: u64,
    to: u64,
    before: i64,
    after: i64,
}

impl Bend {
    fn at(&self, steady: u64) -> Instant {
        let offset = if steady <= self.from {
            self.before
        } else if steady >= self.to {
            self.after
        } else {
            let shift = i128::from(self.after) - i128::from(self.before);
            let part = shift * i128::from(steady - self.from) / i128::from(self.to - self.from);
            self.before.saturating_add(i64::try_from(part).expect("a part of a shift"))
        };
        Instant(i64::try_from(steady).unwrap_or(i64::MAX).saturating_add(offset))
    }
}

#[derive(Debug, Default)]
struct Place {
    from: AtomicU64,
    to: AtomicU64,
    before: AtomicI64,
    after: AtomicI64,
}

impl Place {
    fn bend(&self) -> Bend {
        Bend {
            from: self.from.load(Ordering::Relaxed),
            to: self.to.load(Ordering::Relaxed),
            before: self.before.load(Ordering::Relaxed),
            after: self.after.load(Ordering::Relaxed),
        }
    }
}

/// The course of time. Any number of readers, one who shifts it.
#[derive(Debug)]
pub(super) struct Course {
    /// How many bends there were; whether it is odd says which place counts.
    count: AtomicU64,
    places: [Place; 2],
}

impl Course {
    /// It is `now` when the steady clock shows `steady`.
    pub(super) fn new(steady: u64, now: Instant) -> Self {
        let course = Self { count: AtomicU64::new(0), places: Default::default() };
        let offset = now.0.saturating_sub(i64::try_from(steady).unwrap_or(i64::MAX));
        course.publish(Bend { from: steady, to: steady, before: offset, after: offset });
        course
    }

    /// What time it is. `clock` reads the steady clock: in here, so that the reading and the bend belong together, however
    /// long a reader is held up between them.
    pub(super) fn now(&self, clock: impl Fn() -> u64) -> Instant {
        loop {
            let count = self.count.load(Ordering::Acquire);
            let place = &self.places[usize::from(count % 2 == 1)];
            let bend = place.bend();
            let steady = clock();
            // If another bend was published meanwhile, or is being written into this place, the count tells.
            fence(Ordering::Acquire);
            if self.count.load(Ordering::Relaxed) == count {
                return bend.at(steady);
            }
        }
    }

    /// What time it is at a reading that was just made, for the one who shifts.
    pub(super) fn at(&self, steady: u64) -> Instant {
        self.bend().at(steady)
    }

    /// Shifts time in a while, a little at a time; not if that is not possible without going back. `clock` reads the steady clock.
    pub(super) fn shift(&self, steady: u64, shift: Offset, clock: impl Fn() -> u64) {
        let last = self.bend();
        if shift == Offset::NONE || steady < last.to {
            return;
        }
        assert!(shift.size() < Duration::from_nanos(LENGTH_NANOS), "time never stands still");
        let from = steady.saturating_add(LEAD_NANOS);
        let bend = Bend {
            from,
            to: from.saturating_add(LENGTH_NANOS),
            before: last.after,
            after: last.after.saturating_add(shift.0),
        };
        // Whoever was held up for so long that it would have begun must not bend what others have read already.
        if clock() < from - LEAD_NANOS / 2 {
            self.publish(bend);
        }
    }

    /// The bend that counts, for the one who publishes them.
    fn bend(&self) -> Bend {
        let count = self.count.load(Ordering::Relaxed);
        self.places[usize::from(count % 2 == 1)].bend()
    }

    fn publish(&self, bend: Bend) {
        let count = self.count.load(Ordering::Relaxed) + 1;
        let place = &self.places[usize::from(count % 2 == 1)];
        // The pair of the readers' fence: who sees what follows sees the count before it as well.
        fence(Ordering::Release);
        place.from.store(bend.from, Ordering::Relaxed);
        place.to.store(bend.to, Ordering::Relaxed);
        place.before.store(bend.before, Ordering::Relaxed);
        place.after.store(bend.after, Ordering::Relaxed);
        self.count.store(count, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::thread;

    use super::*;

    const MILLI: u64 = 1_000_000;
    const SECOND: u64 = 1000 * MILLI;

    fn course() -> Course {
        Course::new(5 * SECOND, Instant::from_epoch(Duration::from_secs(1_000_000)))
    }

    fn millis(offset: i64) -> Offset {
        Offset(offset * 1_000_000)
    }

    #[test]
    fn time_follows_the_steady_clock() {
        let course = course();
        let start = course.at(5 * SECOND);
        assert_eq!(start.since_epoch(), Duration::from_secs(1_000_000));
        assert_eq!(course.at(8 * SECOND).offset_from(start), millis(3000));
    }

    #[test]
    fn a_shift_comes_after_its_lead_a_little_at_a_time() {
        for shift in [70, -70] {
            let course = course();
            let start = course.at(10 * SECOND);
            course.shift(10 * SECOND, millis(shift), || 10 * SECOND);
            for (after, want) in [
                (0, 0),
                (250, 250),
                (600, 600 + shift / 2),
                (950, 950 + shift),
                (2000, 2000 + shift),
            ] {
                let at = course.at(10 * SECOND + after * MILLI);
                assert_eq!(at.offset_from(start), millis(want), "{shift} after {after} ms");
            }
        }
    }

    #[test]
    fn there_is_one_bend_at_a_time_and_none_that_has_begun() {
        let course = course();
        let start = course.at(10 * SECOND);
        course.shift(10 * SECOND, millis(50), || 10 * SECOND + 200 * MILLI);
        assert_eq!(course.at(20 * SECOND).offset_from(start), millis(10_000), "held up");
        course.shift(20 * SECOND, millis(50), || 20 * SECOND);
        course.shift(20 * SECOND + 500 * MILLI, millis(50), || 20 * SECOND + 500 * MILLI);
        assert_eq!(course.at(30 * SECOND).offset_from(start), millis(20_050), "not over yet");
        course.shift(30 * SECOND, millis(-50), || 30 * SECOND);
        assert_eq!(course.at(40 * SECOND).offset_from(start), millis(30_000));
    }

    #[test]
    fn time_never_goes_back_while_it_is_shifted_under_its_readers() {
        let (course, steady) = (course(), AtomicU64::new(10 * SECOND));
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut last = course.now(|| 10 * SECOND);
                    while !over.load(Ordering::Relaxed) {
                        let now = course.now(|| steady.fetch_add(10, Ordering::SeqCst));
                        assert!(now >= last, "{now:?} after {last:?}");
                        last = now;
                    }
                });
            }
            for round in 0..50_000_u64 {
                let now = steady.fetch_add(SECOND / 3, Ordering::SeqCst) + SECOND / 3;
                let shift = if round % 5 == 0 { 70 } else { -70 };
                course.shift(now, millis(shift), || steady.load(Ordering::SeqCst));
            }
            over.store(true, Ordering::Relaxed);
        });
    }
}
