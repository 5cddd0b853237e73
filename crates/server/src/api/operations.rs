//! Operations: one verb for all tasks of a namespace that match a filter.
//!
//! [`start`] walks over the tasks in the order of `fire_at`, in small steps, and sends
//! the verb to the owner of each task that was created before the operation started. Operations are
//! kept in the memory of the broker that took them (`operation_list`), and end with it;
//! [`dry_run`] only counts. `http/operations` has the routes.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use punctual_core::{Clock as _, Due, Invalid, Namespace, Task, TaskId, TaskState, Timestamp};
use punctual_engine::{Cancelled, Command, EngineError, Subject, TouchTo};
use punctual_store::{Filter, KindFilter, Position};
use serde_json::Value;
use tokio::time::interval;

use super::command_batch::{
    CommandBatch, CommandResult, expect_cancelled, expect_task, expect_touched,
};
use super::operation_list::{BulkOperation, BulkVerb, OperationState};
use super::task_pages::{StateFilter, task_page};
use crate::broker::Broker;
use crate::problem::Problem;

/// Tasks that are changed in one commit: as long as an owner may be kept from other namespaces.
const STEP: usize = 128;
/// Tasks that one operation fires, or moves within the times of its selection: it remembers each of
/// them, so that none is changed twice.
pub(crate) const REMEMBERED_MAX: usize = 100_000;
/// How often a step is tried while the store or an owner is away, and how long the pause is: as
/// long as a partition takes to find a new owner, and more.
const TRIES_MAX: u32 = 60;
const TRY_EVERY: Duration = Duration::from_secs(1);
/// Tasks that a dry run counts, and pages that it reads.
pub(crate) const COUNTED_MAX: usize = 10_000;
const COUNTED_PAGES_MAX: usize = 100;
const COUNT_PAGE: usize = 1000;
/// Tasks that a dry run shows.
pub(crate) const SAMPLE_MAX: usize = 20;

/// Which tasks an operation is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TaskSelection {
    pub(crate) state: StateFilter,
    pub(crate) kind: Option<KindFilter>,
    pub(crate) key_prefix: String,
    pub(crate) label: Option<(String, String)>,
    pub(crate) from: Timestamp,
    pub(crate) to: Timestamp,
}

impl TaskSelection {
    /// Restricts the selection to the tasks that a verb can change. Without a state, a resume is of
    /// paused tasks, and a shift or spread of scheduled ones; dead tasks are dead letters, which
    /// have verbs of their own.
    pub(crate) fn of_verb(mut self, verb: BulkVerb) -> Result<Self, Invalid> {
        match (verb, self.state) {
            (_, StateFilter::Dead) => {
                let problem = "must not be dead; redrive or delete dead letters instead";
                return Err(Invalid::new("where.state", problem));
            }
            (BulkVerb::Resume, StateFilter::Living) => self.state = StateFilter::Paused,
            (BulkVerb::Move(_), StateFilter::Living) => self.state = StateFilter::Scheduled,
            _ => {}
        }
        Ok(self)
    }

    fn filter(&self, namespace: &Namespace) -> Filter {
        Filter {
            namespace: namespace.clone(),
            state: None,
            kind: self.kind,
            key_prefix: self.key_prefix.clone(),
            label: self.label.clone(),
            from: self.from,
            to: self.to,
        }
    }
}

/// What starts an operation.
#[derive(Debug)]
pub(crate) struct NewOperation {
    pub(crate) namespace: Namespace,
    pub(crate) verb: BulkVerb,
    pub(crate) selection: TaskSelection,
    /// The filter as the caller wrote it.
    pub(crate) filter: Value,
    pub(crate) by: String,
}

/// Starts an operation on a broker.
pub(crate) fn start(
    broker: &Arc<Broker>,
    new: NewOperation,
) -> Result<Arc<BulkOperation>, Problem> {
    let NewOperation { namespace, verb, selection, filter, by } = new;
    let started_at = broker.clock.now();
    let operation = broker.operations.add(namespace, verb, filter, by, started_at)?;
    let (namespace, by, id) = (&operation.namespace, &operation.by, operation.id);
    tracing::info!(%namespace, id, verb = verb.name(), %by, "operation started");
    tokio::spawn(run(Arc::clone(broker), Arc::clone(&operation), selection));
    Ok(operation)
}

/// Runs an operation to its end, or until the broker drains.
async fn run(broker: Arc<Broker>, operation: Arc<BulkOperation>, selection: TaskSelection) {
    let mut draining = broker.draining.clone();
    let ended = tokio::select! {
        ended = walk(&broker, &operation, &selection) => ended,
        _ = draining.wait_for(|draining| *draining) => Ok(OperationState::Stopped),
    };
    let now = broker.clock.now();
    match ended {
        Ok(state) => operation.end(state, None, now),
        Err(problem) => {
            operation.end(OperationState::Failed, Some(problem.detail().to_owned()), now);
        }
    }
}

