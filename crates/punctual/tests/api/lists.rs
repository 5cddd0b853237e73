//! Lists of tasks, their history, and the separation of namespaces.

use punctual_test_support::{TestBroker, WebhookReceiver, eventually, task};
use serde_json::{Value, json};

use crate::requests::{URL, get, later, post};

#[test]
fn lists_apply_every_given_filter() {
    let broker = TestBroker::start(&["--partitions", "2"]);
    let labelled = json!({"key": "order/1", "at": "2035-01-01T00:00:00Z", "target": {"queue": "q"},
        "labels": {"zone": "eu"}});
    post(&broker, "/tasks", &json!([labelled, later("order/2", 5), later("device/1", 9)]));
    for (query, want) in [
        ("", vec!["order/2", "device/1", "order/1"]),
        ("?key_prefix=order/", vec!["order/2", "order/1"]),
        ("?label=zone:eu", vec!["order/1"]),
        ("?label=zone:us", vec![]),
        ("?from=2034-01-01T00:00:00Z", vec!["order/1"]),
        ("?to=2051222400000", vec!["order/2", "device/1"]),
        ("?state=scheduled&limit=2", vec!["order/2", "device/1"]),
        ("?state=firing", vec![]),
        ("?state=dead", vec![]),
        ("?state=", vec!["order/2", "device/1", "order/1"]),
    ] {
        let (status, page) = get(&broker, &format!("/tasks{query}"));
        assert_eq!(status, 200, "{query}: {page}");
        let keys: Vec<_> = page["tasks"].as_array().unwrap().iter().map(|t| &t["key"]).collect();
        assert_eq!(keys, want, "{query}");
    }
    for (query, status, field) in [
        ("?colour=red", 400, "colour"),
        ("?limit=0", 400, "limit"),
        ("?limit=1001", 400, "limit"),
        ("?limit=many", 400, "limit"),
        ("?limit=1&limit=2", 400, "limit"),
        ("?state=asleep", 400, "state"),
        ("?state=cancelled", 422, "state"),
        ("?label=zone", 400, "label"),
        ("?from=yesterday", 422, "from"),
        ("?to=-1", 422, "to"),
        ("?cursor=x", 400, "cursor"),
        ("?cursor=d00000000000000000000000000-0000000000", 400, "cursor"),
        ("?state=dead&cursor=t00000000000000000000000000-0000000000", 400, "cursor"),
    ] {
        let (got, problem) = get(&broker, &format!("/tasks{query}"));
        assert_eq!((got, &problem["field"]), (status, &json!(field)), "{query}: {problem}");
    }
}

#[test]
fn the_history_has_the_answers_of_the_target() {
    let (broker, receiver) = (TestBroker::start(&[]), WebhookReceiver::start());
    let retry = r#""in": "0s", "retry": {"attempts_max": 2, "backoff": {"fixed": "10ms"}}"#;
    let (_, made) = broker.put("a", task(retry, &format!("{}/500", receiver.url)));
    let id = made["id"].as_str().unwrap();
    let fires = eventually(|| {
        let (status, answer) = get(&broker, &format!("/tasks/{id}/fires"));
        (status == 200 && answer["fires"][0]["end"] == "dead").then_some(answer)
    });
    let fire = &fires["fires"][0];
    assert_eq!(fires["fires"].as_array().unwrap().len(), 1);
    assert_eq!((&fire["fire_at"], &fire["reason"]), (&made["fire_at"], &json!("exhausted")));
    assert!(fire["fired_at"].is_string() && fire["lag_ms"].is_u64(), "{fire}");
    let attempts = fire["attempts"].as_array().unwrap();
    assert_eq!(attempts.len(), 2);
    for (attempt, number) in attempts.iter().zip(1..) {
        assert_eq!(attempt["attempt"], number);
        assert_eq!(attempt["outcome"], "failed");
        assert!(attempt["reason"].as_str().unwrap().contains("500"), "{attempt}");
        assert_eq!(attempt["status"], 500, "{attempt}");
    }
    let (_, done) =
        broker.call("POST", "/v1/shop/tasks", &[], task(r#""in": "0s""#, &receiver.url));
    let id = done["id"].as_str().unwrap();
    let ended = eventually(|| Some(broker.get(id).1).filter(|task| task["state"] == "done"));
    assert_eq!((&ended["attempt"], &ended["fire_at"]), (&json!(1), &done["fire_at"]));
    assert_eq!(broker.call("GET", &format!("/v1/other/tasks/{id}"), &[], "").0, 404);
    assert_eq!(broker.call("GET", &format!("/v1/other/tasks/{id}/fires"), &[], "").0, 404);
    assert_eq!(get(&broker, "/tasks/none/fires").0, 404);
}

#[test]
fn namespaces_do_not_see_each_other() {
    let (broker, receiver) = (TestBroker::start(&["--partitions", "2"]), WebhookReceiver::start());
    let (_, mine) = broker.put("a", task(r#""in": "1h""#, URL));
    broker.put("gone", task(r#""in": "0s""#, &format!("{}/410", receiver.url)));
    let letter = eventually(|| get(&broker, "/dead").1["dead"].get(0).cloned());
    let (id, fire_id) = (mine["id"].as_str().unwrap(), letter["fire_id"].as_str().unwrap());
    let there = |method: &str, path: &str, body: Value| {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        broker.call(method, &format!("/v1/other{path}"), &[], body)
    };
    for name in ["a", id] {
        let task = format!("/tasks/{name}");
        for (method, path, body) in [
            ("GET", task.clone(), Value::Null),
            ("DELETE", task.clone(), Value::Null),
            ("GET", format!("{task}/fires"), Value::Null),
            ("POST", format!("{task}/pause"), Value::Null),
            ("POST", format!("{task}/resume"), Value::Null),
            ("POST", format!("{task}/touch"), json!({"in": "0s"})),
        ] {
            assert_eq!(there(method, &path, body).0, 404, "{method} {path}");
        }
    }
    assert_eq!(
        there("POST", "/cancel", json!({"keys": ["a"]})).1["results"][0]["result"],
        "not_found"
    );
    assert_eq!(
        there("POST", "/cancel", json!({"ids": [id]})).1["results"][0]["result"],
        "not_found"
    );
    assert_eq!(
        there("POST", "/touch", json!({"keys": ["a"], "in": "0s"})).1["missing"],
        json!(["a"])
    );
    assert_eq!(there("GET", "/tasks", Value::Null).1, json!({"tasks": [], "next": null}));
    assert_eq!(there("GET", "/tasks?state=dead", Value::Null).1["tasks"], json!([]));
    assert_eq!(there("GET", "/dead", Value::Null).1["dead"], json!([]));
    assert_eq!(there("DELETE", &format!("/dead/{fire_id}"), Value::Null).0, 404);
    assert_eq!(there("POST", "/dead/redrive", json!({"ids": [fire_id]})).1["redriven"], 0);
    let steps = there("GET", "/forecast", Value::Null).1;
    assert!(steps["steps"].as_array().unwrap().iter().all(|step| step["fires"] == 0), "{steps}");
    // The same key there is another task, and nothing has changed here.
    let made = there("PUT", "/tasks/a", json!({"in": "2h", "target": {"queue": "q"}}));
    assert_eq!((made.0, &made.1["version"]), (201, &json!(1)));
    assert_eq!(broker.get("a"), (200, mine));
}
