//! Buffers: entries in memory, in order, until a checkpoint writes them as runs.
//!
//! Bodies are slices of the commits that they came in. `bytes` never shrinks, because a slice keeps
//! its whole commit in memory.

use std::collections::BTreeMap;
use std::ops::Bound;

use bytes::Bytes;

use crate::key::EntryKey;
use crate::run::number_of;

/// What an entry costs in the tree, without its body.
const ENTRY_BYTES: usize = 96;

#[derive(Debug, Default)]
pub(crate) struct Buffer {
    entries: BTreeMap<EntryKey, Bytes>,
    bytes: usize,
    /// No entry has a smaller number in its id: a smaller one belongs to a task that was created
    /// before the last checkpoint, which needs no search here.
    first_number: Option<u128>,
}

impl Buffer {
    pub(crate) fn insert(&mut self, key: EntryKey, body: Bytes) {
        self.bytes += body.len() + ENTRY_BYTES;
        let number = number_of(key.id);
        self.first_number = Some(self.first_number.map_or(number, |first| first.min(number)));
        self.entries.insert(key, body);
    }

    pub(crate) fn remove(&mut self, key: EntryKey) -> bool {
        self.may_have(key) && self.entries.remove(&key).is_some()
    }

    pub(crate) fn get(&self, key: EntryKey) -> Option<&Bytes> {
        if self.may_have(key) { self.entries.get(&key) } else { None }
    }

    fn may_have(&self, key: EntryKey) -> bool {
        self.first_number.is_some_and(|first| first <= number_of(key.id))
    }

    pub(crate) fn range(
        &self,
        range: (Bound<EntryKey>, Bound<EntryKey>),
    ) -> impl Iterator<Item = (EntryKey, &Bytes)> {
        // The standard map panics on a range that excludes the same key at both ends.
        let empty = matches!(range, (Bound::Excluded(a), Bound::Excluded(b)) if a >= b);
        (!empty)
            .then(|| self.entries.range(range))
            .into_iter()
            .flatten()
            .map(|(key, body)| (*key, body))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (EntryKey, &Bytes)> {
        self.entries.iter().map(|(key, body)| (*key, body))
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use punctual_core::{Epoch, PartitionId, Sequence, TaskId, Timestamp};

    use super::*;

    #[test]
    fn an_entry_is_found_whatever_was_filed_before_it() {
        let key = |sequence: u64| {
            let due = Timestamp::from_millis(100 - sequence);
            let epoch = Epoch::new(1).expect("an epoch");
            let sequence = Sequence::new(sequence).expect("a sequence");
            EntryKey::at_due(TaskId::new(due, PartitionId::FIRST, epoch, sequence))
        };
        let mut buffer = Buffer::default();
        assert!(buffer.get(key(7)).is_none() && !buffer.remove(key(7)));
        for sequence in [7, 9, 3] {
            buffer.insert(key(sequence), Bytes::new());
        }
        let found = (0..12).filter(|sequence| buffer.get(key(*sequence)).is_some());
        assert_eq!(found.collect::<Vec<_>>(), [3, 7, 9]);
        assert!(buffer.remove(key(3)) && !buffer.remove(key(3)) && !buffer.remove(key(2)));
        assert!(buffer.remove(key(9)) && buffer.get(key(7)).is_some());
    }
}
