//! What it means that the wall clock differs from the broker's time.
//!
//! The clocks are compared every second. The result is how far time is to be shifted, and whether
//! the wall clock is suspect. Pure: readings are arguments. The rules, with their reasons in
//! `docs/adr/0010`:
//!
//! | wall clock differs by | time | suspect |
//! |---|---|---|
//! | up to [`STEP_MAX`] | follows: [`FASTER`] or [`SLOWER`] per comparison | no |
//! | up to [`FOLLOW_MAX`] | follows once the difference has not changed for [`SETTLED_FOR`] | yes |
//! | more | does not follow, until a restart | yes |

use std::fmt;
use std::time::Duration;

use punctual_core::Timestamp;

use super::timeline::{Offset, UnixNanos};

/// A larger difference is not drift: the clock was set.
const STEP_MAX: Duration = Duration::from_millis(250);
/// A larger difference is never followed. Leap seconds and the first correction by a time server
/// are smaller.
const FOLLOW_MAX: Duration = Duration::from_secs(10);
/// How long the difference must not have changed before it is followed.
const SETTLED_FOR: Duration = Duration::from_secs(300);
/// How much it may vary in that time.
const SETTLED_WITHIN: Duration = Duration::from_millis(50);
/// A smaller difference is ignored: it is as likely an error of the reading.
const EQUAL_WITHIN: Duration = Duration::from_micros(200);
/// What time gains per comparison when it is behind. Small, because with a wrong wall clock fires
/// would be early.
const FASTER: Duration = Duration::from_micros(500);
/// What time loses per comparison when it is ahead. Large, because time that is ahead makes fires
/// early, and late is better than early.
const SLOWER: Duration = Duration::from_millis(70);

/// Why the wall clock is suspect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Suspicion {
    /// It was set while the broker ran; it is this far ahead of the broker's time.
    Set(Offset),
    /// It is before a time at which the store was in use.
    BeforeStore(Timestamp),
}

impl fmt::Display for Suspicion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Set(offset) => {
                let way = if offset.is_ahead() { "ahead of" } else { "behind" };
                let seconds = offset.size().as_secs_f64();
                write!(
                    f,
                    "the machine's clock was set: it is {seconds:.3} s {way} this broker's time, \
                     which does not follow; restart the broker to use the machine's clock"
                )
            }
            Self::BeforeStore(at) => {
                write!(
                    f,
                    "the machine's clock is before the time at which this store was last opened, \
                     {at}"
                )
            }
        }
    }
}

/// The result of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Comparison {
    /// How far the wall clock is ahead of the broker's time.
    pub(super) offset: Offset,
    pub(super) suspicion: Option<Suspicion>,
    /// Whether the suspicion is new, has changed, or has ended.
    pub(super) is_news: bool,
    /// How far time is to be shifted.
    pub(super) shift: Offset,
}

/// Compares the wall clock with the broker's time.
#[derive(Debug)]
pub(super) struct WallClockCheck {
    /// The wall clock's offset from the steady clock when it was last set.
    set: Offset,
    /// When it was last set, by the steady clock.
    set_at: u64,
    /// The latest time at which the store was in use, while the wall clock is before it.
    store_time: Option<Timestamp>,
    suspicion: Option<Suspicion>,
}

impl WallClockCheck {
    pub(super) fn new(steady: u64, wall: UnixNanos) -> Self {
        Self {
            set: offset_from_steady(steady, wall),
            set_at: steady,
            store_time: None,
            suspicion: None,
        }
    }

    pub(super) fn saw_store_time(&mut self, at: Timestamp) {
        self.store_time = self.store_time.max(Some(at));
    }

    pub(super) const fn suspicion(&self) -> Option<Suspicion> {
        self.suspicion
    }

    /// Compares the wall clock with the broker's time.
    pub(super) fn compare(
        &mut self,
        steady: u64,
        broker_time: UnixNanos,
        wall: UnixNanos,
    ) -> Comparison {
        let set = offset_from_steady(steady, wall);
        if !set.since(self.set).within(SETTLED_WITHIN) {
            (self.set, self.set_at) = (set, steady);
        }
        let offset = wall.offset_from(broker_time);
        let settled = Duration::from_nanos(steady.saturating_sub(self.set_at)) >= SETTLED_FOR;
        let follows = offset.within(STEP_MAX) || (offset.within(FOLLOW_MAX) && settled);
        let shift = if follows && !offset.within(EQUAL_WITHIN) {
            offset.clamp(Offset::behind(SLOWER), Offset::ahead(FASTER))
        } else {
            Offset::NONE
        };
        self.store_time =
            self.store_time.filter(|store_time| store_time.as_millis() > wall.as_millis());
        let suspicion = match self.store_time {
            _ if !offset.within(STEP_MAX) => Some(Suspicion::Set(offset)),
            Some(store_time) => Some(Suspicion::BeforeStore(store_time)),
            None => None,
        };
        let is_news = is_different(self.suspicion, suspicion);
        self.suspicion = suspicion;
        Comparison { offset, suspicion, is_news, shift }
    }
}

