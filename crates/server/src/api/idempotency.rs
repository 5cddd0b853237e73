//! `Idempotency-Key`: the same request, sent again, creates nothing further.
//!
//! In: the header, and each task as it was sent. Out: a [`Receipt`] for the engine: a name made of the key, the place of the task in
//! its request and the key of the task, and a digest of what was sent. Both are hashes, so that neither can be too long.
//!
//! A task without a key of its own lives where its receipt leads, and its owner sees at once whether the idempotency key stands for something else. A named one lives
//! where its name leads; so the idempotency key is bound to it first, at the owner that the idempotency key leads to.

use std::sync::Arc;

use axum::extract::OptionalFromRequestParts;
use http::HeaderName;
use http::request::Parts;
use punctual_core::{
    IDEMPOTENCY_KEY_BYTES_MAX, Invalid, NewTask, PartitionId, Partitions, TaskKey, partition_of,
};
use punctual_engine::{Command, Condition, EngineError, Receipt, ScheduleCommand};

use super::calls::Calls;
use super::error::Problem;
use super::request;
use crate::routing::Owners;

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

    /// What is remembered of one task of the request.
    fn receipts(&self, key: Option<&TaskKey>, index: usize, sent: &[u8]) -> Receipts {
        let digest = blake3::hash(sent.trim_ascii()).to_hex().to_string();
        let receipt = |key: &str| {
            let mut name = blake3::Hasher::new();
            for part in [self.0.as_bytes(), &index.to_be_bytes(), key.as_bytes()] {
                // Lengths keep the parts from running together.
                name.update(&part.len().to_be_bytes()).update(part);
            }
            let name = name.finalize().to_hex();
            let key = TaskKey::new(&name).expect("letters and digits");
            Receipt { key, digest: digest.clone() }
        };
        match key {
            None => Receipts { binding: None, receipt: receipt("") },
            Some(key) => Receipts { binding: Some(receipt("")), receipt: receipt(key.as_str()) },
        }
    }
}

/// What is remembered under an idempotency key.
#[derive(Debug, PartialEq, Eq)]
struct Receipts {
    /// Where the idempotency key alone leads: which task it stands for. The receipt itself, for a task without a name.
    binding: Option<Receipt>,
    /// Beside the task.
    receipt: Receipt,
}

/// A task to be created, once if it was sent under an idempotency key.
#[derive(Debug)]
pub(crate) struct Creation {
    new_task: NewTask,
    receipts: Option<Receipts>,
}

impl Creation {
    /// The task at a place of its request, with the bytes that it was read from.
    pub(crate) fn new(
        new_task: NewTask,
        index: usize,
        sent: &[u8],
        idempotency: Option<&Idempotency>,
    ) -> Self {
        let receipts = idempotency.map(|key| key.receipts(new_task.key.as_ref(), index, sent));
        Self { new_task, receipts }
    }

    fn is_to_be_bound(&self) -> bool {
        self.receipts.as_ref().is_some_and(|receipts| receipts.binding.is_some())
    }

    /// What is asked first, and of whom.
    fn binding(&self, partitions: Partitions) -> Option<(PartitionId, Command)> {
        let binding = self.receipts.as_ref()?.binding.clone()?;
        let namespace = self.new_task.namespace.clone();
        let partition = partition_of(&namespace.of_receipts(), &binding.key, partitions);
        Some((partition, Command::Bind(namespace, binding)))
    }

    /// What is asked then; and of whom, unless anybody will do.
    pub(crate) fn order(
        self,
        condition: Condition,
        partitions: Partitions,
    ) -> (Option<PartitionId>, ScheduleCommand) {
        let Self { new_task, receipts } = self;
        let receipt = receipts.map(|receipts| receipts.receipt);
        let partition = place(&new_task, receipt.as_ref(), partitions);
        (partition, ScheduleCommand { new_task: new_task.into(), condition, receipt })
    }
}

/// Binds idempotency keys to the named tasks among them. One whose key stands for another task is not created.
pub(crate) async fn bound<E: From<EngineError>>(
    owners: &Arc<Owners>,
    creations: Vec<Result<Creation, E>>,
) -> Vec<Result<Creation, E>> {
    if !creations.iter().flatten().any(Creation::is_to_be_bound) {
        return creations;
    }
    let mut calls = Calls::default();
    let bindings = creations.iter().flatten().filter_map(|one| one.binding(owners.partitions()));
    bindings.for_each(|(partition, command)| calls.push(partition, command));
    let mut told = calls.ask(owners).await.into_iter();
    let bound = creations.into_iter().map(|creation| {
        let creation = creation?;
        if creation.is_to_be_bound() {
            told.next().unwrap_or(Err(EngineError::Stopped))?;
        }
        Ok(creation)
    });
    bound.collect()
}

/// The same for one.
pub(crate) async fn bound_one<E: From<EngineError>>(
    owners: &Arc<Owners>,
    creation: Creation,
) -> Result<Creation, E> {
    if !creation.is_to_be_bound() {
        return Ok(creation);
    }
    let mut bound = bound(owners, vec![Ok(creation)]).await;
    bound.pop().unwrap_or_else(|| Err(EngineError::Stopped.into()))
}

impl<S: Send + Sync> OptionalFromRequestParts<S> for Idempotency {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Option<Self>, Problem> {
        let key = request::header(&parts.headers, &HEADER)?;
        Ok(key.map(Self::new).transpose()?)
    }
}

/// Where a task lives that cannot live anywhere: by its key, or else by its receipt.
fn place(
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
    use super::*;

    #[test]
    fn a_receipt_tells_keys_places_and_tasks_apart() {
        let [a, b] = ["a", "b"].map(|key| Idempotency::new(key).unwrap());
        let named = TaskKey::new("k").unwrap();
        let first = a.receipts(None, 0, b"{}");
        assert_eq!(first, a.receipts(None, 0, b" {}\n"), "the same");
        assert_ne!(first.receipt.key, b.receipts(None, 0, b"{}").receipt.key, "another key");
        assert_ne!(first.receipt.key, a.receipts(None, 1, b"{}").receipt.key, "another place");
        let other = a.receipts(None, 0, b"[]").receipt;
        assert_eq!(first.receipt.key, other.key);
        assert_ne!(first.receipt.digest, other.digest, "another body");
        // Named or not, what the key stands for is found in the same place.
        let of_named = a.receipts(Some(&named), 0, b"{}");
        assert_ne!(first.receipt.key, of_named.receipt.key, "another task");
        assert_eq!(of_named.binding, Some(first.receipt));
        assert_eq!(first.binding, None);
        assert!(Idempotency::new("").is_err());
        assert!(Idempotency::new(&"x".repeat(257)).is_err());
    }
}
