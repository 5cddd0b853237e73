//! Endings: tasks that have ended and whose bits in runs are not set yet.
//!
//! The state notes an ending without reading the disk, and `checkpoint::resolve` sets the bit
//! later. [`RecentLocations`] remembers where entries were read, so that most endings need no
//! lookup.

use std::collections::HashMap;

use punctual_core::{TaskId, Timestamp};

use crate::run::{Generation, RunNo};
use crate::state::layers::IdHash;

/// Tasks that have ended and whose entries in runs have not been marked yet.
#[derive(Debug, Default)]
pub(crate) struct Endings {
    by_id: HashMap<TaskId, Ending, IdHash>,
    /// Earlier endings of tasks that were filed again at another time and ended again.
    earlier: Vec<(TaskId, Ending)>,
}

/// A task has ended in every entry that was filed before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ending {
    /// The time at which its entry is filed; `None` if only the catalog knows it.
    pub(crate) filed_at: Option<Timestamp>,
    /// Only entries of older generations have ended.
    pub(crate) before: Generation,
    /// The run and the ordinal of its entry, if that was read recently; then no lookup is needed.
    pub(crate) location: Option<(RunNo, u32)>,
}

/// Where live entries were read recently, so that no lookup is needed when they end. Bounded: when
/// the young half is full, it becomes the old half, and the old half is dropped.
#[derive(Debug, Default)]
pub(crate) struct RecentLocations {
    young: HashMap<TaskId, (RunNo, u32), IdHash>,
    old: HashMap<TaskId, (RunNo, u32), IdHash>,
}

impl RecentLocations {
    /// Entries of each half: what a busy owner loads ahead, at 32 bytes each.
    const HALF_MAX: usize = 131_072;

    pub(crate) fn note(&mut self, id: TaskId, run: RunNo, ordinal: u32) {
        if self.young.len() >= Self::HALF_MAX {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(id, (run, ordinal));
    }

    pub(super) fn take(&mut self, id: TaskId) -> Option<(RunNo, u32)> {
        let young = self.young.remove(&id);
        if self.old.is_empty() {
            return young;
        }
        let old = self.old.remove(&id);
        young.or(old)
    }
}

impl Endings {
    /// Takes all endings out. The new table has the same capacity, so that it does not grow under
    /// the lock.
    pub(crate) fn take(&mut self) -> Self {
        let by_id = HashMap::with_capacity_and_hasher(self.by_id.capacity(), IdHash::default());
        std::mem::replace(self, Self { by_id, earlier: Vec::new() })
    }

    pub(super) fn insert(&mut self, id: TaskId, ending: Ending) {
        let earlier = self.by_id.insert(id, ending);
        if let Some(earlier) = earlier.filter(|earlier| earlier.filed_at != ending.filed_at) {
            self.earlier.push((id, earlier));
        }
    }

    pub(super) fn has(&self, id: TaskId, generation: Generation) -> bool {
        !self.by_id.is_empty()
            && self.by_id.get(&id).is_some_and(|ending| generation < ending.before)
    }

    pub(crate) fn len(&self) -> usize {
        self.by_id.len() + self.earlier.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (TaskId, Ending)> {
        let latest = self.by_id.iter().map(|(id, ending)| (*id, *ending));
        latest.chain(self.earlier.iter().copied())
    }
}
