//! History of the memory store: the records of ended fires, until they are past their retention.
//!
//! Records of all partitions are kept together, because the limit on their bytes covers all
//! partitions. `ages` has an entry for every record, and `bytes` is the sum of their sizes.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use punctual_core::{
    Answer, FireId, FireRecord, Namespace, Outcome, PartitionId, TaskId, TaskKey, Timestamp,
};

use super::partition::page;
use crate::query::{FireFilter, FirePosition, Page, Retention};

#[derive(Debug, Default)]
pub(super) struct MemoryHistory {
    records: BTreeMap<(PartitionId, FireId), FireRecord>,
    ages: BTreeSet<(Timestamp, PartitionId, FireId)>,
    /// The fires of each partition in the order of their end.
    ends: BTreeMap<PartitionId, BTreeSet<FirePosition>>,
    /// The fires of each key in the order of their end.
    keys: BTreeMap<(PartitionId, Namespace, TaskKey), BTreeSet<FirePosition>>,
    bytes: u64,
}

impl MemoryHistory {
    /// Adds a record. It replaces an earlier record of the same fire.
    pub(super) fn keep(&mut self, partition: PartitionId, record: FireRecord) {
        let fire_id = record.fire_id;
        self.delete(partition, fire_id);
        self.ages.insert((record.ended_at, partition, fire_id));
        self.bytes += size_of(&record);
        let position = FirePosition::of(&record);
        self.ends.entry(partition).or_default().insert(position);
        if let Some(key) = &record.key {
            let key = (partition, record.namespace.clone(), key.clone());
            self.keys.entry(key).or_default().insert(position);
        }
        self.records.insert((partition, fire_id), record);
    }

    /// Returns the newest records of a task. Fire ids sort by task, then by nominal time.
    pub(super) fn of_task(
        &self,
        partition: PartitionId,
        task: TaskId,
        limit: usize,
    ) -> Vec<FireRecord> {
        let fire = |nominal_at| (partition, FireId { task, nominal_at });
        self.records
            .range(fire(Timestamp::EPOCH)..=fire(Timestamp::MAX))
            .rev()
            .take(limit)
            .map(|(_, record)| record.clone())
            .collect()
    }

    /// Returns a page of the records that match, newest first.
    pub(super) fn fires(
        &self,
        partition: PartitionId,
        filter: &FireFilter,
        after: Option<FirePosition>,
        limit: usize,
    ) -> Page<FireRecord, FirePosition> {
        let Some(ends) = self.ends.get(&partition) else {
            return Page { items: Vec::new(), next: None };
        };
        let before = after.map_or(Bound::Unbounded, Bound::Excluded);
        let positions = ends.range((Bound::Unbounded, before)).rev();
        let records = positions
            .take_while(|position| position.ended_at >= filter.from)
            .map(|position| (*position, &self.records[&(partition, position.fire_id)]));
        page(records, limit, |record| filter.matches(record))
    }

    /// Returns the record of the fire of a key that ended last.
    pub(super) fn last_of(
        &self,
        partition: PartitionId,
        namespace: &Namespace,
        key: &TaskKey,
    ) -> Option<FireRecord> {
        let key = (partition, namespace.clone(), key.clone());
        let last = self.keys.get(&key)?.last()?;
        self.records.get(&(partition, last.fire_id)).cloned()
    }

    /// Deletes the records of a partition that are past their retention, and returns their number.
    /// If the records of all partitions are too large, the oldest of them are past their retention;
    /// those of other partitions stay until their partition is swept.
    pub(super) fn sweep(
        &mut self,
        partition: PartitionId,
        retention: Retention,
        now: Timestamp,
    ) -> u64 {
        let mut excess = self.bytes.saturating_sub(retention.history_bytes);
        let mut past = Vec::new();
        for (ended_at, owner, fire_id) in &self.ages {
            if excess == 0 && now.since(*ended_at) < retention.history_age {
                break;
            }
            excess = excess.saturating_sub(size_of(&self.records[&(*owner, *fire_id)]));
            if *owner == partition {
                past.push(*fire_id);
            }
        }
        for fire_id in &past {
            self.delete(partition, *fire_id);
        }
        past.len() as u64
    }

