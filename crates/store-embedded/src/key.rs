//! Keys: the order in which everything on the timeline stands.
//!
//! Partition first, so that what one owner loads stands together; then time, then id, as the contract says.

use punctual_core::{PartitionId, TaskId, Timestamp};
use punctual_store::Position;

/// The place of an entry.
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

    /// Where a task is filed unless something else is known of it.
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
