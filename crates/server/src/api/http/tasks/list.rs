//! `GET /v1/{namespace}/tasks`: lists tasks in the order of `fire_at`.
//!
//! The pages themselves are read by `api/task_pages`.

use std::sync::Arc;

use axum::extract::State;
use punctual_core::{Invalid, Timestamp};
use punctual_store::{Filter, Page};
use serde::Serialize;
use serde_json::json;
use utoipa::ToSchema;

use crate::api::http::page_cursor;
use crate::api::http::request::{PathNamespace, QueryParams};
use crate::api::http::response::{self, ApiResult};
use crate::api::task_pages::{
    KINDS, LetterFilter, StateFilter, dead_letter_page, kind_filter, task_page,
};
use crate::broker::Broker;
use crate::problem::Problem;
use crate::schema::{CursorText, count, documented, one_of};
use crate::shares::SharePermit;
use crate::task_form::{TaskAnswer, TimeValue, parse_time_field};

/// Entries of a page by default.
pub(crate) const PAGE_DEFAULT: usize = 100;
/// Entries of a page at most.
pub(crate) const PAGE_MAX: usize = 1000;

/// The states that a list can be filtered by.
const STATES: [(&str, StateFilter); 5] = [
    ("scheduled", StateFilter::Scheduled),
    ("firing", StateFilter::Firing),
    ("paused", StateFilter::Paused),
    // Watches that have fired and were not touched since; other tasks that are done have ended.
    ("done", StateFilter::Done),
    ("dead", StateFilter::Dead),
];

/// A page of tasks.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Tasks)]
struct TaskListAnswer<'a> {
    /// In the order of `fire_at`.
    tasks: Vec<TaskAnswer<'a>>,
    /// The cursor of the next page; `null` on the last page. A page may be short or empty and
    /// still have a next one.
    #[schema(value_type = Option<CursorText>)]
    next: Option<String>,
}

documented!(
    /// Entries of a page.
    PageLimit,
    "PageLimit",
    count(1, PAGE_MAX, PAGE_DEFAULT)
);
documented!(
    /// The states that a list can be filtered by.
    ListedState,
    "ListedState",
    one_of(STATES.map(|(name, _)| name))
);
documented!(
    /// The kinds of schedules that a list can be filtered by.
    ListedKind,
    "ListedKind",
    one_of(KINDS.map(|(name, _)| name))
);
documented!(
    /// The name and the value of a label.
    LabelFilter,
    "LabelFilter",
    json!({"type": "string", "pattern": "[:=]"})
);

/// List tasks
///
/// Lists the tasks of a namespace that have not ended, in the order of `fire_at`. With
/// `state=dead` it lists the tasks of dead letters, in the order of their fire ids.
#[utoipa::path(
    get, path = "/v1/{namespace}/tasks", tag = "tasks",
    operation_id = "list_tasks",
    params(
        ("state" = inline(Option<ListedState>), Query, description =
            "Only tasks in this state; `done` lists watches that have fired. Default: every task \
             that has not ended."),
        ("kind" = inline(Option<ListedKind>), Query, description =
            "Only tasks with this kind of schedule; `recurring` is `cron` or `every`."),
        ("key_prefix" = Option<String>, Query, description =
            "Only tasks whose key begins with this text."),
        ("label" = inline(Option<LabelFilter>), Query, description =
            "Only tasks with this label: `name:value` or `name=value`."),
        ("from" = inline(Option<TimeValue>), Query, description =
            "Only tasks due at this time or later."),
        ("to" = inline(Option<TimeValue>), Query, description =
            "Only tasks due before this time."),
        ("limit" = inline(Option<PageLimit>), Query, description = "Tasks per page."),
        ("cursor" = inline(Option<CursorText>), Query, description =
            "The `next` of the previous page, which had the same `state`."),
    ),
    responses((status = 200, description = "A page of tasks.", body = TaskListAnswer))
)]
pub(crate) async fn list(
    State(broker): State<Arc<Broker>>,
    PathNamespace(namespace): PathNamespace,
    mut params: QueryParams,
) -> ApiResult {
    let state = state_filter(params.take("state")?.as_deref())?;
    let kind = params.take("kind")?.map(|kind| kind_filter(&kind)).transpose()?;
    let EntryFilter { key_prefix, label, from, to } = EntryFilter::take(&mut params)?;
    let limit = params.count("limit", PAGE_DEFAULT, PAGE_MAX)?;
    let cursor = params.take("cursor")?;
    params.end()?;
    let permit = broker.limits.reads.acquire(&namespace).await?;
    let filter = Filter { namespace, state: None, kind, key_prefix, label, from, to };
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
    let (namespace, any) = (&filter.namespace, LetterFilter::default());
    let Page { items, next } = dead_letter_page(broker, namespace, &any, after, limit).await?;
    let letters = items.iter().filter(|letter| filter.matches(&letter.task));
    let tasks = letters.map(TaskAnswer::of_dead_letter);
    let next = next.map(page_cursor::after_dead_letter);
    response::page(&TaskListAnswer { tasks: tasks.collect(), next }, permit)
}

/// The filter of a state; every living task without one.
pub(crate) fn state_filter(state: Option<&str>) -> Result<StateFilter, Problem> {
    let Some(state) = state else {
        return Ok(StateFilter::Living);
    };
    if state == "cancelled" {
        let problem = "cancelled tasks are not listed; GET /v1/{namespace}/tasks/{id} shows one, \
                       GET /v1/{namespace}/stats counts them";
        return Err(Invalid::new("state", problem).into());
    }
    let found = STATES.into_iter().find(|(name, _)| *name == state);
    found.map(|(_, filter)| filter).ok_or_else(|| {
        let detail = "state must be scheduled, firing, paused, done or dead";
        Problem::invalid_request(detail, Some("state".to_owned()))
    })
}

/// What lists of tasks and of fires can be filtered by.
#[derive(Debug)]
pub(crate) struct EntryFilter {
    pub(crate) key_prefix: String,
    pub(crate) label: Option<(String, String)>,
    pub(crate) from: Timestamp,
    pub(crate) to: Timestamp,
}

impl EntryFilter {
    /// Takes the parameters of the filter.
    pub(crate) fn take(params: &mut QueryParams) -> Result<Self, Problem> {
        let time = |name: &str, text: Option<String>, default| {
            text.map_or(Ok(default), |text| parse_time_field(name, &text))
        };
        Ok(Self {
            key_prefix: params.take("key_prefix")?.unwrap_or_default(),
            label: params.take("label")?.map(|label| parse_label(&label)).transpose()?,
            from: time("from", params.take("from")?, Timestamp::EPOCH)?,
            to: time("to", params.take("to")?, Timestamp::MAX)?,
        })
    }
}

pub(crate) fn parse_label(label: &str) -> Result<(String, String), Problem> {
    // Names contain neither separator, values may contain both: the first one ends the name.
    let (name, value) = label.split_once([':', '=']).ok_or_else(|| {
        let detail = "label must be name:value or name=value";
        Problem::invalid_request(detail, Some("label".to_owned()))
    })?;
    Ok((name.to_owned(), value.to_owned()))
}
