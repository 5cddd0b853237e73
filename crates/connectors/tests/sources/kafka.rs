//! A topic of Kafka: librdkafka's mock cluster.
//!
//! It cannot be killed and keep its records, so a restart cuts all connections and refuses new ones
//! for a while. Records, offsets and members of the group stay.

use punctual_test_support::kafka::{KAFKA_PASSWORD, KAFKA_USER};
use punctual_test_support::{KafkaCluster, KafkaRecord};

use crate::system::{SecuredConnection, TestMessage, TestSystem};

const TOPIC: &str = "commands";
const GROUP: &str = "punctual-commands";
const PARTITIONS: u16 = 6;

pub(crate) struct KafkaTopicSystem {
    cluster: KafkaCluster,
    topic: String,
}

impl TestSystem for KafkaTopicSystem {
    const GIVES_TO_NEW_READERS: bool = true;
    // The mock cluster does (decision 51).
    const KEEPS_SHARES: bool = true;
    const PAGE: &'static str = include_str!("../../../../docs/connectors/kafka.md");
    const PAGE_HOST: &'static str = "kafka-1.internal,kafka-2.internal";
    const PAGE_PLACE: &'static str = "timers";

    fn start() -> Self {
        let cluster = KafkaCluster::start(1);
        cluster.make_topic(TOPIC, PARTITIONS);
        cluster.make_topic(&format!("{TOPIC}.rejected"), 1);
        Self { cluster, topic: TOPIC.to_owned() }
    }

    fn port(&self) -> u16 {
        self.cluster.linked_ports[0]
    }

    fn use_place(&mut self, place: &str) {
        self.topic = place.to_owned();
        self.cluster.make_topic(place, PARTITIONS);
    }

    fn connection(&self, port: u16) -> String {
        // Brokers say where they are, so a link needs a listener that names the link.
        let port = match port == self.port() {
            true => self.cluster.ports[0],
            false => {
                self.cluster.advertise(&[port]);
                port
            }
        };
        format!("kind = \"kafka\"\nurl = \"kafka://127.0.0.1:{port}\"")
    }

    fn secured(&self) -> SecuredConnection {
        let port = self.cluster.secured_ports[0];
        let url = format!("kafkas://{KAFKA_USER}@127.0.0.1:{port}");
        SecuredConnection {
            lines: format!("kind = \"kafka\"\nurl = \"{url}\"\n"),
            authority: self.cluster.authority_file(),
            port,
            password: KAFKA_PASSWORD,
        }
    }

    fn source(&self) -> String {
        format!("from = \"{}\"\nclaim_after = \"6s\"", self.topic)
    }

    fn send(&self, messages: &[TestMessage]) {
        let records = messages.iter().enumerate().map(|(at, message)| {
            let mut headers = message.headers.iter();
            let key = headers.find(|(name, _)| name == "punctual-key");
            KafkaRecord {
                // One partition for a key, all partitions for messages without one.
                key: Some(key.map_or_else(|| at.to_string(), |(_, key)| key.clone())),
                value: Some(message.body.clone()),
                headers: message.headers.clone(),
                ..KafkaRecord::default()
            }
        });
        self.cluster.write(&self.topic, &records.collect::<Vec<_>>());
    }

    fn unconfirmed(&self, _: &[&str]) -> usize {
        self.cluster.uncommitted(GROUP, TOPIC, PARTITIONS)
    }

    fn rejected(&self) -> Vec<(String, String)> {
        let records = self.cluster.records(&format!("{TOPIC}.rejected"), 1);
        let parts = records.into_iter().map(|record| {
            let problem = record.header("punctual-problem").unwrap().to_owned();
            (problem, record.value.unwrap())
        });
        parts.collect()
    }

    fn restart(&mut self) {
        self.cluster.close();
        self.cluster.open();
    }
}
