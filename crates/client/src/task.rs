//! Tasks: the builder of a new one ([`NewTask`]), the answer to it ([`Scheduled`]), and the state
//! of an existing one ([`Task`]).
//!
//! The builder writes into the message of the wire and checks nothing: the broker does, and its
//! errors name the field. `namespace` and `batch` send the message.

mod series;
mod target;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use punctual_proto::v1;
use serde::Serialize;

use crate::record::FireEnd;
use crate::task_id::TaskId;
use crate::time::millis_up;
use crate::{Error, FireId, Problem, Timestamp};

pub use series::{Gap, Misfire, Overlap, Twice};
pub use target::Target;

const JSON: &str = "application/json";

/// How often a fire may be received.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Guarantee {
    /// Attempted until one attempt succeeds or none is left. The default.
    #[default]
    AtLeastOnce,
    /// Never twice, perhaps not at all. A fire whose outcome is unknown becomes a dead letter.
    AtMostOnce,
    /// Sent at least once; the worker recognises repetitions by the fire id. See [`crate::Dedup`].
    ExactlyOnce,
}

/// How often and when failed attempts are retried.
#[derive(Debug, Clone, PartialEq)]
pub struct Retry(pub(crate) v1::Retry);

impl Retry {
    /// All attempts, including the first, with the default backoff of the broker.
    #[must_use]
    pub fn attempts_max(attempts: u32) -> Self {
        Self(v1::Retry { attempts_max: attempts, ..v1::Retry::default() })
    }

    /// The same pause each time.
    #[must_use]
    pub fn fixed(mut self, pause: Duration) -> Self {
        self.0.backoff = Some(v1::retry::Backoff::FixedMs(millis_up(pause)));
        self
    }

    /// A pause that starts with `first` and is multiplied by `factor` each time, up to `max`.
    #[must_use]
    pub fn exponential(mut self, first: Duration, factor: f64, max: Duration) -> Self {
        self.0.backoff = Some(v1::retry::Backoff::Exponential(v1::Exponential {
            first_ms: millis_up(first),
            factor,
            max_ms: millis_up(max),
        }));
        self
    }

    /// One pause for each further attempt; the last one is repeated.
    #[must_use]
    pub fn list(mut self, pauses: impl IntoIterator<Item = Duration>) -> Self {
        let pauses_ms = pauses.into_iter().map(millis_up).collect();
        self.0.backoff = Some(v1::retry::Backoff::List(v1::BackoffList { pauses_ms }));
        self
    }

    /// Lengthens each pause randomly by up to this fraction, from 0 to 1, so that fires that failed
    /// together are not retried together.
    #[must_use]
    pub fn jitter(mut self, share: f64) -> Self {
        self.0.jitter = Some(share);
        self
    }
}

/// A task to schedule.
///
/// One from [`crate::Namespace::task`] belongs to a namespace and ends with `schedule().await`. One
/// from [`NewTask::new`] is for [`crate::Namespace::schedule_many`] and [`crate::Touch::create`].
#[derive(Debug)]
#[must_use = "a task does nothing until it is scheduled"]
pub struct NewTask<To = ()> {
    pub(crate) to: To,
    pub(crate) message: v1::NewTask,
    /// The options of a cron expression, which may be set before the expression.
    pub(crate) cron: v1::Cron,
    pub(crate) condition: Option<v1::schedule_request::Condition>,
    pub(crate) idempotency_key: String,
    /// The first error of a method. It is returned when the task is scheduled, so that methods can
    /// be chained.
    pub(crate) problem: Option<Error>,
}

impl NewTask {
    /// Makes a task without a namespace.
    pub fn new() -> Self {
        Self::to(())
    }
}

impl Default for NewTask {
    fn default() -> Self {
        Self::new()
    }
}

impl<To> NewTask<To> {
    pub(crate) fn to(to: To) -> Self {
        Self {
            to,
            message: v1::NewTask::default(),
            cron: v1::Cron::default(),
            condition: None,
            idempotency_key: String::new(),
            problem: None,
        }
    }

