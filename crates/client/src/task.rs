//! A task: as asked for ([`NewTask`]), as it was filed ([`Scheduled`]), and as it stands ([`Task`]).
//!
//! In: the caller's wishes, one method each. Out: what travels.
//! Invariant: nothing is checked here that the broker checks; it names the field, and there is one truth.
//! Not here: sending it (`namespace`, `batch`).

mod series;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use punctual_proto::v1;
use serde::Serialize;

use crate::time::millis_up;
use crate::{Error, Problem, Timestamp};

pub use series::{Gap, Misfire, Overlap, Twice};

const JSON: &str = "application/json";

/// Which task, as the broker calls it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId(String);

impl TaskId {
    pub(crate) fn new(id: String) -> Self {
        Self(id)
    }

    /// As it is printed.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<&str> for TaskId {
    fn from(id: &str) -> Self {
        Self(id.to_owned())
    }
}

/// How often a fire is received, at the worst.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Guarantee {
    /// Until an attempt succeeds or they are used up. The default.
    #[default]
    AtLeastOnce,
    /// Once or not at all; a fire whose outcome is unknown ends as a dead letter.
    AtMostOnce,
    /// At least once, with a fire id that the worker dedups on: see [`crate::Dedup`].
    ExactlyOnce,
}

/// How a failed attempt is tried again.
#[derive(Debug, Clone, PartialEq)]
pub struct Retry(pub(crate) v1::Retry);

impl Retry {
    /// So many attempts in all, with the broker's default backoff.
    #[must_use]
    pub fn attempts_max(attempts: u32) -> Self {
        Self(v1::Retry { attempts_max: attempts, ..v1::Retry::default() })
    }

    /// Always the same pause.
    #[must_use]
    pub fn fixed(mut self, pause: Duration) -> Self {
        self.0.backoff = Some(v1::retry::Backoff::FixedMs(millis_up(pause)));
        self
    }

    /// A pause that grows by `factor` from `first` to `max`.
    #[must_use]
    pub fn exponential(mut self, first: Duration, factor: f64, max: Duration) -> Self {
        self.0.backoff = Some(v1::retry::Backoff::Exponential(v1::Exponential {
            first_ms: millis_up(first),
            factor,
            max_ms: millis_up(max),
        }));
        self
    }

    /// These pauses one after the other, the last one again and again.
    #[must_use]
    pub fn list(mut self, pauses: impl IntoIterator<Item = Duration>) -> Self {
        let pauses_ms = pauses.into_iter().map(millis_up).collect();
        self.0.backoff = Some(v1::retry::Backoff::List(v1::BackoffList { pauses_ms }));
        self
    }

    /// Pauses vary by this share, from 0 to 1, so that what failed together does not come back together.
    #[must_use]
    pub fn jitter(mut self, share: f64) -> Self {
        self.0.jitter = Some(share);
        self
    }
}

/// A task as asked for.
///
/// From [`crate::Namespace::task`] it knows where it goes and ends with `schedule().await`. Made by
/// [`NewTask::new`] it is for [`crate::Namespace::schedule_many`] and for [`crate::Touch::create`].
#[derive(Debug)]
#[must_use = "a task does nothing until it is scheduled"]
pub struct NewTask<To = ()> {
    pub(crate) to: To,
    pub(crate) message: v1::NewTask,
    /// What is wished beside a cron expression, in whatever order.
    pub(crate) cron: v1::Cron,
    pub(crate) condition: Option<v1::schedule_request::Condition>,
    pub(crate) idempotency_key: String,
    /// The first wish that cannot be written down; told when it is scheduled, so that wishes chain.
    pub(crate) problem: Option<Error>,
}

impl NewTask {
    /// A task that is not yet of any namespace.
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

