//! Brokers that share a PostgreSQL or a MariaDB: a broker and the database are killed, and the
//! database hangs.

use std::collections::BTreeMap;
use std::time::Duration;

use punctual_test_support::cluster::SharedServer;
use punctual_test_support::{
    MariadbServer, PostgresServer, TestCluster, WebhookReceiver, eventually, now_millis, pause,
};
use serde_json::json;

const TASKS: u64 = 400;
/// Over which time the tasks are due, in milliseconds.
const SPAN_MS: u64 = 12_000;

/// A database that can be out of order.
trait FaultyDatabase: SharedServer {
    fn kill(&mut self);
    fn start_again(&mut self);
    fn suspend(&self);
    fn resume(&self);
}

macro_rules! faulty {
    ($server:ty) => {
        impl FaultyDatabase for $server {
            fn kill(&mut self) {
                self.kill();
            }
            fn start_again(&mut self) {
                self.start_again();
            }
            fn suspend(&self) {
                self.suspend();
            }
            fn resume(&self) {
                self.resume();
            }
        }
    };
}

faulty!(PostgresServer);
faulty!(MariadbServer);

fn mariadb() -> MariadbServer {
    let server = MariadbServer::start(&[]);
    server.database("tasks");
    server
}

#[test]
fn every_task_fires_through_kills_of_the_leader_and_of_postgres_and_a_hang() {
    fires_through_kills_and_a_hang("postgres", PostgresServer::start(&[]));
}

#[test]
fn every_task_fires_through_kills_of_the_leader_and_of_mariadb_and_a_hang() {
    fires_through_kills_and_a_hang("mysql", mariadb());
}

fn fires_through_kills_and_a_hang(kind: &str, server: impl FaultyDatabase) {
    let flags = ["--partitions", "6", "--allow-private-targets"];
    let mut cluster = TestCluster::over(server, 3, &flags, None);
    let (_, answer) = cluster.client(0).request("GET", "/v1/whoami", "").expect("an answer");
    assert_eq!(answer["store"], kind);
    let receiver = WebhookReceiver::start();
    let from = u64::try_from(now_millis()).unwrap() + 1_000;
    let tasks = (0..TASKS).map(|n| {
        json!({"key": format!("task-{n}"), "at": from + n * SPAN_MS / TASKS,
            "target": {"http": {"url": format!("{}/200/{n}", receiver.url)}}})
    });
    let (status, answer) = cluster.client(0).post("/tasks", &tasks.collect());
    assert_eq!(status, 200, "{answer}");

    pause(Duration::from_secs(2));
    let (leader, _) = cluster.leader_and_follower();
    cluster.brokers[leader].kill();
    pause(Duration::from_secs(3));
    cluster.redis.kill();
    pause(Duration::from_millis(500));
    cluster.redis.start_again();
    pause(Duration::from_secs(2));
    cluster.redis.suspend();
    // Longer than the lease.
    pause(Duration::from_secs(3));
    cluster.redis.resume();
    cluster.start_again(leader);

    let mut fired: BTreeMap<String, u64> = BTreeMap::new();
    while fired.len() < usize::try_from(TASKS).unwrap() {
        let delivery = receiver.next_within(Duration::from_secs(20));
        let delivery = delivery.unwrap_or_else(|| {
            let logs: Vec<String> = cluster.brokers.iter().map(|broker| broker.logged()).collect();
            panic!("{} of {TASKS} tasks fired\n{}", fired.len(), logs.join("\n"))
        });
        *fired.entry(delivery.path.clone()).or_default() += 1;
    }
    let twice = fired.values().filter(|count| **count > 1).count();
    println!("{TASKS} tasks fired, {twice} of them more than once");
    cluster.wait_until_whole();
    let stats = eventually(|| {
        let (status, stats) = cluster.client(leader).get("/stats");
        (status == 200 && stats["done"] == TASKS).then_some(stats)
    });
    assert_eq!(stats["scheduled"], 0, "{stats}");
}
