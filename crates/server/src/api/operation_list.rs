//! The operations that a broker has taken: what they are, and how far they are.
//!
//! The list is bounded per namespace and in total; the oldest operations that have ended are
//! dropped. `operations` runs them.

use std::collections::{HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use punctual_core::{Namespace, Timestamp};
use serde_json::Value;

use crate::problem::Problem;

/// Operations of one namespace that run at the same time: they share the lists of the namespace.
pub(crate) const RUNNING_MAX: usize = 4;
/// Operations of one namespace that are kept, and of all namespaces together, some hundred bytes
/// each.
pub(crate) const KEPT_MAX: usize = 100;
const ALL_KEPT_MAX: usize = 10_000;
/// What is done with each task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BulkVerb {
    Cancel,
    Pause,
    Resume,
    Fire,
}

impl BulkVerb {
    /// All verbs by name.
    pub(crate) const ALL: [(&str, Self); 4] = [
        ("cancel", Self::Cancel),
        ("pause", Self::Pause),
        ("resume", Self::Resume),
        ("fire", Self::Fire),
    ];

    pub(crate) fn name(self) -> &'static str {
        Self::ALL.into_iter().find(|(_, verb)| *verb == self).map_or("", |(name, _)| name)
    }
}

/// How far an operation is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Progress {
    pub(crate) state: OperationState,
    /// Tasks that were found so far.
    pub(crate) matched: u64,
    pub(crate) changed: u64,
    /// Tasks that could not be changed.
    pub(crate) failed: u64,
    pub(crate) ended_at: Option<Timestamp>,
    /// Why the operation has failed.
    pub(crate) problem: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OperationState {
    Running,
    /// All tasks were found.
    Done,
    /// A caller has stopped it, or the broker drains.
    Stopped,
    Failed,
}

impl OperationState {
    /// All states by name.
    pub(crate) const ALL: [(&str, Self); 4] = [
        ("running", Self::Running),
        ("done", Self::Done),
        ("stopped", Self::Stopped),
        ("failed", Self::Failed),
    ];

    pub(crate) fn name(self) -> &'static str {
        Self::ALL.into_iter().find(|(_, known)| *known == self).map_or("", |(name, _)| name)
    }
}

/// One operation.
#[derive(Debug)]
pub(crate) struct BulkOperation {
    /// Unique on this broker.
    pub(crate) id: u64,
    pub(crate) namespace: Namespace,
    pub(crate) verb: BulkVerb,
    /// The filter as the caller wrote it.
    pub(crate) filter: Value,
    /// What the token of the caller grants.
    pub(crate) by: String,
    pub(crate) started_at: Timestamp,
    progress: Mutex<Progress>,
    to_stop: AtomicBool,
}

/// The operations of a broker, newest first.
#[derive(Debug, Default)]
pub(crate) struct Operations {
    last_id: AtomicU64,
    kept: Mutex<VecDeque<Arc<BulkOperation>>>,
}

impl Operations {
    /// Adds a new operation, which is running.
    pub(super) fn add(
        &self,
        namespace: Namespace,
        verb: BulkVerb,
        filter: Value,
        by: String,
        started_at: Timestamp,
    ) -> Result<Arc<BulkOperation>, Problem> {
        let operation = Arc::new(BulkOperation {
            id: self.last_id.fetch_add(1, Ordering::Relaxed) + 1,
            namespace,
            verb,
            filter,
            by,
            started_at,
            progress: Mutex::new(Progress::new()),
            to_stop: AtomicBool::new(false),
        });
        self.keep(&operation)?;
        Ok(operation)
    }

    /// Adds an operation. The oldest ones that have ended are dropped.
    fn keep(&self, operation: &Arc<BulkOperation>) -> Result<(), Problem> {
        let mut kept = self.lock();
        let namespace = &operation.namespace;
        let of_namespace = || kept.iter().filter(|other| other.namespace == *namespace);
        if of_namespace().filter(|other| other.is_running()).count() >= RUNNING_MAX {
            return Err(Problem::too_many_operations(namespace, RUNNING_MAX));
        }
        let mut dropped = HashSet::new();
        let ended = |other: &&Arc<BulkOperation>| !other.is_running();
        if of_namespace().count() >= KEPT_MAX {
            dropped.extend(of_namespace().rev().find(ended).map(|other| other.id));
        }
        if kept.len() >= ALL_KEPT_MAX {
            let oldest = kept.iter().rev().find(ended).map(|other| other.id);
            dropped.insert(
                oldest.ok_or_else(|| Problem::all_in_use(ALL_KEPT_MAX, "running operations"))?,
            );
        }
        kept.retain(|other| !dropped.contains(&other.id));
        kept.push_front(Arc::clone(operation));
        Ok(())
    }

