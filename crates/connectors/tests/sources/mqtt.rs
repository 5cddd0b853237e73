//! A topic of Mosquitto.

use std::collections::HashSet;
use std::time::Duration;

use punctual_test_support::{MosquittoServer, MqttWitness};
use rumqttc::mqttbytes::QoS;
use rumqttc::mqttbytes::v5::{Packet, PublishProperties};
use rumqttc::{
    AckMode, AsyncClient, Broker, BrokerSessionResumePolicy, Event, MqttOptions, PublishOptions,
};
use tokio::time::timeout;

use crate::system::{TestMessage, TestSystem, block_on};

const TOPIC: &str = "open/commands";
/// How long a session is silent once it has sent all messages.
const SILENCE: Duration = Duration::from_millis(400);

pub(crate) struct MosquittoSystem {
    server: MosquittoServer,
    rejected: std::cell::RefCell<MqttWitness>,
    seen: std::cell::RefCell<Vec<(String, String)>>,
}

impl MosquittoSystem {
    fn options(&self, id: &str) -> MqttOptions {
        let mut options = MqttOptions::new(id, Broker::tcp("127.0.0.1", self.server.port));
        options.set_broker_session_resume_policy(BrokerSessionResumePolicy::AllowBrokerOnly);
        options.set_ack_mode(AckMode::Manual);
        options
    }

    /// How many messages the server still keeps for a reader.
    async fn kept(&self, reader: &str) -> usize {
        let source = blake3::hash(format!("$share/punctual/{TOPIC}").as_bytes()).to_hex();
        let mut options = self.options(&format!("punctual-{reader}-{}", &source[..8]));
        options.set_clean_start(false);
        options.set_session_expiry_interval(Some(3600));
        let (_client, mut events) = AsyncClient::builder(options).capacity(10).build();
        let mut bodies = HashSet::new();
        loop {
            match timeout(SILENCE, events.poll()).await {
                Ok(Ok(Event::Incoming(Packet::Publish(message)))) => {
                    bodies.insert(message.payload);
                }
                Ok(Ok(_)) => {}
                // The server leaves, or is silent.
                Ok(Err(_)) | Err(_) => return bodies.len(),
            }
        }
    }
}

impl TestSystem for MosquittoSystem {
    const CONFIRMS_IN_ORDER: bool = true;
    const KEEPS_SHARES: bool = true;

    fn start() -> Self {
        let server = MosquittoServer::start_durable();
        let rejected = std::cell::RefCell::new(server.subscribe("open/rejected"));
        Self { server, rejected, seen: std::cell::RefCell::default() }
    }

    fn port(&self) -> u16 {
        self.server.port
    }

    fn config(&self, port: u16, more: &str) -> String {
        format!(
            "[connections.mq]\nkind = \"mqtt\"\nurl = \"mqtt://127.0.0.1:{port}\"\n\
             [[sources]]\nconnection = \"mq\"\nfrom = \"{TOPIC}\"\nnamespace = \"shop\"\n\
             experimental = true\nrejected = \"open/rejected\"\n{more}\n"
        )
    }

    fn send(&self, messages: &[TestMessage]) {
        block_on(async {
            let (client, mut events) =
                AsyncClient::builder(self.options("producer")).capacity(10).build();
            let driver = tokio::spawn(async move { while events.poll().await.is_ok() {} });
            for message in messages {
                let user_properties = message.headers.clone();
                let properties =
                    PublishProperties { user_properties, ..PublishProperties::default() };
                let options = PublishOptions::new(QoS::AtLeastOnce).properties(properties);
                let sent = client.publish_tracked(TOPIC, message.body.clone(), options).await;
                sent.unwrap().wait_async().await.unwrap();
            }
            driver.abort();
        });
    }

    fn unconfirmed(&self, readers: &[&str]) -> usize {
        block_on(async {
            let mut sum = 0;
            for reader in readers {
                sum += self.kept(reader).await;
            }
            sum
        })
    }

    fn rejected(&self) -> Vec<(String, String)> {
        let mut seen = self.seen.borrow_mut();
        while seen.len() < 2 {
            let message = self.rejected.borrow_mut().next_message();
            let properties = message["properties"]["user-properties"].clone();
            let problem = properties["punctual-problem"].as_str().unwrap().to_owned();
            seen.push((problem, message["payload"].as_str().unwrap().to_owned()));
        }
        seen.clone()
    }

    fn restart(&mut self) {
        // Killed, it would lose messages that it has confirmed and not written.
        self.server.stop();
        self.server.start_again();
    }
}