    /// The caller's own name: the same key is the same task, and scheduling it again replaces it.
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.message.key = key.into();
        self
    }

    /// Due so long after the broker has taken it.
    pub fn delay(self, delay: Duration) -> Self {
        self.when(v1::new_task::When::InMs(millis_up(delay)))
    }

    /// Due at this instant: a [`std::time::SystemTime`] or a [`Timestamp`].
    pub fn at(self, fire_at: impl Into<Timestamp>) -> Self {
        self.when(v1::new_task::When::AtMs(fire_at.into().as_millis()))
    }

    /// Due again and again, a fixed interval apart, from so long after the broker has taken it; or from
    /// [`NewTask::starts_at`].
    pub fn every(self, interval: Duration) -> Self {
        self.when(v1::new_task::When::EveryMs(millis_up(interval)))
    }

    /// A watch: due when it was not touched for so long. The touch after that arms it again.
    pub fn within(self, within: Duration) -> Self {
        self.when(v1::new_task::When::WithinMs(millis_up(within)))
    }

    /// Due by a cron expression, in UTC unless [`NewTask::timezone`] says otherwise.
    pub fn cron(self, expression: impl Into<String>) -> Self {
        let expression = expression.into();
        self.when(v1::new_task::When::Cron(v1::Cron { expression, ..v1::Cron::default() }))
    }

    /// Delivered to the workers of this queue.
    pub fn queue(self, queue: impl Into<String>) -> Self {
        self.target(v1::target::To::Queue(queue.into()))
    }

    /// Delivered by `POST` to this URL.
    pub fn http(self, url: impl Into<String>) -> Self {
        let url = url.into();
        self.target(v1::target::To::Http(v1::HttpTarget { url, ..v1::HttpTarget::default() }))
    }

    /// Delivered to this URL by another method and with these headers.
    pub fn http_with(
        self,
        url: impl Into<String>,
        method: impl Into<String>,
        headers: impl IntoIterator<Item = (String, String)>,
    ) -> Self {
        let (url, method) = (url.into(), method.into());
        let headers = headers.into_iter().collect();
        self.target(v1::target::To::Http(v1::HttpTarget { url, method, headers }))
    }

    /// Any bytes, and what they are; an empty content type is `application/octet-stream`.
    pub fn payload(mut self, payload: impl Into<Bytes>, content_type: impl Into<String>) -> Self {
        self.message.payload = payload.into();
        self.message.content_type = content_type.into();
        self
    }

    /// A value, written as JSON.
    pub fn payload_json(mut self, value: &(impl Serialize + ?Sized)) -> Self {
        match serde_json::to_vec(value) {
            Ok(json) => return self.payload(json, JSON),
            Err(error) => _ = self.problem.get_or_insert(Error::Payload(Arc::new(error))),
        }
        self
    }

    /// How often it is received, at the worst.
    pub fn guarantee(mut self, guarantee: Guarantee) -> Self {
        let guarantee = match guarantee {
            Guarantee::AtLeastOnce => v1::Guarantee::AtLeastOnce,
            Guarantee::AtMostOnce => v1::Guarantee::AtMostOnce,
            Guarantee::ExactlyOnce => v1::Guarantee::ExactlyOnce,
        };
        self.message.guarantee = guarantee.into();
        self
    }

    /// How a failed attempt is tried again.
    pub fn retry(mut self, retry: Retry) -> Self {
        self.message.retry = Some(retry.0);
        self
    }

    /// How long one attempt may take.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.message.timeout_ms = millis_up(timeout);
        self
    }

    /// How long after its time a fire still makes sense.
    pub fn expires_after(mut self, expires_after: Duration) -> Self {
        self.message.expires_after_ms = millis_up(expires_after);
        self
    }

    /// For listing and grouping.
    pub fn label(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.message.labels.insert(name.into(), value.into());
        self
    }

    /// The task as it travels, unless a wish could not be written down.
    pub(crate) fn into_message(mut self) -> Result<v1::NewTask, Error> {
        if let Some(problem) = self.problem {
            return Err(problem);
        }
        match &mut self.message.when {
            Some(v1::new_task::When::Cron(cron)) => {
                let expression = std::mem::take(&mut cron.expression);
                *cron = v1::Cron { expression, ..self.cron };
            }
            // There is no place for it in the message, or the broker would say the same.
            _ if self.cron != v1::Cron::default() => {
                return Err(Error::Problem(Problem {
                    kind: "urn:punctual:invalid-field".to_owned(),
                    status: 422,
                    detail: "timezone: goes with `cron` only".to_owned(),
                    field: Some("timezone".to_owned()),
                }));
            }
            _ => {}
        }
        Ok(self.message)
    }

    fn when(mut self, when: v1::new_task::When) -> Self {
        self.message.when = Some(when);
        self
    }

    fn target(mut self, to: v1::target::To) -> Self {
        self.message.target = Some(v1::Target { to: Some(to) });
        self
    }
}

/// That a task was filed. It is durable: it will fire.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Scheduled {
    /// Which task.
    pub id: TaskId,
    /// When it is first due.
    pub fire_at: Timestamp,
    /// Grows with each replacement and touch.
    pub version: u64,
    /// Whether a task of that key was there before.
    pub replaced: bool,
}

/// Where a task is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum TaskState {
    /// Waiting for its time, or for its next attempt.
    Scheduled,
    /// An attempt is under way.
    Firing,
    /// Set aside until resumed.
    Paused,
    /// Every fire is settled. A watch stays so until it is touched.
    Done,
    /// Its last fire is a dead letter.
    Dead,
    /// Stopped by a caller.
    Cancelled,
}

/// A task as it stands.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Task {
    /// Which task.
    pub id: TaskId,
    /// Whose.
    pub namespace: String,
    /// The caller's own name of it, if it has one.
    pub key: Option<String>,
    /// Where it is in its life.
    pub state: TaskState,
    /// When it is next due.
    pub fire_at: Timestamp,
    /// When its present fire is due by the schedule: `fire_at` before jitter and retries.
    pub nominal_at: Timestamp,
    /// Grows with each replacement and touch.
    pub version: u64,
    /// Attempts begun of the present fire.
    pub attempt: u32,
    /// When it was first filed.
    pub created_at: Timestamp,
    /// The caller's bytes.
    pub payload: Bytes,
    /// What the payload is.
    pub content_type: String,
    /// For listing and grouping.
    pub labels: HashMap<String, String>,
}
