//! Opens a store: checks the options and the server, creates the tables or checks them.

use std::sync::atomic::AtomicU64;

use punctual_core::Partitions;
use punctual_store::codec::Interner;
use punctual_store::{EpochTracker, StoreError};

use crate::damage::DamagedRows;
use crate::database::{SqlDatabase, SqlRole};
use crate::difference_weights::DifferenceWeights;
use crate::error::{SqlOpenError, store_error};
use crate::options::SqlStoreOptions;
use crate::store::SqlStore;
use crate::values::{Columns as _, StatementParam};

/// The version of the tables, in `meta`. A change of them is another format.
const FORMAT: &str = "2";

impl<D: SqlDatabase> SqlStore<D> {
    /// Opens a store. The first broker that opens it creates its tables and fixes its number of
    /// partitions. Returns the store, and warnings for the operator.
    pub async fn open(options: SqlStoreOptions) -> Result<(Self, Vec<String>), SqlOpenError> {
        check_options::<D>(&options)?;
        let store = |database| Self {
            partitions: options.partitions,
            cluster: options.cluster.clone(),
            hosts: options.sql.hosts.clone(),
            database,
            epochs: EpochTracker::default(),
            interner: Interner::default(),
            rewinds: AtomicU64::new(0),
            damage: DamagedRows::default(),
            sweeping: tokio::sync::Mutex::default(),
            weights: DifferenceWeights::new(options.partitions),
        };
        let (database, warnings) = D::open(options.clone()).await?;
        let store = store(database);
        store.fix_or_check().await?;
        Ok((store, warnings))
    }

    /// Returns the number of partitions of an existing store, or `None` if there is no store.
    pub async fn partitions_in(
        options: &SqlStoreOptions,
    ) -> Result<Option<Partitions>, SqlOpenError> {
        check_options::<D>(options)?;
        let Some(made) = D::stored_partitions(options).await? else { return Ok(None) };
        let count = made.parse().ok().and_then(|count| Partitions::new(count).ok());
        count.map(Some).ok_or_else(|| {
            let why = format!("the store has an unreadable number of partitions: {made:?}");
            SqlOpenError::Store(StoreError::Broken(why))
        })
    }

    /// Stores format and number of partitions at the first start, and checks them at every other.
    async fn fix_or_check(&self) -> Result<(), SqlOpenError> {
        let cluster = self.cluster.clone();
        let configured = self.partitions.count();
        let format = self.get_or_propose("format", FORMAT).await?;
        if format != FORMAT {
            return Err(SqlOpenError::Format { cluster, format, ours: FORMAT });
        }
        let proposed = configured.to_string();
        let made = self.get_or_propose("partitions", &proposed).await?;
        if made != proposed {
            return Err(SqlOpenError::Partitions { cluster, made, configured });
        }
        Ok(())
    }

    /// Returns a value that is fixed once, and proposes one if there is none. The first proposal
    /// wins, so that two brokers that start together agree.
    pub(crate) async fn get_or_propose(
        &self,
        name: &str,
        proposed: &str,
    ) -> Result<String, StoreError> {
        for _ in 0..2 {
            if let Some(value) = self.meta(name).await? {
                return Ok(value);
            }
            self.database.propose_meta(name, proposed).await.map_err(store_error::<D>)?;
        }
        self.meta(name).await?.ok_or_else(|| {
            StoreError::Broken(format!("the database does not keep the value {name} of table meta"))
        })
    }

    async fn meta(&self, name: &str) -> Result<Option<String>, StoreError> {
        let rows = self.read(SqlRole::Seats, D::READS.meta, &[StatementParam::Text(name)]).await?;
        Ok(rows.first().map(|row| row.text(0)))
    }
}

fn check_options<D: SqlDatabase>(options: &SqlStoreOptions) -> Result<(), SqlOpenError> {
    if options.sql.kind != D::KIND {
        let why = format!("the store needs the URL of a {} database", D::PRODUCT);
        return Err(SqlOpenError::Options(why));
    }
    match D::fault_of_name(&options.cluster) {
        Some(fault) => Err(SqlOpenError::Options(format!("the cluster name {fault}"))),
        None => Ok(()),
    }
}
