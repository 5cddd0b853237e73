//! The store of a broker: an [`AnyStore`] whose calls are timed for telemetry.
//!
//! Commits are measured for every kind of store, other calls for shared stores only, where a call
//! leaves the machine. Nothing is measured before [`MeteredStore::tell`] was called.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use punctual_core::{
    BrokerId, Clock as _, DeadLetter, DeadReason, Epoch, FireId, FireRecord, Lease, Namespace,
    PartitionId, Seat, Task, TaskId, TaskKey, TaskState, Timestamp,
};
use punctual_store::{
    Batch, Change, CountedGroup, CountedNamespace, Counts, DueCounts, DueSteps, Filter, FireFilter,
    FirePosition, Head, LeaseStore, Page, Position, Retention, StoreError, Swept, TaskStore,
};
use punctual_store_any::{AnyStore, SharedStore};

use crate::clock::SystemClock;
use crate::telemetry::{StoreCall, Telemetry};

pub(crate) use self::MeteredStore as Store;

/// Where tasks are kept, with its calls timed.
#[derive(Debug)]
pub struct MeteredStore {
    store: AnyStore,
    /// Set once, when the broker has telemetry and a clock.
    meter: OnceLock<Meter>,
    /// Whether reads and writes of tasks panic.
    #[cfg(test)]
    pub(crate) panics: std::sync::atomic::AtomicBool,
}

#[derive(Debug)]
struct Meter {
    telemetry: Telemetry,
    clock: Arc<SystemClock>,
}

impl MeteredStore {
    /// Wraps a store; nothing is measured yet.
    #[must_use]
    pub const fn new(store: AnyStore) -> Self {
        Self {
            store,
            meter: OnceLock::new(),
            #[cfg(test)]
            panics: std::sync::atomic::AtomicBool::new(false),
        }
    }

    /// The store as several brokers share it.
    pub(crate) fn shared(&self) -> Option<SharedStore> {
        self.store.shared()
    }

    /// The name of the cluster, if several brokers share the store.
    pub(crate) fn cluster(&self) -> Option<&str> {
        self.store.cluster()
    }

    /// The kind of the store, as answers name it.
    pub(crate) fn kind(&self) -> &'static str {
        self.store.kind()
    }

    /// Reports the calls that follow to `telemetry`.
    pub(crate) fn tell(&self, telemetry: Telemetry, clock: Arc<SystemClock>) {
        let _ = self.meter.set(Meter { telemetry, clock });
    }

    /// Reports how often a shared store has lost batches that it had acknowledged, and how many of
    /// its values are damaged.
    pub(crate) fn tell_losses(&self) {
        if let (Some(store), Some(meter)) = (self.store.shared(), self.meter.get()) {
            meter.telemetry.rewound(store.rewinds());
            meter.telemetry.damaged(store.damaged_values());
        }
    }

    /// The memory store inside.
    #[cfg(test)]
    pub(crate) fn memory(&self) -> &punctual_store::MemoryStore {
        match &self.store {
            AnyStore::Memory(store) => store,
            other => panic!("not a memory store: {other:?}"),
        }
    }

    fn reading(&self) -> Option<Duration> {
        #[cfg(test)]
        assert!(!self.panics.load(std::sync::atomic::Ordering::SeqCst), "the store panics");
        self.meter.get().map(|meter| meter.clock.reading())
    }

    /// Reports how long a call of a shared store took, and returns that.
    fn answered(&self, call: StoreCall, started: Option<Duration>) -> Option<Duration> {
        let meter = self.meter.get()?;
        let took = meter.clock.reading().saturating_sub(started?);
        if self.store.is_shared() {
            meter.telemetry.store_call(call, took);
        }
        Some(took)
    }

    /// Awaits a commit, and reports how long it took and which fires died with it.
    async fn metered_commit(
        &self,
        batch: CommittedBatch,
        commit: impl Future<Output = Result<(), StoreError>>,
    ) -> Result<(), StoreError> {
        let started = self.reading();
        let applied = commit.await;
        let took = self.answered(StoreCall::apply, started);
        if let (Some(meter), Some(took), Ok(())) = (self.meter.get(), took, &applied) {
            meter.telemetry.commit(batch.changes, took);
            let now = meter.clock.now();
            batch.dead.iter().for_each(|namespace| meter.telemetry.dead_letter(namespace, now));
        }
        applied
    }

    /// Closes the store. After that the next start of an embedded store has nothing to replay.
    pub async fn close(self) -> Result<(), StoreError> {
        self.store.close().await
    }
}

/// What is counted of a batch once it is durable.
struct CommittedBatch {
    changes: usize,
    /// The namespace of each fire that ends as a dead letter.
    dead: Vec<Namespace>,
}

impl CommittedBatch {
    fn of(batch: &Batch) -> Self {
        let dead = batch.changes.iter().filter_map(dead_letter_of).collect();
        Self { changes: batch.changes.len(), dead }
    }
}

/// The namespace of a fire that ends as a dead letter. The claim of an at-most-once fire is not its
/// end: it is written before the fire is sent, while the task is scheduled.
fn dead_letter_of(change: &Arc<Change>) -> Option<Namespace> {
    let Change::Dead { letter, was, .. } = &**change else { return None };
    let is_living = matches!(was.state, TaskState::Scheduled | TaskState::Paused);
    let is_claim = letter.reason == DeadReason::Unknown && is_living;
    (!is_claim).then(|| letter.task.definition.namespace.clone())
}

