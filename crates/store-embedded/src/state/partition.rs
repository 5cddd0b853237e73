//! The part of the state that belongs to one partition: its last batch, how far its owner has
//! loaded, its counts, and the groups of its dead letters.

use std::collections::{BTreeMap, HashSet};

use punctual_core::{FireId, LetterGroup, Namespace, PartitionId, TaskId, Timestamp};
use punctual_store::{BatchNo, Counts, DueMinute, LetterGroups, StoreError};

use crate::key::EntryKey;
use crate::state::due::DueChanges;
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
    pub(crate) letter_groups: BTreeMap<String, NamespaceGroups>,
}

/// Counts of a namespace, whether they changed since the last checkpoint, and what changed in its
/// due counts.
#[derive(Debug, Default)]
pub(crate) struct NamespaceCounts {
    pub(crate) counts: Counts,
    pub(crate) changed: bool,
    pub(crate) due: DueChanges,
}

/// Groups of dead letters of a namespace, and whether they changed since the last checkpoint.
#[derive(Debug, Default)]
pub(crate) struct NamespaceGroups {
    pub(crate) groups: LetterGroups,
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
            letter_groups: BTreeMap::new(),
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

    /// Adds the changes of due counts of a commit.
    pub(super) fn count_due(&mut self, due: Vec<(String, Vec<(DueMinute, i64)>)>) {
        for (namespace, minutes) in due {
            let tally = self.counts.entry(namespace).or_default();
            for (minute, by) in minutes {
                tally.due.add(minute, by);
            }
        }
    }

    /// Counts a dead letter in its group.
    pub(super) fn add_letter(
        &mut self,
        namespace: String,
        group: LetterGroup,
        died_at: Timestamp,
        fire_id: FireId,
    ) {
        let row = self.letter_groups.entry(namespace).or_default();
        row.groups.add(group, died_at, fire_id);
        row.changed = true;
    }

    /// Takes a dead letter from its group.
    pub(super) fn remove_letter(&mut self, namespace: &str, group: &LetterGroup, fire_id: FireId) {
        if let Some(row) = self.letter_groups.get_mut(namespace) {
            row.groups.remove(group, fire_id);
            row.changed = true;
        }
    }
}

/// Reads the stored name of a namespace.
pub(crate) fn stored_name(name: &str) -> Result<Namespace, StoreError> {
    Namespace::from_stored(name).map_err(|_| {
        StoreError::Broken(format!("the stored name {name:?} is not a valid namespace"))
    })
}
