//! Listing tasks: `GET /v1/{namespace}/tasks`, and the pages that gRPC lists.
//!
//! In: a filter and a cursor. Out: a page of tasks of all partitions in the order of `fire_at`, and where to go on. Tasks are read from
//! the store; of those whose time has come their owners are asked whether they are firing, which only owners know.

use std::sync::Arc;

use axum::extract::State;
use punctual_core::{Clock as _, DeadLetter, FireId, Namespace, Task, TaskState, Timestamp};
use punctual_engine::{Command, EngineError, Reply, Subject};
use punctual_store::{Filter, Page, Position, TaskStore as _};
use serde::Serialize;
use utoipa::ToSchema;

use super::answer::{self, Answer};
use super::calls::Calls;
use super::cursor;
use super::error::Problem;
use super::merge::{Order, merge};
use super::request::{Asked, In};
use super::task::{TaskAnswer, instant};
use crate::broker::Broker;

/// Entries of a page unless the caller says.
pub(crate) const PAGE_DEFAULT: usize = 100;
/// Entries of a page at most.
pub(crate) const PAGE_MAX: usize = 1000;

/// A page of tasks.
#[derive(Debug, Serialize, ToSchema)]
struct Tasks<'a> {
    tasks: Vec<TaskAnswer<'a>>,
    /// Where to go on; `null` when there is no more. A page may be short, even empty, and still have a next one.
    next: Option<String>,
}

/// What a caller wants to see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wanted {
    Living,
    Scheduled,
    Firing,
    Paused,
    Done,
    Dead,
}

/// Lists tasks in the order of `fire_at`.
#[utoipa::path(
    get, path = "/v1/{namespace}/tasks", tag = "tasks",
    params(
        ("state" = Option<String>, Query, description = "scheduled, firing, paused, done (watches that have fired) or dead; all that live unless given"),
        ("key_prefix" = Option<String>, Query, description = "the beginning of the key"),
        ("label" = Option<String>, Query, description = "name:value or name=value"),
        ("from" = Option<String>, Query, description = "due at this time or later"),
        ("to" = Option<String>, Query, description = "due before this time"),
        ("limit" = Option<u32>, Query, description = "1 to 1000; 100 unless given"),
        ("cursor" = Option<String>, Query, description = "the `next` of the page before"),
    ),
    responses((status = 200, description = "a page", body = Tasks))
)]
pub(crate) async fn list(
    State(broker): State<Arc<Broker>>,
    In(namespace): In,
    mut asked: Asked,
) -> Answer {
    let wanted = wanted(asked.take("state")?.as_deref())?;
    let filter = filter(&namespace, &mut asked)?;
    let limit = asked.count("limit", PAGE_DEFAULT, PAGE_MAX)?;
    let cursor = asked.take("cursor")?;
    asked.end()?;
    if wanted == Wanted::Dead {
        return list_dead(&broker, filter, limit, cursor.as_deref()).await;
    }
    let after = cursor::position(cursor.as_deref())?;
    let Page { items, next } = page(&broker, wanted, filter, after, limit).await?;
    let tasks = items.iter().map(TaskAnswer::of).collect();
    answer::ok(&Tasks { tasks, next: next.map(cursor::of_position) })
}

/// A page of living tasks as they stand. Of those that are dead only watches live on; the others are with the dead letters.
pub(crate) async fn page(
    broker: &Broker,
    wanted: Wanted,
    mut filter: Filter,
    after: Option<Position>,
    limit: usize,
) -> Result<Page<Task, Position>, Problem> {
    let now = broker.clock.now();
    filter.state = match wanted {
        Wanted::Living => None,
        // Of these the store knows only that they are not over.
        Wanted::Scheduled | Wanted::Firing => Some(TaskState::Scheduled),
        Wanted::Paused => Some(TaskState::Paused),
        Wanted::Done => Some(TaskState::Done),
        Wanted::Dead => Some(TaskState::Dead),
    };
    if wanted == Wanted::Firing {
        // Nothing fires before its time.
        filter.to = filter.to.min(now.after(std::time::Duration::from_millis(1)));
    }
    let Page { items, next } = read(broker, &filter, after, limit).await?;
    let mut items = as_they_stand(broker, &filter.namespace, items, now).await?;
    match wanted {
        Wanted::Scheduled => items.retain(|task| task.state == TaskState::Scheduled),
        Wanted::Firing => items.retain(|task| task.state == TaskState::Firing),
        _ => {}
    }
    Ok(Page { items, next })
}

