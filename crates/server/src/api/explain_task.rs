//! Gathers the facts that explain a task: from its owner, the store and the topology.
//!
//! The owner answers wherever it runs. If none does right now, the task is shown as the store has
//! it, and the explanation says so. `explain` makes the sentence.

use punctual_core::{Clock as _, FireRecord, PartitionId, Schedule, Task, Timestamp};
use punctual_engine::{EngineError, LaneQuery, LaneTarget, Subject};
use punctual_store::{StoreError, TaskStore as _};

use super::find_task::{LastLife, NamedTask, TaskFires, candidates};
use crate::broker::Broker;
use crate::explain::{Facts, TaskExplanation, UpcomingFire, explain, explain_ended, next_fires};
use crate::namespace_view::ViewQuery;
use crate::problem::{Problem, TaskRef};
use crate::view_namespace::{address_of, view_owner};

/// Ended fires that an explanation shows.
const FIRES_MAX: usize = 5;

/// A task with why it is in its state.
#[derive(Debug)]
pub(crate) struct ExplainedTask {
    pub(crate) explanation: TaskExplanation,
    /// The task, as far as it is known.
    pub(crate) subject: NamedTask,
    pub(crate) partition: PartitionId,
    /// The broker that owns the partition; `None` if none is known.
    pub(crate) owner: Option<String>,
    pub(crate) epoch: Option<u32>,
    /// How often a watch was touched or edited; `None` for other tasks.
    pub(crate) touches: Option<u64>,
    pub(crate) touched_at: Option<Timestamp>,
    pub(crate) next: Vec<UpcomingFire>,
    pub(crate) fires: TaskFires,
}

/// Explains the task that a path names.
pub(crate) async fn explain_task(
    broker: &Broker,
    task: TaskRef<'_>,
) -> Result<ExplainedTask, Problem> {
    match living_or_stored(broker, task).await? {
        Some((found, answered)) => explain_living(broker, found, answered).await,
        None => {
            let ended = LastLife::find(broker, task).await?;
            explain_last_life(broker, ended.ok_or_else(|| Problem::task_unknown(task))?).await
        }
    }
}

/// Whether the owner of a task has answered for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AnswerSource {
    ByOwner,
    /// The owner does not answer; the task is as the store has it.
    ByStore,
}

async fn living_or_stored(
    broker: &Broker,
    task: TaskRef<'_>,
) -> Result<Option<(Task, AnswerSource)>, Problem> {
    for (owner, subject) in candidates(&broker.owners, task)? {
        match owner.get_at_once(subject.clone()).await {
            Ok(found) => return Ok(Some((found, AnswerSource::ByOwner))),
            Err(EngineError::NotFound) => {}
            Err(EngineError::Stopped | EngineError::Lost | EngineError::Busy) => {
                let stored = stored(broker, owner.partition(), &subject).await?;
                if let Some(found) = stored {
                    return Ok(Some((found, AnswerSource::ByStore)));
                }
            }
            Err(error) => return Err(Problem::of_task(error, task)),
        }
    }
    Ok(None)
}

/// Reads a living task from the store.
async fn stored(
    broker: &Broker,
    partition: PartitionId,
    subject: &Subject,
) -> Result<Option<Task>, StoreError> {
    let (namespace, id) = match subject {
        Subject::Id(namespace, id) => (namespace, Some(*id)),
        Subject::Key(namespace, key) => {
            let keys = std::slice::from_ref(key);
            let heads = broker.store.find(partition, namespace, keys).await?;
            (namespace, heads.into_iter().next().flatten().map(|head| head.id))
        }
    };
    let Some(id) = id else { return Ok(None) };
    let found = broker.store.get(partition, &[id]).await?.into_iter().next().flatten();
    Ok(found.filter(|task| task.definition.namespace == *namespace))
}

async fn explain_living(
    broker: &Broker,
    task: Task,
    answered: AnswerSource,
) -> Result<ExplainedTask, Problem> {
    let (partition, namespace) = (task.id.partition(), task.definition.namespace.clone());
    let view = match answered {
        AnswerSource::ByStore => None,
        AnswerSource::ByOwner => {
            let lanes = LaneQuery::Lane(LaneTarget::of(&task.definition.target));
            let partition = Some(partition);
            view_owner(broker, &ViewQuery { namespace: namespace.clone(), partition, lanes }).await
        }
    };
    let (owner, epoch) = owner_of(broker, partition);
    let now = broker.clock.now();
    let facts = Facts { task: &task, now, owner: owner.as_deref(), view: view.as_ref() };
    let explanation = explain(&facts);
    let fires = NamedTask::Living(task.clone()).fires(broker, &namespace, FIRES_MAX).await?;
    let (touches, touched_at) = touches(&task);
    let next = next_fires(&task, now);
    let subject = NamedTask::Living(task);
    Ok(ExplainedTask {
        explanation,
        subject,
        partition,
        owner,
        epoch,
        touches,
        touched_at,
        next,
        fires,
    })
}

async fn explain_last_life(broker: &Broker, ended: LastLife) -> Result<ExplainedTask, Problem> {
    let partition = ended.id.partition();
    let records = broker.store.history(partition, ended.id, FIRES_MAX).await?;
    let of_namespace = |record: &FireRecord| record.namespace == ended.record.namespace;
    let fires = records.into_iter().filter(of_namespace).collect();
    let (owner, epoch) = owner_of(broker, partition);
    Ok(ExplainedTask {
        explanation: explain_ended(&ended.record),
        subject: NamedTask::Ended(Box::new(ended)),
        partition,
        owner,
        epoch,
        touches: None,
        touched_at: None,
        next: Vec::new(),
        fires: TaskFires { current: None, ended: fires },
    })
}

fn owner_of(broker: &Broker, partition: PartitionId) -> (Option<String>, Option<u32>) {
    if let Some(epoch) = broker.owners.epoch(partition) {
        return (Some(address_of(broker)), Some(epoch.get()));
    }
    let owner = broker.owners.owner_of(partition);
    (owner.as_ref().map(|owner| owner.broker.to_string()), owner.map(|owner| owner.epoch.get()))
}

/// Each touch makes a version; the first one is that of the task when it was created.
fn touches(task: &Task) -> (Option<u64>, Option<Timestamp>) {
    if !matches!(task.definition.schedule, Schedule::Watch { .. }) {
        return (None, None);
    }
    let touches = task.version.get().saturating_sub(1);
    (Some(touches), (touches > 0).then_some(task.updated_at))
}
