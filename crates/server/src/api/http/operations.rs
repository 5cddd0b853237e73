//! Operations over HTTP: change all tasks that match, and follow or stop that.
//! `api/operations` does it.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use http::HeaderMap;
use punctual_core::{Invalid, Namespace, Timestamp, format_duration};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::action_notes::with_detail;
use super::request::{self, BODY_BYTES_MAX, JsonBody, PathName, PathNamespace, QueryParams};
use super::response::{self, ApiResult};
use super::tasks::list::{LabelFilter, ListedKind, parse_label, state_filter};
use crate::api::operation_list::{
    BulkOperation, BulkVerb, LATER_MAX, LATER_MIN, OperationState, Progress,
};
use crate::api::operations::{self, DryRun, NewOperation, TaskSelection, dry_run};
use crate::api::task_pages::kind_filter;
use crate::broker::Broker;
use crate::problem::Problem;
use crate::schema::{documented, duration, one_of, with_keywords};
use crate::task_form::{InstantText, TaskAnswer, TimeValue, parse_duration_field};

/// What to do with which tasks.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "a JSON object")]
struct OperationBody {
    /// What is done with each task.
    #[schema(value_type = BulkVerbName)]
    r#do: String,
    /// Which tasks. `{}` is every task of the namespace.
    r#where: WhereBody,
    /// How much later the tasks are due. Only for `shift` and `spread`.
    #[serde(default)]
    #[schema(value_type = Option<LaterTime>)]
    later: Option<String>,
    /// Only count the tasks that match, and show some of them.
    #[serde(default)]
    dry_run: bool,
}

documented!(
    /// An [`OperationBody`] that has `later` if its verb moves tasks, and not otherwise.
    OperationRequest,
    "NewOperation",
    {
        let is_move = |name: &&str| ["shift", "spread"].contains(name);
        let (moves, others): (Vec<_>, Vec<_>) = BulkVerb::NAMES.into_iter().partition(is_move);
        let with_later = json!({
            "properties": {"do": {"enum": moves}, "later": {"type": "string"}},
            "required": ["later"],
        });
        let without = json!({"properties": {"do": {"enum": others}, "later": {"type": "null"}}});
        let together = json!({"oneOf": [with_later, without]});
        with_keywords(&OperationBody::schema(), &together)
    },
    fields of OperationBody
);
documented!(
    /// The states of tasks that an operation can change. Dead letters have verbs of their own.
    OperatedState,
    "OperatedState",
    one_of(["scheduled", "firing", "paused", "done"])
);

/// Tasks that match every condition that is given, as in a list of tasks.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "a JSON object")]
#[schema(as = TaskFilter)]
pub(crate) struct WhereBody {
    /// Only tasks in this state. To resume, `paused` is meant if it is absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<OperatedState>)]
    pub(crate) state: Option<String>,
    /// Only tasks with this kind of schedule; `recurring` is `cron` or `every`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<ListedKind>)]
    pub(crate) kind: Option<String>,
    /// Only tasks whose key begins with this text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) key_prefix: Option<String>,
    /// Only tasks with this label: `name=value` or `name:value`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<LabelFilter>)]
    pub(crate) label: Option<String>,
    /// Only tasks due at this time or later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) from: Option<TimeValue>,
    /// Only tasks due before this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) to: Option<TimeValue>,
}

documented!(
    /// The verbs of operations.
    BulkVerbName,
    "OperationVerb",
    one_of(BulkVerb::NAMES)
);
documented!(
    /// How far an operation moves tasks.
    LaterTime,
    "LaterTime",
    duration(LATER_MIN, LATER_MAX)
);
documented!(
    /// Where an operation is.
    OperationStateName,
    "OperationState",
    one_of(OperationState::ALL.map(|(name, _)| name))
);

/// What an operation would change.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = DryRun)]
struct DryRunAnswer<'a> {
    /// How many tasks match.
    matched: usize,
    /// Whether that is all; otherwise there are more, which were not counted.
    exact: bool,
    /// The first of them.
    sample: Vec<TaskAnswer<'a>>,
}

/// An operation.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Operation)]
struct OperationAnswer {
    id: String,
    #[schema(value_type = BulkVerbName)]
    r#do: &'static str,
    /// As it was sent.
    #[schema(value_type = WhereBody)]
    r#where: Value,
    /// How much later the tasks are due. Only with `shift` and `spread`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<LaterTime>)]
    later: Option<String>,
    #[schema(value_type = OperationStateName)]
    state: &'static str,
    /// Tasks that were found so far.
    matched: u64,
    /// Tasks that were changed.
    changed: u64,
    /// Tasks that could not be changed.
    failed: u64,
    #[schema(value_type = InstantText)]
    started_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<InstantText>)]
    ended_at: Option<String>,
    /// What the token of the caller grants: `admin`, or a namespace with rights.
    by: String,
    /// Why it has failed. Only in the state `failed`.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
}

/// One operation.
#[derive(Debug, Serialize, ToSchema)]
struct OneOperation {
    operation: OperationAnswer,
}

/// The operations of a namespace.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Operations)]
struct OperationsAnswer {
    /// Newest first.
    operations: Vec<OperationAnswer>,
}

