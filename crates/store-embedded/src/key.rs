//! Keys: the order of entries in buffers and runs.
//!
//! Partition first, so that the entries of one owner are adjacent; then time, then id, as the
//! contract orders them.

use punctual_core::{PartitionId, TaskId, Timestamp};
use punctual_store::Position;

/// The position of an entry: partition, time, id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct EntryKey {
    pub(crate) partition: PartitionId,
    pub(crate) at: Timestamp,
    pub(crate) id: TaskId,
}

impl EntryKey {
    pub(crate) const fn new(at: Timestamp, id: TaskId) -> Self {
        Self { partition: id.partition(), at, id }
    }

    /// The key of a task that has no relocation: the time in its id.
    pub(crate) const fn at_due(id: TaskId) -> Self {
        Self::new(id.due(), id)
    }

    pub(crate) const fn after(partition: PartitionId, position: Position) -> Self {
        Self { partition, at: position.fire_at, id: position.id }
    }

    pub(crate) const fn position(self) -> Position {
        Position { fire_at: self.at, id: self.id }
    }
}
