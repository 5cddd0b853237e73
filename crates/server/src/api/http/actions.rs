//! `GET /v1/{namespace}/actions`: what operators did, over all brokers.
//!
//! Each broker keeps its own in memory (`actions`), so the list begins anew when a broker starts:
//! `since` says when. The log has all of them.

use std::sync::Arc;

use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;

use super::request::{PathNamespace, QueryParams};
use super::response::{self, ApiResult};
use super::tasks::list::{PAGE_DEFAULT, PAGE_MAX, PageLimit};
use crate::actions::OperatorAction;
use crate::broker::Broker;
use crate::gather_measures::sum_actions;
use crate::task_form::InstantText;

/// What operators did.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Actions)]
struct ActionsAnswer {
    /// Newest first.
    actions: Vec<ActionAnswer>,
    /// Since when no action is missing, except those over `limit`.
    #[schema(value_type = InstantText)]
    since: String,
    /// Whether all brokers have answered. Otherwise actions that others took are missing.
    complete: bool,
}

/// A call of an operator that succeeded.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Action)]
struct ActionAnswer {
    #[schema(value_type = InstantText)]
    at: String,
    /// The call, as this document names it: `pause_task`.
    call: String,
    /// What the token of the caller grants: `admin`, or a namespace with rights.
    by: String,
    /// The key or id of the task, the id of the fire or of the operation, or the name of the alarm
    /// or rule that the call names.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schema(required = false)]
    name: String,
    /// What the call asked for, as text: the verb and the filter. At most 256 bytes.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schema(required = false)]
    detail: String,
    /// How many tasks or dead letters were changed. Only of calls about many.
    #[serde(skip_serializing_if = "Option::is_none")]
    changed: Option<u64>,
}

/// List what operators did
///
/// Lists the calls that operators have made, newest first: those that need the right to operate,
/// and changes that came from the console or from a token that may operate and not produce. Each
/// broker keeps the latest in memory and loses them at a restart; its log has all of them.
#[utoipa::path(
    get, path = "/v1/{namespace}/actions", tag = "operations", operation_id = "list_actions",
    params(("limit" = inline(Option<PageLimit>), Query, description = "How many at most.")),
    responses((status = 200, description = "The actions.", body = ActionsAnswer))
)]
pub(crate) async fn list(
    State(broker): State<Arc<Broker>>,
    PathNamespace(namespace): PathNamespace,
    mut params: QueryParams,
) -> ApiResult {
    let limit = params.count("limit", PAGE_DEFAULT, PAGE_MAX)?;
    params.end()?;
    let permit = broker.limits.reads.acquire(&namespace).await?;
    let found = sum_actions(&broker, &namespace).await;
    let actions = found.sum.actions.into_iter().take(limit).map(ActionAnswer::of).collect();
    let since = found.sum.since.to_string();
    response::page(&ActionsAnswer { actions, since, complete: found.all_answered }, permit)
}

impl ActionAnswer {
    fn of(action: OperatorAction) -> Self {
        let OperatorAction { at, call, by, name, detail, changed } = action;
        Self { at: at.to_string(), call, by, name, detail, changed }
    }
}
