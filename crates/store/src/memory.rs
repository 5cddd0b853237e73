//! The memory store: the reference that keeps every clause of both contracts, for the life of the process.
//!
//! In: batches and leases. Out: what every other store must answer too; the `model` of the conformance
//! suite compares them with this one. It is also the store of a development broker.
//! Invariant: one lock around everything, so a batch is seen whole or not at all; never held over an await.
//! Time is what it is told: the `now` of whoever asks about a lease, or a clock of its own that a test moves.
//! Not here: durability. What one change does stands in `memory/partition`, what is kept of
//! the past in `memory/history`, who is there in `memory/membership`.

mod history;
mod membership;
mod partition;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use punctual_core::{
    BrokerId, DeadLetter, Epoch, FireId, FireRecord, Lease, Namespace, PartitionId, Partitions,
    Seat, Task, TaskId, TaskKey, Timestamp,
};

use self::history::MemoryHistory;
use self::membership::MemberTable;
use self::partition::MemoryPartition;
use crate::change::{Batch, BatchNo};
use crate::counts::Counts;
use crate::error::StoreError;
use crate::lease_store::LeaseStore;
use crate::query::{Filter, Head, Page, Position, Retention, Swept};
use crate::task_store::TaskStore;

/// A store that forgets everything when the process ends.
#[derive(Debug)]
pub struct MemoryStore {
    state: Mutex<MemoryState>,
}

#[derive(Debug)]
struct MemoryState {
    partitions: Vec<OwnedPartition>,
    history: MemoryHistory,
    seats: BTreeMap<Seat, StoredLease>,
    members: MemberTable,
    time: StoreTime,
}

/// The last lease of a seat, and when it is over by the clock of the store.
#[derive(Debug)]
struct StoredLease {
    lease: Lease,
    over_at: Timestamp,
}

/// What time it is.
#[derive(Debug, Clone, Copy)]
enum StoreTime {
    /// The askers' time; this is the latest that one of them had.
    Callers(Timestamp),
    /// The store has a clock of its own, like Redis; it stands until it is moved.
    Own(Timestamp),
}

impl StoreTime {
    /// The time of a question that was asked at `now`.
    fn at(&mut self, now: Timestamp) -> Timestamp {
        match self {
            Self::Callers(latest) => {
                *latest = now.max(*latest);
                now
            }
            Self::Own(time) => *time,
        }
    }

    const fn latest(self) -> Timestamp {
        match self {
            Self::Callers(time) | Self::Own(time) => time,
        }
    }
}

/// A partition and the number of the batch that its present owner made last.
#[derive(Debug, Default)]
struct OwnedPartition {
    partition: MemoryPartition,
    last: Option<BatchNo>,
}

impl MemoryStore {
    /// An empty store.
    #[must_use]
    pub fn new(partitions: Partitions) -> Self {
        let state = MemoryState {
            partitions: partitions.iter().map(|_| OwnedPartition::default()).collect(),
            history: MemoryHistory::default(),
            seats: BTreeMap::new(),
            members: MemberTable::default(),
            time: StoreTime::Callers(Timestamp::EPOCH),
        };
        Self { state: Mutex::new(state) }
    }

    /// Gives the store a clock of its own that says this, until it is told again. From then on leases and heartbeats are
    /// counted by it, as a Redis counts them by its own. Without it heartbeats, which carry no time, are counted by the time of
    /// the last question about a lease: good enough for one broker, too coarse for several.
    pub fn set_time(&self, now: Timestamp) -> Result<(), StoreError> {
        self.state()?.time = StoreTime::Own(now);
        Ok(())
    }

    /// Lets time pass: the clock of the store's own is moved, or begins at what the askers had last.
    pub fn pass(&self, time: Duration) -> Result<(), StoreError> {
        let mut state = self.state()?;
        state.time = StoreTime::Own(state.time.latest().after(time));
        Ok(())
    }

    /// A panic under the lock may have left half a batch, and nothing durable to go back to.
    fn state(&self) -> Result<MutexGuard<'_, MemoryState>, StoreError> {
        self.state.lock().map_err(|_| {
            StoreError::Broken("a change of the memory store has panicked half-way".to_owned())
        })
    }
}

