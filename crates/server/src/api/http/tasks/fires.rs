//! History: the fires of a task, newest first, with their attempts and what the target answered.
//!
//! In: a name. Out: the fires that have ended, as long as they are kept; before them the present one, if it was tried already.

use std::sync::Arc;

use axum::extract::State;
use punctual_core::{
    AttemptRecord, DeadReason, FireEnd, FireId, FireRecord, Outcome, SkipReason, Skipped, TaskId,
    Timestamp, format_duration,
};
use punctual_engine::EngineError;
use punctual_store::TaskStore as _;
use serde::Serialize;
use utoipa::ToSchema;

use super::answer::{self, Answer};
use super::list::{PAGE_DEFAULT, PAGE_MAX};
use super::request::{Asked, Named};
use super::task::end_name;
use super::tasks::living;
use crate::broker::Broker;

#[derive(Debug, Serialize, ToSchema)]
struct Fires {
    fires: Vec<Fire>,
}

/// One due moment of a task.
#[derive(Debug, Serialize, ToSchema)]
struct Fire {
    fire_id: String,
    /// When it was due by the schedule.
    fire_at: String,
    /// When it was first sent; `null` if it never was.
    fired_at: Option<String>,
    lag_ms: Option<u64>,
    /// `done`, `dead`, `cancelled`, `replaced` or `skipped`; `null` while it goes on.
    end: Option<&'static str>,
    /// What a policy left out, from this fire on.
    #[serde(skip_serializing_if = "Option::is_none")]
    skipped: Option<SkippedFires>,
    /// Why it is dead.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
    ended_at: Option<String>,
    attempts: Vec<Attempt>,
}

/// Fires that a policy left out.
#[derive(Debug, Serialize, ToSchema)]
struct SkippedFires {
    /// How many, this one included; of cron at most 1000 are counted.
    fires: u32,
    /// When the last of them was due.
    until: String,
    /// `misfire`, `overlap` or `paused`.
    reason: &'static str,
}

/// One try.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Attempt {
    attempt: usize,
    fired_at: String,
    ended_at: String,
    /// `acked`, `failed`, `refused` or `expired`.
    outcome: &'static str,
    /// What the target answered, or why there was no answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    answer: Option<String>,
    /// When the target wanted to be asked again.
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_in: Option<String>,
}

/// Shows the fires of a task, newest first.
#[utoipa::path(
    get, path = "/v1/{namespace}/tasks/{key}/fires", tag = "tasks",
    params(("limit" = Option<u32>, Query, description = "1 to 1000; 100 unless given")),
    responses((status = 200, description = "newest first", body = Fires))
)]
pub(crate) async fn list(
    State(broker): State<Arc<Broker>>,
    Named(namespace, name): Named,
    mut asked: Asked,
) -> Answer {
    let limit = asked.count("limit", PAGE_DEFAULT, PAGE_MAX)?;
    asked.end()?;
    let task = living(&broker, &namespace, &name).await?;
    let id = task.as_ref().map(|task| task.id).or_else(|| name.parse::<TaskId>().ok());
    let id = id.filter(|id| broker.owners.of(id.partition()).is_some());
    let Some(id) = id else {
        return Err(EngineError::NotFound.into());
    };
    let mut records = broker.store.history(id.partition(), id, limit).await?;
    records.retain(|record| record.namespace == namespace);
    if task.is_none() && records.is_empty() {
        return Err(EngineError::NotFound.into());
    }
    let present = task
        .filter(|task| !task.attempts.is_empty())
        .map(|task| Fire::of(task.fire().id, &task.attempts, task.due_at()));
    let fires = present.into_iter().chain(records.iter().map(Fire::ended)).take(limit);
    answer::ok(&Fires { fires: fires.collect() })
}

impl Fire {
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

/// Attempts, in the order in which they were made.
pub(super) fn attempts_of(attempts: &[AttemptRecord]) -> Vec<Attempt> {
    let numbered = attempts.iter().zip(1..);
    let attempts = numbered.map(|(record, attempt)| {
        let (outcome, reason, retry_in) = match &record.outcome {
            Outcome::Acked => ("acked", None, None),
            Outcome::Failed { reason, retry_in } => ("failed", Some(reason), *retry_in),
            Outcome::Refused { reason } => ("refused", Some(reason), None),
            Outcome::Expired => ("expired", None, None),
        };
        Attempt {
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

/// Why a fire is dead, as the wire spells it.
pub(super) const fn reason_name(reason: DeadReason) -> &'static str {
    match reason {
        DeadReason::Exhausted => "exhausted",
        DeadReason::Refused => "refused",
        DeadReason::Expired => "expired",
        DeadReason::Unknown => "unknown",
    }
}

/// How much later, in whole milliseconds.
pub(super) fn lag_ms(fired_at: Timestamp, fire_at: Timestamp) -> u64 {
    u64::try_from(fired_at.since(fire_at).as_millis()).unwrap_or(u64::MAX)
}
