//! `punctual serve` from outside: the real binary over real sockets, with real receivers.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that is surprised should stop")]

mod field;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use field::{Broker, Receiver, eventually, now_millis, task};
use serde_json::json;

#[test]
fn a_task_calls_its_webhook_on_time_with_payload_and_headers() {
    let (broker, receiver) = (Broker::start(&[]), Receiver::start());
    let body = json!({
        "in": "300ms",
        "target": {"http": {"url": format!("{}/cancel?a=b", receiver.url), "headers": {"x-a": "b"}}},
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
fn a_cancelled_task_does_not_call() {
    let (broker, receiver) = (Broker::start(&[]), Receiver::start());
    broker.put("order-1", task(r#""in": "400ms""#, &receiver.url));
    assert_eq!(broker.delete("order-1"), (200, json!({"result": "cancelled"})));
    assert_eq!(broker.delete("order-1").0, 404);
    assert_eq!(broker.get("order-1").0, 404);
    receiver.stays_silent(Duration::from_millis(700));
}

#[test]
fn a_task_can_be_found_and_cancelled_by_its_id() {
    let (broker, receiver) = (Broker::start(&[]), Receiver::start());
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
fn a_fired_task_says_so_when_it_is_cancelled() {
    let (broker, receiver) = (Broker::start(&[]), Receiver::start());
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
fn replacing_counts_versions_and_keeps_conditions() {
    let (broker, receiver) = (Broker::start(&[]), Receiver::start());
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
fn a_failing_receiver_is_tried_again_and_a_gone_one_is_not() {
    let (broker, receiver) = (Broker::start(&[]), Receiver::start());
    let retry =
        r#""in": "0s", "retry": {"attempts_max": 3, "backoff": {"fixed": "50ms"}, "jitter": 0}"#;
    broker.put("fails", task(retry, &format!("{}/500", receiver.url)));
    let attempts = [receiver.next(), receiver.next(), receiver.next()];
    for (attempt, number) in attempts.iter().zip(["1", "2", "3"]) {
        assert_eq!(attempt.header("punctual-attempt"), number);
        assert_eq!(attempt.header("webhook-id"), attempts[0].header("webhook-id"));
    }
    assert!(attempts[1].at_millis >= attempts[0].at_millis + 50);
    receiver.stays_silent(Duration::from_millis(200));
    broker.put("gone", task(retry, &format!("{}/410", receiver.url)));
    receiver.next();
    receiver.stays_silent(Duration::from_millis(200));
    broker.put("busy", task(retry, &format!("{}/503", receiver.url)));
    let (first, second) = (receiver.next(), receiver.next());
    assert!(second.at_millis >= first.at_millis + 1000, "Retry-After is kept");
}

#[test]
fn bad_input_gets_a_problem_that_names_the_field() {
    let (broker, receiver) = (Broker::start(&[]), Receiver::start());
    let url = &receiver.url;
    let deep = format!("{}1{}", "[".repeat(300), "]".repeat(300));
    for (body, status, field) in [
        ("".to_owned(), 400, None),
        ("{".to_owned(), 400, None),
        ("[]".to_owned(), 400, None),
        (r#"{"in": "1s"} x"#.to_owned(), 400, None),
        (r#"{"im": "1s"}"#.to_owned(), 400, Some("im")),
        (r#"{"in": 5}"#.to_owned(), 400, Some("in")),
        (task(r#""in": "soon""#, url), 422, Some("in")),
        (task(r#""in": "99999d""#, url), 422, Some("in")),
        (task(r#""in": "1s", "at": 5"#, url), 422, Some("at")),
        (task(r#""payload_base64": "eA==", "in": "1s""#, url), 422, Some("payload_base64")),
        (task(r#""labels": {}"#, url), 422, Some("in")),
        (task(r#""at": "tomorrow""#, url), 422, Some("at")),
        (task(r#""at": -1"#, url), 422, Some("at")),
        (task(r#""at": 9223372036854775807"#, url), 422, Some("at")),
        (task(r#""at": 1e300"#, url), 400, Some("at")),
        (task(r#""in": "1s", "timeout": "1ms""#, url), 422, Some("timeout")),
        (task(r#""in": "1s", "guarantee": "twice""#, url), 400, Some("guarantee")),
        (task(r#""in": "1s", "retry": {"attempts_max": 0}"#, url), 422, Some("retry.attempts_max")),
        (task(r#""in": "1s", "retry": {"attempts_max": 70000}"#, url), 422, Some("retry.attempts_max")),
        (task(r#""in": "1s", "retry": {"jitter": 2}"#, url), 422, Some("retry.jitter")),
        (task(r#""in": "1s", "retry": {"backoff": {"fixed": "x"}}"#, url), 422, Some("retry.backoff.fixed")),
        (task(r#""in": "1s", "labels": {"a b": ""}"#, url), 422, Some("labels")),
        (task(r#""in": "1s", "key": "other""#, url), 422, Some("key")),
        (task(r#""in": "1s""#, "ftp://x/"), 422, Some("target.http.url")),
        (task(r#""in": "1s""#, "http://user@x/"), 422, Some("target.http.url")),
        (r#"{"in": "1s"}"#.to_owned(), 422, Some("target")),
        (r#"{"in": "1s", "target": {"queue": "a b"}}"#.to_owned(), 422, Some("target.queue")),
        (r#"{"in": "1s", "target": {"http": {"url": "http://x/", "method": "BREW"}}}"#.to_owned(), 422, Some("target.http.method")),
        (r#"{"in": "1s", "target": {"http": {"url": "http://x/", "headers": {"a": "b\r\nc: d"}}}}"#.to_owned(), 422, Some("target.http.headers.a")),
        (format!(r#"{{"in": "1s", "target": {{"http": {{"url": "http://x/"}}}}, "payload": {deep}}}"#), 422, Some("payload")),
        (format!(r#"{{"in": "1s", "target": {{"http": {{"url": "http://x/"}}}}, "payload": "{}"}}"#, "x".repeat(262_144)), 422, Some("payload")),
        ("x".repeat(600_000), 413, None),
    ] {
        let (got, problem) = broker.put("a", &body);
        let short = &body[..body.len().min(120)];
        assert_eq!(got, status, "{short}: {problem}");
        assert_eq!(problem.get("field").and_then(|f| f.as_str()), field, "{short}: {problem}");
    }
    for (path, status) in [
        ("/v1/sh%20op/tasks/a", 422),
        ("/v1/shop/tasks/a%00b", 422),
        ("/v1/shop/tasks/%ff", 400),
        ("/v2/shop/tasks/a", 404),
        ("/", 404),
    ] {
        assert_eq!(broker.call("GET", path, &[], "").0, status, "{path}");
    }
    assert_eq!(broker.call("PATCH", "/v1/shop/tasks/a", &[], "").0, 405);
    assert_eq!(broker.get("a").0, 404, "nothing of all this was taken");
}

#[test]
fn sigterm_under_load_finishes_what_is_under_way_and_exits_well() {
    let (broker, receiver) = (Broker::start(&[]), Receiver::start());
    for n in 0..50 {
        broker.put(&format!("k{n}"), task(r#""in": "0s""#, &receiver.url));
    }
    receiver.next();
    broker.signal("-TERM");
    assert!(broker.end().success());
}

#[test]
fn a_broker_open_to_the_network_refuses_to_start() {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_punctual"))
        .args(["serve", "--listen", "0.0.0.0:0"])
        .output()
        .unwrap();
    assert!(!output.status.success());
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("--insecure"), "{said}");
}

#[test]
fn what_was_acknowledged_is_there_after_kill_9_and_fires_under_the_same_id() {
    let receiver = Receiver::start();
    let broker = Broker::start(&[]);
    let (_, near) = broker.put("near", task(r#""in": "700ms""#, &receiver.url));
    let (_, far) = broker.put("far", task(r#""in": "1h""#, &receiver.url));
    broker.put("cancelled", task(r#""in": "700ms""#, &receiver.url));
    broker.delete("cancelled");
    let dir = std::sync::Arc::clone(&broker.dir);
    broker.signal("-KILL");
    drop(broker);
    let broker = Broker::start_on(dir, &[]);
    let got = receiver.next();
    assert!(got.header("webhook-id").starts_with(near["id"].as_str().unwrap()));
    assert_eq!(broker.get("far"), (200, far));
    receiver.stays_silent(Duration::from_millis(300));
}

#[test]
fn a_second_broker_on_the_same_store_refuses_to_start_and_says_who_holds_it() {
    let broker = Broker::start(&[]);
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_punctual"))
        .args(["serve", "--listen", "127.0.0.1:0", "--data-dir"])
        .arg(broker.dir.path())
        .output()
        .unwrap();
    assert!(!output.status.success());
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains(&broker.pid().to_string()), "{said}");
}

#[test]
fn the_store_of_a_stopped_broker_can_be_checked_and_that_of_a_running_one_cannot() {
    let broker = Broker::start(&[]);
    broker.put("a", task(r#""in": "1h""#, "http://127.0.0.1:9/"));
    broker.put("b", task(r#""in": "1h""#, "http://127.0.0.1:9/"));
    broker.delete("b");
    let dir = std::sync::Arc::clone(&broker.dir);
    let store = |verb: &str| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_punctual"));
        let output = command.args(["store", verb, "--json"]).arg(dir.path()).output().unwrap();
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        (output.status.success(), json, String::from_utf8(output.stderr).unwrap())
    };
    let (fine, _, said) = store("check");
    assert!(!fine && said.contains(&broker.pid().to_string()), "{said}");
    broker.signal("-KILL");
    drop(broker);
    let (fine, report, said) = store("check");
    assert!(fine, "{said}");
    assert_eq!((&report["scheduled"], &report["names"]), (&json!(1), &json!(1)), "{report}");
    assert_eq!(report["problems"], json!([]));
    let (fine, stats, said) = store("stats");
    assert!(fine, "{said}");
    assert_eq!(stats["tasks_buffered"], json!(1), "{stats}");
}

/// Pages of all dead letters, by their fire ids.
fn dead_letters(broker: &Broker, limit: usize) -> BTreeSet<String> {
    let (mut found, mut cursor) = (BTreeSet::new(), String::new());
    loop {
        let path = format!("/v1/shop/dead?limit={limit}{cursor}");
        let (status, page) = broker.call("GET", &path, &[], "");
        assert_eq!(status, 200, "{page}");
        let letters = page["dead"].as_array().unwrap().iter();
        found.extend(letters.map(|letter| letter["fire_id"].as_str().unwrap().to_owned()));
        match page["next"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return found,
        }
    }
}

#[test]
fn dead_letters_of_all_partitions_are_listed_and_redriven_after_a_restart() {
    let (flags, receiver) = (&["--partitions", "4"], Receiver::start());
    let broker = Broker::start(flags);
    let count = 120;
    for number in 0..count {
        let body = task(r#""in": "0s""#, &format!("{}/410", receiver.url));
        assert_eq!(broker.put(&format!("order-{number}"), body).0, 201);
    }
    let stats = |broker: &Broker| broker.call("GET", "/v1/shop/stats", &[], "").1;
    let all_died = || (stats(&broker)["dead_letters"] == count).then_some(());
    eventually(all_died);
    let before = dead_letters(&broker, 10);
    assert_eq!(before.len(), count);
    let dir = Arc::clone(&broker.dir);
    broker.signal("-TERM");
    assert!(broker.end().success());
    let broker = Broker::start_on(dir, flags);
    for limit in [7, 10, 100] {
        assert_eq!(dead_letters(&broker, limit), before, "in pages of {limit}");
    }
    let (_, page) = broker.call("GET", "/v1/shop/tasks?state=dead&limit=1000", &[], "");
    assert_eq!(page["tasks"].as_array().unwrap().len(), count);
    let all = json!({"all": true}).to_string();
    let (_, redriven) = broker.call("POST", "/v1/shop/dead/redrive", &[], all);
    assert_eq!(redriven["redriven"], count, "{redriven}");
}