/// Walks over the tasks, forward only, and changes them step by step.
async fn walk(
    broker: &Arc<Broker>,
    operation: &BulkOperation,
    selection: &TaskSelection,
) -> Result<OperationState, Problem> {
    let filter = selection.filter(&operation.namespace);
    let mut after = Some(Position::before(filter.from));
    let mut remembered = HashSet::new();
    let mut pauses = interval(TRY_EVERY);
    let mut tries = 0;
    while after.is_some() {
        if operation.is_stopping() {
            return Ok(OperationState::Stopped);
        }
        let page = {
            // A permit for each step: other lists of the namespace have their turn between two.
            let permit = broker.limits.reads.acquire(&operation.namespace).await;
            match permit {
                Ok(_permit) => {
                    task_page(broker, selection.state, filter.clone(), after, STEP).await
                }
                Err(problem) => Err(problem),
            }
        };
        let page = match page {
            Ok(page) => page,
            Err(problem) if tries >= TRIES_MAX => return Err(problem),
            Err(_) => {
                tries += 1;
                pauses.reset();
                pauses.tick().await;
                continue;
            }
        };
        tries = 0;
        let tasks: Vec<TaskToChange> = page
            .items
            .iter()
            .filter(|task| is_included(task, operation.started_at))
            .filter(|task| !remembered.contains(&task.id))
            .map(|task| TaskToChange { id: task.id, fire_at: task.fire_at })
            .collect();
        operation.update(|progress| progress.matched += tasks.len() as u64);
        // These may be found again: a fire and a move put a task at a later place.
        let again = tasks.iter().filter(|task| match operation.verb {
            BulkVerb::Move(to) => to.time(task.id, task.fire_at) < filter.to,
            verb => verb == BulkVerb::Fire,
        });
        remembered.extend(again.map(|task| task.id));
        if remembered.len() > REMEMBERED_MAX {
            return Err(Problem::too_many("tasks to fire or to move", REMEMBERED_MAX));
        }
        change(broker, operation, tasks).await;
        after = page.next;
    }
    Ok(OperationState::Done)
}

/// Whether a task existed when the operation started.
fn is_included(task: &Task, started_at: Timestamp) -> bool {
    task.created_at < started_at && task.state != TaskState::Dead
}

/// A task that an operation changes.
#[derive(Debug, Clone, Copy)]
struct TaskToChange {
    id: TaskId,
    /// When it was due when it was found.
    fire_at: Timestamp,
}

/// Sends the verb to the owners of some tasks, again to those that are away for a moment.
async fn change(broker: &Broker, operation: &BulkOperation, mut tasks: Vec<TaskToChange>) {
    let mut pauses = interval(TRY_EVERY);
    for _ in 0..TRIES_MAX {
        let mut batch = CommandBatch::default();
        for task in &tasks {
            let subject = Subject::Id(operation.namespace.clone(), task.id);
            batch.push(task.id.partition(), command(operation.verb, subject, *task));
        }
        let results = batch.run(&broker.owners).await;
        let mut again = Vec::new();
        operation.update(|progress| {
            for (task, result) in tasks.iter().zip(results) {
                match change_of(operation.verb, result) {
                    ChangeResult::Changed => progress.changed += 1,
                    ChangeResult::Unchanged => {}
                    ChangeResult::Failed => progress.failed += 1,
                    ChangeResult::Again => again.push(*task),
                }
            }
        });
        tasks = again;
        if tasks.is_empty() || operation.is_stopping() {
            break;
        }
        pauses.reset();
        pauses.tick().await;
    }
    operation.update(|progress| progress.failed += tasks.len() as u64);
}

fn command(verb: BulkVerb, subject: Subject, task: TaskToChange) -> Command {
    match verb {
        BulkVerb::Cancel => Command::Cancel(subject),
        BulkVerb::Pause => Command::Pause(subject),
        BulkVerb::Resume => Command::Resume(subject),
        BulkVerb::Fire => Command::Fire(subject),
        BulkVerb::Move(to) => {
            Command::Touch(subject, TouchTo::To(Due::At(to.time(task.id, task.fire_at))))
        }
    }
}

/// What became of one task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ChangeResult {
    Changed,
    /// It has ended meanwhile.
    Unchanged,
    Failed,
    /// Nothing was done, and it may be tried again.
    Again,
}

