//! `GET /v1/{namespace}/tasks/{key}/fires`: the history of a task, newest first.
//!
//! History has the fires that have ended, as long as they are retained, with their attempts and
//! what the receivers answered. The current fire comes first if it had an attempt already.
//! `fire_form` writes them.

use std::sync::Arc;

use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;

use super::list::{PAGE_DEFAULT, PAGE_MAX, PageLimit};
use crate::api::find_task::{TaskFires, find};
use crate::api::http::request::{PathName, QueryParams};
use crate::api::http::response::{self, ApiResult};
use crate::broker::Broker;
use crate::fire_form::FireAnswer;
use crate::problem::TaskRef;

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
/// Lists the fires of a task with their attempts, newest first. A task that has ended is found as
/// long as its history is retained; a key that names no living task shows the task that had it
/// last.
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
    let found = find(&broker, TaskRef { namespace: &namespace, name: &name }).await?;
    let TaskFires { current, ended } = found.fires(&broker, &namespace, limit).await?;
    let current = current.as_ref().map(FireAnswer::current);
    let fires = current.into_iter().chain(ended.iter().map(FireAnswer::ended)).take(limit);
    let mut bytes_left = BODIES_BYTES_MAX;
    let fires = fires.map(|fire| fire.limit_bodies(&mut bytes_left));
    response::page(&FiresAnswer { fires: fires.collect() }, permit)
}
