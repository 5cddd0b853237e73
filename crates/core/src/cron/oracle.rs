//! An independent, slow implementation of cron that the tests and the fuzz target compare with the
//! real one.
//!
//! It walks through a span second by second or minute by minute and checks each local time against
//! a valid expression. It uses no other code of this crate and has its own calendar; it learns of
//! clock changes only from the offsets of successive steps. The property tests are in `properties`,
//! the tests around all clock changes of all zones in `clock_changes`.

#![allow(
    clippy::unwrap_used,
    clippy::missing_panics_doc,
    reason = "only tests use it, with valid expressions"
)]

#[cfg(test)]
mod clock_changes;
#[cfg(test)]
mod properties;

/// More than any clock change, so no earlier local time is shown again.
const LOOK_BACK: i64 = 26 * 3600;

const MONTHS: [&str; 12] =
    ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const WEEKDAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];

/// A day of the calendar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CalendarDay {
    year: i64,
    month: i64,
    day: i64,
    /// 0 is Sunday.
    weekday: i64,
}

impl CalendarDay {
    /// Counts days from 1970-01-01, a Thursday, year by year and month by month.
    pub fn from_days(days: i64) -> Self {
        let weekday = (days + 4).rem_euclid(7);
        let (mut year, mut rest) = (1970, days);
        while rest < 0 {
            year -= 1;
            rest += year_length(year);
        }
        while rest >= year_length(year) {
            rest -= year_length(year);
            year += 1;
        }
        let mut month = 1;
        while rest >= month_length(year, month) {
            rest -= month_length(year, month);
            month += 1;
        }
        Self { year, month, day: rest + 1, weekday }
    }

    fn last(self) -> i64 {
        month_length(self.year, self.month)
    }

    /// The weekday of another day of the same month.
    fn weekday_of(self, day: i64) -> i64 {
        (self.weekday + day - self.day).rem_euclid(7)
    }

    fn is_working_day(self, day: i64) -> bool {
        (1..=self.last()).contains(&day) && (1..=5).contains(&self.weekday_of(day))
    }
}

fn is_leap(year: i64) -> bool {
    (year % 4 == 0 && year % 100 != 0) || year % 400 == 0
}

fn year_length(year: i64) -> i64 {
    if is_leap(year) { 366 } else { 365 }
}

