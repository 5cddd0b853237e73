//! Calls between the brokers of a cluster.
//!
//! Brokers forward commands, hand partitions over, pass reports on, read gauges, poll queues and
//! settle deliveries. A failed call returns a [`PeerError`] that says what is certain: nothing was
//! done, or it is not known.
//!
//! `link` keeps the connections and makes the calls, `serve` answers the calls of peers, `local` is
//! what this broker does for them, `wire` encodes the messages, `view` what brokers tell each
//! other for people, `measure` what they measure, and `actions` what operators did. `membership`
//! and `routing` decide which broker is called.

mod actions;
mod link;
mod local;
mod measure;
mod serve;
mod view;
mod wire;

use std::fmt;

use http::HeaderMap;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::{Code, Status};

use crate::auth::{ApiToken, ApiTokens, Grant, TokenError};
pub(crate) use actions::put_action;
pub(crate) use link::{Peers, Transport};
pub(crate) use serve::{LocalBroker, server};
pub(crate) use wire::Polled;

/// The largest message: the largest request body, and the overhead of each of its tasks.
const MESSAGE_BYTES_MAX: usize = 80 << 20;

/// Why a call to a peer failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PeerError {
    /// The peer does not own the partition. Nothing was done; the owner may be called.
    #[error("the peer does not own the partition")]
    NotMine,
    /// The call was certainly not sent.
    #[error("the peer cannot be reached: {0}")]
    Unreachable(String),
    /// Too many calls are in flight, here or there. Nothing was done; retry a little later.
    #[error("too many calls to the peer are in flight")]
    Busy,
    /// The answer was lost. The call may have been executed, or may still be.
    #[error("the answer of the peer was lost: {0}")]
    Lost(String),
    /// The peer refused the call. It was not executed.
    #[error("the peer refuses: {0}")]
    Refused(String),
}

impl PeerError {
    /// Converts the error to the status that is sent to the caller.
    fn into_status(self) -> Status {
        match self {
            Self::NotMine => Status::failed_precondition("this broker does not own the partition"),
            Self::Busy => Status::resource_exhausted("too many calls are in flight"),
            Self::Refused(why) => Status::invalid_argument(why),
            Self::Unreachable(why) | Self::Lost(why) => Status::unknown(why),
        }
    }

    /// Converts the status of a failed call. It counts as not executed only if the peer itself sent
    /// the status, with a code that it uses before it executes anything.
    fn of(status: &Status) -> Self {
        let mut chain =
            std::iter::successors(std::error::Error::source(status), |error| error.source());
        // A status with a source comes from the transport and not from the peer.
        if std::error::Error::source(status).is_some() {
            let unsent = chain.any(|error| {
                // Hyper returns requests that it had not sent when the connection broke as
                // cancelled, and never those that it had sent.
                error.is::<tonic::ConnectError>()
                    || error.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_canceled)
            });
            let why = innermost(status);
            return if unsent { Self::Unreachable(why) } else { Self::Lost(why) };
        }
        let why = || status.message().to_owned();
        match status.code() {
            Code::FailedPrecondition => Self::NotMine,
            Code::ResourceExhausted => Self::Busy,
            Code::InvalidArgument
            | Code::Unauthenticated
            | Code::PermissionDenied
            | Code::Unimplemented => Self::Refused(why()),
            // The local side uses some of these codes for answers that it cannot read.
            _ => Self::Lost(why()),
        }
    }
}

/// Returns the innermost cause, which has the address and the error of the operating system.
fn innermost(status: &Status) -> String {
    let first = std::error::Error::source(status);
    let last = std::iter::successors(first, |error| error.source()).last();
    last.map_or_else(|| status.message().to_owned(), ToString::to_string)
}

/// The secret that only the brokers of a cluster know. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Secret {
    /// The value of the `authorization` header.
    header: MetadataValue<Ascii>,
    /// Compares a header by its hash, in constant time.
    verifier: ApiTokens,
}

impl Secret {
    /// Creates a secret. It must be valid in a `Bearer` header.
    pub(crate) fn new(secret: &str) -> Result<Self, TokenError> {
        let token = ApiToken::new(Grant::Admin, secret)?;
        let mut header: MetadataValue<Ascii> =
            format!("Bearer {secret}").parse().map_err(|_| TokenError)?;
        header.set_sensitive(true);
        Ok(Self { header, verifier: ApiTokens::new(vec![token]) })
    }

    /// Returns whether a call has this secret.
    pub(crate) fn is_in(&self, headers: &HeaderMap) -> bool {
        self.verifier.identify_headers(headers).is_some()
    }

    /// Returns whether an `authorization` header has this secret.
    fn matches(&self, authorization: &MetadataValue<Ascii>) -> bool {
        self.verifier.identify(Some(authorization.as_bytes())).is_some()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secret").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
