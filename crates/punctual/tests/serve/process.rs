//! The process: start, SIGTERM, kill -9, and the check of a store.

use std::time::Duration;

use punctual_test_support::{TestBroker, WebhookReceiver, punctual_binary, task};
use serde_json::json;

#[test]
fn sigterm_under_load_finishes_deliveries_in_flight_and_exits_with_success() {
    let (broker, receiver) = (TestBroker::start(&[]), WebhookReceiver::start());
    for n in 0..50 {
        broker.put(&format!("k{n}"), task(r#""in": "0s""#, &receiver.url));
    }
    receiver.next();
    broker.signal("-TERM");
    assert!(broker.end().success());
}

#[test]
fn a_broker_on_all_addresses_without_tokens_refuses_to_start() {
    let output = std::process::Command::new(punctual_binary())
        .args(["serve", "--listen", "0.0.0.0:0"])
        .output()
        .unwrap();
    assert!(!output.status.success());
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("--insecure"), "{error}");
}

#[test]
fn acknowledged_tasks_survive_kill_9_and_fire_under_the_same_id() {
    let receiver = WebhookReceiver::start();
    let broker = TestBroker::start(&[]);
    let (_, near) = broker.put("near", task(r#""in": "700ms""#, &receiver.url));
    let (_, far) = broker.put("far", task(r#""in": "1h""#, &receiver.url));
    broker.put("cancelled", task(r#""in": "700ms""#, &receiver.url));
    broker.delete("cancelled");
    let dir = std::sync::Arc::clone(&broker.dir);
    broker.signal("-KILL");
    drop(broker);
    let broker = TestBroker::start_on(dir, &[]);
    let got = receiver.next();
    assert!(got.header("webhook-id").starts_with(near["id"].as_str().unwrap()));
    assert_eq!(broker.get("far"), (200, far));
    receiver.stays_silent(Duration::from_millis(300));
}

#[test]
fn a_second_broker_on_the_same_store_refuses_to_start_and_names_the_process_that_has_it() {
    let broker = TestBroker::start(&[]);
    let output = std::process::Command::new(punctual_binary())
        .args(["serve", "--listen", "127.0.0.1:0", "--data-dir"])
        .arg(broker.dir.path())
        .output()
        .unwrap();
    assert!(!output.status.success());
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains(&broker.pid().to_string()), "{error}");
}

#[test]
fn the_store_of_a_stopped_broker_can_be_checked_and_that_of_a_running_one_cannot() {
    let broker = TestBroker::start(&[]);
    broker.put("a", task(r#""in": "1h""#, "http://127.0.0.1:9/"));
    broker.put("b", task(r#""in": "1h""#, "http://127.0.0.1:9/"));
    broker.delete("b");
    let dir = std::sync::Arc::clone(&broker.dir);
    let store = |verb: &str| {
        let mut command = std::process::Command::new(punctual_binary());
        let output = command.args(["store", verb, "--json"]).arg(dir.path()).output().unwrap();
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        (output.status.success(), json, String::from_utf8(output.stderr).unwrap())
    };
    let (success, _, error) = store("check");
    assert!(!success && error.contains(&broker.pid().to_string()), "{error}");
    broker.signal("-KILL");
    drop(broker);
    let (success, report, error) = store("check");
    assert!(success, "{error}");
    assert_eq!((&report["scheduled"], &report["names"]), (&json!(1), &json!(1)), "{report}");
    assert_eq!(report["problems"], json!([]));
    let (success, stats, error) = store("stats");
    assert!(success, "{error}");
    assert_eq!(stats["tasks_buffered"], json!(1), "{stats}");
}
