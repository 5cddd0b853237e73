//! Access: tokens, and requests of pages in a browser.

use std::io::{Read, Write};
use std::net::TcpStream;

use punctual_test_support::{TestBroker, task};
use serde_json::Value;

fn bearer(token: &str) -> [(&'static str, String); 1] {
    [("authorization", format!("Bearer {token}"))]
}

/// Sends a task with a token.
pub(crate) fn call(broker: &TestBroker, method: &str, path: &str, token: &str) -> (u16, Value) {
    let [(name, value)] = bearer(token);
    broker.call(method, path, &[(name, &value)], task(r#""in": "1h""#, "http://127.0.0.1:9/"))
}

#[test]
fn a_token_gives_access_to_its_own_namespace_only() {
    let flags = ["--token", "shop=aaa", "--token", "bank=bbb", "--admin-token", "root"];
    let broker = TestBroker::start(&flags);
    for (method, path, token, want) in [
        ("PUT", "/v1/shop/tasks/a", "aaa", 201),
        ("PUT", "/v1/shop/tasks/a", "bbb", 403),
        ("PUT", "/v1/shop/tasks/a", "aa", 401),
        ("PUT", "/v1/shop/tasks/a", "", 401),
        ("PUT", "/v1/shop/tasks/a", "root", 200),
        ("POST", "/v1/shop/tasks", "aaa", 201),
        ("POST", "/v1/bank/tasks", "aaa", 403),
        ("GET", "/v1/shop/tasks/a", "aaa", 200),
        ("GET", "/v1/shop/tasks/a", "bbb", 403),
        ("GET", "/v1/%73hop/tasks/a", "aaa", 200),
        ("GET", "/v1/%73hop/tasks/a", "bbb", 403),
        ("GET", "/v1/no%20name/tasks/a", "aaa", 403),
        ("DELETE", "/v1/shop/tasks/a", "bbb", 403),
        ("DELETE", "/v1/shop/tasks/a", "aaa", 200),
        ("GET", "/metrics", "aaa", 403),
        ("GET", "/metrics", "", 401),
        ("GET", "/metrics", "root", 200),
        ("GET", "/livez", "", 200),
        ("GET", "/readyz", "", 200),
        ("GET", "/nowhere", "", 404),
        ("PATCH", "/v1/shop/tasks/a", "", 405),
    ] {
        let (status, answer) = call(&broker, method, path, token);
        assert_eq!(status, want, "{method} {path} with {token:?}: {answer}");
    }
    assert_eq!(broker.get("a").0, 401, "no header at all");
}

#[test]
fn an_unauthenticated_answer_names_the_bearer_scheme() {
    let broker = TestBroker::start(&["--token", "shop=aaa"]);
    let mut stream = TcpStream::connect(broker.address).unwrap();
    stream
        .write_all(b"GET /v1/shop/tasks/a HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 401 "), "{answer}");
    assert!(answer.contains("www-authenticate: Bearer"), "{answer}");
}

#[test]
fn a_page_in_a_browser_cannot_schedule_on_a_broker_without_tokens() {
    let broker = TestBroker::start(&[]);
    let own = broker.address.to_string();
    let rebound = format!("evil.example:{}", broker.address.port());
    let task = r#"{"in": "1h", "target": {"http": {"url": "http://127.0.0.1:9/"}}}"#;
    let own_page = format!("http://{own}");
    for (headers, status, kind) in [
        (vec![], 201, None),
        (vec![("origin", own_page.as_str())], 200, None),
        (vec![("origin", "https://evil.example")], 403, Some("urn:punctual:cross-origin")),
        (vec![("origin", "null")], 403, Some("urn:punctual:cross-origin")),
        (vec![("host", rebound.as_str())], 403, Some("urn:punctual:host-not-allowed")),
    ] {
        let (got, answer) = broker.call("PUT", "/v1/shop/tasks/a", &headers, task);
        assert_eq!(got, status, "{headers:?}: {answer}");
        assert_eq!(answer["type"].as_str(), kind, "{headers:?}: {answer}");
    }
    // A request with a token is accepted from any origin.
    let broker = TestBroker::start(&["--token", "shop=hush"]);
    let headers = [("authorization", "Bearer hush"), ("origin", "https://app.example")];
    assert_eq!(broker.call("PUT", "/v1/shop/tasks/a", &headers, task).0, 201);
}
