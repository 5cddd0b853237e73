//! Schedules: the rule when a task is due.
//!
//! A schedule gives the first nominal time of a task and, for a series, those that follow. No time
//! is earlier than what the caller asked for. Cron expressions are in `cron`; missed and
//! overlapping fires are decided in `task/next` and `task/overlap`.

use std::sync::Arc;
use std::time::Duration;

use crate::limits::{DELAY_MAX, INTERVAL_MIN, SKIPS_COUNTED_MAX};
use crate::{Cron, Invalid, Series, Timestamp, format_duration};

/// The rule when a task is due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Schedule {
    /// Due once.
    Once(Due),
    /// Due at a fixed interval, counted from the first fire without drift.
    Every {
        /// From one nominal time to the next.
        interval: Duration,
        /// The rules that it shares with `Cron`.
        series: Arc<Series>,
    },
    /// Due at the times of a cron expression.
    Cron {
        /// The expression, its zone, and what happens when clocks change.
        cron: Arc<Cron>,
        /// The rules that it shares with `Every`.
        series: Arc<Series>,
    },
    /// Due if it is not touched in time. After it has fired, the next touch arms it again.
    Watch {
        /// How long it waits for a touch.
        within: Duration,
        /// How long all touches together can postpone a fire, counted from when it was armed.
        postpone_max: Option<Duration>,
        /// Whether there is another fire when it is touched after it has fired.
        on_return: bool,
    },
}

/// The kind of a schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TaskKind {
    /// [`Schedule::Once`].
    Once,
    /// [`Schedule::Cron`].
    Cron,
    /// [`Schedule::Every`].
    Every,
    /// [`Schedule::Watch`].
    Watch,
}

impl TaskKind {
    /// All kinds.
    pub const ALL: [Self; 4] = [Self::Once, Self::Cron, Self::Every, Self::Watch];

    /// Whether its later fires follow from the schedule.
    #[must_use]
    pub const fn is_series(self) -> bool {
        matches!(self, Self::Cron | Self::Every)
    }
}

/// When a task is due, as the caller wrote it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Due {
    /// At an instant.
    At(Timestamp),
    /// After a delay, counted from when the owner accepts the task.
    In(Duration),
}

impl Due {
    /// The instant, for a task that is accepted at `now`.
    #[must_use]
    pub fn resolve(self, now: Timestamp) -> Timestamp {
        match self {
            Self::At(at) => at,
            Self::In(delay) => now.after(delay),
        }
    }
}

impl Schedule {
    /// A watch with defaults for all other fields.
    #[must_use]
    pub const fn watch(within: Duration) -> Self {
        Self::Watch { within, postpone_max: None, on_return: false }
    }

    /// An interval with the default rules of a series.
    #[must_use]
    pub fn every(interval: Duration) -> Self {
        Self::Every { interval, series: Arc::default() }
    }

    /// The kind of the schedule.
    #[must_use]
    pub const fn kind(&self) -> TaskKind {
        match self {
            Self::Once(_) => TaskKind::Once,
            Self::Cron { .. } => TaskKind::Cron,
            Self::Every { .. } => TaskKind::Every,
            Self::Watch { .. } => TaskKind::Watch,
        }
    }

    /// The rules of a series; `None` for `Once` and `Watch`.
    #[must_use]
    pub fn series(&self) -> Option<&Series> {
        match self {
            Self::Every { series, .. } | Self::Cron { series, .. } => Some(series),
            Self::Once(_) | Self::Watch { .. } => None,
        }
    }

    /// Checks all limits. The error names the field as the caller wrote it.
    pub fn check(&self) -> Result<(), Invalid> {
        match self {
            Self::Once(Due::At(_)) => Ok(()),
            Self::Once(Due::In(delay)) => check_between("in", *delay, Duration::ZERO),
            Self::Every { interval, series } => {
                check_between("every", *interval, INTERVAL_MIN)?;
                if series.jitter > *interval {
                    let given = format_duration(series.jitter);
                    let problem = format!("must be at most the interval, is {given}");
                    return Err(Invalid::new("jitter", problem));
                }
                series.check()
            }
            Self::Cron { series, .. } => series.check(),
            Self::Watch { within, postpone_max, .. } => {
                check_between("within", *within, INTERVAL_MIN)?;
                postpone_max.map_or(Ok(()), |max| check_between("postpone_max", max, *within))
            }
        }
    }

    /// The first nominal time of a task that is accepted at `now`; `None` if it is never due.
    #[must_use]
    pub fn first_at(&self, now: Timestamp) -> Option<Timestamp> {
        match self {
            Self::Once(due) => Some(due.resolve(now)),
            Self::Watch { within, .. } => Some(now.after(*within)),
            Self::Every { interval, series } => {
                let first = match series.starts_at {
                    None => now.after(*interval),
                    Some(starts_at) if starts_at >= now => starts_at,
                    // It started before: the next of its times.
                    Some(starts_at) => first_after(starts_at, *interval, now.millis_before(1)),
                };
                series.reaches(first).then_some(first)
            }
            Self::Cron { series, .. } => {
                let from = series.starts_at.map_or(now, |at| now.max(at.millis_before(1)));
                self.next_at(from)
            }
        }
    }

