//! A topic of Mosquitto.

use std::collections::HashSet;
use std::time::Duration;

use punctual_test_support::mosquitto::{ACCOUNT, PASSWORD};
use punctual_test_support::{MosquittoServer, MqttWitness, pause};
use rumqttc::mqttbytes::QoS;
use rumqttc::mqttbytes::v5::{Packet, PublishProperties};
use rumqttc::{
    AckMode, AsyncClient, Broker, BrokerSessionResumePolicy, Event, MqttOptions, PublishOptions,
};
use tokio::time::timeout;

use crate::intake::{IntakeRefusal, TestIntake};
use crate::suite::{RunningReader, runtime, schedules, until};
use crate::system::{SecuredConnection, TestMessage, TestSystem, block_on};

const TOPIC: &str = "open/commands";
/// Messages that wait for their confirms.
const SEND_MAX: usize = 256;
/// How long a session is silent once it has sent all messages.
const SILENCE: Duration = Duration::from_millis(400);

pub(crate) struct MosquittoSystem {
    server: MosquittoServer,
    topic: String,
    rejected: std::cell::RefCell<MqttWitness>,
    seen: std::cell::RefCell<Vec<(String, String)>>,
}

impl MosquittoSystem {
    fn options(&self, id: &str) -> MqttOptions {
        let mut options = MqttOptions::new(id, Broker::tcp("127.0.0.1", self.server.port));
        options.set_broker_session_resume_policy(BrokerSessionResumePolicy::AllowBrokerOnly);
        options.set_ack_mode(AckMode::Manual);
        options.set_outgoing_inflight_upper_limit(1024);
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
    const PAGE: &'static str = include_str!("../../../../docs/connectors/mqtt.md");
    const PAGE_HOST: &'static str = "mqtt.internal";
    const PAGE_PLACE: &'static str = "devices/lamp-7/up";

    const CONFIRMS_IN_ORDER: bool = true;
    const KEEPS_SHARES: bool = true;

    fn start() -> Self {
        let server = MosquittoServer::start_durable();
        let rejected = std::cell::RefCell::new(server.subscribe("open/rejected"));
        Self { server, topic: TOPIC.to_owned(), rejected, seen: std::cell::RefCell::default() }
    }

    fn port(&self) -> u16 {
        self.server.port
    }

    fn use_place(&mut self, place: &str) {
        self.topic = place.to_owned();
    }

    fn connection(&self, port: u16) -> String {
        format!("kind = \"mqtt\"\nurl = \"mqtt://127.0.0.1:{port}\"")
    }

    fn secured(&self) -> SecuredConnection {
        let port = self.server.tls_port;
        SecuredConnection {
            lines: format!("kind = \"mqtt\"\nurl = \"mqtts://{ACCOUNT}@127.0.0.1:{port}\"\n"),
            authority: self.server.authority_file(),
            port,
            password: PASSWORD,
        }
    }

    fn source(&self) -> String {
        format!("from = \"{}\"\nrejected = \"open/rejected\"", self.topic)
    }

    fn send(&self, messages: &[TestMessage]) {
        block_on(async {
            let (client, mut events) =
                AsyncClient::builder(self.options("producer")).capacity(100).build();
            let driver = tokio::spawn(async move { while events.poll().await.is_ok() {} });
            // Never more than the window: what the client does beyond it is not tested here.
            for messages in messages.chunks(SEND_MAX) {
                let mut confirms = Vec::new();
                for message in messages {
                    let user_properties = message.headers.clone();
                    let properties =
                        PublishProperties { user_properties, ..PublishProperties::default() };
                    let options = PublishOptions::new(QoS::AtLeastOnce).properties(properties);
                    let body = message.body.clone();
                    let sent = client.publish_tracked(&*self.topic, body, options).await;
                    confirms.push(sent.unwrap());
                }
                for confirm in confirms {
                    confirm.wait_async().await.unwrap();
                }
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

/// More messages than a session has space for wait for their reader, twice over. Mosquitto 2.0.11
/// sends all of them at once, so sessions end and the rest comes in those that follow.
#[test]
fn a_backlog_that_is_larger_than_a_session_is_applied() {
    const BACKLOG: usize = 25_000;
    let system = MosquittoSystem::start();
    runtime().block_on(async {
        let intake = TestIntake::default();
        let config = system.config(system.port(), "");
        let reader = RunningReader::start(&config, "a", &intake);
        until("a reader", || reader.state().read_at.is_some()).await;
        reader.stop().await;
        system.send(&schedules(0..BACKLOG));
        let reader = RunningReader::start(&config, "a", &intake);
        let problem = std::cell::Cell::new(None);
        until("all messages", || {
            let state = reader.state();
            problem.set(state.problem.or_else(|| problem.take()));
            state.applied >= BACKLOG as u64
        })
        .await;
        assert_eq!((intake.applied(), intake.given()), (BACKLOG, BACKLOG));
        // Servers that keep to the receive maximum give no reason to end a session.
        if let Some(problem) = problem.take() {
            assert!(problem.contains("more messages than it may"), "{problem}");
            println!("a session has ended: {problem}");
        }
        reader.stop().await;
        until("the confirmations", || system.unconfirmed(&["a"]) == 0).await;
    });
}

/// A server that does not read is stopped with SIGSTOP: what is written to it stays in its socket,
/// and would be lost with a connection that is closed then.
#[test]
fn a_message_is_confirmed_only_when_the_server_has_read_it() {
    let system = MosquittoSystem::start();
    runtime().block_on(async {
        let intake = TestIntake::default();
        intake.refuse(IntakeRefusal::Everything);
        let config = system.config(system.port(), "batch = 20");
        let reader = RunningReader::start(&config, "a", &intake);
        until("a reader", || reader.state().read_at.is_some()).await;
        system.send(&schedules(0..100));
        until("a message in hand", || intake.given() > 0).await;
        system.server.suspend();
        intake.refuse(IntakeRefusal::Nothing);
        until("a message to be applied", || intake.applied() > 0).await;
        tokio::task::block_in_place(|| pause(Duration::from_millis(300)));
        assert_eq!(reader.state().applied, 0, "the command was not confirmed");
        system.server.resume();
        until("all messages", || reader.state().applied >= 100).await;
        reader.stop().await;
        until("the confirmations", || system.unconfirmed(&["a"]) == 0).await;
    });
}
