//! A house: one of the two kinds of store, opened without a broker.
//!
//! In: where it is. Out: what moving asks of a store. Both kinds keep the same contracts, so this only passes on.

use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use punctual_core::{
    BrokerId, DeadLetter, Epoch, FireId, FireRecord, Lease, Namespace, PartitionId, Partitions,
    Seat, Task, TaskId, TaskKey, Timestamp,
};
use punctual_store::{
    Batch, Counts, Filter, Head, LeaseStore as _, Page, Position, StoreError, TaskStore as _,
};
use punctual_store_embedded::{EmbeddedOpenError, EmbeddedOptions, EmbeddedStore};
use punctual_store_redis::RedisStore;

use super::Where;

/// How long one call of Redis may take: nobody waits for a moving house but whoever moves.
const REDIS_TIMEOUT: Duration = Duration::from_secs(10);

/// An open store.
#[derive(Debug)]
pub(super) struct House {
    store: Store,
    /// What it is, for people.
    pub(super) name: String,
    pub(super) partitions: Partitions,
    /// What the operator should know.
    pub(super) warnings: Vec<String>,
}

#[derive(Debug)]
enum Store {
    Embedded(EmbeddedStore),
    Redis(Box<RedisStore>),
}

/// Asks whichever store it is.
macro_rules! ask {
    ($house:expr, $store:ident => $asked:expr) => {
        match &$house.store {
            Store::Embedded($store) => $asked.await,
            Store::Redis($store) => $asked.await,
        }
    };
}

/// What to do where there is no store.
#[derive(Debug, Clone, Copy)]
pub(super) enum Missing {
    /// Say so.
    Refuse,
    /// Make one with so many partitions.
    Make(Partitions),
}

impl House {
    /// Opens a store that is there, or makes one. One that is there has the partitions that it has.
    pub(super) async fn open(place: &Where, missing: Missing) -> anyhow::Result<Self> {
        match &place.kind.data_dir {
            Some(dir) => Self::open_embedded(dir, missing).await,
            None => Self::open_redis(place, missing).await,
        }
    }

    async fn open_embedded(dir: &Path, missing: Missing) -> anyhow::Result<Self> {
        let folder = dir.to_owned();
        let opening = move || {
            let partitions = match (EmbeddedStore::partitions_in(&folder), missing) {
                (Err(EmbeddedOpenError::NotAStore { .. }), Missing::Make(partitions)) => partitions,
                (found, _) => found?,
            };
            let (store, _) = EmbeddedStore::open(&folder, EmbeddedOptions::new(partitions))?;
            Ok::<_, EmbeddedOpenError>((store, partitions))
        };
        let opened = tokio::task::spawn_blocking(opening).await.context("opening panicked")?;
        let (store, partitions) =
            opened.with_context(|| format!("cannot open the store in {}", dir.display()))?;
        let name = format!("the store in {}", dir.display());
        Ok(Self { store: Store::Embedded(store), name, partitions, warnings: Vec::new() })
    }

    async fn open_redis(place: &Where, missing: Missing) -> anyhow::Result<Self> {
        let cluster = &place.cluster;
        let urls = place.kind.redis.clone();
        let mut options = punctual_store_redis::RedisOptions::new(urls, cluster, Partitions::ONE);
        options.timeout = REDIS_TIMEOUT;
        if let Some(file) = &place.redis_ca {
            let pem = std::fs::read(file)
                .with_context(|| format!("cannot read certificates from {}", file.display()))?;
            options.authority_pem = Some(pem);
        }
        let cannot = || format!("cannot open the cluster {cluster} in Redis");
        let made = RedisStore::partitions_in(&options).await.with_context(cannot)?;
        options.partitions = match (made, missing) {
            (Some(made), _) => made,
            (None, Missing::Make(partitions)) => partitions,
            (None, Missing::Refuse) => anyhow::bail!("there is no cluster {cluster} in Redis"),
        };
        let partitions = options.partitions;
        let (store, warnings) = RedisStore::open(options).await.with_context(cannot)?;
        let name = format!("the cluster {cluster} in Redis");
        Ok(Self { store: Store::Redis(Box::new(store)), name, partitions, warnings })
    }

