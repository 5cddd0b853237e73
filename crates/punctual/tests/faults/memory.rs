//! Brokers on a Redis without memory: new tasks are refused and can be retried, everything else
//! works.
//!
//! The same under load is a round of `cluster`; the tests of the store alone are in
//! `store-redis/tests/redis/memory.rs`.

use std::collections::BTreeSet;
use std::time::Duration;

use punctual_client::{Client, Error};
use punctual_proto::v1;
use punctual_proto::v1::tasks_client::TasksClient;
use punctual_test_support::{
    BrokerClient, RecordingReceiver, TestCluster, WAIT_MAX, eventually, now_millis,
};
use serde_json::{Value, json};
use tonic::Code;
use tonic::transport::Endpoint;

const HOUR: Duration = Duration::from_secs(3600);
/// The number of tasks of a kind: each broker owns some, so that some calls are forwarded.
const KEYS: u64 = 16;
/// Longer than the lease, in milliseconds: the last tasks fire under a lease that was renewed
/// without memory.
const BEYOND_LEASE: u64 = 3_000;

fn hour(url: &str) -> Value {
    json!({"in": "1h", "target": {"http": {"url": url}}})
}

/// Schedules tasks that fire one after the other, until after the lease.
fn put_ticks(client: &BrokerClient, url: &str, name: &str, guarantee: &str) {
    let begun = u64::try_from(now_millis()).unwrap() + 500;
    for n in 0..KEYS {
        let (key, due) = (format!("{name}-{n}"), begun + n * BEYOND_LEASE / (KEYS - 1));
        let target = json!({"http": {"url": format!("{url}/now/{key}")}});
        let task = json!({"at": due, "guarantee": guarantee, "target": target});
        let (status, made) = client.put(&key, &task);
        assert_eq!(status, 201, "{made}");
    }
}

/// Asserts that new tasks are refused as the API documents it.
fn assert_refuses(client: &BrokerClient, url: &str, name: &str) {
    for n in 0..KEYS {
        let (path, body) = (format!("/v1/shop/tasks/{name}-{n}"), hour(url).to_string());
        let answer = client.send("PUT", &path, &body).expect("the broker answers");
        let (status, problem) = (answer.status().as_u16(), answer.body());
        assert_eq!((status, &problem["type"]), (503, &json!("urn:punctual:full")), "{problem}");
        assert!(problem["detail"].as_str().unwrap().contains("memory"), "{problem}");
        assert_eq!(answer.headers()["retry-after"], "1");
    }
    let (status, problem) = client.post("/tasks", &hour(url));
    assert_eq!((status, &problem["type"]), (503, &json!("urn:punctual:full")), "{problem}");
    let (status, answer) = client.post("/tasks", &json!([hour(url), hour(url)]));
    assert_eq!(status, 200, "{answer}");
    for problem in answer["results"].as_array().unwrap() {
        assert_eq!(
            (&problem["status"], &problem["type"]),
            (&json!(503), &json!("urn:punctual:full"))
        );
    }
}

/// Asserts that gRPC distinguishes this from a broker that stops: other brokers need not be called.
fn assert_refuses_over_grpc(client: &BrokerClient) {
    let url = format!("http://{}", client.address);
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let shop = Client::connect(url.as_str()).unwrap().namespace("shop");
        let refused = shop.task().key("new").queue("idle").delay(HOUR).schedule().await;
        assert!(matches!(&refused, Err(Error::Busy(why)) if why.contains("memory")), "{refused:?}");
        let task = v1::NewTask {
            key: "new".to_owned(),
            when: Some(v1::new_task::When::InMs(3_600_000)),
            target: Some(v1::Target { to: Some(v1::target::To::Queue("idle".to_owned())) }),
            ..v1::NewTask::default()
        };
        let request = v1::ScheduleRequest {
            namespace: "shop".to_owned(),
            task: Some(task),
            ..v1::ScheduleRequest::default()
        };
        let channel = Endpoint::from_shared(url).unwrap().connect().await.unwrap();
        let mut tasks = TasksClient::new(channel);
        let refused = tasks.schedule(request).await.unwrap_err();
        assert_eq!(refused.code(), Code::ResourceExhausted, "{refused:?}");
    });
}

