//! Receipts: what was created under which idempotency key, so that asking again creates nothing.
//!
//! A receipt is a task of Punctual's own, put in the same batch as the task that it is about, under a name made of the idempotency
//! key, in a namespace that no caller can name. It is due when nobody asks again any more, and ends then without being sent. So the
//! store needs to know nothing of it, and it is forgotten in time.
//!
//! A named task lives where its own name leads, and so does its receipt. What the idempotency key stands for is then written down
//! beforehand where that key leads (a binding), so that the same key for a task of another name is noticed.

use std::collections::BTreeMap;
use std::sync::Arc;

use punctual_core::{
    Due, IDEMPOTENCY_KEPT, Labels, Namespace, NewTask, Queue, Schedule, Target, Task, TaskId,
    Timestamp, Version,
};
use punctual_store::{Change, StoreError};

use crate::commit::writer::{Decision, Effect};
use crate::handle::command::{Asked, EngineError, Receipt, Reply, Scheduled};
use crate::owner::Owner;

const DIGEST: &str = "digest";
const TASK: &str = "task";
const VERSION: &str = "version";

/// The receipt of a task, due at the time that its id says.
pub(crate) fn receipt(id: TaskId, ours: &Receipt, task: &Task) -> Task {
    let about = [
        (TASK.to_owned(), task.id.to_string()),
        (VERSION.to_owned(), task.version.get().to_string()),
    ];
    kept(id, &task.definition.namespace, ours, about, task.created_at)
}

/// What is kept under an idempotency key, until the time that its id says.
fn kept(
    id: TaskId,
    namespace: &Namespace,
    ours: &Receipt,
    about: impl IntoIterator<Item = (String, String)>,
    now: Timestamp,
) -> Task {
    let due = Schedule::Once(Due::At(id.due()));
    let nowhere = Target::Queue(Queue::new("receipts").expect("a valid name"));
    let mut labels = BTreeMap::from([(DIGEST.to_owned(), ours.digest.clone())]);
    labels.extend(about);
    let definition = NewTask {
        key: Some(ours.key.clone()),
        labels: Labels::new(labels).expect("a few short labels"),
        ..NewTask::new(namespace.of_receipts(), due, nowhere)
    };
    Task::new(id, Arc::new(definition), now, Version::FIRST)
}

impl Owner {
    /// Lets an idempotency key stand for what was sent under it, unless it stands for something else.
    pub(crate) fn bind(
        &mut self,
        namespace: &Namespace,
        ours: &Receipt,
        asked: Asked,
        bound: Option<&Task>,
        now: Timestamp,
    ) {
        if let Some(bound) = bound {
            let same = bound.definition.labels.get(DIGEST) == Some(&ours.digest);
            return self
                .answer(asked, if same { Ok(Reply::Bound) } else { Err(EngineError::OtherOrder) });
        }
        let Some(id) = self.next_id(now.after(IDEMPOTENCY_KEPT)) else {
            return self.stop(StoreError::Broken("the epoch has no sequence left".to_owned()));
        };
        let binding = kept(id, namespace, ours, [], now);
        let mut decision = Decision::answering(asked);
        decision.change(Change::Put(binding.clone()));
        decision.effects.push(Effect::file(binding));
        decision.answers(Reply::Bound);
        self.write(decision);
    }
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
