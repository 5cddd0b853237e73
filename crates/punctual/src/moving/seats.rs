//! Seats: all partitions of a store, held for as long as an import takes.
//!
//! In: the epoch above which they must be, and batches. Out: the batches in the store, each once.
//! Invariant: nothing is written while a broker holds a partition, and none is taken from it.

#![expect(clippy::print_stderr, reason = "this is what a person reads")]

use std::time::Duration;

use anyhow::{Context as _, bail};
use punctual_core::{BrokerId, Epoch, Lease, PartitionId, Timestamp};
use punctual_store::{Batch, BatchNo, Change, StoreError};

use super::house::House;
use super::{now, pause};

/// How long the partitions are held at a time, and how often they are renewed.
const TTL: Duration = Duration::from_secs(30);
const RENEW_EVERY: Duration = Duration::from_secs(10);
/// Epochs that are counted up in a store that cannot be told: some ten seconds of them.
const ACQUIRES_MAX: u32 = 10_000;
/// Tries of a batch whose outcome is not known, and the pause between them.
const TRIES_MAX: u32 = 20;
const TRY_PAUSE: Duration = Duration::from_millis(250);

/// All partitions.
pub(super) struct Seats<'a> {
    house: &'a House,
    /// By partition.
    held: Vec<Held>,
    renewed_at: Timestamp,
}

#[derive(Debug)]
struct Held {
    lease: Lease,
    next: BatchNo,
    used: bool,
}

impl<'a> Seats<'a> {
    /// Takes all partitions, or none: a broker that is running has them. Their epochs are above this one.
    pub(super) async fn take(house: &'a House, above: Epoch) -> anyhow::Result<Self> {
        for partition in house.partitions.iter().filter(|_| house.is_shared()) {
            let holder = house.holder(partition).await?;
            let holder = holder.filter(|lease| lease.holds_at(now()) && lease.broker != importer());
            if let Some(lease) = holder {
                return Err(held_by(house, partition, Some(&lease)));
            }
        }
        let mut seats = Self { house, held: Vec::new(), renewed_at: now() };
        for partition in house.partitions.iter() {
            let used = !house.namespaces(partition).await?.is_empty();
            match seats.acquire(partition, above).await {
                Ok(lease) => seats.held.push(Held { lease, next: BatchNo::FIRST, used }),
                Err(error) => {
                    seats.leave().await;
                    return Err(error);
                }
            }
        }
        Ok(seats)
    }

    async fn acquire(&self, partition: PartitionId, above: Epoch) -> anyhow::Result<Lease> {
        let holder = self.house.holder(partition).await?;
        let broker = match &holder {
            // Nobody else has its directory open: whoever held it is gone.
            Some(holder) if !self.house.is_shared() => holder.broker.clone(),
            _ => importer(),
        };
        self.house.remember_epoch(partition, above);
        for _ in 0..ACQUIRES_MAX {
            match self.house.acquire(partition, &broker, TTL, now()).await {
                Ok(lease) if lease.epoch > above => return Ok(lease),
                Ok(_) => {}
                Err(StoreError::Held { .. }) => {
                    return Err(held_by(self.house, partition, holder.as_ref()));
                }
                Err(error) => return Err(error.into()),
            }
        }
        bail!(
            "{partition} cannot be brought above {above} in {ACQUIRES_MAX} steps: import into a Redis, which can"
        )
    }

    /// Whether there was something in a partition before.
    pub(super) fn is_used(&self, partition: PartitionId) -> bool {
        self.held.get(usize::from(partition.get())).is_none_or(|held| held.used)
    }

    /// Brings the epoch of a partition above this one, unless it is.
    pub(super) async fn raise(
        &mut self,
        partition: PartitionId,
        epoch: Epoch,
    ) -> anyhow::Result<()> {
        if self.held(partition)?.lease.epoch <= epoch {
            let lease = self.acquire(partition, epoch).await?;
            let held = self.held(partition)?;
            (held.lease, held.next) = (lease, BatchNo::FIRST);
        }
        Ok(())
    }

    /// Makes changes, once.
    pub(super) async fn apply(
        &mut self,
        partition: PartitionId,
        changes: Vec<Change>,
    ) -> anyhow::Result<()> {
        let house = self.house;
        let held = self.held(partition)?;
        let batch = Batch::new(held.next, changes);
        for tried in 1.. {
            match house.apply(partition, held.lease.epoch, batch.clone()).await {
                Ok(()) => break,
                // Under its number it is made once.
                Err(StoreError::Unavailable(_)) if tried < TRIES_MAX => pause(TRY_PAUSE).await,
                Err(error) => return Err(error.into()),
            }
        }
        held.next = held.next.next();
        Ok(())
    }

    /// Goes on holding what is held.
    pub(super) async fn renew_when_due(&mut self) -> anyhow::Result<()> {
        if now().since(self.renewed_at) < RENEW_EVERY {
            return Ok(());
        }
        for held in &mut self.held {
            held.lease = self.house.renew(&held.lease, TTL, now()).await?;
        }
        self.renewed_at = now();
        Ok(())
    }

    /// Gives all partitions back.
    pub(super) async fn leave(self) {
        for held in &self.held {
            if let Err(error) = self.house.release(&held.lease).await {
                eprintln!("{} stays held for up to half a minute: {error}", held.lease.seat);
            }
        }
    }

    fn held(&mut self, partition: PartitionId) -> anyhow::Result<&mut Held> {
        let held = self.held.get_mut(usize::from(partition.get()));
        held.with_context(|| format!("the store has no {partition}"))
    }
}

/// Always the same, so that an import that was killed is not in the way of the next.
fn importer() -> BrokerId {
    BrokerId::new("import")
}

fn held_by(house: &House, partition: PartitionId, lease: Option<&Lease>) -> anyhow::Error {
    let who = lease.map_or("a broker", |lease| lease.broker.as_str());
    anyhow::anyhow!("{partition} is held by {who}: stop all brokers of {} first", house.name)
}
