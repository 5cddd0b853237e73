//! Due counts while a checkpoint writes them: rows and memory are never counted both.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use punctual_core::{Partitions, Seat};
use punctual_store::conformance::fixtures::{NOW, TTL, at, broker, id, namespace, partition, task};
use punctual_store::conformance::run;
use punctual_store::{Batch, BatchNo, Change, DueMinute, DueSteps, LeaseStore, TaskStore};
use punctual_store_embedded::{EmbeddedOptions, EmbeddedStore};

/// So many rows that writing them takes some milliseconds: each has one namespace and one hour.
const NAMESPACES: u64 = 200;
const HOURS: u64 = 100;

#[test]
fn a_reader_sees_all_rows_of_a_checkpoint_or_none() {
    let dir = tempfile::tempdir().unwrap();
    let store = EmbeddedStore::open(dir.path(), EmbeddedOptions::new(Partitions::ONE)).unwrap().0;
    let store = Arc::new(store);
    let is_over = Arc::new(AtomicBool::new(false));
    let reader = std::thread::spawn({
        let (store, is_over) = (Arc::clone(&store), Arc::clone(&is_over));
        move || {
            let mut counts = Vec::new();
            run(read_until(store, is_over, &mut counts));
            counts
        }
    });
    run(async {
        let seat = Seat::Partition(partition(0));
        let epoch = store.acquire(seat, &broker("a"), TTL, NOW).await.unwrap().epoch;
        for hour in 0..HOURS {
            let tasks = (0..NAMESPACES).map(|number| {
                let at = at(1 + 3600 * hour);
                let id = id(at, partition(0), epoch, hour * NAMESPACES + number);
                Change::Put(task(id).namespace(&format!("n{number}")).build())
            });
            let batch = Batch::new(BatchNo::new(hour + 1), tasks.collect());
            store.apply(partition(0), epoch, batch).await.unwrap();
        }
        store.checkpoint().await.unwrap();
    });
    is_over.store(true, Ordering::Release);
    let counts = reader.join().unwrap();
    // Tasks are only added, one in each hour.
    assert!(counts.is_sorted(), "{counts:?}");
    assert_eq!(counts.last(), Some(&i64::try_from(HOURS).unwrap()));
}

/// Reads the count of the first namespace all the time, and notes each that differs from the one
/// before.
async fn read_until(store: Arc<EmbeddedStore>, is_over: Arc<AtomicBool>, counts: &mut Vec<i64>) {
    let bounds = [at(0), at(3600 * (HOURS + 1))].map(DueMinute::of);
    let steps = DueSteps::new(bounds.to_vec()).unwrap();
    loop {
        let is_last = is_over.load(Ordering::Acquire);
        let read = store.due_counts(partition(0), &namespace("n0"), &steps).await.unwrap();
        if counts.last() != Some(&read.tasks[0]) {
            counts.push(read.tasks[0]);
        }
        if is_last {
            return;
        }
    }
}
