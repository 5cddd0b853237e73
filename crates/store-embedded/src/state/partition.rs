//! The part of the state that belongs to one partition: its last batch, how far its owner has
//! loaded, and its counts.

use std::collections::{BTreeMap, HashSet};

use punctual_core::{Namespace, PartitionId, TaskId};
use punctual_store::{BatchNo, Counts, StoreError};

use crate::key::EntryKey;
use crate::state::layers::IdHash;

/// What is in memory about one partition.
#[derive(Debug)]
pub(crate) struct PartitionState {
    /// The last batch of its owner.
    pub(crate) batch: Option<BatchNo>,
    /// How far loading has come: postponed entries before it have been filed again.
    pub(crate) frontier: EntryKey,
    /// Postponed tasks whose entries are, or may be, before the frontier.
    pub(crate) passed: HashSet<TaskId, IdHash>,
    /// Commits that were applied to it.
    pub(crate) version: u64,
    /// In the order in which namespaces are listed.
    pub(crate) counts: BTreeMap<String, NamespaceCounts>,
}

/// Counts of a namespace, and whether they changed since the last checkpoint.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct NamespaceCounts {
    pub(crate) counts: Counts,
    pub(crate) changed: bool,
}

impl PartitionState {
    pub(crate) fn new(id: PartitionId) -> Self {
        Self {
            batch: None,
            frontier: EntryKey::after(id, punctual_store::Position::START),
            passed: HashSet::default(),
            version: 0,
            counts: BTreeMap::new(),
        }
    }

    /// Adds the changes of counts of a commit.
    pub(super) fn count(&mut self, counts: Vec<(String, Counts)>) {
        for (namespace, moved) in counts {
            let tally = self.counts.entry(namespace).or_default();
            tally.counts.add(moved);
            tally.changed = true;
        }
    }
}

/// Reads the stored name of a namespace.
pub(crate) fn stored_name(name: &str) -> Result<Namespace, StoreError> {
    Namespace::from_stored(name).map_err(|_| {
        StoreError::Broken(format!("the stored name {name:?} is not a valid namespace"))
    })
}
