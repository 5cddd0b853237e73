//! `GET /v1/{namespace}/tasks/{key}/explain`: what a task waits for, and the facts.
//!
//! `api/explain_task` gathers the facts and `explain` makes the sentence.

use std::sync::Arc;

use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;

use super::request::{PathName, QueryParams};
use super::response::{self, ApiResult};
use super::tasks::TaskOrEnded;
use crate::api::explain_task::{ExplainedTask, explain_task};
use crate::api::find_task::{NamedTask, TaskFires};
use crate::broker::Broker;
use crate::explain::{UpcomingFire, WaitingFor};
use crate::fire_form::FireAnswer;
use crate::problem::TaskRef;
use crate::schema::{documented, one_of};
use crate::task_form::{EndedTask, InstantText, TaskAnswer};

/// Why a task is in its state.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Explanation)]
struct ExplainAnswer<'a> {
    /// One sentence for people.
    summary: &'a str,
    /// What the task waits for: its `time`, a `retry`, a `worker`, `capacity` (of a receiver,
    /// connections or memory), a `limit` of its namespace, the end of a `pause`, an `owner` of its
    /// partition, or `nothing` because an attempt is in flight or the task has ended.
    #[schema(value_type = WaitingForName)]
    waiting_for: &'static str,
    /// More sentences, each about one fact.
    details: &'a [String],
    #[schema(value_type = TaskOrEnded)]
    task: AnyTask<'a>,
    /// The partition of the task.
    partition: u16,
    /// The address of the broker that owns the partition; `null` if none is known.
    owner: Option<&'a str>,
    /// The epoch of the owner; `null` if none is known.
    epoch: Option<u32>,
    /// How often a watch was touched or edited; `null` for other tasks.
    touches: Option<u64>,
    /// When a watch was touched last; `null` if it never was.
    #[schema(value_type = Option<InstantText>)]
    touched_at: Option<String>,
    /// The next fires if nothing changes, at most five.
    next: Vec<NextFireAnswer>,
    /// The last fires, newest first.
    fires: Vec<FireAnswer<'a>>,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum AnyTask<'a> {
    Living(Box<TaskAnswer<'a>>),
    Ended(EndedTask<'a>),
}

/// One future fire of a task.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = NextFire)]
struct NextFireAnswer {
    /// When it is due.
    #[schema(value_type = InstantText)]
    fire_at: String,
    /// The same time in the time zone of the schedule.
    local: String,
    /// Why it is then, if not by the plain schedule: a retry, jitter, a clock change.
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
}

documented!(
    /// What a task waits for.
    WaitingForName,
    "WaitingFor",
    one_of(WaitingFor::ALL.map(WaitingFor::name))
);

/// Explain a task
///
/// Says in one sentence what a task waits for, or how it ended, with the facts.
#[utoipa::path(
    get, path = "/v1/{namespace}/tasks/{key}/explain", tag = "tasks",
    operation_id = "explain_task",
    responses((status = 200, description = "The explanation.", body = ExplainAnswer))
)]
pub(crate) async fn explain(
    State(broker): State<Arc<Broker>>,
    PathName(namespace, name): PathName,
    params: QueryParams,
) -> ApiResult {
    params.end()?;
    let permit = broker.limits.reads.acquire(&namespace).await?;
    let named = TaskRef { namespace: &namespace, name: &name };
    let explained = explain_task(&broker, named).await?;
    response::page(&ExplainAnswer::of(&explained), permit)
}

impl<'a> ExplainAnswer<'a> {
    fn of(explained: &'a ExplainedTask) -> Self {
        let task = match &explained.subject {
            NamedTask::Living(task) => AnyTask::Living(TaskAnswer::of(task).into()),
            NamedTask::Ended(ended) => match &ended.letter {
                Some(letter) => AnyTask::Living(TaskAnswer::of_dead_letter(letter).into()),
                None => AnyTask::Ended(EndedTask::of(&ended.record)),
            },
        };
        let TaskFires { current, ended } = &explained.fires;
        let current = current.iter().map(FireAnswer::current);
        Self {
            summary: &explained.explanation.summary,
            waiting_for: explained.explanation.waiting_for.name(),
            details: &explained.explanation.details,
            task,
            partition: explained.partition.get(),
            owner: explained.owner.as_deref(),
            epoch: explained.epoch,
            touches: explained.touches,
            touched_at: explained.touched_at.map(|at| at.to_string()),
            next: explained.next.iter().map(NextFireAnswer::of).collect(),
            fires: current.chain(ended.iter().map(FireAnswer::ended)).collect(),
        }
    }
}

impl NextFireAnswer {
    fn of(fire: &UpcomingFire) -> Self {
        let UpcomingFire { fire_at, local, why } = fire.clone();
        Self { fire_at: fire_at.to_string(), local, why }
    }
}