    /// The operations of a namespace, newest first.
    pub(crate) fn list(&self, namespace: &Namespace) -> Vec<Arc<BulkOperation>> {
        let kept = self.lock();
        kept.iter().filter(|operation| operation.namespace == *namespace).cloned().collect()
    }

    pub(crate) fn find(&self, namespace: &Namespace, id: u64) -> Option<Arc<BulkOperation>> {
        self.list(namespace).into_iter().find(|operation| operation.id == id)
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Arc<BulkOperation>>> {
        // Every update is a single step, so the value is consistent even after a panic.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Progress {
    fn new() -> Self {
        Self {
            state: OperationState::Running,
            matched: 0,
            changed: 0,
            failed: 0,
            ended_at: None,
            problem: None,
        }
    }
}

impl BulkOperation {
    pub(crate) fn progress(&self) -> Progress {
        self.lock().clone()
    }

    /// Asks the operation to end after its present step.
    pub(crate) fn stop(&self) {
        self.to_stop.store(true, Ordering::Relaxed);
    }

    fn is_running(&self) -> bool {
        self.lock().state == OperationState::Running
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.to_stop.load(Ordering::Relaxed)
    }

    pub(super) fn end(&self, state: OperationState, problem: Option<String>, now: Timestamp) {
        let progress = {
            let mut progress = self.lock();
            (progress.state, progress.problem) = (state, problem);
            progress.ended_at = Some(now);
            progress.clone()
        };
        let (namespace, id) = (&self.namespace, self.id);
        let Progress { matched, changed, failed, .. } = progress;
        tracing::info!(%namespace, id, ?state, matched, changed, failed, "operation ended");
    }

    /// Notes what a step has done.
    pub(super) fn update(&self, update: impl FnOnce(&mut Progress)) {
        update(&mut self.lock());
    }

    fn lock(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operation(namespace: &str, id: u64, state: OperationState) -> Arc<BulkOperation> {
        Arc::new(BulkOperation {
            id,
            namespace: Namespace::new(namespace).unwrap(),
            verb: BulkVerb::Pause,
            filter: Value::Null,
            by: "admin".to_owned(),
            started_at: Timestamp::EPOCH,
            progress: Mutex::new(Progress { state, ..Progress::new() }),
            to_stop: AtomicBool::new(false),
        })
    }

    fn ids(operations: &Operations, namespace: &str) -> Vec<u64> {
        let namespace = Namespace::new(namespace).unwrap();
        operations.list(&namespace).iter().map(|operation| operation.id).collect()
    }

    #[test]
    fn few_operations_of_a_namespace_run_and_the_oldest_that_ended_is_dropped() {
        use OperationState::{Done, Running};
        let operations = Operations::default();
        for id in 1..=3 {
            operations.keep(&operation("shop", id, Running)).unwrap();
        }
        for id in 4..=100 {
            operations.keep(&operation("shop", id, Done)).unwrap();
        }
        operations.keep(&operation("shop", 101, Running)).unwrap();
        let kept = ids(&operations, "shop");
        assert_eq!((kept.len(), kept[0]), (KEPT_MAX, 101));
        assert_eq!(kept[96..], [5, 3, 2, 1], "the fourth was the oldest that had ended");
        let refused = operations.keep(&operation("shop", 102, Running)).unwrap_err();
        assert_eq!(refused.parts().1.as_u16(), 429);
        assert!(refused.detail().contains("\"shop\""), "{}", refused.detail());
        operations.keep(&operation("bank", 103, Running)).unwrap();
        assert_eq!(ids(&operations, "bank"), [103]);
    }
}
