//! When: what callers say about the time of a task, in whatever form, becomes a schedule.
//!
//! In: each wish by itself, as JSON or a message had it. Out: a [`Schedule`], or an [`Invalid`] that names the wish and says with what
//! it goes. Invariant: no wish is passed over: what does not belong to the schedule that was chosen is refused.
//! Not here: how a wish is spelled (`task`, `grpc/convert`), limits (`core`).

use std::sync::Arc;
use std::time::Duration;

use punctual_core::{
    Cron, Dst, Due, Gap, Invalid, Misfire, Overlap, Schedule, Series, Timestamp, Twice, Zone,
    every_of,
};

const EXACTLY_ONE: &str = "exactly one of `in`, `at`, `cron`, `every` and `within` must be given";
const WITH_CRON: &str = "goes with `cron` only; an interval knows of no time zone";
const WITH_SERIES: &str = "goes with `cron` and `every` only";
const WITH_WATCH: &str = "goes with `within` only";

/// What a caller says about when.
#[derive(Debug, Default)]
pub(crate) struct When<'a> {
    pub(crate) delay: Option<Duration>,
    pub(crate) at: Option<Timestamp>,
    pub(crate) cron: Option<&'a str>,
    pub(crate) every: Option<Duration>,
    pub(crate) within: Option<Duration>,
    pub(crate) timezone: Option<&'a str>,
    pub(crate) dst_gap: Option<Gap>,
    pub(crate) dst_overlap: Option<Twice>,
    pub(crate) starts_at: Option<Timestamp>,
    pub(crate) ends_at: Option<Timestamp>,
    pub(crate) count: Option<u32>,
    pub(crate) misfire: Option<Misfire>,
    pub(crate) overlap: Option<Overlap>,
    pub(crate) jitter: Option<Duration>,
    pub(crate) postpone_max: Option<Duration>,
    pub(crate) on_return: Option<bool>,
}

impl When<'_> {
    /// The schedule meant, within its limits.
    pub(crate) fn schedule(mut self) -> Result<Schedule, Invalid> {
        self.is_one()?;
        // An interval, in the words of cron.
        let by_cron = match self.cron.and_then(every_of) {
            Some(interval) => {
                self.every = Some(interval?);
                self.cron.take()
            }
            None => None,
        };
        self.belongs()?;
        let schedule = self.chosen()?;
        schedule.check().map_err(|invalid| match (by_cron, invalid.field.as_str()) {
            (Some(_), "every") => Invalid::new("cron", invalid.problem),
            _ => invalid,
        })?;
        Ok(schedule)
    }

    fn chosen(&self) -> Result<Schedule, Invalid> {
        if let Some(expression) = self.cron {
            let cron = cron(expression, self.timezone, self.dst())?;
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

    fn is_one(&self) -> Result<(), Invalid> {
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

    fn belongs(&self) -> Result<(), Invalid> {
        let (cron, watch) = (self.cron.is_some(), self.within.is_some());
        let series = cron || self.every.is_some();
        let wishes = [
            ("timezone", self.timezone.is_some(), cron, WITH_CRON),
            ("dst", self.dst() != Dst::default(), cron, WITH_CRON),
            ("starts_at", self.starts_at.is_some(), series, WITH_SERIES),
            ("ends_at", self.ends_at.is_some(), series, WITH_SERIES),
            ("count", self.count.is_some(), series, WITH_SERIES),
            ("misfire", self.misfire.is_some(), series, WITH_SERIES),
            ("overlap", self.overlap.is_some(), series, WITH_SERIES),
            ("jitter", self.jitter.is_some(), series, WITH_SERIES),
            ("postpone_max", self.postpone_max.is_some(), watch, WITH_WATCH),
            ("on_return", self.on_return.is_some(), watch, WITH_WATCH),
        ];
        match wishes.into_iter().find(|(_, given, belongs, _)| *given && !belongs) {
            Some((field, _, _, with)) => Err(Invalid::new(field, with)),
            None => Ok(()),
        }
    }

    fn dst(&self) -> Dst {
        Dst { gap: self.dst_gap, overlap: self.dst_overlap }
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

/// That a schedule has a fire to come. Its owner decides; this is to say which wish is to blame.
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

/// An expression in a time zone; UTC unless it is named.
pub(crate) fn cron(expression: &str, timezone: Option<&str>, dst: Dst) -> Result<Cron, Invalid> {
    let zone = timezone.map_or_else(|| Ok(Zone::utc()), Zone::new)?;
    Cron::new(expression, zone, dst)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_wish_that_does_not_belong_is_named() {
        let (at, zone) = (Some(Timestamp::EPOCH), Some("Europe/Berlin"));
        let (none, every) = (When::default, || When { every: Some(SECOND), ..When::default() });
        let (once, cron) = (
            || When { delay: Some(SECOND), ..When::default() },
            || When { cron: Some("@daily"), ..When::default() },
        );
        let watch = || When { within: Some(SECOND), ..When::default() };
        let at_every = || When { cron: Some("@every 1s"), ..When::default() };
        for (when, want) in [
            (none(), ("in", EXACTLY_ONE)),
            (When { at, ..once() }, ("at", EXACTLY_ONE)),
            (When { cron: Some("@daily"), ..once() }, ("cron", EXACTLY_ONE)),
            (When { within: Some(SECOND), ..every() }, ("within", EXACTLY_ONE)),
            (When { timezone: zone, ..every() }, ("timezone", WITH_CRON)),
            (When { timezone: zone, ..at_every() }, ("timezone", WITH_CRON)),
            (When { dst_gap: Some(Gap::Skip), ..once() }, ("dst", WITH_CRON)),
            (When { dst_overlap: Some(Twice::Both), ..every() }, ("dst", WITH_CRON)),
            (When { starts_at: at, ..once() }, ("starts_at", WITH_SERIES)),
            (When { ends_at: at, ..watch() }, ("ends_at", WITH_SERIES)),
            (When { count: Some(1), ..watch() }, ("count", WITH_SERIES)),
            (When { misfire: Some(Misfire::Skip), ..once() }, ("misfire", WITH_SERIES)),
            (When { overlap: Some(Overlap::Skip), ..watch() }, ("overlap", WITH_SERIES)),
            (When { jitter: Some(SECOND), ..once() }, ("jitter", WITH_SERIES)),
            (When { postpone_max: Some(SECOND), ..every() }, ("postpone_max", WITH_WATCH)),
            (When { on_return: Some(false), ..cron() }, ("on_return", WITH_WATCH)),
        ] {
            let invalid = when.schedule().unwrap_err();
            assert_eq!((invalid.field.as_str(), invalid.problem.as_str()), want);
        }
        for when in [every(), once(), cron(), watch(), at_every()] {
            when.schedule().unwrap();
        }
    }

    #[test]
    fn at_every_is_an_interval_and_its_limits_are_told_of_cron() {
        let at_every = |cron| When { cron: Some(cron), ..When::default() }.schedule();
        assert_eq!(at_every("@every 5m"), Ok(Schedule::every(SECOND * 300)));
        assert_eq!(at_every("@every 1ms").unwrap_err().field, "cron");
        assert_eq!(at_every("@every").unwrap_err().field, "cron");
    }
}
