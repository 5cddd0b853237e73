//! Partitions beside each other: no locks between them, and none that readers wait for.

use std::time::Duration;

use punctual_core::{BrokerId, FireEnd, PartitionId, Seat};
use punctual_store::conformance::fixtures::{NOW, TTL, at, die, id, partition, settle, shop, task};
use punctual_store::conformance::{StoreUnderTest, run};
use punctual_store::{
    Batch, BatchNo, Change, DueMinute, DueSteps, LeaseStore, Retention, TaskStore,
};
use punctual_store_sql::MysqlStore;

use crate::subject::MysqlSubject;

const BATCHES: u64 = 20;
const TASKS: u64 = 40;

/// Writes batches that each end the tasks of the one before, moves others, and sweeps. Any error
/// ends the test, a deadlock too.
async fn work(store: &MysqlStore, p: PartitionId) {
    let broker = BrokerId::new("a:1");
    let epoch = store.acquire(Seat::Partition(p), &broker, TTL, NOW).await.unwrap().epoch;
    let mut number = BatchNo::FIRST;
    let made = |round: u64| {
        (0..TASKS).map(move |n| {
            let key = format!("{p}-{round}-{n}");
            task(id(at(round), p, epoch, round * TASKS + n)).key(&key).build()
        })
    };
    let retention = Retention {
        history_age: Duration::ZERO,
        dead_age: Duration::ZERO,
        history_bytes: u64::MAX,
    };
    for round in 0..BATCHES {
        let mut changes: Vec<Change> = made(round).map(Change::Put).collect();
        if let Some(before) = round.checked_sub(1) {
            changes.extend(made(before).map(|task| settle(&task, FireEnd::Done, at(before))));
        }
        store.apply(p, epoch, Batch::new(number, changes)).await.unwrap();
        number = number.next();
        if round % 4 == 3 {
            store.sweep(p, epoch, retention, at(round)).await.unwrap();
        }
    }
    let counts = store.counts(p, &shop()).await.unwrap();
    let done = i64::try_from((BATCHES - 1) * TASKS).unwrap();
    assert_eq!((counts.scheduled, counts.done), (i64::try_from(TASKS).unwrap(), done));
}

#[test]
fn owners_of_several_partitions_write_and_sweep_at_once_without_a_deadlock() {
    run(async {
        let subject = MysqlSubject::new();
        let stores = [subject.open().await, subject.open().await];
        let work = |number: u16| work(&stores[usize::from(number % 2)], partition(number));
        tokio::join!(work(0), work(1), work(2), work(3));
    });
}

/// Writes one batch under each epoch, whose differences are folded behind it, and deletes letters.
async fn fold_often(store: &MysqlStore, p: PartitionId) {
    let broker = BrokerId::new("a:1");
    let hour = |round: u64| at(3600 * (1 + round % 30));
    for round in 0..BATCHES {
        let epoch = store.acquire(Seat::Partition(p), &broker, TTL, NOW).await.unwrap().epoch;
        let made = |number: u64| task(id(hour(round), p, epoch, number)).build();
        let mut changes: Vec<Change> = (0..TASKS).map(|number| Change::Put(made(number))).collect();
        changes.push(die(&made(0), NOW, None));
        store.apply(p, epoch, Batch::new(BatchNo::FIRST, changes)).await.unwrap();
        let fire_id = made(0).fire().id;
        let delete = Change::DeleteLetter { fire_id, namespace: shop() };
        let batch = Batch::new(BatchNo::FIRST.next(), vec![delete]);
        store.apply(p, epoch, batch).await.unwrap();
    }
    let minutes = [0, 1_000_000].map(|minute| DueMinute::new(DueMinute::of(NOW).get() + minute));
    let steps = DueSteps::new(minutes.into()).unwrap();
    let due = store.due_counts(p, &shop(), &steps).await.unwrap().tasks;
    assert_eq!(due, [i64::try_from(BATCHES * (TASKS - 1)).unwrap()]);
    assert_eq!(store.letter_groups(p, &shop()).await.unwrap(), []);
}

#[test]
fn owners_of_several_partitions_fold_their_counts_at_once_without_a_deadlock() {
    run(async {
        let subject = MysqlSubject::new();
        let stores = [subject.open().await, subject.open().await];
        let fold = |number: u16| fold_often(&stores[usize::from(number % 2)], partition(number));
        tokio::join!(fold(0), fold(1), fold(2), fold(3));
    });
}
