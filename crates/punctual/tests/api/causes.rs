//! Tasks that wait, each for a planted cause: `explain` names it, over HTTP and in the command
//! line. Causes that need several brokers are in `tests/cluster/explain.rs`.

use std::net::SocketAddr;

use punctual_core::{Namespace, Partitions, TaskKey, partition_of};
use punctual_test_support::{
    BrokerClient, ClockedBroker, FinishedCommand, HangingReceiver, RecordingReceiver, TestBroker,
    WAIT_MAX, until_ok,
};
use serde_json::{Value, json};

/// Few tasks with large payloads use up the memory of one of so many partitions.
const PARTITIONS: u16 = 32;

/// A task, and what is to be said about it.
struct PlantedCause {
    namespace: &'static str,
    key: String,
    waiting_for: &'static str,
    /// In the summary or the details.
    says: Vec<&'static str>,
}

impl PlantedCause {
    fn new(key: &str, waiting_for: &'static str, says: &[&'static str]) -> Self {
        Self { namespace: "shop", key: key.to_owned(), waiting_for, says: says.to_vec() }
    }

    /// Waits until the cause is named over HTTP, and asserts that the command line names it too.
    /// Returns the answer.
    fn assert_named(&self, broker: SocketAddr) -> Value {
        let (client, key) = (BrokerClient::new(broker, WAIT_MAX), self.key.as_str());
        let answer = until_ok(|| {
            let path = format!("/v1/{}/tasks/{key}/explain", self.namespace);
            let (status, answer) = client.request("GET", &path, "").ok_or("no answer")?;
            let sentences = answer["details"].as_array().into_iter().flatten();
            let sentences = sentences.chain([&answer["summary"]]).filter_map(Value::as_str);
            let text = sentences.collect::<Vec<_>>().join("\n");
            let named = status == 200
                && answer["waiting_for"] == self.waiting_for
                && self.says.iter().all(|words| text.contains(words));
            let wanted = (self.waiting_for, &self.says);
            if named { Ok(answer) } else { Err(format!("{wanted:?} of {key}: {answer}")) }
        });
        let printed = FinishedCommand::text(broker, &["explain", self.namespace, key]);
        for words in &self.says {
            assert!(printed.contains(words), "{words:?} of {key} is not printed: {printed}");
        }
        answer
    }
}

/// Returns keys of tasks in one partition.
fn keys_of_partition(namespace: &str, partition: u16, prefix: &str, count: usize) -> Vec<String> {
    let partitions = Partitions::new(PARTITIONS).unwrap();
    let namespace = Namespace::new(namespace).unwrap();
    let is_there = |key: &String| {
        let key = TaskKey::new(key.as_str()).unwrap();
        partition_of(&namespace, &key, partitions).get() == partition
    };
    (0..).map(|n| format!("{prefix}-{n}")).filter(is_there).take(count).collect()
}

fn put(client: &BrokerClient, namespace: &str, key: &str, body: &Value) {
    let path = format!("/v1/{namespace}/tasks/{key}");
    let (status, made) = client.request("PUT", &path, &body.to_string()).unwrap();
    assert_eq!(status, 201, "{key}: {made}");
}

fn hook(url: &str) -> Value {
    json!({"http": {"url": url}})
}

fn queue(name: &str) -> Value {
    json!({ "queue": name })
}

