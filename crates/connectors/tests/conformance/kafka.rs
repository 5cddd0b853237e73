//! Kafka: a topic of librdkafka's mock cluster, read by librdkafka's consumer.
//!
//! What the mock cluster cannot do: it cannot be killed and keep its records, so its listeners
//! close instead; it takes records of any size, and has no rights (what errors of both kinds mean
//! is tested beside the sink).

use std::sync::atomic::{AtomicU32, Ordering};

use punctual_core::{MessageAddress, MessageOptions, MessageSystem};
use punctual_test_support::kafka::{KAFKA_PASSWORD, KAFKA_USER};
use punctual_test_support::{KafkaCluster, KafkaRecord};

use crate::suite::{SecuredSettings, SinkSystem, WitnessedMessage};

pub(crate) struct KafkaSystem {
    cluster: KafkaCluster,
    topic: String,
    /// The offset of the next record.
    next: u64,
}

fn address(topic: &str) -> MessageAddress {
    MessageAddress::new(MessageSystem::Kafka, topic, MessageOptions::default()).unwrap()
}

impl SinkSystem for KafkaSystem {
    const ATTRIBUTE_PREFIX: &'static str = "ce_";
    const PAGE: &'static str = include_str!("../../../../docs/connectors/kafka.md");
    const PAGE_HOST: &'static str = "kafka-1.internal,kafka-2.internal";

    fn start() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let topic = format!("open-{}", NEXT.fetch_add(1, Ordering::Relaxed));
        Self { cluster: KafkaCluster::start(1), topic, next: 0 }
    }

    fn start_own() -> Self {
        Self::start()
    }

    fn port(&self) -> u16 {
        self.cluster.linked_ports[0]
    }

    fn settings(&self, port: u16) -> String {
        // Brokers say where they are, so a link needs a listener that names the link.
        let port = match port == self.port() {
            true => self.cluster.ports[0],
            false => {
                self.cluster.advertise(&[port]);
                port
            }
        };
        format!("kind = \"kafka\"\nurl = \"kafka://127.0.0.1:{port}\"\n")
    }

    fn secured(&self) -> SecuredSettings {
        let url = format!("kafkas://{KAFKA_USER}@127.0.0.1:{}", self.cluster.secured_ports[0]);
        SecuredSettings {
            settings: format!("kind = \"kafka\"\nurl = \"{url}\"\n"),
            authority: self.cluster.authority_file(),
            port: self.cluster.secured_ports[0],
            password: KAFKA_PASSWORD,
        }
    }

    fn make_place(&mut self) -> MessageAddress {
        self.cluster.make_topic(&self.topic, 1);
        address(&self.topic)
    }

    fn make_silent_place(&mut self) -> MessageAddress {
        self.cluster.make_topic("open-rate", 6);
        address("open-rate")
    }

    fn arrived(&mut self) -> Vec<WitnessedMessage> {
        let records = self.cluster.records_from(&self.topic, &[self.next]);
        self.next += u64::try_from(records.len()).unwrap();
        let message = |found: KafkaRecord| WitnessedMessage {
            content_type: found.header("content-type").map(str::to_owned),
            body: found.value.unwrap(),
            headers: found.headers,
        };
        records.into_iter().map(message).collect()
    }

    fn no_place(&self) -> Option<MessageAddress> {
        Some(address("missing"))
    }

    fn forbidden(&self) -> Option<(String, MessageAddress)> {
        None
    }

    fn too_large(&self) -> Option<usize> {
        None
    }

    fn kill(&mut self) {
        self.cluster.close();
    }

    fn start_again(&mut self) {
        self.cluster.open();
    }
}
