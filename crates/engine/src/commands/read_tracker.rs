//! Tracks which reads of the store are out of date.
//!
//! A read takes a while, and the owner makes decisions meanwhile. The result of a read about a task
//! is used only if no decision about the task was made after the read began, and none that was made
//! before was still pending. The letters of a task that continues have a scope of their own:
//! whatever becomes of them, what was read about the task still holds. A task id is forgotten as
//! soon as no open read is older than its last change.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, VecDeque};

use punctual_core::{TaskId, TaskState};
use punctual_store::Change;
use rapidhash::fast::RandomState;

/// When a read began: the number of batches that were durable by then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ReadToken(u64);

/// What a decision or a read is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Scope {
    /// A task.
    Task(TaskId),
    /// The dead letters and records of a task that continues.
    Letters(TaskId),
}

impl Scope {
    /// Returns what a change is about.
    pub(crate) fn of(change: &Change) -> Self {
        let task_continues = match change {
            Change::Settle { was, .. } | Change::Dead { was, .. } => {
                matches!(was.state, TaskState::Firing)
            }
            Change::DeleteLetter { .. } => true,
            Change::Put(_)
            | Change::Refile { .. }
            | Change::Postpone { .. }
            | Change::Redrive { .. } => false,
        };
        if task_continues { Self::Letters(change.task_id()) } else { Self::Task(change.task_id()) }
    }
}

/// Open reads, and the decisions that may have made them out of date.
#[derive(Debug, Default)]
pub(crate) struct ReadTracker {
    /// Batches that are durable.
    batches: u64,
    tasks: Changes,
    letters: Changes,
    /// Open reads by when they began.
    open: BTreeMap<ReadToken, u32>,
    /// Reads that began before this many batches were durable are not used at all.
    valid_from: u64,
}

/// Recent decisions, by task id only: the tables are used with every decision, and when many tasks
/// are due at once they are larger than a cache.
#[derive(Debug, Default)]
struct Changes {
    /// The number of decisions about a task that are not durable.
    undurable: HashMap<TaskId, u32, RandomState>,
    /// The batch that last changed a task, while a read is open that may have missed it.
    changed: HashMap<TaskId, u64, RandomState>,
    /// The same in order of age.
    by_age: VecDeque<(u64, TaskId)>,
}

impl Changes {
    /// Forgets the changes of a batch and of those before it.
    fn forget(&mut self, oldest: u64) {
        while let Some((batch, id)) = self.by_age.front().copied() {
            if batch > oldest {
                break;
            }
            self.by_age.pop_front();
            if let Entry::Occupied(entry) = self.changed.entry(id)
                && *entry.get() == batch
            {
                entry.remove();
            }
        }
    }
}

impl ReadTracker {
    /// Begins a read.
    pub(crate) fn open(&mut self) -> ReadToken {
        let read = ReadToken(self.batches);
        *self.open.entry(read).or_default() += 1;
        read
    }

    /// Ends a read. Its token stays valid until the next batch is durable.
    pub(crate) fn close(&mut self, read: ReadToken) {
        if let Some(count) = self.open.get_mut(&read) {
            *count -= 1;
            if *count == 0 {
                self.open.remove(&read);
            }
        }
    }

    const fn changes(&self, scope: Scope) -> (&Changes, TaskId) {
        match scope {
            Scope::Task(id) => (&self.tasks, id),
            Scope::Letters(id) => (&self.letters, id),
        }
    }

    const fn changes_mut(&mut self, scope: Scope) -> (&mut Changes, TaskId) {
        match scope {
            Scope::Task(id) => (&mut self.tasks, id),
            Scope::Letters(id) => (&mut self.letters, id),
        }
    }

    /// A decision was made.
    pub(crate) fn decided(&mut self, scope: Scope) {
        let (changes, id) = self.changes_mut(scope);
        *changes.undurable.entry(id).or_default() += 1;
    }

