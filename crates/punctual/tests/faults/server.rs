//! The binary as a process that may end at any time: what it said is kept, and a call may fail.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use serde_json::Value;

/// Waiting for something that should happen ends here, with a failure.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A process that was asked to serve.
pub(crate) struct Server {
    child: Child,
    said: Arc<Mutex<Vec<String>>>,
    all_said: Receiver<()>,
}

/// A server that is ready, and how to call it. Clones call the same one.
#[derive(Clone)]
pub(crate) struct Caller {
    address: SocketAddr,
    agent: ureq::Agent,
}

impl Server {
    /// Starts the binary on a directory and waits until it is ready.
    pub(crate) fn start(dir: &Path) -> (Self, Caller) {
        let (server, caller) = Self::launch(Command::new(env!("CARGO_BIN_EXE_punctual")), dir);
        let said = Arc::clone(&server.said);
        let caller = caller.unwrap_or_else(|| panic!("not ready; it said {:?}", said.lock()));
        (server, caller)
    }

    /// Starts the binary where it is told to listen, with more flags, and waits until it is ready.
    pub(crate) fn start_at(listen: SocketAddr, dir: &Path, flags: &[&str]) -> (Self, Caller) {
        let command = Command::new(env!("CARGO_BIN_EXE_punctual"));
        let (server, caller) = Self::launch_at(command, listen, dir, flags);
        let said = Arc::clone(&server.said);
        let caller = caller.unwrap_or_else(|| panic!("not ready; it said {:?}", said.lock()));
        (server, caller)
    }

    /// Starts a command that ends in the binary; it may end without having been ready.
    pub(crate) fn launch(command: Command, dir: &Path) -> (Self, Option<Caller>) {
        Self::launch_at(command, SocketAddr::from(([127, 0, 0, 1], 0)), dir, &[])
    }

    fn launch_at(
        mut command: Command,
        listen: SocketAddr,
        dir: &Path,
        flags: &[&str],
    ) -> (Self, Option<Caller>) {
        let mut child = command
            .args(["serve", "--listen", &listen.to_string(), "--log-format", "json"])
            .args(flags)
            .arg("--data-dir")
            .arg(dir)
            .env_remove("RUST_BACKTRACE")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let (ready, address) = channel();
        let (ended, all_said) = channel();
        let said: Arc<Mutex<Vec<String>>> = Arc::default();
        let kept = Arc::clone(&said);
        thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let entry: Value = serde_json::from_str(&line).unwrap_or_default();
                kept.lock().unwrap().push(line);
                if entry["fields"]["message"] == "ready" {
                    let listen: SocketAddr =
                        entry["fields"]["listen"].as_str().unwrap().parse().unwrap();
                    let _ = ready.send(listen);
                }
            }
            drop(ready);
            let _ = ended.send(());
        });
        let caller = address.recv_timeout(PATIENCE).ok().map(Caller::new);
        (Self { child, said, all_said }, caller)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The fields of a log line, by its message.
    pub(crate) fn logged(&self, message: &str) -> Option<Value> {
        let said = self.said.lock().unwrap();
        let entries = said.iter().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let mut fields = entries.map(|mut entry| entry["fields"].take());
        fields.find(|fields| fields["message"] == message)
    }

    /// How often a log line whose message begins so was written.
    pub(crate) fn count_logged(&self, beginning: &str) -> usize {
        let said = self.said.lock().unwrap();
        let entries = said.iter().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let begins = |entry: &Value| {
            entry["fields"]["message"].as_str().is_some_and(|text| text.starts_with(beginning))
        };
        entries.filter(begins).count()
    }

    /// Sends a signal by its name.
    pub(crate) fn signal(&self, name: &str) {
        let pid = self.pid().to_string();
        assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
    }

    /// Kills it, at once.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits for the end, and for all that was said until then.
    pub(crate) fn end(mut self) -> (ExitStatus, String) {
        let heard = self.all_said.recv_timeout(PATIENCE);
        let said = self.said.lock().unwrap().join("\n");
        assert!(heard.is_ok(), "it goes on; it said\n{said}");
        (self.child.wait().unwrap(), said)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Caller {
    fn new(address: SocketAddr) -> Self {
        let config = ureq::Agent::config_builder().http_status_as_error(false);
        Self { address, agent: config.timeout_global(Some(PATIENCE)).build().into() }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sends a request about a task. `None` if there was no whole answer: what came of it is not known.
    pub(crate) fn call(&self, method: &str, key: &str, body: &str) -> Option<(u16, Value)> {
        self.ask(method, &format!("/v1/shop/tasks/{key}"), body)
    }

    /// Sends a request. What is not JSON is a text.
    pub(crate) fn ask(&self, method: &str, path: &str, body: &str) -> Option<(u16, Value)> {
        let request = http::Request::builder()
            .method(method)
            .uri(format!("http://{}{path}", self.address))
            .body(body.to_owned())
            .unwrap();
        let mut answer = self.agent.run(request).ok()?;
        let text = answer.body_mut().read_to_string().ok()?;
        let json = serde_json::from_str(&text).unwrap_or(Value::String(text));
        Some((answer.status().as_u16(), json))
    }

    /// A number of `/metrics`, by its name.
    pub(crate) fn metric(&self, name: &str) -> Option<f64> {
        let (_, page) = self.ask("GET", "/metrics", "")?;
        let line =
            page.as_str()?.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
        line.parse().ok()
    }

    /// Whether a task was acknowledged; `None` if that is not known.
    pub(crate) fn put(&self, key: &str, body: &Value) -> Option<bool> {
        let (status, _) = self.call("PUT", key, &body.to_string())?;
        Some(matches!(status, 200 | 201))
    }

    /// That tasks are there.
    pub(crate) fn assert_has<'a>(&self, keys: impl IntoIterator<Item = &'a String>) {
        for key in keys {
            let (status, answer) = self.call("GET", key, "").expect("it answers");
            assert_eq!(status, 200, "{key} was acknowledged and is gone: {answer}");
        }
    }
}
