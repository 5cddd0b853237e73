//! What changed since the last checkpoint in the due counts and in the index of series.
//!
//! The catalog has the rest. Due counts are kept as differences, so that a commit need not read the
//! catalog: a checkpoint adds them to its rows. A reader adds the row, what a running checkpoint
//! writes, and what changed since.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use punctual_store::DueMinute;

use crate::state::layers::IdHash;

/// Differences by minute.
pub(crate) type MinuteCounts = HashMap<DueMinute, i64, IdHash>;

/// The due counts of one namespace and partition that are not in the catalog yet.
#[derive(Debug, Default)]
pub(crate) struct DueChanges {
    changed: MinuteCounts,
    frozen: Option<Arc<MinuteCounts>>,
}

impl DueChanges {
    pub(crate) fn add(&mut self, minute: DueMinute, by: i64) {
        *self.changed.entry(minute).or_default() += by;
    }

    /// Starts a checkpoint; `None` if nothing changed.
    pub(crate) fn freeze(&mut self) -> Option<Arc<MinuteCounts>> {
        if self.changed.is_empty() {
            return None;
        }
        let frozen = Arc::new(std::mem::take(&mut self.changed));
        self.frozen = Some(Arc::clone(&frozen));
        Some(frozen)
    }

    /// Ends a checkpoint: what was frozen is in the catalog.
    pub(crate) fn thaw(&mut self) {
        self.frozen = None;
    }

    /// What is not in the catalog yet. A minute may be there twice.
    pub(crate) fn iter(&self, frozen: FrozenDue) -> impl Iterator<Item = (DueMinute, i64)> {
        let frozen = self.frozen.iter().filter(move |_| frozen == FrozenDue::NotWritten);
        let frozen = frozen.flat_map(|frozen| frozen.iter());
        self.changed.iter().chain(frozen).map(|(minute, by)| (*minute, *by))
    }
}

/// Whether the catalog that a reader has seen has what a running checkpoint writes. Differences
/// must not be added twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FrozenDue {
    Written,
    NotWritten,
}

/// Keys of the index of series, and whether a series is there.
pub(crate) type SeriesRows = BTreeMap<Box<[u8]>, SeriesRow>;

/// Whether the index has a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SeriesRow {
    Present,
    Absent,
}

/// The part of the index of series that is not in the catalog yet.
#[derive(Debug, Default)]
pub(crate) struct SeriesChanges {
    changed: SeriesRows,
    frozen: Option<Arc<SeriesRows>>,
}

impl SeriesChanges {
    pub(crate) fn set(&mut self, key: Box<[u8]>, row: SeriesRow) {
        self.changed.insert(key, row);
    }

    /// Starts a checkpoint.
    pub(crate) fn freeze(&mut self) -> Arc<SeriesRows> {
        let frozen = Arc::new(std::mem::take(&mut self.changed));
        self.frozen = Some(Arc::clone(&frozen));
        frozen
    }

    /// Ends a checkpoint: what was frozen is in the catalog.
    pub(crate) const fn thaw(&mut self) -> Option<Arc<SeriesRows>> {
        self.frozen.take()
    }

    /// The first keys after one key and before another, at most `limit`, each with its newest row.
    pub(crate) fn between(
        &self,
        after: &[u8],
        end: &[u8],
        limit: usize,
    ) -> BTreeMap<Box<[u8]>, SeriesRow> {
        use std::ops::Bound::Excluded;
        let mut rows = BTreeMap::new();
        for layer in self.frozen.as_deref().into_iter().chain([&self.changed]) {
            let range = layer.range::<[u8], _>((Excluded(after), Excluded(end))).take(limit);
            rows.extend(range.map(|(key, row)| (key.clone(), *row)));
        }
        rows
    }
}
