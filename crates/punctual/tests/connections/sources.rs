//! Messages of other systems that become tasks, with the real binary.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use punctual_test_support::{
    MosquittoServer, RabbitmqServer, WebhookReceiver, eventually, now_millis, wait_for,
};
use rumqttc::mqttbytes::QoS;
use rumqttc::{AsyncClient, Broker, MqttOptions, PublishOptions};
use serde_json::json;

use crate::database::ConfiguredBroker;

/// How long the test waits for a fire that is due.
const FIRE_MAX: Duration = Duration::from_secs(30);

/// Devices that send keep-alives, some of which fall silent.
#[derive(Debug, Clone, Copy)]
struct Fleet {
    devices: usize,
    silent: usize,
    /// How long a device may be silent.
    within: Duration,
    /// How often a device sends a keep-alive: so often that a busy machine, which falls behind, has
    /// some rounds to make up for it.
    round: Duration,
}

/// Keep-alives that wait for their confirm.
const KEEP_ALIVES_MAX: usize = 256;

impl Fleet {
    /// Whether a device sends its first keep-alive only.
    const fn is_silent(self, device: usize) -> bool {
        device.is_multiple_of(self.devices / self.silent)
    }

    /// Sends keep-alives of all devices once, and then of those that are not silent.
    fn run(self, port: u16, ends: &AtomicBool) {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async {
            let mut options = MqttOptions::new("fleet", Broker::tcp("127.0.0.1", port));
            options.set_outgoing_inflight_upper_limit(1024);
            let (client, mut events) = AsyncClient::builder(options).capacity(100).build();
            tokio::spawn(async move { while events.poll().await.is_ok() {} });
            keep_alive(&client, 0..self.devices).await;
            let mut rounds = tokio::time::interval(self.round);
            while !ends.load(Ordering::Acquire) {
                rounds.tick().await;
                keep_alive(&client, (0..self.devices).filter(|it| !self.is_silent(*it))).await;
            }
        });
    }
}

/// Sends the keep-alives of devices, and waits until the server has them.
async fn keep_alive(client: &AsyncClient, devices: impl Iterator<Item = usize>) {
    let devices: Vec<usize> = devices.collect();
    for devices in devices.chunks(KEEP_ALIVES_MAX) {
        let mut notices = Vec::new();
        for device in devices {
            let topic = format!("devices/lamp-{device}/up");
            let options = PublishOptions::new(QoS::AtLeastOnce);
            let sent = client.publish_tracked(topic, "{\"battery\":80}", options).await;
            notices.push(sent.unwrap());
        }
        for notice in notices {
            notice.wait_async().await.unwrap();
        }
    }
}

fn exactly_those_that_fall_silent_fire(fleet: Fleet) {
    let server = MosquittoServer::start();
    let receiver = WebhookReceiver::start();
    let (port, url, within) = (server.port, &receiver.url, fleet.within.as_secs());
    let config = format!(
        "[connections.devices]\nkind = \"mqtt\"\nurl = \"mqtt://127.0.0.1:{port}\"\n\
         [[sources]]\nconnection = \"devices\"\nfrom = \"devices/+/up\"\n\
         namespace = \"shop\"\nverb = \"touch\"\nkey = \"{{1}}\"\n\
         create = {{ within = \"{within}s\", target = {{ http = {{ url = \"{url}\" }} }} }}\n"
    );
    let broker = ConfiguredBroker::start(&config);
    let source = || broker.get().call("GET", "/v1/connections", &[], "").1["sources"][0].clone();
    wait_for("the subscription", || source()["read_at"].is_string());
    let all_fired = AtomicBool::new(false);
    let keys = std::thread::scope(|scope| {
        // Ends before the keys are compared, so the others have not had the time to fall silent.
        scope.spawn(|| fleet.run(port, &all_fired));
        let mut keys = BTreeSet::new();
        while let Some(fire) = receiver.next_within(fleet.within + FIRE_MAX) {
            keys.insert(fire.header("punctual-key").to_owned());
            if keys.len() >= fleet.silent {
                break;
            }
        }
        all_fired.store(true, Ordering::Release);
        keys
    });
    let silent = (0..fleet.devices).filter(|device| fleet.is_silent(*device));
    let expected: BTreeSet<_> = silent.map(|device| format!("lamp-{device}")).collect();
    let shown = source();
    assert!(keys == expected, "{:?} beside the silent, {shown}", keys.difference(&expected));
    receiver.stays_silent(Duration::from_millis(200));
    assert_eq!(shown["rejected"], json!(0));
}

#[test]
fn exactly_the_devices_that_fall_silent_fire() {
    exactly_those_that_fall_silent_fire(Fleet {
        devices: 1_000,
        silent: 20,
        within: Duration::from_secs(12),
        round: Duration::from_secs(2),
    });
}

#[test]
#[ignore = "takes minutes: see CONTRIBUTING.md"]
fn of_a_hundred_thousand_devices_exactly_those_that_fall_silent_fire() {
    exactly_those_that_fall_silent_fire(Fleet {
        devices: 100_000,
        silent: 1_000,
        within: Duration::from_secs(120),
        round: Duration::from_secs(30),
    });
}

#[test]
fn a_message_with_x_delay_is_delivered_after_it() {
    let server = RabbitmqServer::shared();
    let receiver = WebhookReceiver::start();
    let queue = format!("delayed-{}", std::process::id());
    server.witness(&["declare", &queue]);
    let (port, url) = (server.port, &receiver.url);
    let config = format!(
        "[connections.mq]\nkind = \"amqp\"\nurl = \"amqp://127.0.0.1:{port}\"\n\
         [[sources]]\nconnection = \"mq\"\nfrom = \"{queue}\"\nnamespace = \"shop\"\n\
         target = {{ http = {{ url = \"{url}\" }} }}\n"
    );
    let broker = ConfiguredBroker::start(&config);
    let sent = now_millis();
    server.witness(&["put", &queue, "{\"x-delay\": 1500}", "{\"order\": 42}"]);
    let fire = receiver.next();
    assert!(now_millis() - sent >= 1500, "early");
    assert_eq!(&fire.body[..], b"{\"order\": 42}");
    // Neither of these says when, and one has no key.
    server.witness(&["put", &queue, "{}", "first"]);
    server.witness(&["put", &queue, "{\"punctual-verb\": \"cancel\"}", "second"]);
    let rejected = format!("{queue}.rejected");
    let source = || broker.get().call("GET", "/v1/connections", &[], "").1["sources"][0].clone();
    let counts = eventually(|| Some(source()).filter(|source| source["rejected"] == json!(2)));
    assert_eq!(counts["applied"], json!(1));
    let messages = server.witness(&["get", &rejected]);
    let problem = |at: usize| messages[at]["headers"]["punctual-problem"].as_str().unwrap();
    assert_eq!((&messages[0]["body"], &messages[1]["body"]), (&json!("first"), &json!("second")));
    assert!(problem(0).contains("urn:punctual:invalid"), "{}", problem(0));
    assert!(problem(1).contains("key"), "{}", problem(1));
    for queue in [&queue, &rejected] {
        server.witness(&["delete", queue]);
    }
}
