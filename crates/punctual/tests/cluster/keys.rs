//! Tasks whose owner a test chooses.

use punctual_core::{Namespace, Partitions, TaskKey, partition_of};
use punctual_test_support::{BrokerClient, OwnedPartitions};
use serde_json::{Value, json};

/// As many as there are if nobody says.
pub(crate) const PARTITIONS: u16 = 16;

pub(crate) fn due(when: &str, url: &str) -> Value {
    json!({"in": when, "target": {"http": {"url": url}}})
}

/// SlowNameServer of tasks that a broker owns.
pub(crate) fn keys_of(
    held: &OwnedPartitions,
    client: &BrokerClient,
    prefix: &str,
    count: usize,
) -> Vec<String> {
    let theirs = &held.by_broker[&client.address];
    let partitions = Partitions::new(PARTITIONS).unwrap();
    let namespace = Namespace::new("shop").unwrap();
    let is_theirs = |key: &String| {
        let key = TaskKey::new(key.as_str()).unwrap();
        theirs.contains(&partition_of(&namespace, &key, partitions).get().into())
    };
    (0..).map(|n| format!("{prefix}-{n}")).filter(is_theirs).take(count).collect()
}
