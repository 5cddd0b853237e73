//! The bytes of due counts: hours, and the log of differences.
//!
//! A member of `due-hours` has a namespace, a zero, an hour and the counts of its minutes. A batch
//! does not change hours: it appends its differences to the log, which is one command whatever the
//! number of minutes. The owner folds the log into hours now and then (`read/due`); by then most
//! tasks of the near future have come and gone.

use std::collections::BTreeMap;

use punctual_core::Namespace;
use punctual_store::codec::{
    CodecError, Decoded, HourCounts, Reader, put_bytes, put_signed, put_varint,
};
use punctual_store::{DueHour, DueMinute, DueMove};

/// The size of an hour in a member.
const HOUR_BYTES: usize = 4;

/// Differences of the counts of due tasks.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct DueDifferences {
    namespaces: BTreeMap<Namespace, BTreeMap<DueMinute, i64>>,
}

impl DueDifferences {
    pub(crate) fn add(&mut self, moved: DueMove<'_>) {
        for (minute, by) in [(moved.from, -1), (moved.to, 1)] {
            if let Some(minute) = minute {
                self.add_to(moved.namespace, minute, by);
            }
        }
    }

    pub(crate) fn add_to(&mut self, namespace: &Namespace, minute: DueMinute, by: i64) {
        let minutes = match self.namespaces.get_mut(namespace) {
            Some(minutes) => minutes,
            None => self.namespaces.entry(namespace.clone()).or_default(),
        };
        let count = minutes.entry(minute).or_default();
        *count = count.saturating_add(by);
    }

    /// Returns the bytes that are appended to the log; `None` if there is no difference.
    pub(crate) fn to_bytes(&self) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        for (namespace, minutes) in &self.namespaces {
            let moved: Vec<_> = minutes.iter().filter(|(_, by)| **by != 0).collect();
            if moved.is_empty() {
                continue;
            }
            put_bytes(&mut out, namespace.as_str().as_bytes());
            put_varint(&mut out, moved.len() as u64);
            let mut before = 0;
            for (minute, by) in moved {
                put_varint(&mut out, u64::from(minute.get() - before));
                put_signed(&mut out, *by);
                before = minute.get();
            }
        }
        (!out.is_empty()).then_some(out)
    }

    /// Returns the number of minutes that have differences: at least that of hours.
    pub(crate) fn minutes(&self) -> usize {
        self.namespaces.values().map(BTreeMap::len).sum()
    }

    /// Returns the hours that have differences, and these.
    pub(crate) fn by_hour(&self) -> BTreeMap<(&Namespace, DueHour), Vec<(DueMinute, i64)>> {
        let mut hours: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for (namespace, minutes) in &self.namespaces {
            for (minute, by) in minutes.iter().filter(|(_, by)| **by != 0) {
                hours.entry((namespace, minute.hour())).or_default().push((*minute, *by));
            }
        }
        hours
    }
}

/// Reads the log in order: calls `each` for every difference. Stops behind a namespace after which
/// `each` returns `Next::Stop`. Returns the number of bytes that were read.
pub(crate) fn read_log<'a>(
    log: &'a [u8],
    mut each: impl FnMut(&'a str, &[(DueMinute, i64)]) -> Next,
) -> Decoded<usize> {
    let mut reader = Reader::new(log);
    let mut moved = Vec::new();
    while !reader.rest().is_empty() {
        let namespace = reader.text()?;
        let count = reader.varint()?;
        moved.clear();
        let mut minute: u32 = 0;
        for _ in 0..count {
            let by: u32 = reader.small("minute")?;
            minute = minute.checked_add(by).ok_or(CodecError::Invalid("minute"))?;
            moved.push((DueMinute::new(minute), reader.signed()?));
        }
        if each(namespace, &moved) == Next::Stop {
            break;
        }
    }
    Ok(log.len() - reader.rest().len())
}

