//! Details of what the store keeps: history, settled claims, and damaged values.

use std::time::Duration;

use punctual_core::{FireEnd, FireRecord, Seat};
use punctual_store::conformance::fixtures::{at, die, next_fire, settle, shop};
use punctual_store::{
    Change, Filter, Head, LeaseStore, Position, Prior, Retention, StoreError, Swept, TaskStore,
};
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
    let was = Prior::apart(&record);
    let known = Change::Settle { record: record.clone(), next: None, was };
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

/// Returns the place of the damage that a read found.
fn damaged<T: std::fmt::Debug>(result: Result<T, StoreError>) -> String {
    match result {
        Err(StoreError::Damaged(damage)) => damage.place,
        other => unreachable!("no damage was found: {other:?}"),
    }
}

#[tokio::test]
async fn a_damaged_task_is_left_out_of_pages_and_named_by_other_reads() {
    let server = RedisServer::start(&[]);
    let settings = options(vec![server.url()]);
    let mut writer = TestWriter::open(settings.clone(), P).await;
    writer.put(5_000).await;
    let keys = keys::PartitionKeys::new(&settings.cluster, P);
    // More in a row than one page reads, at the beginning and in the middle.
    let overwrite = "for _, rank in ipairs({0, 2600}) do \
                     for _, id in ipairs(redis.call('ZRANGE', KEYS[2], rank, rank + 2199)) do \
                     redis.call('HSET', KEYS[1], id, 'x') end end";
    server.cli(&["EVAL", overwrite, "2", &keys.tasks, &keys.due]);
    let whole: Vec<_> = (2200..2600).chain(4800..5000).map(|at| writer.open[at].id).collect();
    assert_eq!(writer.loaded().await.expect("Redis answers"), whole);
    let few = writer.store.load(P, Position::START, at(1_000_000), 450).await;
    let few: Vec<_> = few.expect("Redis answers").iter().map(|task| task.id).collect();
    assert_eq!(few, whole[..450], "a page is full unless there are no more");
    assert_eq!(writer.store.damaged_values(), 4_400);
    let (mut listed, mut after) = (Vec::new(), Position::START);
    loop {
        let page = writer.store.list(P, &Filter::all(shop()), after, 100).await;
        let page = page.expect("Redis answers");
        listed.extend(page.items.iter().map(|task| task.id));
        match page.next {
            Some(next) => after = next,
            None => break,
        }
    }
    assert_eq!(listed, whole);
    let [damaged_id, whole_id] = [writer.open[0].id, whole[0]];
    assert!(damaged(writer.store.get(P, &[whole_id, damaged_id]).await).contains(&keys.tasks));
    assert!(writer.store.get(P, &[whole_id]).await.is_ok());
    // A change replaces the value.
    writer.settle(1).await;
    assert_eq!(writer.store.get(P, &[damaged_id]).await.expect("it has ended"), [None]);
}

#[tokio::test]
async fn a_key_of_another_type_is_named() {
    let server = RedisServer::start(&[]);
    let settings = options(vec![server.url()]);
    let mut writer = TestWriter::open(settings.clone(), P).await;
    writer.put(3).await;
    let keys = keys::PartitionKeys::new(&settings.cluster, P);
    server.cli(&["DEL", &keys.tasks]);
    assert_eq!(writer.loaded().await.expect("tasks without values are left out"), []);
    server.cli(&["SET", &keys.tasks, "x"]);
    let place = format!("key {}", keys.tasks);
    assert_eq!(damaged(writer.loaded().await), place);
    assert_eq!(damaged(writer.store.get(P, &[writer.open[0].id]).await), place);
    let tasks = writer.tasks(1);
    assert_eq!(damaged(writer.send(put(&tasks)).await), place);
    server.cli(&["HSET", &keys.own, "epoch", "many"]);
    let holder = writer.store.holder(Seat::Partition(P)).await;
    assert_eq!(damaged(holder), format!("key {}, field \"epoch\"", keys.own));
}

#[tokio::test]
async fn a_sweep_passes_over_what_it_cannot_read() {
    let server = RedisServer::start(&[]);
    let settings = options(vec![server.url()]);
    let mut writer = TestWriter::open(settings.clone(), P).await;
    let tasks = writer.tasks(3);
    writer.apply(put(&tasks)).await;
    writer.apply(vec![settle(&tasks[0], FireEnd::Done, at(1)), die(&tasks[1], at(1), None)]).await;
    let keys = keys::PartitionKeys::new(&settings.cluster, P);
    // As many as a sweep reads at once.
    for member in 0..10 {
        server.cli(&["ZADD", &keys.ages, "0", &format!("piece {member}")]);
    }
    server.cli(&["ZADD", &keys.dead_ages, "0", "short"]);
    server.cli(&["HSET", &keys.counts, "shop", "x"]);
    let overwrite = "redis.call('HSET', KEYS[1], '\\0history', 'x') \
                     redis.call('HSET', KEYS[1], 'shop\\0l', 'x')";
    server.cli(&["EVAL", overwrite, "1", &keys.counts]);
    let short = Duration::from_secs(1);
    let retention = Retention { history_age: short, dead_age: short, ..Retention::default() };
    let mut swept = Swept::default();
    for _ in 0..2 {
        let more = writer.store.sweep(P, writer.epoch, retention, at(100)).await;
        let more = more.expect("the writer owns the partition");
        swept = Swept { history: swept.history + more.history, dead: swept.dead + more.dead };
    }
    assert_eq!((swept.history, swept.dead), (2, 1));
    assert_eq!(writer.store.damaged_values(), 10 + 1 + 2);
    assert_eq!(server.cli(&["ZCARD", &keys.ages]).trim(), "10", "they stay for an operator");
}
