//! Peers: the other brokers of the cluster, and what is asked of them.
//!
//! In: commands for partitions that another broker owns, partitions on their way, reports and polls that belong elsewhere. Out: what
//! came of it, or a [`PeerError`] that says what is known: certainly nothing was done, or nobody knows.
//! Next door: `link` holds one standing connection to each peer, `serve` answers the calls of peers, `wire` spells the bytes.
//! Not here: who owns what (`cluster`), and to whom a call goes.

mod link;
mod serve;
mod wire;

use std::fmt;

use tonic::metadata::{Ascii, MetadataValue};
use tonic::{Code, Status};

use crate::auth::{ApiToken, ApiTokens, Grant, TokenError};
pub(crate) use link::{Peers, Transport};
pub(crate) use serve::{Home, door};
pub(crate) use wire::Polled;

/// The largest message: the largest body of a request, with room for what is said beside each of its tasks.
const MESSAGE_BYTES_MAX: usize = 80 << 20;

/// Why a peer did not do what was asked of it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PeerError {
    /// It does not own the partition. Nothing was done: whoever owns it may be asked.
    #[error("the peer does not own the partition")]
    NotMine,
    /// It was certainly not asked.
    #[error("the peer cannot be reached: {0}")]
    Unreachable(String),
    /// Too much is under way, here or there. Nothing was done: ask again a little later.
    #[error("too much is under way to the peer")]
    Busy,
    /// The answer was lost. It may have been done, or may be done yet.
    #[error("the answer of the peer was lost: {0}")]
    Lost(String),
    /// It has not done it, and never will.
    #[error("the peer refuses: {0}")]
    Refused(String),
}

impl PeerError {
    /// What a peer is told.
    fn into_status(self) -> Status {
        match self {
            Self::NotMine => Status::failed_precondition("the partition is not held here"),
            Self::Busy => Status::resource_exhausted("too much is under way"),
            Self::Refused(why) => Status::invalid_argument(why),
            Self::Unreachable(why) | Self::Lost(why) => Status::unknown(why),
        }
    }

    /// What a call came to. Only what a peer has certainly said itself, and says before it does anything, counts as not done.
    fn of(status: &Status) -> Self {
        let mut chain =
            std::iter::successors(std::error::Error::source(status), |error| error.source());
        // A source is the transport's: the peer itself has said nothing.
        if std::error::Error::source(status).is_some() {
            let unsent = chain.any(|error| {
                // What was still in line for a connection when it broke is given back as cancelled; what was sent is not.
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
            // Some of these our own side says of an answer that it cannot read.
            _ => Self::Lost(why()),
        }
    }
}

/// The first cause, which names the address and what the machine said.
fn innermost(status: &Status) -> String {
    let first = std::error::Error::source(status);
    let last = std::iter::successors(first, |error| error.source()).last();
    last.map_or_else(|| status.message().to_owned(), ToString::to_string)
}

/// What all brokers of a cluster know, and nobody else. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Secret {
    /// As it is sent.
    sent: MetadataValue<Ascii>,
    /// As it is compared: by its hash, in constant time.
    known: ApiTokens,
}

impl Secret {
    /// Takes a secret of the form that a `Bearer` header has.
    pub(crate) fn new(secret: &str) -> Result<Self, TokenError> {
        let token = ApiToken::new(Grant::Admin, secret)?;
        let mut sent: MetadataValue<Ascii> =
            format!("Bearer {secret}").parse().map_err(|_| TokenError)?;
        sent.set_sensitive(true);
        Ok(Self { sent, known: ApiTokens::new(vec![token]) })
    }

    /// Whether this `authorization` shows it.
    fn is_shown(&self, authorization: &MetadataValue<Ascii>) -> bool {
        self.known.identify(Some(authorization.as_bytes())).is_some()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secret").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
