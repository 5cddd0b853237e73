//! Tasks: the definition that a caller sends ([`NewTask`]), and the durable record made of it
//! ([`Task`]).
//!
//! The definition of a task that is due once never changes under its id. Replacing it makes a new
//! id, so that a receiver does not mistake the new task for a repetition of the old one. A series
//! or a watch is edited in place, and its version counts the edits.
//!
//! The modules below decide what becomes of a task: `next` what follows a fire, `overlap` fires
//! that are open at the same time, `watch` touches, `edit` new definitions, `occasion` why there
//! is a fire, `redrive` dead letters that are scheduled again, `callback` the tasks that report how
//! fires ended. JSON is in `server/api`, bytes on disk are in the codecs of the stores.

mod callback;
mod edit;
#[cfg(test)]
mod fixtures;
mod next;
mod occasion;
mod overlap;
mod redrive;
mod watch;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::HeaderValue;

use crate::attempt::AttemptRecord;
use crate::limits::{
    CONTENT_TYPE_BYTES_MAX, DELAY_MAX, EXPIRES_AFTER_MIN, PAYLOAD_BYTES_MAX, TIMEOUT_DEFAULT,
    TIMEOUT_MAX, TIMEOUT_MIN,
};
use crate::{
    FireId, Invalid, Labels, Namespace, RetryPolicy, Schedule, Target, TaskId, TaskKey, Timestamp,
    format_duration,
};

pub use callback::{Callbacks, RenderRecord};
pub use edit::Edited;
pub use next::NextStep;
pub use occasion::Occasion;
pub use overlap::OverlappingFire;
pub use redrive::{Origin, Redrive};

/// The definition of a task, as a caller sends it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewTask {
    /// The tenant that the task belongs to.
    pub namespace: Namespace,
    /// The caller's own name for the task, unique in its namespace.
    pub key: Option<TaskKey>,
    /// When the task is due.
    pub schedule: Schedule,
    /// Where its deliveries go.
    pub target: Target,
    /// What its deliveries carry.
    pub payload: Payload,
    /// How often a fire may be received.
    pub guarantee: Guarantee,
    /// When failed attempts are retried.
    pub retry: RetryPolicy,
    /// How long one attempt may take.
    pub timeout: Duration,
    /// How long after its due time, or after its last redrive, a fire is still attempted; `None`:
    /// without limit.
    pub expires_after: Option<Duration>,
    /// Names and values to find the task by.
    pub labels: Labels,
    /// Where the end of each fire is reported. Shared, and behind a pointer because few tasks have
    /// any.
    pub callbacks: Option<Arc<Callbacks>>,
    /// The fire whose end this task reports, if it is a callback.
    pub callback_of: Option<FireId>,
}

impl NewTask {
    /// Makes a definition with defaults for everything but the given parts.
    #[must_use]
    pub fn new(namespace: Namespace, schedule: Schedule, target: Target) -> Self {
        Self {
            namespace,
            key: None,
            schedule,
            target,
            payload: Payload::Empty,
            guarantee: Guarantee::default(),
            retry: RetryPolicy::default(),
            timeout: TIMEOUT_DEFAULT,
            expires_after: None,
            labels: Labels::default(),
            callbacks: None,
            callback_of: None,
        }
    }

    /// Checks all limits. The error names the field as the caller wrote it.
    pub fn check(&self) -> Result<(), Invalid> {
        self.schedule.check()?;
        self.payload.check()?;
        self.retry.check().map_err(|invalid| invalid.within("retry"))?;
        check_between("timeout", self.timeout, TIMEOUT_MIN, TIMEOUT_MAX)?;
        let expires_after = self.expires_after.unwrap_or(DELAY_MAX);
        check_between("expires_after", expires_after, EXPIRES_AFTER_MIN, DELAY_MAX)
    }
}

/// What a delivery carries, byte for byte as the caller gave it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Payload {
    /// No payload.
    #[default]
    Empty,
    /// A JSON value, as text.
    Json(Bytes),
    /// Bytes of any other content type.
    Binary {
        /// The bytes, not inspected.
        bytes: Bytes,
        /// The media type, sent along as it is.
        content_type: Arc<str>,
    },
}

impl Payload {
    /// The bytes to send.
    #[must_use]
    pub fn bytes(&self) -> &Bytes {
        static EMPTY: Bytes = Bytes::new();
        match self {
            Self::Empty => &EMPTY,
            Self::Json(bytes) | Self::Binary { bytes, .. } => bytes,
        }
    }