    /// The caller's own name for the task, unique in its namespace. Scheduling another task with
    /// the same key replaces it.
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.message.key = key.into();
        self
    }

    /// Due once, `delay` after the broker has accepted the task.
    pub fn delay(self, delay: Duration) -> Self {
        self.when(v1::new_task::When::InMs(millis_up(delay)))
    }

    /// Due once, at an instant: a [`std::time::SystemTime`] or a [`Timestamp`].
    pub fn at(self, fire_at: impl Into<Timestamp>) -> Self {
        self.when(v1::new_task::When::AtMs(fire_at.into().as_millis()))
    }

    /// Due at a fixed interval. The first fire is one interval after the broker has accepted the
    /// task, or at [`NewTask::starts_at`].
    pub fn every(self, interval: Duration) -> Self {
        self.when(v1::new_task::When::EveryMs(millis_up(interval)))
    }

    /// A watch: due if it is not touched for this long. After it has fired, the next touch arms it
    /// again.
    pub fn within(self, within: Duration) -> Self {
        self.when(v1::new_task::When::WithinMs(millis_up(within)))
    }

    /// Due at the times of a cron expression, in UTC or in [`NewTask::timezone`].
    pub fn cron(self, expression: impl Into<String>) -> Self {
        let expression = expression.into();
        self.when(v1::new_task::When::Cron(v1::Cron { expression, ..v1::Cron::default() }))
    }

    /// Delivers to the workers of a queue.
    pub fn queue(self, queue: impl Into<String>) -> Self {
        self.target(Target::queue(queue))
    }

    /// Delivers to a webhook by `POST`.
    pub fn http(self, url: impl Into<String>) -> Self {
        self.target(Target::http(url))
    }

    /// Delivers to a webhook with another method and with headers.
    pub fn http_with(
        self,
        url: impl Into<String>,
        method: impl Into<String>,
        headers: impl IntoIterator<Item = (String, String)>,
    ) -> Self {
        let target = Target::http(url).method(method);
        let add = |target: Target, (name, value)| target.header(name, value);
        self.target(headers.into_iter().fold(target, add))
    }

    /// Carries bytes of a content type. An empty one means `application/octet-stream`.
    pub fn payload(mut self, payload: impl Into<Bytes>, content_type: impl Into<String>) -> Self {
        self.message.payload = payload.into();
        self.message.content_type = content_type.into();
        self
    }

    /// Carries a value as JSON.
    pub fn payload_json(mut self, value: &(impl Serialize + ?Sized)) -> Self {
        match serde_json::to_vec(value) {
            Ok(json) => return self.payload(json, JSON),
            Err(error) => _ = self.problem.get_or_insert(Error::Payload(Arc::new(error))),
        }
        self
    }

    /// How often a fire may be received. The default is at least once.
    pub fn guarantee(mut self, guarantee: Guarantee) -> Self {
        let guarantee = match guarantee {
            Guarantee::AtLeastOnce => v1::Guarantee::AtLeastOnce,
            Guarantee::AtMostOnce => v1::Guarantee::AtMostOnce,
            Guarantee::ExactlyOnce => v1::Guarantee::ExactlyOnce,
        };
        self.message.guarantee = guarantee.into();
        self
    }

    /// How often and when failed attempts are retried.
    pub fn retry(mut self, retry: Retry) -> Self {
        self.message.retry = Some(retry.0);
        self
    }

    /// How long one attempt may take.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.message.timeout_ms = millis_up(timeout);
        self
    }

    /// How long after its due time a fire is still attempted.
    pub fn expires_after(mut self, expires_after: Duration) -> Self {
        self.message.expires_after_ms = millis_up(expires_after);
        self
    }

    /// Adds a label, to find the task by.
    pub fn label(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.message.labels.insert(name.into(), value.into());
        self
    }

    /// The message to send, or the first error of a method.
    pub(crate) fn into_message(mut self) -> Result<v1::NewTask, Error> {
        if let Some(problem) = self.problem {
            return Err(problem);
        }
        match &mut self.message.when {
            Some(v1::new_task::When::Cron(cron)) => {
                let expression = std::mem::take(&mut cron.expression);
                *cron = v1::Cron { expression, ..self.cron };
            }
            // The message has no field for it, so the broker cannot refuse it.
            _ if self.cron != v1::Cron::default() => {
                let detail = "timezone: goes with `cron` only";
                return Err(Error::Problem(Problem::of_field("timezone", detail)));
            }
            _ => {}
        }
        Ok(self.message)
    }

    fn when(mut self, when: v1::new_task::When) -> Self {
        self.message.when = Some(when);
        self
    }
}

/// The answer to a scheduled task, which is durable now.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Scheduled {
    /// The id of the task.
    pub id: TaskId,
    /// The key of the task, if it has one.
    pub key: Option<String>,
    /// When it is first due.
    pub fire_at: Timestamp,
    /// Grows with each replacement and touch.
    pub version: u64,
    /// Whether it replaced a task with the same key.
    pub replaced: bool,
}

impl Scheduled {
    /// Adds the key that was sent. An empty one is none.
    pub(crate) fn set_key(&mut self, key: String) {
        self.key = Some(key).filter(|key| !key.is_empty());
    }
}

/// The state of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum TaskState {
    /// Waits for its due time or for a retry.
    Scheduled,
    /// An attempt is in flight, or waits for its turn.
    Firing,
    /// Does not fire until it is resumed.
    Paused,
    /// The last fire succeeded. A watch stays in this state until it is touched.
    Done,
    /// The last fire is a dead letter.
    Dead,
    /// Never fires again, because a caller cancelled it.
    Cancelled,
}

/// A task of the broker.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Task {
    /// The id that the broker gave it.
    pub id: TaskId,
    /// The namespace that it belongs to.
    pub namespace: String,
    /// The caller's own name for it.
    pub key: Option<String>,
    /// What it waits for, or how it ended.
    pub state: TaskState,
    /// When the next attempt is due.
    pub fire_at: Timestamp,
    /// When the schedule has the current fire due: `fire_at` before jitter and retries.
    pub nominal_at: Timestamp,
    /// Grows with each replacement and touch.
    pub version: u64,
    /// Attempts of the current fire so far.
    pub attempt: u32,
    /// When the broker accepted the task.
    pub created_at: Timestamp,
    /// When it changed last: by a caller, or because an attempt ended.
    pub updated_at: Timestamp,
    /// The fire whose end it reports, if it is a callback.
    pub callback_of: Option<FireId>,
    /// How its last fire ended, if the task has ended. History keeps only some fields of such a
    /// task.
    pub end: Option<FireEnd>,
    /// When the task ended.
    pub ended_at: Option<Timestamp>,
    /// The bytes that its deliveries carry.
    pub payload: Bytes,
    /// The media type of the payload.
    pub content_type: String,
    /// Names and values to find it by.
    pub labels: BTreeMap<String, String>,
    pub(crate) sent: v1::NewTask,
}

impl Task {
    /// Schedule, target, retry policy and all else that was sent, as the message of the gRPC API.
    #[must_use]
    pub fn definition(&self) -> &v1::NewTask {
        &self.sent
    }
}
