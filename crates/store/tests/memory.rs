//! The memory store passes every clause of the contracts, as long as the process lives.

use punctual_core::Partitions;
use punctual_store::MemoryStore;
use punctual_store::conformance::fixtures::NOW;
use punctual_store::conformance::model::{ModelRun, same_as_memory};
use punctual_store::conformance::{PARTITIONS, StoreUnderTest, run};

struct MemoryUnderTest;

impl StoreUnderTest for MemoryUnderTest {
    type Store = MemoryStore;
    const DURABLE: bool = false;

    async fn open(&self) -> MemoryStore {
        MemoryStore::new(Partitions::new(PARTITIONS).expect("within the limits"))
    }
}

punctual_store::conformance!(MemoryUnderTest);

/// The same with its own clock, which the suite moves.
mod clocked {
    use std::time::Duration;

    use super::*;

    struct ClockedMemory;

    impl StoreUnderTest for ClockedMemory {
        type Store = MemoryStore;
        const DURABLE: bool = false;

        async fn open(&self) -> MemoryStore {
            let store = MemoryUnderTest.open().await;
            store.set_time(NOW).expect("the lock of a new store is not poisoned");
            store
        }

        async fn pass(&self, store: &MemoryStore, time: Duration) {
            store.pass(time).expect("the lock is not poisoned");
        }
    }

    punctual_store::conformance!(ClockedMemory);
    punctual_store::conformance_membership!(ClockedMemory);
}

/// A memory store that is kept instead of closed. It checks the durable clauses themselves: a store
/// that loses nothing must pass them.
mod reopened {
    use std::sync::Mutex;

    use super::*;

    #[derive(Default)]
    struct ReopenedMemory {
        store: Mutex<Option<MemoryStore>>,
    }

    impl StoreUnderTest for ReopenedMemory {
        type Store = MemoryStore;
        const DURABLE: bool = true;

        async fn open(&self) -> MemoryStore {
            let store = self.store.lock().expect("one test each").take();
            match store {
                Some(store) => store,
                None => MemoryUnderTest.open().await,
            }
        }

        async fn close(&self, store: MemoryStore) {
            *self.store.lock().expect("one test each") = Some(store);
        }

        async fn crash(&self, store: MemoryStore, _entropy: u64) {
            self.close(store).await;
        }
    }

    punctual_store::conformance_durable!(ReopenedMemory::default());

    /// A store that forgets everything: a model run must notice.
    struct ForgetfulMemory;

    impl StoreUnderTest for ForgetfulMemory {
        type Store = MemoryStore;
        const DURABLE: bool = true;

        async fn open(&self) -> MemoryStore {
            MemoryUnderTest.open().await
        }
    }

    #[test]
    #[should_panic(expected = "p0: ")]
    fn a_model_run_notices_a_store_that_forgets() {
        let model_run = ModelRun { seed: 1, steps: 500 };
        run(same_as_memory(&ForgetfulMemory, model_run));
    }

    #[test]
    fn model_runs_with_restarts_find_no_difference() {
        for seed in 2..5 {
            let model_run = ModelRun { seed, steps: 400 };
            run(same_as_memory(&ReopenedMemory::default(), model_run));
        }
    }
}

#[test]
fn model_runs_find_no_difference() {
    for seed in 2..5 {
        run(same_as_memory(&MemoryUnderTest, ModelRun { seed, steps: 400 }));
    }
}
