//! Errors: what Redis says, in the words of the contract.
//!
//! In: errors of the client and of the server. Out: [`StoreError`]s. The rule: an error after which the outcome of a
//! write is not known, or that passes by itself, is `Unavailable`; no memory is `Full`; what cannot be read is
//! `Broken`.

use punctual_store::{Resource, StoreError};
use redis::{ErrorKind, RedisError, ServerErrorKind};

/// Why a store was not opened.
#[derive(Debug, thiserror::Error)]
pub enum RedisOpenError {
    /// Correct the options.
    #[error("{0}")]
    Options(String),
    /// Correct the options: the store was made with others.
    #[error("the cluster {cluster} was made with {made} partitions, not with {asked}")]
    Partitions {
        /// Which.
        cluster: String,
        /// What it has.
        made: String,
        /// What was asked for.
        asked: u16,
    },
    /// Use a newer program: a later one has written this store.
    #[error("the cluster {cluster} is of format {format}, which this program does not know")]
    Format {
        /// Which.
        cluster: String,
        /// As it stands there.
        format: String,
    },
    /// Change the server or the durability that is asked of it.
    #[error("{0}")]
    Server(String),
    /// Try again later.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What to tell the caller of a store.
pub(crate) fn store_error(error: RedisError) -> StoreError {
    match error.kind() {
        // The client knows few codes; the others are told by their text.
        ErrorKind::Extension if error.code() == Some("OOM") => full(&error),
        ErrorKind::Extension if error.code() == Some("WRONGTYPE") => broken(&error),
        // A script that failed in its middle says so with a general error.
        ErrorKind::Server(ServerErrorKind::ResponseError) if says(&error, "OOM ") => full(&error),
        ErrorKind::Server(ServerErrorKind::ResponseError) if !passes(&error) => broken(&error),
        ErrorKind::UnexpectedReturnType | ErrorKind::Parse => broken(&error),
        _ => StoreError::Unavailable(Box::new(error)),
    }
}

fn full(error: &RedisError) -> StoreError {
    StoreError::Full { room: Resource::Memory, why: error.to_string() }
}

fn broken(error: &RedisError) -> StoreError {
    StoreError::Broken(format!("Redis answered: {error}"))
}

fn says(error: &RedisError, word: &str) -> bool {
    error.detail().is_some_and(|detail| detail.contains(word))
}

/// General errors of a server that is not what it should be, but will be.
fn passes(error: &RedisError) -> bool {
    ["MISCONF", "READONLY", "LOADING", "NOREPLICAS", "BUSY", "CLUSTERDOWN", "max number of clients"]
        .iter()
        .any(|word| says(error, word))
}

/// Something that is not an error of the client's library.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RedisUnavailable {
    #[error("Redis did not answer within {0} ms")]
    Silent(u128),
    #[error("none of the given servers takes writes")]
    NoServerForWrites,
    #[error("{0} replicas have the batch, 1 is wanted")]
    Replicas(i64),
    #[error("the batch is not synced yet")]
    NotSynced,
}

impl From<RedisUnavailable> for StoreError {
    fn from(unavailable: RedisUnavailable) -> Self {
        Self::Unavailable(Box::new(unavailable))
    }
}
