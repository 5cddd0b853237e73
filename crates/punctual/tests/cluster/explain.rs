//! Explanations, queues, workers and fires in a cluster: every broker gives the same answer, and
//! names what is missing when a broker or the store is gone.

use std::collections::BTreeSet;

use punctual_client::{Client, Failure};
use punctual_test_support::redis::RedisServer;
use punctual_test_support::{
    BrokerClient, FinishedCommand, RecordingReceiver, TestCluster, until_ok,
};
use serde_json::{Value, json};

use crate::keys::{due, keys_of};

/// Waits until all brokers give the same answer that holds, and returns it.
fn same_answer(
    clients: &[BrokerClient],
    path: &str,
    holds: impl Fn(&Value) -> bool,
    part: impl Fn(&Value) -> Value,
) -> Value {
    until_ok(|| {
        let answers: Vec<_> = clients.iter().map(|client| client.get(path)).collect();
        let parts: BTreeSet<String> =
            answers.iter().map(|(_, answer)| part(answer).to_string()).collect();
        let same = parts.len() == 1
            && answers.iter().all(|(status, answer)| *status == 200 && holds(answer));
        if same { Ok(answers[0].1.clone()) } else { Err(format!("{path}: {answers:?}")) }
    })
}

fn whole(answer: &Value) -> Value {
    answer.clone()
}

/// What an explanation says, without how long it is until then.
fn explained(answer: &Value) -> Value {
    let names = ["waiting_for", "details", "task", "partition", "owner", "epoch", "next", "fires"];
    json!(names.map(|name| &answer[name]))
}

/// Asserts that each broker explains the tasks of one owner in the same way.
fn check_explanations(
    clients: &[BrokerClient],
    owner: usize,
    keys: &[String],
    receiver: &RecordingReceiver,
) {
    let address = clients[owner].address.to_string();
    let [later, lonely, failing, dead] = keys else { panic!("four keys") };
    let put = |key: &str, task: &Value| {
        let (status, made) = clients[(owner + 1) % 3].put(key, task);
        assert_eq!(status, 201, "{made}");
    };
    let failing_url = format!("{}/failing/x", receiver.url);
    let with_retry = |retry: Value| {
        let mut task = due("0s", &failing_url);
        task["retry"] = retry;
        task
    };
    put(later, &due("1h", &receiver.url));
    put(lonely, &json!({"in": "0s", "target": {"queue": "unserved"}}));
    put(failing, &with_retry(json!({"backoff": {"fixed": "1h"}})));
    put(dead, &with_retry(json!({"attempts_max": 1})));
    for (key, waiting_for, says) in [
        (later, "time", "waits for its time"),
        (lonely, "worker", "no worker is connected to queue \"unserved\""),
        (failing, "retry", "boom: db locked"),
        (dead, "nothing", "boom: db locked"),
    ] {
        let holds = |answer: &Value| {
            answer["waiting_for"] == waiting_for
                && answer["owner"] == address.as_str()
                && answer["summary"].as_str().unwrap_or_default().contains(says)
        };
        same_answer(clients, &format!("/tasks/{key}/explain"), holds, explained);
        same_answer(clients, &format!("/tasks/{key}"), |task| task["key"] == key.as_str(), whole);
        let fires = |page: &Value| page["fires"].is_array();
        same_answer(clients, &format!("/tasks/{key}/fires"), fires, whole);
    }
}

