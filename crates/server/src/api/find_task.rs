//! Finds the task that a caller names by its key or its id, and its fires, for HTTP and gRPC.
//!
//! A key names the task that has it now. When that task has ended, reads by the key answer for the
//! task that had it last, as long as its history is retained. So do reads by the id of a task.

use std::sync::Arc;

use punctual_core::{
    DeadLetter, FireEnd, FireRecord, Namespace, Task, TaskId, TaskKey, partition_of,
};
use punctual_engine::{Command, EngineError, Subject};
use punctual_store::TaskStore as _;

use crate::broker::Broker;
use crate::problem::{Problem, TaskRef};
use crate::routing::{Owners, PartitionHandle};

/// A task that was found.
#[derive(Debug)]
pub(crate) enum NamedTask {
    /// It has not ended, or is a watch that has fired.
    Living(Task),
    Ended(Box<LastLife>),
}

/// What is known of a task that has ended.
#[derive(Debug)]
pub(crate) struct LastLife {
    pub(crate) id: TaskId,
    /// The record of its last fire.
    pub(crate) record: FireRecord,
    /// Has the whole task. `None` if the fire did not become a dead letter, or if the letter was
    /// deleted.
    pub(crate) letter: Option<DeadLetter>,
}

/// The fires of a task.
#[derive(Debug)]
pub(crate) struct TaskFires {
    /// The task, if its current fire had an attempt already, or was redriven.
    pub(crate) current: Option<Task>,
    /// The fires that have ended, newest first.
    pub(crate) ended: Vec<FireRecord>,
}

/// The tasks that a name in a path may mean: first the one with this key, because callers choose
/// keys and a key may look like an id, then the one with this id.
pub(crate) fn candidates<'a>(
    owners: &'a Arc<Owners>,
    TaskRef { namespace, name }: TaskRef<'_>,
) -> Result<Vec<(PartitionHandle<'a>, Subject)>, Problem> {
    let key = TaskKey::new(name)?;
    let by_key = owners.of_key(namespace, &key);
    let mut candidates = vec![(by_key, Subject::Key(namespace.clone(), key))];
    if let Ok(id) = name.parse::<TaskId>()
        && let Some(by_id) = owners.of(id.partition())
    {
        candidates.push((by_id, Subject::Id(namespace.clone(), id)));
    }
    Ok(candidates)
}

/// Sends a command whose reply is a task to the owner of the task that a path names.
pub(crate) async fn command_task(
    broker: &Broker,
    task: TaskRef<'_>,
    command: fn(Subject) -> Command,
) -> Result<Option<Task>, Problem> {
    for (owner, subject) in candidates(&broker.owners, task)? {
        match owner.task(command(subject)).await {
            Err(EngineError::NotFound) => {}
            Ok(found) => return Ok(Some(found)),
            Err(error) => return Err(Problem::of_task(error, task)),
        }
    }
    Ok(None)
}

/// Finds a task that has not ended.
pub(crate) async fn living(broker: &Broker, task: TaskRef<'_>) -> Result<Option<Task>, Problem> {
    command_task(broker, task, Command::Get).await
}

/// Finds a task, living or ended.
pub(crate) async fn find(broker: &Broker, task: TaskRef<'_>) -> Result<NamedTask, Problem> {
    if let Some(found) = living(broker, task).await? {
        return Ok(NamedTask::Living(found));
    }
    let ended = LastLife::find(broker, task).await?;
    ended.map(|ended| NamedTask::Ended(ended.into())).ok_or_else(|| Problem::task_unknown(task))
}

impl NamedTask {
    /// Reads the fires of the task, at most `limit` that have ended.
    pub(crate) async fn fires(
        self,
        broker: &Broker,
        namespace: &Namespace,
        limit: usize,
    ) -> Result<TaskFires, Problem> {
        let (id, task) = match self {
            Self::Living(task) => (task.id, Some(task)),
            Self::Ended(ended) => (ended.id, None),
        };
        let mut ended = broker.store.history(id.partition(), id, limit).await?;
        ended.retain(|record| record.namespace == *namespace);
        let current = task.filter(|task| !task.attempts.is_empty() || task.redrive.is_some());
        if let Some(task) = &current {
            // The record of how a redriven fire ended before.
            ended.retain(|record| record.fire_id != task.fire().id);
            ended.truncate(limit.saturating_sub(1));
        }
        Ok(TaskFires { current, ended })
    }
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
        let Some((id, record)) = found else {
            return Ok(None);
        };
        let letter = match record.end {
            FireEnd::Dead(_) => {
                let letters = broker.store.dead_letters(id.partition(), &[record.fire_id]).await?;
                letters.into_iter().flatten().next()
            }
            _ => None,
        };
        Ok(Some(Self { id, record, letter }))
    }
}

async fn last_of_key(
    broker: &Broker,
    namespace: &Namespace,
    key: TaskKey,
) -> Result<Option<(TaskId, FireRecord)>, Problem> {
    let partition = partition_of(namespace, &key, broker.owners.partitions());
    let records = broker.store.last_fires(partition, namespace, &[key]).await?;
    let record = records.into_iter().next().flatten();
    Ok(record.map(|record| (record.fire_id.task, record)))
}

async fn last_of_id(
    broker: &Broker,
    namespace: &Namespace,
    id: TaskId,
) -> Result<Option<(TaskId, FireRecord)>, Problem> {
    if broker.owners.of(id.partition()).is_none() {
        return Ok(None);
    }
    let records = broker.store.history(id.partition(), id, 1).await?;
    let record = records.into_iter().find(|record| record.namespace == *namespace);
    Ok(record.map(|record| (id, record)))
}
