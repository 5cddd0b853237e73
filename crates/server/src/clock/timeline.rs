//! The timeline: maps readings of the steady clock to time.
//!
//! Time runs with the steady clock, except during a *slew*, in which it runs a little faster or
//! slower until it is shifted by the wanted amount. A later reading never gives an earlier time,
//! even if a slew is published between the two readings: a slew begins some time after it is
//! published, and changes nothing before that.
//!
//! Readers never wait. There are two slots for a slew, and a counter says which one is current.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering, fence};
use std::time::Duration;

/// How long after its publication a slew begins, in nanoseconds.
const LEAD_NANOS: u64 = 250_000_000;
/// How long a slew takes. With the lead it ends before the clocks are compared again.
const LENGTH_NANOS: u64 = 700_000_000;

/// Nanoseconds since the Unix epoch. The range ends in the year 2262.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct UnixNanos(i64);

/// How far one clock is ahead of another; negative if it is behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Offset(i64);

impl UnixNanos {
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

    #[expect(
        clippy::cast_precision_loss,
        reason = "a metric does not need the nanoseconds of a year"
    )]
    pub(crate) fn as_seconds(self) -> f64 {
        self.0 as f64 / 1e9
    }
}

fn nanos(length: Duration) -> i64 {
    i64::try_from(length.as_nanos()).unwrap_or(i64::MAX)
}

/// The offset of time from the steady clock: `before` until `from`, then changing evenly until
/// `to`, then `after`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Slew {
    from: u64,
    to: u64,
    before: i64,
    after: i64,
}

impl Slew {
    fn at(&self, steady: u64) -> UnixNanos {
        let offset = if steady <= self.from {
            self.before
        } else if steady >= self.to {
            self.after
        } else {
            let shift = i128::from(self.after) - i128::from(self.before);
            let part = shift * i128::from(steady - self.from) / i128::from(self.to - self.from);
            self.before.saturating_add(i64::try_from(part).expect("a part of a shift"))
        };
        UnixNanos(i64::try_from(steady).unwrap_or(i64::MAX).saturating_add(offset))
    }
}

/// Holds a [`Slew`] that readers may read while it is being replaced.
#[derive(Debug, Default)]
struct SlewSlot {
    from: AtomicU64,
    to: AtomicU64,
    before: AtomicI64,
    after: AtomicI64,
}

impl SlewSlot {
    fn slew(&self) -> Slew {
        Slew {
            from: self.from.load(Ordering::Relaxed),
            to: self.to.load(Ordering::Relaxed),
            before: self.before.load(Ordering::Relaxed),
            after: self.after.load(Ordering::Relaxed),
        }
    }
}

/// Maps the steady clock to time. Has any number of readers and one writer.
#[derive(Debug)]
pub(super) struct ClockTimeline {
    /// How many slews were published. The slot of the current one is `count % 2`.
    count: AtomicU64,
    slots: [SlewSlot; 2],
}

impl ClockTimeline {
    /// Creates a timeline on which it is `now` when the steady clock reads `steady`.
    pub(super) fn new(steady: u64, now: UnixNanos) -> Self {
        let timeline = Self { count: AtomicU64::new(0), slots: Default::default() };
        let offset = now.0.saturating_sub(i64::try_from(steady).unwrap_or(i64::MAX));
        timeline.publish(Slew { from: steady, to: steady, before: offset, after: offset });
        timeline
    }

    /// Returns the time. `clock` reads the steady clock; it is called in here so that the reading
    /// and the slew belong together, however long the reader is interrupted between them.
    pub(super) fn now(&self, clock: impl Fn() -> u64) -> UnixNanos {
        loop {
            let count = self.count.load(Ordering::Acquire);
            let slot = &self.slots[usize::from(count % 2 == 1)];
            let slew = slot.slew();
            let steady = clock();
            // The count has changed if a slew was published in the meantime, and before the next
            // one is written into this slot.
            fence(Ordering::Acquire);
            if self.count.load(Ordering::Relaxed) == count {
                return slew.at(steady);
            }
        }
    }

    /// Returns the time at a reading. For the writer only.
    pub(super) fn at(&self, steady: u64) -> UnixNanos {
        self.slew().at(steady)
    }