impl TaskStore for MeteredStore {
    async fn apply(
        &self,
        partition: PartitionId,
        epoch: Epoch,
        batch: Batch,
    ) -> Result<(), StoreError> {
        let committed = CommittedBatch::of(&batch);
        self.metered_commit(committed, self.store.apply(partition, epoch, batch)).await
    }

    async fn apply_here(
        &self,
        partition: PartitionId,
        epoch: Epoch,
        batch: Batch,
        spare: Duration,
    ) -> Result<(), StoreError> {
        let committed = CommittedBatch::of(&batch);
        self.metered_commit(committed, self.store.apply_here(partition, epoch, batch, spare)).await
    }

    async fn load(
        &self,
        partition: PartitionId,
        after: Position,
        until: Timestamp,
        limit: usize,
    ) -> Result<Vec<Task>, StoreError> {
        let started = self.reading();
        let answered = self.store.load(partition, after, until, limit).await;
        self.answered(StoreCall::load, started);
        answered
    }

    async fn find(
        &self,
        partition: PartitionId,
        namespace: &Namespace,
        keys: &[TaskKey],
    ) -> Result<Vec<Option<Head>>, StoreError> {
        let started = self.reading();
        let answered = self.store.find(partition, namespace, keys).await;
        self.answered(StoreCall::find, started);
        answered
    }

    async fn get(
        &self,
        partition: PartitionId,
        ids: &[TaskId],
    ) -> Result<Vec<Option<Task>>, StoreError> {
        let started = self.reading();
        let answered = self.store.get(partition, ids).await;
        self.answered(StoreCall::get, started);
        answered
    }

    async fn list(
        &self,
        partition: PartitionId,
        filter: &Filter,
        after: Position,
        limit: usize,
    ) -> Result<Page<Task, Position>, StoreError> {
        self.store.list(partition, filter, after, limit).await
    }

    async fn dead(
        &self,
        partition: PartitionId,
        namespace: &Namespace,
        after: Option<FireId>,
        limit: usize,
    ) -> Result<Page<DeadLetter, FireId>, StoreError> {
        self.store.dead(partition, namespace, after, limit).await
    }

    async fn dead_letters(
        &self,
        partition: PartitionId,
        fire_ids: &[FireId],
    ) -> Result<Vec<Option<DeadLetter>>, StoreError> {
        self.store.dead_letters(partition, fire_ids).await
    }

    async fn history(
        &self,
        partition: PartitionId,
        id: TaskId,
        limit: usize,
    ) -> Result<Vec<FireRecord>, StoreError> {
        self.store.history(partition, id, limit).await
    }

    async fn fires(
        &self,
        partition: PartitionId,
        filter: &FireFilter,
        after: Option<FirePosition>,
        limit: usize,
    ) -> Result<Page<FireRecord, FirePosition>, StoreError> {
        self.store.fires(partition, filter, after, limit).await
    }

    async fn last_fires(
        &self,
        partition: PartitionId,
        namespace: &Namespace,
        keys: &[TaskKey],
    ) -> Result<Vec<Option<FireRecord>>, StoreError> {
        self.store.last_fires(partition, namespace, keys).await
    }

    async fn counts(
        &self,
        partition: PartitionId,
        namespace: &Namespace,
    ) -> Result<Counts, StoreError> {
        self.store.counts(partition, namespace).await
    }

    async fn due_counts(
        &self,
        partition: PartitionId,
        namespace: &Namespace,
        steps: &DueSteps,
    ) -> Result<DueCounts, StoreError> {
        self.store.due_counts(partition, namespace, steps).await
    }

    async fn letter_groups(
        &self,
        partition: PartitionId,
        namespace: &Namespace,
    ) -> Result<Vec<CountedGroup>, StoreError> {
        self.store.letter_groups(partition, namespace).await
    }

    async fn namespaces(
        &self,
        partition: PartitionId,
        after: Option<&Namespace>,
        limit: usize,
    ) -> Result<Page<CountedNamespace, Namespace>, StoreError> {
        self.store.namespaces(partition, after, limit).await
    }

    async fn sweep(
        &self,
        partition: PartitionId,
        epoch: Epoch,
        retention: Retention,
        now: Timestamp,
    ) -> Result<Swept, StoreError> {
        let started = self.reading();
        let answered = self.store.sweep(partition, epoch, retention, now).await;
        self.answered(StoreCall::sweep, started);
        answered
    }
}

impl LeaseStore for MeteredStore {
    async fn acquire(
        &self,
        seat: Seat,
        broker: &BrokerId,
        ttl: Duration,
        now: Timestamp,
    ) -> Result<Lease, StoreError> {
        self.store.acquire(seat, broker, ttl, now).await
    }

    async fn renew(
        &self,
        lease: &Lease,
        ttl: Duration,
        now: Timestamp,
    ) -> Result<Lease, StoreError> {
        self.store.renew(lease, ttl, now).await
    }

    async fn release(&self, lease: &Lease) -> Result<(), StoreError> {
        self.store.release(lease).await
    }

    async fn holder(&self, seat: Seat) -> Result<Option<Lease>, StoreError> {
        self.store.holder(seat).await
    }
}
