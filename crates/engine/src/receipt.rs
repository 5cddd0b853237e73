//! Receipts: what was created under which idempotency key, so that asking again creates nothing.
//!
//! A receipt is a task of Punctual's own, put in the same batch as the task that it is about, under a name made of the idempotency
//! key, in a namespace that no caller can name. It is due when nobody asks again any more, and ends then without being sent. So the
//! store needs to know nothing of it, and it is forgotten in time.

use std::collections::BTreeMap;
use std::sync::Arc;

use punctual_core::{Due, Labels, NewTask, Queue, Schedule, Target, Task, TaskId, Version};

use crate::command::{EngineError, Receipt, Scheduled};

const DIGEST: &str = "digest";
const TASK: &str = "task";
const VERSION: &str = "version";

/// The receipt of a task, due at the time that its id says.
pub(crate) fn receipt(id: TaskId, ours: &Receipt, task: &Task) -> Task {
    let namespace = task.definition.namespace.of_receipts();
    let due = Schedule::Once(Due::At(id.due()));
    let nowhere = Target::Queue(Queue::new("receipts").expect("a valid name"));
    let labels = BTreeMap::from([
        (DIGEST.to_owned(), ours.digest.clone()),
        (TASK.to_owned(), task.id.to_string()),
        (VERSION.to_owned(), task.version.get().to_string()),
    ]);
    let definition = NewTask {
        key: Some(ours.key.clone()),
        labels: Labels::new(labels).expect("three short labels"),
        ..NewTask::new(namespace, due, nowhere)
    };
    Task::new(id, Arc::new(definition), task.created_at, Version::FIRST)
}

/// What was answered when the task was created, if it was the same; otherwise the key was used for another one.
pub(crate) fn recall(
    new_task: &Arc<NewTask>,
    ours: &Receipt,
    kept: &Task,
) -> Result<Scheduled, EngineError> {
    let label = |name| kept.definition.labels.get(name);
    if label(DIGEST) != Some(&ours.digest) {
        return Err(EngineError::OtherOrder);
    }
    let id: Option<TaskId> = label(TASK).and_then(|id| id.parse().ok());
    let version = label(VERSION).and_then(|version| version.parse().ok()).map(Version::new);
    let (Some(id), Some(version)) = (id, version) else {
        return Err(EngineError::OtherOrder);
    };
    Ok(Scheduled::Created(Task::new(id, Arc::clone(new_task), kept.created_at, version)))
}
