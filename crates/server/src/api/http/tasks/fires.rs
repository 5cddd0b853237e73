//! `GET /v1/{namespace}/tasks/{key}/fires`: the history of a task, newest first.
//!
//! History has the fires that have ended, as long as they are retained, with their attempts and
//! the answers of the target. The current fire comes first if it had an attempt already.

use std::sync::Arc;

use axum::extract::State;
use punctual_core::{
    AttemptNo, AttemptRecord, DeadReason, FireEnd, FireId, FireRecord, Outcome, REASON_BYTES_MAX,
    SkipReason, Skipped, TaskId, Timestamp, format_duration,
};
use punctual_store::TaskStore as _;
use serde::Serialize;
use serde_json::json;
use utoipa::ToSchema;

use super::list::{PAGE_DEFAULT, PAGE_MAX, PageLimit};
use super::living;
use crate::api::http::request::{PathName, QueryParams};
use crate::api::http::response::{self, ApiResult};
use crate::broker::Broker;
use crate::problem::{Problem, TaskRef};
use crate::schema::{FireIdText, documented, one_of};
use crate::task_form::{EndName, InstantText, Pause, end_name};

/// The fires of a task.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Fires)]
struct FiresAnswer {
    /// Newest first.
    fires: Vec<FireAnswer>,
}

/// One due moment of a task.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Fire)]
pub(crate) struct FireAnswer {
    /// The same for all attempts of the fire.
    #[schema(value_type = FireIdText)]
    fire_id: String,
    /// When the schedule made the fire due.
    #[schema(value_type = InstantText)]
    fire_at: String,
    /// When the first attempt was sent; `null` if none was, or if it is no longer kept.
    #[schema(value_type = Option<InstantText>)]
    fired_at: Option<String>,
    /// How much later than due the first attempt was sent, in milliseconds.
    lag_ms: Option<u64>,
    /// How the fire ended; `null` for the current fire.
    #[schema(value_type = Option<EndName>)]
    end: Option<&'static str>,
    /// The fires that a misfire or overlap policy, or a pause, skipped, beginning with this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    skipped: Option<SkippedFires>,
    /// Why the fire is a dead letter.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<DeadReasonName>)]
    reason: Option<&'static str>,
    /// When the fire ended; `null` for the current fire.
    #[schema(value_type = Option<InstantText>)]
    ended_at: Option<String>,
    /// The attempts of the fire, those before a redrive included, oldest first. The latest 200 are
    /// kept.
    attempts: Vec<AttemptAnswer>,
}

/// Fires in a row that were skipped.
#[derive(Debug, Serialize, ToSchema)]
struct SkippedFires {
    /// How many, this one included. Those of a cron expression are counted up to a limit.
    fires: u32,
    /// When the last of them was due.
    #[schema(value_type = InstantText)]
    until: String,
    /// Why they were skipped.
    #[schema(value_type = SkipReasonName)]
    reason: &'static str,
}

/// One attempt to deliver a fire.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Attempt)]
pub(crate) struct AttemptAnswer {
    /// Counts from 1, and on after a redrive.
    attempt: u32,
    /// When the attempt was sent.
    #[schema(value_type = InstantText)]
    fired_at: String,
    /// When its outcome was known.
    #[schema(value_type = InstantText)]
    ended_at: String,
    /// What came of it.
    #[schema(value_type = OutcomeName)]
    outcome: &'static str,
    /// The beginning of the answer of the target, or why there was none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<ReasonText>)]
    answer: Option<String>,
    /// The pause before the next attempt that the target asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Pause>)]
    retry_in: Option<String>,
}