fn change_of(verb: BulkVerb, result: CommandResult) -> ChangeResult {
    let result = result.and_then(|reply| match verb {
        BulkVerb::Cancel => expect_cancelled(reply).map(Some),
        BulkVerb::Move(_) => expect_touched(&reply).map(|_| None),
        _ => expect_task(reply).map(|_| None),
    });
    match result {
        // The attempt in flight is the last one.
        Ok(None | Some(Cancelled::Cancelled | Cancelled::Firing(_))) => ChangeResult::Changed,
        Ok(Some(Cancelled::AlreadyFired(_))) | Err(EngineError::NotFound) => {
            ChangeResult::Unchanged
        }
        Err(EngineError::Stopped | EngineError::Busy | EngineError::StoreUnavailable) => {
            ChangeResult::Again
        }
        Err(_) => ChangeResult::Failed,
    }
}

/// What an operation would change.
#[derive(Debug)]
pub(crate) struct DryRun {
    pub(crate) matched: usize,
    /// Whether no further task matches.
    pub(crate) exact: bool,
    /// The first tasks.
    pub(crate) sample: Vec<Task>,
}

/// Counts the tasks that match, up to [`COUNTED_MAX`].
pub(crate) async fn dry_run(
    broker: &Broker,
    namespace: &Namespace,
    selection: &TaskSelection,
) -> Result<DryRun, Problem> {
    let started_at = broker.clock.now();
    let filter = selection.filter(namespace);
    let mut after = Some(Position::before(filter.from));
    let mut found = DryRun { matched: 0, exact: true, sample: Vec::new() };
    for _ in 0..COUNTED_PAGES_MAX {
        let _permit = broker.limits.reads.acquire(namespace).await?;
        let page = task_page(broker, selection.state, filter.clone(), after, COUNT_PAGE).await?;
        let tasks = page.items.into_iter().filter(|task| is_included(task, started_at));
        for task in tasks {
            found.matched += 1;
            if found.sample.len() < SAMPLE_MAX {
                found.sample.push(task);
            }
        }
        after = page.next;
        if after.is_none() || found.matched >= COUNTED_MAX {
            break;
        }
    }
    found.exact = after.is_none();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use punctual_core::{AttemptNo, Version};
    use punctual_engine::Reply;

    use super::*;
    use crate::api::operation_list::TaskMove;

    const SHIFT: BulkVerb = BulkVerb::Move(TaskMove::Shift(Duration::from_secs(1)));

    #[test]
    fn a_reply_says_what_became_of_a_task() {
        use ChangeResult::{Again, Changed, Failed, Unchanged};
        let cancelled = |it| Ok(Reply::Cancelled(it));
        for (verb, result, want) in [
            (BulkVerb::Cancel, cancelled(Cancelled::Cancelled), Changed),
            (BulkVerb::Cancel, cancelled(Cancelled::Firing(AttemptNo::FIRST)), Changed),
            (BulkVerb::Cancel, cancelled(Cancelled::AlreadyFired(Timestamp::EPOCH)), Unchanged),
            (BulkVerb::Pause, Err(EngineError::NotFound), Unchanged),
            (BulkVerb::Pause, Err(EngineError::Busy), Again),
            (BulkVerb::Pause, Err(EngineError::Stopped), Again),
            (BulkVerb::Fire, Err(EngineError::Paused), Failed),
            (BulkVerb::Fire, Err(EngineError::Lost), Failed),
            (BulkVerb::Fire, Ok(Reply::Bound), Failed),
            (
                SHIFT,
                Ok(Reply::Touched { fire_at: Timestamp::EPOCH, version: Version::FIRST }),
                Changed,
            ),
            (SHIFT, Err(EngineError::NotTouchable), Failed),
        ] {
            assert_eq!(change_of(verb, result.clone()), want, "{verb:?} {result:?}");
        }
    }

    #[test]
    fn a_verb_restricts_the_states_that_it_can_change() {
        use StateFilter::{Dead, Living, Paused, Scheduled};
        for (verb, state, want) in [
            (BulkVerb::Cancel, Living, Some(Living)),
            (BulkVerb::Cancel, Dead, None),
            (BulkVerb::Resume, Living, Some(Paused)),
            (BulkVerb::Resume, Paused, Some(Paused)),
            (BulkVerb::Resume, Scheduled, Some(Scheduled)),
            (BulkVerb::Fire, Scheduled, Some(Scheduled)),
            (SHIFT, Living, Some(Scheduled)),
            (SHIFT, Paused, Some(Paused)),
        ] {
            let selection = TaskSelection {
                state,
                kind: None,
                key_prefix: String::new(),
                label: None,
                from: Timestamp::EPOCH,
                to: Timestamp::MAX,
            };
            let state = selection.of_verb(verb).ok().map(|selection| selection.state);
            assert_eq!(state, want, "{verb:?}");
        }
    }
}
