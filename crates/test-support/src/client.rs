//! HTTP calls to a broker that may be down.
//!
//! Most methods return `None` if there is no complete answer: then the outcome is not known.

use std::io::Read as _;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use http::Response;
use serde_json::Value;

/// Calls one broker. Clones share their connections.
#[derive(Clone)]
pub struct BrokerClient {
    pub address: SocketAddr,
    agent: ureq::Agent,
}

impl BrokerClient {
    pub fn new(address: SocketAddr, timeout: Duration) -> Self {
        let config = ureq::Agent::config_builder().http_status_as_error(false);
        Self { address, agent: config.timeout_global(Some(timeout)).build().into() }
    }

    /// Returns a client of the same broker with another timeout.
    pub fn with_timeout(&self, timeout: Duration) -> Self {
        Self::new(self.address, timeout)
    }

    /// Sends a request. A body that is not JSON is returned as a string.
    pub fn request(&self, method: &str, path: &str, body: &str) -> Option<(u16, Value)> {
        let answer = self.send(method, path, body)?;
        Some((answer.status().as_u16(), answer.into_body()))
    }

    /// Sends a request and returns the answer with its headers.
    pub fn send(&self, method: &str, path: &str, body: &str) -> Option<Response<Value>> {
        self.send_with(method, path, &[], body.as_bytes()).ok()
    }

    pub(crate) fn send_with(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Result<Response<Value>, ureq::Error> {
        let mut request =
            http::Request::builder().method(method).uri(format!("http://{}{path}", self.address));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let mut answer = self.agent.run(request.body(body.to_vec()).unwrap())?;
        let text = answer.body_mut().read_to_string()?;
        let json = serde_json::from_str(&text).unwrap_or(Value::String(text));
        Ok(answer.map(|_| json))
    }

    /// Sends a request about a task, by its key or a path below it (`order-1/touch`).
    pub fn request_task(&self, method: &str, key: &str, body: &str) -> Option<(u16, Value)> {
        self.request(method, &format!("/v1/shop/tasks/{key}"), body)
    }

    /// Schedules a task. Returns whether the broker acknowledged it.
    pub fn try_put(&self, key: &str, body: &Value) -> Option<bool> {
        let (status, _) = self.request_task("PUT", key, &body.to_string())?;
        Some(matches!(status, 200 | 201))
    }

    /// Asserts that the broker has all of these tasks.
    pub fn assert_has<'a>(&self, keys: impl IntoIterator<Item = &'a String>) {
        for key in keys {
            let (status, answer) = self.request_task("GET", key, "").expect("the broker answers");
            assert_eq!(status, 200, "{key} was acknowledged and is gone: {answer}");
        }
    }

    /// Returns a number of `/metrics` by its name and labels.
    pub fn metric(&self, name: &str) -> Option<f64> {
        let (_, page) = self.request("GET", "/metrics", "")?;
        let line =
            page.as_str()?.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
        line.parse().ok()
    }

    /// Sends a request about the namespace `shop` (`/tasks/…`, `/stats`), which must be answered.
    pub fn shop(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let answer = self.request(method, &format!("/v1/shop{path}"), &body);
        answer.unwrap_or_else(|| panic!("no answer to {method} {path} from {}", self.address))
    }

    pub fn get(&self, path: &str) -> (u16, Value) {
        self.shop("GET", path, &Value::Null)
    }

    pub fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        self.shop("POST", path, body)
    }

    pub fn put(&self, key: &str, body: &Value) -> (u16, Value) {
        self.shop("PUT", &format!("/tasks/{key}"), body)
    }
}

/// Reads one answer, by its length, from a connection that stays open.
pub fn read_answer(stream: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let text = String::from_utf8_lossy(&answer).into_owned();
        let whole = text.split_once("\r\n\r\n").is_some_and(|(head, body)| {
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            length.and_then(|length| length.parse().ok()).unwrap_or(0) <= body.len()
        });
        if whole {
            return text;
        }
        let read = stream.read(&mut buffer).unwrap();
        assert_ne!(read, 0, "the connection was closed: {text}");
        answer.extend_from_slice(&buffer[..read]);
    }
}
