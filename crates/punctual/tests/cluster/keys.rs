//! Tasks whose owner a test chooses.

use punctual_core::{Namespace, Partitions, TaskKey, partition_of};
use punctual_test_support::{BrokerClient, OwnedPartitions};
use serde_json::{Value, json};

/// The default number of partitions.
pub(crate) const PARTITIONS: u16 = 16;

/// Returns a task that calls a receiver after a delay.
pub(crate) fn due(when: &str, url: &str) -> Value {
    json!({"in": when, "target": {"http": {"url": url}}})
}

/// Returns keys of tasks that a broker owns.
pub(crate) fn keys_of(
    owned: &OwnedPartitions,
    client: &BrokerClient,
    prefix: &str,
    count: usize,
) -> Vec<String> {
    let partitions_of_broker = &owned.by_broker[&client.address];
    let partitions = Partitions::new(PARTITIONS).unwrap();
    let namespace = Namespace::new("shop").unwrap();
    let is_owned = |key: &String| {
        let key = TaskKey::new(key.as_str()).unwrap();
        partitions_of_broker.contains(&partition_of(&namespace, &key, partitions).get().into())
    };
    (0..).map(|n| format!("{prefix}-{n}")).filter(is_owned).take(count).collect()
}
