//! The last life of a task that has ended: its last fire, and the dead letter if it became one.
//!
//! A key names the task that has it now. When that task has ended, reads by the key answer for the
//! task that had it last, as long as its history is retained. So do reads by the id of the task.

use punctual_core::{
    DeadLetter, FireEnd, FireRecord, Namespace, PartitionId, TaskId, TaskKey, partition_of,
};
use punctual_store::TaskStore as _;

use crate::broker::Broker;
use crate::problem::{Problem, TaskRef};

/// What is known of a task that has ended.
#[derive(Debug)]
pub(crate) struct LastLife {
    /// The record of its last fire.
    pub(crate) record: FireRecord,
    /// Has the whole task. `None` if the fire did not become a dead letter, or if the letter was
    /// deleted.
    pub(crate) letter: Option<DeadLetter>,
}

impl LastLife {
    /// Finds the last life of the task that a path names, by key first, then by id. The caller has
    /// found no living task.
    pub(crate) async fn find(
        broker: &Broker,
        TaskRef { namespace, name }: TaskRef<'_>,
    ) -> Result<Option<Self>, Problem> {
        let by_key = match TaskKey::new(name) {
            Ok(key) => last_of_key(broker, namespace, key).await?,
            Err(_) => None,
        };
        let found = match (by_key, name.parse::<TaskId>()) {
            (None, Ok(id)) => last_of_id(broker, namespace, id).await?,
            (found, _) => found,
        };
        let Some((partition, record)) = found else {
            return Ok(None);
        };
        let letter = match record.end {
            FireEnd::Dead(_) => broker.store.dead_letter(partition, record.fire_id).await?,
            _ => None,
        };
        Ok(Some(Self { record, letter }))
    }
}

async fn last_of_key(
    broker: &Broker,
    namespace: &Namespace,
    key: TaskKey,
) -> Result<Option<(PartitionId, FireRecord)>, Problem> {
    let partition = partition_of(namespace, &key, broker.owners.partitions());
    let records = broker.store.last_fires(partition, namespace, &[key]).await?;
    Ok(records.into_iter().next().flatten().map(|record| (partition, record)))
}

async fn last_of_id(
    broker: &Broker,
    namespace: &Namespace,
    id: TaskId,
) -> Result<Option<(PartitionId, FireRecord)>, Problem> {
    let partition = id.partition();
    if broker.owners.of(partition).is_none() {
        return Ok(None);
    }
    let records = broker.store.history(partition, id, 1).await?;
    let record = records.into_iter().find(|record| record.namespace == *namespace);
    Ok(record.map(|record| (partition, record)))
}
