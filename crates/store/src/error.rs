//! What can go wrong with a store: one variant per thing that the caller can do about it.

use std::fmt;

use punctual_core::{Epoch, PartitionId, Seat};

use crate::change::BatchNo;

/// Why a store did not do what it was asked. Unless a variant says otherwise, nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Stop: somebody else owns the partition, or nobody gave it to us.
    #[error("{partition} is at {current}, this write carries {ours}")]
    Fenced {
        /// Which.
        partition: PartitionId,
        /// The epoch of the write.
        ours: Epoch,
        /// The epoch in the store.
        current: Epoch,
    },

    /// Correct the configuration: the store was made with fewer partitions.
    #[error("the store has no {partition}")]
    Outside {
        /// Which.
        partition: PartitionId,
    },

    /// Somebody else holds the seat; ask again when their lease is over.
    #[error("{seat} is held by another broker")]
    Held {
        /// Which.
        seat: Seat,
    },

    /// A batch is missing between the last one and this one. The owner has lost count: a bug.
    #[error("{partition} expects batch {expected:?}, was given {given:?}")]
    Gap {
        /// Which.
        partition: PartitionId,
        /// The number after the last.
        expected: BatchNo,
        /// The number that came.
        given: BatchNo,
    },

    /// Refuse new tasks until there is room; what is stored goes on.
    #[error("the store has no room left {room}: {why}")]
    Full {
        /// Where there is none.
        room: Resource,
        /// As the store says it, for the operator.
        why: String,
    },

    /// Try the same again later. Whether this batch was made is not known; sent again under its
    /// number it is made once.
    #[error("the store is unavailable: {0}")]
    Unavailable(#[source] Box<dyn std::error::Error + Send + Sync>),

    /// Stop the process: the store cannot tell what is durable any more, or has found damage.
    #[error("the store is broken: {0}")]
    Broken(String),
}

/// Where a store keeps tasks, and so whether to wait or to do something when there is no place left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resource {
    /// A disk: somebody must make room.
    Disk,
    /// The memory of a server that others use too: there may be room again by itself.
    Memory,
}

impl fmt::Display for Resource {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Disk => "on its disk",
            Self::Memory => "in its memory",
        })
    }
}
