//! Recovering: what is done after a crash or a take-over, which is little, because nothing was moved.
//!
//! A task stays in the store until it is settled, so a new owner takes the partition under a new epoch, which
//! fences the old one, and loads from the beginning: overdue tasks come first and fire at once, under the same
//! fire ids as before. A task that may be received at most once is no longer among them if its claim was
//! durable: it is a dead letter whose outcome is unknown.

use std::time::Duration;

use punctual_core::{BrokerId, Epoch, PartitionId, Seat, Timestamp};
use punctual_store::{LeaseStore, StoreError};

/// The right to decide about a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ownership {
    /// About which.
    pub partition: PartitionId,
    /// Under which epoch.
    pub epoch: Epoch,
    /// Acts no longer than this, unless extended.
    pub until: Timestamp,
}

/// Takes a partition for a broker that shares its store with nobody, so that whoever had it before can no longer write: for ever.
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
