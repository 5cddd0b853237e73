//! The life of a task: scheduled, found, replaced, fired, touched, paused, cancelled.

use std::time::Duration;

use punctual_test_support::{TestBroker, WebhookReceiver, eventually, now_millis, task};
use serde_json::json;

use crate::requests::{URL, get, later, post};

#[test]
fn a_task_calls_its_webhook_on_time_with_payload_and_headers() {
    let (broker, receiver) = (TestBroker::start(&[]), WebhookReceiver::start());
    let url = format!("{}/cancel?a=b", receiver.url);
    let body = json!({
        "in": "300ms",
        "target": {"http": {"url": url, "headers": {"x-a": "b"}}},
        "payload": {"order": 1},
        "labels": {"campaign": "7"},
    });
    let before = now_millis();
    let (status, task) = broker.put("order-1", body.to_string());
    assert_eq!(status, 201, "{task}");
    assert_eq!(task["state"], "scheduled");
    assert_eq!(task["key"], "order-1");
    assert_eq!(task["version"], 1);
    assert_eq!(task["payload"], json!({"order": 1}));
    assert_eq!(task["labels"], json!({"campaign": "7"}));
    let got = receiver.next();
    assert!(got.at_millis >= before + 300, "early by {}", before + 300 - got.at_millis);
    assert_eq!((got.method.as_str(), got.path.as_str()), ("POST", "/cancel?a=b"));
    assert_eq!(got.body, br#"{"order":1}"#);
    assert_eq!(got.header("content-type"), "application/json");
    assert_eq!(got.header("x-a"), "b");
    assert_eq!(got.header("punctual-namespace"), "shop");
    assert_eq!(got.header("punctual-key"), "order-1");
    assert_eq!(got.header("punctual-attempt"), "1");
    assert_eq!(got.header("punctual-fire-at"), task["fire_at"].as_str().unwrap());
    let fire_id = got.header("webhook-id");
    assert!(fire_id.starts_with(task["id"].as_str().unwrap()), "{fire_id}");
    receiver.stays_silent(Duration::from_millis(200));
}

#[test]
fn a_cancelled_task_does_not_fire() {
    let (broker, receiver) = (TestBroker::start(&[]), WebhookReceiver::start());
    broker.put("order-1", task(r#""in": "2s""#, &receiver.url));
    assert_eq!(broker.delete("order-1"), (200, json!({"result": "cancelled"})));
    assert_eq!(broker.delete("order-1"), (200, json!({"result": "cancelled"})), "as by its id");
    assert_eq!(broker.delete("order-2").0, 404);
    assert_eq!(broker.get("order-1").1["state"], "cancelled");
    receiver.stays_silent(Duration::from_millis(2300));
}

#[test]
fn a_task_can_be_found_and_cancelled_by_its_id() {
    let (broker, receiver) = (TestBroker::start(&[]), WebhookReceiver::start());
    let (status, created) =
        broker.call("POST", "/v1/shop/tasks", &[], task(r#""in": "1h""#, &receiver.url));
    assert_eq!(status, 201);
    assert_eq!(created["key"], json!(null));
    let id = created["id"].as_str().unwrap();
    assert_eq!(broker.get(id), (200, created.clone()));
    assert_eq!(broker.call("GET", &format!("/v1/other/tasks/{id}"), &[], "").0, 404);
    assert_eq!(broker.call("DELETE", &format!("/v1/other/tasks/{id}"), &[], "").0, 404);
    assert_eq!(broker.delete(id), (200, json!({"result": "cancelled"})));
    let (status, ended) = broker.get(id);
    assert_eq!((status, &ended["state"]), (200, &json!("cancelled")), "{ended}");
}

#[test]
fn cancelling_a_fired_task_answers_that_it_has_fired() {
    let (broker, receiver) = (TestBroker::start(&[]), WebhookReceiver::start());
    let (_, created) =
        broker.call("POST", "/v1/shop/tasks", &[], task(r#""at": 0"#, &receiver.url));
    receiver.next();
    let id = created["id"].as_str().unwrap();
    let answer = loop {
        let (status, answer) = broker.delete(id);
        assert_eq!(status, 200, "{answer}");
        if answer["result"] != "firing" {
            break answer;
        }
    };
    assert_eq!(answer["result"], "already_fired");
    assert!(answer["fired_at"].is_string());
}

#[test]
fn replacing_a_task_counts_versions_and_checks_conditions() {
    let (broker, receiver) = (TestBroker::start(&[]), WebhookReceiver::start());
    let body = task(r#""in": "1h""#, &receiver.url);
    let put = |headers: &[(&str, &str)]| broker.call("PUT", "/v1/shop/tasks/a", headers, &body);
    assert_eq!(put(&[("if-match", "\"1\"")]).0, 412);
    assert_eq!(put(&[("if-none-match", "*")]).0, 201);
    let (status, conflict) = put(&[("if-none-match", "*")]);
    assert_eq!(status, 409);
    assert_eq!(conflict["existing"]["key"], "a");
    let (status, second) = put(&[]);
    assert_eq!((status, &second["version"]), (200, &json!(2)));
    assert_eq!(put(&[("if-match", "\"1\"")]).0, 412);
    assert_eq!(put(&[("if-match", "\"2\"")]).0, 200);
    for headers in [
        [("if-match", "2")].as_slice(),
        &[("if-match", "*")],
        &[("if-none-match", "\"2\"")],
        &[("if-match", "\"3\""), ("if-none-match", "*")],
    ] {
        let (status, problem) = put(headers);
        assert_eq!(status, 400, "{headers:?}");
        assert!(problem["field"].is_string(), "{problem}");
    }
}

#[test]
fn a_version_condition_on_a_missing_task_fails() {
    let broker = TestBroker::start(&[]);
    let path = "/v1/shop/tasks/none";
    let body = later("none", 1).to_string();
    let (status, problem) = broker.call("PUT", path, &[("if-match", "\"1\"")], body);
    assert_eq!((status, &problem["type"]), (412, &json!("urn:punctual:version-mismatch")));
    assert_eq!(
        problem["detail"],
        "task \"none\" not found in namespace \"shop\", so no version matches"
    );
}

#[test]
fn a_task_fired_manually_keeps_its_schedule() {
    let (broker, receiver) = (TestBroker::start(&[]), WebhookReceiver::start());
    broker.put("a", task(r#""in": "1h""#, &receiver.url));
    let (status, answer) = post(&broker, "/tasks/a/fire", &json!({}));
    assert_eq!(status, 200, "{answer}");
    assert_eq!(receiver.next().header("punctual-key"), "a");
    // After the fire the task waits for its time as before.
    eventually(|| (broker.get("a").1["state"] == "scheduled").then_some(()));
    assert_eq!(post(&broker, "/tasks/none/fire", &json!({})).0, 404);
}

#[test]
fn a_manual_fire_of_an_at_most_once_task_is_sent_once_even_if_the_broker_is_killed() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    let broker = TestBroker::start(&[]);
    let fields = r#""in": "1h", "timeout": "1m", "guarantee": "at_most_once""#;
    let (status, made) = broker.put("a", task(fields, &url));
    assert_eq!(status, 201, "{made}");
    let (status, answer) = post(&broker, "/tasks/a/fire", &json!({}));
    assert_eq!(status, 200, "{answer}");
    let (_connection, _) = silent.accept().unwrap();
    let (status, problem) = post(&broker, "/tasks/a/fire", &json!({}));
    assert_eq!((status, &problem["type"]), (409, &json!("urn:punctual:firing")));
    // The outcome is lost with the broker.
    let dir = std::sync::Arc::clone(&broker.dir);
    broker.signal("-KILL");
    broker.end();
    let broker = TestBroker::start_on(dir, &[]);
    let (_, dead) = get(&broker, "/dead");
    assert_eq!(dead["dead"][0]["reason"], "unknown", "{dead}");
    let (_, task) = broker.get("a");
    assert_eq!((&task["state"], &task["fire_at"]), (&json!("scheduled"), &made["fire_at"]));
    silent.set_nonblocking(true).unwrap();
    assert!(silent.accept().is_err(), "it is not sent again");
    // The same with a known outcome.
    let receiver = WebhookReceiver::start();
    broker.put("b", self::task(r#""in": "1h", "guarantee": "at_most_once""#, &receiver.url));
    assert_eq!(post(&broker, "/tasks/b/fire", &json!({})).0, 200);
    assert_eq!(receiver.next().header("punctual-occasion"), "manual");
    eventually(|| (get(&broker, "/dead").1["dead"].as_array()?.len() == 1).then_some(()));
    assert_eq!(broker.get("b").1["state"], "scheduled", "the task waits for its time as before");
}

#[test]
fn touch_moves_a_task_and_needs_a_time_unless_it_is_a_watch() {
    let (broker, receiver) = (TestBroker::start(&[]), WebhookReceiver::start());
    broker.put("a", task(r#""in": "1h""#, &receiver.url));
    let (status, moved) = post(&broker, "/tasks/a/touch", &json!({"at": "2035-01-01T00:00:00Z"}));
    assert_eq!(status, 200, "{moved}");
    assert_eq!(
        (&moved["fire_at"], &moved["version"]),
        (&json!("2035-01-01T00:00:00.000Z"), &json!(2))
    );
    let id = moved["id"].as_str().unwrap();
    let (status, problem) = broker.call("POST", &format!("/v1/shop/tasks/{id}/touch"), &[], "");
    assert_eq!(status, 422, "{problem}");
    assert_eq!(post(&broker, "/tasks/a/touch", &json!({"in": "1m", "at": 5})).0, 422);
    assert_eq!(post(&broker, "/tasks/a/touch", &json!({"within": "1ms"})).1["field"], "within");
    assert_eq!(post(&broker, "/tasks/none/touch", &json!({"in": "1m"})).0, 404);
    // An earlier time is possible, too.
    let (status, _) = post(&broker, "/tasks/a/touch", &json!({"in": "0s"}));
    assert_eq!(status, 200);
    assert_eq!(receiver.next().header("punctual-version"), "3");
}

#[test]
fn a_batch_touch_reports_or_creates_missing_tasks() {
    let broker = TestBroker::start(&["--partitions", "3"]);
    post(&broker, "/tasks", &json!([later("a", 1), later("b", 1), later("p", 1)]));
    assert_eq!(post(&broker, "/tasks/p/pause", &json!({})).0, 200);
    let keys = json!(["a", "x", "b", "y", "p"]);
    let (status, answer) = post(&broker, "/touch", &json!({"keys": keys, "in": "3h"}));
    assert_eq!(status, 200, "{answer}");
    assert_eq!((&answer["touched"], &answer["missing"]), (&json!(2), &json!(["x", "y"])));
    assert_eq!(answer["problems"][0]["key"], "p");
    let create = json!({"in": "5h", "target": {"queue": "q"}});
    let body = json!({"keys": keys, "in": "4h", "create": create});
    let (_, answer) = post(&broker, "/touch", &body);
    assert_eq!((&answer["touched"], &answer["created"]), (&json!(2), &json!(2)), "{answer}");
    assert_eq!(answer["missing"], json!([]));
    assert_eq!(broker.get("x").1["target"], json!({"queue": "q"}));
    let body = json!({"keys": ["z"], "create": {"in": "1h", "target": {"queue": "q q"}}});
    let (status, problem) = post(&broker, "/touch", &body);
    assert_eq!((status, &problem["field"]), (422, &json!("create.target.queue")));
    let (status, problem) = post(&broker, "/touch", &json!({"keys": ["ok", ""], "in": "1h"}));
    assert_eq!((status, &problem["field"]), (422, &json!("keys[1]")));
}

#[test]
fn many_tasks_are_cancelled_by_key_or_by_id() {
    let broker = TestBroker::start(&["--partitions", "3"]);
    let (_, made) = post(&broker, "/tasks", &json!([later("a", 1), later("b", 1), later("c", 1)]));
    let (status, answer) = post(&broker, "/cancel", &json!({"keys": ["b", "none", "a\n", "a"]}));
    assert_eq!(status, 200);
    let results = answer["results"].as_array().unwrap();
    assert_eq!(results[0], json!({"key": "b", "result": "cancelled"}));
    assert_eq!(results[1], json!({"key": "none", "result": "not_found"}));
    assert_eq!(results[2]["problem"]["status"], 422);
    assert_eq!(results[3], json!({"key": "a", "result": "cancelled"}));
    let ids: Vec<_> = made["results"].as_array().unwrap().iter().map(|t| t["id"].clone()).collect();
    let (_, answer) = post(&broker, "/cancel", &json!({"ids": ids}));
    let results: Vec<_> =
        answer["results"].as_array().unwrap().iter().map(|r| r["result"].clone()).collect();
    assert_eq!(
        results,
        ["cancelled", "cancelled", "cancelled"],
        "an id is remembered after its task has ended"
    );
    assert_eq!(post(&broker, "/cancel", &json!({})).0, 422);
    assert_eq!(post(&broker, "/cancel", &json!({"keys": [], "ids": []})).0, 422);
    let names = vec!["a"; 10_001];
    assert_eq!(post(&broker, "/cancel", &json!({"keys": names})).1["field"], "keys");
}

#[test]
fn a_paused_task_does_not_fire_until_it_is_resumed() {
    let (broker, receiver) = (TestBroker::start(&[]), WebhookReceiver::start());
    broker.put("a", task(r#""in": "1h""#, &receiver.url));
    let (status, paused) = post(&broker, "/tasks/a/pause", &json!({}));
    assert_eq!((status, &paused["state"]), (200, &json!("paused")));
    assert_eq!(get(&broker, "/tasks?state=paused").1["tasks"][0]["key"], "a");
    assert_eq!(get(&broker, "/tasks?state=scheduled").1["tasks"], json!([]));
    assert_eq!(post(&broker, "/tasks/a/touch", &json!({"in": "0s"})).0, 409);
    let (status, resumed) = post(&broker, "/tasks/a/resume", &json!({}));
    assert_eq!((status, &resumed["state"]), (200, &json!("scheduled")));
    post(&broker, "/tasks/a/touch", &json!({"in": "0s"}));
    receiver.next();
    assert_eq!(post(&broker, "/tasks/none/pause", &json!({})).0, 404);
}

#[test]
fn rules_and_callbacks_are_answered_as_they_were_sent() {
    let broker = TestBroker::start(&[]);
    let http = json!({
        "url": URL, "method": "POST",
        "success": {"statuses": [200, 204], "json": {"/errcode": 0, "/a": {"b": [1.5, null]}}},
        "refuse": {"statuses": [400, 404]},
    });
    let sent = json!({
        "in": "1h", "target": {"http": http}, "paused": false,
        "on_done": {"queue": "ends"}, "on_dead": {"http": {"url": URL, "method": "PUT"}},
    });
    let (status, task) = broker.put("a", sent.to_string());
    assert_eq!(status, 201, "{task}");
    for (name, value) in sent.as_object().unwrap().iter().filter(|(name, _)| *name != "paused") {
        assert_eq!(task[name], *value, "{name}: {task}");
    }
    assert_eq!(task["updated_at"], task["created_at"]);
    assert!(task.get("paused").is_none() && task.get("callback_of").is_none(), "{task}");
    let (_, touched) = post(&broker, "/tasks/a/touch", &json!({"in": "2h"}));
    assert_eq!((&touched["on_done"], &touched["target"]), (&sent["on_done"], &sent["target"]));
    assert!(touched["updated_at"].as_str() >= touched["created_at"].as_str(), "{touched}");
}
