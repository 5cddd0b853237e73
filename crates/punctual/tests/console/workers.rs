//! Queues and workers as an operator sees them.

use std::io::Write as _;
use std::net::TcpStream;

use punctual_test_support::TestBroker;

use crate::browser::Browser;

/// Connects a worker that waits for deliveries. It is gone when the stream is dropped.
fn worker(broker: &TestBroker, name: &str) -> TcpStream {
    let mut stream = TcpStream::connect(broker.address).unwrap();
    let body = format!(r#"{{"wait": "60s", "worker": "{name}"}}"#);
    let (host, length) = (broker.address, body.len());
    let head = format!("POST /v1/shop/queues/reports/lease HTTP/1.1\r\nhost: {host}\r\n");
    write!(stream, "{head}content-length: {length}\r\n\r\n{body}").unwrap();
    stream
}

/// Receivers that fail, and connections that are away, are shown where an operator looks first.
#[test]
fn targets_say_what_has_failed_and_what_waits() {
    let broker = TestBroker::start(&[]);
    broker.put(
        "order-1",
        r#"{"in": "0s", "retry": {"attempts_max": 1},
            "target": {"http": {"url": "http://127.0.0.1:1/"}}}"#,
    );
    broker.put("order-2", r#"{"in": "0s", "target": {"queue": "reports"}}"#);
    let page = Browser::open(broker.address, "#/shop/queues");
    page.wait_for("http://127.0.0.1:1");
    page.wait_for("queue reports");
    page.wait_for("Last failure");
    page.go("#/shop");
    page.wait_for("1 attempt to http://127.0.0.1:1 failed in the last 15 minutes");
    page.wait_for("Queue reports has 1 due task and no worker.");
    page.wait_for_element("section[aria-labelledby=lanes] tbody tr");
}

/// A worker that disconnects stays in the list as gone, and its queue says that it has none.
#[test]
fn a_worker_that_vanishes_is_shown_as_gone() {
    let broker = TestBroker::start(&[]);
    let connected = worker(&broker, "worker-1");
    let page = Browser::open(broker.address, "#/shop/queues");
    page.wait_for("worker-1");
    page.wait_for_element(".state.alive");
    drop(connected);
    page.wait_for("gone at");
    broker.put("order-1", r#"{"in": "0s", "target": {"queue": "reports"}}"#);
    page.wait_for("no worker");
    page.go("#/shop");
    page.wait_for("Queue reports has 1 due task and no worker.");
}
