//! A store directory of format 2, written by an earlier build: it opens, and has everything.
//!
//! `tests/fixtures/v2` has tasks that are scheduled, postponed, refiled and paused, names that were
//! freed and reused, dead letters, history, counts and leases, in runs, in the catalog and in
//! commits that are only in the journal. The same batches, applied to the memory store, say what
//! must be read. A change of the code must not change the files.
//!
//! If the directory is missing, `PUNCTUAL_GOLDEN=write` writes it with the present code. Do that
//! only for a new format version, in a new directory.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use punctual_core::{
    AttemptNo, AttemptRecord, DeadLetter, DeadReason, Due, Epoch, FireEnd, FireRecord, Namespace,
    NewTask, Outcome, PartitionId, Partitions, Payload, Queue, Reason, Schedule, Seat, Sequence,
    Target, Task, TaskId, TaskKey, TaskState, Timestamp, Version,
};
use punctual_store::conformance::run;
use punctual_store::{
    Batch, BatchNo, Change, Filter, FireFilter, LeaseStore, MemoryStore, Position, Prior, TaskStore,
};
use punctual_store_embedded::{EmbeddedOptions, EmbeddedStore, check};

/// The values below are spelled here and not taken from shared fixtures: they must never change.
const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_000);
const TTL: Duration = Duration::from_secs(10);
const PARTITIONS: u16 = 2;
const NAMESPACES: [&str; 2] = ["shop", "other"];
/// Tasks that each partition gets first.
const TASKS: u64 = 60;

fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/v2")
}

fn options() -> EmbeddedOptions {
    EmbeddedOptions {
        // The smallest files in which the largest batch fits: they are part of the repository.
        journal_file_bytes: 24 << 10,
        ..EmbeddedOptions::tiny(Partitions::new(PARTITIONS).unwrap())
    }
}

fn at(seconds: u64) -> Timestamp {
    NOW.after(Duration::from_secs(seconds))
}

fn namespace(name: &str) -> Namespace {
    Namespace::new(name).unwrap()
}

fn epoch() -> Epoch {
    Epoch::new(1).unwrap()
}

/// The `number`th task of a partition. Every second one has a key.
fn task(partition: PartitionId, number: u64, due: Timestamp) -> Task {
    let key = number.is_multiple_of(2).then_some(number);
    task_with_key(partition, number, due, key)
}

fn task_with_key(partition: PartitionId, number: u64, due: Timestamp, key: Option<u64>) -> Task {
    let sequence = Sequence::new(number).unwrap();
    let id = TaskId::new(due, partition, epoch(), sequence);
    let target = Target::Queue(Queue::new("orders").unwrap());
    let namespace = namespace(NAMESPACES[usize::from(number % 5 == 4)]);
    let mut definition = NewTask::new(namespace, Schedule::Once(Due::At(due)), target);
    definition.key = key.map(|number| TaskKey::new(&format!("key/{number}")).unwrap());
    definition.payload = Payload::Json(format!("{{\"number\":{number}}}").into_bytes().into());
    Task::new(id, Arc::new(definition), NOW, Version::FIRST)
}

fn postpone(task: &mut Task, fire_at: Timestamp) -> Change {
    let (version, was) = (task.version.next(), Prior::of(task));
    let namespace = task.definition.namespace.clone();
    *task = Task { fire_at, nominal_at: fire_at, version, ..task.clone() };
    // The fixture was written before postponements had the time of the touch.
    let (id, updated_at) = (task.id, task.updated_at);
    Change::Postpone { id, namespace, fire_at, version, updated_at, was }
}

fn refile(was: &mut Task, task: Task) -> Change {
    let change = Change::Refile { task: task.clone(), was: Prior::of(was) };
    *was = task;
    change
}

fn settle(task: &Task, end: FireEnd, next: Option<Task>) -> Change {
    let next = next.map(Box::new);
    Change::Settle { record: FireRecord::of(task, end, at(1)), next, was: Prior::of(task) }
}

