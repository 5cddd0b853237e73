//! `punctual store check` finds nothing in the store of a healthy broker, whatever its tasks do.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use punctual_test_support::{TestBroker, WebhookReceiver, eventually, punctual_binary, task};
use serde_json::{Value, json};

/// Runs a check and returns its report. It must find no problem.
fn check(dir: &Path, when: &str) -> Value {
    let mut command = Command::new(punctual_binary());
    let output = command.args(["store", "check", "--json"]).arg(dir).output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{when}: {report} {error}");
    assert_eq!(report["problems"], json!([]), "{when}");
    report
}

fn post(broker: &TestBroker, path: &str, body: &Value) -> Value {
    let (status, answer) = broker.call("POST", &format!("/v1/shop{path}"), &[], body.to_string());
    assert!(status < 300, "{path}: {answer}");
    answer
}

fn stats(broker: &TestBroker) -> Value {
    broker.call("GET", "/v1/shop/stats", &[], "").1
}

/// Creates tasks in every state that a task can have, in all partitions.
fn fill(broker: &TestBroker, receiver: &WebhookReceiver, round: u32) {
    let done = &receiver.url;
    let (gone, fails) = (format!("{done}/410"), format!("{done}/500"));
    let put = |name: &str, number: u32, when: &str, url: &str| {
        let (status, answer) = broker.put(&format!("{name}-{round}-{number}"), task(when, url));
        assert_eq!(status, 201, "{answer}");
    };
    let overlapping = r#""every": "300ms", "retry": {"backoff": {"fixed": "1h"}}"#;
    for number in 0..6 {
        put("watch", number, r#""within": "100ms""#, done);
        put("dead-watch", number, r#""within": "100ms""#, &gone);
        put("dead", number, r#""in": "0s""#, &gone);
        put("done", number, r#""in": "0s""#, done);
        // Its fires overlap: each waits for its retry, which does not come, while the next ones
        // come due.
        put("overlapping", number, overlapping, &fails);
        put("series", number, r#""every": "100ms", "count": 1"#, &gone);
        put("later", number, r#""in": "1h""#, done);
        put("moved", number, r#""in": "1h""#, done);
        let moved = format!("/tasks/moved-{round}-{number}/touch");
        post(broker, &moved, &json!({"in": "2h"}));
        put("paused", number, r#""in": "1h""#, done);
        post(broker, &format!("/tasks/paused-{round}-{number}/pause"), &json!({}));
        put("paused-series", number, r#""every": "1h""#, done);
        post(broker, &format!("/tasks/paused-series-{round}-{number}/pause"), &json!({}));
        put("cancelled", number, r#""in": "1h""#, done);
        broker.delete(&format!("cancelled-{round}-{number}"));
        let receipt = format!("receipt-{round}-{number}");
        let body = task(r#""in": "1h""#, done);
        let headers = [("Idempotency-Key", receipt.as_str())];
        assert_eq!(broker.call("POST", "/v1/shop/tasks", &headers, body).0, 201);
    }
    // Eighteen letters: of watches, of tasks that ended, and of series.
    let letters = 18 * i64::from(round);
    let all_dead = || (stats(broker)["dead_letters"] == letters).then_some(());
    eventually(all_dead);
    let redriven = post(broker, "/dead/redrive", &json!({"all": true}));
    assert_eq!(redriven["redriven"], letters, "{redriven}");
    eventually(all_dead);
    let silent = || {
        let (_, page) = broker.call("GET", "/v1/shop/tasks?state=done&limit=1000", &[], "");
        let tasks = page["tasks"].as_array().unwrap().iter();
        let watches = tasks.filter(|task| task["within"].is_string()).count();
        (watches == 6 * round as usize).then_some(())
    };
    eventually(silent);
    // One of them waits for a retry of its redriven fire.
    eventually(|| (stats(broker)["scheduled"].as_i64()? > 0).then_some(()));
}

#[test]
fn a_check_finds_no_problem_in_the_store_of_a_healthy_broker() {
    let (flags, receiver) = (&["--partitions", "3"], WebhookReceiver::start());
    let broker = TestBroker::start(flags);
    let dir = Arc::clone(&broker.dir);
    fill(&broker, &receiver, 1);
    broker.signal("-KILL");
    drop(broker);
    let report = check(dir.path(), "after kill -9, everything in the journal");
    assert_eq!((&report["paused"], &report["dead_letters"]), (&json!(12), &json!(18)), "{report}");
    let broker = TestBroker::start_on(Arc::clone(&dir), flags);
    fill(&broker, &receiver, 2);
    broker.signal("-TERM");
    assert!(broker.end().success());
    let report = check(dir.path(), "after SIGTERM, everything in runs and the catalog");
    assert_eq!((&report["paused"], &report["dead_letters"]), (&json!(24), &json!(36)), "{report}");
    let broker = TestBroker::start_on(Arc::clone(&dir), flags);
    for number in 0..6 {
        post(&broker, &format!("/tasks/watch-1-{number}/touch"), &json!({}));
        post(&broker, &format!("/tasks/paused-1-{number}/resume"), &json!({}));
        broker.delete(&format!("overlapping-2-{number}"));
    }
    post(&broker, "/dead/redrive", &json!({"all": true}));
    broker.signal("-KILL");
    drop(broker);
    check(dir.path(), "after kill -9, with changes of what is in the catalog");
}
