//! Disk space: a small disk, a full disk, and a batch that is too large for every disk.
//!
//! Needs root, `mkfs.ext4` and loop devices.

use std::path::Path;

use punctual_core::{FireEnd, Lease, Partitions, Payload, Seat, Task, Timestamp};
use punctual_store::conformance::fixtures::{
    NOW, TTL, at, broker, die, id, partition, settle, task,
};
use punctual_store::conformance::run;
use punctual_store::{
    Batch, BatchNo, Change, LeaseStore, Position, Resource, StoreError, TaskStore,
};
use punctual_store_embedded::{EmbeddedOptions, EmbeddedStore, OpenReport};
use punctual_test_support::SmallDisk;

const PAYLOAD_BYTES: u64 = 16 << 10;

async fn open(dir: &Path, options: EmbeddedOptions) -> (EmbeddedStore, OpenReport, Lease) {
    let (store, report) = EmbeddedStore::open(dir, options).unwrap();
    let seat = Seat::Partition(partition(0));
    let lease = store.acquire(seat, &broker("a"), TTL, NOW).await.unwrap();
    (store, report, lease)
}

/// Tasks with large payloads, `count` of them, numbered from `first`.
fn puts(lease: &Lease, first: u64, count: u64) -> Vec<Change> {
    let put = |n: u64| {
        let payload = vec![u8::try_from(n % 251).unwrap(); usize::try_from(PAYLOAD_BYTES).unwrap()];
        let id = id(at(n), partition(0), lease.epoch, n);
        let content_type = "application/octet-stream".into();
        let payload = Payload::Binary { bytes: payload.into(), content_type };
        Change::Put(task(id).payload(payload).build())
    };
    (first..first + count).map(put).collect()
}

async fn apply(
    store: &EmbeddedStore,
    lease: &Lease,
    number: u64,
    changes: Vec<Change>,
) -> Result<(), StoreError> {
    let batch = Batch::new(BatchNo::new(number), changes);
    store.apply(partition(0), lease.epoch, batch).await
}

async fn count(store: &EmbeddedStore) -> usize {
    let all = store.load(partition(0), Position::START, Timestamp::MAX, usize::MAX);
    all.await.unwrap().len()
}

#[test]
fn checkpoints_succeed_on_a_small_disk() {
    run(async {
        for mebibytes in [150, 300] {
            let disk = SmallDisk::mount(mebibytes);
            let options = || EmbeddedOptions::new(Partitions::ONE);
            let (store, _, lease) = open(&disk.data(), options()).await;
            for number in 1..=20 {
                let first = (number - 1) * 64;
                apply(&store, &lease, number, puts(&lease, first, 64)).await.unwrap();
            }
            store.checkpoint().await.unwrap();
            apply(&store, &lease, 21, puts(&lease, 20 * 64, 1)).await.unwrap();
            store.close().await.unwrap();
            let (store, report, _) = open(&disk.data(), options()).await;
            assert!(report.closed_cleanly, "{report:?}");
            assert_eq!(report.replayed, 0, "everything was written, on {mebibytes} MiB");
            assert_eq!(count(&store).await, 20 * 64 + 1);
        }
    });
}

#[test]
fn a_checkpoint_waits_for_a_full_disk_and_leaves_no_unfinished_run() {
    run(async {
        let disk = SmallDisk::mount(200);
        let (store, _, lease) = open(&disk.data(), EmbeddedOptions::new(Partitions::ONE)).await;
        apply(&store, &lease, 1, puts(&lease, 0, 256)).await.unwrap();
        disk.fill(0);
        // Each attempt removes the files that it began.
        for _ in 0..3 {
            store.checkpoint().await.unwrap();
        }
        let runs = std::fs::read_dir(disk.data().join("runs")).unwrap();
        assert_eq!(runs.count(), 0, "an unfinished run is left");
        let refused = apply(&store, &lease, 2, puts(&lease, 256, 1)).await;
        assert!(
            matches!(refused, Err(StoreError::Full { resource: Resource::Disk, .. })),
            "{refused:?}"
        );
        disk.empty();
        store.checkpoint().await.unwrap();
        apply(&store, &lease, 2, puts(&lease, 256, 1)).await.unwrap();
        assert_eq!(count(&store).await, 257);
        store.close().await.unwrap();
    });
}

#[test]
fn dead_letters_can_be_redriven_on_a_full_disk() {
    run(async {
        let disk = SmallDisk::mount(200);
        let (store, _, lease) = open(&disk.data(), EmbeddedOptions::new(Partitions::ONE)).await;
        apply(&store, &lease, 1, puts(&lease, 0, 8)).await.unwrap();
        let tasks = store.load(partition(0), Position::START, Timestamp::MAX, 8).await.unwrap();
        let dead = tasks.iter().map(|task| die(task, NOW, None)).collect();
        apply(&store, &lease, 2, dead).await.unwrap();
        disk.fill(0);
        store.checkpoint().await.unwrap();
        let refused = apply(&store, &lease, 3, puts(&lease, 8, 1)).await;
        assert!(
            matches!(refused, Err(StoreError::Full { resource: Resource::Disk, .. })),
            "{refused:?}"
        );
        let back = |task: &Task| Change::Redrive { fire_id: task.fire().id, task: task.clone() };
        apply(&store, &lease, 3, tasks.iter().map(back).collect()).await.unwrap();
        assert_eq!(count(&store).await, 8);
        store.close().await.unwrap();
    });
}

#[test]
fn a_checkpoint_on_a_full_disk_is_retried_after_other_background_work() {
    run(async {
        let disk = SmallDisk::mount(200);
        let options = EmbeddedOptions { ended_max: 6, ..EmbeddedOptions::new(Partitions::ONE) };
        let (store, _, lease) = open(&disk.data(), options).await;
        apply(&store, &lease, 1, puts(&lease, 0, 64)).await.unwrap();
        store.checkpoint().await.unwrap();
        apply(&store, &lease, 2, puts(&lease, 64, 64)).await.unwrap();
        disk.fill(0);
        store.checkpoint().await.unwrap();
        let loaded = store.load(partition(0), Position::START, Timestamp::MAX, 32).await.unwrap();
        let ends = loaded.iter().map(|task| settle(task, FireEnd::Done, NOW)).collect();
        apply(&store, &lease, 3, ends).await.unwrap();
        disk.empty();
        // No call asks for a checkpoint: the background thread tries again by itself.
        while let Err(refused) = apply(&store, &lease, 4, puts(&lease, 128, 1)).await {
            assert!(
                matches!(refused, StoreError::Full { resource: Resource::Disk, .. }),
                "{refused:?}"
            );
            tokio::task::yield_now().await;
        }
        assert_eq!(count(&store).await, 128 - 32 + 1);
        store.close().await.unwrap();
    });
}

#[test]
fn an_oversized_batch_is_refused_as_broken_and_the_store_continues() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let (store, _, lease) = open(dir.path(), EmbeddedOptions::tiny(Partitions::ONE)).await;
        let refused = apply(&store, &lease, 1, puts(&lease, 0, 400)).await;
        match refused {
            // Not `Full`: free space would not help.
            Err(StoreError::Broken(why)) => assert!(why.contains("at most"), "{why}"),
            other => panic!("{other:?}"),
        }
        apply(&store, &lease, 1, puts(&lease, 0, 4)).await.unwrap();
        assert_eq!(count(&store).await, 4);
        store.close().await.unwrap();
    });
}
