//! `GET /v1/{namespace}/tasks/{key}/fires`: the history of a task, newest first.
//!
//! History has the fires that have ended, as long as they are retained, with their attempts and
//! the answers of the target. The current fire comes first if it had an attempt already.

use std::sync::Arc;

use axum::extract::State;
use punctual_core::{
    AttemptRecord, DeadReason, FireEnd, FireId, FireRecord, Outcome, SkipReason, Skipped, TaskId,
    Timestamp, format_duration,
};
use punctual_store::TaskStore as _;
use serde::Serialize;
use utoipa::ToSchema;

use super::list::{PAGE_DEFAULT, PAGE_MAX};
use super::living;
use crate::api::http::request::{PathName, QueryParams};
use crate::api::http::response::{self, ApiResult};
use crate::broker::Broker;
use crate::problem::{Problem, TaskRef};
use crate::task_form::end_name;

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
struct FireAnswer {
    /// The same for all attempts of the fire.
    fire_id: String,
    /// When the schedule made the fire due, in RFC 3339.
    fire_at: String,
    /// When the first attempt was sent; `null` if none was.
    fired_at: Option<String>,
    /// How much later than due the first attempt was sent, in milliseconds.
    lag_ms: Option<u64>,
    /// `done`, `dead`, `cancelled`, `replaced` or `skipped`; `null` for the current fire.
    end: Option<&'static str>,
    /// The fires that a misfire or overlap policy, or a pause, skipped, beginning with this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    skipped: Option<SkippedFires>,
    /// Why the fire is a dead letter: `exhausted`, `refused`, `expired` or `unknown`.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
    /// When the fire ended; `null` for the current fire.
    ended_at: Option<String>,
    /// The attempts of the fire, oldest first.
    attempts: Vec<AttemptAnswer>,
}

/// Fires in a row that were skipped.
#[derive(Debug, Serialize, ToSchema)]
struct SkippedFires {
    /// How many, this one included. At most 1000 fires of a cron expression are counted.
    fires: u32,
    /// When the last of them was due, in RFC 3339.
    until: String,
    /// `misfire`, `overlap` or `paused`.
    reason: &'static str,
}

/// One attempt to deliver a fire.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Attempt)]
pub(crate) struct AttemptAnswer {
    /// Counts from 1.
    attempt: usize,
    /// When the attempt was sent, in RFC 3339.
    fired_at: String,
    /// When its outcome was known, in RFC 3339.
    ended_at: String,
    /// `acked`, `failed`, `refused` or `expired`.
    outcome: &'static str,
    /// The answer of the target, or why there was none: up to 512 bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    answer: Option<String>,
    /// The pause before the next attempt that the target asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_in: Option<String>,
}

/// Show the history of a task
///
/// Lists the fires of a task with their attempts, newest first. By its id, a task that has ended is
/// found as long as its history is retained.
#[utoipa::path(
    get, path = "/v1/{namespace}/tasks/{key}/fires", tag = "tasks",
    params(("limit" = Option<u32>, Query, description = "Fires at most: 1 to 1000. Default: 100.")),
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
    let current = task
        .filter(|task| !task.attempts.is_empty())
        .map(|task| FireAnswer::of(task.fire().id, &task.attempts, task.due_at()));
    let fires = current.into_iter().chain(records.iter().map(FireAnswer::ended)).take(limit);
    response::page(&FiresAnswer { fires: fires.collect() }, permit)
}

impl FireAnswer {
    fn of(fire_id: FireId, attempts: &[AttemptRecord], due_at: Timestamp) -> Self {
        let first = attempts.first();
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

    fn ended(record: &FireRecord) -> Self {
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
        let reason = match skipped.why {
            SkipReason::Misfire => "misfire",
            SkipReason::Overlap => "overlap",
            SkipReason::Paused => "paused",
        };
        Self { fires: skipped.fires, until: skipped.until.to_string(), reason }
    }
}

/// Attempts, oldest first.
pub(crate) fn attempts_of(attempts: &[AttemptRecord]) -> Vec<AttemptAnswer> {
    let numbered = attempts.iter().zip(1..);
    let attempts = numbered.map(|(record, attempt)| {
        let (outcome, reason, retry_in) = match &record.outcome {
            Outcome::Acked => ("acked", None, None),
            Outcome::Failed { reason, retry_in } => ("failed", Some(reason), *retry_in),
            Outcome::Refused { reason } => ("refused", Some(reason), None),
            Outcome::Expired => ("expired", None, None),
        };
        AttemptAnswer {
            attempt,
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
