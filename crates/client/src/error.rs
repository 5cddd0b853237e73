//! What can go wrong, one variant per thing that the caller can do about it.
//!
//! In: a status of the transport. Out: an [`Error`], and whether the broker may have seen the request.
//! Invariant: an error that leaves the outcome open says so ([`Error::outcome_is_open`]).

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use tonic::{Code, Status};

use crate::wire;

/// Why a call did not do what was asked.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The address or the certificate makes no sense; nothing was sent.
    #[error("cannot use the address {address:?}")]
    Address {
        /// As given.
        address: String,
        /// What is wrong with it.
        #[source]
        source: Arc<dyn StdError + Send + Sync>,
    },
    /// A token must be visible ASCII, because it travels in a header.
    #[error("the token is not visible ASCII")]
    Token,
    /// A client lives in a tokio runtime, and this thread has none.
    #[error("there is no tokio runtime on this thread")]
    NoRuntime,
    /// The payload could not be written as JSON; nothing was sent.
    #[error("the payload cannot be written as JSON")]
    Payload(#[source] Arc<serde_json::Error>),
    /// The broker refused the request, and would refuse it again.
    #[error("{0}")]
    Problem(Problem),
    /// The broker could not be reached. It has not seen the request: asking again is safe.
    #[error("the broker cannot be reached: {0}")]
    Unreachable(String),
    /// The broker cannot take it now, and has not: ask again later.
    #[error("the broker cannot take it now: {0}")]
    Busy(String),
    /// The answer was lost. The broker may or may not have done it: asking again is safe for a task
    /// with a key, or with an idempotency key.
    #[error("the answer was lost, the broker may have done it: {0}")]
    Lost(String),
    /// No answer came in the time that the client was given. As with [`Error::Lost`], the broker may
    /// have done it.
    #[error("no answer in time, the broker may have done it")]
    TimedOut,
    /// The broker's answer makes no sense to this version of the client.
    #[error("the broker's answer makes no sense: {0}")]
    Answer(&'static str),
    /// The runtime that the client lives in is going away.
    #[error("the client has stopped")]
    Stopped,
}

impl Error {
    /// Whether the broker may have done what was asked although the call failed.
    #[must_use]
    pub fn outcome_is_open(&self) -> bool {
        matches!(self, Self::Lost(_) | Self::TimedOut | Self::Answer(_) | Self::Stopped)
    }

    /// From what the transport says of a call.
    pub(crate) fn from_status(status: &Status) -> Self {
        match CallFailure::of(status) {
            CallFailure::Unreachable => Self::Unreachable(innermost(status)),
            CallFailure::Lost => Self::Lost(status.message().to_owned()),
            CallFailure::Busy => Self::Busy(status.message().to_owned()),
            CallFailure::Refused => Self::Problem(wire::problem_of_status(status)),
        }
    }
}

/// What a status says of the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallFailure {
    /// It never left.
    Unreachable,
    /// It may have arrived, and the answer is lost.
    Lost,
    /// It arrived, and the broker has not done it but may later.
    Busy,
    /// It arrived, and will be refused again.
    Refused,
}

impl CallFailure {
    pub(crate) fn of(status: &Status) -> Self {
        if chain(status).any(<dyn StdError>::is::<tonic::ConnectError>) {
            return Self::Unreachable;
        }
        match status.code() {
            // The transport says these when a connection breaks, a server when it stops.
            Code::Ok
            | Code::Cancelled
            | Code::Unknown
            | Code::Internal
            | Code::DataLoss
            | Code::DeadlineExceeded => Self::Lost,
            // A source is the transport's; without one it is the broker's own word.
            Code::Unavailable if status.source().is_some() => Self::Lost,
            Code::Unavailable | Code::ResourceExhausted => Self::Busy,
            _ => Self::Refused,
        }
    }
}

fn chain(status: &Status) -> impl Iterator<Item = &(dyn StdError + 'static)> {
    std::iter::successors(status.source(), |&error| error.source())
}

/// The first cause, which names the address and what the machine said.
fn innermost(status: &Status) -> String {
    chain(status).last().map_or_else(|| status.message().to_owned(), ToString::to_string)
}

/// What the broker found wrong with a request; the same as the HTTP API's problem documents.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Problem {
    /// `urn:punctual:…`
    pub kind: String,
    /// As HTTP numbers it: 404, 409, 422 …
    pub status: u16,
    /// For people.
    pub detail: String,
    /// Which field is to blame, if one is.
    pub field: Option<String>,
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