/// Returns the time at which the steady clock was zero, by the wall clock.
fn offset_from_steady(steady: u64, wall: UnixNanos) -> Offset {
    wall.offset_from(UnixNanos::from_epoch(Duration::from_nanos(steady)))
}

fn is_different(old: Option<Suspicion>, new: Option<Suspicion>) -> bool {
    match (old, new) {
        // While time follows, the difference shrinks: that is not worth a log line each second.
        (Some(Suspicion::Set(old)), Some(Suspicion::Set(new))) => !new.since(old).within(STEP_MAX),
        (old, new) => old != new,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;
    const START: Duration = Duration::from_secs(1_700_000_000);

    /// A broker whose wall clock the test sets, with one comparison a second.
    struct TestClocks {
        wall_check: WallClockCheck,
        steady: u64,
        /// The offset from the steady clock, in milliseconds, like `wall`.
        broker_time: i64,
        wall: i64,
    }

    fn instant(steady: u64, millis: i64) -> UnixNanos {
        let since = START + Duration::from_nanos(steady);
        let moved = Duration::from_millis(millis.unsigned_abs());
        let back = since.saturating_sub(moved);
        UnixNanos::from_epoch(if millis < 0 { back } else { since + moved })
    }

    impl TestClocks {
        fn new() -> Self {
            let steady = 100 * SECOND;
            Self {
                wall_check: WallClockCheck::new(steady, instant(steady, 0)),
                steady,
                broker_time: 0,
                wall: 0,
            }
        }

        /// Makes one comparison. Returns it with its shift in microseconds.
        fn compare(&mut self) -> (Comparison, i64) {
            self.steady += SECOND;
            let (broker_time, wall) =
                (instant(self.steady, self.broker_time), instant(self.steady, self.wall));
            let compared = self.wall_check.compare(self.steady, broker_time, wall);
            let micros = i64::try_from(compared.shift.size().as_micros()).unwrap();
            (compared, if compared.shift.is_ahead() { micros } else { -micros })
        }
    }

    #[test]
    fn each_difference_is_followed_or_suspect() {
        const YEAR: i64 = 365 * 24 * 3600 * 1000;
        for (offset_millis, suspect, shift_micros) in [
            (0, false, 0),
            (1, false, 500),
            (250, false, 500),
            (-1, false, -1000),
            (-70, false, -70_000),
            (-250, false, -70_000),
            (251, true, 0),
            (-251, true, 0),
            (1000, true, 0),
            (-1000, true, 0),
            (3_600_000, true, 0),
            (10 * YEAR, true, 0),
            (-10 * YEAR, true, 0),
            (-60 * YEAR, true, 0),
        ] {
            let mut clocks = TestClocks::new();
            clocks.wall = offset_millis;
            let (compared, shift) = clocks.compare();
            assert_eq!(compared.suspicion.is_some(), suspect, "{offset_millis} ms");
            assert_eq!(compared.is_news, suspect, "{offset_millis} ms");
            assert_eq!(shift, shift_micros, "{offset_millis} ms");
        }
    }

    #[test]
    fn a_suspicion_is_news_when_it_begins_changes_and_ends() {
        let mut clocks = TestClocks::new();
        for (wall, suspect, is_news) in [
            (0, false, false),
            (3_600_000, true, true),
            (3_600_000, true, false),
            (3_600_010, true, false),
            (-5000, true, true),
            (0, false, true),
            (0, false, false),
        ] {
            clocks.wall = wall;
            let (compared, _) = clocks.compare();
            assert_eq!(
                (compared.suspicion.is_some(), compared.is_news),
                (suspect, is_news),
                "{wall}"
            );
        }
    }

    #[test]
    fn a_lasting_difference_is_followed_if_it_is_small_enough() {
        for (offset, followed) in [(-1000, true), (1000, true), (10_000, true), (-10_001, false)] {
            let mut clocks = TestClocks::new();
            clocks.wall = offset;
            let shifts: Vec<i64> = (0..302).map(|_| clocks.compare().1).collect();
            assert!(shifts[..300].iter().all(|shift| *shift == 0), "{offset}: not at once");
            assert_eq!(shifts[301] != 0, followed, "{offset}");
            // Setting the clock again starts the wait anew.
            clocks.wall = offset + 60;
            assert_eq!(clocks.compare().1, 0, "{offset}");
        }
    }

    #[test]
    fn a_wall_clock_before_the_store_time_is_suspect_until_it_has_passed_it() {
        let mut clocks = TestClocks::new();
        clocks.wall_check.saw_store_time(Timestamp::from_millis(
            instant(clocks.steady + 2 * SECOND, 0).as_millis(),
        ));
        let (first, shift) = clocks.compare();
        assert!(
            matches!(first.suspicion, Some(Suspicion::BeforeStore(_))) && first.is_news,
            "{first:?}"
        );
        assert_eq!(shift, 0);
        let (then, _) = clocks.compare();
        assert!(then.suspicion.is_none() && then.is_news, "{then:?}");
    }
}
