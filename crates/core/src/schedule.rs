//! Schedules: the rule when a task is due.
//!
//! In: the rule and `now`, at the owner of the task. Out: the first `fire_at` and, for a rule that
//! goes on, the one after. Invariant: a fire time is never earlier than what the caller asked for.
//! Not here: cron expressions, time zones and what to do about missed fires.

use std::time::Duration;

use crate::limits::{DELAY_MAX, INTERVAL_MIN};
use crate::{Invalid, Timestamp, format_duration};

/// The rule when a task is due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Schedule {
    /// Due at one time.
    Once(Due),
    /// Due again and again, a fixed interval apart, counted from the first without drift.
    Every {
        /// From one nominal time to the next.
        interval: Duration,
    },
    /// Due unless touched in time: silence fires it.
    Watch {
        /// How long the silence may last.
        within: Duration,
    },
}

/// A time as the caller gave it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Due {
    /// An instant.
    At(Timestamp),
    /// So long after the owner of the task has taken it.
    In(Duration),
}

impl Due {
    /// The instant meant.
    #[must_use]
    pub fn resolve(self, now: Timestamp) -> Timestamp {
        match self {
            Self::At(at) => at,
            Self::In(delay) => now.after(delay),
        }
    }
}

impl Schedule {
    /// Checks the limits, naming the field as the caller wrote it.
    pub fn check(&self) -> Result<(), Invalid> {
        match self {
            Self::Once(Due::At(_)) => Ok(()),
            Self::Once(Due::In(delay)) => check_between("in", *delay, Duration::ZERO),
            Self::Every { interval } => check_between("every", *interval, INTERVAL_MIN),
            Self::Watch { within } => check_between("within", *within, INTERVAL_MIN),
        }
    }

    /// When a task that is taken `now` is first due.
    #[must_use]
    pub fn first_fire_at(&self, now: Timestamp) -> Timestamp {
        match self {
            Self::Once(due) => due.resolve(now),
            Self::Every { interval: delay } | Self::Watch { within: delay } => now.after(*delay),
        }
    }

    /// The nominal time that follows `nominal_at`, if the rule goes on by itself. A watch does not: it
    /// is armed again by the touch that ends the silence.
    #[must_use]
    pub fn next_fire_at(&self, nominal_at: Timestamp) -> Option<Timestamp> {
        match self {
            Self::Every { interval } => Some(nominal_at.after(*interval)),
            Self::Once(_) | Self::Watch { .. } => None,
        }
    }
}

fn check_between(field: &str, given: Duration, min: Duration) -> Result<(), Invalid> {
    if (min..=DELAY_MAX).contains(&given) {
        return Ok(());
    }
    let (min, max) = (format_duration(min), format_duration(DELAY_MAX));
    let given = format_duration(given);
    Err(Invalid::new(field, format!("must be from {min} to {max}, is {given}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(1_000_000);
    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_first_fire_is_counted_from_when_the_owner_takes_the_task() {
        let past = Timestamp::from_millis(5);
        for (schedule, want) in [
            (Schedule::Once(Due::At(past)), past),
            (Schedule::Once(Due::In(Duration::ZERO)), NOW),
            (Schedule::Once(Due::In(SECOND)), NOW.after(SECOND)),
            (Schedule::Every { interval: SECOND }, NOW.after(SECOND)),
            (Schedule::Watch { within: SECOND }, NOW.after(SECOND)),
        ] {
            assert_eq!(schedule.first_fire_at(NOW), want, "{schedule:?}");
        }
    }

    #[test]
    fn only_every_goes_on_by_itself_and_does_not_drift() {
        let every = Schedule::Every { interval: SECOND };
        assert_eq!(every.next_fire_at(NOW), Some(NOW.after(SECOND)));
        assert_eq!(Schedule::Once(Due::At(NOW)).next_fire_at(NOW), None);
        assert_eq!(Schedule::Watch { within: SECOND }.next_fire_at(NOW), None);
    }

    #[test]
    fn limits_name_the_field() {
        let long = Duration::from_secs(36_501 * 86_400);
        let short = Duration::from_millis(99);
        for (schedule, want) in [
            (Schedule::Once(Due::In(long)), "in: must be from 0s to 36500d, is 36501d"),
            (Schedule::Every { interval: short }, "every: must be from 100ms to 36500d, is 99ms"),
            (Schedule::Watch { within: short }, "within: must be from 100ms to 36500d, is 99ms"),
        ] {
            assert_eq!(schedule.check().unwrap_err().to_string(), want);
        }
        assert_eq!(Schedule::Once(Due::At(Timestamp::MAX)).check(), Ok(()));
    }
}
