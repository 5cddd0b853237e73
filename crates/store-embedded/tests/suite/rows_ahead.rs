//! Rows that a checkpoint writes ahead of its last batch: a crash in between changes nothing.

use std::path::Path;

use punctual_core::{Epoch, FireEnd, Partitions, Seat, Task};
use punctual_store::conformance::fixtures::{
    NOW, TTL, at, broker, due_at, id, partition, postpone, refile, settle, shop, task,
};
use punctual_store::conformance::run;
use punctual_store::{Batch, BatchNo, Change, Filter, LeaseStore, Position, TaskStore};
use punctual_store_embedded::{EmbeddedOptions, EmbeddedStore, check};

const TASKS: u64 = 60;
/// More steps than the checkpoint has.
const STEPS_MAX: u64 = 24;

/// Options with which a checkpoint begins only when it is asked for, and writes few rows at once.
fn options() -> EmbeddedOptions {
    EmbeddedOptions {
        rows_changed_bytes_max: 1 << 20,
        journal_bytes_max: 1 << 20,
        buffer_bytes_max: 1 << 20,
        ..EmbeddedOptions::tiny(Partitions::ONE)
    }
}

async fn apply(store: &EmbeddedStore, epoch: Epoch, number: u64, changes: Vec<Change>) {
    let batch = Batch::new(BatchNo::new(number), changes);
    store.apply(partition(0), epoch, batch).await.unwrap();
}

/// Postpones tasks by some seconds, and returns the changes.
fn postpone_all(tasks: &mut [Task], seconds: u64) -> Vec<Change> {
    let one = |task: &mut Task| {
        let (postponed, change) = postpone(task, at(seconds + task.id.sequence().get()));
        *task = postponed;
        change
    };
    tasks.iter_mut().map(one).collect()
}

async fn listed(store: &EmbeddedStore) -> Vec<Task> {
    let filter = Filter::all(shop());
    let page = store.list(partition(0), &filter, Position::START, usize::MAX).await.unwrap();
    assert_eq!(page.next, None);
    page.items
}

async fn assert_contents(dir: &Path, expected: &[Task], steps: u64) {
    let (store, _) = EmbeddedStore::open(dir, options()).unwrap();
    assert_eq!(listed(&store).await, expected, "after {steps} steps");
    store.close().await.unwrap();
    let problems = check(dir).unwrap().problems;
    assert_eq!(problems, Vec::<String>::new(), "after {steps} steps");
}

#[test]
fn a_crash_while_postponements_are_written_changes_nothing() {
    run(async {
        for steps in (0..STEPS_MAX).step_by(2) {
            let dir = tempfile::tempdir().unwrap();
            let (store, _) = EmbeddedStore::open(dir.path(), options()).unwrap();
            let seat = Seat::Partition(partition(0));
            let epoch = store.acquire(seat, &broker("a"), TTL, NOW).await.unwrap().epoch;
            let create = |n: u64| task(id(at(n), partition(0), epoch, n)).build();
            let mut tasks: Vec<Task> = (1..=TASKS).map(create).collect();
            apply(&store, epoch, 1, tasks.iter().cloned().map(Change::Put).collect()).await;
            // The first half is postponed twice: once before this checkpoint, once after it.
            let half = tasks.len() / 2;
            apply(&store, epoch, 2, postpone_all(&mut tasks[..half], 1_000)).await;
            store.checkpoint().await.unwrap();
            apply(&store, epoch, 3, postpone_all(&mut tasks, 2_000)).await;
            // Of these the last batch has the rows.
            let ends = tasks.extract_if(.., |task| task.id.sequence().get().is_multiple_of(5));
            let ends: Vec<Change> =
                ends.map(|task| settle(&task, FireEnd::Cancelled, NOW)).collect();
            apply(&store, epoch, 4, ends).await;
            let filed_again = |task: &&mut Task| task.id.sequence().get().is_multiple_of(7);
            let file_again = |task: &mut Task| {
                let was = std::mem::replace(task, due_at(task, at(5_000)));
                refile(&was, task)
            };
            let refiled = tasks.iter_mut().filter(filed_again).map(file_again).collect();
            apply(&store, epoch, 5, refiled).await;
            // These have neither an entry in a run nor a row in the catalog.
            let create = |n: u64| task(id(at(n), partition(0), epoch, n)).build();
            let mut new: Vec<Task> = (TASKS + 1..=TASKS + 10).map(create).collect();
            apply(&store, epoch, 6, new.iter().cloned().map(Change::Put).collect()).await;
            apply(&store, epoch, 7, postpone_all(&mut new, 2_000)).await;
            tasks.extend(new);
            tasks.sort_unstable_by_key(Position::of);
            store.crash_after(steps);
            assert_contents(dir.path(), &tasks, steps).await;
        }
    });
}