fn month_length(year: i64, month: i64) -> i64 {
    match month {
        2 if is_leap(year) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// An expression: the entries of each date field as text, and a table for each field of the clock.
pub struct NaiveExpression {
    days: Vec<String>,
    months: Vec<String>,
    weekdays: Vec<String>,
    years: Vec<String>,
    /// Both day fields begin with something other than `*` and `?`.
    days_restricted_twice: bool,
    /// Whether each hour, minute and second matches.
    hours: Vec<bool>,
    minutes: Vec<bool>,
    seconds: Vec<bool>,
    /// Neither minute nor hour is written with a star.
    pub is_fixed: bool,
    /// Only second 0 matches, so a walk in steps of a minute suffices.
    pub is_by_minute: bool,
}

impl NaiveExpression {
    /// Reads a valid expression.
    pub fn new(text: &str) -> Self {
        let lower = text.to_lowercase();
        let text = match lower.trim() {
            "@yearly" | "@annually" => "0 0 1 1 *",
            "@monthly" => "0 0 1 * *",
            "@weekly" => "0 0 * * 0",
            "@daily" | "@midnight" => "0 0 * * *",
            "@hourly" => "0 * * * *",
            other => other,
        };
        let mut fields: Vec<&str> = text.split_whitespace().collect();
        if fields.len() == 5 {
            fields.insert(0, "0");
        }
        if fields.len() == 6 {
            fields.push("*");
        }
        let entries =
            |index: usize| -> Vec<String> { fields[index].split(',').map(str::to_owned).collect() };
        let table = |index: usize, count: i64| -> Vec<bool> {
            let entries = entries(index);
            (0..count).map(|value| any_has(&entries, value, 0, count - 1)).collect()
        };
        // crontab(5): only the first character of a field decides whether it restricts the days.
        let restricts = |index: usize| !matches!(fields[index].as_bytes()[0], b'*' | b'?');
        let seconds = table(0, 60);
        Self {
            days: entries(3),
            months: entries(4),
            weekdays: entries(5),
            years: entries(6),
            days_restricted_twice: restricts(3) && restricts(5),
            hours: table(2, 24),
            minutes: table(1, 60),
            is_fixed: !fields[1].contains('*') && !fields[2].contains('*'),
            is_by_minute: seconds[0] && !seconds[1..].contains(&true),
            seconds,
        }
    }

    /// Whether a day matches.
    pub fn has_day(&self, day: CalendarDay) -> bool {
        let by_day = self.days.iter().any(|entry| day_has(entry, day));
        let by_weekday = self.weekdays.iter().any(|entry| weekday_has(entry, day));
        let matches = match (by_day, by_weekday) {
            (true, true) => true,
            (false, false) => false,
            // One of them is enough only if the writer restricted both.
            (true, false) | (false, true) => self.days_restricted_twice,
        };
        let year = self.years.iter().any(|entry| is_every_year(entry))
            || any_has(&self.years, day.year, 1970, 2999);
        matches && year && any_has(&self.months, day.month, 1, 12)
    }
}

fn is_every_year(entry: &str) -> bool {
    let (base, step) = entry.split_once('/').unwrap_or((entry, "1"));
    base == "*" && step.parse() == Ok(1)
}

fn any_has(entries: &[String], value: i64, min: i64, max: i64) -> bool {
    entries.iter().any(|entry| has(entry, value, min, max, |text| number_of(text, max)))
}

fn number_of(text: &str, max: i64) -> i64 {
    match MONTHS.iter().position(|name| *name == text) {
        Some(index) if max == 12 => index as i64 + 1,
        _ => text.parse().unwrap(),
    }
}

fn has(entry: &str, value: i64, min: i64, max: i64, number: impl Fn(&str) -> i64) -> bool {
    let (base, step) = match entry.split_once('/') {
        Some((base, step)) => (base, Some(step_of(step))),
        None => (entry, None),
    };
    let (mut at, end) = if base == "*" || base == "?" {
        (min, max)
    } else if let Some((from, to)) = base.split_once('-') {
        (number(from), number(to))
    } else if step.is_some() {
        (number(base), max)
    } else {
        (number(base), number(base))
    };
    while at <= end {
        if at == value {
            return true;
        }
        at += step.unwrap_or(1);
    }
    false
}

/// A step of any size; those that do not fit are wider than every range.
fn step_of(text: &str) -> i64 {
    text.parse().unwrap_or(1_000_000)
}

fn day_has(entry: &str, day: CalendarDay) -> bool {
    let last = day.last();
    if entry == "l" {
        return day.day == last;
    }
    if entry == "lw" {
        return (1..=last).rev().find(|d| day.is_working_day(*d)) == Some(day.day);
    }
    if let Some(before) = entry.strip_prefix("l-") {
        return day.day == last - before.parse::<i64>().unwrap();
    }
    if let Some(wanted) = entry.strip_suffix('w') {
        let wanted: i64 = wanted.parse().unwrap();
        let near = [0, -1, 1, -2, 2].map(|by| wanted + by);
        let nearest = near.into_iter().find(|d| day.is_working_day(*d));
        return wanted <= last && nearest == Some(day.day);
    }
    has(entry, day.day, 1, 31, |text| text.parse().unwrap())
}

fn weekday_has(entry: &str, day: CalendarDay) -> bool {
    let number = |text: &str| -> i64 {
        let named = WEEKDAYS.iter().position(|name| *name == text);
        named.map_or_else(|| text.parse().unwrap(), |index| index as i64)
    };
    if let Some((weekday, nth)) = entry.split_once('#') {
        let nth: i64 = nth.parse().unwrap();
        return number(weekday) % 7 == day.weekday && (day.day + 6) / 7 == nth;
    }
    if let Some(weekday) = entry.strip_suffix('l') {
        return number(weekday) % 7 == day.weekday && day.day + 7 > day.last();
    }
    // Only a range can have Sunday both as 0 and as 7.
    let base = entry.split('/').next().unwrap();
    if let Some((from_text, to_text)) = base.split_once('-') {
        let (mut from, mut to) = (number(from_text), number(to_text));
        if from == 7 && to < 7 {
            from = 0;
        }
        if to_text == "sun" && from > 0 {
            to = 7;
        }
        let step = entry.split_once('/').map_or(1, |(_, step)| step_of(step));
        let mut values = (from..=to).filter(|value| (value - from) % step == 0);
        return values.any(|value| value % 7 == day.weekday);
    }
    has(entry, day.weekday, 0, 6, |text| number(text) % 7)
}

/// How a wall clock shows a local time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Showing {
    /// For the first time.
    First,
    /// For the second time, after the clock went back.
    Again,
    /// Not at all: the clock has just skipped it.
    Skipped,
}

/// A local time, and the instant at which it is shown or skipped.
struct WallTime {
    at: i64,
    day: i64,
    hour: usize,
    minute: usize,
    second: usize,
    showing: Showing,
}

/// What the clock of a zone shows in a span, step by step. Computed once for many expressions.
pub struct WallClock(Vec<WallTime>);

impl WallClock {
    /// The span from `from` (not included) to `to` (included), in seconds since 1970. `offset_at`
    /// is the offset of the zone from UTC at an instant, in seconds.
    pub fn new(from: i64, to: i64, step: i64, offset_at: impl Fn(i64) -> i64) -> Self {
        let mut times = Vec::new();
        let mut push = |at: i64, local: i64, showing| {
            assert!(local % step == 0, "local times are whole steps");
            let day = local.div_euclid(86_400);
            let of_day = usize::try_from(local.rem_euclid(86_400)).unwrap();
            let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
            times.push(WallTime { at, day, hour, minute, second, showing });
        };
        // If the clock went back shortly before, begin earlier to learn what is shown again.
        let mut hours_before = (0..=LOOK_BACK).step_by(3600).map(|back| offset_at(from - back));
        let steady = hours_before.all(|offset| offset == offset_at(from));
        let mut at = if steady { from } else { from - LOOK_BACK };
        // What the clock shows next without a change, and the latest that it has shown so far.
        let mut expected = at + offset_at(at);
        let mut reached = expected;
        while at <= to {
            let local = at + offset_at(at);
            if at > from {
                while expected < local {
                    if expected >= reached {
                        push(at, expected, Showing::Skipped);
                    }
                    expected += step;
                }
                push(at, local, if local < reached { Showing::Again } else { Showing::First });
            }
            expected = local + step;
            reached = reached.max(expected);
            at += step;
        }
        Self(times)
    }
}

/// The instants of all matching local times, with how they are shown.
pub fn walk(expression: &NaiveExpression, clock: &WallClock) -> Vec<(i64, Showing)> {
    let mut matching = Vec::new();
    let (mut today, mut today_matches) = (i64::MIN, false);
    for time in &clock.0 {
        if time.day != today {
            today = time.day;
            today_matches = expression.has_day(CalendarDay::from_days(today));
        }
        let time_matches = expression.hours[time.hour]
            && expression.minutes[time.minute]
            && expression.seconds[time.second];
        if today_matches && time_matches {
            matching.push((time.at, time.showing));
        }
    }
    matching
}

/// Which of the matching times fire, each instant once: `after_gap` those that are skipped, `both`
/// those that are shown again.
pub fn fires(matching: &[(i64, Showing)], after_gap: bool, both: bool) -> Vec<i64> {
    let fires = matching.iter().filter(|(_, showing)| match showing {
        Showing::First => true,
        Showing::Again => both,
        Showing::Skipped => after_gap,
    });
    let mut fires: Vec<i64> = fires.map(|(at, _)| *at).collect();
    fires.dedup();
    fires
}
