//! Errors: translates errors of Redis and of its client into [`StoreError`].
//!
//! An error after which the result of a write is not known, or that passes by itself, is
//! `Unavailable`. No memory is `Full`. A reply that cannot be read is `Broken`.

use punctual_store::{Resource, StoreError};
use redis::{ErrorKind, RedisError, ServerErrorKind};

/// Why a store could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum RedisOpenError {
    /// Correct the options.
    #[error("{0}")]
    Options(String),
    /// Correct the options: the store was created with another number of partitions.
    #[error(
        "cluster \"{cluster}\" was created with {made} partitions, not {configured}; \
         configure {made} partitions"
    )]
    Partitions {
        /// The name of the cluster.
        cluster: String,
        /// The number of partitions in Redis.
        made: String,
        /// The number of partitions in the options.
        configured: u16,
    },
    /// Use a newer version of Punctual: a newer version wrote this store.
    #[error(
        "cluster \"{cluster}\" is in format {format}, which is unknown to this version of \
         Punctual; use a newer version"
    )]
    Format {
        /// The name of the cluster.
        cluster: String,
        /// The format in Redis.
        format: String,
    },
    /// Change the configuration of Redis, or the durability in the options.
    #[error("{0}")]
    Server(String),
    /// Retry: Redis did not answer as expected.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Translates an error of the client library.
pub(crate) fn store_error(error: RedisError) -> StoreError {
    match error.kind() {
        // The client library knows few error codes; the others are recognised by their text.
        ErrorKind::Extension if error.code() == Some("OOM") => full(&error),
        ErrorKind::Extension if error.code() == Some("WRONGTYPE") => broken(&error),
        // A script that failed half-way returns a general error.
        ErrorKind::Server(ServerErrorKind::ResponseError) if mentions(&error, "OOM ") => {
            full(&error)
        }
        ErrorKind::Server(ServerErrorKind::ResponseError) if !is_temporary(&error) => {
            broken(&error)
        }
        ErrorKind::UnexpectedReturnType | ErrorKind::Parse => broken(&error),
        _ => StoreError::Unavailable(Box::new(error)),
    }
}

fn full(error: &RedisError) -> StoreError {
    StoreError::Full { resource: Resource::Memory, why: error.to_string() }
}

fn broken(error: &RedisError) -> StoreError {
    StoreError::Broken(format!("Redis returned an error: {error}"))
}

fn mentions(error: &RedisError, word: &str) -> bool {
    error.detail().is_some_and(|detail| detail.contains(word))
}

/// Returns whether a general error passes by itself.
fn is_temporary(error: &RedisError) -> bool {
    ["MISCONF", "READONLY", "LOADING", "NOREPLICAS", "BUSY", "CLUSTERDOWN", "max number of clients"]
        .iter()
        .any(|word| mentions(error, word))
}

/// Reasons for `Unavailable` that are not errors of the client library.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RedisUnavailable {
    #[error("Redis did not reply within {0} ms")]
    Silent(u128),
    #[error("none of the configured Redis servers accepts writes")]
    NoServerForWrites,
    #[error("{0} replicas confirmed the batch; durability `replica` needs 1")]
    Replicas(i64),
    #[error("Redis has not synced the batch to its disk yet")]
    NotSynced,
}

impl From<RedisUnavailable> for StoreError {
    fn from(unavailable: RedisUnavailable) -> Self {
        Self::Unavailable(Box::new(unavailable))
    }
}
