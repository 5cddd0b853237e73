//! The memory store: the reference implementation of all three contracts.
//!
//! Other stores are compared with it (`conformance/model`), and a development broker can use it. It
//! keeps everything as long as the process lives. One lock protects everything, so a batch is
//! visible as a whole or not at all; the lock is never held across an await.
//!
//! Time is the `now` of the callers, or a clock of its own that a test moves. What a change does is
//! in `memory/partition`, the records of ended fires are in `memory/history`, and the members are
//! in `memory/membership`.

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
use crate::change::{Batch, BatchNo, RepairNo};
use crate::counts::{CountedNamespace, Counts};
use crate::due::{DueCounts, DueSteps};
use crate::error::StoreError;
use crate::lease_store::LeaseStore;
use crate::letter_groups::CountedGroup;
use crate::query::{Filter, FireFilter, FirePosition, Head, Page, Position, Retention, Swept};
use crate::task_store::TaskStore;

/// A store that keeps everything in memory, until the process ends.
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

/// The last lease of a seat, and when it expires by the clock of the store.
#[derive(Debug)]
struct StoredLease {
    lease: Lease,
    expires_at: Timestamp,
}

/// The source of time.
#[derive(Debug, Clone, Copy)]
enum StoreTime {
    /// The callers' clocks; this is the latest time that a caller passed.
    Callers(Timestamp),
    /// The store has its own clock, like Redis. It stops until a test moves it.
    Own(Timestamp),
}

impl StoreTime {
    /// Returns the time of a call that was made at `now`.
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

/// A partition, and the number and the repair of the last batch of its current owner.
#[derive(Debug)]
struct OwnedPartition {
    partition: MemoryPartition,
    last: Option<BatchNo>,
    repair: RepairNo,
}

impl Default for OwnedPartition {
    fn default() -> Self {
        Self { partition: MemoryPartition::default(), last: None, repair: RepairNo::NONE }
    }
}

impl MemoryStore {
    /// Creates an empty store.
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

    /// Gives the store its own clock, set to `now`. From then on leases and heartbeats expire by
    /// this clock, as they do by the clock of Redis. Without it, heartbeats, which carry no time,
    /// expire by the time of the last call about a lease: good enough for one broker, too coarse
    /// for several.
    pub fn set_time(&self, now: Timestamp) -> Result<(), StoreError> {
        self.state()?.time = StoreTime::Own(now);
        Ok(())
    }

    /// Moves the clock of the store forward. A store without its own clock gets one, which starts
    /// at the latest time that a caller passed.
    pub fn pass(&self, time: Duration) -> Result<(), StoreError> {
        let mut state = self.state()?;
        state.time = StoreTime::Own(state.time.latest().after(time));
        Ok(())
    }

    /// Locks the state. After a panic under the lock half a batch may have been made, and there is
    /// nothing durable to restore it from.
    fn state(&self) -> Result<MutexGuard<'_, MemoryState>, StoreError> {
        self.state.lock().map_err(|_| {
            let why = "a change panicked, so a batch may be incomplete; restart the broker";
            StoreError::Broken(why.to_owned())
        })
    }
}

impl Default for MemoryStore {
    /// Creates an empty store with one partition.
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

    /// Checks that a write comes from the current owner.
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
        if batch.repair < owned.repair {
            return Err(StoreError::Fenced { partition, ours: epoch, current: epoch });
        }
        if owned.last == Some(batch.number) {
            owned.repair = batch.repair;
            return Ok(());
        }
        let expected = owned.last.map_or(BatchNo::FIRST, BatchNo::next);
        if batch.number != expected {
            return Err(StoreError::Gap { partition, expected, given: batch.number });
        }
        owned.repair = batch.repair;
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

