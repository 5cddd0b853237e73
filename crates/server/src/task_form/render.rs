//! Writes tasks as JSON: their state, and every field that was sent, defaults included.
//!
//! A task that has ended is shown from its dead letter, which has all fields, or from the last
//! record of its history ([`EndedTask`]), which has only some.

use std::borrow::Cow;
use std::fmt::Display;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use punctual_core::{
    DeadLetter, FireEnd, FireRecord, Guarantee, NewTask, Origin, Payload, Task, TaskId, TaskState,
    Timestamp, format_duration,
};
use serde::{Serialize, Serializer};
use utoipa::ToSchema;

use super::body::{GuaranteeBody, TaskBody};
use super::document::TaskFields;
use super::retry::RetryBody;
use super::target::TargetBody;
use crate::schema::{FireIdText, InstantText, KeyText, TaskIdText, documented, one_of};

/// A task with its state.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Task)]
pub(crate) struct TaskAnswer<'a> {
    /// The id that the broker gave the task.
    #[serde(serialize_with = "text")]
    #[schema(value_type = TaskIdText)]
    id: TaskId,
    namespace: &'a str,
    /// The state of the task.
    #[schema(value_type = StateName)]
    state: &'static str,
    /// When the task is due next.
    #[serde(serialize_with = "text")]
    #[schema(value_type = InstantText)]
    fire_at: Timestamp,
    /// When the schedule makes the current fire due. Absent if it is `fire_at`; jitter and retries
    /// make a difference.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<InstantText>)]
    nominal_at: Option<String>,
    /// Counts the changes that callers made to the task; also the `ETag`.
    version: u64,
    /// Attempts of the current fire so far, one in flight included.
    attempt: u32,
    /// Present if the current fire is a dead letter that was redriven.
    #[serde(skip_serializing_if = "Option::is_none")]
    redriven: Option<RedrivenFire>,
    /// When the task was created.
    #[serde(serialize_with = "text")]
    #[schema(value_type = InstantText)]
    created_at: Timestamp,
    /// When the task changed last: by a caller, or because an attempt ended.
    #[serde(serialize_with = "text")]
    #[schema(value_type = InstantText)]
    updated_at: Timestamp,
    /// The fire whose end the task reports, if it is a callback.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<FireIdText>)]
    callback_of: Option<String>,
    #[serde(flatten)]
    #[schema(value_type = TaskFields)]
    sent: TaskBody<'a>,
}

/// A fire that is a dead letter scheduled again.
#[derive(Debug, Serialize, ToSchema)]
struct RedrivenFire {
    /// The fire id, the same as before. It begins with the id of the task that the fire belongs to,
    /// which is another one if that task had continued.
    fire_id: String,
    /// When the fire was redriven, in RFC 3339. `expires_after` counts from then.
    at: String,
}

impl<'a> TaskAnswer<'a> {
    /// The task in its current state.
    pub(crate) fn of(task: &'a Task) -> Self {
        Self::in_state(task, task.state)
    }

    /// The task, shown in another state.
    pub(crate) fn in_state(task: &'a Task, state: TaskState) -> Self {
        let firing = u32::from(state == TaskState::Firing);
        let redriven = task.redrive.as_ref().map(|redrive| RedrivenFire {
            fire_id: task.fire().id.to_string(),
            at: redrive.at.to_string(),
        });
        Self {
            id: task.id,
            namespace: task.definition.namespace.as_str(),
            state: state_name(state),
            fire_at: task.fire_at,
            nominal_at: (task.nominal_at != task.fire_at).then(|| task.nominal_at.to_string()),
            version: task.version.get(),
            attempt: task.attempt_next().get() - 1 + firing,
            redriven,
            created_at: task.created_at,
            updated_at: task.updated_at,
            callback_of: task.definition.callback_of.map(|fire_id| fire_id.to_string()),
            sent: TaskBody::of(&task.definition),
        }
    }

    /// The task in a dead letter: with the id and the key of the task that the fire belongs to.
    pub(crate) fn of_dead_letter(letter: &'a DeadLetter) -> Self {
        let task = &letter.task;
        let mut answer = Self::in_state(task, TaskState::Dead);
        if let Some(Origin { fire_id, key }) = task.origin() {
            answer.id = fire_id.task;
            answer.sent.key = key.as_ref().map(|key| key.as_str().to_owned());
        }
        answer
    }
}

