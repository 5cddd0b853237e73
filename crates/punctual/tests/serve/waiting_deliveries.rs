//! Deliveries that wait for a connection: what is sent is the task as it is then, with the time of
//! sending, and a cancel reaches it.

use std::net::TcpStream;
use std::time::Duration;

use punctual_test_support::{
    HangingReceiver, TestBroker, WAIT_MAX, WebhookReceiver, now_millis, pause, task,
};
use serde_json::json;

use crate::metrics::until_metric;

/// How long deliveries wait in these tests, at least.
const WAIT_MILLIS: u64 = 700;

/// Starts a broker that may have one connection, which hangs. Returns the
/// open connection; the next delivery is sent when it is closed.
fn hanging_broker() -> (TestBroker, TcpStream) {
    let broker = TestBroker::start(&["--webhook-connections", "1"]);
    let hanging = HangingReceiver::start();
    let once = r#""in": "0s", "timeout": "1m", "retry": {"attempts_max": 1}"#;
    broker.put("hangs", task(once, &hanging.url));
    let stream = hanging.streams.recv_timeout(WAIT_MAX).expect("the first delivery is sent");
    (broker, stream)
}

/// Waits until so many deliveries wait for a connection.
fn until_waiting(broker: &TestBroker, count: f64) {
    until_metric(broker, "punctual_webhook_connection_waits", count);
}

fn body(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn with_payload(when: &str, url: &str, payload: &str) -> String {
    json!({"in": when, "target": {"http": {"url": url}}, "payload": payload}).to_string()
}

#[test]
fn a_task_that_is_replaced_while_it_waits_is_sent_in_its_new_version_only() {
    let (broker, hanging) = hanging_broker();
    let receiver = WebhookReceiver::start();
    assert_eq!(broker.put("order", with_payload("0s", &receiver.url, "old")).0, 201);
    let series = |payload: &str| {
        json!({"every": "1h", "starts_at": 0, "target": {"http": {"url": receiver.url}},
               "payload": payload})
        .to_string()
    };
    assert_eq!(broker.put("series", series("old")).0, 201);
    assert_eq!(broker.call("POST", "/v1/shop/tasks/series/fire", &[], "").0, 200);
    until_waiting(&broker, 2.0);
    assert_eq!(broker.put("order", with_payload("0s", &receiver.url, "new")).0, 200);
    assert_eq!(broker.put("series", series("new")).0, 200);
    until_waiting(&broker, 2.0);
    drop(hanging);
    for _ in 0..2 {
        let got = receiver.next();
        assert_eq!(body(&got.body), r#""new""#, "{got:?}");
        assert_eq!(
            got.header("punctual-version"),
            if got.header("punctual-key") == "order" { "2" } else { "3" }
        );
    }
    receiver.stays_silent(Duration::from_millis(200));
}

#[test]
fn a_task_that_waits_is_cancelled_touched_or_paused_and_not_sent() {
    let (broker, hanging) = hanging_broker();
    let receiver = WebhookReceiver::start();
    let at_most_once = json!({"in": "0s", "target": {"http": {"url": receiver.url}},
                              "guarantee": "at_most_once"});
    broker.put("cancelled", with_payload("0s", &receiver.url, "x"));
    broker.put("at-most-once", at_most_once.to_string());
    broker.put("touched", with_payload("0s", &receiver.url, "x"));
    broker.put("paused", with_payload("0s", &receiver.url, "x"));
    let watch = json!({"within": "1s", "target": {"http": {"url": receiver.url}}});
    assert_eq!(broker.put("watch", watch.to_string()).0, 201);
    until_waiting(&broker, 5.0);
    for key in ["cancelled", "at-most-once"] {
        assert_eq!(broker.delete(key).1, json!({"result": "cancelled"}), "{key}");
    }
    let call = |path: &str, body: &'static str| broker.call("POST", path, &[], body).0;
    assert_eq!(call("/v1/shop/tasks/touched/touch", r#"{"in": "1h"}"#), 200);
    assert_eq!(call("/v1/shop/tasks/watch/touch", r#"{"within": "1h"}"#), 200);
    assert_eq!(call("/v1/shop/tasks/paused/pause", ""), 200);
    until_waiting(&broker, 0.0);
    drop(hanging);
    receiver.stays_silent(Duration::from_millis(500));
    let (_, stats) = broker.call("GET", "/v1/shop/stats", &[], "");
    assert_eq!(stats["cancelled"], 2, "{stats}");
    assert_eq!(stats["scheduled"], 2, "{stats}");
    assert_eq!(stats["paused"], 1, "{stats}");
}

#[test]
fn lag_and_time_of_a_delivery_that_waited_are_those_of_sending() {
    let (broker, hanging) = hanging_broker();
    let receiver = WebhookReceiver::start();
    let (_, order) = broker.put("order", with_payload("0s", &receiver.url, "x"));
    until_waiting(&broker, 1.0);
    pause(Duration::from_millis(WAIT_MILLIS));
    let (_, stats) = broker.call("GET", "/v1/shop/stats", &[], "");
    assert_eq!(stats["oldest_overdue"], order["fire_at"], "{stats}");
    let before = now_millis();
    drop(hanging);
    let got = receiver.next();
    let lag: u64 = got.header("punctual-lag-ms").parse().unwrap();
    assert!(lag >= WAIT_MILLIS, "{lag}");
    let timestamp: u128 = got.header("webhook-timestamp").parse().unwrap();
    assert!(timestamp >= before / 1000, "{timestamp} {before}");
    let fire = punctual_test_support::eventually(|| {
        let (_, fires) = broker.call("GET", "/v1/shop/tasks/order/fires", &[], "");
        let by_id = format!("/v1/shop/tasks/{}/fires", order["id"].as_str()?);
        let fires =
            if fires["fires"][0].is_null() { broker.call("GET", &by_id, &[], "").1 } else { fires };
        let fire = fires["fires"][0].clone();
        (!fire.is_null()).then_some(fire)
    });
    assert_eq!(fire["lag_ms"], json!(lag), "{fire}");
    assert_eq!(fire["attempts"].as_array().map(Vec::len), Some(1), "{fire}");
}

#[test]
fn a_url_without_a_path_and_a_post_without_a_payload_are_sent_as_http_wants_them() {
    let (broker, receiver) = (TestBroker::start(&[]), WebhookReceiver::start());
    let url = format!("{}?a=1", receiver.url);
    let new_task = json!({"in": "0s", "target": {"http": {"url": url}}});
    assert_eq!(broker.put("query", new_task.to_string()).0, 201);
    let got = receiver.next();
    assert_eq!((got.path.as_str(), got.header("content-length")), ("/?a=1", "0"));
    let get = json!({"in": "0s", "target": {"http": {"url": receiver.url, "method": "GET"}}});
    assert_eq!(broker.put("get", get.to_string()).0, 201);
    let got = receiver.next();
    assert_eq!((got.path.as_str(), got.header("content-length")), ("/", ""));
}