#[test]
fn each_planted_cause_is_named_by_explain() {
    let partitions = PARTITIONS.to_string();
    let broker = TestBroker::start(&["--partitions", &partitions]);
    let client = BrokerClient::new(broker.address, WAIT_MAX);
    let (receiver, hanging) = (RecordingReceiver::start(), HangingReceiver::start());
    let failing = format!("{}/failing/x", receiver.url);
    let shop = |key: &str, body: Value| put(&client, "shop", key, &body);
    let pauses = json!({"backoff": {"fixed": "1h"}});
    let once = json!({"attempts_max": 1});

    // The last Sunday in March has no half past two in Berlin.
    shop(
        "spring",
        json!({"cron": "30 2 * 3 SUNL", "timezone": "Europe/Berlin", "target": queue("q")}),
    );
    shop("jittered", json!({"every": "1h", "jitter": "30m", "target": queue("q")}));
    shop("watched", json!({"within": "1h", "target": queue("q")}));
    shop("retried", json!({"in": "0s", "retry": pauses, "target": hook(&failing)}));
    shop("lonely", json!({"in": "0s", "target": queue("unserved")}));
    shop("stopped", json!({"in": "1h", "target": queue("q")}));
    client.post("/tasks/stopped/pause", &json!({}));
    shop("inactive", json!({"in": "0s", "paused": true, "target": queue("unserved")}));
    shop("done", json!({"in": "0s", "target": hook(&format!("{}/now/x", receiver.url))}));
    shop("dead", json!({"in": "0s", "retry": once, "target": hook(&failing)}));
    shop("cancelled", json!({"in": "1h", "target": queue("q")}));
    assert_eq!(broker.delete("cancelled").0, 200);
    shop("silent", json!({"within": "100ms", "target": hook(&format!("{}/now/x", receiver.url))}));
    // A worker that takes one delivery and does not settle it.
    shop("held", json!({"in": "0s", "timeout": "10m", "target": queue("busy")}));
    let lease = json!({"max": 1, "wait": "20s", "lease": "10m", "worker": "lazy"});
    let (_, leased) = client.post("/queues/busy/lease", &lease);
    assert_eq!(leased["deliveries"][0]["key"], "held", "{leased}");
    let partition = client.get("/tasks/held/explain").1["partition"].as_u64().unwrap();
    let behind = keys_of_partition("shop", partition.try_into().unwrap(), "behind", 1).remove(0);
    shop(&behind, json!({"in": "0s", "target": queue("busy")}));
    // A receiver that never answers: one in flight. And one to which, in one partition, so many
    // expire beside one in flight that only four are sent at once.
    shop("hanging", json!({"in": "0s", "timeout": "15m", "target": hook(&hanging.url)}));
    let slow = HangingReceiver::start();
    let slow_keys = keys_of_partition("shop", 0, "slow", 5);
    let unanswered = json!({"in": "0s", "timeout": "15m", "target": hook(&slow.url)});
    shop(&slow_keys[0], unanswered.clone());
    for key in keys_of_partition("shop", 0, "expiring", 7) {
        let retry = once.clone();
        shop(
            &key,
            json!({"in": "0s", "timeout": "10ms", "retry": retry, "target": hook(&slow.url)}),
        );
    }
    until_ok(|| {
        let (_, page) = client.get("/fires?key_prefix=expiring&end=dead");
        let ended = page["fires"].as_array().map_or(0, Vec::len);
        if ended == 7 { Ok(()) } else { Err(format!("{ended} of 7 expired")) }
    });
    for key in &slow_keys[1..] {
        shop(key, unanswered.clone());
    }
    // Deliveries in flight that take all the memory that their namespace may have.
    let bulk = keys_of_partition("bulk", 1, "bulk", 6);
    for key in &bulk {
        let payload = "x".repeat(250_000);
        let body =
            json!({"in": "0s", "timeout": "15m", "target": hook(&hanging.url), "payload": payload});
        put(&client, "bulk", key, &body);
    }
    // A series whose fires are skipped because the first one has not ended.
    let target = hook(&hanging.url);
    shop(
        "overlapping",
        json!({"every": "100ms", "overlap": "skip", "timeout": "15m", "target": target}),
    );

    let slow_origin = "is slow: it did not answer in time, so at most 4 deliveries are sent";
    let causes = [
        PlantedCause::new(
            "spring",
            "time",
            &["by cron \"30 2 * 3 SUNL\" in Europe/Berlin", "Clock change: 02:30 does not exist"],
        ),
        PlantedCause::new("jittered", "time", &["every 1h", "Jitter moves it from"]),
        PlantedCause::new("watched", "time", &["if it is not touched within 1h"]),
        PlantedCause::new(
            "retried",
            "retry",
            &["attempt 2 of 5", "because attempt 1 failed: HTTP 500", "boom: db locked"],
        ),
        PlantedCause::new("lonely", "worker", &["no worker is connected to queue \"unserved\""]),
        PlantedCause::new(
            "held",
            "worker",
            &["worker of queue \"busy\" has attempt 1 and has not"],
        ),
        PlantedCause::new(&behind, "capacity", &["1 worker of queue \"busy\" has 1 unsettled"]),
        PlantedCause::new("hanging", "nothing", &["attempt 1 was sent to", "has 15m to answer"]),
        PlantedCause::new(&slow_keys[4], "capacity", &[slow_origin]),
        PlantedCause {
            namespace: "bulk",
            ..PlantedCause::new(
                &bulk[5],
                "limit",
                &["namespace \"bulk\" has as much in flight as its share of the owner's memory"],
            )
        },
        PlantedCause::new("stopped", "pause", &["is paused since", "resume it"]),
        PlantedCause::new("inactive", "pause", &["is paused since", "resume it"]),
        PlantedCause::new(
            "overlapping",
            "nothing",
            &["attempt 1 was sent to", "are skipped (overlap skip)"],
        ),
        PlantedCause::new("done", "nothing", &["is done: its last fire succeeded", "1 attempt"]),
        PlantedCause::new("dead", "nothing", &["is dead", "failed: HTTP 500", "boom: db locked"]),
        PlantedCause::new("cancelled", "nothing", &["was cancelled at"]),
        PlantedCause::new("silent", "nothing", &["a watch that has fired; a touch arms it again"]),
    ];
    for cause in causes {
        cause.assert_named(broker.address);
    }
}

#[test]
fn a_missing_connection_is_named_by_explain() {
    let broker = TestBroker::start(&["--webhook-connections", "1"]);
    let client = BrokerClient::new(broker.address, WAIT_MAX);
    let (hanging, other) = (HangingReceiver::start(), HangingReceiver::start());
    let task = |url: &str| json!({"in": "0s", "timeout": "15m", "target": hook(url)});
    put(&client, "shop", "hanging", &task(&hanging.url));
    let _open = hanging.streams.recv_timeout(WAIT_MAX).expect("the first delivery is sent");
    put(&client, "shop", "unconnected", &task(&other.url));
    let says = ["waits for a connection", "the broker has 1 connection open"];
    PlantedCause::new("unconnected", "capacity", &says).assert_named(broker.address);
}

#[test]
fn a_suspect_clock_is_named_by_explain() {
    let broker = ClockedBroker::start();
    let body = json!({"in": "1h", "target": queue("q")});
    put(&broker.client, "shop", "later", &body);
    broker.set("+7200");
    let says = ["is due at", "The clock of the owner is suspect"];
    PlantedCause::new("later", "time", &says).assert_named(broker.client.address);
    broker.stop();
}
