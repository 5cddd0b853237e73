//! Connections to receivers: kept open, bounded in number, shared fairly.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver as Channel, Sender, channel};
use std::thread;

use punctual_test_support::{TestBroker, WAIT_MAX, eventually, task};
use serde_json::{Value, json};

/// What a receiver does with a request.
#[derive(Debug, Clone, Copy)]
enum ReceiverManner {
    /// Answers and waits for the next request.
    Keeps,
    /// Answers as if it kept the connection open, and closes it.
    Closes,
    /// Never answers.
    Hangs,
}

/// Starts a receiver with a thread per connection. It sends the number of the connection of each
/// request.
fn receiver(manner: ReceiverManner, got: &Sender<usize>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let got = got.clone();
    thread::spawn(move || {
        for (number, stream) in listener.incoming().enumerate() {
            let (stream, got) = (stream.unwrap(), got.clone());
            thread::spawn(move || serve(stream, manner, number, &got));
        }
    });
    port
}

fn serve(stream: TcpStream, manner: ReceiverManner, number: usize, got: &Sender<usize>) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut stream = stream;
    loop {
        let mut length = 0;
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).unwrap_or(0) == 0 {
                return;
            }
            let line = line.trim_end().to_ascii_lowercase();
            if let Some(value) = line.strip_prefix("content-length: ") {
                length = value.parse().unwrap();
            }
            if line.is_empty() {
                break;
            }
        }
        if reader.read_exact(&mut vec![0; length]).is_err() || got.send(number).is_err() {
            return;
        }
        if matches!(manner, ReceiverManner::Hangs) {
            continue;
        }
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok");
        if matches!(manner, ReceiverManner::Closes) {
            return;
        }
    }
}

fn url(port: u16) -> String {
    format!("http://127.0.0.1:{port}/")
}

fn metric(broker: &TestBroker, name: &str) -> f64 {
    let (_, page) = broker.call("GET", "/metrics", &[], "");
    let value = |line: &str| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok();
    page.as_str().unwrap().lines().find_map(value).unwrap()
}

/// Counts the connections that the broker has open to these ports, by the tables of the kernel.
fn open_to(broker: &TestBroker, ports: &BTreeSet<u16>) -> usize {
    let files = std::fs::read_dir(format!("/proc/{}/fd", broker.pid())).unwrap();
    let links = files.filter_map(|file| std::fs::read_link(file.ok()?.path()).ok());
    let sockets: BTreeSet<String> = links
        .filter_map(|link| {
            Some(link.to_str()?.strip_prefix("socket:[")?.trim_end_matches(']').to_owned())
        })
        .collect();
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let rows = table.lines().skip(1).map(|row| row.split_whitespace().collect::<Vec<_>>());
    let open = rows.filter(|row| {
        let port = row[2].rsplit_once(':').unwrap().1;
        ports.contains(&u16::from_str_radix(port, 16).unwrap()) && sockets.contains(row[9])
    });
    // The table changes while it is read, so a row may be in it twice.
    let open: BTreeSet<String> = open.map(|row| row[9].to_owned()).collect();
    open.len()
}

fn receive(got: &Channel<usize>, count: usize) -> Vec<usize> {
    (0..count).map(|_| got.recv_timeout(WAIT_MAX).expect("a delivery arrives")).collect()
}

#[test]
fn many_targets_share_a_bounded_number_of_connections_and_all_are_called() {
    const TARGETS: usize = 60;
    let broker = TestBroker::start(&["--webhook-connections", "8"]);
    let (send, got) = channel();
    let ports: BTreeSet<u16> =
        (0..TARGETS).map(|_| receiver(ReceiverManner::Keeps, &send)).collect();
    for round in 1..=3 {
        let tasks: Vec<Value> = ports
            .iter()
            .map(|port| json!({"in": "0s", "target": {"http": {"url": url(*port)}}}))
            .collect();
        let body = Value::from(tasks).to_string();
        assert_eq!(broker.call("POST", "/v1/shop/tasks", &[], body).0, 200);
        for _ in 0..TARGETS {
            receive(&got, 1);
            let open = open_to(&broker, &ports);
            assert!(open <= 8, "{open} connections are open");
        }
        let done = json!(round * TARGETS);
        eventually(|| {
            (broker.call("GET", "/v1/shop/stats", &[], "").1["done"] == done).then_some(())
        });
    }
    let open = metric(&broker, "punctual_webhook_connections");
    assert!((1.0..=8.0).contains(&open), "{open}");
    assert!(metric(&broker, "punctual_webhook_connection_waits") < 1.0);
}

#[test]
fn receivers_that_hang_leave_connections_for_others() {
    let broker = TestBroker::start(&["--webhook-connections", "16"]);
    let (send, hung) = channel();
    for _ in 0..2 {
        let hangs = url(receiver(ReceiverManner::Hangs, &send));
        let one = json!({"in": "0s", "timeout": "1m", "target": {"http": {"url": hangs}}});
        let body = json!(vec![one; 40]).to_string();
        assert_eq!(broker.call("POST", "/v1/shop/tasks", &[], body).0, 200);
    }
    // The first gets half of what the namespace may have, the other half of the rest.
    receive(&hung, 6);
    eventually(|| (metric(&broker, "punctual_webhook_connection_waits") >= 1.0).then_some(()));
    let (send, got) = channel();
    let ports: Vec<u16> = (0..12).map(|_| receiver(ReceiverManner::Keeps, &send)).collect();
    for port in &ports {
        broker.call("POST", "/v1/shop/tasks", &[], task(r#""in": "0s""#, &url(*port)));
    }
    receive(&got, ports.len());
    assert!(
        metric(&broker, "punctual_webhook_connection_waits") >= 1.0,
        "deliveries to hanging receivers still wait"
    );
    // Another namespace has connections of its own.
    let other = url(receiver(ReceiverManner::Keeps, &send));
    broker.call("POST", "/v1/other/tasks", &[], task(r#""in": "0s""#, &other));
    receive(&got, 1);
}

#[test]
fn a_connection_is_kept_for_the_next_delivery() {
    let broker = TestBroker::start(&[]);
    let (send, got) = channel();
    let url = url(receiver(ReceiverManner::Keeps, &send));
    for done in 1..=5 {
        broker.call("POST", "/v1/shop/tasks", &[], task(r#""in": "0s""#, &url));
        assert_eq!(receive(&got, 1), [0], "always the first connection");
        eventually(|| {
            (broker.call("GET", "/v1/shop/stats", &[], "").1["done"] == done).then_some(())
        });
    }
}

#[test]
fn a_kept_connection_closed_by_the_receiver_costs_no_attempt() {
    let broker = TestBroker::start(&[]);
    let (send, got) = channel();
    let url = url(receiver(ReceiverManner::Closes, &send));
    for done in 1..=10 {
        let fields = r#""in": "0s", "guarantee": "at_most_once""#;
        broker.call("POST", "/v1/shop/tasks", &[], task(fields, &url));
        receive(&got, 1);
        let stats = eventually(|| {
            let (_, stats) = broker.call("GET", "/v1/shop/stats", &[], "");
            (stats["scheduled"] == 0 && stats["firing"] == 0).then_some(stats)
        });
        assert_eq!((&stats["done"], &stats["dead"]), (&json!(done), &json!(0)), "{stats}");
        // A delivery sent while the receiver closes would be lost, so wait for the close.
        eventually(|| (metric(&broker, "punctual_webhook_connections") < 1.0).then_some(()));
    }
}