    /// Whether others may have it open at the same time.
    pub(super) fn is_shared(&self) -> bool {
        matches!(self.store, Store::Redis(_))
    }

    /// Lets go of it, with everything on disk.
    pub(super) async fn close(self) -> anyhow::Result<()> {
        match self.store {
            Store::Embedded(store) => store.close().await.context("cannot close the store"),
            Store::Redis(_) => Ok(()),
        }
    }

    /// Makes the next epoch of a partition larger than this one, where a store can be told; others count up to it.
    pub(super) fn remember_epoch(&self, partition: PartitionId, epoch: Epoch) {
        if let Store::Redis(store) = &self.store {
            store.remember_epoch(Seat::Partition(partition), epoch);
        }
    }

    pub(super) async fn namespaces(
        &self,
        partition: PartitionId,
    ) -> Result<Vec<Namespace>, StoreError> {
        match &self.store {
            Store::Embedded(store) => store.namespaces(partition),
            Store::Redis(store) => store.namespaces(partition).await,
        }
    }

    pub(super) async fn list(
        &self,
        partition: PartitionId,
        filter: &Filter,
        after: Position,
        limit: usize,
    ) -> Result<Page<Task, Position>, StoreError> {
        ask!(self, store => store.list(partition, filter, after, limit))
    }

    pub(super) async fn dead(
        &self,
        partition: PartitionId,
        namespace: &Namespace,
        after: Option<FireId>,
        limit: usize,
    ) -> Result<Page<DeadLetter, FireId>, StoreError> {
        ask!(self, store => store.dead(partition, namespace, after, limit))
    }

    pub(super) async fn dead_letter(
        &self,
        fire_id: FireId,
    ) -> Result<Option<DeadLetter>, StoreError> {
        ask!(self, store => store.dead_letter(fire_id.task.partition(), fire_id))
    }

    pub(super) async fn history(
        &self,
        id: TaskId,
        limit: usize,
    ) -> Result<Vec<FireRecord>, StoreError> {
        ask!(self, store => store.history(id.partition(), id, limit))
    }

    pub(super) async fn counts(
        &self,
        partition: PartitionId,
        namespace: &Namespace,
    ) -> Result<Counts, StoreError> {
        ask!(self, store => store.counts(partition, namespace))
    }

    pub(super) async fn get(
        &self,
        partition: PartitionId,
        ids: &[TaskId],
    ) -> Result<Vec<Option<Task>>, StoreError> {
        ask!(self, store => store.get(partition, ids))
    }

    pub(super) async fn find(
        &self,
        partition: PartitionId,
        namespace: &Namespace,
        keys: &[TaskKey],
    ) -> Result<Vec<Option<Head>>, StoreError> {
        ask!(self, store => store.find(partition, namespace, keys))
    }

    pub(super) async fn apply(
        &self,
        partition: PartitionId,
        epoch: Epoch,
        batch: Batch,
    ) -> Result<(), StoreError> {
        ask!(self, store => store.apply(partition, epoch, batch))
    }

    pub(super) async fn acquire(
        &self,
        partition: PartitionId,
        broker: &BrokerId,
        ttl: Duration,
        now: Timestamp,
    ) -> Result<Lease, StoreError> {
        ask!(self, store => store.acquire(Seat::Partition(partition), broker, ttl, now))
    }

    pub(super) async fn renew(
        &self,
        lease: &Lease,
        ttl: Duration,
        now: Timestamp,
    ) -> Result<Lease, StoreError> {
        ask!(self, store => store.renew(lease, ttl, now))
    }

    pub(super) async fn release(&self, lease: &Lease) -> Result<(), StoreError> {
        ask!(self, store => store.release(lease))
    }

    pub(super) async fn holder(&self, partition: PartitionId) -> Result<Option<Lease>, StoreError> {
        ask!(self, store => store.holder(Seat::Partition(partition)))
    }
}
