//! `Idempotency-Key`: the same request, sent again, creates nothing further.
//!
//! In: the header, and each task as it was sent. Out: a [`Receipt`] for the engine: a name made of the key, the place of the task in
//! its request and the key of the task, and a digest of what was sent. Both are hashes, so that neither can be too long.

use axum::extract::OptionalFromRequestParts;
use http::HeaderName;
use http::request::Parts;
use punctual_core::{
    IDEMPOTENCY_KEY_BYTES_MAX, Invalid, NewTask, PartitionId, Partitions, TaskKey, partition_of,
};
use punctual_engine::Receipt;

use super::error::Problem;
use super::request;

/// What makes a request repeatable.
pub(crate) const HEADER: HeaderName = HeaderName::from_static("idempotency-key");

/// A caller's idempotency key.
#[derive(Debug, Clone)]
pub(crate) struct Idempotency(String);

impl Idempotency {
    /// Takes a key within its limits.
    pub(crate) fn new(key: &str) -> Result<Self, Invalid> {
        let len = key.len();
        if !(1..=IDEMPOTENCY_KEY_BYTES_MAX).contains(&len) {
            let problem = format!("must have 1 to {IDEMPOTENCY_KEY_BYTES_MAX} bytes, has {len}");
            return Err(Invalid::new(HEADER.as_str(), problem));
        }
        Ok(Self(key.to_owned()))
    }

    /// The receipt of one task of the request.
    pub(crate) fn receipt(&self, new_task: &NewTask, index: usize, sent: &[u8]) -> Receipt {
        let mut name = blake3::Hasher::new();
        let key = new_task.key.as_ref().map_or("", TaskKey::as_str);
        for part in [self.0.as_bytes(), &index.to_be_bytes(), key.as_bytes()] {
            // Lengths keep the parts from running together.
            name.update(&part.len().to_be_bytes()).update(part);
        }
        let name = name.finalize().to_hex();
        let digest = blake3::hash(sent.trim_ascii()).to_hex().to_string();
        Receipt { key: TaskKey::new(&name).expect("letters and digits"), digest }
    }
}

impl<S: Send + Sync> OptionalFromRequestParts<S> for Idempotency {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Option<Self>, Problem> {
        let key = request::header(&parts.headers, &HEADER)?;
        Ok(key.map(Self::new).transpose()?)
    }
}

/// Where a task lives that cannot live anywhere: by its key, or else by its receipt.
pub(crate) fn place(
    new_task: &NewTask,
    receipt: Option<&Receipt>,
    partitions: Partitions,
) -> Option<PartitionId> {
    let namespace = &new_task.namespace;
    match (&new_task.key, receipt) {
        (Some(key), _) => Some(partition_of(namespace, key, partitions)),
        (None, Some(receipt)) => {
            Some(partition_of(&namespace.of_receipts(), &receipt.key, partitions))
        }
        (None, None) => None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use punctual_core::{Due, Namespace, Queue, Schedule, Target};

    use super::*;

    #[test]
    fn a_receipt_tells_keys_places_and_tasks_apart() {
        let new_task = |key: Option<&str>| {
            let schedule = Schedule::Once(Due::In(Duration::ZERO));
            let target = Target::Queue(Queue::new("q").unwrap());
            let key = key.map(|key| TaskKey::new(key).unwrap());
            NewTask { key, ..NewTask::new(Namespace::new("a").unwrap(), schedule, target) }
        };
        let [a, b] = ["a", "b"].map(|key| Idempotency::new(key).unwrap());
        let first = a.receipt(&new_task(None), 0, b"{}");
        assert_eq!(first, a.receipt(&new_task(None), 0, b" {}\n"), "the same");
        assert_ne!(first.key, b.receipt(&new_task(None), 0, b"{}").key, "another key");
        assert_ne!(first.key, a.receipt(&new_task(None), 1, b"{}").key, "another place");
        assert_ne!(first.key, a.receipt(&new_task(Some("k")), 0, b"{}").key, "another task");
        let other = a.receipt(&new_task(None), 0, b"[]");
        assert_eq!(first.key, other.key);
        assert_ne!(first.digest, other.digest, "another body");
        assert!(Idempotency::new("").is_err());
        assert!(Idempotency::new(&"x".repeat(257)).is_err());
    }
}
