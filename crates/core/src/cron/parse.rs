//! Reading an expression: text becomes [`Fields`], or a complaint that points at the field.
//!
//! In: the text, trimmed. Out: sets, from which everything that never occurs is already gone.
//! Not here: numbers and ranges (`field`), and which day of which month is meant (`days`).

use std::sync::Arc;

use crate::Invalid;

use super::calendar::{Fields, Years};
use super::days::Days;
use super::field::{Kind, Run, number};

/// Names for common expressions, as crontab has them.
const NICKNAMES: [(&str, &str); 7] = [
    ("@yearly", "0 0 1 1 *"),
    ("@annually", "0 0 1 1 *"),
    ("@monthly", "0 0 1 * *"),
    ("@weekly", "0 0 * * 0"),
    ("@daily", "0 0 * * *"),
    ("@midnight", "0 0 * * *"),
    ("@hourly", "0 * * * *"),
];

/// Field kinds in the order in which seven of them are written; five leave out the first and the
/// last, six the last.
const KINDS: [Kind; 7] =
    [Kind::Second, Kind::Minute, Kind::Hour, Kind::Day, Kind::Month, Kind::Weekday, Kind::Year];

/// Reads an expression of ASCII text.
pub(super) fn parse(expression: &str) -> Result<Fields, Invalid> {
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
        let place = |problem| invalid(format!("field {} ({}) {problem}", index + 1, kind.name()));
        read(*kind, text, &mut fields).map_err(place)?;
    }
    if fields.leave_out_what_never_occurs() {
        Ok(fields)
    } else {
        Err(invalid("never fires: none of its months has such a day".to_owned()))
    }
}

/// Blames the expression.
pub(super) fn invalid(problem: String) -> Invalid {
    Invalid::new("cron", problem)
}

fn expand(nickname: &str) -> Result<&'static str, Invalid> {
    let known = NICKNAMES.iter().find(|(name, _)| name.eq_ignore_ascii_case(nickname));
    known.map(|(_, expression)| *expression).ok_or_else(|| {
        let names: Vec<&str> = NICKNAMES.iter().map(|(name, _)| *name).collect();
        invalid(format!("must be one of {} or have fields, is {nickname:?}", names.join(", ")))
    })
}

fn count_problem(count: usize) -> String {
    format!(
        "must have 5 fields (minute hour day month weekday), 6 (second first) \
         or 7 (second first, year last), has {count}"
    )
}

/// Reads one field into its set.
fn read(kind: Kind, text: &str, fields: &mut Fields) -> Result<(), String> {
    match kind {
        Kind::Second => fields.seconds = set_of(kind, text)?.bits,
        Kind::Minute => {
            let set = set_of(kind, text)?;
            (fields.minutes, fields.star_minute) = (set.bits, set.star);
        }
        Kind::Hour => {
            let set = set_of(kind, text)?;
            (fields.hours, fields.star_hour) = (set.bits, set.star);
        }
        Kind::Day => read_days(text, &mut fields.days)?,
        Kind::Month => fields.months = set_of(kind, text)?.bits,
        Kind::Weekday => read_weekdays(text, &mut fields.days)?,
        Kind::Year => fields.years = read_years(text)?.map(Arc::new),
    }
    Ok(())
}

struct Set {
    bits: u64,
    star: bool,
}

fn set_of(kind: Kind, text: &str) -> Result<Set, String> {
    let mut set = Set { bits: 0, star: false };
    for entry in text.split(',') {
        let run = kind.run(entry)?;
        set.star |= run.star;
        set.bits |= bits_of(run);
    }
    Ok(set)
}

fn bits_of(run: Run) -> u64 {
    run.values().fold(0, |bits, value| bits | 1 << value)
}

/// Days of the month: numbers, `L`, `L-3`, `15W`, `LW`.
fn read_days(text: &str, days: &mut Days) -> Result<(), String> {
    let kind = Kind::Day;
    days.any_day = false;
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
            let run = kind.run(entry)?;
            days.any_day |= run.is_everything();
            days.days |= bits_of(run);
        }
    }
    Ok(())
}

/// Days of the week: numbers, names, `5L`, `FRIL`, `5#2`.
fn read_weekdays(text: &str, days: &mut Days) -> Result<(), String> {
    let kind = Kind::Weekday;
    days.any_weekday = false;
    for entry in text.split(',') {
        let must_be = || kind.must_be(entry);
        let weekday = |text| kind.value(text).map(|value| value % 7).ok_or_else(must_be);
        if let Some((day, nth)) = entry.split_once('#') {
            let nth = number(nth)
                .filter(|n| (1..=5).contains(n))
                .ok_or_else(|| format!("must have a place of #1 to #5, is {entry:?}"))?;
            days.nth_weekdays[usize::from(nth) - 1] |= 1 << weekday(day)?;
        } else if let Some(day) = entry.strip_suffix(['L', 'l']) {
            days.last_weekdays |= 1 << weekday(day)?;
        } else {
            let run = kind.run(entry)?;
            days.any_weekday |= run.is_everything();
            days.weekdays |= run.values().fold(0, |bits, value| bits | 1 << (value % 7));
        }
    }
    Ok(())
}

/// `None` for every year.
fn read_years(text: &str) -> Result<Option<Years>, String> {
    let mut years = Years::none();
    let mut everything = false;
    for entry in text.split(',') {
        let run = Kind::Year.run(entry)?;
        everything |= run.is_everything();
        run.values().for_each(|year| years.insert(year));
    }
    Ok((!everything).then_some(years))
}
