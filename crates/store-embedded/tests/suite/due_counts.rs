//! Due counts that are read while a checkpoint moves them from memory to the catalog.

use std::sync::atomic::{AtomicBool, Ordering};

use punctual_core::Partitions;
use punctual_store::conformance::fixtures::at;
use punctual_store::conformance::owner::TestOwner;
use punctual_store::conformance::run;
use punctual_store::{DueHour, DueMinute, DueSteps};
use punctual_store_embedded::{EmbeddedOptions, EmbeddedStore};

/// Tasks of a round, each in an hour of its own, so that a checkpoint writes many rows.
const TASKS: u64 = 1500;
const ROUNDS: u64 = 12;
const HOUR_SECONDS: u64 = 3600;

#[test]
fn a_count_has_each_task_once_while_a_checkpoint_is_written() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let options = EmbeddedOptions::new(Partitions::ONE);
        let (store, _) = EmbeddedStore::open(dir.path(), options).unwrap();
        let mut owner = TestOwner::first(&store).await;
        let end = DueHour::new(u32::try_from(TASKS).unwrap() * 2 + 500_000).minute(0);
        let steps = DueSteps::new(vec![DueMinute::FIRST, end]).unwrap();
        let mut beside = 0;
        for round in 1..=ROUNDS {
            let tasks: Vec<_> =
                (0..TASKS).map(|n| owner.task(at(n * HOUR_SECONDS)).build()).collect();
            owner.put(&tasks).await;
            let written = AtomicBool::new(false);
            let checkpoint = async {
                store.checkpoint().await.unwrap();
                written.store(true, Ordering::Release);
            };
            let reads = async {
                let mut reads = 0u64;
                while !written.load(Ordering::Acquire) {
                    let counted = owner.due_counts(&steps).await;
                    assert_eq!(counted, [i64::try_from(round * TASKS).unwrap()], "read {reads}");
                    reads += 1;
                    tokio::task::yield_now().await;
                }
                reads
            };
            let ((), reads) = tokio::join!(checkpoint, reads);
            beside += reads;
        }
        assert!(beside > ROUNDS, "reads were made beside checkpoints");
    });
}
