//! Schedules: the rule when a task is due.
//!
//! In: the rule and `now`, at the owner of the task. Out: the first nominal time and, for a rule that
//! goes on, the ones after. Invariant: a fire time is never earlier than what the caller asked for.
//! Not here: cron expressions (`cron`), what becomes of missed and overlapping fires (`course`).

use std::sync::Arc;
use std::time::Duration;

use crate::limits::{DELAY_MAX, INTERVAL_MIN, SKIPS_COUNTED_MAX};
use crate::{Cron, Invalid, Series, Timestamp, format_duration};

/// The rule when a task is due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Schedule {
    /// Due at one time.
    Once(Due),
    /// Due again and again, a fixed interval apart, counted from the first without drift.
    Every {
        /// From one nominal time to the next.
        interval: Duration,
        /// What else is agreed.
        series: Arc<Series>,
    },
    /// Due again and again, by an expression in a time zone.
    Cron {
        /// The expression, its zone, and what happens when clocks change.
        cron: Arc<Cron>,
        /// What else is agreed.
        series: Arc<Series>,
    },
    /// Due unless touched in time: silence fires it. The next touch arms it again.
    Watch {
        /// How long the silence may last.
        within: Duration,
        /// How long touches can put off a fire, all together.
        postpone_max: Option<Duration>,
        /// Whether there is a second fire when it is touched after it fired.
        on_return: bool,
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
    /// A watch with nothing but its time.
    #[must_use]
    pub const fn watch(within: Duration) -> Self {
        Self::Watch { within, postpone_max: None, on_return: false }
    }

    /// An interval with nothing else agreed.
    #[must_use]
    pub fn every(interval: Duration) -> Self {
        Self::Every { interval, series: Arc::default() }
    }

    /// What is agreed about fires that come again and again, if they do.
    #[must_use]
    pub fn series(&self) -> Option<&Series> {
        match self {
            Self::Every { series, .. } | Self::Cron { series, .. } => Some(series),
            Self::Once(_) | Self::Watch { .. } => None,
        }
    }

    /// Checks the limits, naming the field as the caller wrote it.
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

    /// When a task that is taken `now` is first due by its schedule; `None` if never.
    #[must_use]
    pub fn first_at(&self, now: Timestamp) -> Option<Timestamp> {
        match self {
            Self::Once(due) => Some(due.resolve(now)),
            Self::Watch { within, .. } => Some(now.after(*within)),
            Self::Every { interval, series } => {
                let first = match series.starts_at {
                    None => now.after(*interval),
                    Some(starts_at) if starts_at >= now => starts_at,
                    // It began before; the beat is kept.
                    Some(starts_at) => beat(starts_at, *interval, now.millis_before(1)),
                };
                series.reaches(first).then_some(first)
            }
            Self::Cron { series, .. } => {
                let from = series.starts_at.map_or(now, |at| now.max(at.millis_before(1)));
                self.next_at(from)
            }
        }
    }

    /// The nominal time that follows another, if the rule goes on by itself. A watch does not: it
    /// is armed again by the touch that ends the silence.
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

    /// The nominal times from `nominal_at`, which is one, up to `until`: the last so many, in order.
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
                let beats = beats_between(nominal_at, until, *interval);
                let passed = beats.saturating_sub(count.saturating_sub(1) as u128);
                from = beat_after(nominal_at, *interval, passed);
            }
            // As far back as is needed, and not the whole way: it may be years of seconds.
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

    /// How many nominal times there are from one up to and with another, counted up to a limit.
    #[must_use]
    pub fn count_until(&self, nominal_at: Timestamp, last: Timestamp) -> u32 {
        if let Self::Every { interval, .. } = self {
            let beats = beats_between(nominal_at, last, *interval);
            return u32::try_from(beats.saturating_add(1)).unwrap_or(u32::MAX);
        }
        let further = self.times(nominal_at, last).take(SKIPS_COUNTED_MAX as usize - 1);
        u32::try_from(further.count() + 1).unwrap_or(SKIPS_COUNTED_MAX)
    }

    /// The nominal times after one, up to and with another.
    fn times(&self, after: Timestamp, until: Timestamp) -> impl Iterator<Item = Timestamp> + Clone {
        std::iter::successors(self.next_at(after), |at| self.next_at(*at))
            .take_while(move |at| *at <= until)
    }
}

/// The first of the times `interval` apart, counted from `anchor`, that is after an instant.
fn beat(anchor: Timestamp, interval: Duration, after: Timestamp) -> Timestamp {
    beat_after(anchor, interval, beats_between(anchor, after, interval) + 1)
}

fn beats_between(anchor: Timestamp, until: Timestamp, interval: Duration) -> u128 {
    until.since(anchor).as_millis() / interval.as_nanos().div_ceil(1_000_000).max(1)
}

/// So many beats after one. Each beat is a whole number of milliseconds, as times are: nothing drifts by rounding.
fn beat_after(anchor: Timestamp, interval: Duration, beats: u128) -> Timestamp {
    let millis = interval.as_nanos().div_ceil(1_000_000).saturating_mul(beats);
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
    fn the_first_fire_is_counted_from_when_the_owner_takes_the_task() {
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
    fn every_and_cron_go_on_by_themselves_and_do_not_drift() {
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
    fn the_last_times_before_another_are_found_from_behind() {
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
        // Days apart, with years of nothing in between.
        let leap = cron("0 0 29 2 *", Series::default());
        let first = leap.first_at(NOW).unwrap();
        assert_eq!(leap.last_until(first, first.after(year), 5), [first]);
    }

    #[test]
    fn limits_name_the_field() {
        let long = Duration::from_secs(36_501 * 86_400);
        let short = Duration::from_millis(99);
        let jitter = |jitter| Series { jitter, ..Series::default() };
        let watch = |postpone_max| Schedule::Watch {
            within: SECOND,
            postpone_max: Some(postpone_max),
            on_return: false,
        };
        let (start, end) = (Some(NOW), Some(Timestamp::EPOCH));
        let turned = Series { starts_at: start, ends_at: end, ..Series::default() };
        for (schedule, want) in [
            (Schedule::Once(Due::In(long)), "in: must be from 0s to 36500d, is 36501d"),
            (Schedule::every(short), "every: must be from 100ms to 36500d, is 99ms"),
            (every(SECOND, jitter(SECOND * 2)), "jitter: must be at most the interval, is 2s"),
            (cron("@daily", jitter(SECOND * 86_401)), "jitter: must be at most 1d, is 1d1s"),
            (every(SECOND, turned), "ends_at: must not be before starts_at"),
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
