//! Cron expressions: text becomes a rule, and a rule says its next instant.
//!
//! In: an expression, a [`Zone`], what to do about changes of its clocks ([`Dst`]); then instants. Out:
//! the first fire time after each. Invariants: fire times are distinct and strictly increasing; an
//! expression that is taken has a day that exists; every search is bounded, by years and by gaps.
//! Not here: `@every`, which is an interval ([`every_of`] reads it), missed fires, and tasks.
//!
//! Fields are `minute hour day month weekday`; six have the second first; seven have the year last.
//!
//! | text | in | means |
//! |---|---|---|
//! | `*` | all | every value; `?` is the same for day and weekday |
//! | `5`, `JAN`, `MON` | all | a value; names in any case; Sunday is 0 and 7 |
//! | `1-5`, `SAT-SUN` | all | a range, which may not run backwards |
//! | `*/15`, `10-40/15`, `10/15` | all | in steps; the last goes from 10 to the end |
//! | `1,15,L` | all | any of these |
//! | `L`, `L-3` | day | the last day, the third before it |
//! | `15W`, `LW` | day | the working day nearest to the 15th in the same month, the last one |
//! | `5L`, `FRIL` | weekday | the last Friday |
//! | `5#2`, `FRI#2` | weekday | the second Friday |
//!
//! If both day and weekday are restricted, a day that either names is meant (see `days`).

mod calendar;
mod clock_change;
mod days;
mod field;
mod parse;

use std::sync::Arc;
use std::time::Duration;

use crate::zone::instant;
use crate::{Invalid, Timestamp, Zone, parse_duration};

use calendar::Fields;
use parse::invalid;

/// An expression: the longest that people write (lists of minutes) stay below half of it.
pub const CRON_BYTES_MAX: usize = 256;

/// A rule for instants: an expression, read in a time zone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cron {
    expression: Arc<str>,
    fields: Fields,
    zone: Zone,
    dst: Dst,
}

/// What to do when the clocks change; where the caller does not say, the kind of the expression
/// decides. A *fixed* time of day (neither minute nor hour made with `*`) is meant once on each day:
/// after the gap, and in the first pass. Everything else follows real time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Dst {
    /// For local times that do not exist.
    pub gap: Option<Gap>,
    /// For local times that exist twice.
    pub overlap: Option<Twice>,
}

/// When a local time counts that the clocks leap over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gap {
    /// At the first instant after the gap; several in one gap count once.
    After,
    /// Not at all.
    Skip,
}

/// When a local time counts that the clocks show twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Twice {
    /// The first time.
    Once,
    /// Both times.
    Both,
}

impl Cron {
    /// Reads an expression, and refuses one that can never fire. One whose years are over is taken.
    pub fn new(expression: &str, zone: Zone, dst: Dst) -> Result<Self, Invalid> {
        if expression.len() > CRON_BYTES_MAX {
            let bytes = expression.len();
            return Err(invalid(format!("must have at most {CRON_BYTES_MAX} bytes, has {bytes}")));
        }
        if !expression.is_ascii() {
            return Err(invalid("must be plain ASCII".to_owned()));
        }
        if every_of(expression).is_some() {
            return Err(invalid("@every is an interval, and has no time zone".to_owned()));
        }
        let words: Vec<&str> = expression.split_ascii_whitespace().collect();
        let expression = words.join(" ");
        let fields = parse::parse(&expression)?;
        Ok(Self { expression: expression.into(), fields, zone, dst })
    }

    /// The text, with one blank between fields.
    #[must_use]
    pub fn expression(&self) -> &str {
        &self.expression
    }

    /// Where the local times are read.
    #[must_use]
    pub fn zone(&self) -> &Zone {
        &self.zone
    }

    /// What the caller said about changes of the clocks.
    #[must_use]
    pub fn dst(&self) -> Dst {
        self.dst
    }

    /// The first fire time strictly after an instant. `None` when the years of the expression are
    /// over, at the end of time, and for what lies in a gap whenever it comes, if gaps are skipped.
    #[must_use]
    pub fn next_after(&self, after: Timestamp) -> Option<Timestamp> {
        let (gap, twice) = (self.gap(), self.twice());
        let next = clock_change::next_after(&self.fields, &self.zone, gap, twice, instant(after))?;
        Timestamp::try_from_millis(next.as_millisecond().into()).ok()
    }

    /// What the change of the clocks has to do with the fire at this instant, for people; usually
    /// nothing.
    #[must_use]
    pub fn note(&self, fire_at: Timestamp) -> Option<String> {
        let (gap, twice) = (self.gap(), self.twice());
        clock_change::note(&self.fields, &self.zone, gap, twice, instant(fire_at))
    }

    fn gap(&self) -> Gap {
        let by_kind = if self.fields.is_fixed() { Gap::After } else { Gap::Skip };
        self.dst.gap.unwrap_or(by_kind)
    }

