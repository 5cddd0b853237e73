//! Errors of stores: one variant per thing that the caller can do.

use std::fmt;

use punctual_core::{Epoch, PartitionId, Seat};

use crate::change::BatchNo;

/// Why a store did not do what it was asked to do. Unless a variant states otherwise, nothing was
/// changed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Stop writing: another broker owns the partition, or this one never acquired it, or its owner
    /// has begun a repair since it sent the batch (then both epochs are the same).
    #[error(
        "write to partition {partition} refused: it carries epoch {ours}, the store is at \
         {current}; another broker owns the partition, or none does"
    )]
    Fenced {
        /// The partition of the write.
        partition: PartitionId,
        /// The epoch of the write.
        ours: Epoch,
        /// The current epoch of the partition; none if it was never acquired.
        current: Epoch,
    },

    /// Correct the configuration: the store was created with fewer partitions.
    #[error(
        "the store has no partition {partition}: it was created with fewer partitions; \
         configure the number that it was created with"
    )]
    Outside {
        /// The partition that was asked for.
        partition: PartitionId,
    },

    /// Another broker holds the seat. Retry after its lease has expired.
    #[error("another broker holds {seat}; retry after its lease has expired")]
    Held {
        /// The seat that was asked for.
        seat: Seat,
    },

    /// A batch is missing between the last one and this one. The store lost batches that it had
    /// acknowledged (Redis after a failover), or the owner has a bug.
    #[error(
        "batch {} of partition {partition} refused: the next is {}; the store lost acknowledged \
         batches, or the owner skipped some",
        given.get(), expected.get()
    )]
    Gap {
        /// The partition of the write.
        partition: PartitionId,
        /// The number of the next batch.
        expected: BatchNo,
        /// The number that was sent.
        given: BatchNo,
    },

    /// Refuse new tasks until there is space again. Changes of existing tasks are still accepted.
    #[error("the store accepts no new tasks: no space left {resource}: {why}")]
    Full {
        /// The resource that is used up.
        resource: Resource,
        /// The message of the store, for the operator.
        why: String,
    },

    /// Retry. Whether the batch was made is unknown; sent again under its number, it is made once.
    #[error("the store is unavailable, retry: {0}")]
    Unavailable(#[source] Box<dyn std::error::Error + Send + Sync>),

    /// Repair the value or remove it: it cannot be read. All other values are unaffected.
    #[error(transparent)]
    Damaged(Box<Damage>),

    /// Stop the process: the store found damage, or cannot tell any more what is durable.
    #[error("the store failed, and the broker must stop: {0}")]
    Broken(String),
}

/// A value of a store that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} is damaged: {why}; repair or remove {place}")]
pub struct Damage {
    /// What the value is, such as `the task`.
    pub what: &'static str,
    /// Where the value is, for the operator.
    pub place: String,
    /// Why it cannot be read.
    pub why: String,
}

/// What a store can run out of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resource {
    /// Disk space: an operator has to free some.
    Disk,
    /// Memory of a server that others use too: it may become free without an operator.
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