    async fn dead_letters(
        &self,
        partition: PartitionId,
        fire_ids: &[FireId],
    ) -> Result<Vec<Option<DeadLetter>>, StoreError> {
        let state = self.state()?;
        let partition = state.partition(partition)?;
        Ok(fire_ids.iter().map(|fire_id| partition.letter(*fire_id).cloned()).collect())
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

    async fn fires(
        &self,
        partition: PartitionId,
        filter: &FireFilter,
        after: Option<FirePosition>,
        limit: usize,
    ) -> Result<Page<FireRecord, FirePosition>, StoreError> {
        let state = self.state()?;
        state.partition(partition)?;
        Ok(state.history.fires(partition, filter, after, limit))
    }

    async fn last_fires(
        &self,
        partition: PartitionId,
        namespace: &Namespace,
        keys: &[TaskKey],
    ) -> Result<Vec<Option<FireRecord>>, StoreError> {
        let state = self.state()?;
        state.partition(partition)?;
        let last = |key| state.history.last_of(partition, namespace, key);
        Ok(keys.iter().map(last).collect())
    }

    async fn counts(
        &self,
        partition: PartitionId,
        namespace: &Namespace,
    ) -> Result<Counts, StoreError> {
        Ok(self.state()?.partition(partition)?.counts(namespace))
    }

    async fn due_counts(
        &self,
        partition: PartitionId,
        namespace: &Namespace,
        steps: &DueSteps,
    ) -> Result<DueCounts, StoreError> {
        let tasks = self.state()?.partition(partition)?.due_counts(namespace, steps);
        Ok(DueCounts { tasks, until: None })
    }

    async fn letter_groups(
        &self,
        partition: PartitionId,
        namespace: &Namespace,
    ) -> Result<Vec<CountedGroup>, StoreError> {
        Ok(self.state()?.partition(partition)?.letter_groups(namespace))
    }

    async fn namespaces(
        &self,
        partition: PartitionId,
        after: Option<&Namespace>,
        limit: usize,
    ) -> Result<Page<CountedNamespace, Namespace>, StoreError> {
        Ok(self.state()?.partition(partition)?.namespaces(after, limit))
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
        let held = |last: &StoredLease| last.lease.broker != *broker && time < last.expires_at;
        if state.seats.get(&seat).is_some_and(held) {
            return Err(StoreError::Held { seat });
        }
        let epoch = state.epoch(seat).next();
        let epoch =
            epoch.ok_or_else(|| StoreError::Broken(format!("the epochs of {seat} are used up")))?;
        if let Seat::Partition(partition) = seat {
            let owned = state.owned(partition)?;
            (owned.last, owned.repair) = (None, RepairNo::NONE);
        }
        let lease = Lease { seat, broker: broker.clone(), epoch, until: now.after(ttl) };
        state.seats.insert(seat, StoredLease { lease: lease.clone(), expires_at: time.after(ttl) });
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
                last.expires_at = time.after(ttl);
                Ok(last.lease.clone())
            }
            _ => Err(StoreError::Held { seat }),
        }
    }

    async fn release(&self, lease: &Lease) -> Result<(), StoreError> {
        match self.state()?.seats.get_mut(&lease.seat) {
            Some(last) if last.lease.epoch == lease.epoch => {
                last.lease.until = Timestamp::EPOCH;
                last.expires_at = Timestamp::EPOCH;
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
    fn every_method_refuses_a_partition_that_the_store_does_not_have() {
        run(async {
            let store = MemoryStore::default();
            let outside = partition(1);
            let batch = Batch::new(BatchNo::FIRST, Vec::new());
            let seat = Seat::Partition(outside);
            let (broker, retention) = (broker("a:1"), Retention::default());
            for error in [
                store.acquire(seat, &broker, TTL, NOW).await.map(drop),
                store.apply(outside, Epoch::NONE, batch).await,
                store.counts(outside, &shop()).await.map(drop),
                store.namespaces(outside, None, 1).await.map(drop),
                store.letter_groups(outside, &shop()).await.map(drop),
                store.get(outside, &[]).await.map(drop),
                store.sweep(outside, Epoch::NONE, retention, NOW).await.map(drop),
            ] {
                assert!(matches!(error, Err(StoreError::Outside { .. })));
            }
            assert_eq!(store.holder(seat).await.unwrap(), None);
        });
    }

    #[test]
    fn a_store_with_a_poisoned_lock_returns_broken() {
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