    /// Publishes a slew that shifts time by `shift`, unless the last slew is not over or this one
    /// would begin too soon. `clock` reads the steady clock. For the writer only.
    pub(super) fn shift(&self, steady: u64, shift: Offset, clock: impl Fn() -> u64) {
        let last = self.slew();
        if shift == Offset::NONE || steady < last.to {
            return;
        }
        assert!(shift.size() < Duration::from_nanos(LENGTH_NANOS), "a slew must not stop time");
        let from = steady.saturating_add(LEAD_NANOS);
        let slew = Slew {
            from,
            to: from.saturating_add(LENGTH_NANOS),
            before: last.after,
            after: last.after.saturating_add(shift.0),
        };
        // If this thread was interrupted for so long that the slew would already have begun,
        // readers may have read times that it would change.
        if clock() < from - LEAD_NANOS / 2 {
            self.publish(slew);
        }
    }

    /// Returns the current slew. For the writer only.
    fn slew(&self) -> Slew {
        let count = self.count.load(Ordering::Relaxed);
        self.slots[usize::from(count % 2 == 1)].slew()
    }

    fn publish(&self, slew: Slew) {
        let count = self.count.load(Ordering::Relaxed) + 1;
        let slot = &self.slots[usize::from(count % 2 == 1)];
        // Pairs with the fence in `now`: a reader that sees any of the stores below also sees the
        // count of the slew before.
        fence(Ordering::Release);
        slot.from.store(slew.from, Ordering::Relaxed);
        slot.to.store(slew.to, Ordering::Relaxed);
        slot.before.store(slew.before, Ordering::Relaxed);
        slot.after.store(slew.after, Ordering::Relaxed);
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

    fn timeline() -> ClockTimeline {
        ClockTimeline::new(5 * SECOND, UnixNanos::from_epoch(Duration::from_secs(1_000_000)))
    }

    fn millis(offset: i64) -> Offset {
        Offset(offset * 1_000_000)
    }

    #[test]
    fn time_follows_the_steady_clock() {
        let timeline = timeline();
        let start = timeline.at(5 * SECOND);
        assert_eq!(start.since_epoch(), Duration::from_secs(1_000_000));
        assert_eq!(timeline.at(8 * SECOND).offset_from(start), millis(3000));
    }

    #[test]
    fn a_shift_begins_after_its_lead_and_is_gradual() {
        for shift in [70, -70] {
            let timeline = timeline();
            let start = timeline.at(10 * SECOND);
            timeline.shift(10 * SECOND, millis(shift), || 10 * SECOND);
            for (after, want) in [
                (0, 0),
                (250, 250),
                (600, 600 + shift / 2),
                (950, 950 + shift),
                (2000, 2000 + shift),
            ] {
                let at = timeline.at(10 * SECOND + after * MILLI);
                assert_eq!(at.offset_from(start), millis(want), "{shift} after {after} ms");
            }
        }
    }

    #[test]
    fn slews_do_not_overlap_and_are_never_published_late() {
        let timeline = timeline();
        let start = timeline.at(10 * SECOND);
        timeline.shift(10 * SECOND, millis(50), || 10 * SECOND + 200 * MILLI);
        assert_eq!(timeline.at(20 * SECOND).offset_from(start), millis(10_000), "interrupted");
        timeline.shift(20 * SECOND, millis(50), || 20 * SECOND);
        timeline.shift(20 * SECOND + 500 * MILLI, millis(50), || 20 * SECOND + 500 * MILLI);
        assert_eq!(
            timeline.at(30 * SECOND).offset_from(start),
            millis(20_050),
            "the last slew is not over"
        );
        timeline.shift(30 * SECOND, millis(-50), || 30 * SECOND);
        assert_eq!(timeline.at(40 * SECOND).offset_from(start), millis(30_000));
    }

    #[test]
    fn time_never_goes_back_while_slews_are_published() {
        let (timeline, steady) = (timeline(), AtomicU64::new(10 * SECOND));
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut last = timeline.now(|| 10 * SECOND);
                    while !over.load(Ordering::Relaxed) {
                        let now = timeline.now(|| steady.fetch_add(10, Ordering::SeqCst));
                        assert!(now >= last, "{now:?} after {last:?}");
                        last = now;
                    }
                });
            }
            for round in 0..50_000_u64 {
                let now = steady.fetch_add(SECOND / 3, Ordering::SeqCst) + SECOND / 3;
                let shift = if round % 5 == 0 { 70 } else { -70 };
                timeline.shift(now, millis(shift), || steady.load(Ordering::SeqCst));
            }
            over.store(true, Ordering::Relaxed);
        });
    }
}
