//! Converts messages of `punctual_proto` and gRPC statuses to the types of this crate.
//!
//! An answer that does not make sense becomes [`Error::Answer`]. The builder in `task` writes new
//! tasks directly into their message.

pub(crate) mod alarm;
pub(crate) mod record;

use std::sync::Arc;
use std::time::Duration;

use prost::Message;
use punctual_proto::v1;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::{Code, Status};

use crate::answer::{CancelResult, Touched};
use crate::delivery::{Delivery, DeliveryToken, FireId};
use crate::error::{CallFailure, ExistingTask, Problem, innermost};
use crate::task::{Scheduled, Task, TaskState};
use crate::task_id::TaskId;
use crate::{Error, Timestamp};

/// The metadata of a status with which a broker sends the whole [`Problem`].
pub(crate) const PROBLEM_METADATA: &str = "punctual-problem-bin";

/// The path of `Tasks.ScheduleMany`, which is called with [`SharedBatchCodec`].
pub(crate) const SCHEDULE_MANY: &str = "/punctual.v1.Tasks/ScheduleMany";

/// Encodes a batch that is shared with the sender, which keeps it until the answer, so that sending
/// it again needs no copy.
#[derive(Debug, Default)]
pub(crate) struct SharedBatchCodec;

impl Codec for SharedBatchCodec {
    type Encode = Arc<v1::ScheduleBatch>;
    type Decode = v1::ScheduledBatch;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for SharedBatchCodec {
    type Item = Arc<v1::ScheduleBatch>;
    type Error = Status;

    fn encode(&mut self, batch: Self::Item, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        batch.encode(buffer).map_err(|error| Status::internal(error.to_string()))
    }
}

impl Decoder for SharedBatchCodec {
    type Item = v1::ScheduledBatch;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Self::Item>, Status> {
        let batch = v1::ScheduledBatch::decode(buffer);
        batch.map(Some).map_err(|error| Status::internal(error.to_string()))
    }
}

/// Makes an error of the gRPC status of a call.
pub(crate) fn error_of_status(status: &Status) -> Error {
    match CallFailure::of(status) {
        CallFailure::Unreachable => Error::Unreachable(innermost(status)),
        CallFailure::Lost => Error::Lost(status.message().to_owned()),
        CallFailure::Busy => Error::Busy(status.message().to_owned()),
        CallFailure::Refused => Error::Problem(problem_of_status(status)),
    }
}

/// The problem of a refused call. Without metadata it is made of the code of the status.
fn problem_of_status(status: &Status) -> Problem {
    let problem = status
        .metadata()
        .get_bin(PROBLEM_METADATA)
        .and_then(|problem| v1::Problem::decode(problem.to_bytes().ok()?).ok());
    match problem {
        Some(problem) => problem_of(problem),
        None => Problem {
            kind: "about:blank".to_owned(),
            status: status_number(status.code()),
            detail: status.message().to_owned(),
            field: None,
            existing: None,
        },
    }
}

fn status_number(code: Code) -> u16 {
    match code {
        Code::InvalidArgument | Code::OutOfRange => 400,
        Code::Unauthenticated => 401,
        Code::PermissionDenied => 403,
        Code::NotFound => 404,
        Code::AlreadyExists | Code::Aborted => 409,
        Code::FailedPrecondition => 412,
        Code::ResourceExhausted => 429,
        Code::Unimplemented => 501,
        Code::Unavailable => 503,
        _ => 500,
    }
}

fn problem_of(problem: v1::Problem) -> Problem {
    Problem {
        kind: problem.r#type,
        status: u16::try_from(problem.status).unwrap_or(500),
        detail: problem.detail,
        field: non_empty(problem.field),
        existing: problem.existing.map(|task| ExistingTask {
            id: TaskId::new(task.id),
            fire_at: Timestamp::from_millis(task.fire_at_ms),
            version: task.version,
        }),
    }
}

/// The error for a problem with one request of a batch.
fn error(problem: v1::Problem) -> Error {
    match problem.status {
        // A limit, a pause or a full store: the same request may succeed later.
        429 | 503 | 507 => Error::Busy(problem.detail),
        _ => Error::Problem(problem_of(problem)),
    }
}

/// The answer to one task of a batch. It does not have the key, which the caller knows.
pub(crate) fn schedule_result(result: v1::ScheduleResult) -> Result<Scheduled, Error> {
    match result.result {
        Some(v1::schedule_result::Result::Scheduled(scheduled)) => Ok(Scheduled {
            id: TaskId::new(scheduled.id),
            key: None,
            fire_at: Timestamp::from_millis(scheduled.fire_at_ms),
            version: scheduled.version,
            replaced: scheduled.replaced,
        }),
        Some(v1::schedule_result::Result::Problem(problem)) => Err(error(problem)),
        None => Err(Error::Answer("a result of schedule is empty")),
    }
}

pub(crate) fn schedule_response(answer: v1::ScheduleResponse) -> Result<Scheduled, Error> {
    let task = answer.task.ok_or(Error::Answer("the answer to schedule has no task"))?;
    Ok(Scheduled {
        id: TaskId::new(task.id),
        key: task.sent.and_then(|sent| non_empty(sent.key)),
        fire_at: Timestamp::from_millis(task.fire_at_ms),
        version: task.version,
        replaced: answer.replaced,
    })
}

pub(crate) fn cancel_result(result: v1::CancelResult) -> Result<CancelResult, Error> {
    use v1::cancel_result::Result as CancelAnswer;
    match result.result {
        Some(CancelAnswer::Cancelled(_)) => Ok(CancelResult::Cancelled),
        Some(CancelAnswer::Firing(firing)) => Ok(CancelResult::Firing { attempt: firing.attempt }),
        Some(CancelAnswer::AlreadyFired(fired)) => {
            Ok(CancelResult::AlreadyFired { fired_at: Timestamp::from_millis(fired.fired_at_ms) })
        }
        Some(CancelAnswer::Problem(problem)) if problem.status == 404 => Ok(CancelResult::NotFound),
        Some(CancelAnswer::Problem(problem)) => Err(error(problem)),
        None => Err(Error::Answer("a result of cancel is empty")),
    }
}

pub(crate) fn touched(answer: v1::TouchResponse) -> Touched {
    let problems = answer.problems.into_iter();
    Touched {
        touched: answer.touched,
        created: answer.created,
        missing: answer.missing,
        problems: problems
            .map(|of_key| (of_key.key, of_key.problem.map(error)))
            .map(|(key, why)| (key, why.unwrap_or(Error::Answer("a problem is empty"))))
            .collect(),
    }
}

pub(crate) fn state_filter(state: Option<TaskState>) -> v1::TaskState {
    match state {
        None => v1::TaskState::Unspecified,
        Some(TaskState::Scheduled) => v1::TaskState::Scheduled,
        Some(TaskState::Firing) => v1::TaskState::Firing,
        Some(TaskState::Paused) => v1::TaskState::Paused,
        Some(TaskState::Done) => v1::TaskState::Done,
        Some(TaskState::Dead) => v1::TaskState::Dead,
        Some(TaskState::Cancelled) => v1::TaskState::Cancelled,
    }
}

pub(crate) fn task(task: v1::Task) -> Result<Task, Error> {
    let state = match task.state() {
        v1::TaskState::Scheduled => TaskState::Scheduled,
        v1::TaskState::Firing => TaskState::Firing,
        v1::TaskState::Paused => TaskState::Paused,
        v1::TaskState::Done => TaskState::Done,
        v1::TaskState::Dead => TaskState::Dead,
        v1::TaskState::Cancelled => TaskState::Cancelled,
        v1::TaskState::Unspecified => return Err(Error::Answer("a task has no known state")),
    };
    let end = record::fire_end(task.end());
    let sent = task.sent.ok_or(Error::Answer("a task has no definition"))?;
    Ok(Task {
        id: TaskId::new(task.id),
        namespace: task.namespace,
        key: non_empty(sent.key.clone()),
        state,
        fire_at: Timestamp::from_millis(task.fire_at_ms),
        nominal_at: Timestamp::from_millis(task.nominal_at_ms),
        version: task.version,
        attempt: task.attempt,
        created_at: Timestamp::from_millis(task.created_at_ms),
        updated_at: Timestamp::from_millis(task.updated_at_ms),
        callback_of: non_empty(task.callback_of).map(FireId::new),
        end,
        ended_at: task.ended_at_ms.map(Timestamp::from_millis),
        payload: sent.payload.clone(),
        content_type: sent.content_type.clone(),
        labels: sent.labels.clone(),
        sent,
    })
}

pub(crate) fn delivery(delivery: v1::Delivery) -> Delivery {
    Delivery {
        occasion: record::occasion(delivery.occasion()),
        token: DeliveryToken(delivery.token),
        fire_id: FireId::new(delivery.fire_id),
        task: TaskId::new(delivery.task),
        key: non_empty(delivery.key),
        queue: delivery.queue,
        attempt: delivery.attempt,
        payload: delivery.payload,
        content_type: delivery.content_type,
        fire_at: Timestamp::from_millis(delivery.fire_at_ms),
        fired_at: Timestamp::from_millis(delivery.fired_at_ms),
        version: delivery.version,
        lease: Duration::from_millis(delivery.lease_ms),
        callback_of: non_empty(delivery.callback_of).map(FireId::new),
    }
}

/// `None` for an empty text, which means that the field is not set.
pub(crate) fn non_empty(name: String) -> Option<String> {
    if name.is_empty() { None } else { Some(name) }
}
