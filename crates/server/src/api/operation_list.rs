//! The operations that a broker has taken: what they are, and how far they are.
//!
//! The list is bounded per namespace and in total; the oldest operations that have ended are
//! dropped. `operations` runs them.

use std::collections::{HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use punctual_core::{Invalid, Namespace, TaskId, Timestamp, format_duration};
use serde_json::Value;

use crate::actions::ActionDetail;
use crate::problem::Problem;

/// Operations of one namespace that run at the same time: they share the lists of the namespace.
pub(crate) const RUNNING_MAX: usize = 4;
/// Operations of one namespace that are kept, and of all namespaces together, some hundred bytes
/// each.
pub(crate) const KEPT_MAX: usize = 100;
const ALL_KEPT_MAX: usize = 10_000;
/// How far tasks can be moved.
pub(crate) const LATER_MIN: Duration = Duration::from_secs(1);
pub(crate) const LATER_MAX: Duration = Duration::from_secs(366 * 24 * 60 * 60);

/// What is done with each task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BulkVerb {
    Cancel,
    Pause,
    Resume,
    Fire,
    Move(TaskMove),
}

/// How much later tasks are due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TaskMove {
    /// Each task is due so much later.
    Shift(Duration),
    /// Each task is due later by a share of this that follows from its id, so that tasks that are
    /// due together are due evenly over this time.
    Spread(Duration),
}

impl BulkVerb {
    /// The names of all verbs.
    pub(crate) const NAMES: [&str; 6] = ["cancel", "pause", "resume", "fire", "shift", "spread"];

    /// Reads a verb. `later` belongs to those that move tasks.
    pub(crate) fn parse(name: &str, later: Option<Duration>) -> Result<Self, Invalid> {
        let verb = match (name, later) {
            ("shift", Some(later)) => return Ok(Self::Move(TaskMove::Shift(later))),
            ("spread", Some(later)) => return Ok(Self::Move(TaskMove::Spread(later))),
            ("shift" | "spread", None) => {
                return Err(Invalid::new("later", "must be given to shift or spread"));
            }
            ("cancel", _) => Self::Cancel,
            ("pause", _) => Self::Pause,
            ("resume", _) => Self::Resume,
            ("fire", _) => Self::Fire,
            _ => {
                let all = Self::NAMES.join(", ");
                return Err(Invalid::new("do", format!("must be one of {all}")));
            }
        };
        match later {
            None => Ok(verb),
            Some(_) => Err(Invalid::new("later", "is only for shift and spread")),
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Cancel => "cancel",
            Self::Pause => "pause",
            Self::Resume => "resume",
            Self::Fire => "fire",
            Self::Move(TaskMove::Shift(_)) => "shift",
            Self::Move(TaskMove::Spread(_)) => "spread",
        }
    }

    /// The duration that the caller gave, for the verbs that move tasks.
    pub(crate) fn later(self) -> Option<Duration> {
        match self {
            Self::Move(TaskMove::Shift(later) | TaskMove::Spread(later)) => Some(later),
            _ => None,
        }
    }
}

impl TaskMove {
    /// When a task that was due at `fire_at` is due then.
    pub(crate) fn time(self, id: TaskId, fire_at: Timestamp) -> Timestamp {
        match self {
            Self::Shift(later) => fire_at.after(later),
            Self::Spread(later) => fire_at.after(later.mul_f64(share(id))),
        }
    }
}

/// A number from 0 to 1 for each task. Those of tasks that were created one after the other are
/// spread evenly: they are multiples of the golden ratio, and begin elsewhere in each partition.
fn share(id: TaskId) -> f64 {
    const GOLDEN_RATIO: u64 = 0x9e37_79b9_7f4a_7c15;
    const ROOT_OF_TWO: u64 = 0x6a09_e667_f3bc_c908;
    let begin = u64::from(id.partition().get()).wrapping_mul(ROOT_OF_TWO);
    let turned = id.sequence().get().wrapping_mul(GOLDEN_RATIO).wrapping_add(begin);
    f64::from(u32::try_from(turned >> 32).unwrap_or(u32::MAX)) / f64::from(u32::MAX)
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

    /// What an action of an operator says about it.
    pub(crate) fn as_action(&self) -> ActionDetail {
        let later = self.verb.later().map(format_duration);
        let later = later.map_or_else(String::new, |later| format!(" {later}"));
        let detail = format!("{}{later} {}", self.verb.name(), self.filter);
        ActionDetail { name: Some(self.id.to_string()), detail, changed: None }
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
    use punctual_core::{Epoch, PartitionId, Sequence};

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

    #[test]
    fn shares_are_spread_evenly() {
        const TASKS: u64 = 1_000;
        let share_of = |partition, number| {
            let partition = PartitionId::new(partition).unwrap();
            let epoch = Epoch::new(7).unwrap();
            let sequence = Sequence::new(number).unwrap();
            share(TaskId::new(Timestamp::EPOCH, partition, epoch, sequence))
        };
        for partitions in [1, 3, 16] {
            let mut tenths = [0; 10];
            for number in 1..=TASKS {
                let share = share_of(u16::try_from(number % partitions).unwrap(), number);
                assert!((0.0..=1.0).contains(&share));
                let tenth = (0..10).rposition(|tenth| share >= f64::from(tenth) / 10.0).unwrap();
                tenths[tenth] += 1;
            }
            let even = tenths.iter().all(|count| (80..=120).contains(count));
            assert!(even, "{partitions} partitions: {tenths:?}");
        }
        assert!((share_of(0, 1) - share_of(1, 1)).abs() > 0.01);
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