impl Default for MemoryStore {
    /// With one partition.
    fn default() -> Self {
        Self::new(Partitions::ONE)
    }
}

impl MemoryState {
    fn partition(&self, id: PartitionId) -> Result<&MemoryPartition, StoreError> {
        self.partitions
            .get(usize::from(id.get()))
            .map(|owned| &owned.partition)
            .ok_or(StoreError::Outside { partition: id })
    }

    fn owned(&mut self, id: PartitionId) -> Result<&mut OwnedPartition, StoreError> {
        self.partitions.get_mut(usize::from(id.get())).ok_or(StoreError::Outside { partition: id })
    }

    /// Only the present owner passes.
    fn fence(&self, partition: PartitionId, ours: Epoch) -> Result<(), StoreError> {
        self.partition(partition)?;
        let current = self.epoch(Seat::Partition(partition));
        if ours == current && current != Epoch::NONE {
            return Ok(());
        }
        Err(StoreError::Fenced { partition, ours, current })
    }

    fn epoch(&self, seat: Seat) -> Epoch {
        self.seats.get(&seat).map_or(Epoch::NONE, |last| last.lease.epoch)
    }
}

impl TaskStore for MemoryStore {
    async fn apply(
        &self,
        partition: PartitionId,
        epoch: Epoch,
        batch: Batch,
    ) -> Result<(), StoreError> {
        let mut state = self.state()?;
        state.fence(partition, epoch)?;
        let MemoryState { partitions, history, .. } = &mut *state;
        let owned = &mut partitions[usize::from(partition.get())];
        if owned.last == Some(batch.number) {
            return Ok(());
        }
        let expected = owned.last.map_or(BatchNo::FIRST, BatchNo::next);
        if batch.number != expected {
            return Err(StoreError::Gap { partition, expected, given: batch.number });
        }
        for change in batch.changes {
            if let Some(record) = owned.partition.apply(Arc::unwrap_or_clone(change)) {
                history.keep(partition, record);
            }
        }
        owned.last = Some(batch.number);
        Ok(())
    }

    async fn load(
        &self,
        partition: PartitionId,
        after: Position,
        until: Timestamp,
        limit: usize,
    ) -> Result<Vec<Task>, StoreError> {
        Ok(self.state()?.partition(partition)?.load(after, until, limit))
    }

    async fn find(
        &self,
        partition: PartitionId,
        namespace: &Namespace,
        keys: &[TaskKey],
    ) -> Result<Vec<Option<Head>>, StoreError> {
        let state = self.state()?;
        let partition = state.partition(partition)?;
        let named = |key| partition.named(namespace, key).map(Head::of);
        Ok(keys.iter().map(named).collect())
    }

    async fn get(
        &self,
        partition: PartitionId,
        ids: &[TaskId],
    ) -> Result<Vec<Option<Task>>, StoreError> {
        let state = self.state()?;
        let partition = state.partition(partition)?;
        Ok(ids.iter().map(|id| partition.task(*id).cloned()).collect())
    }

    async fn list(
        &self,
        partition: PartitionId,
        filter: &Filter,
        after: Position,
        limit: usize,
    ) -> Result<Page<Task, Position>, StoreError> {
        Ok(self.state()?.partition(partition)?.list(filter, after, limit))
    }

    async fn dead(
        &self,
        partition: PartitionId,
        namespace: &Namespace,
        after: Option<FireId>,
        limit: usize,
    ) -> Result<Page<DeadLetter, FireId>, StoreError> {
        Ok(self.state()?.partition(partition)?.dead(namespace, after, limit))
    }

    async fn dead_letter(
        &self,
        partition: PartitionId,
        fire_id: FireId,
    ) -> Result<Option<DeadLetter>, StoreError> {
        let state = self.state()?;
        Ok(state.partition(partition)?.letter(fire_id).cloned())
    }

    async fn history(
        &self,
        partition: PartitionId,
        id: TaskId,
        limit: usize,
    ) -> Result<Vec<FireRecord>, StoreError> {
        let state = self.state()?;
        state.partition(partition)?;
        Ok(state.history.of_task(partition, id, limit))
    }

