//! Leases: which broker may write. Decided against what was admitted, result when it is durable.

use std::time::Duration;

use punctual_core::{BrokerId, Epoch, Lease, Seat, Timestamp};
use punctual_journal::Class;
use punctual_store::{LeaseStore, StoreError};

use super::{Admission, EmbeddedStore, journal_gone};
use crate::write::commit::lease_commit;

impl LeaseStore for EmbeddedStore {
    async fn acquire(
        &self,
        seat: Seat,
        broker: &BrokerId,
        ttl: Duration,
        now: Timestamp,
    ) -> Result<Lease, StoreError> {
        if let Seat::Partition(partition) = seat {
            self.core.check_partition(partition)?;
        }
        let admission = self.admission.lock().await;
        let last = admission.seats.get(&seat);
        if last.is_some_and(|last| last.broker != *broker && last.holds_at(now)) {
            return Err(StoreError::Held { seat });
        }
        let epoch = last.map_or(Epoch::NONE, |last| last.epoch).next();
        let epoch =
            epoch.ok_or_else(|| StoreError::Broken(format!("no epoch is left for {seat}")))?;
        let lease = Lease { seat, broker: broker.clone(), epoch, until: now.after(ttl) };
        self.commit_lease(admission, lease, true, now).await
    }

    async fn renew(
        &self,
        lease: &Lease,
        ttl: Duration,
        now: Timestamp,
    ) -> Result<Lease, StoreError> {
        let admission = self.admission.lock().await;
        let seat = lease.seat;
        match admission.seats.get(&seat) {
            Some(last) if last.epoch == lease.epoch => {
                let until = now.after(ttl);
                let lease = Lease { until, ..last.clone() };
                self.commit_lease(admission, lease, false, now).await
            }
            _ => Err(StoreError::Held { seat }),
        }
    }

    async fn release(&self, lease: &Lease) -> Result<(), StoreError> {
        let admission = self.admission.lock().await;
        let now = self.core.state()?.now;
        match admission.seats.get(&lease.seat) {
            Some(last) if last.epoch == lease.epoch => {
                let until = Timestamp::EPOCH;
                let lease = Lease { until, ..last.clone() };
                self.commit_lease(admission, lease, false, now).await?;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    async fn holder(&self, seat: Seat) -> Result<Option<Lease>, StoreError> {
        Ok(self.core.state()?.leases.get(&seat).cloned())
    }
}

impl EmbeddedStore {
    async fn commit_lease(
        &self,
        mut admission: tokio::sync::MutexGuard<'_, Admission>,
        lease: Lease,
        acquired: bool,
        now: Timestamp,
    ) -> Result<Lease, StoreError> {
        let commit = lease_commit(&lease, acquired, now);
        let result = self.append(commit, Class::Shrink).await?;
        if let (Seat::Partition(partition), true) = (lease.seat, acquired) {
            admission.batches[usize::from(partition.get())] = None;
        }
        admission.seats.insert(lease.seat, lease.clone());
        drop(admission);
        // If this fails, the store is broken, and nothing that was admitted after it counts either.
        result.await.map_err(|_| journal_gone())??;
        Ok(lease)
    }
}
