//! The real binary as a process: started, called, signalled and killed.
//!
//! [`BrokerProcess`] may end at any time and keeps its log. [`TestBroker`] is a process that stays
//! up, with a store of its own and strict checks of every answer. Brokers that share a Redis are
//! in [`crate::cluster`].

use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;

use serde_json::Value;
use tempfile::TempDir;

use crate::client::BrokerClient;
use crate::openapi::ApiDocument;
use crate::wait::WAIT_MAX;

/// Returns the path of the `punctual` binary that was built with the running tests.
///
/// Cargo names it in the environment of the tests of the crate `punctual`; for other crates it is
/// in the parent of the folder of the test's executable.
pub fn punctual_binary() -> PathBuf {
    if let Some(path) = std::env::var_os("CARGO_BIN_EXE_punctual") {
        return path.into();
    }
    let binary = profile_dir().join("punctual");
    let path = binary.display();
    assert!(binary.exists(), "{path} does not exist: run `cargo build -p punctual` first");
    binary
}

/// The folder of the profile: `target/debug` or `target/release`.
pub(crate) fn profile_dir() -> PathBuf {
    let test = std::env::current_exe().expect("the path of the test's executable");
    let deps = test.parent().expect("the executable is in a folder");
    deps.parent().expect("target/<profile>/deps").to_owned()
}

/// A `punctual serve` process.
pub struct BrokerProcess {
    child: Child,
    log: Arc<Mutex<Vec<String>>>,
    // Behind a lock so that threads can share the broker.
    log_ended: Mutex<Receiver<()>>,
}

impl BrokerProcess {
    /// Starts a broker on a data directory and waits until it is ready.
    pub fn start(dir: &Path) -> (Self, BrokerClient) {
        Self::start_at(any_port(), dir, &[])
    }

    /// Starts a broker at an address, with more flags, and waits until it is ready.
    pub fn start_at(listen: SocketAddr, dir: &Path, flags: &[&str]) -> (Self, BrokerClient) {
        let command = Command::new(punctual_binary());
        let (process, client) = Self::launch_at(command, &listen.to_string(), dir, flags);
        let log = Arc::clone(&process.log);
        let client = client.unwrap_or_else(|| panic!("not ready; its log: {:?}", log.lock()));
        (process, client)
    }

    /// Runs a command whose last word is the binary. There is no client if the broker ended or was
    /// not ready in time.
    pub fn launch(command: Command, dir: &Path) -> (Self, Option<BrokerClient>) {
        Self::launch_at(command, &any_port().to_string(), dir, &[])
    }

    fn launch_at(
        mut command: Command,
        listen: &str,
        dir: &Path,
        flags: &[&str],
    ) -> (Self, Option<BrokerClient>) {
        let mut child = command
            .args(["serve", "--listen", listen, "--log-format", "json"])
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
        let (ended, log_ended) = channel();
        let log: Arc<Mutex<Vec<String>>> = Arc::default();
        let written = Arc::clone(&log);
        // The log is read to its end. Otherwise the broker would block when the pipe is full.
        thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let entry: Value = serde_json::from_str(&line).unwrap_or_default();
                written.lock().unwrap().push(line);
                if entry["fields"]["message"] == "ready" {
                    let listen: SocketAddr =
                        entry["fields"]["listen"].as_str().unwrap().parse().unwrap();
                    let _ = ready.send(listen);
                }
            }
            drop(ready);
            let _ = ended.send(());
        });
        let address = address.recv_timeout(WAIT_MAX).ok();
        let client = address.map(|address| BrokerClient::new(address, WAIT_MAX));
        (Self { child, log, log_ended: Mutex::new(log_ended) }, client)
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the fields of the first log line with this message.
    pub fn logged(&self, message: &str) -> Option<Value> {
        let log = self.log.lock().unwrap();
        let entries = log.iter().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let mut fields = entries.map(|mut entry| entry["fields"].take());
        fields.find(|fields| fields["message"] == message)
    }

    /// Counts the log lines whose message begins with `beginning`.
    pub fn count_logged(&self, beginning: &str) -> usize {
        let log = self.log.lock().unwrap();
        let entries = log.iter().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let begins = |entry: &Value| {
            entry["fields"]["message"].as_str().is_some_and(|text| text.starts_with(beginning))
        };
        entries.filter(begins).count()
    }

    /// Sends a signal: `-TERM`, `-STOP`, `-CONT`.
    pub fn signal(&self, name: &str) {
        send_signal(self.pid(), name);
    }

    /// Kills the process and waits for its end.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits until the process ends. Returns its status and its log.
    pub fn end(mut self) -> (ExitStatus, String) {
        let ended = self.log_ended.lock().unwrap().recv_timeout(WAIT_MAX);
        let log = self.log.lock().unwrap().join("\n");
        assert!(ended.is_ok(), "the broker still runs; its log:\n{log}");
        (self.child.wait().unwrap(), log)
    }
}

