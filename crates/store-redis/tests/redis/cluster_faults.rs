//! Faults of a Redis Cluster, on a real one: a slot that moves while it is in use, and servers that change places.
//!
//! One test after another on one Cluster, because starting it takes seconds.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::writer::{TestWriter, options};
use punctual_core::PartitionId;
use punctual_store_redis::{Durability, keys::Keys};
use punctual_test_support::redis::RedisCluster;
use punctual_test_support::wait_for;

/// Goes on writing until it is told to stop.
async fn write_until(mut writer: TestWriter, stop: Arc<AtomicBool>) -> TestWriter {
    while !stop.load(Ordering::SeqCst) {
        writer.put(20).await;
        writer.settle(10).await;
    }
    writer
}

/// Runs something slow beside a writer, and checks that nothing was lost or doubled.
async fn beside<T: Send + 'static>(
    writer: TestWriter,
    what: impl FnOnce() -> T + Send + 'static,
) -> (TestWriter, T) {
    let stop = Arc::new(AtomicBool::new(false));
    let writing = tokio::spawn(write_until(writer, Arc::clone(&stop)));
    let done = tokio::task::spawn_blocking(what).await.expect("it can be done");
    stop.store(true, Ordering::SeqCst);
    let mut writer = writing.await.expect("the writer goes on");
    println!("batches: {:?}, sent again: {}", writer.number, writer.repeated);
    writer.put(1).await;
    writer.assert_whole().await;
    (writer, done)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_moves_slots_and_fails_over_and_nothing_is_lost() {
    let cluster = RedisCluster::start();
    let mut asked = options(cluster.urls());
    asked.durability = Durability::Replica;
    asked.timeout = Duration::from_millis(1000);
    let partition = PartitionId::FIRST;
    let key = Keys::new(&asked.cluster, partition).own;
    let mut writer = TestWriter::open(asked, partition).await;
    writer.put(100).await;

    // A slot moves to another server, key by key.
    let to = (cluster.serving(&key) + 1) % 3;
    let moved = key.clone();
    let (writer, cluster) = beside(writer, move || {
        cluster.move_slot(&moved, to);
        cluster
    })
    .await;
    assert_eq!(cluster.serving(&key), to);

    // Its replica takes over, in an orderly way.
    let replica = cluster.replica_of(to);
    let watched = key.clone();
    let (writer, cluster) = beside(writer, move || {
        assert_eq!(cluster.servers[replica].cli(&["CLUSTER", "FAILOVER"]).trim(), "OK");
        wait_for("the replica to take over", || cluster.serves(replica, &watched));
        wait_for("the old one to follow", || cluster.follows(to, replica));
        cluster
    })
    .await;

    // The first takes over again when that one hangs.
    let watched = key.clone();
    let (writer, cluster) = beside(writer, move || {
        cluster.servers[replica].suspend();
        wait_for("the other to take over", || cluster.serves(to, &watched));
        cluster.servers[replica].resume();
        wait_for("the old one to follow", || cluster.follows(replica, to));
        cluster
    })
    .await;
    let hung = writer.repeated;
    assert!(hung > 0, "somebody noticed");

    // And once more when the first is killed, and comes back.
    let (writer, _cluster) = beside(writer, move || {
        let mut cluster = cluster;
        cluster.servers[to].kill();
        wait_for("the other to take over", || cluster.serves(replica, &key));
        cluster.servers[to].start_again();
        wait_for("the old one to follow", || cluster.follows(to, replica));
        cluster
    })
    .await;
    assert!(writer.repeated > hung, "somebody noticed");
    assert_eq!(writer.store.rewinds(), 0);
}
