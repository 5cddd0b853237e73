//! Connections to a broker: refusals, limits, and ten thousand silent ones.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::thread;

use punctual_test_support::{
    TestBroker, WAIT_MAX, WebhookReceiver, memory_bytes, now_millis, read_answer, task,
};
use serde_json::{Value, json};

use crate::metrics::{metric, until_metric};

/// If the head of a request is readable, every refusal is a problem document of the API, and never
/// an error of a library.
#[test]
fn every_refusal_is_a_problem_document() {
    let broker = TestBroker::start(&[]);
    let large = "x".repeat(600_000);
    let lines = "content-type: application/x-ndjson";
    for (method, path, header, body, want, more) in [
        ("GET", "/nowhere", "", "", 404, "not-found"),
        ("GET", "/console/0/main.js", "", "", 404, "not-found"),
        ("GET", "/v1/shop/tasks/", "", "", 404, "not-found"),
        ("POST", "/v1/shop/nothing", "", "{}", 404, "not-found"),
        ("FOO", "/nowhere", "", "", 404, "not-found"),
        ("POST", "/punctual.v1.Unknown/Nothing", "", "", 404, "not-found"),
        ("PATCH", "/v1/shop/tasks/a", "", "{}", 405, "allow: PUT, GET, DELETE\r\n"),
        ("FOO", "/v1/shop/tasks", "", "", 405, "allow: POST, GET\r\n"),
        ("OPTIONS", "/v1/shop/tasks", "", "", 405, "allow: POST, GET\r\n"),
        ("POST", "/livez", "", "", 405, "allow: GET\r\n"),
        ("POST", "/v1/shop/tasks", "content-type: text/plain", "{}", 415, "application/json or"),
        ("PUT", "/v1/shop/tasks/a", lines, "{}", 415, "application/json"),
        ("PUT", "/v1/shop/tasks/a", "", &large, 413, "524288 bytes"),
        ("PUT", "/v1/shop/tasks/a", "", "", 400, "the body is empty; it must be one task"),
        ("POST", "/v1/shop/tasks", "", " \n", 400, "the body is empty; it must be one task"),
        ("POST", "/v1/shop/cancel", "", "", 400, "the body is empty; it must be a list of keys"),
        ("POST", "/v1/shop/queues/q/ack", "", "", 400, "the body is empty; it must be a list of"),
        ("GET", "/v1/shop/tasks/%ff", "", "", 400, "percent-encoded UTF-8"),
        ("GET", "/v1/shop/tasks?%", "", "", 400, "unknown query parameter"),
    ] {
        let mut stream = TcpStream::connect(broker.address).unwrap();
        let header = if header.is_empty() { String::new() } else { format!("{header}\r\n") };
        let length = body.len();
        let head =
            format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{header}");
        write!(stream, "{head}content-length: {length}\r\n\r\n{body}").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with(&format!("HTTP/1.1 {want} ")), "{method} {path}: {answer}");
        assert!(answer.contains("content-type: application/problem+json\r\n"), "{answer}");
        let (_, problem) = answer.split_once("\r\n\r\n").unwrap();
        let problem: Value = serde_json::from_str(problem).unwrap();
        assert_eq!(problem["status"], want, "{problem}");
        for name in ["type", "title", "detail"] {
            assert!(problem[name].is_string(), "{problem}");
        }
        assert!(answer.contains(more), "{method} {path}: {more}: {answer}");
    }
}

