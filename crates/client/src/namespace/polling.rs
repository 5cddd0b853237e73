//! Queues without a worker: takes leases by call and settles them by token, as a script or a test
//! does. Programs use [`Namespace::worker`], which extends leases and settles in batches.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::Namespace;
use crate::client::json::segment;
use crate::client::unary::RetryWhen;
use crate::time::millis_up;
use crate::{Error, FireId, TaskId};

/// How many deliveries to take, and for how long. By default those of the broker, without waiting.
#[derive(Debug, Clone)]
#[must_use = "options do nothing until they are passed to `lease`"]
pub struct LeaseOptions(Value);

impl Default for LeaseOptions {
    fn default() -> Self {
        Self(json!({"wait": "0s"}))
    }
}

impl LeaseOptions {
    /// The most deliveries to take.
    pub fn max(mut self, max: u32) -> Self {
        self.0["max"] = max.into();
        self
    }

    /// How long to wait for the first delivery. It must be shorter than the timeout of the client.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.0["wait"] = text(wait).into();
        self
    }

    /// How long the deliveries may take before they are delivered again.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.0["lease"] = text(lease).into();
        self
    }

    /// The name of the worker in lists.
    pub fn worker(mut self, name: impl Into<String>) -> Self {
        self.0["worker"] = name.into().into();
        self
    }
}

/// A delivery that was taken by a lease. Times are RFC 3339, durations like `30s`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LeasedDelivery {
    /// Names the attempt when it is settled.
    pub token: String,
    /// The id of the fire: the same for every attempt.
    pub fire_id: String,
    /// The id of the task.
    pub task: String,
    /// The number of the attempt, from 1.
    pub attempt: u32,
    /// The other fields, as in the HTTP API: `key`, `payload`, `fire_at` and so on.
    #[serde(flatten)]
    pub fields: serde_json::Map<String, Value>,
}

impl LeasedDelivery {
    /// The id of the fire. Deduplicate by it.
    #[must_use]
    pub fn fire_id(&self) -> FireId {
        FireId::from(self.fire_id.as_str())
    }

    /// The id of the task.
    #[must_use]
    pub fn task_id(&self) -> TaskId {
        TaskId::from(self.task.as_str())
    }
}

/// The result of a settlement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SettleAnswer {
    /// The token, if several were settled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// What was done, or `stale` if the attempt was over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<String>,
    /// Why it was refused, as a problem document.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<Value>,
}

#[derive(Deserialize)]
struct LeaseAnswer {
    deliveries: Vec<LeasedDelivery>,
}

#[derive(Deserialize)]
struct AckResults {
    results: Vec<SettleAnswer>,
}

impl Namespace {
    /// Takes deliveries of a queue. Each must be settled before its lease ends.
    ///
    /// # Errors
    /// Any [`Error`]. After [`Error::Lost`], deliveries may be in flight until their lease ends.
    pub async fn lease(
        &self,
        queue: &str,
        lease: LeaseOptions,
    ) -> Result<Vec<LeasedDelivery>, Error> {
        Ok(self.of_queue::<LeaseAnswer>(queue, "lease", &lease.0).await?.deliveries)
    }

    /// Acks deliveries, each with the result of its fire if it has one. Returns one result for
    /// each, in order.
    ///
    /// # Errors
    /// Any [`Error`].
    pub async fn ack(
        &self,
        queue: &str,
        acks: impl IntoIterator<Item = (String, Option<Value>)>,
    ) -> Result<Vec<SettleAnswer>, Error> {
        let ack = |(token, result)| match result {
            Some(result) => json!({"token": token, "result": result}),
            None => json!({"token": token}),
        };
        let acks: Vec<Value> = acks.into_iter().map(ack).collect();
        Ok(self.of_queue::<AckResults>(queue, "ack", &json!({"acks": acks})).await?.results)
    }

    /// Fails an attempt. It is retried after `retry_in`, or according to the policy of the task.
    ///
    /// # Errors
    /// Any [`Error`].
    pub async fn fail(
        &self,
        queue: &str,
        token: &str,
        reason: &str,
        retry_in: Option<Duration>,
    ) -> Result<SettleAnswer, Error> {
        let mut body = json!({"token": token, "reason": reason});
        if let Some(pause) = retry_in {
            body["retry_in"] = text(pause).into();
        }
        self.of_queue(queue, "fail", &body).await
    }

    /// Refuses a fire: it is not retried and becomes a dead letter.
    ///
    /// # Errors
    /// Any [`Error`].
    pub async fn refuse(
        &self,
        queue: &str,
        token: &str,
        reason: &str,
    ) -> Result<SettleAnswer, Error> {
        self.of_queue(queue, "refuse", &json!({"token": token, "reason": reason})).await
    }

    /// Extends a lease to this long from now.
    ///
    /// # Errors
    /// Any [`Error`].
    pub async fn extend(
        &self,
        queue: &str,
        token: &str,
        lease: Duration,
    ) -> Result<SettleAnswer, Error> {
        self.of_queue(queue, "extend", &json!({"token": token, "lease": text(lease)})).await
    }

    async fn of_queue<T: serde::de::DeserializeOwned>(
        &self,
        queue: &str,
        verb: &str,
        body: &Value,
    ) -> Result<T, Error> {
        let path = format!("/v1/{}/queues/{}/{verb}", segment(&self.name), segment(queue));
        self.client.unary().json(RetryWhen::IfNotSeen, "POST", &path, body).await
    }
}

fn text(duration: Duration) -> String {
    format!("{}ms", millis_up(duration))
}