/// Change all tasks that match
///
/// Starts an operation that cancels, pauses, resumes, fires or moves every task that matches and
/// that was created before. `shift` makes tasks due later by `later`, and `spread` by a part of it
/// that is different for each task, so that a herd is due evenly over that time; cron and interval
/// tasks cannot be moved. With `dry_run` nothing is changed: the answer counts the tasks, and shows
/// some of them. An operation is kept in the memory of the broker that took it, and ends with it.
#[utoipa::path(
    post, path = "/v1/{namespace}/operations", tag = "operations",
    operation_id = "start_operation", request_body = OperationRequest,
    responses(
        (status = 200, description = "With `dry_run`: what would be changed.", body = DryRunAnswer),
        (status = 202, description = "The operation was started.", body = OneOperation),
    )
)]
pub(crate) async fn start(
    State(broker): State<Arc<Broker>>,
    PathNamespace(namespace): PathNamespace,
    headers: HeaderMap,
    JsonBody(body): JsonBody<BODY_BYTES_MAX>,
) -> ApiResult {
    let body: OperationBody = request::json(&body, "an operation")?;
    let later = body.later.as_deref().map(|text| parse_duration_field("later", text));
    let verb = parse_verb(&body.r#do, later.transpose()?)?;
    let selection = body.r#where.selection()?.of_verb(verb)?;
    if body.dry_run {
        let DryRun { matched, exact, sample } = dry_run(&broker, &namespace, &selection).await?;
        let sample = sample.iter().map(TaskAnswer::of).collect();
        return response::ok(&DryRunAnswer { matched, exact, sample });
    }
    let identity = broker.tokens.identify_headers(&headers);
    let identity = identity.ok_or_else(Problem::unauthenticated)?;
    let by = identity.name_in(&namespace);
    let filter = body.r#where.to_json();
    let new = NewOperation { namespace, verb, selection, filter, by };
    let operation = operations::start(&broker, new)?;
    let response = response::accepted(&OneOperation { operation: OperationAnswer::of(&operation) });
    Ok(with_detail(response?, operation.as_action()))
}

/// List operations
///
/// Lists the operations that this broker has taken, newest first. The oldest ones are dropped.
#[utoipa::path(
    get, path = "/v1/{namespace}/operations", tag = "operations",
    operation_id = "list_operations",
    responses((status = 200, description = "The operations.", body = OperationsAnswer))
)]
pub(crate) async fn list(
    State(broker): State<Arc<Broker>>,
    PathNamespace(namespace): PathNamespace,
    params: QueryParams,
) -> ApiResult {
    params.end()?;
    let operations = broker.operations.list(&namespace);
    let operations = operations.iter().map(|operation| OperationAnswer::of(operation)).collect();
    response::ok(&OperationsAnswer { operations })
}

/// Show an operation
///
/// Shows how far an operation is.
#[utoipa::path(
    get, path = "/v1/{namespace}/operations/{id}", tag = "operations",
    operation_id = "get_operation",
    responses((status = 200, description = "The operation.", body = OneOperation))
)]
pub(crate) async fn show(State(broker): State<Arc<Broker>>, name: PathName) -> ApiResult {
    let PathName(namespace, id) = &name;
    let operation = find(&broker, namespace, id)?;
    response::ok(&OneOperation { operation: OperationAnswer::of(&operation) })
}

/// Stop an operation
///
/// Stops an operation after its present step. What it has changed stays changed.
#[utoipa::path(
    delete, path = "/v1/{namespace}/operations/{id}", tag = "operations",
    operation_id = "stop_operation",
    responses((status = 200, description = "The operation.", body = OneOperation))
)]
pub(crate) async fn stop(State(broker): State<Arc<Broker>>, name: PathName) -> ApiResult {
    let PathName(namespace, id) = &name;
    let operation = find(&broker, namespace, id)?;
    operation.stop();
    response::ok(&OneOperation { operation: OperationAnswer::of(&operation) })
}

/// Returns an operation that this broker has taken.
pub(crate) fn find(
    broker: &Broker,
    namespace: &Namespace,
    id: &str,
) -> Result<Arc<BulkOperation>, Problem> {
    let found = id.parse().ok().and_then(|id| broker.operations.find(namespace, id));
    found.ok_or_else(|| Problem::operation_not_found(namespace, id))
}

pub(crate) fn parse_verb(name: &str, later: Option<Duration>) -> Result<BulkVerb, Invalid> {
    if later.is_some_and(|later| !(LATER_MIN..=LATER_MAX).contains(&later)) {
        return Err(Invalid::new("later", "must be 1s to 366d"));
    }
    BulkVerb::parse(name, later)
}

impl WhereBody {
    /// Returns the filter as it is kept with an operation.
    pub(crate) fn to_json(&self) -> Value {
        serde_json::to_value(self).unwrap_or_default()
    }

    pub(crate) fn selection(&self) -> Result<TaskSelection, Problem> {
        let within = |problem: Problem| problem.within("where");
        let time = |name: &str, value: Option<&TimeValue>, default: Timestamp| {
            let time = value.map(|value| value.to_timestamp(&format!("where.{name}")));
            time.unwrap_or(Ok(default))
        };
        let kind = self.kind.as_deref().map(kind_filter).transpose();
        Ok(TaskSelection {
            state: state_filter(self.state.as_deref()).map_err(within)?,
            kind: kind.map_err(|invalid| invalid.within("where"))?,
            key_prefix: self.key_prefix.clone().unwrap_or_default(),
            label: self.label.as_deref().map(parse_label).transpose().map_err(within)?,
            from: time("from", self.from.as_ref(), Timestamp::EPOCH)?,
            to: time("to", self.to.as_ref(), Timestamp::MAX)?,
        })
    }
}

impl OperationAnswer {
    fn of(operation: &BulkOperation) -> Self {
        let Progress { state, matched, changed, failed, ended_at, problem } = operation.progress();
        Self {
            id: operation.id.to_string(),
            r#do: operation.verb.name(),
            r#where: operation.filter.clone(),
            later: operation.verb.later().map(format_duration),
            state: state.name(),
            matched,
            changed,
            failed,
            started_at: operation.started_at.to_string(),
            ended_at: ended_at.map(|at| at.to_string()),
            by: operation.by.clone(),
            problem,
        }
    }
}
