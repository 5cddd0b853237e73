//! Requests about one task and acks are answered by a faster path than others. A path with an
//! escape takes the slower one: both give the same answers.

use punctual_test_support::TestBroker;
use serde_json::{Value, json};

/// Removes what differs between two tasks with the same definition.
fn without_identity(mut answer: Value) -> Value {
    let identity = ["id", "fire_at", "created_at", "updated_at", "key"];
    match &mut answer {
        Value::Object(fields) => {
            fields.retain(|name, _| !identity.contains(&name.as_str()));
            fields.values_mut().for_each(|value| *value = without_identity(value.take()));
        }
        Value::Array(values) => {
            values.iter_mut().for_each(|value| *value = without_identity(value.take()));
        }
        _ => {}
    }
    answer
}

#[test]
fn both_paths_give_the_same_answers() {
    let broker = TestBroker::start(&[]);
    let due = json!({"at": 4_000_000_000_000_u64, "target": {"queue": "q"}, "payload": {"a": 1}});
    let due = due.to_string();
    let watch = json!({"within": "1h", "target": {"queue": "q"}}).to_string();
    let lines = [("content-type", "application/x-ndjson")];
    let minimal = [("prefer", "return=minimal")];
    for (method, path, headers, body) in [
        ("POST", "tasks", &[][..], due.as_str()),
        ("POST", "tasks", &minimal[..], &due),
        ("POST", "tasks", &lines[..], &due),
        ("POST", "tasks", &[], "[]"),
        ("POST", "tasks", &[], ""),
        ("POST", "tasks", &[], "{\"in\": 5}"),
        ("POST", "tasks", &[("content-type", "text/plain")], &due),
        ("POST", "tasks", &[("if-match", "\"1\"")], &due),
        ("POST", "tasks", &[("idempotency-key", "")], &due),
        ("PUT", "tasks/KEY", &[("if-match", "\"7\"")], &watch),
        ("PUT", "tasks/KEY", &[], &watch),
        ("PUT", "tasks/KEY", &minimal, &watch),
        ("PUT", "tasks/KEY", &[("if-none-match", "*")], &watch),
        ("PUT", "tasks/KEY", &lines, &watch),
        ("POST", "tasks/KEY/touch", &[], ""),
        ("POST", "tasks/KEY/touch", &minimal, ""),
        ("POST", "tasks/KEY/touch", &[], "{\"in\": \"x\"}"),
        ("POST", "tasks/missing/touch", &[], ""),
        ("DELETE", "tasks/missing", &[], ""),
        ("DELETE", "tasks/KEY", &[], ""),
        ("DELETE", "tasks/KEY", &[], ""),
        ("DELETE", "tasks/KEY", &[], "a body"),
        ("POST", "queues/q/ack", &[], r#"{"tokens": ["stale"]}"#),
        ("POST", "queues/q/ack", &[], r#"{"acks": [{"token": "stale", "result": 1}]}"#),
        ("POST", "queues/q/ack", &[], "{}"),
        ("POST", "queues/q/ack", &[], ""),
        ("POST", "queues/q/ack", &lines, r#"{"tokens": []}"#),
        ("POST", "queues/-/ack", &[], r#"{"tokens": []}"#),
    ] {
        let call = |namespace: &str, key: &str| {
            let path = format!("/v1/{namespace}/{}", path.replace("KEY", key));
            let (status, answer) = broker.call(method, &path, headers, body);
            // The details of some problems name the key.
            let text = without_identity(answer).to_string().replace(key, "KEY");
            (status, text)
        };
        assert_eq!(call("shop", "plain"), call("%73hop", "other"), "{method} {path} {body}");
    }
}

#[test]
fn a_minimal_answer_has_the_id_the_time_and_the_version() {
    let broker = TestBroker::start(&[]);
    let prefer = [("prefer", "return=minimal")];
    let watch = json!({"within": "1h", "target": {"queue": "q"}}).to_string();
    let (status, created) = broker.call("PUT", "/v1/shop/tasks/order-1", &prefer, &watch);
    assert_eq!((status, created.as_object().unwrap().len()), (201, 3), "{created}");
    let (_, task) = broker.get("order-1");
    for field in ["id", "fire_at", "version"] {
        assert_eq!(created[field], task[field], "{field}");
    }
    let (status, touched) = broker.call("POST", "/v1/shop/tasks/order-1/touch", &prefer, "");
    assert_eq!((status, touched.as_object().unwrap().len()), (200, 2), "{touched}");
    let (_, task) = broker.get("order-1");
    assert_eq!((&touched["fire_at"], &touched["version"]), (&task["fire_at"], &json!(2)));
}
