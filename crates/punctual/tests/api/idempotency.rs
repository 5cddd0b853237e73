//! Idempotency keys: a repeated request creates nothing more.

use punctual_test_support::TestBroker;
use serde_json::{Value, json};

use crate::requests::get;

#[test]
fn a_request_repeated_with_its_idempotency_key_creates_nothing_more() {
    let broker = TestBroker::start(&["--partitions", "3"]);
    let send = |key: &str, kind: &str, body: &str| {
        let headers = [("idempotency-key", key), ("content-type", kind)];
        broker.call("POST", "/v1/shop/tasks", &headers, body)
    };
    let body = json!({"in": "1h", "target": {"queue": "q"}}).to_string();
    let (_, first) = send("7", "application/json", &body);
    let (status, again) = send("7", "application/json", &body);
    assert!(status == 200 || status == 201, "{again}");
    assert_eq!(again["id"], first["id"]);
    let other = json!({"in": "2h", "target": {"queue": "q"}}).to_string();
    assert_eq!(send("7", "application/json", &other).0, 409);
    let lines = [body.as_str(), "{", body.as_str()].join("\n");
    let ids = |answer: &Value| {
        let results = answer["results"].as_array().unwrap().iter();
        results.map(|result| result["id"].clone()).collect::<Vec<_>>()
    };
    let (_, many) = send("8", "application/x-ndjson", &lines);
    let (_, again) = send("8", "application/x-ndjson", &lines);
    assert_eq!(ids(&many), ids(&again));
    assert_ne!(ids(&many)[0], ids(&many)[2], "two lines are two tasks");
    assert_eq!(get(&broker, "/stats").1["accepted"], 3);
    let (status, problem) = send(&"x".repeat(5000), "application/json", &body);
    assert_eq!((status, &problem["field"]), (422, &json!("idempotency-key")));
}

#[test]
fn an_idempotency_key_belongs_to_one_task_whatever_the_keys_of_others() {
    // Task keys spread over all partitions; the idempotency key belongs to one of them.
    let broker = TestBroker::start(&["--partitions", "16"]);
    let send = |key: &str, body: &Value| {
        broker.call("POST", "/v1/shop/tasks", &[("idempotency-key", key)], body.to_string())
    };
    let keyed = |name: &str| json!({"key": name, "in": "1h", "target": {"queue": "q"}});
    let keyless = json!({"in": "1h", "target": {"queue": "q"}});
    let (status, first) = send("7", &keyed("a"));
    assert_eq!(status, 201, "{first}");
    assert_eq!(send("7", &keyed("a")).1["id"], first["id"], "the same task");
    for name in ["b", "c", "d", "e", "f"] {
        let (status, problem) = send("7", &keyed(name));
        assert_eq!(status, 409, "{name}: {problem}");
        assert_eq!(broker.get(name).0, 404, "{name}");
    }
    assert_eq!(send("7", &keyless).0, 409, "a task without a key");
    assert_eq!(send("8", &keyless).0, 201);
    assert_eq!(send("8", &keyed("g")).0, 409, "a task with a key after one without");
    // Each position of a batch is checked for itself.
    let batch = |names: [&str; 3]| Value::Array(names.map(keyed).into());
    let results = |(status, answer): (u16, Value)| {
        assert_eq!(status, 200, "{answer}");
        let results = answer["results"].as_array().unwrap().iter();
        let key_or_status = |result: &Value| match &result["key"] {
            Value::String(key) => key.clone(),
            _ => result["status"].to_string(),
        };
        results.map(key_or_status).collect::<Vec<_>>()
    };
    assert_eq!(results(send("9", &batch(["h", "i", "j"]))), ["h", "i", "j"]);
    assert_eq!(results(send("9", &batch(["h", "x", "j"]))), ["h", "409", "j"]);
    assert_eq!(broker.get("x").0, 404);
    assert_eq!(
        get(&broker, "/stats").1["accepted"],
        5,
        "the record of an idempotency key is not a task"
    );
}
