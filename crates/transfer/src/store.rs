//! The store at either end of a transfer, opened without a broker.

use anyhow::Context as _;
use punctual_core::Partitions;
use punctual_store_any::{AnyStore, OpenedStore, PartitionCount, StoreLocation, open};

use crate::{OnEvent, TransferEvent};

/// An open store with a name for messages.
#[derive(Debug)]
pub(crate) struct TransferStore {
    pub(crate) store: AnyStore,
    /// A description for people, such as "the store in ./data".
    pub(crate) name: String,
    pub(crate) partitions: Partitions,
}

impl TransferStore {
    /// Opens a store, and reports what the operator should know about it.
    pub(crate) async fn open(
        location: StoreLocation,
        partitions: PartitionCount,
        on_event: OnEvent<'_>,
    ) -> anyhow::Result<Self> {
        let name = match &location {
            StoreLocation::Memory => "the memory store".to_owned(),
            StoreLocation::Embedded(dir) => format!("the store in {}", dir.display()),
            StoreLocation::Redis(options) => format!("the cluster {} in Redis", options.cluster),
            StoreLocation::Postgres(options) => {
                format!("the cluster {} in PostgreSQL", options.cluster)
            }
            StoreLocation::Mysql(options) => format!("the cluster {} in MySQL", options.cluster),
        };
        let OpenedStore { store, partitions, warnings, .. } = open(location, partitions).await?;
        warnings.into_iter().for_each(|warning| on_event(TransferEvent::Notice(warning)));
        Ok(Self { store, name, partitions })
    }

    /// Closes the store, with everything on disk.
    pub(crate) async fn close(self) -> anyhow::Result<()> {
        self.store.close().await.with_context(|| format!("cannot close {}", self.name))
    }
}