documented!(
    /// Why a fire is a dead letter.
    DeadReasonName,
    "DeadReason",
    one_of(
        [DeadReason::Exhausted, DeadReason::Refused, DeadReason::Expired, DeadReason::Unknown]
            .map(reason_name)
    )
);
documented!(
    /// Why fires were skipped.
    SkipReasonName,
    "SkipReason",
    one_of([SkipReason::Misfire, SkipReason::Overlap, SkipReason::Paused].map(skip_name))
);
documented!(
    /// What came of an attempt.
    OutcomeName,
    "Outcome",
    one_of(["acked", "failed", "refused", "expired"])
);
documented!(
    /// What is kept of an answer.
    ReasonText,
    "Reason",
    json!({"type": "string", "maxLength": REASON_BYTES_MAX, "x-max-bytes": REASON_BYTES_MAX})
);

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
    let current = current.map(|task| FireAnswer::of(task.fire().id, &task.attempts, task.due_at()));
    let fires = current.into_iter().chain(records.iter().map(FireAnswer::ended)).take(limit);
    response::page(&FiresAnswer { fires: fires.collect() }, permit)
}

impl FireAnswer {
    fn of(fire_id: FireId, attempts: &[AttemptRecord], due_at: Timestamp) -> Self {
        let first = attempts.first().filter(|first| first.number == AttemptNo::FIRST);
        Self {
            fire_id: fire_id.to_string(),
            fire_at: fire_id.nominal_at.to_string(),
            fired_at: first.map(|first| first.fired_at.to_string()),
            lag_ms: first.map(|first| lag_ms(first.fired_at, due_at)),
            end: None,
            skipped: None,
            reason: None,
            ended_at: None,
            attempts: attempts_of(attempts),
        }
    }

    pub(crate) fn ended(record: &FireRecord) -> Self {
        let (reason, skipped) = match record.end {
            FireEnd::Dead(reason) => (Some(reason_name(reason)), None),
            FireEnd::Skipped(skipped) => (None, Some(SkippedFires::of(skipped))),
            FireEnd::Done | FireEnd::Cancelled | FireEnd::Replaced => (None, None),
        };
        Self {
            end: Some(end_name(record.end)),
            skipped,
            reason,
            ended_at: Some(record.ended_at.to_string()),
            ..Self::of(record.fire_id, &record.attempts, record.due_at)
        }
    }
}

impl SkippedFires {
    fn of(skipped: Skipped) -> Self {
        let reason = skip_name(skipped.why);
        Self { fires: skipped.fires, until: skipped.until.to_string(), reason }
    }
}

const fn skip_name(reason: SkipReason) -> &'static str {
    match reason {
        SkipReason::Misfire => "misfire",
        SkipReason::Overlap => "overlap",
        SkipReason::Paused => "paused",
    }
}

/// Attempts, oldest first.
pub(crate) fn attempts_of(attempts: &[AttemptRecord]) -> Vec<AttemptAnswer> {
    let attempts = attempts.iter().map(|record| {
        let (outcome, reason, retry_in) = match &record.outcome {
            Outcome::Acked => ("acked", None, None),
            Outcome::Failed { reason, retry_in } => ("failed", Some(reason), *retry_in),
            Outcome::Refused { reason } => ("refused", Some(reason), None),
            Outcome::Expired => ("expired", None, None),
        };
        AttemptAnswer {
            attempt: record.number.get(),
            fired_at: record.fired_at.to_string(),
            ended_at: record.ended_at.to_string(),
            outcome,
            answer: reason.map(|reason| reason.as_str().to_owned()),
            retry_in: retry_in.map(format_duration),
        }
    });
    attempts.collect()
}

/// The wire name of why a fire is a dead letter.
pub(crate) const fn reason_name(reason: DeadReason) -> &'static str {
    match reason {
        DeadReason::Exhausted => "exhausted",
        DeadReason::Refused => "refused",
        DeadReason::Expired => "expired",
        DeadReason::Unknown => "unknown",
    }
}

/// How much later than due, in whole milliseconds.
pub(crate) fn lag_ms(fired_at: Timestamp, fire_at: Timestamp) -> u64 {
    u64::try_from(fired_at.since(fire_at).as_millis()).unwrap_or(u64::MAX)
}