async fn list_dead(broker: &Broker, filter: Filter, limit: usize, cursor: Option<&str>) -> Answer {
    let after = cursor::letter(cursor)?;
    let Page { items, next } = read_dead(broker, &filter.namespace, after, limit).await?;
    let letters = items.iter().filter(|letter| filter.matches(&letter.task));
    let tasks = letters.map(|letter| TaskAnswer::in_state(&letter.task, TaskState::Dead));
    answer::ok(&Tasks { tasks: tasks.collect(), next: next.map(cursor::of_letter) })
}

/// A page of living tasks of all partitions.
async fn read(
    broker: &Broker,
    filter: &Filter,
    after: Option<Position>,
    limit: usize,
) -> Result<Page<Task, Position>, Problem> {
    let order = Order { place: Position::of, weight };
    let fetch = |partition, after: Option<Position>, limit| {
        let (store, filter) = (Arc::clone(&broker.store), filter.clone());
        let after = after.unwrap_or(Position::START);
        async move { store.list(partition, &filter, after, limit).await }
    };
    Ok(merge(broker.owners.partitions(), after, limit, &order, fetch).await?)
}

/// A page of dead letters of all partitions.
pub(super) async fn read_dead(
    broker: &Broker,
    namespace: &Namespace,
    after: Option<FireId>,
    limit: usize,
) -> Result<Page<DeadLetter, FireId>, Problem> {
    let weight = |letter: &DeadLetter| weight(&letter.task);
    let order = Order { place: DeadLetter::fire_id, weight };
    let fetch = |partition, after, limit| {
        let (store, namespace) = (Arc::clone(&broker.store), namespace.clone());
        async move { store.dead(partition, &namespace, after, limit).await }
    };
    Ok(merge(broker.owners.partitions(), after, limit, &order, fetch).await?)
}

/// About what a task takes in an answer.
fn weight(task: &Task) -> usize {
    let payload = task.definition.payload.bytes().len();
    // In base64 it grows by a third.
    payload + payload / 2 + 1024
}

/// Tasks with what only their owners know: whether they are firing, or have ended since they were read.
async fn as_they_stand(
    broker: &Broker,
    namespace: &Namespace,
    mut tasks: Vec<Task>,
    now: Timestamp,
) -> Result<Vec<Task>, Problem> {
    let is_due = |task: &Task| task.state == TaskState::Scheduled && task.fire_at <= now;
    let mut calls = Calls::default();
    for task in tasks.iter().filter(|task| is_due(task)) {
        let subject = Subject::Id(namespace.clone(), task.id);
        calls.push(task.id.partition(), Command::Get(subject));
    }
    let mut ended = Vec::new();
    let told = calls.ask(&broker.owners).await;
    for (task, told) in tasks.iter_mut().filter(|task| is_due(task)).zip(told) {
        match told {
            // Its place in the page is where it was read.
            Ok(Reply::Task(now)) => task.state = now.state,
            Ok(told) => unreachable!("another command's answer: {told:?}"),
            Err(EngineError::NotFound) => ended.push(task.id),
            Err(error) => return Err(error.into()),
        }
    }
    tasks.retain(|task| !ended.contains(&task.id));
    Ok(tasks)
}

fn wanted(state: Option<&str>) -> Result<Wanted, Problem> {
    match state {
        None => Ok(Wanted::Living),
        Some("scheduled") => Ok(Wanted::Scheduled),
        Some("firing") => Ok(Wanted::Firing),
        Some("paused") => Ok(Wanted::Paused),
        // Watches that have fired and were not touched since: all others that are done are gone.
        Some("done") => Ok(Wanted::Done),
        Some("dead") => Ok(Wanted::Dead),
        Some("cancelled") => {
            let problem = "tasks that are cancelled are not listed: see \
                           /v1/{namespace}/tasks/{id} and …/fires for one, /v1/{namespace}/stats for how many";
            Err(punctual_core::Invalid::new("state", problem).into())
        }
        Some(_) => {
            let detail = "state must be scheduled, firing, paused, done or dead".to_owned();
            Err(Problem::request(detail, Some("state".to_owned())))
        }
    }
}

fn filter(namespace: &Namespace, asked: &mut Asked) -> Result<Filter, Problem> {
    let mut filter = Filter::all(namespace.clone());
    if let Some(prefix) = asked.take("key_prefix")? {
        filter.key_prefix = prefix;
    }
    if let Some(label) = asked.take("label")? {
        // No name has either, and a value may have both: the first one ends the name.
        let (name, value) = label.split_once([':', '=']).ok_or_else(|| {
            let detail = "label must be name:value or name=value".to_owned();
            Problem::request(detail, Some("label".to_owned()))
        })?;
        filter.label = Some((name.to_owned(), value.to_owned()));
    }
    if let Some(from) = asked.take("from")? {
        filter.from = instant("from", &from)?;
    }
    if let Some(to) = asked.take("to")? {
        filter.to = instant("to", &to)?;
    }
    Ok(filter)
}
