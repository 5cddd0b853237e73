//! Idempotency: what was created under which idempotency key, so that repeating a call creates
//! nothing.
//!
//! A receipt is itself a task. It is stored in the same batch as the task it is about, under a key
//! made of the idempotency key, in a namespace that callers cannot name. It is due when the key is
//! forgotten and ends then without being sent, so stores need no support for it.
//!
//! A task with a key is in the partition of that key, and so is its receipt. In that case the
//! idempotency key is first bound to the definition in its own partition, so that using the same
//! idempotency key for a task with another key is detected.

use std::collections::BTreeMap;
use std::sync::Arc;

use punctual_core::{
    Due, IDEMPOTENCY_KEPT, Labels, Namespace, NewTask, Queue, Schedule, Target, Task, TaskId,
    Timestamp, Version,
};

use crate::commit::decision::Decision;
use crate::handle::call::Requester;
use crate::handle::command::{Receipt, ScheduleCommand};
use crate::handle::error::EngineError;
use crate::handle::reply::{Reply, Scheduled};
use crate::owner::Owner;

const DIGEST: &str = "digest";
const TASK: &str = "task";
const VERSION: &str = "version";

/// Creates the receipt of a task, kept until the time of `id`.
pub(super) fn receipt(id: TaskId, given: &Receipt, task: &Task) -> Task {
    let about = [
        (TASK.to_owned(), task.id.to_string()),
        (VERSION.to_owned(), task.version.get().to_string()),
    ];
    stored_under_key(id, &task.definition.namespace, given, about, task.created_at)
}

/// Creates the task that remembers an idempotency key until the time of `id`.
fn stored_under_key(
    id: TaskId,
    namespace: &Namespace,
    given: &Receipt,
    about: impl IntoIterator<Item = (String, String)>,
    now: Timestamp,
) -> Task {
    let due = Schedule::Once(Due::At(id.due()));
    let unused = Target::Queue(Queue::new("receipts").expect("a valid name"));
    let mut labels = BTreeMap::from([(DIGEST.to_owned(), given.digest.clone())]);
    labels.extend(about);
    let definition = NewTask {
        key: Some(given.key.clone()),
        labels: Labels::new(labels).expect("a few short labels"),
        ..NewTask::new(namespace.of_receipts(), due, unused)
    };
    Task::new(id, Arc::new(definition), now, Version::FIRST)
}

impl Owner {
    /// Binds an idempotency key to a definition, unless it is bound to another. `bound` is what the
    /// store has under the key.
    pub(crate) fn bind(
        &mut self,
        namespace: &Namespace,
        given: &Receipt,
        requester: Requester,
        bound: Option<&Task>,
        now: Timestamp,
    ) {
        if let Some(bound) = bound {
            let same = bound.definition.labels.get(DIGEST) == Some(&given.digest);
            let reply = if same { Ok(Reply::Bound) } else { Err(EngineError::IdempotencyConflict) };
            return self.answer(requester, reply);
        }
        let Some(id) = self.tenure.next_id(now.after(IDEMPOTENCY_KEPT)) else {
            return self.stop_out_of_ids();
        };
        let binding = stored_under_key(id, namespace, given, [], now);
        let mut decision = Decision::answering(requester);
        decision.put(binding);
        decision.replies(Reply::Bound);
        self.write(decision);
    }
}

/// Returns the reply that was given when the task was created, if the definition is the same.
/// Otherwise the key was used for another task.
pub(super) fn recall(
    command: &ScheduleCommand,
    given: &Receipt,
    stored: &Task,
) -> Result<Scheduled, EngineError> {
    let label = |name| stored.definition.labels.get(name);
    if label(DIGEST) != Some(&given.digest) {
        return Err(EngineError::IdempotencyConflict);
    }
    let id: Option<TaskId> = label(TASK).and_then(|id| id.parse().ok());
    let version = label(VERSION).and_then(|version| version.parse().ok()).map(Version::new);
    let (Some(id), Some(version)) = (id, version) else {
        return Err(EngineError::IdempotencyConflict);
    };
    let task = Task::new(id, Arc::clone(&command.new_task), stored.created_at, version);
    Ok(Scheduled::Created(command.start.begin(task)))
}
