//! The stores that a broker can run on: a closed set, so it is an enum and nothing behind it is generic.
//! Commits are timed here, for all of them.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use punctual_core::{
    BrokerId, DeadLetter, Epoch, FireId, FireRecord, Lease, Namespace, PartitionId, Seat, Task,
    TaskId, TaskKey, Timestamp,
};
use punctual_store::{
    Batch, Counts, Filter, Head, LeaseStore, MemoryStore, Page, Position, Retention, StoreError,
    Swept, TaskStore,
};
use punctual_store_embedded::EmbeddedStore;
use punctual_store_redis::RedisStore;

use crate::clock::SystemClock;
use crate::telemetry::{StoreCall, Telemetry};

/// Where tasks are kept.
#[derive(Debug)]
pub struct Store {
    kind: Kind,
    /// Who is told how long commits take, once there is somebody.
    meter: OnceLock<Meter>,
}

#[derive(Debug)]
enum Kind {
    /// On this machine's disk.
    Embedded(EmbeddedStore),
    /// In a Redis, which several brokers share.
    Redis(Arc<RedisStore>),
    /// As long as the process lives: for tests and trials.
    Memory(MemoryStore),
}

#[derive(Debug)]
struct Meter {
    telemetry: Telemetry,
    clock: Arc<SystemClock>,
}

impl Store {
    /// On this machine's disk.
    #[must_use]
    pub const fn embedded(store: EmbeddedStore) -> Self {
        Self { kind: Kind::Embedded(store), meter: OnceLock::new() }
    }

    /// In a Redis, which several brokers share.
    #[must_use]
    pub fn redis(store: RedisStore) -> Self {
        Self { kind: Kind::Redis(Arc::new(store)), meter: OnceLock::new() }
    }

    /// What several brokers share, if they do.
    pub(crate) fn shared(&self) -> Option<Arc<RedisStore>> {
        match &self.kind {
            Kind::Redis(store) => Some(Arc::clone(store)),
            Kind::Embedded(_) | Kind::Memory(_) => None,
        }
    }

    /// As long as the process lives: for tests and trials.
    #[must_use]
    pub const fn memory(store: MemoryStore) -> Self {
        Self { kind: Kind::Memory(store), meter: OnceLock::new() }
    }

    /// Tells about commits from here on.
    pub(crate) fn tell(&self, telemetry: Telemetry, clock: Arc<SystemClock>) {
        let _ = self.meter.set(Meter { telemetry, clock });
    }

    /// What the shared store has lost is told as well, when somebody looks.
    pub(crate) fn tell_rewinds(&self) {
        if let (Kind::Redis(store), Some(meter)) = (&self.kind, self.meter.get()) {
            meter.telemetry.rewound(store.rewinds());
        }
    }

    fn reading(&self) -> Option<Duration> {
        self.meter.get().map(|meter| meter.clock.reading())
    }

    /// Tells how long a shared store took. Out: the same.
    fn answered(&self, call: StoreCall, started: Option<Duration>) -> Option<Duration> {
        let meter = self.meter.get()?;
        let took = meter.clock.reading().saturating_sub(started?);
        if matches!(self.kind, Kind::Redis(_)) {
            meter.telemetry.store_call(call, took);
        }
        Some(took)
    }

    /// Leaves it so that the next start has nothing to replay.
    pub async fn close(self) -> Result<(), StoreError> {
        match self.kind {
            Kind::Embedded(store) => store.close().await,
            Kind::Redis(_) | Kind::Memory(_) => Ok(()),
        }
    }
}

/// Asks whichever store it is.
macro_rules! ask {
    ($self:ident, $store:ident => $call:expr) => {
        match &$self.kind {
            Kind::Embedded($store) => $call,
            Kind::Redis($store) => $call,
            Kind::Memory($store) => $call,
        }
    };
}

impl TaskStore for Store {
    async fn apply(
        &self,
        partition: PartitionId,
        epoch: Epoch,
        batch: Batch,
    ) -> Result<(), StoreError> {
        let changes = batch.changes.len();
        let started = self.reading();
        let applied = ask!(self, store => store.apply(partition, epoch, batch).await);
        let took = self.answered(StoreCall::apply, started);
        if let (Some(meter), Some(took), Ok(())) = (self.meter.get(), took, &applied) {
            meter.telemetry.commit(changes, took);
        }
        applied
    }

    async fn load(
        &self,
        partition: PartitionId,
        after: Position,
        until: Timestamp,
        limit: usize,
    ) -> Result<Vec<Task>, StoreError> {
        let started = self.reading();
        let answered = ask!(self, store => store.load(partition, after, until, limit).await);
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
        let answered = ask!(self, store => store.find(partition, namespace, keys).await);
        self.answered(StoreCall::find, started);
        answered
    }

    async fn get(
        &self,
        partition: PartitionId,
        ids: &[TaskId],
    ) -> Result<Vec<Option<Task>>, StoreError> {
        let started = self.reading();
        let answered = ask!(self, store => store.get(partition, ids).await);
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
        ask!(self, store => store.list(partition, filter, after, limit).await)
    }

    async fn dead(
        &self,
        partition: PartitionId,
        namespace: &Namespace,
        after: Option<FireId>,
        limit: usize,
    ) -> Result<Page<DeadLetter, FireId>, StoreError> {
        ask!(self, store => store.dead(partition, namespace, after, limit).await)
    }

    async fn dead_letter(
        &self,
        partition: PartitionId,
        fire_id: FireId,
    ) -> Result<Option<DeadLetter>, StoreError> {
        ask!(self, store => store.dead_letter(partition, fire_id).await)
    }

    async fn history(
        &self,
        partition: PartitionId,
        id: TaskId,
        limit: usize,
    ) -> Result<Vec<FireRecord>, StoreError> {
        ask!(self, store => store.history(partition, id, limit).await)
    }

    async fn counts(
        &self,
        partition: PartitionId,
        namespace: &Namespace,
    ) -> Result<Counts, StoreError> {
        ask!(self, store => store.counts(partition, namespace).await)
    }

    async fn sweep(
        &self,
        partition: PartitionId,
        epoch: Epoch,
        retention: Retention,
        now: Timestamp,
    ) -> Result<Swept, StoreError> {
        let started = self.reading();
        let answered = ask!(self, store => store.sweep(partition, epoch, retention, now).await);
        self.answered(StoreCall::sweep, started);
        answered
    }
}

impl LeaseStore for Store {
    async fn acquire(
        &self,
        seat: Seat,
        broker: &BrokerId,
        ttl: Duration,
        now: Timestamp,
    ) -> Result<Lease, StoreError> {
        ask!(self, store => store.acquire(seat, broker, ttl, now).await)
    }

    async fn renew(
        &self,
        lease: &Lease,
        ttl: Duration,
        now: Timestamp,
    ) -> Result<Lease, StoreError> {
        ask!(self, store => store.renew(lease, ttl, now).await)
    }

    async fn release(&self, lease: &Lease) -> Result<(), StoreError> {
        ask!(self, store => store.release(lease).await)
    }

    async fn holder(&self, seat: Seat) -> Result<Option<Lease>, StoreError> {
        ask!(self, store => store.holder(seat).await)
    }
}
