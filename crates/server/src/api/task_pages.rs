//! Reads pages of tasks and dead letters from all partitions, for HTTP and gRPC.
//!
//! Pages come from the store, in the order of `fire_at` or of fire ids. Whether a due task is
//! firing is known only to its owner, so the owners of due tasks are called.

use std::sync::Arc;

use punctual_core::{
    Clock as _, DeadLetter, FireId, Invalid, Namespace, Task, TaskKind, TaskState, Timestamp,
};
use punctual_engine::{Command, EngineError, Subject};
use punctual_store::{Filter, KindFilter, Page, Position, TaskStore as _};

use super::command_batch::{CommandBatch, expect_task};
use super::merge_pages::{SortBy, merge};
use crate::broker::Broker;
use crate::fire_form::attempts_weight;
use crate::problem::Problem;

/// The states that a list can be restricted to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StateFilter {
    /// Every task that has not ended.
    Living,
    Scheduled,
    Firing,
    Paused,
    Done,
    Dead,
}

/// The kinds of schedules that a list can be restricted to.
pub(crate) const KINDS: [(&str, KindFilter); 5] = [
    ("once", KindFilter::Only(TaskKind::Once)),
    ("cron", KindFilter::Only(TaskKind::Cron)),
    ("every", KindFilter::Only(TaskKind::Every)),
    ("watch", KindFilter::Only(TaskKind::Watch)),
    // Cron and every.
    ("recurring", KindFilter::Series),
];

/// The filter of a kind of schedule.
pub(crate) fn kind_filter(kind: &str) -> Result<KindFilter, Invalid> {
    let found = KINDS.into_iter().find(|(name, _)| *name == kind);
    found.map(|(_, filter)| filter).ok_or_else(|| {
        Invalid::new("kind", format!("must be one of {}", KINDS.map(|(name, _)| name).join(", ")))
    })
}

/// Returns a page of living tasks in their current states. With [`StateFilter::Dead`] only watches
/// are found; every other dead task is a dead letter.
pub(crate) async fn task_page(
    broker: &Broker,
    state: StateFilter,
    mut filter: Filter,
    after: Option<Position>,
    limit: usize,
) -> Result<Page<Task, Position>, Problem> {
    let now = broker.clock.now();
    filter.state = match state {
        StateFilter::Living => None,
        // The store does not know which scheduled tasks are firing.
        StateFilter::Scheduled | StateFilter::Firing => Some(TaskState::Scheduled),
        StateFilter::Paused => Some(TaskState::Paused),
        StateFilter::Done => Some(TaskState::Done),
        StateFilter::Dead => Some(TaskState::Dead),
    };
    if state == StateFilter::Firing {
        // No task fires before it is due.
        filter.to = filter.to.min(now.after(std::time::Duration::from_millis(1)));
    }
    let Page { items, next } = read_tasks(broker, &filter, after, limit).await?;
    let mut items = with_current_states(broker, &filter.namespace, items, now).await?;
    match state {
        StateFilter::Scheduled => items.retain(|task| task.state == TaskState::Scheduled),
        StateFilter::Firing => items.retain(|task| task.state == TaskState::Firing),
        _ => {}
    }
    Ok(Page { items, next })
}

async fn read_tasks(
    broker: &Broker,
    filter: &Filter,
    after: Option<Position>,
    limit: usize,
) -> Result<Page<Task, Position>, Problem> {
    let sort_by = SortBy { position: Position::of, weight: task_weight, join: None };
    let fetch = |partition, after: Option<Position>, limit| {
        let (store, filter) = (Arc::clone(&broker.store), filter.clone());
        let after = after.unwrap_or(Position::START);
        async move { store.list(partition, &filter, after, limit).await }
    };
    Ok(merge(broker.owners.partitions(), after, limit, &sort_by, fetch).await?)
}

/// Selects dead letters by the group that they belong to. A letter matches if every part that is
/// set is equal.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct LetterFilter {
    pub(crate) reason: Option<String>,
    pub(crate) target: Option<String>,
}

impl LetterFilter {
    fn matches(&self, letter: &DeadLetter) -> bool {
        if *self == Self::default() {
            return true;
        }
        let group = letter.group();
        self.reason.as_ref().is_none_or(|reason| *reason == group.reason)
            && self.target.as_ref().is_none_or(|target| *target == group.target)
    }
}

/// Returns a page of the dead letters of a namespace that match. If few match, a page may be short
/// or empty and still have a next one.
pub(crate) async fn dead_letter_page(
    broker: &Broker,
    namespace: &Namespace,
    filter: &LetterFilter,
    after: Option<FireId>,
    limit: usize,
) -> Result<Page<DeadLetter, FireId>, Problem> {
    let weight =
        |letter: &DeadLetter| task_weight(&letter.task) + attempts_weight(&letter.task.attempts);
    let sort_by = SortBy { position: DeadLetter::fire_id, weight, join: None };
    let fetch = |partition, after, limit| {
        let (store, namespace) = (Arc::clone(&broker.store), namespace.clone());
        let filter = filter.clone();
        async move {
            let mut page = store.dead(partition, &namespace, after, limit).await?;
            page.items.retain(|letter| filter.matches(letter));
            Ok(page)
        }
    };
    Ok(merge(broker.owners.partitions(), after, limit, &sort_by, fetch).await?)
}

/// About how many bytes a task takes in a response.
fn task_weight(task: &Task) -> usize {
    let payload = task.definition.payload.bytes().len();
    // Base64 adds a third.
    payload + payload / 2 + 1024
}

/// Asks the owners of due tasks for their states, and drops tasks that have ended since they were
/// read.
async fn with_current_states(
    broker: &Broker,
    namespace: &Namespace,
    mut tasks: Vec<Task>,
    now: Timestamp,
) -> Result<Vec<Task>, Problem> {
    let is_due = |task: &Task| task.state == TaskState::Scheduled && task.fire_at <= now;
    let mut batch = CommandBatch::default();
    for task in tasks.iter().filter(|task| is_due(task)) {
        let subject = Subject::Id(namespace.clone(), task.id);
        batch.push(task.id.partition(), Command::Get(subject));
    }
    let mut ended = Vec::new();
    let results = batch.run(&broker.owners).await;
    for (task, result) in tasks.iter_mut().filter(|task| is_due(task)).zip(results) {
        match result.and_then(expect_task) {
            // Only the state changes: the page is ordered by what was read.
            Ok(current) => task.state = current.state,
            // A task that was damaged since is left out like one that was damaged before.
            Err(EngineError::NotFound | EngineError::Damaged(_)) => ended.push(task.id),
            Err(error) => return Err(error.into()),
        }
    }
    tasks.retain(|task| !ended.contains(&task.id));
    Ok(tasks)
}
