//! A Kafka cluster on loopback: brokers of librdkafka's mock cluster, or one Tansu, behind
//! listeners that close, cut connections, encrypt and ask for a password.
//!
//! Both keep records in memory and speak Kafka's protocol. Neither is Apache Kafka: the mock has no
//! largest record, no rights, and does not recognise a batch that it has already. With
//! `PUNCTUAL_TANSU` (`tools/kafka` sets it), the path of its binary, a cluster of one broker is
//! Tansu. The witnesses are clients of librdkafka.

use std::cell::RefCell;
use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::certificate::make_certificate;
use crate::ports::free_port;
use crate::servers::fetched;

/// The modules that are fetched belong to it.
const PYTHON: &str = "/usr/bin/python3";
const SCRIPT: &str = include_str!("kafka.py");
/// The account of the secured listeners.
pub const KAFKA_USER: &str = "punctual";
/// The password of [`KAFKA_USER`], for SCRAM-SHA-512.
pub const KAFKA_PASSWORD: &str = "hush-hush";
/// The number of requests that write records.
const PRODUCE: u16 = 0;

/// A Kafka cluster in a process of its own, ended when it is dropped.
pub struct KafkaCluster {
    /// The ports of listeners without TLS and passwords, one for each broker.
    pub ports: Vec<u16>,
    /// The same, for clients that come over a link: they name the ports of `advertise`.
    pub linked_ports: Vec<u16>,
    /// The ports of listeners with TLS and an account.
    pub secured_ports: Vec<u16>,
    process: Child,
    link: RefCell<(ChildStdin, BufReader<ChildStdout>)>,
    dir: TempDir,
}

/// A record of a topic.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KafkaRecord {
    pub partition: u64,
    pub key: Option<String>,
    pub value: Option<String>,
    pub headers: Vec<(String, String)>,
}

impl KafkaRecord {
    /// Returns the value of a header.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }
}

impl KafkaCluster {
    /// Starts a cluster of some brokers on free ports of loopback.
    #[must_use]
    pub fn start(brokers: usize) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let (certificate, key) = make_certificate();
        let file = |name: &str, text: &str| {
            let path = dir.path().join(name);
            fs::write(&path, text).unwrap();
            path
        };
        let (certificate, key) = (file("cert.pem", &certificate), file("key.pem", &key));
        let ports = || (0..brokers).map(|_| free_port()).collect::<Vec<u16>>();
        let (ports, linked_ports, secured_ports) = (ports(), ports(), ports());
        let settings = json!({
            "plain": ports, "linked": linked_ports, "secured": secured_ports,
            "certificate": certificate, "key": key, "account": [KAFKA_USER, KAFKA_PASSWORD],
            "tansu": env::var("PUNCTUAL_TANSU").ok().filter(|_| brokers == 1),
        });
        let log = fs::File::create(dir.path().join("log")).unwrap();
        let mut process = Command::new(PYTHON)
            .args(["-c", SCRIPT, &settings.to_string()])
            .env("PYTHONPATH", fetched("confluent_kafka").join(".."))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .expect("python3 is needed");
        let stdin = process.stdin.take().expect("piped");
        let mut stdout = BufReader::new(process.stdout.take().expect("piped"));
        let mut line = String::new();
        let _ = stdout.read_line(&mut line);
        if line.trim() != "ready" {
            let log = fs::read_to_string(dir.path().join("log")).unwrap_or_default();
            panic!("the Kafka cluster did not start: {log}");
        }
        let link = RefCell::new((stdin, stdout));
        Self { ports, linked_ports, secured_ports, process, link, dir }
    }

    /// Returns the addresses of the brokers, separated by commas.
    #[must_use]
    pub fn addresses(&self) -> String {
        let addresses: Vec<String> =
            self.ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
        addresses.join(",")
    }

    /// The certificate of the authority of the secured listeners.
    #[must_use]
    pub fn authority_file(&self) -> PathBuf {
        self.dir.path().join("cert.pem")
    }

    /// Makes the linked listeners name other ports: those of links to them.
    pub fn advertise(&self, ports: &[u16]) {
        self.run(&json!(["advertise", ports]));
    }

    pub fn make_topic(&self, name: &str, partitions: u16) {
        self.run(&json!(["topic", name, partitions]));
    }

    /// Writes records, each a key, headers and a body, and waits until the brokers have them.
    pub fn write(&self, topic: &str, records: &[KafkaRecord]) {
        let records: Vec<Value> = records
            .iter()
            .map(|record| json!([record.key, record.headers, record.value]))
            .collect();
        self.run(&json!(["write", topic, records]));
    }

    /// Returns how many records of a topic a group has not committed.
    #[must_use]
    pub fn uncommitted(&self, group: &str, topic: &str, partitions: u16) -> usize {
        let count = self.run(&json!(["uncommitted", group, topic, partitions]));
        count.as_u64().and_then(|count| count.try_into().ok()).unwrap()
    }

    /// Answers the next requests that write records with these error codes.
    pub fn refuse_writes(&self, codes: &[i16]) {
        self.run(&json!(["answers", PRODUCE, codes]));
    }

    /// Cuts all connections and refuses new ones, until `open`. Records stay.
    pub fn close(&self) {
        self.run(&json!(["down"]));
    }

    pub fn open(&self) {
        self.run(&json!(["up"]));
    }

    /// Loses the next answer of each broker, and the connection with it.
    pub fn cut_after_requests(&self) {
        self.run(&json!(["cut", 1]));
    }

    /// Makes every answer take this long.
    pub fn delay(&self, millis: u32) {
        self.run(&json!(["delay", millis]));
    }

    /// Returns all records of a topic, in the order of each partition.
    #[must_use]
    pub fn records(&self, topic: &str, partitions: u16) -> Vec<KafkaRecord> {
        self.records_from(topic, &vec![0; usize::from(partitions)])
    }

    /// Returns the records of a topic from the offset of each partition on.
    #[must_use]
    pub fn records_from(&self, topic: &str, offsets: &[u64]) -> Vec<KafkaRecord> {
        let records = self.run(&json!(["read", topic, offsets.len(), offsets]));
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let record = |record: &Value| KafkaRecord {
            partition: record["partition"].as_u64().unwrap(),
            key: text(&record["key"]),
            value: text(&record["value"]),
            headers: record["headers"]
                .as_array()
                .unwrap()
                .iter()
                .map(|pair| (text(&pair[0]).unwrap(), text(&pair[1]).unwrap_or_default()))
                .collect(),
        };
        records.as_array().unwrap().iter().map(record).collect()
    }

    fn run(&self, command: &Value) -> Value {
        let mut link = self.link.borrow_mut();
        let (stdin, stdout) = &mut *link;
        writeln!(stdin, "{command}").expect("the cluster runs");
        let mut line = String::new();
        stdout.read_line(&mut line).expect("the cluster runs");
        let answer: Value = serde_json::from_str(&line).unwrap();
        assert!(answer["error"].is_null(), "{answer}");
        answer["ok"].clone()
    }
}

impl Drop for KafkaCluster {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
