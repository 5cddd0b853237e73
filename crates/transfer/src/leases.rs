//! The leases of an import: all partitions of a store, held until the import ends.
//!
//! Nothing is written while a broker owns a partition, and no partition is taken from a broker.
//! Each batch is written once, also when the store does not answer and the batch is tried again.

use std::time::Duration;

use anyhow::{Context as _, bail};
use punctual_core::{BrokerId, Epoch, Lease, PartitionId, Seat, Timestamp};
use punctual_store::{Batch, BatchNo, Change, LeaseStore as _, StoreError, TaskStore as _};

use crate::store::TransferStore;
use crate::{OnEvent, TransferEvent, now, pause};

/// How long a lease lasts, and how often all leases are renewed.
const TTL: Duration = Duration::from_secs(30);
const RENEW_EVERY: Duration = Duration::from_secs(10);
/// How many epochs are skipped one by one, in a store that cannot skip them at once: about ten
/// seconds.
const ACQUIRES_MAX: u32 = 10_000;
/// How often a batch is tried whose outcome is not known, and the pause between two tries.
const TRIES_MAX: u32 = 20;
const TRY_PAUSE: Duration = Duration::from_millis(250);

/// The leases of all partitions of the target.
pub(crate) struct ImportLeases<'a> {
    target: &'a TransferStore,
    /// Indexed by partition.
    held: Vec<HeldPartition>,
    renewed_at: Timestamp,
}

#[derive(Debug)]
struct HeldPartition {
    lease: Lease,
    next_batch: BatchNo,
    /// Whether the partition had tasks before the import.
    used: bool,
}

impl<'a> ImportLeases<'a> {
    /// Takes the leases of all partitions, with epochs above `above`. If a broker holds one of
    /// them, takes none.
    pub(crate) async fn take(
        target: &'a TransferStore,
        above: Epoch,
        on_event: OnEvent<'_>,
    ) -> anyhow::Result<Self> {
        for partition in target.partitions.iter().filter(|_| target.store.is_shared()) {
            let holder = target.store.holder(Seat::Partition(partition)).await?;
            let holder = holder.filter(|lease| lease.holds_at(now()) && lease.broker != importer());
            if let Some(lease) = holder {
                return Err(held_by(target, partition, Some(&lease)));
            }
        }
        let mut leases = Self { target, held: Vec::new(), renewed_at: now() };
        for partition in target.partitions.iter() {
            let used = !target.store.all_namespaces(partition).await?.is_empty();
            match leases.acquire(partition, above).await {
                Ok(lease) => {
                    leases.held.push(HeldPartition { lease, next_batch: BatchNo::FIRST, used })
                }
                Err(error) => {
                    leases.release(on_event).await;
                    return Err(error);
                }
            }
        }
        Ok(leases)
    }

    async fn acquire(&self, partition: PartitionId, above: Epoch) -> anyhow::Result<Lease> {
        let seat = Seat::Partition(partition);
        let holder = self.target.store.holder(seat).await?;
        let broker = match &holder {
            // This process has the directory open, so the broker that held the lease is gone.
            Some(holder) if !self.target.store.is_shared() => holder.broker.clone(),
            _ => importer(),
        };
        self.target.store.remember_epoch(partition, above);
        for _ in 0..ACQUIRES_MAX {
            match self.target.store.acquire(seat, &broker, TTL, now()).await {
                Ok(lease) if lease.epoch > above => return Ok(lease),
                Ok(_) => {}
                Err(StoreError::Held { .. }) => {
                    return Err(held_by(self.target, partition, holder.as_ref()));
                }
                Err(error) => return Err(error.into()),
            }
        }
        bail!(
            "the epoch of {partition} cannot be raised above {above} in {ACQUIRES_MAX} steps; \
             import into Redis instead, which has no such limit"
        )
    }

    /// Whether a partition had tasks before the import.
    pub(crate) fn is_used(&self, partition: PartitionId) -> bool {
        self.held.get(usize::from(partition.get())).is_none_or(|held| held.used)
    }

    /// Raises the epoch of a partition above `epoch`, unless it is above already.
    pub(crate) async fn raise(
        &mut self,
        partition: PartitionId,
        epoch: Epoch,
    ) -> anyhow::Result<()> {
        if self.held(partition)?.lease.epoch <= epoch {
            let lease = self.acquire(partition, epoch).await?;
            let held = self.held(partition)?;
            (held.lease, held.next_batch) = (lease, BatchNo::FIRST);
        }
        Ok(())
    }

    /// Writes changes as one batch, exactly once.
    pub(crate) async fn apply(
        &mut self,
        partition: PartitionId,
        changes: Vec<Change>,
    ) -> anyhow::Result<()> {
        let target = self.target;
        let held = self.held(partition)?;
        let batch = Batch::new(held.next_batch, changes);
        for tried in 1.. {
            match target.store.apply(partition, held.lease.epoch, batch.clone()).await {
                Ok(()) => break,
                // A batch number is applied once, so trying again is safe.
                Err(StoreError::Unavailable(_)) if tried < TRIES_MAX => pause(TRY_PAUSE).await,
                Err(error) => return Err(error.into()),
            }
        }
        held.next_batch = held.next_batch.next();
        Ok(())
    }

    /// Renews all leases if it is time.
    pub(crate) async fn renew_when_due(&mut self) -> anyhow::Result<()> {
        if now().since(self.renewed_at) < RENEW_EVERY {
            return Ok(());
        }
        for held in &mut self.held {
            held.lease = self.target.store.renew(&held.lease, TTL, now()).await?;
        }
        self.renewed_at = now();
        Ok(())
    }

    /// Releases all leases.
    pub(crate) async fn release(self, on_event: OnEvent<'_>) {
        for held in &self.held {
            if let Err(error) = self.target.store.release(&held.lease).await {
                on_event(TransferEvent::Notice(format!(
                    "{} stays held for up to half a minute: {error}",
                    held.lease.seat
                )));
            }
        }
    }

    fn held(&mut self, partition: PartitionId) -> anyhow::Result<&mut HeldPartition> {
        let held = self.held.get_mut(usize::from(partition.get()));
        held.with_context(|| format!("the store has no {partition}"))
    }
}

/// The holder's name of every import, so that a killed import does not block the next one.
fn importer() -> BrokerId {
    BrokerId::new("import")
}

fn held_by(target: &TransferStore, partition: PartitionId, lease: Option<&Lease>) -> anyhow::Error {
    let who = lease.map_or("a broker", |lease| lease.broker.as_str());
    anyhow::anyhow!("{partition} is held by {who}: stop all brokers of {} first", target.name)
}