/// What happens to one of the first tasks, by its number.
fn change(task: &mut Task, number: u64) -> Option<Change> {
    let later = at(500 + number * 13 % 400);
    match number % 10 {
        1 => Some(postpone(task, later)),
        2 => {
            let (state, version) = (TaskState::Paused, task.version.next());
            let paused = Task { state, version, ..task.clone() };
            Some(refile(task, paused))
        }
        3 => {
            let attempts = vec![AttemptRecord {
                number: AttemptNo::FIRST,
                fired_at: NOW,
                ended_at: at(1),
                outcome: Outcome::Failed { reason: Reason::new("HTTP 503"), retry_in: None },
                answer: None,
            }];
            let retried = Task { fire_at: later, attempts, ..task.clone() };
            Some(refile(task, retried))
        }
        4 => Some(settle(task, FireEnd::Done, None)),
        5 => {
            let next =
                Task { fire_at: later, nominal_at: later, attempts: Vec::new(), ..task.clone() };
            let change = settle(task, FireEnd::Done, Some(next.clone()));
            *task = next;
            Some(change)
        }
        6 => {
            let reason = DeadReason::Exhausted;
            let letter = DeadLetter { task: task.clone(), died_at: at(2), reason };
            Some(Change::Dead { letter, next: None, was: Prior::of(task) })
        }
        7 => Some(settle(task, FireEnd::Cancelled, None)),
        _ => None,
    }
}

/// The batches of one partition, in three rounds. A checkpoint follows each of the first two; the
/// third stays in the journal.
fn rounds(partition: PartitionId) -> [Vec<Vec<Change>>; 3] {
    let mut tasks: Vec<Task> =
        (0..TASKS).map(|number| task(partition, number, at(10 + number * 7))).collect();
    let puts: Vec<Change> = tasks.iter().cloned().map(Change::Put).collect();
    let mut numbered = (0..).zip(&mut tasks);
    let mut some =
        |count| numbered.by_ref().take(count).filter_map(|(n, task)| change(task, n)).collect();
    let (second, third): (Vec<Change>, Vec<Change>) = (some(40), some(20));
    let split = |changes: Vec<Change>| changes.chunks(20).map(<[Change]>::to_vec).collect();
    let mut third: Vec<Vec<Change>> = split(third);
    // Far in the future, and with the key of a task that has ended, in the same namespace.
    let far = at(86_400 * 400);
    let reuses_key = task_with_key(partition, TASKS + 4, far, Some(4));
    third.push(vec![Change::Put(task(partition, TASKS + 1, far)), Change::Put(reuses_key)]);
    third.push(vec![redrive(partition)]);
    [split(puts), split(second), third]
}

/// Puts the dead letter of task 6 back.
fn redrive(partition: PartitionId) -> Change {
    let dead = task(partition, 6, at(10 + 6 * 7));
    let fire_id = dead.fire().id;
    let version = dead.version.next();
    Change::Redrive { fire_id, task: Task { fire_at: at(77), version, ..dead } }
}

async fn acquire(store: &impl LeaseStore) {
    let broker = punctual_core::BrokerId::new("127.0.0.1:7400");
    for partition in (0..PARTITIONS).filter_map(PartitionId::new) {
        let lease = store.acquire(Seat::Partition(partition), &broker, TTL, NOW).await.unwrap();
        assert_eq!(lease.epoch, epoch());
    }
    store.acquire(Seat::Leader, &broker, TTL, NOW).await.unwrap();
}

/// Applies the batches of one round to all partitions.
async fn apply(store: &impl TaskStore, round: usize) {
    for partition in (0..PARTITIONS).filter_map(PartitionId::new) {
        let rounds = rounds(partition);
        let before: usize = rounds[..round].iter().map(Vec::len).sum();
        let number = BatchNo::FIRST.get() + before as u64;
        for (number, changes) in (number..).zip(&rounds[round]) {
            let batch = Batch::new(BatchNo::new(number), changes.clone());
            store.apply(partition, epoch(), batch).await.unwrap();
        }
    }
}

async fn write(dir: &Path) {
    let (store, _) = EmbeddedStore::open(dir, options()).unwrap();
    acquire(&store).await;
    for round in 0..3 {
        apply(&store, round).await;
        if round < 2 {
            store.checkpoint().await.unwrap();
        }
    }
    // Dropped, not closed: the last round is replayed at opening.
    drop(store);
    // The lock names this machine.
    fs::remove_file(dir.join("LOCK")).unwrap();
    let journal = dir.join(CATALOG_JOURNAL);
    let mut bytes = fs::read(&journal).unwrap();
    assert_eq!(bytes.len() as u64, CATALOG_JOURNAL_BYTES);
    let length = bytes.iter().rposition(|byte| *byte != 0).unwrap() + 1;
    bytes.truncate(length);
    fs::write(&journal, bytes).unwrap();
}

/// The catalog preallocates its journal. The fixture does not have the zeros at its end.
const CATALOG_JOURNAL: &str = "catalog/0.jnl";
const CATALOG_JOURNAL_BYTES: u64 = 64 << 20;

