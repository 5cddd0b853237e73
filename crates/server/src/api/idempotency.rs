//! `Idempotency-Key`: the same request, sent again, creates nothing.
//!
//! Each task of a request gets a [`Receipt`]: a name made of the idempotency key, the position of
//! the task in the request and the key of the task, and a digest of the task as it was sent. Both
//! are hashes, so their lengths are bounded.
//!
//! A task without a key is stored in the partition of its receipt, so its owner sees at once
//! whether the idempotency key was used for something else. A task with a key is stored in the
//! partition of that key. So the idempotency key is first bound to it by the owner of the receipt's
//! partition.

use std::sync::Arc;

use http::HeaderName;
use punctual_core::{
    IDEMPOTENCY_KEY_BYTES_MAX, Invalid, NewTask, PartitionId, Partitions, TaskKey, partition_of,
};
use punctual_engine::{Command, Condition, EngineError, Receipt, ScheduleCommand};

use super::command_batch::{CommandBatch, expect_bound, next_result};
use crate::routing::Owners;
use crate::task_form::TaskToSchedule;

/// The header that makes a request safe to repeat.
pub(crate) const IDEMPOTENCY_HEADER: HeaderName = HeaderName::from_static("idempotency-key");

/// A caller's idempotency key.
#[derive(Debug, Clone)]
pub(crate) struct Idempotency(String);

impl Idempotency {
    /// Checks the length of a key.
    pub(crate) fn new(key: &str) -> Result<Self, Invalid> {
        let len = key.len();
        if !(1..=IDEMPOTENCY_KEY_BYTES_MAX).contains(&len) {
            let problem = format!("must have 1 to {IDEMPOTENCY_KEY_BYTES_MAX} bytes, has {len}");
            return Err(Invalid::new(IDEMPOTENCY_HEADER.as_str(), problem));
        }
        Ok(Self(key.to_owned()))
    }

    /// The receipts of one task of the request.
    fn receipts(&self, key: Option<&TaskKey>, index: usize, sent: &[u8]) -> Receipts {
        let digest = blake3::hash(sent.trim_ascii()).to_hex().to_string();
        let receipt = |key: &str| {
            let mut name = blake3::Hasher::new();
            for part in [self.0.as_bytes(), &index.to_be_bytes(), key.as_bytes()] {
                // With their lengths, different parts never give the same input.
                name.update(&part.len().to_be_bytes()).update(part);
            }
            let name = name.finalize().to_hex();
            let key = TaskKey::new(&name).expect("hexadecimal digits are a valid key");
            Receipt { key, digest: digest.clone() }
        };
        match key {
            None => Receipts { binding: None, receipt: receipt("") },
            Some(key) => Receipts { binding: Some(receipt("")), receipt: receipt(key.as_str()) },
        }
    }
}

/// What is stored of one task under an idempotency key.
#[derive(Debug, PartialEq, Eq)]
struct Receipts {
    /// What the idempotency key is bound to first. `None` for a task without a key, whose receipt
    /// does it.
    binding: Option<Receipt>,
    /// Stored together with the task.
    receipt: Receipt,
}

/// A task to create; at most once if it was sent with an idempotency key.
#[derive(Debug)]
pub(crate) struct Creation {
    task: TaskToSchedule,
    receipts: Option<Receipts>,
}

impl Creation {
    /// `index` is the position of the task in its request, `sent` the bytes it was parsed from.
    pub(crate) fn new(
        task: TaskToSchedule,
        index: usize,
        sent: &[u8],
        idempotency: Option<&Idempotency>,
    ) -> Self {
        let receipts = idempotency.map(|key| key.receipts(task.new_task.key.as_ref(), index, sent));
        Self { task, receipts }
    }

    fn needs_binding(&self) -> bool {
        self.receipts.as_ref().is_some_and(|receipts| receipts.binding.is_some())
    }

    /// The command that binds the idempotency key, and its partition.
    fn binding(&self, partitions: Partitions) -> Option<(PartitionId, Command)> {
        let binding = self.receipts.as_ref()?.binding.clone()?;
        let namespace = self.task.new_task.namespace.clone();
        let partition = partition_of(&namespace.of_receipts(), &binding.key, partitions);
        Some((partition, Command::Bind(namespace, binding)))
    }

    /// The command that creates the task, and its partition; `None` if any partition will do.
    pub(crate) fn into_command(
        self,
        condition: Condition,
        partitions: Partitions,
    ) -> (Option<PartitionId>, ScheduleCommand) {
        let Self { task, receipts } = self;
        let receipt = receipts.map(|receipts| receipts.receipt);
        let partition = partition_for(&task.new_task, receipt.as_ref(), partitions);
        (partition, task.into_command(condition, receipt))
    }
}

/// Binds the idempotency key to each task that has a key. A task whose idempotency key was used for
/// another task becomes an error.
pub(crate) async fn bind_all<E: From<EngineError>>(
    owners: &Arc<Owners>,
    creations: Vec<Result<Creation, E>>,
) -> Vec<Result<Creation, E>> {
    if !creations.iter().flatten().any(Creation::needs_binding) {
        return creations;
    }
    let mut batch = CommandBatch::default();
    let bindings = creations.iter().flatten().filter_map(|one| one.binding(owners.partitions()));
    bindings.for_each(|(partition, command)| batch.push(partition, command));
    let mut replies = batch.run(owners).await.into_iter();
    let bound = creations.into_iter().map(|creation| {
        let creation = creation?;
        if creation.needs_binding() {
            next_result(&mut replies).and_then(|reply| expect_bound(&reply))?;
        }
        Ok(creation)
    });
    bound.collect()
}

/// Binds the idempotency key to one task.
pub(crate) async fn bind_one<E: From<EngineError>>(
    owners: &Arc<Owners>,
    creation: Creation,
) -> Result<Creation, E> {
    if !creation.needs_binding() {
        return Ok(creation);
    }
    let mut bound = bind_all(owners, vec![Ok(creation)]).await;
    bound.pop().unwrap_or_else(|| Err(EngineError::Lost.into()))
}

/// The partition of a task: that of its key, or else of its receipt. `None` if it has neither.
fn partition_for(
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
    fn receipts_differ_by_idempotency_key_position_and_task() {
        let [a, b] = ["a", "b"].map(|key| Idempotency::new(key).unwrap());
        let named = TaskKey::new("k").unwrap();
        let first = a.receipts(None, 0, b"{}");
        assert_eq!(first, a.receipts(None, 0, b" {}\n"), "the same");
        assert_ne!(first.receipt.key, b.receipts(None, 0, b"{}").receipt.key, "another key");
        assert_ne!(first.receipt.key, a.receipts(None, 1, b"{}").receipt.key, "another position");
        let other = a.receipts(None, 0, b"[]").receipt;
        assert_eq!(first.receipt.key, other.key);
        assert_ne!(first.receipt.digest, other.digest, "another body");
        // With a task key or without, the idempotency key leads to the same receipt.
        let of_named = a.receipts(Some(&named), 0, b"{}");
        assert_ne!(first.receipt.key, of_named.receipt.key, "another task");
        assert_eq!(of_named.binding, Some(first.receipt));
        assert_eq!(first.binding, None);
        assert!(Idempotency::new("").is_err());
        assert!(Idempotency::new(&"x".repeat(257)).is_err());
    }
}
