//! Every broker gives the same answer, whichever owns the task.

use std::collections::BTreeSet;

use punctual_proto::v1;
use punctual_proto::v1::tasks_client::TasksClient;
use punctual_test_support::{BrokerClient, TestCluster, WebhookReceiver, eventually};
use serde_json::{Value, json};
use tonic::Code;
use tonic::transport::Endpoint;

use crate::keys::{due, keys_of};

#[test]
fn every_broker_gives_the_same_answers() {
    let cluster = TestCluster::on_loopback(3, &[]);
    let receiver = WebhookReceiver::start();
    let owned = cluster.wait_until_whole();
    let shares: Vec<usize> = owned.by_broker.values().map(BTreeSet::len).collect();
    assert_eq!((shares.iter().sum::<usize>(), shares.len()), (16, 3), "{owned:?}");
    assert!(shares.iter().all(|share| (5..=6).contains(share)), "{owned:?}");
    for (owner, others) in [(0, [1, 2]), (1, [2, 0]), (2, [0, 1])] {
        let (here, there) = (cluster.client(others[0]), cluster.client(others[1]));
        let names = keys_of(&owned, cluster.client(owner), &format!("of{owner}"), 8);
        check_tasks(here, there, &names, &receiver);
        check_dead_letters(here, there, &names[3], &receiver);
        check_queues(here, there, &names[4..6]);
        check_idempotency_keys(here, there, &names[6..8]);
    }
    check_stats(&cluster);
    let forwarded = cluster.client(0).metric(r#"punctual_forwarded_total{result="answered"}"#);
    assert!(forwarded.unwrap() > 0.0);
}

/// Calls two brokers about tasks that a third one owns.
fn check_tasks(
    here: &BrokerClient,
    there: &BrokerClient,
    names: &[String],
    receiver: &WebhookReceiver,
) {
    let (a, b) = (&names[0], &names[1]);
    let (status, made) = here.put(a, &due("1h", &receiver.url));
    assert_eq!((status, &made["version"]), (201, &json!(1)), "{made}");
    let (_, shown) = there.get(&format!("/tasks/{a}"));
    assert_eq!((&shown["id"], &shown["state"]), (&made["id"], &json!("scheduled")), "{shown}");
    assert_eq!(
        there.put(a, &due("2h", &receiver.url)).1["version"],
        2,
        "the other broker finds the key"
    );
    let (status, moved) = there.post(&format!("/tasks/{a}/touch"), &json!({"in": "3h"}));
    assert_eq!((status, &moved["version"]), (200, &json!(3)), "{moved}");
    let list = |client: &BrokerClient, state: &str| {
        let (status, page) = client.get(&format!("/tasks?state={state}&key_prefix={a}"));
        assert_eq!(status, 200, "{page}");
        page["tasks"].as_array().unwrap().len()
    };
    assert_eq!((list(here, "scheduled"), list(there, "scheduled")), (1, 1));
    assert_eq!(here.post(&format!("/tasks/{a}/pause"), &json!({})).1["state"], "paused");
    assert_eq!((list(here, "paused"), list(there, "scheduled")), (1, 0));
    assert_eq!(there.post(&format!("/tasks/{a}/touch"), &json!({"in": "0s"})).0, 409);
    assert_eq!(there.post(&format!("/tasks/{a}/resume"), &json!({})).1["state"], "scheduled");
    assert_eq!(here.post(&format!("/tasks/{a}/fire"), &json!({})).0, 200);
    assert_eq!(receiver.next().header("punctual-key"), a);
    let (status, cancelled) = there.shop("DELETE", &format!("/tasks/{a}"), &Value::Null);
    assert_eq!((status, &cancelled["result"]), (200, &json!("cancelled")), "{cancelled}");
    assert_eq!(here.get(&format!("/tasks/{a}")).1["state"], "cancelled");
    assert_eq!(there.post(&format!("/tasks/{a}/touch"), &json!({"in": "1h"})).0, 404);
    // A task that fires, and its history.
    let (_, made) = there.put(b, &due("0s", &receiver.url));
    let received = receiver.next();
    assert_eq!(received.header("punctual-key"), b);
    let path = format!("/tasks/{}/fires", made["id"].as_str().unwrap());
    let fires = eventually(|| Some(here.get(&path)).filter(|(status, _)| *status == 200)).1;
    let fire = &fires["fires"][0];
    assert_eq!((&fire["end"], &fire["fire_at"]), (&json!("done"), &made["fire_at"]), "{fires}");
    assert_eq!(there.get(&path).1, fires);
    // Many tasks of all partitions in one call.
    let many: Vec<Value> = (0..20).map(|n| json!(format!("{b}-{n}"))).collect();
    let tasks: Vec<Value> = many
        .iter()
        .map(|key| {
            let mut task = due("1h", &receiver.url);
            task["key"] = key.clone();
            task
        })
        .collect();
    let (status, answer) = here.post("/tasks", &json!(tasks));
    assert_eq!(status, 200, "{answer}");
    let (_, answer) = there.post("/touch", &json!({"keys": many, "in": "2h"}));
    assert_eq!(answer["touched"], 20, "{answer}");
    let (_, answer) = there.post("/cancel", &json!({"keys": many}));
    let results = answer["results"].as_array().unwrap();
    assert!(results.iter().all(|result| result["result"] == "cancelled"), "{answer}");
}

fn check_dead_letters(
    here: &BrokerClient,
    there: &BrokerClient,
    key: &str,
    receiver: &WebhookReceiver,
) {
    here.put(key, &due("0s", &format!("{}/410", receiver.url)));
    let fire = receiver.next();
    let dead = |client: &BrokerClient| {
        let (_, page) = client.get("/dead?limit=100");
        let letters = page["dead"].as_array().unwrap().clone();
        letters.into_iter().find(|letter| letter["task"]["key"] == key)
    };
    let letter = eventually(|| dead(there));
    assert_eq!((&letter["reason"], dead(here)), (&json!("refused"), Some(letter.clone())));
    let id = letter["fire_id"].as_str().unwrap();
    assert_eq!(there.post("/dead/redrive", &json!({"ids": [id]})).1["redriven"], 1);
    assert_eq!(receiver.next().header("webhook-id"), fire.header("webhook-id"));
    eventually(|| dead(here));
    let path = format!("/dead/{id}");
    assert_eq!(here.shop("DELETE", &path, &Value::Null).1["result"], "deleted");
    assert_eq!((dead(here), dead(there)), (None, None));
}

/// Leases at one broker and acks at another; neither owns the task.
fn check_queues(here: &BrokerClient, there: &BrokerClient, names: &[String]) {
    for name in names {
        let (status, made) = here.put(name, &json!({"in": "0s", "target": {"queue": "mail"}}));
        assert_eq!(status, 201, "{made}");
        let want = json!({"max": 1, "wait": "5s", "lease": "10s"});
        let (_, mut answer) = there.post("/queues/mail/lease", &want);
        let delivery = answer["deliveries"][0].take();
        assert_eq!(delivery["key"], json!(name), "{delivery}");
        let tokens = json!({"tokens": [delivery["token"]]});
        let (_, acked) = here.post("/queues/mail/ack", &tokens);
        assert_eq!(acked["results"][0]["result"], "acked", "{acked}");
        let (_, again) = there.post("/queues/mail/ack", &tokens);
        assert_eq!(again["results"][0]["result"], "stale", "{again}");
    }
}

/// Uses an idempotency key at two brokers, for tasks of several partitions.
fn check_idempotency_keys(here: &BrokerClient, there: &BrokerClient, names: &[String]) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let send = |client: &BrokerClient, key: &str| {
        let queue = v1::target::To::Queue("idle".to_owned());
        let task = v1::NewTask {
            key: key.to_owned(),
            when: Some(v1::new_task::When::AtMs(4_000_000_000_000)),
            target: Some(v1::Target { to: Some(queue) }),
            ..v1::NewTask::default()
        };
        let request = v1::ScheduleRequest {
            namespace: "shop".to_owned(),
            task: Some(task),
            idempotency_key: format!("request-{}", names[0]),
            ..v1::ScheduleRequest::default()
        };
        let address = format!("http://{}", client.address);
        let sent = runtime.block_on(async {
            let channel = Endpoint::from_shared(address).unwrap().connect().await.unwrap();
            TasksClient::new(channel).schedule(request).await
        });
        sent.map(|answer| answer.into_inner().task.unwrap().id).map_err(|status| status.code())
    };
    let id = send(here, &names[0]).unwrap();
    assert_eq!(send(there, &names[0]), Ok(id), "the same task");
    for (client, name) in [(here, names[1].as_str()), (there, &names[1]), (there, "")] {
        assert_eq!(send(client, name), Err(Code::AlreadyExists), "{name:?}");
    }
    assert_eq!(here.get(&format!("/tasks/{}", names[1])).0, 404);
    there.shop("DELETE", &format!("/tasks/{}", names[0]), &Value::Null);
}

fn check_stats(cluster: &TestCluster) {
    let stats = |client: &BrokerClient| {
        let (_, stats) = client.get("/stats");
        let count = |name: &str| stats[name].as_i64().unwrap();
        let ends = ["scheduled", "firing", "paused", "done", "dead", "cancelled"].map(count);
        assert_eq!(ends.iter().sum::<i64>(), count("accepted"), "{stats}");
        (ends[0] + ends[1] == 0).then_some(ends)
    };
    let ends = eventually(|| stats(cluster.client(0)));
    // For each owner: one webhook and two acks are done, and 21 tasks are cancelled.
    assert!(ends[3] >= 9 && ends[5] >= 63, "{ends:?}");
    for index in [1, 2] {
        assert_eq!(stats(cluster.client(index)), Some(ends));
    }
}
