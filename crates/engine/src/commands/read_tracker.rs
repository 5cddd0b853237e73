//! Tracks which reads of the store are out of date.
//!
//! A read takes a while, and the owner makes decisions meanwhile. The result of a read about a task
//! is used only if no decision about the task was made after the read began, and none that was made
//! before was still pending. The letters of a task that continues have a scope of their own:
//! whatever becomes of them, what was read about the task still holds. A task id is forgotten as
//! soon as no open read is older than its last change.
//!
//! A new task without a key is only remembered until it is durable: before, no caller can know its
//! id, and a read that began before shows the task as it was created or not at all.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::num::NonZeroU64;

use punctual_core::{Epoch, Sequence, TaskId, TaskState};
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
    /// A new task without a key.
    New(TaskId),
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
            Change::Put(task) if task.definition.key.is_none() => return Self::New(task.id),
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
    created: CreatedTasks,
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
    recent: HashMap<TaskId, RecentChanges, RandomState>,
    /// The batches that changed tasks while a read was open, in order of age.
    by_age: VecDeque<(u64, TaskId)>,
}

/// Recent decisions about one task.
#[derive(Debug, Default)]
struct RecentChanges {
    /// The number of those that are not durable.
    undurable: u32,
    /// The batch that last changed the task, while a read is open that may have missed it.
    changed: Option<NonZeroU64>,
}

impl RecentChanges {
    const fn is_over(&self) -> bool {
        self.undurable == 0 && self.changed.is_none()
    }
}

/// New tasks that are not durable, by the part of their ids that counts up. They become durable in
/// this order, so each is added at one end and removed at the other.
#[derive(Debug, Default)]
struct CreatedTasks(VecDeque<(Epoch, Sequence)>);

impl CreatedTasks {
    const fn number(id: TaskId) -> (Epoch, Sequence) {
        (id.epoch(), id.sequence())
    }

    fn insert(&mut self, id: TaskId) {
        let number = Self::number(id);
        match self.0.back() {
            Some(last) if *last > number => {
                let index = self.0.partition_point(|other| *other < number);
                self.0.insert(index, number);
            }
            _ => self.0.push_back(number),
        }
    }

    fn remove(&mut self, id: TaskId) {
        let number = Self::number(id);
        if self.0.front() == Some(&number) {
            self.0.pop_front();
        } else if let Ok(index) = self.0.binary_search(&number) {
            self.0.remove(index);
        }
    }

    fn contains(&self, id: TaskId) -> bool {
        self.0.binary_search(&Self::number(id)).is_ok()
    }
}

impl Changes {
    /// Forgets the changes of a batch and of those before it.
    fn forget(&mut self, oldest: u64) {
        while let Some((batch, id)) = self.by_age.front().copied() {
            if batch > oldest {
                break;
            }
            self.by_age.pop_front();
            self.change(id, |recent| {
                if recent.changed.is_some_and(|changed| changed.get() == batch) {
                    recent.changed = None;
                }
            });
        }
    }

    /// Changes what is remembered of a task, if anything is, and forgets the task if nothing is
    /// left.
    fn change(&mut self, id: TaskId, change: impl FnOnce(&mut RecentChanges)) {
        if let Entry::Occupied(mut entry) = self.recent.entry(id) {
            change(entry.get_mut());
            if entry.get().is_over() {
                entry.remove();
            }
        }
    }

    fn get(&self, id: TaskId) -> Option<&RecentChanges> {
        self.recent.get(&id)
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
            Scope::Task(id) | Scope::New(id) => (&self.tasks, id),
            Scope::Letters(id) => (&self.letters, id),
        }
    }

    const fn changes_mut(&mut self, scope: Scope) -> (&mut Changes, TaskId) {
        match scope {
            Scope::Task(id) | Scope::New(id) => (&mut self.tasks, id),
            Scope::Letters(id) => (&mut self.letters, id),
        }
    }

    /// A decision was made.
    pub(crate) fn decided(&mut self, scope: Scope) {
        if let Scope::New(id) = scope {
            return self.created.insert(id);
        }
        let (changes, id) = self.changes_mut(scope);
        changes.recent.entry(id).or_default().undurable += 1;
    }

    /// A decision of the batch that was applied last is durable.
    pub(crate) fn durable(&mut self, scope: Scope) {
        if let Scope::New(id) = scope {
            return self.created.remove(id);
        }
        // Reads that begin from now on see it. Without an open read, none can have missed it.
        let batch = NonZeroU64::new(self.batches).filter(|_| !self.open.is_empty());
        let (changes, id) = self.changes_mut(scope);
        if let Some(batch) = batch {
            changes.by_age.push_back((batch.get(), id));
        }
        changes.change(id, |recent| {
            recent.undurable = recent.undurable.saturating_sub(1);
            recent.changed = batch.or(recent.changed);
        });
    }

    /// A decision was undone.
    pub(crate) fn undone(&mut self, scope: Scope) {
        if let Scope::New(id) = scope {
            return self.created.remove(id);
        }
        let (changes, id) = self.changes_mut(scope);
        changes.change(id, |recent| {
            recent.undurable = recent.undurable.saturating_sub(1);
        });
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
        changes.get(id).is_some_and(|recent| recent.undurable > 0)
            || !matches!(scope, Scope::Letters(_)) && self.created.contains(id)
    }

    /// Whether a read may be out of date.
    pub(crate) fn changed_since(&self, scope: Scope, read: ReadToken) -> bool {
        self.is_undurable(scope) || self.durable_since(scope, read)
    }

    /// Whether a decision has become durable since a read began.
    pub(crate) fn durable_since(&self, scope: Scope, read: ReadToken) -> bool {
        let (changes, id) = self.changes(scope);
        let changed = changes.get(id).and_then(|recent| recent.changed);
        changed.is_some_and(|batch| batch.get() > read.0)
    }

    #[cfg(test)]
    fn count_remembered(&self) -> usize {
        let changes = [&self.tasks, &self.letters];
        let tables = changes.map(|it| it.recent.len() + it.by_age.len());
        self.created.0.len() + tables.iter().sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use punctual_core::{PartitionId, Timestamp};

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
    fn a_new_task_is_undurable_until_its_own_decision_is_over() {
        let id = |sequence| {
            let sequence = Sequence::new(sequence).unwrap();
            let due = Timestamp::from_millis(9 - sequence.get());
            TaskId::new(due, PartitionId::FIRST, Epoch::new(1).unwrap(), sequence)
        };
        let mut reads = ReadTracker::default();
        let read = reads.open();
        for sequence in [1, 2, 5, 4] {
            reads.decided(Scope::New(id(sequence)));
        }
        reads.applied();
        reads.undone(Scope::New(id(2)));
        reads.durable(Scope::New(id(1)));
        let undurable = (0..7).filter(|it| reads.is_undurable(Scope::Task(id(*it))));
        assert_eq!(undurable.collect::<Vec<_>>(), [4, 5]);
        assert!(!reads.changed_since(Scope::Task(id(1)), read), "it is as it was created");
        assert!(!reads.is_undurable(Scope::Letters(id(4))));
        reads.durable(Scope::New(id(4)));
        reads.durable(Scope::New(id(5)));
        assert_eq!(reads.count_remembered(), 0);
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
