//! The store itself: an enum over the kinds, which implements the contracts by passing calls on.

use std::sync::Arc;
use std::time::Duration;

use punctual_core::{
    BrokerId, DeadLetter, Epoch, FireId, FireRecord, Lease, Namespace, PartitionId, Seat, Task,
    TaskId, TaskKey, Timestamp,
};
use punctual_store::{
    Batch, CountedGroup, CountedNamespace, Counts, DueCounts, DueSteps, Filter, FireFilter,
    FirePosition, Head, LeaseStore, MemoryStore, Page, Position, Retention, StoreError, Swept,
    TaskStore,
};
use punctual_store_embedded::EmbeddedStore;
use punctual_store_redis::RedisStore;
use punctual_store_sql::{MysqlStore, PostgresStore};

use crate::shared_store::SharedStore;

/// A store of any kind.
#[derive(Debug)]
pub enum AnyStore {
    /// Keeps tasks as long as the process lives: for tests and trials.
    Memory(MemoryStore),
    /// Keeps tasks on this machine's disk.
    Embedded(EmbeddedStore),
    /// Keeps tasks in Redis, which several brokers share.
    Redis(Arc<RedisStore>),
    /// Keeps tasks in PostgreSQL, which several brokers share.
    Postgres(Arc<PostgresStore>),
    /// Keeps tasks in MySQL or MariaDB, which several brokers share.
    Mysql(Arc<MysqlStore>),
}

impl AnyStore {
    /// The names of all kinds.
    pub const KINDS: [&str; 5] = ["memory", "embedded", "redis", "postgres", "mysql"];

    /// The name of its kind.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        let [memory, embedded, redis, postgres, mysql] = Self::KINDS;
        match self {
            Self::Memory(_) => memory,
            Self::Embedded(_) => embedded,
            Self::Redis(_) => redis,
            Self::Postgres(_) => postgres,
            Self::Mysql(_) => mysql,
        }
    }

    /// The store as several brokers share it, if it is of such a kind.
    #[must_use]
    pub fn shared(&self) -> Option<SharedStore> {
        match self {
            Self::Redis(store) => Some(SharedStore::Redis(Arc::clone(store))),
            Self::Postgres(store) => Some(SharedStore::Postgres(Arc::clone(store))),
            Self::Mysql(store) => Some(SharedStore::Mysql(Arc::clone(store))),
            Self::Memory(_) | Self::Embedded(_) => None,
        }
    }

    /// The name of the cluster, if several brokers share the store.
    #[must_use]
    pub fn cluster(&self) -> Option<&str> {
        match self {
            Self::Redis(store) => Some(store.cluster()),
            Self::Postgres(store) => Some(store.cluster()),
            Self::Mysql(store) => Some(store.cluster()),
            Self::Memory(_) | Self::Embedded(_) => None,
        }
    }

    /// Whether other processes may have the store open at the same time.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.shared().is_some()
    }

    /// Closes the store. After that the next start of an embedded store has nothing to replay.
    pub async fn close(self) -> Result<(), StoreError> {
        match self {
            Self::Embedded(store) => store.close().await,
            Self::Redis(_) | Self::Postgres(_) | Self::Mysql(_) | Self::Memory(_) => Ok(()),
        }
    }

    /// Makes the next epoch of a partition larger than this one, if the store can skip epochs.
    /// Only shared stores can; the others count up one epoch per [`LeaseStore::acquire`].
    pub fn remember_epoch(&self, partition: PartitionId, epoch: Epoch) {
        if let Some(store) = self.shared() {
            store.remember_epoch(Seat::Partition(partition), epoch);
        }
    }

    /// Lists the namespaces that have or had tasks in a partition. A memory store keeps no such
    /// list and returns an error.
    pub async fn all_namespaces(
        &self,
        partition: PartitionId,
    ) -> Result<Vec<Namespace>, StoreError> {
        match self {
            Self::Embedded(store) => store.all_namespaces(partition),
            Self::Redis(store) => store.all_namespaces(partition).await,
            Self::Postgres(store) => store.all_namespaces(partition).await,
            Self::Mysql(store) => store.all_namespaces(partition).await,
            Self::Memory(_) => {
                Err(StoreError::Broken("a memory store does not list its namespaces".to_owned()))
            }
        }
    }
}

/// Calls the store of whichever kind it is.
macro_rules! call {
    ($self:ident, $store:ident => $call:expr) => {
        match $self {
            Self::Memory($store) => $call,
            Self::Embedded($store) => $call,
            Self::Redis($store) => $call,
            Self::Postgres($store) => $call,
            Self::Mysql($store) => $call,
        }
    };
}

impl TaskStore for AnyStore {
    async fn apply(
        &self,
        partition: PartitionId,
        epoch: Epoch,
        batch: Batch,
    ) -> Result<(), StoreError> {
        call!(self, store => store.apply(partition, epoch, batch).await)
    }

