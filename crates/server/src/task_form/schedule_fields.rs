//! Turns the schedule fields of a request, JSON or gRPC, into a [`Schedule`].
//!
//! A field that does not belong to the chosen kind of schedule is refused, never ignored; the
//! [`Invalid`] names the field and says which fields it belongs to. The core checks limits.

use std::sync::Arc;
use std::time::Duration;

use punctual_core::{
    Cron, Dst, Due, Invalid, Misfire, Overlap, Schedule, Series, Timestamp, Zone, parse_every,
};

const EXACTLY_ONE: &str = "exactly one of `in`, `at`, `cron`, `every` and `within` must be given";
/// Fields that belong to `cron` only.
pub(super) const CRON_FIELDS: [&str; 2] = ["timezone", "dst"];
/// Fields that belong to `cron` and `every`.
pub(super) const SERIES_FIELDS: [&str; 6] =
    ["starts_at", "ends_at", "count", "misfire", "overlap", "jitter"];
/// Fields that belong to `within`.
pub(super) const WATCH_FIELDS: [&str; 2] = ["postpone_max", "on_return"];

const WITH_CRON: &str = "goes with `cron` only; intervals have no time zone";
const WITH_SERIES: &str = "goes with `cron` and `every` only";
const WITH_WATCH: &str = "goes with `within` only";

/// The schedule fields of a request.
#[derive(Debug, Default)]
pub(crate) struct ScheduleFields<'a> {
    pub(crate) delay: Option<Duration>,
    pub(crate) at: Option<Timestamp>,
    pub(crate) cron: Option<&'a str>,
    pub(crate) every: Option<Duration>,
    pub(crate) within: Option<Duration>,
    pub(crate) timezone: Option<&'a str>,
    /// `Some` if the field is given, even if it decides nothing.
    pub(crate) dst: Option<Dst>,
    pub(crate) starts_at: Option<Timestamp>,
    pub(crate) ends_at: Option<Timestamp>,
    pub(crate) count: Option<u32>,
    pub(crate) misfire: Option<Misfire>,
    pub(crate) overlap: Option<Overlap>,
    pub(crate) jitter: Option<Duration>,
    pub(crate) postpone_max: Option<Duration>,
    pub(crate) on_return: Option<bool>,
}

impl ScheduleFields<'_> {
    /// The schedule, within its limits.
    pub(crate) fn schedule(mut self) -> Result<Schedule, Invalid> {
        self.check_kind()?;
        // `@every` in `cron` is an interval.
        let by_cron = match self.cron.and_then(parse_every) {
            Some(interval) => {
                self.every = Some(interval?);
                self.cron.take()
            }
            None => None,
        };
        self.check_belonging()?;
        let schedule = self.build()?;
        schedule.check().map_err(|invalid| match (by_cron, invalid.field.as_str()) {
            (Some(_), "every") => Invalid::new("cron", invalid.problem),
            _ => invalid,
        })?;
        Ok(schedule)
    }

    fn build(&self) -> Result<Schedule, Invalid> {
        if let Some(expression) = self.cron {
            let cron = parse_cron(expression, self.timezone, self.dst.unwrap_or_default())?;
            return Ok(Schedule::Cron { cron: cron.into(), series: self.series().into() });
        }
        match (self.delay, self.at, self.every, self.within) {
            (Some(delay), ..) => Ok(Schedule::Once(Due::In(delay))),
            (_, Some(at), ..) => Ok(Schedule::Once(Due::At(at))),
            (_, _, Some(interval), _) => {
                Ok(Schedule::Every { interval, series: self.series().into() })
            }
            (_, _, _, Some(within)) => {
                let on_return = self.on_return.unwrap_or_default();
                Ok(Schedule::Watch { within, postpone_max: self.postpone_max, on_return })
            }
            _ => Err(Invalid::new("in", EXACTLY_ONE)),
        }
    }

    fn check_kind(&self) -> Result<(), Invalid> {
        let given = [
            ("in", self.delay.is_some()),
            ("at", self.at.is_some()),
            ("cron", self.cron.is_some()),
            ("every", self.every.is_some()),
            ("within", self.within.is_some()),
        ];
        let mut given = given.into_iter().filter_map(|(field, given)| given.then_some(field));
        match (given.next(), given.next()) {
            (Some(_), None) => Ok(()),
            (_, second) => Err(Invalid::new(second.unwrap_or("in"), EXACTLY_ONE)),
        }
    }

    fn check_belonging(&self) -> Result<(), Invalid> {
        let (cron, watch) = (self.cron.is_some(), self.within.is_some());
        let series = cron || self.every.is_some();
        let cron_given = [self.timezone.is_some(), self.dst.is_some()];
        let series_given = [
            self.starts_at.is_some(),
            self.ends_at.is_some(),
            self.count.is_some(),
            self.misfire.is_some(),
            self.overlap.is_some(),
            self.jitter.is_some(),
        ];
        let watch_given = [self.postpone_max.is_some(), self.on_return.is_some()];
        if !cron {
            check_absent(CRON_FIELDS, cron_given, WITH_CRON)?;
        }
        if !series {
            check_absent(SERIES_FIELDS, series_given, WITH_SERIES)?;
        }
        if !watch {
            check_absent(WATCH_FIELDS, watch_given, WITH_WATCH)?;
        }
        Ok(())
    }

    fn series(&self) -> Series {
        Series {
            starts_at: self.starts_at,
            ends_at: self.ends_at,
            count: self.count,
            misfire: self.misfire.unwrap_or_default(),
            overlap: self.overlap.unwrap_or_default(),
            jitter: self.jitter.unwrap_or_default(),
        }
    }
}

