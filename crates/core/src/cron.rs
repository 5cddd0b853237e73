//! Cron expressions: reads an expression, and finds its next fire time in a time zone.
//!
//! Fire times are strictly increasing. An expression that never fires is refused, unless it was
//! stored before. Every search is bounded, by years and by clock changes. `@every` is an interval,
//! which [`parse_every`] reads. Missed fires are decided in `task/next`.
//!
//! Five fields are `minute hour day month weekday`; six have the second first; seven also have the
//! year last.
//!
//! | text | in | means |
//! |---|---|---|
//! | `*` | all | every value; `?` is the same for day and weekday |
//! | `5`, `JAN`, `MON` | all | a value; names in any case; Sunday is 0 and 7 |
//! | `1-5`, `SAT-SUN` | all | a range, which may not run backwards |
//! | `*/15`, `10-40/15`, `10/15` | all | in steps; the last goes from 10 to the end |
//! | `*/100` | all | only the first value, if the step is wider than the range |
//! | `1,15,L` | all | any of these |
//! | `L`, `L-3` | day | the last day, the third before it |
//! | `15W`, `LW` | day | the working day nearest to the 15th in the same month, the last one |
//! | `5L`, `FRIL` | weekday | the last Friday |
//! | `5#2`, `FRI#2` | weekday | the second Friday |
//!
//! Day and weekday follow crontab(5) as Vixie cron does. If both are restricted, a day matches if
//! either matches. A field that begins with `*` or `?` (also `*/2`) does not count as restricted;
//! then both must match (see `days`).

mod calendar;
mod clock_change;
mod days;
mod field;
#[cfg(any(test, feature = "oracle"))]
pub mod oracle;
mod parse;

use std::sync::Arc;
use std::time::Duration;

use crate::zone::instant;
use crate::{Invalid, Timestamp, Zone, parse_duration};

use calendar::Fields;
pub use parse::CRON_NICKNAMES;
use parse::invalid;

/// The longest expression. Long lists of minutes need less than half of it.
pub const CRON_BYTES_MAX: usize = 256;

/// A cron expression in a time zone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cron {
    expression: Arc<str>,
    fields: Fields,
    zone: Zone,
    dst: Dst,
}

/// What to do when the clocks change. Where it is `None`, the expression decides: a *fixed* time of
/// day (neither minute nor hour written with `*`) fires once on each day, right after a gap and the
/// first time that it is shown. All others follow real time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Dst {
    /// For local times that do not exist.
    pub gap: Option<Gap>,
    /// For local times that exist twice.
    pub overlap: Option<Twice>,
}

/// When a local time fires that the clocks skip.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gap {
    /// At the first instant after the gap. Several in one gap give one fire.
    After,
    /// Not at all.
    Skip,
}

/// When a local time fires that the clocks show twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Twice {
    /// The first time only.
    Once,
    /// Both times.
    Both,
}

impl Cron {
    /// Reads an expression. One that can never fire is refused; one whose years are over is not.
    pub fn new(expression: &str, zone: Zone, dst: Dst) -> Result<Self, Invalid> {
        let cron = Self::from_stored(expression, zone, dst)?;
        Ok(Self { fields: parse::check_occurs(cron.fields)?, ..cron })
    }

    /// Reads an expression that was accepted once. One that can never fire by the rules of today
    /// has no fire time, and is not refused: an earlier rule may have had days for it.
    pub fn from_stored(expression: &str, zone: Zone, dst: Dst) -> Result<Self, Invalid> {
        if expression.len() > CRON_BYTES_MAX {
            let bytes = expression.len();
            return Err(invalid(format!("must have at most {CRON_BYTES_MAX} bytes, has {bytes}")));
        }
        if !expression.is_ascii() {
            return Err(invalid("must be plain ASCII".to_owned()));
        }
        if parse_every(expression).is_some() {
            return Err(invalid("@every is an interval, and has no time zone".to_owned()));
        }
        let words: Vec<&str> = expression.split_ascii_whitespace().collect();
        let expression = words.join(" ");
        let fields = parse::read(&expression)?;
        Ok(Self { expression: expression.into(), fields, zone, dst })
    }

    /// The text of the expression, with one blank between fields.
    #[must_use]
    pub fn expression(&self) -> &str {
        &self.expression
    }

    /// The time zone of its local times.
    #[must_use]
    pub fn zone(&self) -> &Zone {
        &self.zone
    }

    /// What the caller chose for clock changes.
    #[must_use]
    pub fn dst(&self) -> Dst {
        self.dst
    }

    /// The first fire time strictly after an instant. `None` if the years of the expression are
    /// over, at the end of time, and if all its times fall into gaps that are skipped.
    #[must_use]
    pub fn next_after(&self, after: Timestamp) -> Option<Timestamp> {
        let (gap, twice) = (self.gap(), self.twice());
        let next = clock_change::next_after(&self.fields, &self.zone, gap, twice, instant(after))?;
        Timestamp::try_from_millis(next.as_millisecond().into()).ok()
    }

    /// Explains to people how a clock change affects the fire at an instant; `None` if it does not.
    #[must_use]
    pub fn note(&self, fire_at: Timestamp) -> Option<String> {
        let (gap, twice) = (self.gap(), self.twice());
        clock_change::note(&self.fields, &self.zone, gap, twice, instant(fire_at))
    }

    fn gap(&self) -> Gap {
        let default = if self.fields.is_fixed() { Gap::After } else { Gap::Skip };
        self.dst.gap.unwrap_or(default)
    }

    fn twice(&self) -> Twice {
        let default = if self.fields.is_fixed() { Twice::Once } else { Twice::Both };
        self.dst.overlap.unwrap_or(default)
    }
}

/// Reads the interval of `@every 5m`; `None` if the text does not begin with `@every`.
#[must_use]
pub fn parse_every(expression: &str) -> Option<Result<Duration, Invalid>> {
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

    /// The first fires after an instant, in local time.
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
    fn an_expression_with_a_star_follows_real_time() {
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
    fn dst_overrides_the_default_for_the_expression() {
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
    fn a_note_explains_the_clock_change() {
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
                Some("first of two 02:30, both fire: the clocks go back from 03:00 to 02:00"),
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