    /// A decision of the batch that was applied last is durable.
    pub(crate) fn durable(&mut self, scope: Scope) {
        // Reads that begin from now on see it. Without an open read, none can have missed it.
        if !self.open.is_empty() {
            let batch = self.batches;
            let (changes, id) = self.changes_mut(scope);
            changes.changed.insert(id, batch);
            changes.by_age.push_back((batch, id));
        }
        self.undone(scope);
    }

    /// A decision was undone, or is durable.
    pub(crate) fn undone(&mut self, scope: Scope) {
        let (changes, id) = self.changes_mut(scope);
        if let Entry::Occupied(mut entry) = changes.undurable.entry(id) {
            *entry.get_mut() -= 1;
            if *entry.get() == 0 {
                entry.remove();
            }
        }
    }

    /// The reads so far, open ones included, may show a state to which the store had fallen back.
    pub(crate) const fn invalidate_earlier_reads(&mut self) {
        self.valid_from = self.batches;
    }

    /// Whether a read began after that.
    pub(crate) const fn is_valid(&self, read: ReadToken) -> bool {
        read.0 >= self.valid_from
    }

    /// One more batch is durable. Its decisions are passed to [`durable`](Self::durable) next.
    pub(crate) fn applied(&mut self) {
        self.batches += 1;
        let oldest = self.open.keys().next().map_or(self.batches, |read| read.0);
        self.tasks.forget(oldest);
        self.letters.forget(oldest);
    }

    /// Whether a decision is not durable yet.
    pub(crate) fn is_undurable(&self, scope: Scope) -> bool {
        let (changes, id) = self.changes(scope);
        changes.undurable.contains_key(&id)
    }

    /// Whether a read may be out of date.
    pub(crate) fn changed_since(&self, scope: Scope, read: ReadToken) -> bool {
        self.is_undurable(scope) || self.durable_since(scope, read)
    }

    /// Whether a decision has become durable since a read began.
    pub(crate) fn durable_since(&self, scope: Scope, read: ReadToken) -> bool {
        let (changes, id) = self.changes(scope);
        changes.changed.get(&id).is_some_and(|batch| *batch > read.0)
    }

    #[cfg(test)]
    fn count_remembered(&self) -> usize {
        let changes = [&self.tasks, &self.letters];
        changes.map(|it| it.undurable.len() + it.changed.len() + it.by_age.len()).iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use punctual_core::Timestamp;

    use super::*;

    fn id(n: u64) -> Scope {
        Scope::Task(TaskId::floor(Timestamp::from_millis(n)))
    }

    #[test]
    fn a_read_is_out_of_date_about_later_decisions() {
        let mut reads = ReadTracker::default();
        let before = reads.open();
        reads.decided(id(1));
        assert!(reads.changed_since(id(1), before), "not durable");
        reads.applied();
        reads.durable(id(1));
        assert!(reads.changed_since(id(1), before), "durable after the read began");
        assert!(!reads.changed_since(id(2), before), "another task");
        let after = reads.open();
        assert!(!reads.changed_since(id(1), after), "durable before the read began");
    }

    #[test]
    fn a_task_is_undurable_until_both_its_decisions_are_over() {
        let mut reads = ReadTracker::default();
        reads.decided(id(1));
        reads.decided(id(1));
        reads.durable(id(1));
        assert!(reads.is_undurable(id(1)));
        reads.undone(id(1));
        assert!(!reads.is_undurable(id(1)));
    }

    #[test]
    fn a_change_is_forgotten_once_no_read_can_have_missed_it() {
        let mut reads = ReadTracker::default();
        let read = reads.open();
        for n in 0..100 {
            reads.decided(id(n));
            reads.applied();
            reads.durable(id(n));
        }
        assert_eq!(reads.count_remembered(), 200);
        reads.close(read);
        reads.applied();
        assert_eq!(reads.count_remembered(), 0);
    }
}
