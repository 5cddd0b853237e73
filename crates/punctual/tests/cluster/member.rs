//! One broker of a cluster, as a process that is killed, held, stopped and started again at the same address.
//!
//! What it says goes to a file that outlives it, so that a surprise can be looked into.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::fs::{File, OpenOptions};
use std::io::Read as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use http::Response;
use serde_json::Value;

use crate::field::eventually;

/// How long a call of a test may take: longer than any that a broker gives up by itself.
const CALL_MAX: Duration = Duration::from_secs(8);

/// A broker, whether it runs or not.
pub(crate) struct Member {
    pub(crate) desk: Desk,
    log: PathBuf,
    child: Option<Child>,
}

/// How a broker is called; cheap to clone. It may be away: then there is no answer.
#[derive(Clone)]
pub(crate) struct Desk {
    pub(crate) address: SocketAddr,
    agent: ureq::Agent,
}

impl Member {
    pub(crate) fn new(address: SocketAddr, log: PathBuf) -> Self {
        Self { desk: Desk::new(address), log, child: None }
    }

    /// Runs a command that ends in the binary, and does not wait.
    pub(crate) fn launch(&mut self, mut command: Command) {
        assert!(self.child.is_none(), "it runs");
        let log = OpenOptions::new().create(true).append(true).open(&self.log).unwrap();
        let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        self.child = Some(command.spawn().expect("ip and setpriv are needed"));
    }

    /// Waits until it says that it can do its work.
    pub(crate) fn wait_until_ready(&self) {
        eventually(|| self.desk.ask("GET", "/readyz", "").filter(|(status, _)| *status == 200));
    }

    pub(crate) fn is_running(&self) -> bool {
        self.child.is_some()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.as_ref().expect("it runs").id()
    }

    pub(crate) fn signal(&self, name: &str) {
        let pid = self.pid().to_string();
        assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
    }

    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Tells it to stop, and waits for its end.
    pub(crate) fn stop(&mut self) -> ExitStatus {
        self.signal("-TERM");
        self.end()
    }

    /// Waits for its end.
    pub(crate) fn end(&mut self) -> ExitStatus {
        let mut child = self.child.take().expect("it runs");
        child.wait().unwrap()
    }

    /// All that it ever said.
    pub(crate) fn said(&self) -> String {
        let mut said = String::new();
        File::open(&self.log).unwrap().read_to_string(&mut said).unwrap();
        said
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Desk {
    fn new(address: SocketAddr) -> Self {
        Self::patient_for(address, CALL_MAX)
    }

    /// The same broker, asked by somebody who waits no longer than this.
    pub(crate) fn within(&self, time: Duration) -> Self {
        Self::patient_for(self.address, time)
    }

    fn patient_for(address: SocketAddr, time: Duration) -> Self {
        let config = ureq::Agent::config_builder().http_status_as_error(false);
        Self { address, agent: config.timeout_global(Some(time)).build().into() }
    }

    /// Sends a request. `None` if there was no whole answer: what came of it is not known. What is not JSON is a text.
    pub(crate) fn ask(&self, method: &str, path: &str, body: &str) -> Option<(u16, Value)> {
        let answer = self.send(method, path, body)?;
        Some((answer.status().as_u16(), answer.into_body()))
    }

    /// The same, with the headers of the answer.
    pub(crate) fn send(&self, method: &str, path: &str, body: &str) -> Option<Response<Value>> {
        let request = http::Request::builder()
            .method(method)
            .uri(format!("http://{}{path}", self.address))
            .body(body.to_owned())
            .unwrap();
        let mut answer = self.agent.run(request).ok()?;
        let text = answer.body_mut().read_to_string().ok()?;
        let json = serde_json::from_str(&text).unwrap_or(Value::String(text));
        Some(answer.map(|_| json))
    }

    /// About a namespace: `/tasks/…`, `/stats`.
    pub(crate) fn shop(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let answer = self.ask(method, &format!("/v1/shop{path}"), &body);
        answer.unwrap_or_else(|| panic!("no answer to {method} {path} at {}", self.address))
    }

    pub(crate) fn get(&self, path: &str) -> (u16, Value) {
        self.shop("GET", path, &Value::Null)
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        self.shop("POST", path, body)
    }

    pub(crate) fn put(&self, key: &str, body: &Value) -> (u16, Value) {
        self.shop("PUT", &format!("/tasks/{key}"), body)
    }

    /// A number of `/metrics`, by its name and labels.
    pub(crate) fn metric(&self, name: &str) -> Option<f64> {
        let (_, page) = self.ask("GET", "/metrics", "")?;
        let line =
            page.as_str()?.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
        line.parse().ok()
    }
}