/// RFC 9112 wants exactly one `Host` in every request of HTTP/1.1.
#[test]
fn a_request_without_a_host_or_with_two_is_refused() {
    let broker = TestBroker::start(&[]);
    for (request, want) in [
        ("GET /livez HTTP/1.1\r\n", "HTTP/1.1 400 "),
        ("GET /livez HTTP/1.1\r\nhost: localhost\r\nhost: localhost\r\n", "HTTP/1.1 400 "),
        ("POST /punctual.v1.Tasks/Get HTTP/1.1\r\n", "HTTP/1.1 400 "),
        ("GET /livez HTTP/1.1\r\nhost: localhost\r\n", "HTTP/1.1 200 "),
        ("GET /livez HTTP/1.0\r\n", "HTTP/1.0 200 "),
    ] {
        let mut stream = TcpStream::connect(broker.address).unwrap();
        write!(stream, "{request}connection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with(want), "{request}: {answer}");
        if want.contains("400") {
            assert!(answer.contains("application/problem+json"), "{answer}");
            assert!(answer.contains("\"field\":\"host\""), "{answer}");
        }
    }
}

#[test]
fn an_oversized_request_head_is_refused() {
    let broker = TestBroker::start(&[]);
    let mut stream = TcpStream::connect(broker.address).unwrap();
    let _ = stream.write_all(b"GET /livez HTTP/1.1\r\nhost: a\r\nx: ");
    let _ = stream.write_all(&[b'x'; 100_000]);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431 "), "{answer}");
    assert_eq!(broker.call("GET", "/livez", &[], ""), (200, json!("alive\n")));
}

#[test]
fn a_refused_request_is_counted_and_its_connection_serves_the_next() {
    let broker = TestBroker::start(&[]);
    let mut stream = TcpStream::connect(broker.address).unwrap();
    stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
    let host = broker.address;
    let refused = |method: &str, header: &str| {
        format!(
            "{method} /v1/shop/tasks HTTP/1.1\r\nhost: {host}\r\n{header}\
             content-length: 9\r\n\r\n{{\"a\": 1}}\n"
        )
    };
    for (request, status) in [
        (refused("PATCH", ""), "405"),
        (refused("POST", "origin: https://evil.example\r\n"), "403"),
        (format!("GET /livez HTTP/1.1\r\nhost: {host}\r\n\r\n"), "200"),
    ] {
        stream.write_all(request.as_bytes()).unwrap();
        let answer = read_answer(&mut stream);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{request}: {answer}");
    }
    let line =
        r#"punctual_requests_total{method="POST",route="/v1/{namespace}/tasks",status="403"}"#;
    until_metric(&broker, line, 1.0);
}

#[test]
fn an_unread_body_that_comes_late_does_not_close_its_connection() {
    let broker = TestBroker::start(&[]);
    let mut stream = TcpStream::connect(broker.address).unwrap();
    stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
    let host = broker.address;
    for (method, path, status) in [
        ("GET", "/v1/shop/stats", "200"),
        ("POST", "/v1/shop/tasks/none/pause", "404"),
        ("POST", "/v1/no%20name/tasks", "422"),
        ("GET", "/nowhere", "404"),
    ] {
        let head = format!("{method} {path} HTTP/1.1\r\nhost: {host}\r\ncontent-length: 9\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        // By then the broker has handled the head of the request.
        for _ in 0..10 {
            assert_eq!(broker.call("GET", "/livez", &[], "").0, 200);
        }
        stream.write_all(b"{\"a\": 1}\n").unwrap();
        let answer = read_answer(&mut stream);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{head}: {answer}");
    }
}

#[test]
fn ten_thousand_idle_connections_do_not_delay_other_requests() {
    const CONNECTIONS: u32 = 10_000;
    const BYTES_EACH_MAX: u64 = 64 * 1024;
    let own = std::process::id().to_string();
    let raised = Command::new("prlimit").args(["--pid", &own, "--nofile=12000:"]).status();
    assert!(raised.is_ok_and(|status| status.success()), "the limit of open files must be raised");
    let broker = TestBroker::start(&[]);
    let before = memory_bytes(broker.pid(), "VmRSS");
    let host = broker.address;
    let whole = format!("GET /livez HTTP/1.1\r\nhost: {host}\r\n\r\n");
    let open = format!("POST /v1/shop/tasks HTTP/1.1\r\nhost: {host}\r\ncontent-length: 9\r\n\r\n");
    let connections: Vec<TcpStream> = (0..CONNECTIONS)
        .map(|number| {
            let mut stream = TcpStream::connect(host).unwrap();
            stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
            match number % 4 {
                0 => {}
                1 => stream.write_all(&whole.as_bytes()[..20]).unwrap(),
                2 => stream.write_all(open.as_bytes()).unwrap(),
                _ => {
                    // Answered once, and idle since.
                    stream.write_all(whole.as_bytes()).unwrap();
                    assert!(read_answer(&mut stream).starts_with("HTTP/1.1 200 "));
                }
            }
            stream
        })
        .collect();
    assert!(metric(&broker, "punctual_connections") >= f64::from(CONNECTIONS), "all are accepted");
    let each = memory_bytes(broker.pid(), "VmRSS").saturating_sub(before) / u64::from(CONNECTIONS);
    assert!(each < BYTES_EACH_MAX, "{each} bytes per connection");
    // Other requests are answered, and due tasks are sent.
    let receiver = WebhookReceiver::start();
    assert_eq!(broker.put("a", task(r#""in": "10ms""#, &receiver.url)).0, 201);
    assert_eq!(receiver.next().header("punctual-key"), "a");
    drop(connections);
    let begun = now_millis();
    while metric(&broker, "punctual_connections") > 10.0 {
        assert!(now_millis() < begun + WAIT_MAX.as_millis(), "closed connections are not counted");
        thread::yield_now();
    }
}
