//! How long a message takes until its task is durable, with the real binary: a measurement.
//!
//! The task is due at once and publishes to a place of the same system, and a delivery begins after
//! the task is durable. So the time from before a message is sent until its fire is received, both
//! by the clock of an independent client, is an upper bound: it includes the delivery.

use std::time::Duration;

use punctual_test_support::redis::RedisServer;
use punctual_test_support::{
    KafkaCluster, MessageWitness, MosquittoServer, NatsServer, RabbitmqServer, WitnessPlan,
};

use crate::setting;
use crate::spread::Spread;
use crate::witness::{WitnessedSystem, start_broker};

/// Messages a second.
const RATE: u64 = 500;
/// How long messages are sent, in seconds, unless `PUNCTUAL_SECONDS` has another number.
const SECONDS: u64 = 15;
/// The first messages are not counted: connections are opened, and caches filled.
const WARM_UP: u64 = RATE;
/// Enough connections that the confirms of a system do not hold the rate down.
const SENDERS: u64 = 10;

fn latency<S: WitnessedSystem>() {
    let system = S::start();
    let broker = start_broker(&system);
    let count = RATE * setting("PUNCTUAL_SECONDS", SECONDS);
    let plan = WitnessPlan { count, rate: RATE, delay: Duration::ZERO, senders: SENDERS };
    let witness = MessageWitness::start(S::KIND, system.port(), plan);
    punctual_test_support::wait::wait_long_for("all fires", || {
        witness.record().received.len() as u64 == count
    });
    let record = witness.record();
    let lags = record.received.iter().filter(|(number, _)| **number >= WARM_UP);
    let lags = lags.map(|(number, messages)| messages[0].1.saturating_sub(record.sent[number]));
    let took = record.sent.values().max().unwrap() - record.sent.values().min().unwrap();
    let rate = count * 1000 / took.max(1);
    println!("{}: {count} messages at {rate}/s, until fired: {}", S::KIND, Spread::of(lags));
    drop(broker);
}

#[test]
#[ignore = "a measurement: see CONTRIBUTING.md"]
fn latency_of_rabbitmq() {
    latency::<RabbitmqServer>();
}

#[test]
#[ignore = "a measurement: see CONTRIBUTING.md"]
fn latency_of_nats() {
    latency::<NatsServer>();
}

#[test]
#[ignore = "a measurement: see CONTRIBUTING.md"]
fn latency_of_redis() {
    latency::<RedisServer>();
}

#[test]
#[ignore = "a measurement: see CONTRIBUTING.md"]
fn latency_of_kafka() {
    latency::<KafkaCluster>();
}

#[test]
#[ignore = "a measurement: see CONTRIBUTING.md"]
fn latency_of_mqtt() {
    latency::<MosquittoServer>();
}
