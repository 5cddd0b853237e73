//! `punctual dev` as a process: a broker in memory whose clock the test moves.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, ExitStatus, Stdio};

use serde_json::{Value, json};

use crate::broker::punctual_binary;
use crate::client::BrokerClient;
use crate::wait::WAIT_MAX;

/// Where the clock of a [`DevBroker`] starts.
pub const DEV_START: &str = "2027-01-04T08:00:00.000Z";

/// A `punctual dev` process. It ends when this is dropped, because its standard input closes.
pub struct DevBroker {
    child: Child,
    pub client: BrokerClient,
    /// The first line that it has printed.
    pub printed: String,
}

impl DevBroker {
    /// Starts a broker whose clock is frozen at [`DEV_START`], with more flags.
    pub fn start(flags: &[&str]) -> Self {
        Self::run(&[&["--clock", DEV_START], flags].concat())
    }

    /// Starts a broker with only these flags.
    pub fn run(flags: &[&str]) -> Self {
        let mut child = Command::new(punctual_binary())
            .args(["dev", "--exit-with-stdin"])
            .args(flags)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut printed = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut printed).unwrap();
        let answer: Value = serde_json::from_str(&printed).expect("a line of JSON");
        let url = answer["url"].as_str().expect("an address");
        let address: SocketAddr = url.strip_prefix("http://").unwrap().parse().unwrap();
        Self { child, client: BrokerClient::new(address, WAIT_MAX), printed }
    }

    /// Sends a request to `/v1/clock` and below it.
    pub fn clock(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let answer = self.client.request(method, &format!("/v1/clock{path}"), &body);
        answer.unwrap_or_else(|| panic!("no answer to {method} /v1/clock{path} {body}"))
    }

    /// Advances the clock, which must succeed.
    pub fn advance(&self, body: &Value) -> Value {
        let (status, answer) = self.clock("POST", "/advance", body);
        assert_eq!(status, 200, "{answer}");
        answer
    }

    /// Advances the clock by a duration. Returns how many fires became due.
    pub fn advance_by(&self, by: &str) -> u64 {
        self.advance(&json!({"by": by}))["fires"].as_u64().unwrap()
    }

    /// Creates a task, which must be accepted.
    pub fn put(&self, key: &str, body: &Value) -> Value {
        let (status, task) = self.client.put(key, body);
        assert!(matches!(status, 200 | 201), "{task}");
        task
    }

    /// Returns the latest fires of a task, the oldest of them first.
    pub fn fires(&self, key: &str) -> Vec<Value> {
        let (status, page) = self.client.get(&format!("/tasks/{key}/fires"));
        assert_eq!(status, 200, "{page}");
        page["fires"].as_array().unwrap().iter().rev().cloned().collect()
    }

    /// Closes the standard input of the process and waits for its end.
    pub fn close_stdin(mut self) -> ExitStatus {
        drop(self.child.stdin.take());
        self.child.wait().unwrap()
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until the process ends.
    pub fn end(mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }
}

impl Drop for DevBroker {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        // A test that fails leaves nothing behind either.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