    fn twice(&self) -> Twice {
        let by_kind = if self.fields.is_fixed() { Twice::Once } else { Twice::Both };
        self.dst.overlap.unwrap_or(by_kind)
    }
}

/// The interval of `@every 5m`; `None` if the text does not begin so.
#[must_use]
pub fn every_of(expression: &str) -> Option<Result<Duration, Invalid>> {
    let mut words = expression.split_ascii_whitespace();
    words.next().filter(|word| word.eq_ignore_ascii_case("@every"))?;
    let interval = match (words.next(), words.next()) {
        (Some(interval), None) => parse_duration(interval).map_err(|problem| problem.to_string()),
        _ => Err("must have one duration, like @every 5m".to_owned()),
    };
    Some(interval.map_err(|problem| invalid(format!("@every {problem}"))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn berlin(expression: &str, dst: Dst) -> Cron {
        Cron::new(expression, Zone::new("Europe/Berlin").unwrap(), dst).unwrap()
    }

    /// The first fires after an instant, as clocks on the wall show them.
    fn fires(cron: &Cron, after: &str, count: usize) -> Vec<String> {
        let first = cron.next_after(Timestamp::parse_rfc3339(after).unwrap());
        std::iter::successors(first, |at| cron.next_after(*at))
            .take(count)
            .map(|at| cron.zone().local(at).replace("[Europe/Berlin]", ""))
            .collect()
    }

    #[test]
    fn a_fixed_time_fires_once_on_the_days_when_the_clocks_change() {
        let cron = berlin("30 2 * * *", Dst::default());
        assert_eq!(
            fires(&cron, "2026-03-28T00:00:00Z", 3),
            ["2026-03-28T02:30:00+01:00", "2026-03-29T03:00:00+02:00", "2026-03-30T02:30:00+02:00"]
        );
        assert_eq!(
            fires(&cron, "2026-10-24T12:00:00Z", 2),
            ["2026-10-25T02:30:00+02:00", "2026-10-26T02:30:00+01:00"]
        );
    }

    #[test]
    fn a_wildcard_follows_real_time() {
        let cron = berlin("*/30 * * * *", Dst::default());
        assert_eq!(
            fires(&cron, "2026-03-29T00:15:00Z", 3),
            ["2026-03-29T01:30:00+01:00", "2026-03-29T03:00:00+02:00", "2026-03-29T03:30:00+02:00"]
        );
        assert_eq!(
            fires(&cron, "2026-10-25T00:15:00Z", 3),
            ["2026-10-25T02:30:00+02:00", "2026-10-25T02:00:00+01:00", "2026-10-25T02:30:00+01:00"]
        );
    }

    #[test]
    fn the_caller_may_choose_otherwise() {
        let skip = Dst { gap: Some(Gap::Skip), overlap: Some(Twice::Both) };
        let cron = berlin("30 2 * * *", skip);
        assert_eq!(fires(&cron, "2026-03-28T12:00:00Z", 1), ["2026-03-30T02:30:00+02:00"]);
        assert_eq!(
            fires(&cron, "2026-10-24T12:00:00Z", 2),
            ["2026-10-25T02:30:00+02:00", "2026-10-25T02:30:00+01:00"]
        );
        let once = Dst { gap: Some(Gap::After), overlap: Some(Twice::Once) };
        let cron = berlin("*/30 * * * *", once);
        assert_eq!(
            fires(&cron, "2026-10-25T00:15:00Z", 2),
            ["2026-10-25T02:30:00+02:00", "2026-10-25T03:00:00+01:00"]
        );
    }

    #[test]
    fn a_note_says_what_the_clocks_do() {
        for (expression, at, want) in [
            (
                "30 2 * * *",
                "2026-03-29T01:00:00Z",
                Some("02:30 does not exist on this day: the clocks go forward from 02:00 to 03:00"),
            ),
            (
                "30 2 * * *",
                "2026-10-25T00:30:00Z",
                Some(
                    "first of two 02:30, the second is left out: \
                     the clocks go back from 03:00 to 02:00",
                ),
            ),
            (
                "*/30 * * * *",
                "2026-10-25T00:30:00Z",
                Some("first of two 02:30, both are meant: the clocks go back from 03:00 to 02:00"),
            ),
            (
                "*/30 * * * *",
                "2026-10-25T01:30:00Z",
                Some("second of two 02:30: the clocks go back from 03:00 to 02:00"),
            ),
            ("*/30 * * * *", "2026-03-29T01:00:00Z", None),
            ("*/30 * * * *", "2026-10-25T02:00:00Z", None),
            ("0 3 * * *", "2026-03-29T01:00:00Z", None),
        ] {
            let cron = berlin(expression, Dst::default());
            let note = cron.note(Timestamp::parse_rfc3339(at).unwrap());
            assert_eq!(note.as_deref(), want, "{expression} at {at}");
        }
    }
}
