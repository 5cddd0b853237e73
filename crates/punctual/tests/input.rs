//! What callers send, from outside: values at the edge of what a text or a number can say, and what is answered to those beyond.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that is surprised should stop")]

mod field;

use field::Broker;
use serde_json::{Value, json};

fn put(broker: &Broker, key: &str, fields: &str) -> (u16, Value) {
    broker.put(key, format!(r#"{{"target": {{"queue": "q"}}, {fields}}}"#))
}

/// Unix time has no leap seconds, so one has to be another second: the one after, never the one before.
#[test]
fn a_leap_second_is_not_early_and_the_end_of_time_says_so() {
    let broker = Broker::start(&[]);
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
    assert!(detail.contains("9999-12-30T22:00:00Z"), "names the limit: {detail}");
}
