//! The conformance suite of stores over `AnyStore`: all clauses in memory, the durable ones in a
//! directory. Every call must reach the store behind it unchanged.

#![allow(clippy::unwrap_used, reason = "a failed expectation ends the test")]

use punctual_core::Partitions;
use punctual_store::conformance::{PARTITIONS, StoreUnderTest};
use punctual_store_any::{AnyStore, PartitionCount, StoreLocation, open};
use tempfile::TempDir;

async fn open_any(location: StoreLocation) -> AnyStore {
    let partitions = PartitionCount::ExistingOr(Partitions::new(PARTITIONS).unwrap());
    open(location, partitions).await.unwrap().store
}

struct AnyInMemory;

impl StoreUnderTest for AnyInMemory {
    type Store = AnyStore;
    const DURABLE: bool = false;

    async fn open(&self) -> AnyStore {
        open_any(StoreLocation::Memory).await
    }
}

struct AnyInDirectory(TempDir);

impl AnyInDirectory {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }
}

impl StoreUnderTest for AnyInDirectory {
    type Store = AnyStore;
    const DURABLE: bool = true;

    async fn open(&self) -> AnyStore {
        open_any(StoreLocation::Embedded(self.0.path().to_owned())).await
    }

    async fn close(&self, store: AnyStore) {
        store.close().await.unwrap();
    }
}

mod memory {
    punctual_store::conformance!(crate::AnyInMemory);
}

mod directory {
    punctual_store::conformance_durable!(crate::AnyInDirectory::new());
}
