//! Doubt: what it means that the wall clock differs from the broker's time.
//!
//! In: comparisons, one a second. Out: how far time is to be shifted, and whether the wall clock is suspect. Pure: readings come as
//! arguments. Decided here, with the reasons in `docs/adr/0010`:
//!
//! | wall clock differs by | time | suspect |
//! |---|---|---|
//! | up to [`STEP_MAX`] | follows: faster by [`FASTER`] or slower by [`SLOWER`] a comparison | no |
//! | up to [`FOLLOW_MAX`] | follows once the difference has been the same for [`SETTLED_FOR`] | yes |
//! | more | goes on as it is, until a restart | yes |

use std::fmt;
use std::time::Duration;

use punctual_core::Timestamp;

use super::course::{Instant, Offset};

/// A larger difference is no drift: somebody has set the clock.
const STEP_MAX: Duration = Duration::from_millis(250);
/// A larger difference is never followed: a leap second and the first word of a time server are smaller.
const FOLLOW_MAX: Duration = Duration::from_secs(10);
/// How long a set clock must have stood by it before it is followed,
const SETTLED_FOR: Duration = Duration::from_secs(300);
/// and how much it may have moved in that time.
const SETTLED_WITHIN: Duration = Duration::from_millis(50);
/// A smaller difference is left alone: it is in the reading as much as in the clock.
const EQUAL_WITHIN: Duration = Duration::from_micros(200);
/// What time gains in a comparison when it is behind. Slow, because a clock that is wrong would make fires early.
const FASTER: Duration = Duration::from_micros(500);
/// What time loses in a comparison when it is ahead. Quick, because being ahead is being early, and late is the lesser evil.
const SLOWER: Duration = Duration::from_millis(70);

/// Why the wall clock is not believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Doubt {
    /// It was set while the broker ran.
    Set(Offset),
    /// The store has seen a later time.
    Seen(Timestamp),
}

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Set(offset) => {
                let way = if offset.is_ahead() { "ahead of" } else { "behind" };
                let seconds = offset.size().as_secs_f64();
                write!(
                    f,
                    "the machine's clock was set: it is {seconds:.3} s {way} this broker's time, which goes on as it was; \
                     a restart takes the machine's clock over"
                )
            }
            Self::Seen(at) => {
                write!(
                    f,
                    "the machine's clock is before the time at which this store was last opened, {at}"
                )
            }
        }
    }
}

/// What came of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Compared {
    /// How far the wall clock is ahead.
    pub(super) offset: Offset,
    pub(super) doubt: Option<Doubt>,
    /// Whether the doubt has come, gone, or become another.
    pub(super) is_news: bool,
    /// How far time is to be shifted.
    pub(super) shift: Offset,
}

/// What is thought of the wall clock.
#[derive(Debug)]
pub(super) struct Doubts {
    /// The wall clock's offset from the steady clock when it was last set,
    set: Offset,
    /// and when that was, by the steady clock.
    set_at: u64,
    /// The latest time that the store has seen.
    seen: Option<Timestamp>,
    doubt: Option<Doubt>,
}

impl Doubts {
    pub(super) fn new(steady: u64, wall: Instant) -> Self {
        Self { set: offset_from_steady(steady, wall), set_at: steady, seen: None, doubt: None }
    }

    pub(super) fn saw(&mut self, at: Timestamp) {
        self.seen = self.seen.max(Some(at));
    }

    pub(super) const fn doubt(&self) -> Option<Doubt> {
        self.doubt
    }

    /// Compares the wall clock with the broker's time, `ours`.
    pub(super) fn compare(&mut self, steady: u64, ours: Instant, wall: Instant) -> Compared {
        let set = offset_from_steady(steady, wall);
        if !set.since(self.set).within(SETTLED_WITHIN) {
            (self.set, self.set_at) = (set, steady);
        }
        let offset = wall.offset_from(ours);
        let settled = Duration::from_nanos(steady.saturating_sub(self.set_at)) >= SETTLED_FOR;
        let follows = offset.within(STEP_MAX) || (offset.within(FOLLOW_MAX) && settled);
        let shift = if follows && !offset.within(EQUAL_WITHIN) {
            offset.clamp(Offset::behind(SLOWER), Offset::ahead(FASTER))
        } else {
            Offset::NONE
        };
        self.seen = self.seen.filter(|seen| seen.as_millis() > wall.as_millis());
        let doubt = match self.seen {
            _ if !offset.within(STEP_MAX) => Some(Doubt::Set(offset)),
            Some(seen) => Some(Doubt::Seen(seen)),
            None => None,
        };
        let is_news = is_other(self.doubt, doubt);
        self.doubt = doubt;
        Compared { offset, doubt, is_news, shift }
    }
}

