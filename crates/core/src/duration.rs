//! Reads and writes durations: `500ms`, `15m`, `1h30m`, `30d`, or ISO 8601 (`PT15M`).
//!
//! Durations are whole milliseconds. Months and years are refused, because their length varies;
//! cron has calendars.

use std::fmt::Write as _;
use std::time::Duration;

/// Units in the order in which they must be written, largest first, in milliseconds.
const UNITS: [(&str, u64); 6] = [
    ("w", 7 * 86_400_000),
    ("d", 86_400_000),
    ("h", 3_600_000),
    ("m", 60_000),
    ("s", 1000),
    ("ms", 1),
];

/// Why a text is no duration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DurationError {
    /// The text has neither of the two forms.
    #[error("must be a duration like 500ms, 15s, 15m, 1h30m, 30d or PT15M")]
    Form,
    /// The text has months or years.
    #[error("must not use years or months, whose length varies; use days, or cron for calendars")]
    Calendar,
    /// The duration does not fit 64 bits of milliseconds.
    #[error("is too long")]
    TooLong,
}

/// Reads a duration in either form.
pub fn parse_duration(text: &str) -> Result<Duration, DurationError> {
    let millis = match text.strip_prefix('P') {
        Some(iso) => parse_iso(iso)?,
        None => parse_units(text)?,
    };
    Ok(Duration::from_millis(millis))
}

/// Writes a duration in the short form, which [`parse_duration`] reads back to the same value.
/// Fractions of a millisecond are cut off; durations in Punctual have none.
#[must_use]
pub fn format_duration(duration: Duration) -> String {
    let mut rest = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    if rest == 0 {
        return "0s".to_owned();
    }
    let mut text = String::with_capacity(8);
    // Weeks are read but not written: 14d is the same and easier to compare with other days.
    for (unit, millis) in &UNITS[1..] {
        if rest >= *millis {
            write!(text, "{}{unit}", rest / millis).expect("writing to a string does not fail");
            rest %= millis;
        }
    }
    text
}

/// Reads `1h30m`: numbers with units, each unit at most once, the largest first.
fn parse_units(text: &str) -> Result<u64, DurationError> {
    let mut rest = text;
    let mut units = UNITS.iter();
    let mut sum: u64 = 0;
    while !rest.is_empty() {
        let (number, after) = split_number(rest)?;
        let unit_len = after.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(after.len());
        let (unit, after) = after.split_at(unit_len);
        let (_, millis) = units.find(|(name, _)| *name == unit).ok_or(DurationError::Form)?;
        sum = add(sum, number, *millis)?;
        rest = after;
    }
    if text.is_empty() { Err(DurationError::Form) } else { Ok(sum) }
}

/// Reads `P1DT2H30M0.5S` without its `P`. Only seconds may have a fraction, which is rounded up.
fn parse_iso(text: &str) -> Result<u64, DurationError> {
    let (date, time) = text.split_once('T').map_or((text, None), |(date, time)| (date, Some(time)));
    if time == Some("") || (date.is_empty() && time.is_none()) {
        return Err(DurationError::Form);
    }
    let mut sum = 0;
    for (part, designators) in [(date, "YMWD"), (time.unwrap_or(""), "HMS")] {
        let mut allowed = designators.chars();
        let mut rest = part;
        while !rest.is_empty() {
            let (number, after) = split_number(rest)?;
            let (fraction, after) = split_fraction(after)?;
            let designator = after.chars().next().ok_or(DurationError::Form)?;
            if !allowed.any(|c| c == designator) {
                return Err(DurationError::Form);
            }
            let millis = match (designators, designator) {
                ("YMWD", 'Y' | 'M') => return Err(DurationError::Calendar),
                ("YMWD", 'W') => UNITS[0].1,
                ("YMWD", _) => UNITS[1].1,
                (_, 'H') => UNITS[2].1,
                (_, 'M') => UNITS[3].1,
                (_, _) => UNITS[4].1,
            };
            if fraction.is_some() && designator != 'S' {
                return Err(DurationError::Form);
            }
            sum = add(sum, number, millis)?;
            sum = add(sum, fraction.unwrap_or(0), 1)?;
            rest = &after[designator.len_utf8()..];
        }
    }
    Ok(sum)
}