/// Whether more of the log is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    Continue,
    Stop,
}

/// Returns the start of the member of an hour, which its counts follow.
pub(crate) fn hour_prefix(namespace: &str, hour: DueHour) -> Vec<u8> {
    let mut member = Vec::with_capacity(namespace.len() + 1 + HOUR_BYTES);
    member.extend_from_slice(namespace.as_bytes());
    member.push(0);
    member.extend_from_slice(&hour.get().to_be_bytes());
    member
}

/// Returns the member of an hour; `None` if every count is zero.
pub(crate) fn hour_member(namespace: &str, hour: DueHour, counts: &HourCounts) -> Option<Vec<u8>> {
    let counts = counts.to_bytes()?;
    Some([hour_prefix(namespace, hour), counts].concat())
}

/// Splits the member of an hour of a namespace into the hour and its counts.
pub(crate) fn read_hour_member<'a>(
    namespace: &str,
    member: &'a [u8],
) -> Decoded<(DueHour, &'a [u8])> {
    let rest = member.get(namespace.len() + 1..).ok_or(CodecError::Short("hour"))?;
    let (hour, counts) = rest.split_first_chunk().ok_or(CodecError::Short("hour"))?;
    Ok((DueHour::new(u32::from_be_bytes(*hour)), counts))
}

#[cfg(test)]
mod tests {
    use punctual_store::conformance::fixtures::{namespace, shop};

    use super::*;

    fn differences(all: &[(&str, u32, i64)]) -> DueDifferences {
        let mut differences = DueDifferences::default();
        for (name, minute, by) in all {
            differences.add_to(&namespace(name), DueMinute::new(*minute), *by);
        }
        differences
    }

    fn read_all(log: &[u8]) -> Decoded<DueDifferences> {
        let mut read = DueDifferences::default();
        read_log(log, |name, moved| {
            for (minute, by) in moved {
                read.add_to(&namespace(name), *minute, *by);
            }
            Next::Continue
        })?;
        Ok(read)
    }

    #[test]
    fn differences_that_are_appended_to_each_other_are_read_as_their_sum() {
        let one = differences(&[("shop", 7, 2), ("shop", 600_000, -1), ("b", u32::MAX, 1)]);
        let other = differences(&[("shop", 7, -2), ("shop", 8, 1)]);
        let log = [one.to_bytes().unwrap(), other.to_bytes().unwrap()].concat();
        let sum = differences(&[
            ("shop", 7, 0),
            ("shop", 8, 1),
            ("shop", 600_000, -1),
            ("b", u32::MAX, 1),
        ]);
        assert_eq!(read_all(&log), Ok(sum));
        assert_eq!(differences(&[("shop", 7, 2), ("shop", 7, -2)]).to_bytes(), None);
        for length in 1..other.to_bytes().unwrap().len() {
            let cut = &other.to_bytes().unwrap()[..length];
            assert!(read_all(cut).is_err(), "{length} bytes");
        }
    }

    #[test]
    fn reading_stops_between_namespaces() {
        let log = differences(&[("a", 1, 1), ("b", 2, 1)]).to_bytes().unwrap();
        let read = read_log(&log, |_, _| Next::Stop);
        assert_eq!(read, Ok(log.len() / 2));
    }

    #[test]
    fn an_hour_reads_back_and_sorts_by_time() {
        let hour = DueHour::new(500_000);
        let mut counts = HourCounts::default();
        assert_eq!(hour_member("shop", hour, &counts), None);
        counts.add(hour.minute(3), 70);
        let member = hour_member(shop().as_str(), hour, &counts).unwrap();
        let (read, rest) = read_hour_member("shop", &member).unwrap();
        assert_eq!((read, HourCounts::read(rest)), (hour, Ok(counts)));
        assert!(member < hour_prefix("shop", DueHour::new(500_001)));
        assert!(read_hour_member("shop", &member[..7]).is_err());
    }
}