    /// The media type; `None` without a payload.
    #[must_use]
    pub fn content_type(&self) -> Option<&str> {
        match self {
            Self::Empty => None,
            Self::Json(_) => Some("application/json"),
            Self::Binary { content_type, .. } => Some(content_type),
        }
    }

    fn check(&self) -> Result<(), Invalid> {
        let field = match self {
            Self::Empty | Self::Json(_) => "payload",
            Self::Binary { .. } => "payload_base64",
        };
        let bytes = self.bytes().len();
        if bytes > PAYLOAD_BYTES_MAX {
            let problem = format!("must have at most {PAYLOAD_BYTES_MAX} bytes, has {bytes}");
            return Err(Invalid::new(field, problem));
        }
        let content_type = self.content_type().unwrap_or_default();
        let fits = content_type.len() <= CONTENT_TYPE_BYTES_MAX;
        if !fits || HeaderValue::from_str(content_type).is_err() {
            let problem = format!(
                "must be visible ASCII in one line of at most {CONTENT_TYPE_BYTES_MAX} bytes"
            );
            return Err(Invalid::new("content_type", problem));
        }
        Ok(())
    }
}

/// How often a fire may be received.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub enum Guarantee {
    /// Never twice, perhaps not at all: the claim is durable before the first byte is sent.
    AtMostOnce,
    /// Attempted until one attempt succeeds or none is left.
    #[default]
    AtLeastOnce,
    /// Sent at least once, with a fire id by which the receiver recognises repetitions.
    ExactlyOnce,
}

/// The state of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TaskState {
    /// Waits for its due time or for a retry.
    Scheduled,
    /// An attempt is in flight, or waits for its turn.
    Firing,
    /// Does not fire until it is resumed.
    Paused,
    /// The last fire was acked.
    Done,
    /// The last fire is a dead letter.
    Dead,
    /// Never fires again, because a caller cancelled it.
    Cancelled,
}

/// The number of a version of a task. Each change by a caller makes a new version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(u64);

impl Version {
    /// The version of a new task.
    pub const FIRST: Self = Self(1);

    /// Makes a version of a number that was stored.
    #[must_use]
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// The number to store or to show.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The version after one more change.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

/// The durable record of a task: its definition, its current fire, and its open fires.
///
/// The *current fire* is the one that the task fires next or is firing. `fire_at`, `nominal_at`,
/// `attempts` and `occasion` describe it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Task {
    /// Unique in the whole cluster; contains the first due time and the partition.
    pub id: TaskId,
    /// Shared, because a loaded task, its deliveries and its answers use one copy.
    pub definition: Arc<NewTask>,
    /// When the broker accepted the task.
    pub created_at: Timestamp,
    /// When the task changed last: by a caller, or because a fire was attempted, claimed or
    /// skipped.
    pub updated_at: Timestamp,
    /// `Scheduled` or `Paused`. A watch that has fired and was not touched since is `Done` or
    /// `Dead`, depending on how that fire ended. A record never has another state.
    pub state: TaskState,
    /// When the next attempt is due, with postponements and retries.
    pub fire_at: Timestamp,
    /// When the schedule has the current fire due: `fire_at` before jitter and retries.
    pub nominal_at: Timestamp,
    /// Counts the changes by callers.
    pub version: Version,
    /// The attempts made so far of the current fire.
    pub attempts: Vec<AttemptRecord>,
    /// The nominal time of the next fire, where it does not follow from the current one: the
    /// current fire is a manual one, a touch came while it was in flight, or a later fire was given
    /// out before it.
    pub resumes_at: Option<Timestamp>,
    /// Why there is the current fire.
    pub occasion: Occasion,
    /// For a series: how many nominal times were given out, including `resumes_at`.
    pub fires: u32,
    /// The latest nominal time that was given out, if it is neither `nominal_at` nor `resumes_at`.
    pub given_at: Option<Timestamp>,
    /// For a watch: when it was last armed; `None` if that was at `created_at`.
    pub armed_at: Option<Timestamp>,
    /// The other open fires.
    pub overlapping: Vec<OverlappingFire>,
    /// Set if the current fire was a dead letter before. Boxed, because few tasks have one.
    pub redrive: Option<Box<Redrive>>,
}

