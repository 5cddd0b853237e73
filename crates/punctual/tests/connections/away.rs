//! What a connection that is away costs another lane: a measurement.
//!
//! Webhooks of one namespace are due at 1,000 a second. Meanwhile the server of a connection is
//! stopped or killed for a minute, while messages of another namespace wait for it. Lags are those
//! of the receiver's clock.

use std::collections::HashMap;
use std::time::Duration;

use punctual_test_support::redis::RedisServer;
use punctual_test_support::{RecordingReceiver, millis, now_millis, pause, wait_for};
use serde_json::{Value, json};

use crate::database::ConfiguredBroker;
use crate::setting;
use crate::spread::Spread;

/// How long a phase takes, in seconds, unless `PUNCTUAL_SECONDS` has another number.
const SECONDS: u64 = 60;
/// Webhooks a second.
const RATE: u64 = 1000;
/// How often a batch of webhooks is scheduled, and how long before it is due.
const TICK_MILLIS: u64 = 100;
const AHEAD_MILLIS: u64 = 1000;
/// Messages that wait for the connection, in batches.
const WAITING: u64 = 20_000;
const BATCH: u64 = 1000;

/// What the server of the connection does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ServerFault {
    None,
    Stopped,
    Killed,
}

struct WaitingLane {
    redis: RedisServer,
    receiver: RecordingReceiver,
    broker: ConfiguredBroker,
}

impl WaitingLane {
    fn start() -> Self {
        let redis = RedisServer::start(&[]);
        let config = format!(
            "[connections.mq]\nkind = \"redis\"\nurl = \"redis://127.0.0.1:{}\"\n\
             namespaces = [\"waits\"]\n",
            redis.port
        );
        let lanes = Self {
            redis,
            receiver: RecordingReceiver::start(),
            broker: ConfiguredBroker::start(&config),
        };
        lanes.broker.wait_for_connection("ready");
        lanes
    }

    fn schedule(&self, namespace: &str, tasks: Vec<Value>) {
        let path = format!("/v1/{namespace}/tasks");
        let (status, _) =
            self.broker.get().call("POST", &path, &[], Value::Array(tasks).to_string());
        assert_eq!(status, 200);
    }

    /// Webhooks at a rate, while the server has a fault. Returns their lags.
    fn phase(&mut self, name: &str, fault: ServerFault, seconds: u64) -> Spread {
        let begin = u64::try_from(now_millis()).unwrap() + AHEAD_MILLIS;
        match fault {
            ServerFault::None => {}
            ServerFault::Stopped => self.redis.suspend(),
            ServerFault::Killed => self.redis.kill(),
        }
        if fault != ServerFault::None {
            let target = json!({"redis_stream": {"connection": "mq", "stream": "fires"}});
            let task = json!({"in": "0s", "target": target, "payload": {},
                              "retry": {"attempts_max": 1000, "backoff": {"fixed": "1s"}}});
            let tasks = usize::try_from(BATCH).unwrap();
            (0..WAITING / BATCH).for_each(|_| self.schedule("waits", vec![task.clone(); tasks]));
        }
        let per_tick = RATE * TICK_MILLIS / 1000;
        for tick in 0..seconds * 1000 / TICK_MILLIS {
            let due = begin + tick * TICK_MILLIS;
            let now = u64::try_from(now_millis()).unwrap();
            pause(Duration::from_millis(due.saturating_sub(now + AHEAD_MILLIS)));
            let tasks = (0..per_tick).map(|number| {
                let url = format!("{}/now/{name}-{tick}-{number}", self.receiver.url);
                let at = due + number * TICK_MILLIS / per_tick;
                json!({"at": at_text(at), "target": {"http": {"url": url}}, "payload": {}})
            });
            self.schedule("quick", tasks.collect());
        }
        let all = usize::try_from(seconds * RATE).unwrap();
        let of_phase = |deliveries: &HashMap<String, Vec<_>>| {
            deliveries.keys().filter(|key| key.starts_with(name)).count()
        };
        wait_for("all webhooks", || of_phase(&self.receiver.deliveries()) == all);
        let deliveries = self.receiver.deliveries();
        let deliveries = deliveries.iter().filter(|(key, _)| key.starts_with(name));
        let lags = deliveries.map(|(_, received)| {
            u64::try_from(received[0].at_millis).unwrap().saturating_sub(received[0].fire_at_millis)
        });
        let spread = Spread::of(lags);
        println!("{name}: {spread}; the connection: {}", self.broker.connection());
        match fault {
            ServerFault::None => {}
            ServerFault::Stopped => self.redis.resume(),
            ServerFault::Killed => self.redis.start_again(),
        }
        if fault != ServerFault::None {
            wait_for("what has waited", || {
                let (_, stats) = self.broker.get().call("GET", "/v1/waits/stats", &[], "");
                stats["scheduled"] == json!(0) && stats["in_flight"].as_u64().unwrap_or(0) == 0
            });
        }
        spread
    }
}

/// An instant as the API writes it.
fn at_text(at_millis: u64) -> String {
    let text = punctual_core::Timestamp::from_millis(at_millis).to_string();
    assert_eq!(millis(&text), at_millis);
    text
}

fn lag_of_another_lane(fault: ServerFault) {
    let seconds = setting("PUNCTUAL_SECONDS", SECONDS);
    let mut lanes = WaitingLane::start();
    lanes.phase("first", ServerFault::None, 2);
    let without = lanes.phase("without", ServerFault::None, seconds);
    let with = lanes.phase("with", fault, seconds);
    let again = lanes.phase("again", ServerFault::None, seconds / 4);
    let [without, with, again] = [without, with, again].map(|spread| spread.percentile(99));
    println!(
        "{fault:?} for {seconds} s: p99 {without} ms without, {with} ms with, {again} ms after"
    );
}

#[test]
#[ignore = "a measurement: see CONTRIBUTING.md"]
fn lag_beside_a_connection_whose_server_is_stopped() {
    lag_of_another_lane(ServerFault::Stopped);
}

#[test]
#[ignore = "a measurement: see CONTRIBUTING.md"]
fn lag_beside_a_connection_whose_server_is_killed() {
    lag_of_another_lane(ServerFault::Killed);
}
