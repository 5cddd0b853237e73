//! The bytes of differences of due counts, which a store appends to a log with each batch and folds
//! into hours ([`HourCounts`](super::HourCounts)) now and then.
//!
//! Differences that follow each other in a log are read as their sum, so a batch costs some bytes
//! for each minute that it changes, whatever is stored already.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use punctual_core::Namespace;

use crate::codec::{CodecError, Decoded, Reader, put_bytes, put_signed, put_varint};
use crate::due::{DueHour, DueMinute, DueMove};

/// Differences of the counts of due tasks.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct DueDifferences {
    namespaces: BTreeMap<Namespace, BTreeMap<DueMinute, i64>>,
}

impl DueDifferences {
    /// Adds what a change moves.
    pub fn add(&mut self, moved: DueMove<'_>) {
        for (minute, by) in [(moved.from, -1), (moved.to, 1)] {
            if let Some(minute) = minute {
                self.add_to(moved.namespace, minute, by);
            }
        }
    }

    /// Adds to the difference of a minute.
    pub fn add_to(&mut self, namespace: &Namespace, minute: DueMinute, by: i64) {
        let minutes = match self.namespaces.get_mut(namespace) {
            Some(minutes) => minutes,
            None => self.namespaces.entry(namespace.clone()).or_default(),
        };
        let count = minutes.entry(minute).or_default();
        *count = count.saturating_add(by);
    }

    /// Returns the bytes that are appended to the log; `None` if there is no difference.
    #[must_use]
    pub fn to_bytes(&self) -> Option<Vec<u8>> {
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
    #[must_use]
    pub fn minutes(&self) -> usize {
        self.namespaces.values().map(BTreeMap::len).sum()
    }

    /// Returns the hours that have differences, and these.
    #[must_use]
    pub fn by_hour(&self) -> BTreeMap<(&Namespace, DueHour), Vec<(DueMinute, i64)>> {
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
/// `each` breaks. Returns the number of bytes that were read.
pub fn read_due_log<'a>(
    log: &'a [u8],
    mut each: impl FnMut(&'a str, &[(DueMinute, i64)]) -> ControlFlow<()>,
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
        if each(namespace, &moved).is_break() {
            break;
        }
    }
    Ok(log.len() - reader.rest().len())
}

#[cfg(test)]
mod tests {
    use crate::conformance::fixtures::namespace;

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
        read_due_log(log, |name, moved| {
            for (minute, by) in moved {
                read.add_to(&namespace(name), *minute, *by);
            }
            ControlFlow::Continue(())
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
        let read = read_due_log(&log, |_, _| ControlFlow::Break(()));
        assert_eq!(read, Ok(log.len() / 2));
    }
}