/// Copies the fixture, and restores what a repository does not keep: the zeros at the end of the
/// catalog's journal, and empty directories.
fn restore(dir: &Path) {
    copy(&fixture(), dir);
    let journal = fs::File::options().write(true).open(dir.join(CATALOG_JOURNAL)).unwrap();
    journal.set_len(CATALOG_JOURNAL_BYTES).unwrap();
    for keyspace in fs::read_dir(dir.join("catalog/keyspaces")).unwrap() {
        fs::create_dir_all(keyspace.unwrap().path().join("tables")).unwrap();
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// Compares everything that can be read of a partition.
async fn compare(store: &EmbeddedStore, model: &MemoryStore, partition: PartitionId) {
    let load = (Position::START, Timestamp::MAX, usize::MAX);
    let loaded = store.load(partition, load.0, load.1, load.2).await.unwrap();
    assert_eq!(loaded, model.load(partition, load.0, load.1, load.2).await.unwrap());
    for name in NAMESPACES {
        let namespace = namespace(name);
        let counts = store.counts(partition, &namespace).await.unwrap();
        assert_eq!(counts, model.counts(partition, &namespace).await.unwrap());
        let filter = Filter::all(namespace.clone());
        let listed = store.list(partition, &filter, Position::START, 1000).await.unwrap();
        let expected = model.list(partition, &filter, Position::START, 1000).await.unwrap();
        assert_eq!(listed.items, expected.items);
        let dead = store.dead(partition, &namespace, None, 1000).await.unwrap();
        let expected = model.dead(partition, &namespace, None, 1000).await.unwrap();
        assert_eq!(dead.items, expected.items);
        let keys: Vec<TaskKey> =
            (0..TASKS + 5).map(|n| TaskKey::new(&format!("key/{n}")).unwrap()).collect();
        let heads = store.find(partition, &namespace, &keys).await.unwrap();
        assert_eq!(heads, model.find(partition, &namespace, &keys).await.unwrap());
        let last = store.last_fires(partition, &namespace, &keys).await.unwrap();
        assert!(last.iter().any(Option::is_some));
        assert_eq!(last, model.last_fires(partition, &namespace, &keys).await.unwrap());
        let filter = FireFilter::all(namespace);
        let fires = store.fires(partition, &filter, None, 1000).await.unwrap();
        assert!(!fires.items.is_empty());
        assert_eq!(fires, model.fires(partition, &filter, None, 1000).await.unwrap());
    }
    for number in 0..TASKS {
        let id = task(partition, number, at(10 + number * 7)).id;
        let got = store.get(partition, &[id]).await.unwrap();
        assert_eq!(got, model.get(partition, &[id]).await.unwrap());
        let history = store.history(partition, id, usize::MAX).await.unwrap();
        assert_eq!(history, model.history(partition, id, usize::MAX).await.unwrap());
    }
}

#[test]
fn a_directory_of_format_2_opens_and_has_everything() {
    run(async {
        if !fixture().exists() && std::env::var("PUNCTUAL_GOLDEN").is_ok_and(|v| v == "write") {
            write(&fixture()).await;
        }
        assert!(fixture().exists(), "{} is missing", fixture().display());
        let dir = tempfile::tempdir().unwrap();
        restore(dir.path());

        let model = MemoryStore::new(Partitions::new(PARTITIONS).unwrap());
        acquire(&model).await;
        for round in 0..3 {
            apply(&model, round).await;
        }
        let report = check(dir.path()).unwrap();
        assert_eq!(report.problems, Vec::<String>::new());
        assert!(report.paused > 0 && report.dead_letters > 0 && report.records > 0, "{report:?}");
        assert!(report.replayed > 0 && report.runs > 2, "{report:?}");

        let (store, opened) = EmbeddedStore::open(dir.path(), options()).unwrap();
        assert_eq!(opened.replayed, report.replayed);
        for partition in (0..PARTITIONS).filter_map(PartitionId::new) {
            compare(&store, &model, partition).await;
        }
        let seats = (0..PARTITIONS).filter_map(PartitionId::new).map(Seat::Partition);
        for seat in seats.chain([Seat::Leader]) {
            let lease = store.holder(seat).await.unwrap();
            assert!(lease.is_some());
            assert_eq!(lease, model.holder(seat).await.unwrap());
        }
        // Everything is still there after a checkpoint and another opening.
        store.close().await.unwrap();
        let (store, opened) = EmbeddedStore::open(dir.path(), options()).unwrap();
        assert!(opened.closed_cleanly && opened.replayed == 0, "{opened:?}");
        for partition in (0..PARTITIONS).filter_map(PartitionId::new) {
            compare(&store, &model, partition).await;
        }
    });
}
