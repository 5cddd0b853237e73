//! Opens a store of any kind, or creates it.
//!
//! The caller gives the location of the store and the number of partitions that it expects. The
//! number of partitions of a store never changes: a store that exists keeps its own, or is refused.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use punctual_core::Partitions;
use punctual_store::{MemoryStore, StoreError};
use punctual_store_embedded::{EmbeddedStore, OpenReport};
use punctual_store_redis::RedisStore;
use punctual_store_sql::{SqlDatabase, SqlOpenError, SqlStore};

use crate::AnyStore;

/// Where a store is.
#[derive(Debug, Clone)]
pub enum StoreLocation {
    /// In this process. It starts empty and is gone when the process ends.
    Memory,
    /// In a directory of this machine, which one process at a time may open.
    Embedded(PathBuf),
    /// In Redis. The number of partitions in these options is replaced by [`PartitionCount`].
    Redis(punctual_store_redis::RedisOptions),
    /// In PostgreSQL. The number of partitions in these options is replaced, as for Redis.
    Postgres(punctual_store_sql::SqlStoreOptions),
    /// In MySQL or MariaDB, likewise.
    Mysql(punctual_store_sql::SqlStoreOptions),
}

/// How many partitions the caller expects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PartitionCount {
    /// As many as the store has. A store that does not exist is an error.
    Existing,
    /// As many as the store has. A store that does not exist is created with this many.
    ExistingOr(Partitions),
    /// Exactly this many. A store with another number is refused; a new one is created.
    Exactly(Partitions),
}

/// An open store, and what opening it found.
#[derive(Debug)]
pub struct OpenedStore {
    /// The store.
    pub store: AnyStore,
    /// How many partitions the store has.
    pub partitions: Partitions,
    /// What the operator should know about the server of a shared store: one sentence each.
    pub warnings: Vec<String>,
    /// What the embedded store found in its journal; `None` for the other kinds.
    pub recovered: Option<OpenReport>,
}

/// Why a store could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenStoreError {
    /// The directory is in use, is not a store, or is damaged: see the cause.
    #[error("cannot open the store in {}", dir.display())]
    Embedded {
        /// The data directory.
        dir: PathBuf,
        /// What the embedded store reported.
        source: punctual_store_embedded::EmbeddedOpenError,
    },
    /// Redis cannot be reached, or refuses: see the cause.
    #[error("cannot open the cluster {cluster} in Redis")]
    Redis {
        /// The name of the cluster in Redis.
        cluster: String,
        /// What the Redis store reported.
        source: punctual_store_redis::RedisOpenError,
    },
    /// The database cannot be reached, or refuses: see the cause.
    #[error("cannot open the cluster {cluster} in {product}")]
    Sql {
        /// The name of the cluster.
        cluster: String,
        /// PostgreSQL or MySQL.
        product: &'static str,
        /// What the store reported.
        source: punctual_store_sql::SqlOpenError,
    },
    /// There is nothing to open: check the name, or let the store be created.
    #[error("there is no cluster {cluster} in that store")]
    NoCluster {
        /// The name of the cluster.
        cluster: String,
    },
    /// A memory store has no partitions before it is created.
    #[error("a memory store cannot exist before it is opened")]
    NoMemory,
    /// The thread that opened the store panicked.
    #[error("opening the store in {} failed unexpectedly", dir.display())]
    Panicked {
        /// The data directory.
        dir: PathBuf,
    },
}

/// Opens a store. The embedded store is opened on a blocking thread: a large one takes seconds.
pub async fn open(
    location: StoreLocation,
    partitions: PartitionCount,
) -> Result<OpenedStore, OpenStoreError> {
    match location {
        StoreLocation::Memory => open_memory(partitions),
        StoreLocation::Embedded(dir) => open_embedded(dir, partitions).await,
        StoreLocation::Redis(options) => open_redis(options, partitions).await,
        StoreLocation::Postgres(options) => {
            open_sql(options, partitions, |store| AnyStore::Postgres(Arc::new(store))).await
        }
        StoreLocation::Mysql(options) => {
            open_sql(options, partitions, |store| AnyStore::Mysql(Arc::new(store))).await
        }
    }
}

fn open_memory(partitions: PartitionCount) -> Result<OpenedStore, OpenStoreError> {
    let (PartitionCount::ExistingOr(partitions) | PartitionCount::Exactly(partitions)) = partitions
    else {
        return Err(OpenStoreError::NoMemory);
    };
    let store = AnyStore::Memory(MemoryStore::new(partitions));
    Ok(OpenedStore { store, partitions, warnings: Vec::new(), recovered: None })
}

async fn open_embedded(
    dir: PathBuf,
    partitions: PartitionCount,
) -> Result<OpenedStore, OpenStoreError> {
    let folder = dir.clone();
    let opening = move || open_directory(&folder, partitions);
    let Ok(opened) = tokio::task::spawn_blocking(opening).await else {
        return Err(OpenStoreError::Panicked { dir });
    };
    opened.map_err(|source| OpenStoreError::Embedded { dir, source })
}

fn open_directory(
    dir: &Path,
    partitions: PartitionCount,
) -> Result<OpenedStore, punctual_store_embedded::EmbeddedOpenError> {
    use punctual_store_embedded::{EmbeddedOpenError, EmbeddedOptions};

    let partitions = match partitions {
        PartitionCount::Exactly(partitions) => partitions,
        PartitionCount::Existing => EmbeddedStore::partitions_in(dir)?,
        PartitionCount::ExistingOr(partitions) => match EmbeddedStore::partitions_in(dir) {
            Err(EmbeddedOpenError::NotAStore { .. }) => partitions,
            found => found?,
        },
    };
    let (store, report) = EmbeddedStore::open(dir, EmbeddedOptions::new(partitions))?;
    Ok(OpenedStore {
        store: AnyStore::Embedded(store),
        partitions,
        warnings: Vec::new(),
        recovered: Some(report),
    })
}

