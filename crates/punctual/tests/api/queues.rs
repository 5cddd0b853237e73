//! Workers over HTTP: lease, ack, fail, refuse and extend.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::thread;

use punctual_test_support::{TestBroker, eventually};
use serde_json::{Value, json};

fn queue(broker: &TestBroker, verb: &str, body: &Value) -> (u16, Value) {
    broker.call("POST", &format!("/v1/shop/queues/mail/{verb}"), &[], body.to_string())
}

fn lease(broker: &TestBroker, max: u64) -> Vec<Value> {
    let (status, answer) =
        queue(broker, "lease", &json!({"max": max, "wait": "15s", "lease": "10m"}));
    assert_eq!(status, 200, "{answer}");
    answer["deliveries"].as_array().unwrap().clone()
}

fn put(broker: &TestBroker, key: &str, more: &str) -> Value {
    let body = format!(r#"{{"target": {{"queue": "mail"}}, "payload": {{"n": 1}}, {more}}}"#);
    let (status, task) = broker.put(key, body);
    assert_eq!(status, 201, "{task}");
    task
}

#[test]
fn a_long_poll_gets_a_task_when_it_is_due_and_an_ack_ends_it() {
    let broker = TestBroker::start(&[]);
    let task = put(&broker, "a", r#""in": "300ms""#);
    let got = lease(&broker, 10);
    assert_eq!(got.len(), 1);
    let delivery = &got[0];
    assert_eq!((&delivery["task"], &delivery["key"]), (&task["id"], &json!("a")));
    assert_eq!((&delivery["attempt"], &delivery["payload"]), (&json!(1), &json!({"n": 1})));
    assert_eq!(delivery["fire_at"], task["fire_at"]);
    assert!(delivery["fired_at"].as_str() >= delivery["fire_at"].as_str(), "{delivery}");
    assert!(delivery["lag_ms"].is_u64());
    assert!(delivery["fire_id"].as_str().unwrap().starts_with(task["id"].as_str().unwrap()));
    assert_eq!(broker.get("a").1["state"], "firing");
    assert_eq!(
        broker.call("GET", "/v1/shop/tasks?state=firing", &[], "").1["tasks"][0]["key"],
        "a"
    );
    assert_eq!(broker.call("GET", "/v1/shop/tasks?state=scheduled", &[], "").1["tasks"], json!([]));
    let (_, stats) = broker.call("GET", "/v1/shop/stats", &[], "");
    assert_eq!(
        (&stats["firing"], &stats["scheduled"], &stats["accepted"]),
        (&json!(1), &json!(0), &json!(1))
    );
    assert_eq!(broker.delete("a").1, json!({"result": "firing", "attempt": 1}));
    let token = &delivery["token"];
    // Another namespace cannot settle it, and a forged token is stale.
    let other = broker.call(
        "POST",
        "/v1/other/queues/mail/ack",
        &[],
        json!({"tokens": [token]}).to_string(),
    );
    assert_eq!(other.1["results"][0]["result"], "stale");
    let forged = ["0000000000000000", "ffffffffffffffff", "x", "", "+1"];
    let (_, answer) = queue(&broker, "ack", &json!({"tokens": forged}));
    for (result, token) in answer["results"].as_array().unwrap().iter().zip(forged) {
        assert_eq!(*result, json!({"token": token, "result": "stale"}));
    }
    let (_, answer) = queue(&broker, "ack", &json!({"tokens": [token, token]}));
    assert_eq!(answer["results"][0], json!({"token": token, "result": "acked"}));
    assert_eq!(answer["results"][1]["result"], "stale", "acked twice");
    for (verb, body) in [
        ("fail", json!({"token": token, "reason": "late"})),
        ("refuse", json!({"token": token, "reason": "late"})),
        ("extend", json!({"token": token, "lease": "30s"})),
    ] {
        assert_eq!(queue(&broker, verb, &body).1, json!({"result": "stale"}), "{verb}");
    }
    let id = task["id"].as_str().unwrap();
    eventually(|| (broker.get(id).1["state"] == "done").then_some(()));
}

#[test]
fn a_failed_delivery_is_retried_and_a_refused_one_becomes_a_dead_letter() {
    let broker = TestBroker::start(&[]);
    put(&broker, "a", r#""in": "0s""#);
    let first = &lease(&broker, 1)[0];
    let fail = json!({"token": first["token"], "reason": "no paper", "retry_in": "10ms"});
    assert_eq!(queue(&broker, "fail", &fail).1, json!({"result": "failed"}));
    let second = &lease(&broker, 1)[0];
    assert_eq!((&second["attempt"], &second["fire_id"]), (&json!(2), &first["fire_id"]));
    let (_, fires) = broker.call("GET", "/v1/shop/tasks/a/fires", &[], "");
    assert_eq!(fires["fires"][0]["end"], json!(null), "{fires}");
    assert_eq!(fires["fires"][0]["attempts"][0]["reason"], "no paper");
    let extend = json!({"token": second["token"], "lease": "5m"});
    assert_eq!(queue(&broker, "extend", &extend).1, json!({"result": "extended"}));
    let refuse = json!({"token": second["token"], "reason": "no such person"});
    assert_eq!(queue(&broker, "refuse", &refuse).1, json!({"result": "refused"}));
    let letter = eventually(|| {
        let (_, page) = broker.call("GET", "/v1/shop/dead", &[], "");
        page["dead"].get(0).cloned()
    });
    assert_eq!((&letter["reason"], &letter["fire_id"]), (&json!("refused"), &first["fire_id"]));
    assert_eq!(letter["attempts"][1]["reason"], "no such person");
}

#[test]
fn the_result_of_an_ack_is_in_the_history_and_one_that_is_too_long_is_rejected() {
    let broker = TestBroker::start(&[]);
    let [a, b] = ["a", "b"].map(|key| put(&broker, key, r#""in": "0s""#)["id"].clone());
    let (mut got, mut tokens) = (Vec::new(), std::collections::HashMap::new());
    while got.len() < 2 {
        got.extend(lease(&broker, 2));
    }
    for delivery in &got {
        tokens.insert(delivery["key"].as_str().unwrap(), delivery["token"].clone());
    }
    let text = |bytes: usize| json!("x".repeat(bytes - 2));
    let acks = json!({"acks": [{"token": tokens["a"], "result": text(16_385)}]});
    let (status, answer) = queue(&broker, "ack", &acks);
    let rejected = &answer["results"][0];
    assert_eq!((status, &rejected["result"]), (200, &json!("rejected")), "{answer}");
    assert_eq!(rejected["problem"]["field"], "acks[0].result", "{answer}");
    assert!(rejected["problem"]["detail"].as_str().unwrap().contains("at most 16384 bytes"));
    assert_eq!(broker.get("a").1["state"], "firing", "its lease continues");

    let acks = json!({
        "tokens": [tokens["b"], "x"],
        "acks": [{"token": tokens["a"], "result": {"paid": 1.5, "at": [null]}}, {"token": "y"}],
    });
    let (_, answer) = queue(&broker, "ack", &acks);
    let results: Vec<&Value> =
        answer["results"].as_array().unwrap().iter().map(|it| &it["result"]).collect();
    assert_eq!(results, ["acked", "stale", "acked", "stale"], "{answer}");
    for (id, result) in [(a, json!({"paid": 1.5, "at": [null]})), (b, json!(null))] {
        let path = format!("/v1/shop/tasks/{}/fires", id.as_str().unwrap());
        let fire = eventually(|| {
            let (_, page) = broker.call("GET", &path, &[], "");
            page["fires"].get(0).filter(|fire| fire["end"] == "done").cloned()
        });
        assert_eq!(fire["result"], result, "{fire}");
        assert_eq!(fire["attempts"][0]["outcome"], "acked");
    }
    for (body, status, field) in [
        (json!({}), 422, "tokens"),
        (json!({"acks": [{"result": 1}]}), 400, "acks[0]"),
        (json!({"acks": vec![json!({"token": ""}); 10_001]}), 422, "acks"),
    ] {
        let (got, problem) = queue(&broker, "ack", &body);
        assert_eq!(got, status, "{problem}");
        assert!(problem["field"].as_str().unwrap().starts_with(field), "{problem}");
    }
}

/// A token settles only at the path of its own queue.
#[test]
fn a_token_of_another_queue_is_stale_and_changes_nothing() {
    let broker = TestBroker::start(&[]);
    put(&broker, "a", r#""in": "0s""#);
    let token = lease(&broker, 1)[0]["token"].clone();
    let elsewhere = |verb: &str, body: Value| {
        let path = format!("/v1/shop/queues/letters/{verb}");
        let (status, answer) = broker.call("POST", &path, &[], body.to_string());
        assert_eq!(status, 200, "{verb}: {answer}");
        answer
    };
    let stale = json!({"result": "stale"});
    let acked = elsewhere("ack", json!({"tokens": [token]}));
    assert_eq!(acked["results"][0], json!({"token": token, "result": "stale"}));
    assert_eq!(elsewhere("fail", json!({"token": token, "reason": "no paper"})), stale);
    assert_eq!(elsewhere("refuse", json!({"token": token, "reason": "no paper"})), stale);
    assert_eq!(elsewhere("extend", json!({"token": token, "lease": "1s"})), stale);
    assert_eq!(broker.get("a").1["state"], "firing");
    let (_, acked) = queue(&broker, "ack", &json!({"tokens": [token]}));
    assert_eq!(acked["results"][0]["result"], "acked");
}

#[test]
fn an_expired_lease_is_stale_and_its_task_is_delivered_again() {
    let broker = TestBroker::start(&[]);
    put(&broker, "a", r#""in": "0s", "retry": {"backoff": {"fixed": "1ms"}}"#);
    let (_, answer) = queue(&broker, "lease", &json!({"wait": "15s", "lease": "1s"}));
    let first = &answer["deliveries"][0];
    let second = &lease(&broker, 1)[0];
    assert_eq!((&second["attempt"], &second["fire_id"]), (&json!(2), &first["fire_id"]));
    let (_, late) = queue(&broker, "ack", &json!({"tokens": [first["token"], second["token"]]}));
    assert_eq!(
        (&late["results"][0]["result"], &late["results"][1]["result"]),
        (&json!("stale"), &json!("acked"))
    );
}

#[test]
fn a_worker_that_disconnects_while_it_waits_takes_nothing() {
    let broker = TestBroker::start(&[]);
    let body = r#"{"max": 10, "wait": "60s"}"#;
    let head =
        "POST /v1/shop/queues/mail/lease HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n";
    for _ in 0..5 {
        let mut stream = TcpStream::connect(broker.address).unwrap();
        write!(stream, "{head}content-length: {}\r\n\r\n{body}", body.len()).unwrap();
    }
    for n in 0..20 {
        put(&broker, &format!("k{n}"), r#""in": "0s""#);
    }
    let mut keys = Vec::new();
    while keys.len() < 20 {
        for delivery in lease(&broker, 7) {
            assert_eq!(delivery["attempt"], 1, "{delivery}");
            keys.push(delivery["key"].as_str().unwrap().to_owned());
        }
    }
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), 20);
}

#[test]
fn nothing_is_lost_when_workers_disconnect_while_they_are_served() {
    let broker = TestBroker::start(&[]);
    let head =
        "POST /v1/shop/queues/mail/lease HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n";
    let body = r#"{"max": 100, "wait": "60s", "lease": "1s"}"#;
    for n in 0..100 {
        let mut stream = TcpStream::connect(broker.address).unwrap();
        write!(stream, "{head}content-length: {}\r\n\r\n{body}", body.len()).unwrap();
        put(&broker, &format!("k{n}"), r#""in": "1ms", "retry": {"backoff": {"fixed": "1ms"}}"#);
    }
    // Some were leased to disconnected workers, and come again after their lease.
    let mut keys = std::collections::BTreeSet::new();
    while keys.len() < 100 {
        for delivery in lease(&broker, 50) {
            keys.insert(delivery["key"].as_str().unwrap().to_owned());
        }
    }
}

#[test]
fn a_poll_without_a_wait_gets_due_tasks() {
    let broker = TestBroker::start(&[]);
    put(&broker, "a", r#""in": "0s""#);
    let got = eventually(|| {
        let (_, answer) = queue(&broker, "lease", &json!({}));
        answer["deliveries"].get(0).cloned()
    });
    assert_eq!((&got["key"], &got["attempt"]), (&json!("a"), &json!(1)));
}

#[test]
fn a_stopping_broker_ends_waiting_polls() {
    let broker = TestBroker::start(&["--grace", "10m"]);
    let body = r#"{"wait": "60s"}"#;
    let mut stream = TcpStream::connect(broker.address).unwrap();
    stream.set_read_timeout(Some(punctual_test_support::WAIT_MAX)).unwrap();
    let head = "POST /v1/shop/queues/mail/lease HTTP/1.1\r\nhost: x\r\n";
    // The poll begins after the first answer. It ends long before its minute, whether it comes
    // before the signal or after it.
    let first = "GET /livez HTTP/1.1\r\nhost: x\r\n\r\n";
    write!(stream, "{first}{head}content-length: {}\r\n\r\n{body}", body.len()).unwrap();
    let mut answer = [0; 4096];
    assert!(stream.read(&mut answer).unwrap() > 0);
    broker.signal("-TERM");
    while stream.read(&mut answer).unwrap() > 0 {}
    assert!(broker.end().success());
}

#[test]
fn workers_share_a_queue_and_namespaces_do_not() {
    let broker = &TestBroker::start(&["--partitions", "3"]);
    let other =
        broker.call("POST", "/v1/other/tasks", &[], r#"{"in": "0s", "target": {"queue": "mail"}}"#);
    assert_eq!(other.0, 201);
    let lines: Vec<String> = (0..300)
        .map(|n| {
            json!({"key": format!("k{n}"), "in": "0s", "target": {"queue": "mail"}}).to_string()
        })
        .collect();
    let kind = [("content-type", "application/x-ndjson")];
    assert_eq!(broker.call("POST", "/v1/shop/tasks", &kind, lines.join("\n")).0, 200);
    let done = || broker.call("GET", "/v1/shop/stats", &[], "").1["done"] == 300;
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !done() {
                    let (_, answer) = queue(broker, "lease", &json!({"max": 20, "wait": "50ms"}));
                    let got = answer["deliveries"].as_array().unwrap();
                    let tokens: Vec<_> = got.iter().map(|delivery| &delivery["token"]).collect();
                    let (_, acked) = queue(broker, "ack", &json!({"tokens": tokens}));
                    for result in acked["results"].as_array().unwrap() {
                        assert_eq!(result["result"], "acked");
                    }
                }
            });
        }
    });
    let (_, stats) = broker.call("GET", "/v1/shop/stats", &[], "");
    assert_eq!((&stats["accepted"], &stats["done"]), (&json!(300), &json!(300)), "{stats}");
    let (_, stats) = broker.call("GET", "/v1/other/stats", &[], "");
    assert_eq!((&stats["accepted"], &stats["done"]), (&json!(1), &json!(0)), "{stats}");
}

#[test]
fn wrong_requests_of_workers_are_refused_with_the_field() {
    let broker = TestBroker::start(&[]);
    for (verb, body, status, field) in [
        ("lease", json!({"max": 0}), 422, "max"),
        ("lease", json!({"max": 1001}), 422, "max"),
        ("lease", json!({"max": -1}), 422, "max"),
        ("lease", json!({"max": 1.5}), 400, "max"),
        ("lease", json!({"wait": "61s"}), 422, "wait"),
        ("lease", json!({"wait": "soon"}), 422, "wait"),
        ("lease", json!({"lease": "999ms"}), 422, "lease"),
        ("lease", json!({"lease": "16m"}), 422, "lease"),
        ("lease", json!({"hold": "1s"}), 400, "hold"),
        ("ack", json!({"token": "x"}), 400, "token"),
        ("ack", json!({"tokens": vec!["x"; 10_001]}), 422, "tokens"),
        ("fail", json!({"token": "x", "retry_in": "31d"}), 422, "retry_in"),
        ("extend", json!({"token": "x", "lease": "1d"}), 422, "lease"),
    ] {
        let (got, problem) = queue(&broker, verb, &body);
        assert_eq!((got, &problem["field"]), (status, &json!(field)), "{verb}: {problem}");
    }
    let (status, problem) = broker.call("POST", "/v1/shop/queues/a%20b/lease", &[], "");
    assert_eq!((status, &problem["field"]), (422, &json!("queue")));
    assert_eq!(
        broker.call("POST", "/v1/shop/queues/mail/lease", &[], "").1,
        json!({"deliveries": []})
    );
}
