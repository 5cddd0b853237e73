//! The memory store keeps every clause of both contracts, for the life of the process.

use punctual_core::Partitions;
use punctual_store::MemoryStore;
use punctual_store::conformance::fixtures::NOW;
use punctual_store::conformance::model::{Walk, same_as_memory};
use punctual_store::conformance::{PARTITIONS, Subject, run};

struct Memory;

impl Subject for Memory {
    type Store = MemoryStore;
    const DURABLE: bool = false;

    async fn open(&self) -> MemoryStore {
        MemoryStore::new(Partitions::new(PARTITIONS).expect("within the limits"))
    }
}

punctual_store::conformance!(Memory);

/// The same with a clock of its own, which the suite moves.
mod clocked {
    use std::time::Duration;

    use super::*;

    struct Clocked;

    impl Subject for Clocked {
        type Store = MemoryStore;
        const DURABLE: bool = false;

        async fn open(&self) -> MemoryStore {
            let store = Memory.open().await;
            store.set_time(NOW).expect("a new store is whole");
            store
        }

        async fn pass(&self, store: &MemoryStore, time: Duration) {
            store.pass(time).expect("the store is whole");
        }
    }

    punctual_store::conformance!(Clocked);
    punctual_store::conformance_membership!(Clocked);
}

/// A memory store that somebody keeps in a drawer: tests the durable clauses themselves, since a
/// store that loses nothing must keep them.
mod drawer {
    use std::sync::Mutex;

    use super::*;

    #[derive(Default)]
    struct Drawer {
        inside: Mutex<Option<MemoryStore>>,
    }

    impl Subject for Drawer {
        type Store = MemoryStore;
        const DURABLE: bool = true;

        async fn open(&self) -> MemoryStore {
            let inside = self.inside.lock().expect("one test each").take();
            match inside {
                Some(store) => store,
                None => Memory.open().await,
            }
        }

        async fn close(&self, store: MemoryStore) {
            *self.inside.lock().expect("one test each") = Some(store);
        }

        async fn crash(&self, store: MemoryStore, _entropy: u64) {
            self.close(store).await;
        }
    }

    punctual_store::conformance_durable!(Drawer::default());

    /// The walk is worth something only if it notices a loss.
    struct Forgetful;

    impl Subject for Forgetful {
        type Store = MemoryStore;
        const DURABLE: bool = true;

        async fn open(&self) -> MemoryStore {
            Memory.open().await
        }
    }

    #[test]
    #[should_panic(expected = "p0: ")]
    fn a_walk_notices_a_store_that_forgets() {
        let walk = Walk { seed: 1, steps: 500 };
        run(same_as_memory(&Forgetful, walk));
    }

    #[test]
    fn walks_over_restarts_find_no_difference() {
        for seed in 2..5 {
            let walk = Walk { seed, steps: 400 };
            run(same_as_memory(&Drawer::default(), walk));
        }
    }
}

#[test]
fn walks_find_no_difference() {
    for seed in 2..5 {
        run(same_as_memory(&Memory, Walk { seed, steps: 400 }));
    }
}
