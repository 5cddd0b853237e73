//! Mosquitto: a topic, and a subscription as its witness.

use punctual_core::{MessageAddress, MessageOptions, MessageSystem, MqttQos};
use punctual_test_support::mosquitto::{ACCOUNT, PACKET_BYTES_MAX, PASSWORD};
use punctual_test_support::{MosquittoServer, MqttWitness};
use serde_json::Value;

use crate::run::{CourierRun, is_acked};
use crate::suite::{SecuredSettings, SinkSystem, WitnessedMessage};

const TOPIC: &str = "open/orders";

pub(crate) struct MqttSystem {
    server: MosquittoServer,
    witness: Option<MqttWitness>,
}

fn address(topic: &str) -> MessageAddress {
    MessageAddress::new(MessageSystem::Mqtt, topic, MessageOptions::default()).unwrap()
}

fn witnessed(found: &Value) -> WitnessedMessage {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let properties = &found["properties"];
    let headers = properties["user-properties"].as_object().unwrap().iter();
    WitnessedMessage {
        body: text(&found["payload"]).unwrap(),
        content_type: text(&properties["content-type"]),
        headers: headers.map(|(name, value)| (name.clone(), text(value).unwrap())).collect(),
    }
}

impl SinkSystem for MqttSystem {
    const ATTRIBUTE_PREFIX: &'static str = "";
    const PAGE: &'static str = include_str!("../../../../docs/connectors/mqtt.md");
    const PAGE_HOST: &'static str = "mqtt.internal";

    fn start() -> Self {
        Self { server: MosquittoServer::start(), witness: None }
    }

    fn start_own() -> Self {
        Self::start()
    }

    fn port(&self) -> u16 {
        self.server.port
    }

    fn settings(&self, port: u16) -> String {
        format!("kind = \"mqtt\"\nurl = \"mqtt://127.0.0.1:{port}\"\n")
    }

    fn secured(&self) -> SecuredSettings {
        let port = self.server.tls_port;
        SecuredSettings {
            settings: format!("kind = \"mqtt\"\nurl = \"mqtts://{ACCOUNT}@127.0.0.1:{port}\"\n"),
            authority: self.server.authority_file(),
            port,
            password: PASSWORD,
        }
    }

    fn make_place(&mut self) -> MessageAddress {
        self.witness = Some(self.server.subscribe(TOPIC));
        address(TOPIC)
    }

    fn make_silent_place(&mut self) -> MessageAddress {
        address(TOPIC)
    }

    fn arrived(&mut self) -> Vec<WitnessedMessage> {
        self.witness.as_mut().unwrap().arrived().iter().map(witnessed).collect()
    }

    fn no_place(&self) -> Option<MessageAddress> {
        // A message without subscribers is taken: PUBACK.
        None
    }

    fn forbidden(&self) -> Option<(String, MessageAddress)> {
        Some((self.settings(self.port()), address("closed/orders")))
    }

    fn too_large(&self) -> Option<usize> {
        Some(PACKET_BYTES_MAX)
    }

    fn kill(&mut self) {
        self.server.kill();
    }

    fn start_again(&mut self) {
        self.server.start_again();
        // The subscription was forgotten with everything else.
        self.witness = Some(self.server.subscribe(TOPIC));
    }
}

#[test]
fn a_topic_without_rights_fails_with_the_reason_of_the_server() {
    let system = MqttSystem::start();
    let mut run = CourierRun::start(&system.settings(system.port()));
    let delivery = run.delivery(&address("closed/orders"), 0);
    let text = format!("{:?}", run.settle(vec![delivery]));
    assert!(text.contains("NotAuthorized"), "{text}");
}

#[test]
fn what_is_too_large_for_the_server_is_refused_with_both_sizes() {
    let system = MqttSystem::start();
    let mut run = CourierRun::start(&system.settings(system.port()));
    let delivery = run.delivery(&address(TOPIC), PACKET_BYTES_MAX);
    let text = format!("{:?}", run.settle(vec![delivery]));
    assert!(text.contains("Refused") && text.contains("the server takes 200000"), "{text}");
}

#[test]
fn a_topic_without_subscribers_fails_where_they_are_required() {
    let system = MqttSystem::start();
    let settings = system.settings(system.port());
    let mut lax = CourierRun::start(&settings);
    let delivery = lax.delivery(&address("open/lonely"), 0);
    let outcomes = lax.settle(vec![delivery.clone()]);
    assert!(is_acked(&outcomes, &delivery), "{outcomes:?}");
    let mut strict = CourierRun::start(&format!("{settings}subscribers = \"required\"\n"));
    let delivery = strict.delivery(&address("open/lonely"), 0);
    let text = format!("{:?}", strict.settle(vec![delivery]));
    assert!(text.contains("Failed") && text.contains("the topic has no subscribers"), "{text}");
    let _subscription = system.server.subscribe("open/lonely");
    let delivery = strict.delivery(&address("open/lonely"), 0);
    strict.settle_all(vec![delivery]);
    let options = MessageOptions { qos: MqttQos::ExactlyOnce, ..MessageOptions::default() };
    let place = MessageAddress::new(MessageSystem::Mqtt, "open/lonely", options).unwrap();
    let delivery = strict.delivery(&place, 0);
    let text = format!("{:?}", strict.settle(vec![delivery]));
    assert!(text.contains("Failed") && text.contains("QoS 1"), "{text}");
}

#[test]
fn a_retained_message_of_level_2_waits_for_subscribers() {
    let system = MqttSystem::start();
    let mut run = CourierRun::start(&system.settings(system.port()));
    let options =
        MessageOptions { qos: MqttQos::ExactlyOnce, retain: true, ..MessageOptions::default() };
    let place = MessageAddress::new(MessageSystem::Mqtt, "open/state", options).unwrap();
    let delivery = run.delivery(&place, 0);
    run.settle_all(vec![delivery.clone()]);
    let found = system.server.subscribe("open/state").next_message();
    assert_eq!((&found["qos"], &found["retain"]), (&2.into(), &1.into()), "{found}");
    let id = found["properties"]["user-properties"]["webhook-id"].as_str();
    assert_eq!(id, Some(&*delivery.fire_id.to_string()));
}
