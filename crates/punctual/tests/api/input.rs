//! Values at the limits of a text or a number, and what is answered beyond them.

use std::process::Command;

use punctual_test_support::{TestBroker, punctual_binary};
use serde_json::{Value, json};

fn put(broker: &TestBroker, key: &str, fields: &str) -> (u16, Value) {
    broker.put(key, format!(r#"{{"target": {{"queue": "q"}}, {fields}}}"#))
}

/// JSON allows values that strict parsers reject. Such a payload would make every list and every
/// batch of deliveries that contains it unreadable.
#[test]
fn a_payload_that_strict_parsers_reject_is_refused() {
    let broker = TestBroker::start(&[]);
    let beyond = "9".repeat(400);
    for payload in [r#""\ud800""#, r#"{"\udc00": 1}"#, "1e400", "[-1E999]", &beyond] {
        let (status, answer) = put(&broker, "odd", &format!(r#""in": "1h", "payload": {payload}"#));
        assert_eq!((status, &answer["field"]), (422, &json!("payload")), "{payload}: {answer}");
    }
    for (key, payload) in [("a", r#""\ud83d\ude00""#), ("b", "1e300"), ("c", r#""1e400 \\ud800""#)]
    {
        let (status, answer) = put(&broker, key, &format!(r#""in": "1h", "payload": {payload}"#));
        assert_eq!(status, 201, "{payload}: {answer}");
        let want: Value = serde_json::from_str(payload).unwrap();
        assert_eq!(answer["payload"], want);
    }
    let list = Command::new(punctual_binary())
        .args(["list", "shop", "--broker", &format!("http://{}", broker.address)])
        .output()
        .unwrap();
    assert!(list.status.success(), "{}", String::from_utf8_lossy(&list.stderr));
    assert_eq!(String::from_utf8(list.stdout).unwrap().matches(" scheduled ").count(), 3);
}

/// Unix time has no leap seconds, so a leap second becomes the second after it, never the one
/// before.
#[test]
fn a_leap_second_is_not_early_and_the_latest_time_is_in_the_error() {
    let broker = TestBroker::start(&[]);
    for (at, want) in [
        ("2030-06-30T23:59:60Z", "2030-07-01T00:00:00.000Z"),
        ("2030-07-01T01:59:60.5+02:00", "2030-07-01T00:00:00.500Z"),
        ("2030-06-30T23:59:59Z", "2030-06-30T23:59:59.000Z"),
        ("2030-06-30T23:58:59.600Z", "2030-06-30T23:58:59.600Z"),
    ] {
        let (_, answer) = put(&broker, "leap", &format!(r#""at": "{at}""#));
        assert_eq!(answer["fire_at"], want, "{at}: {answer}");
    }
    let (status, answer) = put(&broker, "end", r#""at": "9999-12-31T23:59:59Z""#);
    assert_eq!((status, &answer["field"]), (422, &json!("at")));
    let detail = answer["detail"].as_str().unwrap();
    assert!(detail.contains("9999-12-30T22:00:00Z"), "the limit is named: {detail}");
}

#[test]
fn a_label_filter_accepts_colon_and_equals_sign_and_any_value() {
    let broker = TestBroker::start(&[]);
    let labels = r#""in": "1h", "labels": {"at": "09:30", "rule": "a=b", "plain": "x"}"#;
    assert_eq!(put(&broker, "k", labels).0, 201);
    for label in ["at:09:30", "at%3D09:30", "rule:a%3Db", "rule%3Da%3Db", "plain:x", "plain%3Dx"] {
        let (_, page) = broker.call("GET", &format!("/v1/shop/tasks?label={label}"), &[], "");
        assert_eq!(page["tasks"].as_array().unwrap().len(), 1, "{label}: {page}");
    }
    let (_, page) = broker.call("GET", "/v1/shop/tasks?label=at:09:31", &[], "");
    assert_eq!(page["tasks"], json!([]));
}

/// A problem names the field and the limit, and no type of the implementation.
#[test]
fn a_wrong_value_is_answered_in_terms_of_the_api() {
    let broker = TestBroker::start(&[]);
    for (fields, status, field, words) in [
        (
            r#""in": "1h", "retry": {"attempts_max": 1000000}"#,
            422,
            "retry.attempts_max",
            "1 to 100",
        ),
        (r#""in": "1h", "retry": {"attempts_max": -1}"#, 422, "retry.attempts_max", "1 to 100"),
        (r#""in": "1h", "retry": 5"#, 400, "retry", "`attempts_max`"),
        (r#""cron": "0 9 * * *", "dst": "after""#, 400, "dst", "`gap`"),
    ] {
        let (got, answer) = put(&broker, "k", fields);
        assert_eq!((got, &answer["field"]), (status, &json!(field)), "{answer}");
        let detail = answer["detail"].as_str().unwrap();
        assert!(detail.contains(words) && !detail.contains("Body"), "{detail}");
    }
    for body in ["5", "null", r#""x""#] {
        let (status, answer) = broker.put("k", body);
        assert_eq!(status, 400);
        let detail = answer["detail"].as_str().unwrap();
        assert!(detail.contains("one task, a JSON object"), "{detail}");
    }
}

/// If the condition were ignored, a caller that wants to create a task could replace one.
#[test]
fn conditions_are_refused_where_they_have_no_effect() {
    let broker = TestBroker::start(&[]);
    let body = br#"{"key": "k", "in": "1h", "target": {"queue": "q"}}"#;
    for header in ["if-none-match", "if-match"] {
        let (status, answer) =
            broker.call("POST", "/v1/shop/tasks", &[(header, "*")], body.as_slice());
        assert_eq!((status, &answer["field"]), (400, &json!(header)), "{answer}");
    }
    assert_eq!(broker.get("k").0, 404);
}

/// If a name has two values, the broker does not choose one of them.
#[test]
fn a_label_or_header_given_twice_is_refused() {
    let broker = TestBroker::start(&[]);
    let headers = |headers: &str| {
        let target =
            format!(r#"{{"http": {{"url": "http://127.0.0.1:9/", "headers": {headers}}}}}"#);
        format!(r#"{{"in": "1h", "target": {target}}}"#)
    };
    let labels = r#"{"colour": "red", "size": "1", "colour": "blue"}"#;
    let labels = format!(r#"{{"in": "1h", "target": {{"queue": "q"}}, "labels": {labels}}}"#);
    for (body, field) in [
        (labels.clone(), "labels.colour"),
        // Escaped, but the same name when it is read.
        (labels.replacen("colour", r"\u0063olour", 1), "labels.colour"),
        // The same value twice is a mistake, too.
        (labels.replacen("blue", "red", 1), "labels.colour"),
        (headers(r#"{"x-a": "1", "x-a": "2"}"#), "target.http.headers.x-a"),
        // Names of headers ignore case, so only one of these would be sent.
        (headers(r#"{"X-A": "1", "x-a": "2"}"#), "target.http.headers.x-a"),
    ] {
        let (status, answer) = broker.put("k", &body);
        assert_eq!((status, &answer["field"]), (422, &json!(field)), "{body}: {answer}");
        assert_eq!(answer["detail"], format!("{field}: is given twice"));
    }
    let (_, answer) = broker.call("POST", "/v1/shop/tasks", &[], format!("[{labels}]"));
    assert_eq!(answer["results"][0]["field"], "labels.colour", "{answer}");
    let create = format!(r#"{{"keys": ["k"], "create": {labels}}}"#);
    let (status, answer) = broker.call("POST", "/v1/shop/touch", &[], create);
    assert_eq!((status, &answer["field"]), (422, &json!("create.labels.colour")), "{answer}");
    assert_eq!(broker.get("k").0, 404);
    // Names of labels respect case.
    let labels = r#""in": "1h", "labels": {"colour": "red", "Colour": "blue"}"#;
    assert_eq!(put(&broker, "k", labels).1["labels"], json!({"colour": "red", "Colour": "blue"}));
}

#[test]
fn a_query_parameter_given_twice_is_refused() {
    let broker = TestBroker::start(&[]);
    for (path, name) in [
        ("/v1/shop/tasks?state=paused&state=done", "state"),
        ("/v1/shop/tasks?label=a:1&limit=5&label=b:2", "label"),
        ("/v1/shop/tasks?limit=5&limit=", "limit"),
        ("/v1/shop/dead?cursor=x&cursor=x", "cursor"),
        ("/v1/shop/tasks/k/fires?limit=1&limit=2", "limit"),
        ("/v1/shop/forecast?for=1h&step=1h&for=2h", "for"),
        ("/v1/preview?cron=@daily&cron=@hourly", "cron"),
    ] {
        let (status, answer) = broker.call("GET", path, &[], "");
        assert_eq!((status, &answer["field"]), (400, &json!(name)), "{path}: {answer}");
        assert_eq!(answer["detail"], format!("{name} must be given once"));
    }
}
