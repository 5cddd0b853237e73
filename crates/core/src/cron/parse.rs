//! Reads an expression into [`Fields`], or returns an error that names the field.
//!
//! Months and years without a matching day are removed from the result; [`check_occurs`] refuses
//! one that is left with none. Numbers and ranges are read in `field`; `days` decides which days of
//! a month match.

use std::sync::Arc;

use crate::Invalid;

use super::calendar::{Fields, Years};
use super::days::{MonthDays, Weekdays};
use super::field::{FieldKind, StepRange, number};

/// Names for common expressions, as in crontab(5).
pub const CRON_NICKNAMES: [(&str, &str); 7] = [
    ("@yearly", "0 0 1 1 *"),
    ("@annually", "0 0 1 1 *"),
    ("@monthly", "0 0 1 * *"),
    ("@weekly", "0 0 * * 0"),
    ("@daily", "0 0 * * *"),
    ("@midnight", "0 0 * * *"),
    ("@hourly", "0 * * * *"),
];

/// The fields of an expression with seven. One with six has no year; one with five has neither
/// second nor year.
const KINDS: [FieldKind; 7] = [
    FieldKind::Second,
    FieldKind::Minute,
    FieldKind::Hour,
    FieldKind::Day,
    FieldKind::Month,
    FieldKind::Weekday,
    FieldKind::Year,
];

/// How a field begins that does not restrict the days (see `days`).
const STARS: [char; 2] = ['*', '?'];

/// Reads an expression, which must be ASCII text.
pub(super) fn read(expression: &str) -> Result<Fields, Invalid> {
    let expanded = if expression.starts_with('@') { expand(expression)? } else { expression };
    let texts: Vec<&str> = expanded.split_ascii_whitespace().collect();
    if texts.first().is_some_and(|text| text.starts_with("TZ=") || text.starts_with("CRON_TZ=")) {
        return Err(invalid("must not name a time zone, which is a field of its own".to_owned()));
    }
    let kinds = match texts.len() {
        5 => &KINDS[1..6],
        6 => &KINDS[..6],
        7 => &KINDS[..],
        count => return Err(invalid(count_problem(count))),
    };
    let mut fields = Fields::every_minute();
    for (index, (kind, text)) in kinds.iter().zip(&texts).enumerate() {
        let at_field =
            |problem| invalid(format!("field {} ({}) {problem}", index + 1, kind.name()));
        read_field(*kind, text, &mut fields).map_err(at_field)?;
    }
    fields.remove_what_never_occurs();
    Ok(fields)
}

/// Refuses an expression that can never fire.
pub(super) fn check_occurs(fields: Fields) -> Result<Fields, Invalid> {
    if fields.occurs() {
        return Ok(fields);
    }
    Err(invalid("never fires: none of its months has such a day".to_owned()))
}

/// An error about the expression.
pub(super) fn invalid(problem: String) -> Invalid {
    Invalid::new("cron", problem)
}

fn expand(nickname: &str) -> Result<&'static str, Invalid> {
    let found = CRON_NICKNAMES.iter().find(|(name, _)| name.eq_ignore_ascii_case(nickname));
    found.map(|(_, expression)| *expression).ok_or_else(|| {
        let names: Vec<&str> = CRON_NICKNAMES.iter().map(|(name, _)| *name).collect();
        invalid(format!("must be one of {} or have fields, is {nickname:?}", names.join(", ")))
    })
}

fn count_problem(count: usize) -> String {
    format!(
        "must have 5 fields (minute hour day month weekday), 6 (second first) \
         or 7 (second first, year last), has {count}"
    )
}

fn read_field(kind: FieldKind, text: &str, fields: &mut Fields) -> Result<(), String> {
    match kind {
        FieldKind::Second => fields.seconds = values_of(kind, text)?.bits,
        FieldKind::Minute => {
            let values = values_of(kind, text)?;
            (fields.minutes, fields.star_minute) = (values.bits, values.star);
        }
        FieldKind::Hour => {
            let values = values_of(kind, text)?;
            (fields.hours, fields.star_hour) = (values.bits, values.star);
        }
        FieldKind::Day => fields.days.month_days = read_month_days(text)?,
        FieldKind::Month => fields.months = values_of(kind, text)?.bits,
        FieldKind::Weekday => fields.days.weekdays = read_weekdays(text)?,
        FieldKind::Year => fields.years = read_years(text)?.map(Arc::new),
    }
    Ok(())
}

/// The values that a field names.
struct FieldValues {
    bits: u64,
    /// At least one entry is written with `*`.
    star: bool,
}

fn values_of(kind: FieldKind, text: &str) -> Result<FieldValues, String> {
    let mut values = FieldValues { bits: 0, star: false };
    for entry in text.split(',') {
        let range = kind.entry(entry)?;
        values.star |= range.star;
        values.bits |= bits_of(range);
    }
    Ok(values)
}

fn bits_of(range: StepRange) -> u64 {
    range.values().fold(0, |bits, value| bits | 1 << value)
}

/// Reads days of the month: numbers, `L`, `L-3`, `15W`, `LW`.
fn read_month_days(text: &str) -> Result<MonthDays, String> {
    let kind = FieldKind::Day;
    let mut days = MonthDays { star: text.starts_with(STARS), ..MonthDays::default() };
    for entry in text.split(',') {
        let upper = entry.to_ascii_uppercase();
        let must_be = || kind.must_be(entry);
        if upper == "L" {
            days.from_last |= 1;
        } else if upper == "LW" {
            days.last_working_day = true;
        } else if let Some(before) = upper.strip_prefix("L-") {
            let before = number(before).filter(|n| (1..=30).contains(n)).ok_or_else(must_be)?;
            days.from_last |= 1 << before;
        } else if let Some(day) = upper.strip_suffix('W') {
            days.near_working_day |= 1 << kind.value(day).ok_or_else(must_be)?;
        } else {
            days.days |= bits_of(kind.entry(entry)?);
        }
    }
    Ok(days)
}

/// Reads weekdays: numbers, names, `5L`, `FRIL`, `5#2`.
fn read_weekdays(text: &str) -> Result<Weekdays, String> {
    let kind = FieldKind::Weekday;
    let mut weekdays = Weekdays { star: text.starts_with(STARS), ..Weekdays::default() };
    for entry in text.split(',') {
        let must_be = || kind.must_be(entry);
        let weekday = |text| kind.value(text).map(|value| value % 7).ok_or_else(must_be);
        if let Some((day, nth)) = entry.split_once('#') {
            let nth = number(nth)
                .filter(|n| (1..=5).contains(n))
                .ok_or_else(|| format!("must have #1 to #5 after the weekday, is {entry:?}"))?;
            weekdays.nth[usize::from(nth) - 1] |= 1 << weekday(day)?;
        } else if let Some(day) = entry.strip_suffix(['L', 'l']) {
            weekdays.last |= 1 << weekday(day)?;
        } else {
            let values = kind.entry(entry)?.values();
            weekdays.every |= values.fold(0, |bits, value| bits | 1 << (value % 7));
        }
    }
    Ok(weekdays)
}

/// Reads years; `None` means every year.
fn read_years(text: &str) -> Result<Option<Years>, String> {
    let mut years = Years::none();
    let mut everything = false;
    for entry in text.split(',') {
        let range = FieldKind::Year.entry(entry)?;
        everything |= range.is_everything();
        range.values().for_each(|year| years.insert(year));
    }
    Ok((!everything).then_some(years))
}
