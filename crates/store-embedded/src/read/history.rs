//! History: the newest records of one task, from memory and from the runs of history.

use std::collections::BTreeMap;

use bytes::Bytes;
use punctual_core::{FireRecord, TaskId, Timestamp};
use punctual_store::codec::read_record;

use crate::fault::{ReadContext, StorageFault};
use crate::state::history::each_of_task;
use crate::store_core::StoreCore;

/// The newest records of a task, of different fires. Memory is bounded however many the task has.
struct NewestRecords {
    records: BTreeMap<Timestamp, Bytes>,
    bytes: usize,
    limit: usize,
    bytes_max: usize,
    /// The latest nominal time that was dropped. Records up to it are not wanted: an earlier record
    /// of the same fire must not appear in place of the one that was dropped.
    floor: Option<Timestamp>,
}

impl NewestRecords {
    /// Adds a record unless there is a newer one of the same fire. Returns whether records with
    /// earlier nominal times may be wanted.
    fn add(&mut self, nominal_at: Timestamp, record: Bytes) -> bool {
        if self.floor.is_some_and(|floor| nominal_at <= floor) {
            return false;
        }
        let bytes = record.len();
        self.records.entry(nominal_at).or_insert_with(|| {
            self.bytes += bytes;
            record
        });
        while self.records.len() > self.limit
            || (self.bytes > self.bytes_max && self.records.len() > 1)
        {
            let Some((dropped_at, dropped)) = self.records.pop_first() else { break };
            self.bytes -= dropped.len();
            self.floor = Some(dropped_at);
        }
        self.floor.is_none_or(|floor| nominal_at > floor)
    }
}

impl StoreCore {
    /// The newest records of a task, latest nominal time first: at most `limit`, and at most
    /// `bytes_max` bytes unless the first one has more.
    pub(crate) fn history(
        &self,
        id: TaskId,
        limit: usize,
        bytes_max: usize,
    ) -> Result<Vec<FireRecord>, StorageFault> {
        let (in_memory, runs) = self.state()?.history.find(id);
        let (records, floor) = (BTreeMap::new(), None);
        let mut newest = NewestRecords { records, bytes: 0, limit, bytes_max, floor };
        for (nominal_at, record) in in_memory.into_iter().rev() {
            if !newest.add(nominal_at, record) {
                break;
            }
        }
        for run in runs {
            each_of_task(&self.files, &run, id, |nominal_at, record| {
                newest.add(nominal_at, record)
            })?;
        }
        let newest = newest.records.into_values().rev();
        newest
            .map(|record| read_record(&record, &self.interner).reading("record of a fire"))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn newest(limit: usize, bytes_max: usize) -> NewestRecords {
        let (records, floor) = (BTreeMap::new(), None);
        NewestRecords { records, bytes: 0, limit, bytes_max, floor }
    }

    fn add(newest: &mut NewestRecords, second: u64, bytes: usize) -> bool {
        newest.add(Timestamp::from_millis(second * 1000), Bytes::from(vec![0; bytes]))
    }

    fn seconds(newest: &NewestRecords) -> Vec<u64> {
        newest.records.keys().rev().map(|at| at.as_millis() / 1000).collect()
    }

    #[test]
    fn the_newest_records_are_kept_within_both_bounds_and_without_a_gap() {
        let mut few = newest(2, 100);
        assert!(add(&mut few, 5, 1) && add(&mut few, 3, 1));
        assert!(!add(&mut few, 1, 1), "older ones are not wanted");
        assert!(add(&mut few, 9, 1), "from another run");
        assert_eq!(seconds(&few), [9, 5]);
        let mut short = newest(10, 100);
        assert!(add(&mut short, 5, 60));
        assert!(!add(&mut short, 4, 60));
        assert!(!add(&mut short, 4, 10), "an earlier record of the same fire");
        assert!(!add(&mut short, 3, 10), "it would leave a gap");
        assert!(add(&mut short, 6, 30));
        assert_eq!((seconds(&short), short.bytes), (vec![6, 5], 90));
        let mut long = newest(10, 100);
        assert!(add(&mut long, 5, 1000), "the first one is always there");
        assert!(!add(&mut long, 4, 1));
        assert_eq!(seconds(&long), [5]);
    }

    #[test]
    fn a_newer_record_of_a_fire_hides_an_earlier_one() {
        let mut newest = newest(10, 100);
        add(&mut newest, 5, 7);
        add(&mut newest, 5, 50);
        assert_eq!(newest.bytes, 7);
    }
}