    fn delete(&mut self, partition: PartitionId, fire_id: FireId) {
        if let Some(record) = self.records.remove(&(partition, fire_id)) {
            self.ages.remove(&(record.ended_at, partition, fire_id));
            self.bytes -= size_of(&record);
            self.unlist(partition, &record);
        }
    }

    fn unlist(&mut self, partition: PartitionId, record: &FireRecord) {
        let position = FirePosition::of(record);
        if let Some(ends) = self.ends.get_mut(&partition) {
            ends.remove(&position);
        }
        let Some(key) = record.key.clone() else { return };
        let key = (partition, record.namespace.clone(), key);
        if let Some(fires) = self.keys.get_mut(&key) {
            fires.remove(&position);
            if fires.is_empty() {
                self.keys.remove(&key);
            }
        }
    }
}

/// Returns the approximate size of a record: its fixed parts and its texts. Allocations and the
/// trees around it are not counted.
fn size_of(record: &FireRecord) -> u64 {
    let texts =
        record.namespace.as_str().len() + record.key.as_ref().map_or(0, |key| key.as_str().len());
    let attempts: usize = record
        .attempts
        .iter()
        .map(|attempt| {
            let texts = match &attempt.outcome {
                Outcome::Acked | Outcome::Expired => 0,
                Outcome::Failed { reason, .. } | Outcome::Refused { reason } => {
                    reason.as_str().len()
                }
            };
            let answer = |answer: &Answer| answer.content_type().len() + answer.body().len();
            size_of_val(attempt) + texts + attempt.answer.as_deref().map_or(0, answer)
        })
        .sum();
    (size_of_val(record) + texts + attempts) as u64
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use punctual_core::{Epoch, FireEnd, Labels, Occasion, Sequence};

    use super::*;

    fn record(partition: PartitionId, second: u64) -> FireRecord {
        let ended_at = Timestamp::from_millis(second * 1000);
        let epoch = Epoch::new(1).unwrap();
        let task = TaskId::new(ended_at, partition, epoch, Sequence::FIRST);
        FireRecord {
            fire_id: FireId { task, nominal_at: ended_at },
            redriven_as: None,
            namespace: Namespace::new("shop").unwrap(),
            key: None,
            ended_at,
            end: FireEnd::Done,
            attempts: Vec::new(),
            due_at: ended_at,
            occasion: Occasion::Due,
            labels: Labels::default(),
        }
    }

    #[test]
    fn the_oldest_records_of_all_partitions_are_deleted_when_there_are_too_many_bytes() {
        let [a, b] = [0, 1].map(|number| PartitionId::new(number).unwrap());
        let mut history = MemoryHistory::default();
        for second in 0..3 {
            history.keep(a, record(a, second * 2));
            history.keep(b, record(b, second * 2 + 1));
        }
        let half = Retention {
            history_age: Duration::MAX,
            history_bytes: history.bytes / 2,
            dead_age: Duration::MAX,
        };
        let now = Timestamp::from_millis(6000);
        // The three oldest ended at 0 s, 1 s and 2 s: two of partition a, one of b.
        assert_eq!(history.sweep(a, half, now), 2);
        assert_eq!(history.sweep(b, half, now), 1);
        assert_eq!(history.sweep(a, half, now), 0);
        assert_eq!(history.records.len(), 3);
        assert_eq!(history.bytes, half.history_bytes);
        assert_eq!(history.ages.first().unwrap().0, Timestamp::from_millis(3000));
    }

    #[test]
    fn a_record_that_replaces_another_is_counted_once() {
        let a = PartitionId::FIRST;
        let mut history = MemoryHistory::default();
        history.keep(a, record(a, 1));
        let bytes = history.bytes;
        let again = FireRecord { ended_at: Timestamp::from_millis(9000), ..record(a, 1) };
        history.keep(a, again);
        assert_eq!(history.bytes, bytes);
        assert_eq!(history.ages.len(), 1);
    }
}
