//! How fast messages become durable tasks, with the real binary: a measurement.

use std::sync::Arc;
use std::time::Duration;

use punctual_test_support::{TestBroker, now_millis, pause, wait_for};
use serde_json::Value;

use crate::suite::{runtime, schedules};
use crate::system::TestSystem;

/// Messages of a measurement, unless `PUNCTUAL_RATE_MESSAGES` has another number.
const RATE_MESSAGES: usize = 100_000;
/// Messages that are sent at once before the measurement.
const SEND_MAX: usize = 10_000;
/// The pause between two looks at what the broker has applied.
const LOOK_PAUSE: Duration = Duration::from_millis(10);

/// Prints how many messages a second become durable tasks of one broker with the embedded store.
pub(crate) fn rate_of_messages_to_durable_tasks<S: TestSystem>() {
    let wanted = std::env::var("PUNCTUAL_RATE_MESSAGES").ok();
    let count = wanted.map_or(RATE_MESSAGES, |text| text.parse().unwrap());
    let system = S::start_own();
    let config = tempfile::NamedTempFile::new().unwrap();
    // The broker has another port when it starts again, and is the same reader all the same.
    let more = "target = { queue = \"later\" }\nreader = \"one\"";
    let text = system.config(system.port(), more);
    std::fs::write(&config, text).unwrap();
    let dir = Arc::new(tempfile::tempdir().unwrap());
    let path = config.path().display().to_string();
    let start = || TestBroker::start_on(Arc::clone(&dir), &["--config", &path]);
    let source = |broker: &TestBroker| -> Value {
        broker.call("GET", "/v1/connections", &[], "").1["sources"][0].clone()
    };
    // MQTT keeps messages for readers that it knows.
    let broker = start();
    wait_for("a reader", || source(&broker)["read_at"].is_string());
    broker.signal("-TERM");
    assert!(broker.end().success());
    let messages = schedules(0..count);
    runtime().block_on(async {
        messages.chunks(SEND_MAX).for_each(|some| system.send(some));
    });
    let broker = start();
    let applied = || source(&broker)["applied"].as_u64().unwrap_or_default();
    wait_for("the first messages", || applied() > 0);
    let (began, first) = (now_millis(), applied());
    let all = u64::try_from(count).unwrap();
    while applied() < all {
        pause(LOOK_PAUSE);
    }
    let millis = (now_millis() - began).max(1);
    let per_second = u128::from(all - first) * 1000 / millis;
    println!("{count} messages, {} of them in {millis} ms: {per_second}/s", all - first);
}
