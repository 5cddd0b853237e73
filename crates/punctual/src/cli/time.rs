//! Times on the terminal: the absolute time, and beside it how far away it is.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use punctual_core::Timestamp;

/// Units of a relative time, largest first, in seconds.
const UNITS: [(&str, u64); 4] = [("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)];

/// The time of this machine's clock.
#[expect(clippy::disallowed_methods, reason = "a person reads relative times by this clock")]
pub(super) fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_millis(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// `2026-11-17T19:20:00Z (in 14m 59s)`. Milliseconds are shown if there are any.
pub(super) fn with_distance(at: Timestamp, now: Timestamp) -> String {
    let text = at.to_string();
    let text = text.strip_suffix(".000Z").map_or(text.clone(), |second| format!("{second}Z"));
    format!("{text} ({})", distance(at, now))
}

/// `in 14m 59s`, `3d 4h ago`, `now`: the two largest units.
pub(super) fn distance(at: Timestamp, now: Timestamp) -> String {
    if at >= now {
        match spoken(at.since(now)) {
            Some(text) => format!("in {text}"),
            None => "now".to_owned(),
        }
    } else {
        match spoken(now.since(at)) {
            Some(text) => format!("{text} ago"),
            None => "now".to_owned(),
        }
    }
}

/// The two largest units of a duration; `None` below a second.
fn spoken(duration: Duration) -> Option<String> {
    let mut rest = duration.as_secs();
    let first = UNITS.iter().position(|(_, seconds)| rest >= *seconds)?;
    let mut parts = Vec::new();
    for (unit, seconds) in UNITS.iter().skip(first).take(2) {
        if rest >= *seconds {
            parts.push(format!("{}{unit}", rest / seconds));
        }
        rest %= seconds;
    }
    Some(parts.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relative_time_has_the_two_largest_units() {
        let now = Timestamp::parse_rfc3339("2026-11-17T19:05:01Z").unwrap();
        for (at, shown) in [
            ("2026-11-17T19:20:00Z", "2026-11-17T19:20:00Z (in 14m 59s)"),
            ("2026-11-17T19:05:01.250Z", "2026-11-17T19:05:01.250Z (now)"),
            ("2026-11-17T19:05:00.500Z", "2026-11-17T19:05:00.500Z (now)"),
            ("2026-11-17T18:05:01Z", "2026-11-17T18:05:01Z (1h ago)"),
            ("2026-11-14T15:04:59Z", "2026-11-14T15:04:59Z (3d 4h ago)"),
            ("2027-11-17T19:05:31Z", "2027-11-17T19:05:31Z (in 365d)"),
        ] {
            let at = Timestamp::parse_rfc3339(at).unwrap();
            assert_eq!(with_distance(at, now), shown);
        }
    }
}
