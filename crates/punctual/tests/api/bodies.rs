//! Bodies that the API refuses: wrong fields, values over a limit, random JSON.

use punctual_test_support::{TestBroker, WebhookReceiver, task};
use serde_json::{Value, json};

use crate::requests::{later, post};

#[test]
fn bad_input_is_refused_with_a_problem_that_names_the_field() {
    let (broker, receiver) = (TestBroker::start(&[]), WebhookReceiver::start());
    let url = &receiver.url;
    let deep = format!("{}1{}", "[".repeat(300), "]".repeat(300));
    let large = "x".repeat(262_144);
    let http = |target: &str, more: &str| {
        format!(r#"{{"in": "1s", "target": {{"http": {{"url": "http://x/"{target}}}}}{more}}}"#)
    };
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
        (task(r#""at": 1e300"#, url), 422, Some("at")),
        (task(r#""at": 1.5"#, url), 400, Some("at")),
        (task(r#""in": "1s", "timeout": "1ms""#, url), 422, Some("timeout")),
        (task(r#""in": "1s", "guarantee": "twice""#, url), 400, Some("guarantee")),
        (task(r#""in": "1s", "retry": {"attempts_max": 0}"#, url), 422, Some("retry.attempts_max")),
        (
            task(r#""in": "1s", "retry": {"attempts_max": 70000}"#, url),
            422,
            Some("retry.attempts_max"),
        ),
        (task(r#""in": "1s", "retry": {"jitter": 2}"#, url), 422, Some("retry.jitter")),
        (
            task(r#""in": "1s", "retry": {"backoff": {"fixed": "x"}}"#, url),
            422,
            Some("retry.backoff.fixed"),
        ),
        (task(r#""in": "1s", "labels": {"a b": ""}"#, url), 422, Some("labels")),
        (task(r#""in": "1s", "key": "other""#, url), 422, Some("key")),
        (task(r#""in": "1s""#, "ftp://x/"), 422, Some("target.http.url")),
        (task(r#""in": "1s""#, "http://user@x/"), 422, Some("target.http.url")),
        (r#"{"in": "1s"}"#.to_owned(), 422, Some("target")),
        (r#"{"in": "1s", "target": {"queue": "a b"}}"#.to_owned(), 422, Some("target.queue")),
        (http(r#", "method": "BREW""#, ""), 422, Some("target.http.method")),
        (http(r#", "success": {"statuses": [99]}"#, ""), 422, Some("target.http.success.statuses")),
        (
            http(r#", "success": {"json": {"errcode": 0}}"#, ""),
            422,
            Some("target.http.success.json"),
        ),
        (http(r#", "success": {"json": [0]}"#, ""), 400, Some("target.http.success.json")),
        (
            http(r#", "refuse": {"statuses": [70000]}"#, ""),
            422,
            Some("target.http.refuse.statuses"),
        ),
        (http("", r#", "on_done": {"queue": "a b"}"#), 422, Some("on_done.queue")),
        (http("", r#", "on_dead": {"http": {"url": "ftp://x/"}}"#), 422, Some("on_dead.http.url")),
        (
            http("", r#", "on_dead": {"http": {"url": "http://10.0.0.1/"}}"#),
            422,
            Some("on_dead.http.url"),
        ),
        (http("", r#", "paused": 1"#), 400, Some("paused")),
        (http("", r#", "callback_of": "x""#), 400, Some("callback_of")),
        (http(r#", "headers": {"a": "b\r\nc: d"}"#, ""), 422, Some("target.http.headers.a")),
        (http("", &format!(r#", "payload": {deep}"#)), 422, Some("payload")),
        (http("", &format!(r#", "payload": "{large}""#)), 422, Some("payload")),
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
        ("/v1", 404),
    ] {
        assert_eq!(broker.call("GET", path, &[], "").0, status, "{path}");
    }
    assert_eq!(broker.call("PATCH", "/v1/shop/tasks/a", &[], "").0, 405);
    assert_eq!(broker.get("a").0, 404, "no task was scheduled");
}

#[test]
fn wrong_content_types_and_oversized_bodies_are_refused() {
    let broker = TestBroker::start(&[]);
    let deep = "[".repeat(100_000);
    for (method, path, kind, body, status) in [
        ("POST", "/tasks", "text/plain", "{}".to_owned(), 415),
        ("POST", "/tasks", "multipart/form-data", "{}".to_owned(), 415),
        ("PUT", "/tasks/a", "application/x-ndjson", "{}".to_owned(), 415),
        ("POST", "/cancel", "application/xml", "{}".to_owned(), 415),
        ("POST", "/tasks", "application/json", deep.clone(), 400),
        ("POST", "/tasks", "application/json; charset=utf-8", format!("{{\"in\":{deep}"), 400),
        ("POST", "/cancel", "application/json", deep.clone(), 400),
        ("POST", "/cancel", "application/json", "[\"a\"]".to_owned(), 400),
        ("POST", "/cancel", "application/json", r#"{"keys": "a"}"#.to_owned(), 400),
        ("POST", "/cancel", "application/json", r#"{"keyz": []}"#.to_owned(), 400),
        ("POST", "/touch", "application/json", "".to_owned(), 400),
        ("POST", "/touch", "application/json", r#"{"keys": ["a"], "in": 1e400}"#.to_owned(), 400),
        (
            "POST",
            "/tasks/a/touch",
            "application/json",
            r#"{"in": "999999999999999999999d"}"#.to_owned(),
            422,
        ),
        ("POST", "/tasks/a/touch", "application/json", r#"{"in": "99999d"}"#.to_owned(), 422),
        (
            "POST",
            "/tasks/a/touch",
            "application/json",
            r#"{"at": 99999999999999999}"#.to_owned(),
            422,
        ),
        ("POST", "/dead/redrive", "application/json", "null".to_owned(), 400),
        ("POST", "/tasks", "application/json", "x".repeat(600_000), 413),
        ("PUT", "/tasks/a", "application/json", "x".repeat(600_000), 413),
        ("POST", "/cancel", "application/json", "x".repeat(9 << 20), 413),
        ("POST", "/tasks", "application/json", "\u{fffe}{}".to_owned(), 400),
    ] {
        let kind = [("content-type", kind)];
        let (got, problem) = broker.call(method, &format!("/v1/shop{path}"), &kind, &body);
        let short: String = body.chars().take(60).collect();
        assert_eq!(got, status, "{method} {path} {kind:?} {short}: {problem}");
        if status == 413 {
            assert!(problem["detail"].as_str().unwrap().contains("bytes"), "{problem}");
        }
    }
    // The default content type of curl is accepted, unless a page in a browser sends it.
    let form = ("content-type", "application/x-www-form-urlencoded");
    let body = later("a", 1).to_string();
    assert_eq!(broker.call("POST", "/v1/shop/tasks", &[form], &body).0, 201);
    let own = format!("http://{}", broker.address);
    for (origin, status) in [("http://evil.example", 403), (own.as_str(), 415)] {
        let headers = [form, ("origin", origin)];
        assert_eq!(broker.call("POST", "/v1/shop/tasks", &headers, &body).0, status, "{origin}");
    }
    assert_eq!(broker.call("DELETE", "/v1/shop/stats", &[], "").0, 405);
    assert_eq!(broker.call("GET", "/v1/shop", &[], "").0, 404);
    assert_eq!(broker.call("GET", "/v1/shop/nothing", &[], "").0, 404);
    assert_eq!(broker.call("GET", "/v1/sh%0d%0aop/stats", &[], "").0, 422);
    assert_eq!(broker.call("GET", "/livez", &[], "").0, 200, "the broker still runs");
}

#[test]
fn odd_values_in_any_field_get_a_documented_status() {
    let broker = TestBroker::start(&[]);
    let long = "x".repeat(5000);
    let odd_values = [
        json!(null),
        json!(true),
        json!(0),
        json!(-1),
        json!(1e308),
        json!(u64::MAX),
        json!(i64::MIN),
        json!(""),
        json!("\u{0}"),
        json!("\r\nx: y"),
        json!(long),
        json!("💥"),
        json!([]),
        json!([null]),
        json!([[]]),
        json!({}),
        json!({"": {}}),
        json!("P999999999Y"),
        json!("9223372036854775807d"),
        json!("+275760-09-13T00:00:00Z"),
        json!({"http": {"url": "http://[::1"}}),
        json!({"queue": ".."}),
        json!({"exponential": {"first": "0s", "factor": -0.0, "max": "0s"}}),
    ];
    let task = json!({"in": "1h", "target": {"queue": "q"}, "key": "k", "payload": 1, "labels": {},
        "retry": {"attempts_max": 1, "backoff": {"fixed": "1s"}, "jitter": 0}, "timeout": "1s",
        "expires_after": "1s", "guarantee": "at_least_once"});
    let fields = |names: &'static [&'static str]| names.iter().copied();
    let mut calls: Vec<(&str, Value)> = Vec::new();
    for value in &odd_values {
        for name in fields(&[
            "in",
            "at",
            "target",
            "key",
            "payload",
            "payload_base64",
            "content_type",
            "labels",
            "retry",
            "timeout",
            "expires_after",
            "guarantee",
            "every",
            "cron",
            "x",
        ]) {
            let mut body = task.clone();
            body[name] = value.clone();
            calls.push(("/tasks", body));
        }
        for name in fields(&["attempts_max", "backoff", "jitter"]) {
            let mut body = task.clone();
            body["retry"][name] = value.clone();
            calls.push(("/tasks", json!([body])));
        }
        for (path, name) in [
            ("/tasks/k/touch", "in"),
            ("/tasks/k/touch", "at"),
            ("/touch", "keys"),
            ("/touch", "create"),
            ("/cancel", "keys"),
            ("/cancel", "ids"),
            ("/dead/redrive", "ids"),
            ("/dead/redrive", "all"),
            ("/queues/q/lease", "max"),
            ("/queues/q/lease", "lease"),
            ("/queues/q/ack", "tokens"),
            ("/queues/q/fail", "token"),
            ("/queues/q/fail", "retry_in"),
            ("/queues/q/extend", "lease"),
        ] {
            calls.push((path, json!({name: value})));
            calls.push((path, json!({name: [value, value]})));
        }
        calls.push(("/tasks", value.clone()));
        calls.push(("/cancel", value.clone()));
    }
    for (path, body) in calls {
        let (status, answer) = post(&broker, path, &body);
        assert!([200, 201, 400, 404, 409, 422].contains(&status), "{path} {body}: {answer}");
    }
    assert_eq!(broker.call("GET", "/readyz", &[], "").0, 200);
}