    async fn counts(
        &self,
        partition: PartitionId,
        namespace: &Namespace,
    ) -> Result<Counts, StoreError> {
        Ok(self.state()?.partition(partition)?.counts(namespace))
    }

    async fn sweep(
        &self,
        partition: PartitionId,
        epoch: Epoch,
        retention: Retention,
        now: Timestamp,
    ) -> Result<Swept, StoreError> {
        let mut state = self.state()?;
        state.fence(partition, epoch)?;
        let history = state.history.sweep(partition, retention, now);
        let owned = state.owned(partition)?;
        let dead = owned.partition.sweep(retention.dead_age, now);
        Ok(Swept { history, dead })
    }
}

impl LeaseStore for MemoryStore {
    async fn acquire(
        &self,
        seat: Seat,
        broker: &BrokerId,
        ttl: Duration,
        now: Timestamp,
    ) -> Result<Lease, StoreError> {
        let mut state = self.state()?;
        let time = state.time.at(now);
        let taken = |last: &StoredLease| last.lease.broker != *broker && time < last.over_at;
        if state.seats.get(&seat).is_some_and(taken) {
            return Err(StoreError::Held { seat });
        }
        let epoch = state.epoch(seat).next();
        let epoch =
            epoch.ok_or_else(|| StoreError::Broken(format!("the epochs of {seat} are used up")))?;
        if let Seat::Partition(partition) = seat {
            state.owned(partition)?.last = None;
        }
        let lease = Lease { seat, broker: broker.clone(), epoch, until: now.after(ttl) };
        state.seats.insert(seat, StoredLease { lease: lease.clone(), over_at: time.after(ttl) });
        Ok(lease)
    }

    async fn renew(
        &self,
        lease: &Lease,
        ttl: Duration,
        now: Timestamp,
    ) -> Result<Lease, StoreError> {
        let seat = lease.seat;
        let mut state = self.state()?;
        let time = state.time.at(now);
        match state.seats.get_mut(&seat) {
            Some(last) if last.lease.epoch == lease.epoch => {
                last.lease.until = now.after(ttl);
                last.over_at = time.after(ttl);
                Ok(last.lease.clone())
            }
            _ => Err(StoreError::Held { seat }),
        }
    }

    async fn release(&self, lease: &Lease) -> Result<(), StoreError> {
        match self.state()?.seats.get_mut(&lease.seat) {
            Some(last) if last.lease.epoch == lease.epoch => {
                last.lease.until = Timestamp::EPOCH;
                last.over_at = Timestamp::EPOCH;
            }
            _ => {}
        }
        Ok(())
    }

    async fn holder(&self, seat: Seat) -> Result<Option<Lease>, StoreError> {
        Ok(self.state()?.seats.get(&seat).map(|last| last.lease.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::fixtures::{NOW, TTL, broker, partition, shop};
    use crate::conformance::run;

    #[test]
    fn a_partition_outside_is_refused_by_every_door() {
        run(async {
            let store = MemoryStore::default();
            let outside = partition(1);
            let batch = Batch { number: BatchNo::FIRST, changes: Vec::new() };
            let seat = Seat::Partition(outside);
            let (broker, retention) = (broker("a:1"), Retention::default());
            for error in [
                store.acquire(seat, &broker, TTL, NOW).await.map(drop),
                store.apply(outside, Epoch::NONE, batch).await,
                store.counts(outside, &shop()).await.map(drop),
                store.get(outside, &[]).await.map(drop),
                store.sweep(outside, Epoch::NONE, retention, NOW).await.map(drop),
            ] {
                assert!(matches!(error, Err(StoreError::Outside { .. })));
            }
            assert_eq!(store.holder(seat).await.unwrap(), None);
        });
    }

    #[test]
    fn a_store_whose_lock_was_poisoned_says_that_it_is_broken() {
        let store = MemoryStore::default();
        std::thread::scope(|scope| {
            let panics = scope.spawn(|| {
                let _state = store.state();
                panic!("half-way");
            });
            assert!(panics.join().is_err());
        });
        let broken = store.state().map(drop);
        assert!(matches!(broken, Err(StoreError::Broken(_))));
    }
}
