//! A second opinion about cron, as plain and slow as it can be, to hold against the real one.
//!
//! In: an expression that is known to be valid, a clock (the offset of a zone at each instant), a span.
//! Out: everything that happens in it, found by walking through it second by second or minute by
//! minute and looking at the wall clock. Invariant: shares no code with `punctual_core`, and has a
//! calendar of its own. What the clocks do is known only from the offsets of successive steps.

/// No zone is further from another, so nothing earlier can come again.
const LOOK_BACK: i64 = 26 * 3600;

const MONTHS: [&str; 12] =
    ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const WEEKDAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];

/// A day as the calendar on the wall shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Day {
    pub(crate) year: i64,
    pub(crate) month: i64,
    pub(crate) day: i64,
    /// 0 is Sunday.
    pub(crate) weekday: i64,
}

impl Day {
    /// By counting from 1970-01-01, a Thursday, year by year and month by month.
    pub(crate) fn from_days(days: i64) -> Self {
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

/// An expression: for each field the text of its entries, and for the clock a table of answers.
pub(crate) struct Expression {
    days: Vec<String>,
    months: Vec<String>,
    weekdays: Vec<String>,
    years: Vec<String>,
    /// Whether each hour, minute and second is meant.
    hours: Vec<bool>,
    minutes: Vec<bool>,
    seconds: Vec<bool>,
    /// Neither minute nor hour is made with a star.
    pub(crate) is_fixed: bool,
    /// Only second 0 is meant, so that looking once a minute suffices.
    pub(crate) is_by_minute: bool,
}

impl Expression {
    pub(crate) fn new(text: &str) -> Self {
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
        let field =
            |index: usize| -> Vec<String> { fields[index].split(',').map(str::to_owned).collect() };
        let answers = |index: usize, count: i64| -> Vec<bool> {
            let entries = field(index);
            (0..count).map(|value| any_has(&entries, value, 0, count - 1)).collect()
        };
        let seconds = answers(0, 60);
        Self {
            days: field(3),
            months: field(4),
            weekdays: field(5),
            years: field(6),
            hours: answers(2, 24),
            minutes: answers(1, 60),
            is_fixed: !fields[1].contains('*') && !fields[2].contains('*'),
            is_by_minute: seconds[0] && !seconds[1..].contains(&true),
            seconds,
        }
    }

    pub(crate) fn has_day(&self, day: Day) -> bool {
        let by_day = self.days.iter().any(|entry| day_has(entry, day));
        let by_weekday = self.weekdays.iter().any(|entry| weekday_has(entry, day));
        let any_day = self.days.iter().any(|entry| is_unrestricted(entry));
        let any_weekday = self.weekdays.iter().any(|entry| is_unrestricted(entry));
        let meant = match (any_day, any_weekday) {
            (true, _) => by_weekday,
            (false, true) => by_day,
            (false, false) => by_day || by_weekday,
        };
        let year = self.years.iter().any(|entry| is_unrestricted(entry))
            || any_has(&self.years, day.year, 1970, 2999);
        meant && year && any_has(&self.months, day.month, 1, 12)
    }
}

fn is_unrestricted(entry: &str) -> bool {
    let (base, step) = entry.split_once('/').unwrap_or((entry, "1"));
    matches!(base, "*" | "?") && step.parse() == Ok(1)
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
        Some((base, step)) => (base, Some(step.parse::<i64>().unwrap())),
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

fn day_has(entry: &str, day: Day) -> bool {
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

fn weekday_has(entry: &str, day: Day) -> bool {
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
    // Only a range can have both spellings of Sunday.
    let base = entry.split('/').next().unwrap();
    if let Some((from_text, to_text)) = base.split_once('-') {
        let (mut from, mut to) = (number(from_text), number(to_text));
        if from == 7 && to < 7 {
            from = 0;
        }
        if to_text == "sun" && from > 0 {
            to = 7;
        }
        let step = entry.split_once('/').map_or(1, |(_, step)| step.parse().unwrap());
        return (from..=to).step_by(step).any(|value| value % 7 == day.weekday);
    }
    has(entry, day.weekday, 0, 6, |text| number(text) % 7)
}

/// Why something may happen at an instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Why {
    /// The clock shows a local time.
    Shown,
    /// It shows it for the second time.
    Again,
    /// It has just leapt over it.
    Missed,
}

/// A local time, and when and why it counts.
struct Moment {
    at: i64,
    day: i64,
    hour: usize,
    minute: usize,
    second: usize,
    why: Why,
}

/// What the clock of a zone does in a span, step by step: worked out once for all expressions.
pub(crate) struct Clock(Vec<Moment>);

impl Clock {
    /// From `from` (not included) to `to` (included).
    pub(crate) fn new(from: i64, to: i64, step: i64, offset_at: impl Fn(i64) -> i64) -> Self {
        let mut moments = Vec::new();
        let mut push = |at: i64, local: i64, why| {
            assert!(local % step == 0, "every step shows a whole step on the wall");
            let day = local.div_euclid(86_400);
            let of_day = usize::try_from(local.rem_euclid(86_400)).unwrap();
            let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
            moments.push(Moment { at, day, hour, minute, second, why });
        };
        // If the clock went back shortly before, the walk begins earlier to know what comes again.
        let mut hours_before = (0..=LOOK_BACK).step_by(3600).map(|back| offset_at(from - back));
        let steady = hours_before.all(|offset| offset == offset_at(from));
        let mut at = if steady { from } else { from - LOOK_BACK };
        // What the clock should show next, and the latest that it has shown so far.
        let mut expected = at + offset_at(at);
        let mut reached = expected;
        while at <= to {
            let local = at + offset_at(at);
            if at > from {
                while expected < local {
                    if expected >= reached {
                        push(at, expected, Why::Missed);
                    }
                    expected += step;
                }
                push(at, local, if local < reached { Why::Again } else { Why::Shown });
            }
            expected = local + step;
            reached = reached.max(expected);
            at += step;
        }
        Self(moments)
    }
}

/// Everything that an expression means on a clock.
pub(crate) fn walk(expression: &Expression, clock: &Clock) -> Vec<(i64, Why)> {
    let mut happened = Vec::new();
    let (mut today, mut today_has) = (i64::MIN, false);
    for moment in &clock.0 {
        if moment.day != today {
            today = moment.day;
            today_has = expression.has_day(Day::from_days(today));
        }
        let time_has = expression.hours[moment.hour]
            && expression.minutes[moment.minute]
            && expression.seconds[moment.second];
        if today_has && time_has {
            happened.push((moment.at, moment.why));
        }
    }
    happened
}

/// What of it is to fire, each instant once.
pub(crate) fn fires(happened: &[(i64, Why)], after_gap: bool, both: bool) -> Vec<i64> {
    let fires = happened.iter().filter(|(_, why)| match why {
        Why::Shown => true,
        Why::Again => both,
        Why::Missed => after_gap,
    });
    let mut fires: Vec<i64> = fires.map(|(at, _)| *at).collect();
    fires.dedup();
    fires
}
