//! Recovering after a crash or a take-over, which takes little because nothing was moved.
//!
//! A task stays in the store until it is settled. A new owner acquires the partition under a new
//! epoch, which fences the old owner, and loads from the beginning: overdue tasks come first and
//! fire at once, under the same fire ids as before. An at-most-once task whose claim was durable is
//! no longer among them: it is a dead letter with an unknown outcome.

use std::time::Duration;

use punctual_core::{BrokerId, Epoch, PartitionId, Seat, Timestamp};
use punctual_store::{LeaseStore, StoreError};

/// The right to decide about a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ownership {
    /// The partition that is owned.
    pub partition: PartitionId,
    /// The generation of the owner; the store refuses writes of older ones.
    pub epoch: Epoch,
    /// The owner acts no longer than this, unless its lease is extended.
    pub until: Timestamp,
}

/// Acquires a partition, without an end, for a broker that shares its store with no other. A
/// previous owner can no longer write.
pub async fn take<S: LeaseStore>(
    store: &S,
    partition: PartitionId,
    broker: &BrokerId,
    ttl: Duration,
    now: Timestamp,
) -> Result<Ownership, StoreError> {
    let lease = store.acquire(Seat::Partition(partition), broker, ttl, now).await?;
    Ok(Ownership { partition, epoch: lease.epoch, until: Timestamp::MAX })
}