async fn open_redis(
    mut options: punctual_store_redis::RedisOptions,
    partitions: PartitionCount,
) -> Result<OpenedStore, OpenStoreError> {
    use punctual_store_redis::RedisOpenError;

    let cluster = options.cluster.clone();
    let failed = |source| OpenStoreError::Redis { cluster: cluster.clone(), source };
    options.partitions = match partitions {
        PartitionCount::Exactly(partitions) | PartitionCount::ExistingOr(partitions) => partitions,
        PartitionCount::Existing => {
            let found = RedisStore::partitions_in(&options).await.map_err(failed)?;
            found.ok_or_else(|| OpenStoreError::NoCluster { cluster: cluster.clone() })?
        }
    };
    let opened = match RedisStore::open(options.clone()).await {
        // Another broker may have created it a moment ago, so the answer of the server decides.
        Err(RedisOpenError::Partitions { made, .. })
            if matches!(partitions, PartitionCount::ExistingOr(_)) =>
        {
            options.partitions = read_partitions(&made).map_err(failed)?;
            RedisStore::open(options).await
        }
        opened => opened,
    };
    let (store, warnings) = opened.map_err(failed)?;
    let partitions = store.partitions();
    Ok(OpenedStore {
        store: AnyStore::Redis(Arc::new(store)),
        partitions,
        warnings,
        recovered: None,
    })
}

async fn open_sql<D: SqlDatabase>(
    mut options: punctual_store_sql::SqlStoreOptions,
    partitions: PartitionCount,
    any: impl FnOnce(SqlStore<D>) -> AnyStore,
) -> Result<OpenedStore, OpenStoreError> {
    let cluster = options.cluster.clone();
    let product = D::PRODUCT;
    let failed = |source| OpenStoreError::Sql { cluster: cluster.clone(), product, source };
    options.partitions = match partitions {
        PartitionCount::Exactly(partitions) | PartitionCount::ExistingOr(partitions) => partitions,
        PartitionCount::Existing => {
            let found = SqlStore::<D>::partitions_in(&options).await.map_err(failed)?;
            found.ok_or_else(|| OpenStoreError::NoCluster { cluster: cluster.clone() })?
        }
    };
    let opened = match SqlStore::<D>::open(options.clone()).await {
        // Another broker may have created it a moment ago, so the answer of the server decides.
        Err(SqlOpenError::Partitions { .. })
            if matches!(partitions, PartitionCount::ExistingOr(_)) =>
        {
            let found = SqlStore::<D>::partitions_in(&options).await.map_err(failed)?;
            options.partitions =
                found.ok_or_else(|| OpenStoreError::NoCluster { cluster: cluster.clone() })?;
            SqlStore::<D>::open(options).await
        }
        opened => opened,
    };
    let (store, warnings) = opened.map_err(failed)?;
    let partitions = store.partitions();
    Ok(OpenedStore { store: any(store), partitions, warnings, recovered: None })
}

fn read_partitions(made: &str) -> Result<Partitions, punctual_store_redis::RedisOpenError> {
    let count = made.parse().ok().and_then(|count| Partitions::new(count).ok());
    count.ok_or_else(|| {
        let broken = format!("the store has an unreadable number of partitions: {made:?}");
        punctual_store_redis::RedisOpenError::Store(StoreError::Broken(broken))
    })
}

#[cfg(test)]
mod tests {
    use punctual_core::{PartitionId, Seat};
    use punctual_store::LeaseStore as _;

    use super::*;

    fn four() -> Partitions {
        Partitions::new(4).unwrap()
    }

    #[tokio::test]
    async fn a_directory_keeps_its_partitions_and_refuses_another_number() {
        let dir = tempfile::tempdir().unwrap();
        let location = || StoreLocation::Embedded(dir.path().join("data"));
        let missing = open(location(), PartitionCount::Existing).await;
        assert!(matches!(missing, Err(OpenStoreError::Embedded { .. })), "{missing:?}");
        let created = open(location(), PartitionCount::ExistingOr(four())).await.unwrap();
        assert_eq!((created.partitions, created.recovered.is_some()), (four(), true));
        created.store.close().await.unwrap();
        for wanted in [PartitionCount::Existing, PartitionCount::ExistingOr(Partitions::ONE)] {
            let opened = open(location(), wanted).await.unwrap();
            assert_eq!(opened.partitions, four());
            opened.store.close().await.unwrap();
        }
        let refused = open(location(), PartitionCount::Exactly(Partitions::ONE)).await;
        assert!(matches!(refused, Err(OpenStoreError::Embedded { .. })), "{refused:?}");
    }

    #[tokio::test]
    async fn a_memory_store_is_always_new() {
        let missing = open(StoreLocation::Memory, PartitionCount::Existing).await;
        assert!(matches!(missing, Err(OpenStoreError::NoMemory)), "{missing:?}");
        let opened = open(StoreLocation::Memory, PartitionCount::Exactly(four())).await.unwrap();
        let seat = Seat::Partition(PartitionId::FIRST);
        assert!(opened.store.holder(seat).await.unwrap().is_none());
        assert!(!opened.store.is_shared());
    }
}
