//! Replicas and failover of a single Redis: nothing acknowledged is lost unnoticed.

use std::time::Duration;

use punctual_core::Seat;
use punctual_store::conformance::fixtures::{NOW, TTL, broker};
use punctual_store::{BatchNo, LeaseStore, StoreError};
use punctual_store_redis::{Durability, RedisOpenError, RedisOptions, RedisStore, keys};
use punctual_test_support::redis::RedisServer;
use punctual_test_support::wait_for;

use crate::writer::{
    BOUND, P, TestWriter, is_unavailable, name_of, options, put, wait_briefly, within,
};

/// Returns whether the replica of a server is connected.
fn has_replica(server: &RedisServer) -> bool {
    let info = server.cli(&["INFO", "replication"]);
    info.contains("state=online") && !info.contains("lag=-1")
}

/// Returns whether a replica has the last batch of the only store on its server.
fn has_caught_up(replica: &RedisServer, server: &RedisServer) -> bool {
    let own = keys::own(&name_of(server), Seat::Partition(P));
    let [ours, theirs] = [replica, server].map(|server| server.cli(&["HGET", &own, "batch"]));
    ours == theirs && !ours.trim().is_empty()
}

/// Starts a server and its replica.
fn pair() -> (RedisServer, RedisServer) {
    let first = RedisServer::start(&["--repl-diskless-sync-delay", "0"]);
    let port = first.port.to_string();
    let second =
        RedisServer::start(&["--replicaof", "127.0.0.1", &port, "--replica-priority", "1"]);
    wait_for("the replica to follow", || has_replica(&first));
    (first, second)
}

#[tokio::test]
async fn a_replica_is_not_written_to_and_the_store_follows_a_failover() {
    let (first, second) = pair();
    let alone = RedisStore::open(options(vec![second.url()])).await;
    assert!(matches!(alone, Err(RedisOpenError::Store(StoreError::Unavailable(_)))), "{alone:?}");
    let mut settings = options(vec![second.url(), first.url()]);
    settings.durability = Durability::Replica;
    let mut writer = TestWriter::open(settings, P).await;
    writer.put(5).await;
    // The servers swap roles: the first is a replica from now on.
    second.cli(&["REPLICAOF", "NO", "ONE"]);
    first.cli(&["REPLICAOF", "127.0.0.1", &second.port.to_string()]);
    wait_for("the replica to follow", || has_replica(&second));
    writer.put(5).await;
    assert!(writer.repeated > 0, "the first server refused writes");
    writer.assert_whole().await;
    assert_eq!(writer.store.rewinds(), 0);
}

#[tokio::test]
async fn a_batch_is_not_acknowledged_before_the_replica_has_it() {
    let (mut first, second) = pair();
    let mut settings = options(vec![first.url(), second.url()]);
    settings.durability = Durability::Replica;
    let mut writer = TestWriter::open(settings, P).await;
    writer.put(5).await;
    second.suspend();
    let tasks = writer.tasks(2);
    for _ in 0..2 {
        // The primary applied it, but not as durably as demanded; also the second time.
        let alone = within(BOUND, writer.send(put(&tasks))).await;
        assert!(is_unavailable(&alone), "{alone:?}");
    }
    second.resume();
    writer.apply(put(&tasks)).await;
    writer.open.extend(tasks);
    first.kill();
    second.cli(&["REPLICAOF", "NO", "ONE"]);
    assert_eq!(writer.loaded_in_time().await, writer.open.len(), "every acknowledged task");
    assert_eq!(writer.store.rewinds(), 0);
}

impl TestWriter {
    async fn loaded_in_time(&self) -> usize {
        loop {
            if let Ok(loaded) = within(Duration::from_secs(5), self.loaded()).await {
                return loaded.len();
            }
            wait_briefly().await;
        }
    }
}

#[tokio::test]
async fn a_store_that_lost_acknowledged_batches_is_detected() {
    let (mut first, second) = pair();
    let mut writer = TestWriter::open(options(vec![first.url(), second.url()]), P).await;
    writer.put(5).await;
    // The replica is cut off; what is acknowledged now is lost with the first server.
    wait_for("the replica to catch up", || has_caught_up(&second, &first));
    second.cli(&["REPLICAOF", "NO", "ONE"]);
    writer.put(2).await;
    let epoch = writer.epoch;
    first.kill();
    let tasks = writer.tasks(1);
    let gap = loop {
        match within(Duration::from_secs(5), writer.send(put(&tasks))).await {
            Err(StoreError::Unavailable(_)) => wait_briefly().await,
            other => break other,
        }
    };
    let expected = BatchNo::new(2);
    assert!(
        matches!(gap, Err(StoreError::Gap { expected: is, .. }) if is == expected),
        "the error has the last batch: {gap:?}"
    );
    assert_eq!(writer.store.rewinds(), 1);
    let acquired = writer.store.acquire(Seat::Partition(P), &broker("a:1"), TTL, NOW).await;
    assert!(acquired.expect("the lease is its own").epoch > epoch);
}

#[tokio::test]
async fn a_lost_epoch_that_is_given_again_is_fenced_by_its_token() {
    let (mut first, second) = pair();
    let settings = options(vec![first.url(), second.url()]);
    let mut writer = TestWriter::open(settings.clone(), P).await;
    writer.put(1).await;
    wait_for("the replica to catch up", || has_caught_up(&second, &first));
    second.cli(&["REPLICAOF", "NO", "ONE"]);
    let seat = Seat::Partition(P);
    let lost =
        writer.store.acquire(seat, &broker("a:1"), TTL, NOW).await.expect("the lease is its own");
    first.kill();
    // Another broker, which does not know the lost epoch, gets the same number from the replica.
    let other = RedisStore::open(options_of(&settings, &second)).await.expect("the store opens").0;
    let own = keys::own(&settings.cluster, seat);
    second.cli(&["HSET", &own, "expires", "0"]);
    let acquired =
        other.acquire(seat, &broker("b:1"), TTL, NOW).await.expect("the lease has ended");
    assert_eq!(acquired.epoch, lost.epoch);
    writer.epoch = lost.epoch;
    writer.number = BatchNo::FIRST;
    let tasks = writer.tasks(1);
    let fenced = loop {
        match writer.send(put(&tasks)).await {
            Err(StoreError::Unavailable(_)) => wait_briefly().await,
            other => break other,
        }
    };
    assert!(matches!(fenced, Err(StoreError::Fenced { .. })), "the token differs: {fenced:?}");
    assert_eq!(writer.store.rewinds(), 1);
}

fn options_of(settings: &RedisOptions, server: &RedisServer) -> RedisOptions {
    RedisOptions { urls: vec![server.url()], ..settings.clone() }
}
