//! The field: the real binary on a free port, and receivers that remember what they got.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver as Channel, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::Value;
use tempfile::TempDir;

/// Waiting for something that should happen ends here, with a failure.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A running broker.
pub(crate) struct Broker {
    child: Child,
    pub(crate) dir: Arc<TempDir>,
    pub(crate) address: SocketAddr,
    client: ureq::Agent,
}

impl Broker {
    /// Starts the binary on a store of its own, and waits until it says that it is ready.
    pub(crate) fn start(flags: &[&str]) -> Self {
        Self::start_on(Arc::new(tempfile::tempdir().unwrap()), flags)
    }

    /// Starts the binary on a store that may be there already.
    pub(crate) fn start_on(dir: Arc<TempDir>, flags: &[&str]) -> Self {
        Self::start_at("127.0.0.1:0", dir, flags)
    }

    /// Starts the binary where it is told to listen.
    pub(crate) fn start_at(listen: &str, dir: Arc<TempDir>, flags: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_punctual"))
            .args(["serve", "--listen", listen, "--log-format", "json", "--data-dir"])
            .arg(dir.path())
            .args(flags)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let (ready, address) = channel();
        // The log is read to its end, or the broker would stand still when the pipe is full.
        thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let entry: Value = serde_json::from_str(&line).unwrap_or_default();
                if entry["fields"]["message"] == "ready" {
                    let listen = entry["fields"]["listen"].as_str().unwrap().parse().unwrap();
                    let _ = ready.send(listen);
                }
            }
        });
        let address = address.recv_timeout(PATIENCE).expect("the broker gets ready");
        let client = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(PATIENCE))
            .build()
            .into();
        Self { child, dir, address, client }
    }

    /// Sends a request; the answer is its status and its JSON.
    pub(crate) fn call(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl AsRef<[u8]>,
    ) -> (u16, Value) {
        let mut request =
            http::Request::builder().method(method).uri(format!("http://{}{path}", self.address));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(body.as_ref().to_vec()).unwrap();
        let mut answer = self.client.run(request).unwrap();
        let text = answer.body_mut().read_to_string().unwrap();
        let json = serde_json::from_str(&text).unwrap_or(Value::String(text));
        let status = answer.status().as_u16();
        if status >= 400 {
            assert_eq!(answer.headers()["content-type"], "application/problem+json");
            assert_eq!(json["status"], status, "{json}");
            for part in ["type", "title", "detail"] {
                assert!(json[part].is_string(), "{json}");
            }
        }
        (status, json)
    }

    pub(crate) fn put(&self, key: &str, body: impl AsRef<[u8]>) -> (u16, Value) {
        self.call("PUT", &format!("/v1/shop/tasks/{key}"), &[], body)
    }

    pub(crate) fn get(&self, name: &str) -> (u16, Value) {
        self.call("GET", &format!("/v1/shop/tasks/{name}"), &[], "")
    }

    pub(crate) fn delete(&self, name: &str) -> (u16, Value) {
        self.call("DELETE", &format!("/v1/shop/tasks/{name}"), &[], "")
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal by its name.
    pub(crate) fn signal(&self, name: &str) {
        let pid = self.pid().to_string();
        assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
    }

    /// Waits for the end of the process.
    pub(crate) fn end(mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a receiver got.
#[derive(Debug, Clone)]
pub(crate) struct Received {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    /// By the receiver's clock.
    pub(crate) at_millis: u128,
}

impl Received {
    pub(crate) fn header(&self, name: &str) -> &str {
        let header = self.headers.iter().find(|(given, _)| given.eq_ignore_ascii_case(name));
        header.map_or("", |(_, value)| value)
    }
}

/// An HTTP server that answers with the status in the path (`/500/…`), 200 if there is none.
pub(crate) struct Receiver {
    pub(crate) url: String,
    got: Channel<Received>,
}

impl Receiver {
    pub(crate) fn start() -> Self {
        let server = tiny_http::Server::http("127.0.0.1:0").unwrap();
        let url = format!("http://{}", server.server_addr().to_ip().unwrap());
        let (send, got) = channel();
        thread::spawn(move || {
            for mut request in server.incoming_requests() {
                let mut body = Vec::new();
                let _ = request.as_reader().read_to_end(&mut body);
                let headers = request.headers().iter();
                let received = Received {
                    method: request.method().to_string(),
                    path: request.url().to_owned(),
                    headers: headers
                        .map(|header| (header.field.to_string(), header.value.to_string()))
                        .collect(),
                    body,
                    at_millis: now_millis(),
                };
                let status = received.path.split('/').nth(1).and_then(|part| part.parse().ok());
                if send.send(received).is_err() {
                    return;
                }
                let answer = tiny_http::Response::empty(status.unwrap_or(200u16));
                let retry = tiny_http::Header::from_bytes("Retry-After", "1").unwrap();
                let _ = request.respond(answer.with_header(retry));
            }
        });
        Self { url, got }
    }

    /// The next delivery.
    pub(crate) fn next(&self) -> Received {
        self.got.recv_timeout(PATIENCE).expect("a delivery comes")
    }

    /// That nothing comes for a while.
    pub(crate) fn stays_silent(&self, time: Duration) {
        let got = self.got.recv_timeout(time);
        assert!(matches!(got, Err(RecvTimeoutError::Timeout)), "{got:?}");
    }
}

/// What `serve` says when it refuses to start, with a store and a port of its own unless the flags name others.
pub(crate) fn refused_start(flags: &[&str], variables: &[(&str, &str)]) -> String {
    let dir = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_punctual"))
        .env("PUNCTUAL_LISTEN", "127.0.0.1:0")
        .env("PUNCTUAL_DATA_DIR", dir.path())
        .arg("serve")
        .args(flags)
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    assert!(!output.status.success(), "{flags:?} {variables:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[expect(clippy::disallowed_methods, reason = "a receiver looks at the real clock")]
pub(crate) fn now_millis() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis()
}

/// Asks again until there is an answer: for what happens soon, and says nothing when it has.
#[expect(clippy::disallowed_methods, reason = "nothing tells when the store has settled")]
pub(crate) fn eventually<T>(ask: impl Fn() -> Option<T>) -> T {
    let end = std::time::Instant::now() + PATIENCE;
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(std::time::Instant::now() < end, "it does not happen");
        thread::sleep(Duration::from_millis(5));
    }
}

/// A task that calls a receiver.
pub(crate) fn task(when: &str, url: &str) -> String {
    format!(r#"{{{when}, "target": {{"http": {{"url": "{url}"}}}}, "payload": {{"order": 1}}}}"#)
}