impl Drop for BrokerProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A running broker with a store of its own.
pub struct TestBroker {
    process: BrokerProcess,
    pub dir: Arc<TempDir>,
    pub address: SocketAddr,
    client: BrokerClient,
    document: OnceLock<ApiDocument>,
}

impl TestBroker {
    /// Starts a broker on an empty store, and waits until it is ready.
    pub fn start(flags: &[&str]) -> Self {
        Self::start_on(Arc::new(tempfile::tempdir().unwrap()), flags)
    }

    /// Starts a broker on a store that may exist already.
    pub fn start_on(dir: Arc<TempDir>, flags: &[&str]) -> Self {
        Self::start_at("127.0.0.1:0", dir, flags)
    }

    /// Starts a broker that listens on an address.
    pub fn start_at(listen: &str, dir: Arc<TempDir>, flags: &[&str]) -> Self {
        let command = Command::new(punctual_binary());
        let (process, client) = BrokerProcess::launch_at(command, listen, dir.path(), flags);
        let client = client.expect("the broker gets ready");
        let document = OnceLock::new();
        Self { process, dir, address: client.address, client, document }
    }

    /// The process, with its log.
    pub fn process(&self) -> &BrokerProcess {
        &self.process
    }

    /// Sends a request and returns the status and the JSON of the answer.
    ///
    /// Every answer must follow the OpenAPI document of the broker, and every one with a status of
    /// 400 or more must be a complete problem document.
    pub fn call(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl AsRef<[u8]>,
    ) -> (u16, Value) {
        let answer = self.client.send_with(method, path, headers, body.as_ref());
        let answer = answer.unwrap_or_else(|error| panic!("{method} {path}: {error}"));
        let (status, json) = (answer.status().as_u16(), answer.body());
        if status >= 400 {
            assert_eq!(answer.headers()["content-type"], "application/problem+json");
            assert_eq!(json["status"], status, "{json}");
            for part in ["type", "title", "detail"] {
                assert!(json[part].is_string(), "{json}");
            }
        }
        if let Some(document) = self.document(headers) {
            document.assert_answer(method, path, status, json);
        }
        (status, answer.into_body())
    }

    /// Returns the OpenAPI document; `None` if it cannot be read with these headers.
    pub fn document(&self, headers: &[(&str, &str)]) -> Option<&ApiDocument> {
        if self.document.get().is_none() {
            let token: Vec<_> =
                headers.iter().copied().filter(|(name, _)| *name == "authorization").collect();
            let answer = self.client.send_with("GET", "/openapi.json", &token, &[]).ok()?;
            if answer.status() != 200 {
                return None;
            }
            let _ = self.document.set(ApiDocument(answer.into_body()));
        }
        self.document.get()
    }

    pub fn put(&self, key: &str, body: impl AsRef<[u8]>) -> (u16, Value) {
        self.call("PUT", &format!("/v1/shop/tasks/{key}"), &[], body)
    }

    pub fn get(&self, name: &str) -> (u16, Value) {
        self.call("GET", &format!("/v1/shop/tasks/{name}"), &[], "")
    }

    pub fn delete(&self, name: &str) -> (u16, Value) {
        self.call("DELETE", &format!("/v1/shop/tasks/{name}"), &[], "")
    }

    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Sends a signal: `-TERM`, `-STOP`, `-CONT`.
    pub fn signal(&self, name: &str) {
        self.process.signal(name);
    }

    /// Waits until the process ends.
    pub fn end(mut self) -> ExitStatus {
        self.process.child.wait().unwrap()
    }
}

/// Runs `punctual serve`, which must refuse to start. Returns what it prints.
///
/// The broker has a store and a port of its own unless the flags name others.
pub fn refused_start(flags: &[&str], variables: &[(&str, &str)]) -> String {
    let dir = tempfile::tempdir().unwrap();
    let output = Command::new(punctual_binary())
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

/// Sends a signal to a process.
pub(crate) fn send_signal(pid: u32, name: impl AsRef<OsStr>) {
    let status = Command::new("kill").arg(name).arg(pid.to_string()).status();
    assert!(status.unwrap().success(), "no process {pid}");
}

/// Returns a figure of the memory of a process in bytes: `VmRSS` now, `VmHWM` at most so far.
pub fn memory_bytes(pid: u32, figure: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let kib = status.lines().find_map(|line| line.strip_prefix(figure)?.strip_prefix(':')).unwrap();
    kib.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

fn any_port() -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, 0))
}