/// The steady clock began at some time: how long after the epoch, by the wall clock.
fn offset_from_steady(steady: u64, wall: Instant) -> Offset {
    wall.offset_from(Instant::from_epoch(Duration::from_nanos(steady)))
}

fn is_other(old: Option<Doubt>, new: Option<Doubt>) -> bool {
    match (old, new) {
        // While it is followed the difference shrinks: that is not worth a word each second.
        (Some(Doubt::Set(old)), Some(Doubt::Set(new))) => !new.since(old).within(STEP_MAX),
        (old, new) => old != new,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;
    const START: Duration = Duration::from_secs(1_700_000_000);

    /// A broker whose wall clock a test sets: a comparison a second, as in life.
    struct Machine {
        doubts: Doubts,
        steady: u64,
        /// Of both from the steady clock, in milliseconds.
        ours: i64,
        wall: i64,
    }

    fn instant(steady: u64, millis: i64) -> Instant {
        let since = START + Duration::from_nanos(steady);
        let moved = Duration::from_millis(millis.unsigned_abs());
        let back = since.saturating_sub(moved);
        Instant::from_epoch(if millis < 0 { back } else { since + moved })
    }

    impl Machine {
        fn new() -> Self {
            let steady = 100 * SECOND;
            Self { doubts: Doubts::new(steady, instant(steady, 0)), steady, ours: 0, wall: 0 }
        }

        /// One comparison, and what it shifts, in microseconds.
        fn compare(&mut self) -> (Compared, i64) {
            self.steady += SECOND;
            let (ours, wall) = (instant(self.steady, self.ours), instant(self.steady, self.wall));
            let compared = self.doubts.compare(self.steady, ours, wall);
            let micros = i64::try_from(compared.shift.size().as_micros()).unwrap();
            (compared, if compared.shift.is_ahead() { micros } else { -micros })
        }
    }

    #[test]
    fn what_a_difference_means() {
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
            let mut machine = Machine::new();
            machine.wall = offset_millis;
            let (compared, shift) = machine.compare();
            assert_eq!(compared.doubt.is_some(), suspect, "{offset_millis} ms");
            assert_eq!(compared.is_news, suspect, "{offset_millis} ms");
            assert_eq!(shift, shift_micros, "{offset_millis} ms");
        }
    }

    #[test]
    fn a_doubt_is_told_when_it_comes_changes_and_goes() {
        let mut machine = Machine::new();
        for (wall, suspect, is_news) in [
            (0, false, false),
            (3_600_000, true, true),
            (3_600_000, true, false),
            (3_600_010, true, false),
            (-5000, true, true),
            (0, false, true),
            (0, false, false),
        ] {
            machine.wall = wall;
            let (compared, _) = machine.compare();
            assert_eq!((compared.doubt.is_some(), compared.is_news), (suspect, is_news), "{wall}");
        }
    }

    #[test]
    fn a_leap_second_is_followed_when_it_has_stood_for_a_while_and_a_set_clock_is_not() {
        for (offset, followed) in [(-1000, true), (1000, true), (10_000, true), (-10_001, false)] {
            let mut machine = Machine::new();
            machine.wall = offset;
            let shifts: Vec<i64> = (0..302).map(|_| machine.compare().1).collect();
            assert!(shifts[..300].iter().all(|shift| *shift == 0), "{offset}: not at once");
            assert_eq!(shifts[301] != 0, followed, "{offset}");
            // Whoever sets it again begins anew.
            machine.wall = offset + 60;
            assert_eq!(machine.compare().1, 0, "{offset}");
        }
    }

    #[test]
    fn what_the_store_saw_is_suspect_until_it_has_come() {
        let mut machine = Machine::new();
        machine
            .doubts
            .saw(Timestamp::from_millis(instant(machine.steady + 2 * SECOND, 0).as_millis()));
        let (first, shift) = machine.compare();
        assert!(matches!(first.doubt, Some(Doubt::Seen(_))) && first.is_news, "{first:?}");
        assert_eq!(shift, 0);
        let (then, _) = machine.compare();
        assert!(then.doubt.is_none() && then.is_news, "{then:?}");
    }
}