/// Serializes a value as its text, without an intermediate string.
fn text<S: Serializer>(value: &impl Display, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

/// A task that has ended and has no dead letter, as its history records it.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct EndedTask<'a> {
    #[schema(value_type = TaskIdText)]
    id: String,
    namespace: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<KeyText>)]
    key: Option<&'a str>,
    #[schema(value_type = StateName)]
    state: &'static str,
    /// How its last fire ended: `replaced` means that a new task has its key, `skipped` that a
    /// misfire or overlap policy, or a pause, skipped it.
    #[schema(value_type = EndName)]
    end: &'static str,
    /// When the last fire was due by the schedule.
    #[schema(value_type = InstantText)]
    fire_at: String,
    /// When the first attempt of the last fire was sent; `null` if none was.
    #[schema(value_type = Option<InstantText>)]
    fired_at: Option<String>,
    #[schema(value_type = InstantText)]
    ended_at: String,
    /// Attempts of the last fire.
    attempt: u32,
}

impl<'a> EndedTask<'a> {
    pub(crate) fn of(record: &'a FireRecord) -> Self {
        let state = match record.end {
            FireEnd::Done => TaskState::Done,
            FireEnd::Dead(_) => TaskState::Dead,
            // A replaced task does not fire, either: another task has its key.
            FireEnd::Cancelled | FireEnd::Replaced => TaskState::Cancelled,
            // The last fires of the series were skipped.
            FireEnd::Skipped(_) => TaskState::Done,
        };
        let first = record.first_attempt();
        Self {
            id: record.fire_id.task.to_string(),
            namespace: record.namespace.as_str(),
            key: record.key.as_ref().map(|key| key.as_str()),
            state: state_name(state),
            end: end_name(record.end),
            fire_at: record.fire_id.nominal_at.to_string(),
            fired_at: first.map(|first| first.fired_at.to_string()),
            ended_at: record.ended_at.to_string(),
            attempt: record.attempts.last().map_or(0, |last| last.number.get()),
        }
    }
}

documented!(
    /// The state of a task.
    StateName,
    "State",
    one_of(
        [
            TaskState::Scheduled,
            TaskState::Firing,
            TaskState::Paused,
            TaskState::Done,
            TaskState::Dead,
            TaskState::Cancelled,
        ]
        .map(state_name)
    )
);
documented!(
    /// How a fire ended.
    EndName,
    "FireEnd",
    one_of(["done", "dead", "cancelled", "replaced", "skipped"])
);

/// The wire name of how a fire ended.
pub(crate) const fn end_name(end: FireEnd) -> &'static str {
    match end {
        FireEnd::Done => "done",
        FireEnd::Dead(_) => "dead",
        FireEnd::Cancelled => "cancelled",
        FireEnd::Replaced => "replaced",
        FireEnd::Skipped(_) => "skipped",
    }
}

const fn state_name(state: TaskState) -> &'static str {
    match state {
        TaskState::Scheduled => "scheduled",
        TaskState::Firing => "firing",
        TaskState::Paused => "paused",
        TaskState::Done => "done",
        TaskState::Dead => "dead",
        TaskState::Cancelled => "cancelled",
    }
}

impl<'a> TaskBody<'a> {
    /// The fields that were sent, defaults included.
    fn of(task: &'a NewTask) -> Self {
        let (payload, payload_base64, content_type) = match &task.payload {
            Payload::Empty => (None, None, None),
            Payload::Json(json) => (serde_json::from_slice(json).ok(), None, None),
            Payload::Binary { bytes, content_type } => {
                (None, Some(STANDARD.encode(bytes)), Some(Cow::Borrowed(&**content_type)))
            }
        };
        let callbacks = task.callbacks.as_deref();
        let on_done = callbacks.and_then(|callbacks| callbacks.on_done.as_ref());
        let on_dead = callbacks.and_then(|callbacks| callbacks.on_dead.as_ref());
        let mut body = Self {
            key: task.key.as_ref().map(|key| key.as_str().to_owned()),
            target: TargetBody::of(&task.target),
            payload,
            payload_base64,
            content_type,
            guarantee: Some(GuaranteeBody::of(task.guarantee)),
            retry: Some(RetryBody::of(&task.retry)),
            timeout: Some(format_duration(task.timeout)),
            expires_after: task.expires_after.map(format_duration),
            labels: task.labels.iter().map(|(n, v)| (n.to_owned(), v.to_owned())).collect(),
            on_done: on_done.and_then(TargetBody::of),
            on_dead: on_dead.and_then(TargetBody::of),
            ..Self::default()
        };
        body.set_schedule(&task.schedule);
        body
    }
}

impl GuaranteeBody {
    const fn of(guarantee: Guarantee) -> Self {
        match guarantee {
            Guarantee::AtMostOnce => Self::AtMostOnce,
            Guarantee::AtLeastOnce => Self::AtLeastOnce,
            Guarantee::ExactlyOnce => Self::ExactlyOnce,
        }
    }
}