fn add(sum: u64, number: u64, unit_millis: u64) -> Result<u64, DurationError> {
    number
        .checked_mul(unit_millis)
        .and_then(|millis| sum.checked_add(millis))
        .ok_or(DurationError::TooLong)
}

fn split_number(text: &str) -> Result<(u64, &str), DurationError> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    if digits == 0 {
        return Err(DurationError::Form);
    }
    let number = text[..digits].parse().map_err(|_| DurationError::TooLong)?;
    Ok((number, &text[digits..]))
}

/// Reads the digits after a point as milliseconds, rounded up.
fn split_fraction(text: &str) -> Result<(Option<u64>, &str), DurationError> {
    let Some(after) = text.strip_prefix('.') else {
        return Ok((None, text));
    };
    let digits = after.find(|c: char| !c.is_ascii_digit()).unwrap_or(after.len());
    if digits == 0 {
        return Err(DurationError::Form);
    }
    let (kept, cut) = after[..digits].split_at(digits.min(3));
    let mut millis: u64 = format!("{kept:0<3}").parse().map_err(|_| DurationError::Form)?;
    if cut.bytes().any(|b| b != b'0') {
        millis += 1;
    }
    Ok((Some(millis), &after[digits..]))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn both_forms_are_read_and_all_others_are_refused() {
        for (text, want) in [
            ("500ms", Ok(500)),
            ("15s", Ok(15_000)),
            ("15m", Ok(900_000)),
            ("48h", Ok(172_800_000)),
            ("30d", Ok(2_592_000_000)),
            ("2w", Ok(1_209_600_000)),
            ("1h30m", Ok(5_400_000)),
            ("1d2h3m4s5ms", Ok(93_784_005)),
            ("0s", Ok(0)),
            ("PT15M", Ok(900_000)),
            ("P1D", Ok(86_400_000)),
            ("P1W", Ok(604_800_000)),
            ("P1DT2H30M", Ok(95_400_000)),
            ("PT0.5S", Ok(500)),
            ("PT0.0001S", Ok(1)),
            ("PT1.2345S", Ok(1235)),
            ("", Err(DurationError::Form)),
            ("15", Err(DurationError::Form)),
            ("m", Err(DurationError::Form)),
            ("-5s", Err(DurationError::Form)),
            ("1.5h", Err(DurationError::Form)),
            ("15 m", Err(DurationError::Form)),
            ("30m1h", Err(DurationError::Form)),
            ("1h1h", Err(DurationError::Form)),
            ("5x", Err(DurationError::Form)),
            ("P", Err(DurationError::Form)),
            ("PT", Err(DurationError::Form)),
            ("P1DT", Err(DurationError::Form)),
            ("PT1M1H", Err(DurationError::Form)),
            ("PT0.5M", Err(DurationError::Form)),
            ("PT1.S", Err(DurationError::Form)),
            ("P1Y", Err(DurationError::Calendar)),
            ("P2M", Err(DurationError::Calendar)),
            ("99999999999999999999s", Err(DurationError::TooLong)),
            ("18446744073709551615d", Err(DurationError::TooLong)),
        ] {
            assert_eq!(parse_duration(text), want.map(Duration::from_millis), "{text:?}");
        }
    }

    #[test]
    fn a_duration_is_written_in_its_short_form() {
        for (millis, want) in [
            (0, "0s"),
            (500, "500ms"),
            (900_000, "15m"),
            (5_400_000, "1h30m"),
            (1_209_600_000, "14d"),
        ] {
            assert_eq!(format_duration(Duration::from_millis(millis)), want);
        }
    }

    proptest! {
        #[test]
        fn a_written_duration_reads_back(millis: u64) {
            let duration = Duration::from_millis(millis);
            prop_assert_eq!(parse_duration(&format_duration(duration)), Ok(duration));
        }

        #[test]
        fn no_text_makes_the_parser_panic(text in ".{0,40}", iso in "P[0-9YMWDTHS.]{0,20}") {
            let _ = parse_duration(&text);
            let _ = parse_duration(&iso);
        }
    }
}
