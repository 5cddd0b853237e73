//! Messages in and out of the real binary, while it and the system are killed in turn under load.
//!
//! An independent client sends commands that are due soon and whose targets are a place of the same
//! system, and reads what arrives there. Nothing that was confirmed to it is lost, whatever comes
//! twice has the same id, and nothing is early.

use std::time::Duration;

use punctual_test_support::redis::RedisServer;
use punctual_test_support::{
    KafkaCluster, MessageWitness, MosquittoServer, NatsServer, RabbitmqServer, WitnessPlan, pause,
    until_ok, wait_for,
};
use serde_json::json;

use crate::database::ConfiguredBroker;
use crate::setting;

/// How long after its command a task is due.
const DELAY: Duration = Duration::from_millis(500);
/// Commands a second.
const RATE: u64 = 150;
/// Commands between two kills.
const ROUND: u64 = 200;
/// Rounds in the tests; `PUNCTUAL_ROUNDS` has another number.
const ROUNDS: u64 = 4;

/// A system with places for commands and for fires.
pub(crate) trait WitnessedSystem {
    const KIND: &'static str;
    /// The kind, and what follows `127.0.0.1:PORT` in the URL of the connection.
    const CONNECTION: (&'static str, &'static str);
    const FROM: &'static str = "commands";
    /// More keys of the source, each a line.
    const SOURCE_KEYS: &'static str = "";

    fn start() -> Self;
    fn port(&self) -> u16;
    fn target() -> serde_json::Value;
    fn kill(&mut self);
    fn start_again(&mut self);
}

impl WitnessedSystem for RabbitmqServer {
    const KIND: &'static str = "rabbitmq";
    const CONNECTION: (&'static str, &'static str) = ("amqp", "amqp");

    fn start() -> Self {
        let server = Self::start();
        server.witness(&["declare", "commands"]);
        server.witness(&["declare", "fires"]);
        server
    }

    fn port(&self) -> u16 {
        self.port
    }

    fn target() -> serde_json::Value {
        json!({"amqp": {"connection": "mq", "exchange": "", "routing_key": "fires"}})
    }

    fn kill(&mut self) {
        self.kill();
    }

    fn start_again(&mut self) {
        self.start_again();
    }
}

impl WitnessedSystem for NatsServer {
    const KIND: &'static str = "nats";
    const CONNECTION: (&'static str, &'static str) = ("nats", "nats");

    fn start() -> Self {
        let server = Self::start();
        server.make_stream("commands", &["commands"], &json!({}));
        server.make_stream("fires", &["fires"], &json!({}));
        server
    }

    fn port(&self) -> u16 {
        self.port
    }

    fn target() -> serde_json::Value {
        json!({"nats": {"connection": "mq", "subject": "fires"}})
    }

    fn kill(&mut self) {
        self.kill();
    }

    fn start_again(&mut self) {
        self.start_again();
    }
}

impl WitnessedSystem for RedisServer {
    const KIND: &'static str = "redis";
    const CONNECTION: (&'static str, &'static str) = ("redis", "redis");

    fn start() -> Self {
        Self::start(&["--appendonly", "yes", "--appendfsync", "always"])
    }

    fn port(&self) -> u16 {
        self.port
    }

    fn target() -> serde_json::Value {
        json!({"redis_stream": {"connection": "mq", "stream": "fires"}})
    }

    fn kill(&mut self) {
        self.kill();
    }

    fn start_again(&mut self) {
        self.start_again();
    }
}

impl WitnessedSystem for KafkaCluster {
    const KIND: &'static str = "kafka";
    const CONNECTION: (&'static str, &'static str) = ("kafka", "kafka");
    // The mock cluster keeps the partitions of a reader that was killed for that long.
    const SOURCE_KEYS: &'static str = "claim_after = \"6s\"\n";

    fn start() -> Self {
        let cluster = Self::start(1);
        // As many partitions as `witness.py` reads.
        cluster.make_topic("commands", 6);
        cluster.make_topic("fires", 6);
        cluster
    }

    fn port(&self) -> u16 {
        self.ports[0]
    }

    fn target() -> serde_json::Value {
        json!({"kafka": {"connection": "mq", "topic": "fires"}})
    }

    fn kill(&mut self) {
        // It keeps its records in memory, so connections end and new ones are refused.
        self.close();
    }

    fn start_again(&mut self) {
        self.open();
    }
}

impl WitnessedSystem for MosquittoServer {
    const KIND: &'static str = "mqtt";
    const CONNECTION: (&'static str, &'static str) = ("mqtt", "mqtt");
    const FROM: &'static str = "open/commands";

    fn start() -> Self {
        Self::start_durable()
    }

    fn port(&self) -> u16 {
        self.port
    }

    fn target() -> serde_json::Value {
        json!({"mqtt": {"connection": "mq", "topic": "open/fires"}})
    }