    async fn apply_here(
        &self,
        partition: PartitionId,
        epoch: Epoch,
        batch: Batch,
        spare: Duration,
    ) -> Result<(), StoreError> {
        call!(self, store => store.apply_here(partition, epoch, batch, spare).await)
    }

    async fn load(
        &self,
        partition: PartitionId,
        after: Position,
        until: Timestamp,
        limit: usize,
    ) -> Result<Vec<Task>, StoreError> {
        call!(self, store => store.load(partition, after, until, limit).await)
    }

    async fn find(
        &self,
        partition: PartitionId,
        namespace: &Namespace,
        keys: &[TaskKey],
    ) -> Result<Vec<Option<Head>>, StoreError> {
        call!(self, store => store.find(partition, namespace, keys).await)
    }

    async fn get(
        &self,
        partition: PartitionId,
        ids: &[TaskId],
    ) -> Result<Vec<Option<Task>>, StoreError> {
        call!(self, store => store.get(partition, ids).await)
    }

    async fn list(
        &self,
        partition: PartitionId,
        filter: &Filter,
        after: Position,
        limit: usize,
    ) -> Result<Page<Task, Position>, StoreError> {
        call!(self, store => store.list(partition, filter, after, limit).await)
    }

    async fn dead(
        &self,
        partition: PartitionId,
        namespace: &Namespace,
        after: Option<FireId>,
        limit: usize,
    ) -> Result<Page<DeadLetter, FireId>, StoreError> {
        call!(self, store => store.dead(partition, namespace, after, limit).await)
    }

    async fn dead_letters(
        &self,
        partition: PartitionId,
        fire_ids: &[FireId],
    ) -> Result<Vec<Option<DeadLetter>>, StoreError> {
        call!(self, store => store.dead_letters(partition, fire_ids).await)
    }

    async fn history(
        &self,
        partition: PartitionId,
        id: TaskId,
        limit: usize,
    ) -> Result<Vec<FireRecord>, StoreError> {
        call!(self, store => store.history(partition, id, limit).await)
    }

    async fn fires(
        &self,
        partition: PartitionId,
        filter: &FireFilter,
        after: Option<FirePosition>,
        limit: usize,
    ) -> Result<Page<FireRecord, FirePosition>, StoreError> {
        call!(self, store => store.fires(partition, filter, after, limit).await)
    }

    async fn last_fires(
        &self,
        partition: PartitionId,
        namespace: &Namespace,
        keys: &[TaskKey],
    ) -> Result<Vec<Option<FireRecord>>, StoreError> {
        call!(self, store => store.last_fires(partition, namespace, keys).await)
    }

    async fn counts(
        &self,
        partition: PartitionId,
        namespace: &Namespace,
    ) -> Result<Counts, StoreError> {
        call!(self, store => store.counts(partition, namespace).await)
    }

    async fn due_counts(
        &self,
        partition: PartitionId,
        namespace: &Namespace,
        steps: &DueSteps,
    ) -> Result<DueCounts, StoreError> {
        call!(self, store => store.due_counts(partition, namespace, steps).await)
    }

    async fn letter_groups(
        &self,
        partition: PartitionId,
        namespace: &Namespace,
    ) -> Result<Vec<CountedGroup>, StoreError> {
        call!(self, store => store.letter_groups(partition, namespace).await)
    }

    async fn namespaces(
        &self,
        partition: PartitionId,
        after: Option<&Namespace>,
        limit: usize,
    ) -> Result<Page<CountedNamespace, Namespace>, StoreError> {
        call!(self, store => store.namespaces(partition, after, limit).await)
    }

    async fn sweep(
        &self,
        partition: PartitionId,
        epoch: Epoch,
        retention: Retention,
        now: Timestamp,
    ) -> Result<Swept, StoreError> {
        call!(self, store => store.sweep(partition, epoch, retention, now).await)
    }
}

impl LeaseStore for AnyStore {
    async fn acquire(
        &self,
        seat: Seat,
        broker: &BrokerId,
        ttl: Duration,
        now: Timestamp,
    ) -> Result<Lease, StoreError> {
        call!(self, store => store.acquire(seat, broker, ttl, now).await)
    }

    async fn renew(
        &self,
        lease: &Lease,
        ttl: Duration,
        now: Timestamp,
    ) -> Result<Lease, StoreError> {
        call!(self, store => store.renew(lease, ttl, now).await)
    }

    async fn release(&self, lease: &Lease) -> Result<(), StoreError> {
        call!(self, store => store.release(lease).await)
    }

    async fn holder(&self, seat: Seat) -> Result<Option<Lease>, StoreError> {
        call!(self, store => store.holder(seat).await)
    }
}
