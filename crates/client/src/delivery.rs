//! Deliveries: what a worker receives for one attempt of a fire.
//!
//! `wire` makes a [`Delivery`] of its message, and `worker` passes it to the handler. All attempts
//! of a fire have the same [`FireId`], by which `dedup` recognises repetitions.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use serde::de::DeserializeOwned;

use crate::{TaskId, Timestamp};

/// The id of a fire: the same for all attempts, brokers and restarts. Deduplicate by it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FireId(String);

impl FireId {
    pub(crate) fn new(id: String) -> Self {
        Self(id)
    }

    /// The id as text, as webhooks carry it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for FireId {
    fn from(id: &str) -> Self {
        Self(id.to_owned())
    }
}

impl fmt::Display for FireId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Why there is a fire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Occasion {
    /// The schedule is due.
    #[default]
    Due,
    /// A caller asked for a fire in addition to the schedule.
    Manual,
    /// A watch was touched after it had fired.
    Return,
}

/// Identifies one attempt in settlements. Valid only for the run of the broker that issued it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DeliveryToken(pub(crate) u64);

/// One attempt of a fire, as a worker receives it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Delivery {
    pub(crate) token: DeliveryToken,
    /// The same for every attempt of one fire.
    pub fire_id: FireId,
    /// The id of the task.
    pub task: TaskId,
    /// The key of the task.
    pub key: Option<String>,
    /// The queue that it was delivered to.
    pub queue: String,
    /// Why there is this fire.
    pub occasion: Occasion,
    /// The number of the attempt, from 1.
    pub attempt: u32,
    /// The bytes of the task.
    pub payload: Bytes,
    /// The media type of the payload.
    pub content_type: String,
    /// When the attempt was due.
    pub fire_at: Timestamp,
    /// When the attempt was sent.
    pub fired_at: Timestamp,
    /// The version of the task that fired.
    pub version: u64,
    /// How long the worker may take to settle it. Extended while a handler runs.
    pub lease: Duration,
    /// The fire whose end the delivery reports, if it is a callback.
    pub callback_of: Option<FireId>,
}

impl Delivery {
    /// Reads the payload as JSON.
    ///
    /// # Errors
    /// If the payload is no JSON of this type.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_slice(&self.payload)
    }

    /// How much later than its due time the attempt was sent.
    #[must_use]
    pub fn lag(&self) -> Duration {
        self.fired_at.since(self.fire_at)
    }
}