    fn kill(&mut self) {
        // Killed with SIGKILL, Mosquitto loses what it has confirmed since it has written last.
        self.stop();
    }

    fn start_again(&mut self) {
        self.start_again();
    }
}

/// Starts a broker that reads the commands of a system, and waits until it does.
pub(crate) fn start_broker<S: WitnessedSystem>(system: &S) -> ConfiguredBroker {
    let (port, (kind, scheme), from) = (system.port(), S::CONNECTION, S::FROM);
    let retry = json!({"attempts_max": 100, "backoff": {"fixed": "100ms"}});
    // The broker has another port when it starts again, so its name among readers is given: what it
    // had taken comes back to it at once.
    let config = format!(
        "[connections.mq]\nkind = \"{kind}\"\nurl = \"{scheme}://127.0.0.1:{port}\"\n\
         namespaces = [\"shop\"]\nallow = [\"*\", \"/*\"]\n\
         [[sources]]\nconnection = \"mq\"\nfrom = \"{from}\"\nnamespace = \"shop\"\n\
         reader = \"one\"\n{}target = {}\ntask = {{ retry = {} }}\n",
        S::SOURCE_KEYS,
        toml_of(&S::target()),
        toml_of(&retry),
    );
    let broker = ConfiguredBroker::start(&config);
    let source = || {
        let (_, answer) = broker.get().call("GET", "/v1/connections", &[], "");
        answer["sources"][0]["read_at"].is_string()
    };
    wait_for("a reader", source);
    broker
}

fn nothing_is_lost_and_nothing_early<S: WitnessedSystem>() {
    let rounds = setting("PUNCTUAL_ROUNDS", ROUNDS);
    let mut system = S::start();
    let mut broker = start_broker(&system);
    let count = ROUND * rounds;
    let plan = WitnessPlan { count, rate: RATE, delay: DELAY, senders: 1 };
    let witness = MessageWitness::start(S::KIND, system.port(), plan);
    for round in 0..rounds {
        let goal = (ROUND * round + ROUND / 2).try_into().unwrap();
        wait_for("commands", || witness.record().sent.len() >= goal);
        // In the middle of what the last commands cause: taken, due, sent.
        pause(Duration::from_millis(round % 5 * 120));
        match round % 2 {
            0 => {
                broker.kill();
                broker.start_again();
            }
            _ => {
                system.kill();
                system.start_again();
            }
        }
    }
    let all = usize::try_from(count).unwrap();
    wait_for("all commands", || witness.record().sent.len() == all);
    until_ok(|| match witness.record().missing() {
        missing if missing.is_empty() => Ok(()),
        missing => {
            let of = |path: &str| broker.get().call("GET", path, &[], "").1;
            let (stats, connections) = (of("/v1/shop/stats"), of("/v1/connections"));
            Err(format!("the fires of {missing:?}, with {stats} and {connections}"))
        }
    });
    // Whatever comes twice comes now: a delivery whose outcome is unknown is repeated at once.
    wait_for("the end of all fires", || {
        let (_, stats) = broker.get().call("GET", "/v1/shop/stats", &[], "");
        stats["done"].as_u64() == Some(count)
    });
    let record = witness.record();
    assert_eq!(record.received.len(), all, "messages that were never sent");
    for (number, messages) in &record.received {
        let (id, _) = &messages[0];
        assert!(messages.iter().all(|(other, _)| other == id), "{number}: {messages:?}");
        let due = record.sent[number] + u64::try_from(DELAY.as_millis()).unwrap();
        assert!(
            messages.iter().all(|(_, at)| *at >= due),
            "{number} is early: {messages:?}, {due}"
        );
    }
}

/// A value as TOML writes it in one line.
fn toml_of(value: &serde_json::Value) -> String {
    match value {
        serde_json::Value::Object(members) => {
            let members =
                members.iter().map(|(name, value)| format!("{name} = {}", toml_of(value)));
            format!("{{ {} }}", members.collect::<Vec<_>>().join(", "))
        }
        other => other.to_string(),
    }
}

#[test]
fn nothing_is_lost_when_punctual_and_rabbitmq_are_killed() {
    nothing_is_lost_and_nothing_early::<RabbitmqServer>();
}

#[test]
fn nothing_is_lost_when_punctual_and_nats_are_killed() {
    nothing_is_lost_and_nothing_early::<NatsServer>();
}

#[test]
fn nothing_is_lost_when_punctual_and_redis_are_killed() {
    nothing_is_lost_and_nothing_early::<RedisServer>();
}

#[test]
fn nothing_is_lost_when_punctual_is_killed_and_kafka_is_away() {
    nothing_is_lost_and_nothing_early::<KafkaCluster>();
}

#[test]
fn nothing_is_lost_when_punctual_is_killed_and_mosquitto_restarts() {
    nothing_is_lost_and_nothing_early::<MosquittoServer>();
}
