//! Buffers: entries in memory, in order, until a checkpoint writes them as runs.
//!
//! Bodies are slices of the commits that they came in. `bytes` never shrinks, because a slice keeps
//! its whole commit in memory.

use std::collections::BTreeMap;
use std::ops::Bound;

use bytes::Bytes;

use crate::key::EntryKey;

/// What an entry costs in the tree, without its body.
const ENTRY_BYTES: usize = 96;

#[derive(Debug, Default)]
pub(crate) struct Buffer {
    entries: BTreeMap<EntryKey, Bytes>,
    bytes: usize,
}

impl Buffer {
    pub(crate) fn insert(&mut self, key: EntryKey, body: Bytes) {
        self.bytes += body.len() + ENTRY_BYTES;
        self.entries.insert(key, body);
    }

    pub(crate) fn remove(&mut self, key: EntryKey) -> bool {
        self.entries.remove(&key).is_some()
    }

    pub(crate) fn get(&self, key: EntryKey) -> Option<&Bytes> {
        self.entries.get(&key)
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
