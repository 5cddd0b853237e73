//! Explanations of tasks, and the lists of queues and workers, on a running broker.

use std::time::Duration;

use punctual_client::{Client, Failure};
use punctual_test_support::{TestBroker, WAIT_MAX, WebhookReceiver, eventually, task};
use serde_json::{Value, json};

use crate::requests::{get, post};

fn explain(broker: &TestBroker, key: &str) -> Value {
    let (status, answer) = get(broker, &format!("/tasks/{key}/explain"));
    assert_eq!(status, 200, "{answer}");
    answer
}

/// Waits until a task waits for something.
fn explain_when(broker: &TestBroker, key: &str, waiting_for: &str) -> Value {
    eventually(|| {
        let answer = explain(broker, key);
        (answer["waiting_for"] == waiting_for).then_some(answer)
    })
}

#[test]
fn a_task_says_what_it_waits_for() {
    let (broker, receiver) = (TestBroker::start(&[]), WebhookReceiver::start());
    let queued = |when: &str| format!(r#"{{{when}, "target": {{"queue": "q"}}}}"#);
    broker.put("later", queued(r#""cron": "0 9 * * *", "timezone": "Europe/Berlin""#));
    let later = explain(&broker, "later");
    assert_eq!(later["waiting_for"], "time", "{later}");
    assert!(later["summary"].as_str().unwrap().contains("in Europe/Berlin"), "{later}");
    assert_eq!(later["next"].as_array().unwrap().len(), 5);
    assert!(later["next"][0]["local"].as_str().unwrap().contains("T09:00:00+0"), "{later}");
    assert_eq!(later["task"]["key"], "later");
    assert_eq!(later["owner"], broker.address.to_string());
    assert!(later["epoch"].as_u64().unwrap() >= 1 && later["touches"].is_null(), "{later}");

    broker.put("lonely", queued(r#""in": "0s""#));
    let lonely = explain_when(&broker, "lonely", "worker");
    let summary = lonely["summary"].as_str().unwrap();
    assert!(summary.contains("no worker is connected to queue \"q\""), "{summary}");

    let retry = r#""in": "0s", "retry": {"backoff": {"fixed": "1h"}}"#;
    broker.put("failing", task(retry, &format!("{}/500", receiver.url)));
    let failing = explain_when(&broker, "failing", "retry");
    let summary = failing["summary"].as_str().unwrap();
    assert!(summary.contains("attempt 2 of 5") && summary.contains("500"), "{summary}");
    assert_eq!(failing["fires"][0]["attempts"][0]["outcome"], "failed", "{failing}");

    post(&broker, "/tasks/later/pause", &json!({}));
    let paused = explain(&broker, "later");
    assert_eq!((&paused["waiting_for"], &paused["next"]), (&json!("pause"), &json!([])));

    broker.put("watch", queued(r#""within": "1h""#));
    assert_eq!(explain(&broker, "watch")["touches"], 0);
    post(&broker, "/tasks/watch/touch", &json!({}));
    let watch = explain(&broker, "watch");
    assert_eq!(watch["touches"], 1);
    assert!(watch["touched_at"].is_string(), "{watch}");
}

#[test]
fn an_ended_task_is_explained_by_its_id_and_an_unknown_one_is_refused() {
    let (broker, receiver) = (TestBroker::start(&[]), WebhookReceiver::start());
    let (_, made) = broker.put("a", task(r#""in": "0s""#, &receiver.url));
    let id = made["id"].as_str().unwrap();
    let done = eventually(|| {
        let answer = explain(&broker, id);
        (answer["task"]["state"] == "done").then_some(answer)
    });
    assert_eq!(done["waiting_for"], "nothing");
    assert!(done["summary"].as_str().unwrap().starts_with("Task \"a\" is done"), "{done}");
    assert_eq!(done["fires"][0]["end"], "done");
    for path in ["/tasks/b", "/tasks/b/fires", "/tasks/b/explain"] {
        let (status, problem) = get(&broker, path);
        assert_eq!((status, &problem["type"]), (404, &json!("urn:punctual:task-not-found")));
        let detail = "task \"b\" not found in namespace \"shop\": there was none, or its history \
                      is past its retention";
        assert_eq!(problem["detail"], detail, "{path}");
    }
}

#[test]
fn queues_and_workers_are_listed() {
    let broker = TestBroker::start(&["--partitions", "2"]);
    assert_eq!(get(&broker, "/queues").1, json!({"queues": []}));
    assert_eq!(get(&broker, "/workers").1, json!({"workers": []}));
    for key in ["a", "b", "c"] {
        broker.put(key, r#"{"in": "0s", "target": {"queue": "q"}}"#);
    }
    let queue = eventually(|| {
        let (_, answer) = get(&broker, "/queues");
        (answer["queues"][0]["waiting"] == 3).then(|| answer["queues"][0].clone())
    });
    let shown = (&queue["name"], &queue["workers"], &queue["in_flight"], &queue["more"]);
    assert_eq!(shown, (&json!("q"), &json!(0), &json!(0), &json!(false)));
    assert!(queue["oldest_overdue_ms"].is_u64(), "{queue}");

    // A worker that polls has one delivery.
    let lease = json!({"max": 1, "wait": "20s", "worker": "mailer-1"});
    let (_, leased) = post(&broker, "/queues/q/lease", &lease);
    assert_eq!(leased["deliveries"].as_array().unwrap().len(), 1);
    let (_, workers) = get(&broker, "/workers");
    let worker = &workers["workers"][0];
    let shown = (&worker["name"], &worker["in_flight"], &worker["queues"], &worker["address"]);
    assert_eq!(shown, (&json!("mailer-1"), &json!(1), &json!(["q"]), &json!("127.0.0.1")));
    assert_eq!(worker["broker"], broker.address.to_string());
    let (_, queues) = get(&broker, "/queues");
    let shown = (&queues["queues"][0]["in_flight"], &queues["queues"][0]["workers"]);
    assert_eq!(shown, (&json!(1), &json!(1)), "{queues}");
    let token = &leased["deliveries"][0]["token"];
    post(&broker, "/queues/q/ack", &json!({"tokens": [token]}));
    eventually(|| (get(&broker, "/workers").1["workers"] == json!([])).then_some(()));

    let long = "x".repeat(129);
    let (status, problem) = post(&broker, "/queues/q/lease", &json!({"worker": long}));
    assert_eq!((status, &problem["field"]), (422, &json!("worker")));
}

/// The lanes of all owners of a broker are added up, over HTTP and gRPC.
#[tokio::test]
async fn lanes_are_listed_with_what_waits_and_what_has_failed() {
    let broker = TestBroker::start(&["--partitions", "4"]);
    assert_eq!(get(&broker, "/lanes"), (200, json!({"lanes": [], "complete": true})));
    let (status, problem) = get(&broker, "/lanes?limit=1");
    assert_eq!((status, &problem["field"]), (400, &json!("limit")));
    let dead = r#"{"in": "0s", "retry": {"attempts_max": 1},
        "target": {"http": {"url": "http://127.0.0.1:1/"}}}"#;
    for number in 0..12 {
        broker.put(&format!("queued-{number}"), r#"{"in": "0s", "target": {"queue": "q"}}"#);
        broker.put(&format!("dead-{number}"), dead);
    }
    let lanes = eventually(|| {
        let (_, answer) = get(&broker, "/lanes");
        let lanes = answer["lanes"].as_array().unwrap().clone();
        let is_whole = lanes.len() == 2 && lanes[0]["failed"] == 12 && lanes[1]["waiting"] == 12;
        is_whole.then_some(lanes)
    });
    let shown = |at: usize, names: [&str; 4]| names.map(|name| lanes[at][name].clone());
    let http = [json!("http"), json!("http://127.0.0.1:1"), json!("ready"), json!(0)];
    assert_eq!(shown(0, ["kind", "target", "state", "waiting"]), http);
    assert!(lanes[0]["last_failure"]["reason"].is_string(), "{lanes:#?}");
    let queue = [json!("queue"), json!("queue q"), json!("no_workers"), json!(0)];
    assert_eq!(shown(1, ["kind", "target", "state", "failed"]), queue);
    assert!(lanes[1]["since"].is_string(), "{lanes:#?}");
    let client = Client::connect(format!("http://{}", broker.address)).unwrap();
    let list = client.namespace("shop").lanes().await.unwrap();
    assert_eq!((list.lanes.len(), list.complete), (2, true));
    assert_eq!((list.lanes[0].failed, list.lanes[1].waiting), (12, 12), "{list:?}");
    assert!(list.lanes[0].last_failure.is_some() && list.lanes[1].since.is_some(), "{list:?}");
}

#[tokio::test]
async fn a_worker_on_a_stream_is_listed_with_its_load() {
    let broker = TestBroker::start(&[]);
    let client = Client::connect(format!("http://{}", broker.address)).unwrap();
    let shop = client.namespace("shop");
    let (started, mut starts) = tokio::sync::mpsc::unbounded_channel();
    let worker = shop.worker("q").concurrency(7).handler(move |_| {
        started.send(()).unwrap();
        std::future::pending::<Result<(), Failure>>()
    });
    let _running = worker.spawn();
    shop.task().delay(Duration::ZERO).queue("q").schedule().await.unwrap();
    tokio::time::timeout(WAIT_MAX, starts.recv()).await.unwrap();
    let workers = shop.workers().await.unwrap();
    assert_eq!(workers.len(), 1, "{workers:?}");
    let worker = &workers[0];
    assert_eq!((worker.in_flight, worker.queues.as_slice()), (1, &["q".to_owned()][..]));
    assert!(worker.credit >= 7, "{worker:?}");
    assert!(worker.address.as_deref().unwrap().starts_with("127.0.0.1:"), "{worker:?}");
    let queues = shop.queues().await.unwrap();
    assert_eq!((queues[0].workers, queues[0].in_flight), (1, 1), "{queues:?}");
    let full = shop.explain("nothing").await.unwrap();
    assert!(full.is_none());
}
