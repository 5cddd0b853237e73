//! An embedded store in a temporary directory, as a subject of the conformance suite.

use punctual_core::Partitions;
use punctual_store::conformance::{PARTITIONS, StoreUnderTest};
use punctual_store_embedded::{EmbeddedOptions, EmbeddedStore};
use tempfile::TempDir;

pub(crate) struct StoreDir {
    dir: TempDir,
    options: EmbeddedOptions,
}

impl StoreDir {
    pub(crate) fn usual() -> Self {
        Self::with(EmbeddedOptions::new(partitions()))
    }

    pub(crate) fn tiny() -> Self {
        Self::with(EmbeddedOptions::tiny(partitions()))
    }

    fn with(options: EmbeddedOptions) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        // The suite creates many stores, so each must preallocate little.
        let options = EmbeddedOptions {
            journal_file_bytes: options.journal_file_bytes.min(4 << 20),
            ..options
        };
        Self { dir, options }
    }
}

fn partitions() -> Partitions {
    Partitions::new(PARTITIONS).expect("a few partitions")
}

impl StoreUnderTest for StoreDir {
    type Store = EmbeddedStore;
    const DURABLE: bool = true;

    async fn open(&self) -> EmbeddedStore {
        let opened = EmbeddedStore::open(self.dir.path(), self.options.clone());
        opened.expect("the store opens").0
    }

    async fn close(&self, store: EmbeddedStore) {
        store.close().await.expect("the store closes");
    }

    async fn crash(&self, store: EmbeddedStore, entropy: u64) {
        store.crash_after(entropy % 12);
    }
}
