//! A reference to a task in memory: what lanes, deliveries and reports carry of it.

use punctual_core::TaskId;

/// A task, and the slot in which it was in memory: while it is there, no search is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LoadedRef {
    pub(crate) id: TaskId,
    slot: u32,
}

impl LoadedRef {
    /// A task in a slot; without one if it is not in memory.
    pub(crate) fn new(id: TaskId, slot: Option<usize>) -> Self {
        let slot = slot.and_then(|slot| u32::try_from(slot).ok());
        Self { id, slot: slot.unwrap_or(u32::MAX) }
    }

    /// A task whose slot is not known.
    pub(crate) const fn without_slot(id: TaskId) -> Self {
        Self { id, slot: u32::MAX }
    }

    /// Returns the slot in which the task was. Another task may have it by now.
    pub(crate) const fn slot(self) -> usize {
        self.slot as usize
    }
}
