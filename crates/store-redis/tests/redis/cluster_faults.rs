//! Faults of a Redis Cluster: a slot that moves while it is in use, and servers that fail over.
//!
//! One test has all faults one after the other, because starting a Cluster takes seconds.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use punctual_core::PartitionId;
use punctual_store_redis::{Durability, keys::PartitionKeys};
use punctual_test_support::redis::RedisCluster;
use punctual_test_support::wait_for;

use crate::writer::{TestWriter, options};

/// Writes until `stop` is set.
async fn write_until(mut writer: TestWriter, stop: Arc<AtomicBool>) -> TestWriter {
    while !stop.load(Ordering::SeqCst) {
        writer.put(20).await;
        writer.settle(10).await;
    }
    writer
}

/// Calls `what` while a writer works, and checks that nothing was lost or doubled.
async fn while_writing<T: Send + 'static>(
    writer: TestWriter,
    what: impl FnOnce() -> T + Send + 'static,
) -> (TestWriter, T) {
    let stop = Arc::new(AtomicBool::new(false));
    let writing = tokio::spawn(write_until(writer, Arc::clone(&stop)));
    let done = tokio::task::spawn_blocking(what).await.expect("the fault is injected");
    stop.store(true, Ordering::SeqCst);
    let mut writer = writing.await.expect("the writer ends without a panic");
    println!("batches: {:?}, sent again: {}", writer.number, writer.repeated);
    writer.put(1).await;
    writer.assert_whole().await;
    (writer, done)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_while_slots_move_and_servers_fail_over() {
    let cluster = RedisCluster::start();
    let mut settings = options(cluster.urls());
    settings.durability = Durability::Replica;
    settings.timeout = Duration::from_millis(1000);
    let partition = PartitionId::FIRST;
    let key = PartitionKeys::new(&settings.cluster, partition).own;
    let mut writer = TestWriter::open(settings, partition).await;
    writer.put(100).await;

    // A slot moves to another server, key by key.
    let to = (cluster.serving(&key) + 1) % 3;
    let moved = key.clone();
    let (writer, cluster) = while_writing(writer, move || {
        cluster.move_slot(&moved, to);
        cluster
    })
    .await;
    assert_eq!(cluster.serving(&key), to);

    // The replica takes over by CLUSTER FAILOVER.
    let replica = cluster.replica_of(to);
    let moved = key.clone();
    let (writer, cluster) = while_writing(writer, move || {
        assert_eq!(cluster.servers[replica].cli(&["CLUSTER", "FAILOVER"]).trim(), "OK");
        wait_for("the replica to take over", || cluster.serves(replica, &moved));
        wait_for("the old server to follow", || cluster.follows(to, replica));
        cluster
    })
    .await;

    // The first server takes over again when the second is suspended.
    let moved = key.clone();
    let (writer, cluster) = while_writing(writer, move || {
        cluster.servers[replica].suspend();
        wait_for("the other server to take over", || cluster.serves(to, &moved));
        cluster.servers[replica].resume();
        wait_for("the old server to follow", || cluster.follows(replica, to));
        cluster
    })
    .await;
    let after_suspension = writer.repeated;
    assert!(after_suspension > 0, "batches were sent again");

    // The second takes over once more when the first is killed, and the first comes back.
    let (writer, _cluster) = while_writing(writer, move || {
        let mut cluster = cluster;
        cluster.servers[to].kill();
        wait_for("the other server to take over", || cluster.serves(replica, &key));
        cluster.servers[to].start_again();
        wait_for("the old server to follow", || cluster.follows(to, replica));
        cluster
    })
    .await;
    assert!(writer.repeated > after_suspension, "batches were sent again");
    assert_eq!(writer.store.rewinds(), 0);
}
