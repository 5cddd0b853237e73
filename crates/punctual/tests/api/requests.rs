//! Requests that several tests of the API send.

use punctual_test_support::TestBroker;
use serde_json::{Value, json};

/// Nothing listens there.
pub(crate) const URL: &str = "http://127.0.0.1:9/";

pub(crate) fn post(broker: &TestBroker, path: &str, body: &Value) -> (u16, Value) {
    broker.call("POST", &format!("/v1/shop{path}"), &[], body.to_string())
}

pub(crate) fn get(broker: &TestBroker, path: &str) -> (u16, Value) {
    broker.call("GET", &format!("/v1/shop{path}"), &[], "")
}

/// Returns a task that is due in some minutes.
pub(crate) fn later(key: &str, minutes: u64) -> Value {
    json!({"key": key, "in": format!("{minutes}m"), "target": {"http": {"url": URL}}})
}
