//! Details of what the store keeps: history, settled claims, and foreign bytes.

use punctual_core::{FireEnd, FireRecord, Seat, TaskState};
use punctual_store::conformance::fixtures::{at, die, next_fire, settle, shop};
use punctual_store::{Change, Head, LeaseStore, Retention, StoreError, TaskStore};
use punctual_store_redis::keys;
use punctual_test_support::redis::RedisServer;

use crate::writer::{P, TestWriter, options, put};

#[tokio::test]
async fn settling_a_claim_later_does_not_change_the_next_fire_of_the_task() {
    let server = RedisServer::start(&[]);
    let mut writer = TestWriter::open(options(vec![server.url()]), P).await;
    let task = writer.tasks(1).remove(0);
    let next = next_fire(&task, at(60));
    // The claim is a dead letter written before sending; the task already has its next fire.
    let claim = die(&task, at(1), Some(&next));
    writer.apply(vec![Change::Put(task.clone()), claim]).await;
    let fire_id = task.fire().id;
    let record = FireRecord::of(&task, FireEnd::Done, at(2));
    let known = Change::Settle { record: record.clone(), next: None, was: TaskState::Firing };
    writer.apply(vec![Change::DeleteLetter { fire_id, namespace: shop() }, known]).await;
    assert_eq!(writer.store.get(P, &[task.id]).await.expect("Redis answers"), [Some(next.clone())]);
    let key = task.definition.key.clone().expect("has a key");
    let found = writer.store.find(P, &shop(), &[key]).await.expect("Redis answers");
    assert_eq!(found, [Some(Head::of(&next))]);
    let history = writer.store.history(P, task.id, 9).await.expect("Redis answers");
    assert_eq!(history, [record], "the record replaces the claim");
}

#[tokio::test]
async fn the_sweep_deletes_the_oldest_history_beyond_the_limit() {
    let server = RedisServer::start(&[]);
    let mut writer = TestWriter::open(options(vec![server.url()]), P).await;
    let mut ends = Vec::new();
    for second in 0..20 {
        let tasks = writer.tasks(50);
        writer.apply(put(&tasks)).await;
        let settled = |task| settle(task, FireEnd::Done, at(second));
        writer.apply(tasks.iter().map(settled).collect()).await;
        ends.push(tasks[0].id);
    }
    let half = Retention { history_bytes: 50_000, ..Retention::default() };
    let swept = writer
        .store
        .sweep(P, writer.epoch, half, at(20))
        .await
        .expect("the writer owns the partition");
    assert!(swept.history >= 100 && swept.history % 50 == 0, "{swept:?}");
    let gone = usize::try_from(swept.history / 50).expect("few");
    for (index, id) in ends.iter().enumerate() {
        let kept = writer.store.history(P, *id, 9).await.expect("Redis answers");
        assert_eq!(kept.len(), usize::from(index >= gone), "the oldest {gone} are deleted");
    }
    let again = writer
        .store
        .sweep(P, writer.epoch, half, at(20))
        .await
        .expect("the writer owns the partition");
    assert_eq!(again.history, 0, "the rest is within the limit");
    assert_eq!(writer.counts().await.done, 1000);
}

#[tokio::test]
async fn foreign_data_in_redis_is_an_error_and_not_a_panic() {
    let server = RedisServer::start(&[]);
    let settings = options(vec![server.url()]);
    let mut writer = TestWriter::open(settings.clone(), P).await;
    writer.put(3).await;
    let keys = keys::PartitionKeys::new(&settings.cluster, P);
    let ids = server.cli(&["ZRANGE", &keys.due, "0", "0"]);
    assert!(!ids.is_empty());
    // Bodies that cannot be decoded, an index without bodies, and a key of another type.
    let overwrite = "for _, id in ipairs(redis.call('HKEYS', KEYS[1])) do \
                     redis.call('HSET', KEYS[1], id, 'x') end";
    server.cli(&["EVAL", overwrite, "1", &keys.tasks]);
    assert!(matches!(writer.loaded().await, Err(StoreError::Broken(_))));
    let id = writer.open[0].id;
    assert!(matches!(writer.store.get(P, &[id]).await, Err(StoreError::Broken(_))));
    server.cli(&["DEL", &keys.tasks]);
    assert!(matches!(writer.loaded().await, Err(StoreError::Broken(_))));
    server.cli(&["SET", &keys.tasks, "x"]);
    assert!(matches!(writer.loaded().await, Err(StoreError::Broken(_))));
    let tasks = writer.tasks(1);
    assert!(matches!(writer.send(put(&tasks)).await, Err(StoreError::Broken(_))));
    server.cli(&["HSET", &keys.own, "epoch", "many"]);
    let holder = writer.store.holder(Seat::Partition(P)).await;
    assert!(matches!(holder, Err(StoreError::Broken(_))), "{holder:?}");
}
