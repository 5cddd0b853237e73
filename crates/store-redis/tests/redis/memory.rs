//! A Redis without memory: new tasks are refused, and everything else continues.

use punctual_core::Seat;
use punctual_store::conformance::fixtures::{NOW, TTL, at, broker};
use punctual_store::{Batch, BatchNo, LeaseStore, Resource, StoreError, TaskStore};
use punctual_store_redis::RedisStore;
use punctual_test_support::redis::RedisServer;

use crate::writer::{P, TestWriter, done, options, put};

#[tokio::test]
async fn without_memory_new_tasks_are_refused_and_existing_ones_are_settled_and_touched() {
    let server = RedisServer::start(&[]);
    let mut writer = TestWriter::open(options(vec![server.url()]), P).await;
    writer.put(10).await;
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    let tasks = writer.tasks(3);
    for _ in 0..2 {
        let full = writer.send(put(&tasks)).await;
        assert!(
            matches!(full, Err(StoreError::Full { resource: Resource::Memory, .. })),
            "{full:?}"
        );
    }
    let ended = writer.open[..4].to_vec();
    writer.send(done(&ended)).await.expect("settling needs no memory");
    writer.open.drain(..4);
    let late = writer.open[0].clone();
    let (late, postponement) = punctual_store::conformance::fixtures::postpone(&late, at(500));
    writer.send(vec![postponement]).await.expect("touching needs no memory");
    writer.open.remove(0);
    let lease = writer.store.holder(Seat::Partition(P)).await.expect("Redis answers");
    writer
        .store
        .renew(&lease.expect("the lease is held"), TTL, NOW)
        .await
        .expect("renewing needs no memory");
    let again = Batch::new(BatchNo::new(3), Vec::new());
    writer.store.apply(P, writer.epoch, again).await.expect("already applied");
    server.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    writer.send(put(&tasks)).await.expect("there is memory again");
    writer.open.extend(tasks);
    writer.open.push(late);
    writer.assert_whole().await;
}

#[tokio::test]
async fn without_memory_a_broker_starts_and_takes_partitions_without_owner() {
    let server = RedisServer::start(&[]);
    let settings = options(vec![server.url()]);
    let mut gone = TestWriter::open(settings.clone(), P).await;
    let secret = gone.store.secret().await.expect("Redis answers");
    gone.put(3).await;
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    let seat = Seat::Partition(P);
    let lease = gone.store.holder(seat).await.expect("Redis answers").expect("the lease is held");
    gone.store.release(&lease).await.expect("releasing needs no memory");
    let store = RedisStore::open(settings).await.expect("the secret exists").0;
    assert_eq!(store.secret().await.expect("the secret exists"), secret);
    let acquired = store.acquire(seat, &broker("b:1"), TTL, NOW).await.expect("the lease is free");
    assert!(acquired.epoch > lease.epoch);
    let mut successor = gone;
    (successor.store, successor.epoch, successor.number) = (store, acquired.epoch, BatchNo::FIRST);
    let ended = successor.open[..2].to_vec();
    successor.send(done(&ended)).await.expect("settling needs no memory");
    successor.open.drain(..2);
    successor.assert_whole().await;
}
