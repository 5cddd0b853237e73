//! An independent producer and consumer of a message system, in Python.
//!
//! It sends numbered commands at a rate and records what comes back: pika, nats-py, redis-py,
//! librdkafka and paho-mqtt, none of which the product uses. It keeps on through kills of the
//! server.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use crate::servers::fetched;

/// pika is a package of the system, so the interpreter is.
const PYTHON: &str = "/usr/bin/python3";
const SCRIPT: &str = include_str!("witness.py");

/// What a witness sends.
#[derive(Debug, Clone, Copy)]
pub struct WitnessPlan {
    /// Commands.
    pub count: u64,
    /// Commands a second.
    pub rate: u64,
    /// How long after its command a task is due.
    pub delay: Duration,
    /// Connections, each of which waits for the confirm of a command before the next.
    pub senders: u64,
}

/// A witness in a process of its own, ended when it is dropped.
pub struct MessageWitness {
    process: Child,
    record: Arc<Mutex<WitnessRecord>>,
}

/// What a witness has seen. Times are milliseconds since 1970.
#[derive(Debug, Clone, Default)]
pub struct WitnessRecord {
    /// Commands that were confirmed: when each was sent first.
    pub sent: BTreeMap<u64, u64>,
    /// Messages that came back, by the number of their command: their ids and times.
    pub received: BTreeMap<u64, Vec<(String, u64)>>,
}

impl MessageWitness {
    /// Starts a witness of a `kind` of system.
    #[must_use]
    pub fn start(kind: &str, port: u16, plan: WitnessPlan) -> Self {
        let WitnessPlan { count, rate, delay, senders } = plan;
        let numbers = [u64::from(port), count, rate].map(|number| number.to_string());
        let mut process = Command::new(PYTHON)
            .args(["-c", SCRIPT, kind])
            .args(numbers)
            .args([format!("{}ms", delay.as_millis()), senders.to_string()])
            .env("PYTHONPATH", fetched("confluent_kafka").join(".."))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("python3 is needed");
        let printed = BufReader::new(process.stdout.take().expect("piped"));
        let record: Arc<Mutex<WitnessRecord>> = Arc::default();
        let written = Arc::clone(&record);
        thread::spawn(move || {
            for line in printed.lines().map_while(Result::ok) {
                let line: Value = serde_json::from_str(&line).expect("a line of JSON");
                written.lock().unwrap().add(&line);
            }
        });
        Self { process, record }
    }

    /// What it has seen so far.
    #[must_use]
    pub fn record(&self) -> WitnessRecord {
        self.record.lock().unwrap().clone()
    }
}

impl WitnessRecord {
    fn add(&mut self, line: &Value) {
        let at = line["at"].as_u64().expect("a time");
        if let Some(number) = line["sent"].as_u64() {
            self.sent.insert(number, at);
        }
        if let Some(number) = line["got"].as_u64() {
            let id = line["id"].as_str().expect("an id").to_owned();
            self.received.entry(number).or_default().push((id, at));
        }
    }

    /// Commands that were confirmed and have not come back.
    #[must_use]
    pub fn missing(&self) -> Vec<u64> {
        self.sent.keys().filter(|number| !self.received.contains_key(number)).copied().collect()
    }
}

impl Drop for MessageWitness {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
