//! `GET /v1/{namespace}/tasks`: lists tasks in the order of `fire_at`.
//!
//! The pages themselves are read by `api/task_pages`.

use std::sync::Arc;

use axum::extract::State;
use punctual_core::{Invalid, Namespace, TaskState};
use punctual_store::{Filter, Page};
use serde::Serialize;
use utoipa::ToSchema;

use crate::api::http::page_cursor;
use crate::api::http::request::{PathNamespace, QueryParams};
use crate::api::http::response::{self, ApiResult};
use crate::api::task_pages::{StateFilter, dead_letter_page, task_page};
use crate::broker::Broker;
use crate::problem::Problem;
use crate::shares::SharePermit;
use crate::task_form::{TaskAnswer, parse_time_field};

/// Entries of a page by default.
pub(crate) const PAGE_DEFAULT: usize = 100;
/// Entries of a page at most.
pub(crate) const PAGE_MAX: usize = 1000;

/// A page of tasks.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Tasks)]
struct TaskListAnswer<'a> {
    /// In the order of `fire_at`.
    tasks: Vec<TaskAnswer<'a>>,
    /// The cursor of the next page; `null` on the last page. A page may be short or empty and
    /// still have a next one.
    next: Option<String>,
}

/// List tasks
///
/// Lists the tasks of a namespace that have not ended, in the order of `fire_at`. With
/// `state=dead` it lists the tasks of dead letters, in the order of their fire ids.
#[utoipa::path(
    get, path = "/v1/{namespace}/tasks", tag = "tasks",
    params(
        ("state" = Option<String>, Query, description =
            "`scheduled`, `firing`, `paused`, `done` (watches that have fired) or `dead`. \
             Default: every task that has not ended."),
        ("key_prefix" = Option<String>, Query, description =
            "Only tasks whose key begins with this text."),
        ("label" = Option<String>, Query, description =
            "Only tasks with this label: `name:value` or `name=value`."),
        ("from" = Option<String>, Query, description =
            "Only tasks due at this time or later: RFC 3339, or milliseconds since 1970."),
        ("to" = Option<String>, Query, description =
            "Only tasks due before this time: RFC 3339, or milliseconds since 1970."),
        ("limit" = Option<u32>, Query, description =
            "Tasks per page: 1 to 1000. Default: 100."),
        ("cursor" = Option<String>, Query, description = "The `next` of the previous page."),
    ),
    responses((status = 200, description = "A page of tasks.", body = TaskListAnswer))
)]
pub(crate) async fn list(
    State(broker): State<Arc<Broker>>,
    PathNamespace(namespace): PathNamespace,
    mut params: QueryParams,
) -> ApiResult {
    let state = state_filter(params.take("state")?.as_deref())?;
    let filter = filter(&namespace, &mut params)?;
    let limit = params.count("limit", PAGE_DEFAULT, PAGE_MAX)?;
    let cursor = params.take("cursor")?;
    params.end()?;
    let permit = broker.limits.reads.acquire(&namespace).await?;
    if state == StateFilter::Dead {
        return list_dead(&broker, filter, limit, cursor.as_deref(), permit).await;
    }
    let after = page_cursor::task_position(cursor.as_deref())?;
    let Page { items, next } = task_page(&broker, state, filter, after, limit).await?;
    let tasks = items.iter().map(TaskAnswer::of).collect();
    response::page(&TaskListAnswer { tasks, next: next.map(page_cursor::after_task) }, permit)
}

async fn list_dead(
    broker: &Broker,
    filter: Filter,
    limit: usize,
    cursor: Option<&str>,
    permit: SharePermit,
) -> ApiResult {
    let after = page_cursor::dead_letter(cursor)?;
    let Page { items, next } = dead_letter_page(broker, &filter.namespace, after, limit).await?;
    let letters = items.iter().filter(|letter| filter.matches(&letter.task));
    let tasks = letters.map(|letter| TaskAnswer::in_state(&letter.task, TaskState::Dead));
    let next = next.map(page_cursor::after_dead_letter);
    response::page(&TaskListAnswer { tasks: tasks.collect(), next }, permit)
}

fn state_filter(state: Option<&str>) -> Result<StateFilter, Problem> {
    match state {
        None => Ok(StateFilter::Living),
        Some("scheduled") => Ok(StateFilter::Scheduled),
        Some("firing") => Ok(StateFilter::Firing),
        Some("paused") => Ok(StateFilter::Paused),
        // Watches that have fired and were not touched since; other tasks that are done have ended.
        Some("done") => Ok(StateFilter::Done),
        Some("dead") => Ok(StateFilter::Dead),
        Some("cancelled") => {
            let problem = "cancelled tasks are not listed; GET /v1/{namespace}/tasks/{id} shows \
                           one, GET /v1/{namespace}/stats counts them";
            Err(Invalid::new("state", problem).into())
        }
        Some(_) => {
            let detail = "state must be scheduled, firing, paused, done or dead";
            Err(Problem::invalid_request(detail, Some("state".to_owned())))
        }
    }
}

fn filter(namespace: &Namespace, params: &mut QueryParams) -> Result<Filter, Problem> {
    let mut filter = Filter::all(namespace.clone());
    if let Some(prefix) = params.take("key_prefix")? {
        filter.key_prefix = prefix;
    }
    if let Some(label) = params.take("label")? {
        // Names contain neither separator, values may contain both: the first one ends the name.
        let (name, value) = label.split_once([':', '=']).ok_or_else(|| {
            let detail = "label must be name:value or name=value";
            Problem::invalid_request(detail, Some("label".to_owned()))
        })?;
        filter.label = Some((name.to_owned(), value.to_owned()));
    }
    if let Some(from) = params.take("from")? {
        filter.from = parse_time_field("from", &from)?;
    }
    if let Some(to) = params.take("to")? {
        filter.to = parse_time_field("to", &to)?;
    }
    Ok(filter)
}