#[test]
fn every_broker_explains_every_task_and_lists_the_queues_and_workers_of_all() {
    let mut cluster = TestCluster::over(RedisServer::start(&[]), 3, &[], None);
    let (clients, receiver) = (cluster.clients(), RecordingReceiver::start());
    let owned = cluster.wait_until_whole();
    let keys: Vec<_> = clients.iter().map(|client| keys_of(&owned, client, "a", 4)).collect();
    for (owner, keys) in keys.iter().enumerate() {
        check_explanations(&clients, owner, keys, &receiver);
    }
    let three = |page: &Value| page["fires"].as_array().is_some_and(|fires| fires.len() == 3);
    same_answer(&clients, "/fires?end=dead", three, whole);

    check_queues_and_workers(&clients);
    check_lanes(&clients);

    // The partitions of a broker that was killed have no owner until its lease has ended.
    let killed = cluster.client(0).address.to_string();
    cluster.brokers[0].kill();
    let rest = &clients[1..];
    let path = format!("/tasks/{}/explain", keys[0][0]);
    let says = format!("broker {killed}, which owned partition");
    let holds = |answer: &Value| {
        let summary = answer["summary"].as_str().unwrap_or_default();
        answer["waiting_for"] == "owner" && summary.contains(&says)
    };
    same_answer(rest, &path, holds, |answer| answer["waiting_for"].clone());
    let taken_over =
        |answer: &Value| answer["waiting_for"] == "time" && answer["owner"] != killed.as_str();
    same_answer(rest, &path, taken_over, explained);

    // Without the store nothing is known of a task.
    cluster.redis.suspend();
    let command = FinishedCommand::run(rest[0].address, &["explain", "shop", &keys[1][0]]);
    assert!(!command.success && command.errors.contains("store"), "{command:?}");
    cluster.redis.resume();
}

/// Connects a worker to each broker, which has one delivery, and asserts that all brokers list all
/// of them.
fn check_queues_and_workers(clients: &[BrokerClient]) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let _entered = runtime.enter();
    let workers: Vec<_> = clients
        .iter()
        .map(|client| {
            let connected = Client::connect(format!("http://{}", client.address)).unwrap();
            let worker = connected.namespace("shop").worker("busy").concurrency(1);
            worker.handler(|_| std::future::pending::<Result<(), Failure>>()).spawn()
        })
        .collect();
    for n in 0..9 {
        let task = json!({"in": "0s", "timeout": "10m", "target": {"queue": "busy"}});
        assert_eq!(clients[n % 3].put(&format!("busy-{n}"), &task).0, 201);
    }
    let brokers: BTreeSet<String> =
        clients.iter().map(|client| client.address.to_string()).collect();
    let listed = |page: &Value| {
        let workers = page["workers"].as_array().unwrap().iter();
        let of: BTreeSet<_> = workers.filter_map(|worker| worker["broker"].as_str()).collect();
        of == brokers.iter().map(String::as_str).collect()
    };
    same_answer(clients, "/workers", listed, whole);
    let adds_up = |page: &Value| {
        let queues = page["queues"].as_array().unwrap().iter();
        let busy = queues.clone().find(|queue| queue["name"] == "busy");
        let unserved = queues.clone().find(|queue| queue["name"] == "unserved");
        let sum = |queue: &Value| queue["waiting"].as_u64().zip(queue["in_flight"].as_u64());
        busy.and_then(sum).is_some_and(|(waiting, in_flight)| waiting + in_flight == 9)
            && unserved.and_then(sum) == Some((3, 0))
    };
    let counts = |page: &Value| {
        let queues = page["queues"].as_array().unwrap().iter();
        let names = ["name", "waiting", "in_flight", "workers", "more"];
        json!(queues.map(|queue| names.map(|name| &queue[name])).collect::<Vec<_>>())
    };
    same_answer(clients, "/queues", adds_up, counts);
    drop(workers);
}

/// Asserts that all brokers add up the lanes of all owners: each has one failing and one dead task
/// of the receiver, and one task of a queue without workers.
fn check_lanes(clients: &[BrokerClient]) {
    let names = ["kind", "target", "state", "waiting", "in_flight", "failed"];
    let counts = |page: &Value| {
        let lanes = page["lanes"].as_array().unwrap().iter();
        let lanes = lanes.filter(|lane| lane["target"] != "queue busy");
        json!(lanes.map(|lane| names.map(|name| &lane[name])).collect::<Vec<_>>())
    };
    let adds_up = |page: &Value| {
        let shown = counts(page);
        page["complete"] == true
            && (&shown[0][0], &shown[0][5]) == (&json!("http"), &json!(6))
            && shown[1] == json!(["queue", "queue unserved", "no_workers", 3, 0, 0])
    };
    same_answer(clients, "/lanes", adds_up, counts);
}