    /// The nominal time that follows another of a series. `None` for `Once` and `Watch`, and after
    /// the end of a series.
    #[must_use]
    pub fn next_at(&self, nominal_at: Timestamp) -> Option<Timestamp> {
        match self {
            Self::Every { interval, series } => {
                let next = nominal_at.after(*interval);
                (next > nominal_at && series.reaches(next)).then_some(next)
            }
            Self::Cron { cron, series } => {
                cron.next_after(nominal_at).filter(|next| series.reaches(*next))
            }
            Self::Once(_) | Self::Watch { .. } => None,
        }
    }

    /// The last `count` nominal times from `nominal_at`, which is one of them, up to and including
    /// `until`, in order.
    #[must_use]
    pub fn last_until(
        &self,
        nominal_at: Timestamp,
        until: Timestamp,
        count: usize,
    ) -> Vec<Timestamp> {
        let mut from = nominal_at;
        match self {
            Self::Once(_) | Self::Watch { .. } => return Vec::from([nominal_at]),
            Self::Every { interval, series } => {
                let until = series.ends_at.map_or(until, |ends_at| until.min(ends_at));
                let intervals = intervals_between(nominal_at, until, *interval);
                let passed = intervals.saturating_sub(count.saturating_sub(1) as u128);
                from = intervals_after(nominal_at, *interval, passed);
            }
            // Go back from `until` only as far as needed: there may be years of seconds before.
            Self::Cron { .. } => {
                for back in (0..40).map(|doubled| 1000u64 << doubled) {
                    let begin = until.millis_before(back);
                    if begin <= nominal_at {
                        break;
                    }
                    let times = self.times(begin, until);
                    if times.clone().take(count).count() == count {
                        from = times.clone().next().unwrap_or(nominal_at);
                        break;
                    }
                }
            }
        }
        let mut last: Vec<_> = std::iter::once(from).chain(self.times(from, until)).collect();
        last.drain(..last.len().saturating_sub(count));
        last
    }

    /// How many nominal times there are from `nominal_at` to `last`, both included. Those of cron
    /// are counted up to [`SKIPS_COUNTED_MAX`].
    #[must_use]
    pub fn count_until(&self, nominal_at: Timestamp, last: Timestamp) -> u32 {
        if let Self::Every { interval, .. } = self {
            let intervals = intervals_between(nominal_at, last, *interval);
            return u32::try_from(intervals.saturating_add(1)).unwrap_or(u32::MAX);
        }
        let further = self.times(nominal_at, last).take(SKIPS_COUNTED_MAX as usize - 1);
        u32::try_from(further.count() + 1).unwrap_or(SKIPS_COUNTED_MAX)
    }

    /// The nominal times after `after`, up to and including `until`.
    fn times(&self, after: Timestamp, until: Timestamp) -> impl Iterator<Item = Timestamp> + Clone {
        std::iter::successors(self.next_at(after), |at| self.next_at(*at))
            .take_while(move |at| *at <= until)
    }
}

/// The first time after an instant that is a whole number of intervals after `anchor`.
fn first_after(anchor: Timestamp, interval: Duration, after: Timestamp) -> Timestamp {
    intervals_after(anchor, interval, intervals_between(anchor, after, interval) + 1)
}

fn intervals_between(anchor: Timestamp, until: Timestamp, interval: Duration) -> u128 {
    until.since(anchor).as_millis() / interval.as_nanos().div_ceil(1_000_000).max(1)
}