/// Refuses the first of some fields that is given; `with` says what it belongs to.
fn check_absent<const COUNT: usize>(
    fields: [&str; COUNT],
    given: [bool; COUNT],
    with: &str,
) -> Result<(), Invalid> {
    match fields.into_iter().zip(given).find(|(_, given)| *given) {
        Some((field, _)) => Err(Invalid::new(field, with)),
        None => Ok(()),
    }
}

/// Checks that a schedule fires at least once after `now`. The owner checks it again; this check
/// names the field that is wrong.
pub(crate) fn check_fires(schedule: &Schedule, now: Timestamp) -> Result<(), Invalid> {
    let Some(series) = schedule.series() else {
        return Ok(());
    };
    if schedule.first_at(now).is_some() {
        return Ok(());
    }
    let endless: Arc<Series> = Series { ends_at: None, ..series.clone() }.into();
    let (field, endless) = match schedule.clone() {
        Schedule::Cron { cron, .. } => ("cron", Schedule::Cron { cron, series: endless }),
        Schedule::Every { interval, .. } => {
            ("every", Schedule::Every { interval, series: endless })
        }
        other => ("in", other),
    };
    if endless.first_at(now).is_some() {
        return Err(Invalid::new("ends_at", "is before the first fire"));
    }
    Err(Invalid::new(field, "has no fire time after now"))
}

/// Parses a cron expression in a time zone, by default UTC.
pub(crate) fn parse_cron(
    expression: &str,
    timezone: Option<&str>,
    dst: Dst,
) -> Result<Cron, Invalid> {
    let zone = timezone.map_or_else(|| Ok(Zone::utc()), Zone::new)?;
    Cron::new(expression, zone, dst)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_field_of_another_kind_of_schedule_is_named() {
        let (at, zone) = (Some(Timestamp::EPOCH), Some("Europe/Berlin"));
        // It decides nothing, but it is given.
        let dst = Some(Dst::default());
        let (none, every) = (ScheduleFields::default, || ScheduleFields {
            every: Some(SECOND),
            ..ScheduleFields::default()
        });
        let (once, cron) = (
            || ScheduleFields { delay: Some(SECOND), ..ScheduleFields::default() },
            || ScheduleFields { cron: Some("@daily"), ..ScheduleFields::default() },
        );
        let watch = || ScheduleFields { within: Some(SECOND), ..ScheduleFields::default() };
        let at_every = || ScheduleFields { cron: Some("@every 1s"), ..ScheduleFields::default() };
        for (when, want) in [
            (none(), ("in", EXACTLY_ONE)),
            (ScheduleFields { at, ..once() }, ("at", EXACTLY_ONE)),
            (ScheduleFields { cron: Some("@daily"), ..once() }, ("cron", EXACTLY_ONE)),
            (ScheduleFields { within: Some(SECOND), ..every() }, ("within", EXACTLY_ONE)),
            (ScheduleFields { timezone: zone, ..every() }, ("timezone", WITH_CRON)),
            (ScheduleFields { timezone: zone, ..at_every() }, ("timezone", WITH_CRON)),
            (ScheduleFields { dst, ..once() }, ("dst", WITH_CRON)),
            (ScheduleFields { dst, ..every() }, ("dst", WITH_CRON)),
            (ScheduleFields { dst, ..at_every() }, ("dst", WITH_CRON)),
            (ScheduleFields { starts_at: at, ..once() }, ("starts_at", WITH_SERIES)),
            (ScheduleFields { ends_at: at, ..watch() }, ("ends_at", WITH_SERIES)),
            (ScheduleFields { count: Some(1), ..watch() }, ("count", WITH_SERIES)),
            (ScheduleFields { misfire: Some(Misfire::Skip), ..once() }, ("misfire", WITH_SERIES)),
            (ScheduleFields { overlap: Some(Overlap::Skip), ..watch() }, ("overlap", WITH_SERIES)),
            (ScheduleFields { jitter: Some(SECOND), ..once() }, ("jitter", WITH_SERIES)),
            (
                ScheduleFields { postpone_max: Some(SECOND), ..every() },
                ("postpone_max", WITH_WATCH),
            ),
            (ScheduleFields { on_return: Some(false), ..cron() }, ("on_return", WITH_WATCH)),
        ] {
            let invalid = when.schedule().unwrap_err();
            assert_eq!((invalid.field.as_str(), invalid.problem.as_str()), want);
        }
        for when in [every(), once(), cron(), watch(), at_every()] {
            when.schedule().unwrap();
        }
    }

    #[test]
    fn at_every_is_an_interval_and_errors_name_cron() {
        let at_every =
            |cron| ScheduleFields { cron: Some(cron), ..ScheduleFields::default() }.schedule();
        assert_eq!(at_every("@every 5m"), Ok(Schedule::every(SECOND * 300)));
        assert_eq!(at_every("@every 1ms").unwrap_err().field, "cron");
        assert_eq!(at_every("@every").unwrap_err().field, "cron");
    }
}
