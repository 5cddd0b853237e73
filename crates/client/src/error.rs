//! The errors of the client, one variant for each thing that a caller can do about them.
//!
//! [`Error::outcome_is_open`] tells whether a broker may have carried out the call all the same.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use tonic::{Code, Status};

use crate::{TaskId, Timestamp};

/// Why a call failed.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The address or the certificate authority is invalid; nothing was sent.
    #[error("invalid broker address {address:?}")]
    Address {
        /// The address as the caller gave it.
        address: String,
        /// What is wrong with it.
        #[source]
        source: Arc<dyn StdError + Send + Sync>,
    },
    /// The token is not visible ASCII, which a header requires; nothing was sent.
    #[error("the token must be visible ASCII")]
    Token,
    /// The client was made outside of a tokio runtime.
    #[error("the client must be made inside a tokio runtime")]
    NoRuntime,
    /// The payload could not be serialised as JSON; nothing was sent.
    #[error("the payload cannot be serialised as JSON")]
    Payload(#[source] Arc<serde_json::Error>),
    /// The broker refused the request and would refuse it again.
    #[error("{0}")]
    Problem(Problem),
    /// No broker could be reached, so none has the request. It is safe to call again.
    #[error("no broker can be reached: {0}")]
    Unreachable(String),
    /// The broker cannot accept the request now and has not carried it out. Call again later.
    #[error("the broker cannot accept the request now: {0}")]
    Busy(String),
    /// The answer was lost, so the broker may or may not have carried out the request. It is safe
    /// to call again for a task with a key or with an idempotency key.
    #[error("the answer was lost, the broker may have carried out the request: {0}")]
    Lost(String),
    /// No answer came within the timeout of the client. As with [`Error::Lost`], the broker may
    /// have carried out the request.
    #[error("no answer within the timeout, the broker may have carried out the request")]
    TimedOut,
    /// This version of the client does not understand the answer of the broker.
    #[error("the answer of the broker is not understood: {0}")]
    Answer(&'static str),
    /// The tokio runtime of the client is shutting down.
    #[error("the client was stopped with its runtime")]
    Stopped,
}

impl Error {
    /// Whether the broker may have carried out the request although the call failed.
    #[must_use]
    pub fn outcome_is_open(&self) -> bool {
        matches!(self, Self::Lost(_) | Self::TimedOut | Self::Answer(_) | Self::Stopped)
    }
}

/// What the gRPC status of a failed call means for the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallFailure {
    /// It was not sent.
    Unreachable,
    /// It may have arrived; the answer was lost.
    Lost,
    /// The broker has not carried it out, but may do so later.
    Busy,
    /// The broker refuses it, and would refuse it again.
    Refused,
}

impl CallFailure {
    pub(crate) fn of(status: &Status) -> Self {
        if chain(status).any(<dyn StdError>::is::<tonic::ConnectError>) {
            return Self::Unreachable;
        }
        match status.code() {
            // The transport has these when a connection breaks, a server when it stops.
            Code::Ok
            | Code::Cancelled
            | Code::Unknown
            | Code::Internal
            | Code::DataLoss
            | Code::DeadlineExceeded => Self::Lost,
            // With a source it comes from the transport, without one from the broker.
            Code::Unavailable if status.source().is_some() => Self::Lost,
            Code::Unavailable | Code::ResourceExhausted => Self::Busy,
            _ => Self::Refused,
        }
    }
}

fn chain(status: &Status) -> impl Iterator<Item = &(dyn StdError + 'static)> {
    std::iter::successors(status.source(), |&error| error.source())
}

/// The text of the root cause, which names the address and the error of the operating system.
pub(crate) fn innermost(status: &Status) -> String {
    chain(status).last().map_or_else(|| status.message().to_owned(), ToString::to_string)
}

/// What is wrong with a request, as in the problem documents of the HTTP API.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Problem {
    /// The type of the problem: `urn:punctual:…`.
    pub kind: String,
    /// The HTTP status: 404, 409, 422 …
    pub status: u16,
    /// An explanation for people.
    pub detail: String,
    /// The field that is wrong, if it is one.
    pub field: Option<String>,
    /// The task that has the key already, if the call was to create one only
    /// ([`if_absent`](crate::NewTask::if_absent)).
    pub existing: Option<ExistingTask>,
}

/// A task that was there before.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExistingTask {
    /// Its id.
    pub id: TaskId,
    /// When it is due next.
    pub fire_at: Timestamp,
    /// Grows with each replacement and touch.
    pub version: u64,
}

impl Problem {
    /// A field that the broker would refuse.
    pub(crate) fn of_field(field: &str, detail: impl Into<String>) -> Self {
        Self {
            kind: "urn:punctual:invalid-field".to_owned(),
            status: 422,
            detail: detail.into(),
            field: Some(field.to_owned()),
            existing: None,
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.field {
            Some(field) if !self.detail.contains(field.as_str()) => {
                write!(f, "{field}: {}", self.detail)
            }
            _ => f.write_str(&self.detail),
        }
    }
}
