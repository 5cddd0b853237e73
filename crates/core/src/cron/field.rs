//! The fields of an expression: which values each may have, and how one entry of a list is read.
//!
//! An entry becomes a [`StepRange`], or an error text that says what is allowed. The forms with
//! `L`, `W` and `#`, which only days have, are read in `parse`.

/// The fields, in the order in which they are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FieldKind {
    Second,
    Minute,
    Hour,
    Day,
    Month,
    Weekday,
    Year,
}

const MONTHS: [&str; 12] =
    ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"];
const WEEKDAYS: [&str; 7] = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];

/// The first year that a seventh field can name.
pub(super) const YEAR_MIN: u16 = 1970;
/// The last year that a seventh field can name.
pub(super) const YEAR_MAX: u16 = 2999;

impl FieldKind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Second => "second",
            Self::Minute => "minute",
            Self::Hour => "hour",
            Self::Day => "day",
            Self::Month => "month",
            Self::Weekday => "weekday",
            Self::Year => "year",
        }
    }

    /// The values that the field may have, for error texts.
    fn allowed(self) -> &'static str {
        match self {
            Self::Second | Self::Minute => "0-59",
            Self::Hour => "0-23",
            Self::Day => "1-31, L, L-1 to L-30, 1W to 31W or LW",
            Self::Month => "1-12 or JAN-DEC",
            Self::Weekday => {
                "0-7 (0 and 7 are Sunday) or SUN-SAT, as 5L the last or as 5#2 the second"
            }
            Self::Year => "1970-2999",
        }
    }

    fn min(self) -> u16 {
        match self {
            Self::Second | Self::Minute | Self::Hour | Self::Weekday => 0,
            Self::Day | Self::Month => 1,
            Self::Year => YEAR_MIN,
        }
    }

    /// The last value of `*` and of `a/n`. A weekday may also be 7: see [`Self::value`].
    fn max(self) -> u16 {
        match self {
            Self::Second | Self::Minute => 59,
            Self::Hour => 23,
            Self::Day => 31,
            Self::Month => 12,
            Self::Weekday => 6,
            Self::Year => YEAR_MAX,
        }
    }

    pub(super) fn must_be(self, text: &str) -> String {
        format!("must be {}, is {text:?}", self.allowed())
    }

    /// Reads one value: a number or a name.
    pub(super) fn value(self, text: &str) -> Option<u16> {
        let named = |names: &[&str]| {
            let index = names.iter().position(|name| name.eq_ignore_ascii_case(text))?;
            u16::try_from(index).ok()
        };
        match self {
            Self::Month => named(&MONTHS).map(|index| index + 1),
            Self::Weekday => named(&WEEKDAYS),
            _ => None,
        }
        .or_else(|| number(text))
        .filter(|value| {
            (self.min()..=self.max()).contains(value) || (self == Self::Weekday && *value == 7)
        })
    }

    /// Reads one entry of a list: `*`, `?`, `5` or `1-5`, each with or without `/n`.
    pub(super) fn entry(self, text: &str) -> Result<StepRange, String> {
        let (base, step_text) = match text.split_once('/') {
            Some((base, step)) => (base, Some(step)),
            None => (text, None),
        };
        let step = match step_text {
            Some(step_text) => step_of(step_text)?,
            None => 1,
        };
        let star = base == "*" || (base == "?" && matches!(self, Self::Day | Self::Weekday));
        if star {
            return Ok(StepRange { from: self.min(), to: self.max(), step, star });
        }
        if base == "?" {
            return Err(format!("must be {}; \"?\" is for day and weekday", self.allowed()));
        }
        let (from, to) = match base.split_once('-') {
            Some((from, to)) => self.range(from, to, text)?,
            None => {
                let value = self.value(base).ok_or_else(|| self.must_be(text))?;
                match step_text {
                    // From Sunday, as 0 or as 7, to Saturday.
                    Some(_) if self == Self::Weekday => (value % 7, self.max()),
                    Some(_) => (value, self.max()),
                    None => (value, value),
                }
            }
        };
        Ok(StepRange { from, to, step, star })
    }

    /// Reads `1-5`. A range does not wrap around: it is not clear which hours `22-6/5` would have.
    fn range(self, from_text: &str, to_text: &str, text: &str) -> Result<(u16, u16), String> {
        let (Some(mut from), Some(mut to)) = (self.value(from_text), self.value(to_text)) else {
            return Err(self.must_be(text));
        };
        // A week may begin with Sunday as 7: 7-3 is 0-3.
        if self == Self::Weekday && from == 7 && to < 7 {
            from = 0;
        }
        // A week may end with Sunday by name: SAT-SUN, MON-SUN. `5-0` is refused.
        if self == Self::Weekday && to_text.eq_ignore_ascii_case("SUN") && from > 0 {
            to = 7;
        }
        if from > to {
            let (min, max) = (self.min(), self.max());
            return Err(format!(
                "must not have a range that runs backwards, is {text:?}: \
                 write {from_text}-{max},{min}-{to_text}"
            ));
        }
        Ok((from, to))
    }
}

/// The values from one to another, in steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StepRange {
    from: u16,
    to: u16,
    step: u16,
    /// Written with `*` or `?`.
    pub(super) star: bool,
}

impl StepRange {
    /// Whether every value is in it: `*`, `?` and `*/1`.
    pub(super) fn is_everything(self) -> bool {
        self.star && self.step == 1
    }

    pub(super) fn values(self) -> impl Iterator<Item = u16> {
        (self.from..=self.to).step_by(usize::from(self.step))
    }
}

/// Reads a step. As in crontab, it may be wider than its range, of which then only the first value
/// matches: `*/100` minutes is minute 0.
fn step_of(text: &str) -> Result<u16, String> {
    // All steps that do not fit 16 bits are wider than every range.
    let step = is_digits(text).then(|| text.parse().unwrap_or(u16::MAX));
    step.filter(|step| *step > 0)
        .ok_or_else(|| format!("must have a step of at least 1, is {:?}", format!("/{text}")))
}

/// Reads a number without a sign, which the standard parser would accept.
pub(super) fn number(text: &str) -> Option<u16> {
    is_digits(text).then(|| text.parse().ok()).flatten()
}

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}
