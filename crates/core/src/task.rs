//! Tasks: what a caller asks for, and what becomes of it.
//!
//! In: the parts that a caller sent, each already checked on its own. Out: a [`NewTask`] within all
//! limits; with an id and a standing it is a [`Task`], the durable record.
//! Invariant: the definition of a task that is due once never changes under its id; replacing it makes a new id, so that a
//! receiver never takes the new one for a repetition of the old. One that goes on is edited in place, and its version says so.
//! Not here: JSON (`server/api`), bytes on disk (the stores' codecs).

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::HeaderValue;

use crate::course::{Occasion, OverlappingFire};
use crate::fire::{AttemptNo, AttemptRecord, Fire};
use crate::limits::{
    ATTEMPTS_MAX, CONTENT_TYPE_BYTES_MAX, DELAY_MAX, PAYLOAD_BYTES_MAX, TIMEOUT_DEFAULT,
    TIMEOUT_MAX, TIMEOUT_MIN,
};
use crate::{
    FireId, Invalid, Labels, Namespace, RetryPolicy, Schedule, Target, TaskId, TaskKey, Timestamp,
    format_duration,
};

/// What a caller asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewTask {
    /// Whose.
    pub namespace: Namespace,
    /// The caller's own name for it, if any.
    pub key: Option<TaskKey>,
    /// When.
    pub schedule: Schedule,
    /// Where to.
    pub target: Target,
    /// What.
    pub payload: Payload,
    /// How often at least and at most.
    pub guarantee: Guarantee,
    /// What to do about failed attempts.
    pub retry: RetryPolicy,
    /// How long one attempt may take.
    pub timeout: Duration,
    /// How long after its time a fire still makes sense.
    pub expires_after: Option<Duration>,
    /// What to find it by.
    pub labels: Labels,
}

impl NewTask {
    /// A task with everything but the essentials left at its default.
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
        }
    }

    /// Checks all limits, naming the field as the caller wrote it.
    pub fn check(&self) -> Result<(), Invalid> {
        self.schedule.check()?;
        self.payload.check()?;
        self.retry.check().map_err(|invalid| invalid.within("retry"))?;
        check_between("timeout", self.timeout, TIMEOUT_MIN, TIMEOUT_MAX)?;
        let expires_after = self.expires_after.unwrap_or(DELAY_MAX);
        check_between("expires_after", expires_after, Duration::from_millis(1), DELAY_MAX)
    }
}

/// Opaque bytes of the caller, in the way they were given.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Payload {
    /// None.
    #[default]
    Empty,
    /// A JSON value, as text.
    Json(Bytes),
    /// Anything else.
    Binary {
        /// As given.
        bytes: Bytes,
        /// What they are.
        content_type: Arc<str>,
    },
}

impl Payload {
    /// What travels.
    #[must_use]
    pub fn bytes(&self) -> &Bytes {
        static EMPTY: Bytes = Bytes::new();
        match self {
            Self::Empty => &EMPTY,
            Self::Json(bytes) | Self::Binary { bytes, .. } => bytes,
        }
    }

    /// What it is.
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

/// How often a fire is received.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub enum Guarantee {
    /// Never twice, perhaps not at all: the claim is durable before the first byte is sent.
    AtMostOnce,
    /// Until one attempt succeeds or none is left.
    #[default]
    AtLeastOnce,
    /// At least once, with a fire id that the receiver dedups on.
    ExactlyOnce,
}

/// Where a task stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TaskState {
    /// Waits for its time, be it the first or that of a retry.
    Scheduled,
    /// An attempt is under way.
    Firing,
    /// Waits to be resumed.
    Paused,
    /// Its last fire was acked.
    Done,
    /// Its last fire is a dead letter.
    Dead,
    /// Was stopped before its next fire.
    Cancelled,
}

/// Counts the changes that a caller made to a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(u64);

impl Version {
    /// Of a task under a new name.
    pub const FIRST: Self = Self(1);