impl Task {
    /// Makes the record of a task that was just accepted. Its first fire is due at `id.due()`.
    #[must_use]
    pub fn new(
        id: TaskId,
        definition: Arc<NewTask>,
        created_at: Timestamp,
        version: Version,
    ) -> Self {
        let task = Self {
            id,
            definition,
            created_at,
            updated_at: created_at,
            state: TaskState::Scheduled,
            fire_at: id.due(),
            nominal_at: id.due(),
            version,
            attempts: Vec::new(),
            resumes_at: None,
            occasion: Occasion::Due,
            fires: 1,
            given_at: None,
            armed_at: None,
            overlapping: Vec::new(),
            redrive: None,
        };
        Self { fire_at: task.due_at(), ..task }
    }

    /// The sort key of tasks in order of their due times.
    #[must_use]
    pub const fn position(&self) -> (Timestamp, TaskId) {
        (self.fire_at, self.id)
    }

    /// When the current fire expires; `None` if it never does.
    #[must_use]
    pub fn expires_at(&self) -> Option<Timestamp> {
        let from = self.redrive.as_ref().map_or_else(|| self.due_at(), |redrive| redrive.at);
        self.definition.expires_after.map(|after| from.after(after))
    }
}

fn check_between(
    field: &str,
    given: Duration,
    min: Duration,
    max: Duration,
) -> Result<(), Invalid> {
    if (min..=max).contains(&given) {
        return Ok(());
    }
    let (min, max, given) = (format_duration(min), format_duration(max), format_duration(given));
    Err(Invalid::new(field, format!("must be from {min} to {max}, is {given}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Due, Queue};

    fn new_task() -> NewTask {
        NewTask::new(
            Namespace::new("shop").unwrap(),
            Schedule::Once(Due::In(Duration::from_secs(900))),
            Target::Queue(Queue::new("orders").unwrap()),
        )
    }

    #[test]
    fn a_task_within_all_limits_is_accepted() {
        assert_eq!(new_task().check(), Ok(()));
    }

    #[test]
    fn an_error_names_the_field_and_its_limit() {
        let binary = |len, content_type: &str| Payload::Binary {
            bytes: Bytes::from(vec![0; len]),
            content_type: content_type.into(),
        };
        let day = Duration::from_secs(86_400);
        let content_type = "content_type: must be visible ASCII in one line of at most 128 bytes";
        for (task, want) in [
            (
                NewTask { payload: Payload::Json(vec![b' '; 262_145].into()), ..new_task() },
                "payload: must have at most 262144 bytes, has 262145",
            ),
            (
                NewTask { payload: binary(262_145, "a/b"), ..new_task() },
                "payload_base64: must have at most 262144 bytes, has 262145",
            ),
            (NewTask { payload: binary(1, "a\r\nb"), ..new_task() }, content_type),
            (NewTask { payload: binary(1, &"x".repeat(129)), ..new_task() }, content_type),
            (
                NewTask { timeout: Duration::ZERO, ..new_task() },
                "timeout: must be from 10ms to 15m, is 0s",
            ),
            (NewTask { timeout: day, ..new_task() }, "timeout: must be from 10ms to 15m, is 1d"),
            (
                NewTask { expires_after: Some(Duration::ZERO), ..new_task() },
                "expires_after: must be from 1ms to 36500d, is 0s",
            ),
            (
                NewTask {
                    retry: RetryPolicy { attempts_max: 101, ..RetryPolicy::default() },
                    ..new_task()
                },
                "retry.attempts_max: must be from 1 to 100, is 101",
            ),
            (
                NewTask { schedule: Schedule::Once(Due::In(Duration::MAX)), ..new_task() },
                "in: must be from 0s to 36500d, is 213503982334d14h25m51s615ms",
            ),
        ] {
            assert_eq!(task.check().unwrap_err().to_string(), want);
        }
    }

    #[test]
    fn all_attempts_of_a_fire_have_the_same_fire_id() {
        let id = TaskId::floor(Timestamp::from_millis(7));
        let mut task = Task::new(id, new_task().into(), Timestamp::EPOCH, Version::FIRST);
        let before = task.fire().id;
        task.fire_at = Timestamp::from_millis(1000);
        assert_eq!(task.fire().id, before);
        task.nominal_at = Timestamp::from_millis(1000);
        assert_ne!(task.fire().id, before);
    }
}