/// `count` intervals after `anchor`. An interval is rounded up to whole milliseconds first, so that
/// rounding does not accumulate.
fn intervals_after(anchor: Timestamp, interval: Duration, count: u128) -> Timestamp {
    let millis = interval.as_nanos().div_ceil(1_000_000).saturating_mul(count);
    u64::try_from(millis)
        .map_or(Timestamp::MAX, |millis| anchor.after(Duration::from_millis(millis)))
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

    fn every(interval: Duration, series: Series) -> Schedule {
        Schedule::Every { interval, series: series.into() }
    }

    fn cron(expression: &str, series: Series) -> Schedule {
        let cron = Cron::new(expression, crate::Zone::utc(), crate::Dst::default()).unwrap();
        Schedule::Cron { cron: cron.into(), series: series.into() }
    }

    #[test]
    fn the_first_fire_is_counted_from_when_the_owner_accepts_the_task() {
        let past = Timestamp::from_millis(5);
        let from = |millis| Series {
            starts_at: Some(Timestamp::from_millis(millis)),
            ..Series::default()
        };
        let ended = Series { ends_at: Some(past), ..Series::default() };
        for (schedule, want) in [
            (Schedule::Once(Due::At(past)), Some(past)),
            (Schedule::Once(Due::In(Duration::ZERO)), Some(NOW)),
            (Schedule::Once(Due::In(SECOND)), Some(NOW.after(SECOND))),
            (Schedule::every(SECOND), Some(NOW.after(SECOND))),
            (every(SECOND, from(2_000_000)), Some(Timestamp::from_millis(2_000_000))),
            (every(SECOND, from(1_000_000)), Some(NOW)),
            (every(SECOND, from(999_300)), Some(Timestamp::from_millis(1_000_300))),
            (every(SECOND, ended.clone()), None),
            (Schedule::watch(SECOND), Some(NOW.after(SECOND))),
            (cron("* * * * * *", Series::default()), Some(NOW.after(SECOND))),
            (cron("* * * * * *", from(1_000_000)), Some(NOW.after(SECOND))),
            (cron("* * * * * *", from(2_000_000)), Some(Timestamp::from_millis(2_000_000))),
            (cron("* * * * * *", ended), None),
        ] {
            assert_eq!(schedule.first_at(NOW), want, "{schedule:?}");
        }
    }

    #[test]
    fn only_every_and_cron_have_a_next_time_and_they_do_not_drift() {
        let until = |at| Series { ends_at: Some(at), ..Series::default() };
        assert_eq!(Schedule::every(SECOND).next_at(NOW), Some(NOW.after(SECOND)));
        assert_eq!(every(SECOND, until(NOW)).next_at(NOW), None);
        assert_eq!(Schedule::every(SECOND).next_at(Timestamp::MAX), None);
        let cron = |series| cron("* * * * * *", series);
        assert_eq!(cron(Series::default()).next_at(NOW), Some(NOW.after(SECOND)));
        assert_eq!(cron(until(NOW)).next_at(NOW), None);
        assert_eq!(Schedule::Once(Due::At(NOW)).next_at(NOW), None);
        assert_eq!(Schedule::watch(SECOND).next_at(NOW), None);
    }

    #[test]
    fn the_last_times_are_found_even_after_years_of_seconds() {
        let year = Duration::from_secs(366 * 86_400);
        for schedule in [Schedule::every(SECOND), cron("* * * * * *", Series::default())] {
            for (until, count, want) in [
                (NOW, 3, vec![1_000_000]),
                (NOW.after(SECOND), 3, vec![1_000_000, 1_001_000]),
                (NOW.after(SECOND * 9), 1, vec![1_009_000]),
                (NOW.after(SECOND * 9), 2, vec![1_008_000, 1_009_000]),
                (NOW.after(year), 1, vec![1_000_000 + 366 * 86_400_000]),
            ] {
                let last = schedule.last_until(NOW, until, count);
                let last: Vec<_> = last.into_iter().map(Timestamp::as_millis).collect();
                assert_eq!(last, want, "{schedule:?} until {until}");
            }
            assert_eq!(schedule.count_until(NOW, NOW), 1);
            assert_eq!(schedule.count_until(NOW, NOW.after(SECOND * 9)), 10);
        }
        let seconds = cron("* * * * * *", Series::default());
        assert_eq!(seconds.count_until(NOW, NOW.after(year)), SKIPS_COUNTED_MAX);
        // Years between two times.
        let leap = cron("0 0 29 2 *", Series::default());
        let first = leap.first_at(NOW).unwrap();
        assert_eq!(leap.last_until(first, first.after(year), 5), [first]);
    }

    #[test]
    fn an_error_names_the_field_and_its_limit() {
        let long = Duration::from_secs(36_501 * 86_400);
        let short = Duration::from_millis(99);
        let jitter = |jitter| Series { jitter, ..Series::default() };
        let watch = |postpone_max| Schedule::Watch {
            within: SECOND,
            postpone_max: Some(postpone_max),
            on_return: false,
        };
        let (start, end) = (Some(NOW), Some(Timestamp::EPOCH));
        let reversed = Series { starts_at: start, ends_at: end, ..Series::default() };
        for (schedule, want) in [
            (Schedule::Once(Due::In(long)), "in: must be from 0s to 36500d, is 36501d"),
            (Schedule::every(short), "every: must be from 100ms to 36500d, is 99ms"),
            (every(SECOND, jitter(SECOND * 2)), "jitter: must be at most the interval, is 2s"),
            (cron("@daily", jitter(SECOND * 86_401)), "jitter: must be at most 1d, is 1d1s"),
            (every(SECOND, reversed), "ends_at: must not be before starts_at"),
            (
                every(SECOND, Series { count: Some(0), ..Series::default() }),
                "count: must be at least 1, is 0",
            ),
            (Schedule::watch(short), "within: must be from 100ms to 36500d, is 99ms"),
            (watch(short), "postpone_max: must be from 1s to 36500d, is 99ms"),
        ] {
            assert_eq!(schedule.check().unwrap_err().to_string(), want);
        }
        assert_eq!(Schedule::Once(Due::At(Timestamp::MAX)).check(), Ok(()));
    }
}
