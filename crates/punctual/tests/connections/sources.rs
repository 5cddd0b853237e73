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

const DEVICES: usize = 1_000;
const SILENT: usize = 20;
/// How long a device may be silent. Rounds of all devices are much shorter.
const WITHIN: &str = "8s";

/// How long the test waits for a fire.
const FIRE_MAX: Duration = Duration::from_secs(30);

/// Whether a device sends its first keep-alive only.
const fn is_silent(device: &usize) -> bool {
    device.is_multiple_of(DEVICES / SILENT)
}

/// How often a device sends a keep-alive: few enough a second for a busy machine, which must not
/// fall behind.
const ROUND: Duration = Duration::from_secs(2);

/// Sends keep-alives of all devices once, and then of those that are not silent.
fn run_fleet(port: u16, ends: &AtomicBool) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let options = MqttOptions::new("fleet", Broker::tcp("127.0.0.1", port));
        let (client, mut events) = AsyncClient::builder(options).capacity(100).build();
        tokio::spawn(async move { while events.poll().await.is_ok() {} });
        keep_alive(&client, 0..DEVICES).await;
        let mut rounds = tokio::time::interval(ROUND);
        while !ends.load(Ordering::Acquire) {
            rounds.tick().await;
            keep_alive(&client, (0..DEVICES).filter(|device| !is_silent(device))).await;
        }
    });
}

/// Sends the keep-alives of devices, and waits until the server has them.
async fn keep_alive(client: &AsyncClient, devices: impl Iterator<Item = usize>) {
    let mut notices = Vec::new();
    for device in devices {
        let topic = format!("open/devices/lamp-{device}/up");
        let options = PublishOptions::new(QoS::AtLeastOnce);
        notices.push(client.publish_tracked(topic, "{\"battery\":80}", options).await.unwrap());
    }
    for notice in notices {
        notice.wait_async().await.unwrap();
    }
}

#[test]
#[ignore = "sources of MQTT are experimental: a reader can stop"]
fn exactly_the_devices_that_fall_silent_fire() {
    let server = MosquittoServer::start();
    let receiver = WebhookReceiver::start();
    let (port, url) = (server.port, &receiver.url);
    let config = format!(
        "[connections.devices]\nkind = \"mqtt\"\nurl = \"mqtt://127.0.0.1:{port}\"\n\
         [[sources]]\nconnection = \"devices\"\nexperimental = true\nfrom = \"open/devices/+/up\"\n\
         namespace = \"shop\"\nverb = \"touch\"\nkey = \"{{1}}\"\n\
         create = {{ within = \"{WITHIN}\", target = {{ http = {{ url = \"{url}\" }} }} }}\n"
    );
    let broker = ConfiguredBroker::start(&config);
    let source = || broker.get().call("GET", "/v1/connections", &[], "").1["sources"][0].clone();
    wait_for("the subscription", || source()["read_at"].is_string());
    let all_fired = AtomicBool::new(false);
    let keys = std::thread::scope(|scope| {
        // Ends before the keys are compared, so the others have not had the time to fall silent.
        scope.spawn(|| run_fleet(port, &all_fired));
        let mut keys = BTreeSet::new();
        while let Some(fire) = receiver.next_within(FIRE_MAX) {
            keys.insert(fire.header("punctual-key").to_owned());
            if keys.len() == SILENT {
                break;
            }
        }
        all_fired.store(true, Ordering::Release);
        keys
    });
    let expected = (0..DEVICES).filter(is_silent).map(|device| format!("lamp-{device}"));
    assert_eq!(keys, expected.collect::<BTreeSet<_>>());
    receiver.stays_silent(Duration::from_millis(200));
    assert_eq!(source()["rejected"], json!(0));
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