    /// From a number, as a codec keeps it.
    #[must_use]
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// After one more change.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

/// The durable record: what was asked for, and how far it has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Task {
    /// Which.
    pub id: TaskId,
    /// What was asked for. Shared: a loaded task, its deliveries and its answers use one copy.
    pub definition: Arc<NewTask>,
    /// When it was taken.
    pub created_at: Timestamp,
    /// `Scheduled` or `Paused`; a watch that has fired and was not touched since is `Done` or `Dead`, by how that fire ended. The
    /// other states are not kept in a record.
    pub state: TaskState,
    /// When it is next due, postponements and retries included.
    pub fire_at: Timestamp,
    /// When its present fire is due by the schedule: `fire_at` before any retry.
    pub nominal_at: Timestamp,
    /// Which change of it this is.
    pub version: Version,
    /// The attempts already made of its present fire.
    pub attempts: Vec<AttemptRecord>,
    /// When it is due by its schedule after its present fire, where that does not follow from it: somebody asked for that fire besides,
    /// a touch came while it was under way, or a later one was given out before.
    pub resumes_at: Option<Timestamp>,
    /// Why there is its present fire.
    pub occasion: Occasion,
    /// Of a task that is due again and again: how many nominal times were given out, `resumes_at` included.
    pub fires: u32,
    /// The latest of those nominal times, where neither its present fire nor `resumes_at` is it.
    pub given_at: Option<Timestamp>,
    /// Of a watch: when it was armed, if not when it was made.
    pub armed_at: Option<Timestamp>,
    /// Fires that are not over, beside the present one.
    pub overlapping: Vec<OverlappingFire>,
}

impl Task {
    /// A task just taken.
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
        };
        Self { fire_at: task.due_at(), ..task }
    }

    /// Its place in the order in which tasks are due.
    #[must_use]
    pub const fn position(&self) -> (Timestamp, TaskId) {
        (self.fire_at, self.id)
    }

    /// The fire that it stands before.
    #[must_use]
    pub const fn fire(&self) -> Fire {
        let id = FireId { task: self.id, nominal_at: self.nominal_at };
        Fire { id, fire_at: self.fire_at }
    }

    /// The number of the attempt that comes next.
    #[must_use]
    pub fn attempt_next(&self) -> AttemptNo {
        let made = u16::try_from(self.attempts.len()).unwrap_or(ATTEMPTS_MAX);
        AttemptNo::new(made.saturating_add(1))
    }

    /// When its present fire no longer makes sense.
    #[must_use]
    pub fn expires_at(&self) -> Option<Timestamp> {
        self.definition.expires_after.map(|after| self.due_at().after(after))
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
    fn a_task_within_all_limits_is_taken() {
        assert_eq!(new_task().check(), Ok(()));
    }

    #[test]
    fn a_refused_task_says_the_field_and_the_limit() {
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
    fn a_fire_besides_the_schedule_is_another_one_and_leaves_the_schedule_as_it_was() {
        let id = TaskId::floor(Timestamp::from_millis(7000));
        let task = Task::new(id, new_task().into(), Timestamp::EPOCH, Version::FIRST);
        let next = |task: &Task| task.next_step(TaskState::Done, Timestamp::MAX).next;
        assert_eq!(next(&task), None, "due once");
        let besides = task.clone().fired_manually(Timestamp::from_millis(5));
        assert_ne!(besides.fire().id, task.fire().id);
        assert_eq!(besides.fire_at, Timestamp::from_millis(5));
        assert_eq!(next(&besides), Some(task));
    }

    #[test]
    fn the_fire_of_a_task_stays_the_same_over_its_retries() {
        let id = TaskId::floor(Timestamp::from_millis(7));
        let mut task = Task::new(id, new_task().into(), Timestamp::EPOCH, Version::FIRST);
        let before = task.fire().id;
        task.fire_at = Timestamp::from_millis(1000);
        assert_eq!(task.fire().id, before);
        task.nominal_at = Timestamp::from_millis(1000);
        assert_ne!(task.fire().id, before);
    }
}