/// Waits until all tasks of these names were received and settled.
fn assert_fire(receiver: &RecordingReceiver, client: &BrokerClient, names: &[&str]) {
    let keys = || names.iter().flat_map(|name| (0..KEYS).map(move |n| format!("{name}-{n}")));
    let mut missing: BTreeSet<String> = keys().collect();
    for key in receiver.deliveries().keys() {
        missing.remove(key);
    }
    while !missing.is_empty() {
        let key = receiver.next(WAIT_MAX).unwrap_or_else(|| panic!("{missing:?} do not fire"));
        missing.remove(&key);
    }
    for key in keys() {
        eventually(|| {
            let (status, task) = client.get(&format!("/tasks/{key}"));
            (status == 404 || task["end"].is_string()).then_some(())
        });
    }
}

#[test]
fn without_memory_new_tasks_are_refused_and_existing_ones_fire_and_change() {
    let cluster = TestCluster::on_loopback(2, &[]);
    let receiver = RecordingReceiver::start();
    let [here, there] = [cluster.client(0), cluster.client(1)];
    for n in 0..KEYS {
        for name in ["cancelled", "touched", "kept"] {
            assert_eq!(here.put(&format!("{name}-{n}"), &hour(&receiver.url)).0, 201);
        }
    }
    put_ticks(here, &receiver.url, "least", "at_least_once");
    put_ticks(there, &receiver.url, "most", "at_most_once");
    let before = cluster.epochs();
    cluster.redis.fill_memory();
    for client in [here, there] {
        assert_refuses(client, &receiver.url, "new");
        assert_refuses(client, &receiver.url, "kept");
        assert_refuses_over_grpc(client);
    }
    for n in 0..KEYS {
        let (status, answer) = there.shop("DELETE", &format!("/tasks/cancelled-{n}"), &Value::Null);
        assert_eq!((status, &answer["result"]), (200, &json!("cancelled")), "{answer}");
        let (status, answer) =
            there.post(&format!("/tasks/touched-{n}/touch"), &json!({"in": "2h"}));
        assert_eq!((status, &answer["version"]), (200, &json!(2)), "{answer}");
    }
    assert_fire(&receiver, here, &["least", "most"]);
    for (key, deliveries) in receiver.deliveries() {
        let [delivery] = deliveries.as_slice() else { panic!("{key}: {deliveries:?}") };
        assert!(delivery.at_millis >= u128::from(delivery.fire_at_millis), "{key}: {delivery:?}");
    }
    assert_eq!(cluster.epochs(), before, "leases were renewed");
    assert_refuses(here, &receiver.url, "new");
    cluster.redis.free_memory();
    for (n, client) in (0..KEYS).zip([here, there].into_iter().cycle()) {
        let (status, answer) = client.put(&format!("new-{n}"), &hour(&receiver.url));
        assert_eq!(status, 201, "{answer}");
        let (_, answer) = client.get(&format!("/tasks/kept-{n}"));
        assert_eq!(answer["version"], 1, "{answer}");
    }
    let (_, stats) = there.get("/stats");
    let counts = ["accepted", "scheduled", "done", "cancelled", "dead"].map(|name| &stats[name]);
    assert_eq!(counts, [6 * KEYS, 3 * KEYS, 2 * KEYS, KEYS, 0].map(Value::from).each_ref());
}

#[test]
fn without_memory_partitions_of_a_killed_broker_are_taken_over_and_it_starts_again() {
    let mut cluster = TestCluster::on_loopback(2, &[]);
    let receiver = RecordingReceiver::start();
    let [here, there] = [0, 1].map(|index| cluster.client(index).clone());
    put_ticks(&here, &receiver.url, "inherited", "at_least_once");
    cluster.redis.fill_memory();
    cluster.brokers[1].kill();
    assert_fire(&receiver, &here, &["inherited"]);
    let owned = cluster.wait_until_whole();
    assert_eq!(owned.by_broker.len(), 1, "{owned:?}");
    cluster.start_again(1);
    cluster.wait_until_whole();
    for client in [&here, &there] {
        assert_refuses(client, &receiver.url, "new");
    }
    cluster.redis.free_memory();
    put_ticks(&there, &receiver.url, "after", "exactly_once");
    assert_fire(&receiver, &here, &["after"]);
}
