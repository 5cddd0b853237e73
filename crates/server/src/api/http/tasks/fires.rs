//! `GET /v1/{namespace}/tasks/{key}/fires`: the history of a task, newest first.
//!
//! History has the fires that have ended, as long as they are retained, with their attempts and
//! what the receivers answered. The current fire comes first if it had an attempt already.
//! `fire_form` writes them.

use std::sync::Arc;

use axum::extract::State;
use punctual_core::TaskId;
use punctual_store::TaskStore as _;
use serde::Serialize;
use utoipa::ToSchema;

use super::list::{PAGE_DEFAULT, PAGE_MAX, PageLimit};
use super::living;
use crate::api::http::request::{PathName, QueryParams};
use crate::api::http::response::{self, ApiResult};
use crate::broker::Broker;
use crate::fire_form::FireAnswer;
use crate::problem::{Problem, TaskRef};

/// Bytes of the bodies of answers in one response: there may be a thousand fires with 64 KiB each.
/// The bodies of older fires are left out; fewer fires at a time have them.
const BODIES_BYTES_MAX: usize = 8 << 20;

/// The fires of a task.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Fires)]
struct FiresAnswer<'a> {
    /// Newest first.
    fires: Vec<FireAnswer<'a>>,
}

/// Show the history of a task
///
/// Lists the fires of a task with their attempts, newest first. By its id, a task that has ended is
/// found as long as its history is retained.
#[utoipa::path(
    get, path = "/v1/{namespace}/tasks/{key}/fires", tag = "tasks",
    operation_id = "list_fires",
    params(("limit" = inline(Option<PageLimit>), Query, description = "Fires at most.")),
    responses((status = 200, description = "The fires, newest first.", body = FiresAnswer))
)]
pub(crate) async fn list(
    State(broker): State<Arc<Broker>>,
    PathName(namespace, name): PathName,
    mut params: QueryParams,
) -> ApiResult {
    let limit = params.count("limit", PAGE_DEFAULT, PAGE_MAX)?;
    params.end()?;
    let permit = broker.limits.reads.acquire(&namespace).await?;
    let named = TaskRef { namespace: &namespace, name: &name };
    let task = living(&broker, named).await?;
    let id = task.as_ref().map(|task| task.id).or_else(|| name.parse::<TaskId>().ok());
    let id = id.filter(|id| broker.owners.of(id.partition()).is_some());
    let Some(id) = id else {
        return Err(Problem::task_not_found(named));
    };
    let mut records = broker.store.history(id.partition(), id, limit).await?;
    records.retain(|record| record.namespace == namespace);
    if task.is_none() && records.is_empty() {
        return Err(Problem::task_not_found(named));
    }
    let current = task.filter(|task| !task.attempts.is_empty() || task.redrive.is_some());
    if let Some(task) = &current {
        // The record of how a redriven fire ended before.
        records.retain(|record| record.fire_id != task.fire().id);
    }
    let current = current.as_ref().map(FireAnswer::current);
    let fires = current.into_iter().chain(records.iter().map(FireAnswer::ended)).take(limit);
    let mut bytes_left = BODIES_BYTES_MAX;
    let fires = fires.map(|fire| fire.limit_bodies(&mut bytes_left));
    response::page(&FiresAnswer { fires: fires.collect() }, permit)
}
