//! What was decided while somebody was reading.
//!
//! A read of the store takes a while, and the owner goes on deciding meanwhile. What a read brought
//! about a task is believed only if nothing about that task was decided after the read was issued and nothing
//! decided before it was still on its way. This is the only place that knows.
//!
//! In: decisions, their durability, and reads that open and close. Out: whether a read is out of date.
//! A letter of a task that goes on is a matter of its own: whatever becomes of it, what was read about the task is still true.
//! Bound: ids are forgotten as soon as no open read is older than their change.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, VecDeque};

use punctual_core::{TaskId, TaskState};
use punctual_store::Change;
use rapidhash::fast::RandomState;

/// When a read was issued: how many batches had been made by then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ReadToken(u64);

/// What was decided about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Scope {
    /// How a task stands.
    Task(TaskId),
    /// The letters and records of a task that goes on.
    Letters(TaskId),
}

impl Scope {
    /// What a change is about.
    pub(crate) const fn of(change: &Change) -> Self {
        let aside = match change {
            Change::Settle { was, .. } | Change::Dead { was, .. } => {
                matches!(was, TaskState::Firing)
            }
            Change::Forget { .. } => true,
            Change::Put(_)
            | Change::Refile { .. }
            | Change::Postpone { .. }
            | Change::Redrive { .. } => false,
        };
        if aside { Self::Letters(change.task_id()) } else { Self::Task(change.task_id()) }
    }
}

#[derive(Debug, Default)]
pub(crate) struct ReadTracker {
    /// Batches made so far.
    batches: u64,
    tasks: Changes,
    letters: Changes,
    /// Open reads by when they were issued.
    open: BTreeMap<ReadToken, u32>,
    /// Reads that were issued before this many batches are not believed at all.
    trusted: u64,
}

/// What was decided of late about matters of one kind. By nothing but their ids: the tables are looked into with every decision, and when a
/// crowd is due they are larger than a cache.
#[derive(Debug, Default)]
struct Changes {
    /// Decisions about a task that are not durable yet.
    undurable: HashMap<TaskId, u32, RandomState>,
    /// The batch that last changed a task, as long as a read is open that may have missed it.
    changed: HashMap<TaskId, u64, RandomState>,
    /// The same by age, to forget them in order.
    by_age: VecDeque<(u64, TaskId)>,
}

impl Changes {
    /// Forgets what was changed by a batch and those before.
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
    pub(crate) fn open(&mut self) -> ReadToken {
        let issued = ReadToken(self.batches);
        *self.open.entry(issued).or_default() += 1;
        issued
    }

    pub(crate) fn close(&mut self, issued: ReadToken) {
        if let Some(count) = self.open.get_mut(&issued) {
            *count -= 1;
            if *count == 0 {
                self.open.remove(&issued);
            }
        }
    }

    const fn lately(&self, matter: Scope) -> (&Changes, TaskId) {
        match matter {
            Scope::Task(id) => (&self.tasks, id),
            Scope::Letters(id) => (&self.letters, id),
        }
    }

    const fn lately_mut(&mut self, matter: Scope) -> (&mut Changes, TaskId) {
        match matter {
            Scope::Task(id) => (&mut self.tasks, id),
            Scope::Letters(id) => (&mut self.letters, id),
        }
    }

    pub(crate) fn decided(&mut self, matter: Scope) {
        let (lately, id) = self.lately_mut(matter);
        *lately.undurable.entry(id).or_default() += 1;
    }

    /// A decision about a task, part of the batch last applied, is durable.
    pub(crate) fn durable(&mut self, matter: Scope) {
        // A read that is issued from now on sees it; without an open one nobody can have missed it.
        if !self.open.is_empty() {
            let batch = self.batches;
            let (lately, id) = self.lately_mut(matter);
            lately.changed.insert(id, batch);
            lately.by_age.push_back((batch, id));
        }
        self.undone(matter);
    }

    /// A decision about a task will never be made.
    pub(crate) fn undone(&mut self, matter: Scope) {
        let (lately, id) = self.lately_mut(matter);
        if let Entry::Occupied(mut entry) = lately.undurable.entry(id) {
            *entry.get_mut() -= 1;
            if *entry.get() == 0 {
                entry.remove();
            }
        }
    }

    /// What was read so far, and what is being read, may be out of a past that the store had fallen back to.
    pub(crate) const fn distrust_earlier(&mut self) {
        self.trusted = self.batches;
    }

    pub(crate) const fn is_trusted(&self, issued: ReadToken) -> bool {
        issued.0 >= self.trusted
    }

    /// One more batch is durable; its decisions are named next.
    pub(crate) fn applied(&mut self) {
        self.batches += 1;
        let oldest = self.open.keys().next().map_or(self.batches, |issued| issued.0);
        self.tasks.forget(oldest);
        self.letters.forget(oldest);
    }

    pub(crate) fn is_undurable(&self, matter: Scope) -> bool {
        let (lately, id) = self.lately(matter);
        lately.undurable.contains_key(&id)
    }

    /// Whether a read that was issued then may be out of date about a task.
    pub(crate) fn changed_since(&self, matter: Scope, issued: ReadToken) -> bool {
        self.is_undurable(matter) || self.durable_since(matter, issued)
    }

    /// Whether something about a task has become durable since a read was issued.
    pub(crate) fn durable_since(&self, matter: Scope, issued: ReadToken) -> bool {
        let (lately, id) = self.lately(matter);
        lately.changed.get(&id).is_some_and(|batch| *batch > issued.0)
    }

    #[cfg(test)]
    fn remembered(&self) -> usize {
        let lately = [&self.tasks, &self.letters];
        lately.map(|it| it.undurable.len() + it.changed.len() + it.by_age.len()).iter().sum()
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
    fn a_read_is_out_of_date_about_what_was_decided_since() {
        let mut recent = ReadTracker::default();
        let before = recent.open();
        recent.decided(id(1));
        assert!(recent.changed_since(id(1), before), "on its way");
        recent.applied();
        recent.durable(id(1));
        assert!(recent.changed_since(id(1), before), "made after the read was issued");
        assert!(!recent.changed_since(id(2), before), "another task");
        let after = recent.open();
        assert!(!recent.changed_since(id(1), after), "made before the read was issued");
    }

    #[test]
    fn two_decisions_on_their_way_are_both_waited_for() {
        let mut recent = ReadTracker::default();
        recent.decided(id(1));
        recent.decided(id(1));
        recent.durable(id(1));
        assert!(recent.is_undurable(id(1)));
        recent.undone(id(1));
        assert!(!recent.is_undurable(id(1)));
    }

    #[test]
    fn nothing_is_remembered_once_no_read_can_have_missed_it() {
        let mut recent = ReadTracker::default();
        let read = recent.open();
        for n in 0..100 {
            recent.decided(id(n));
            recent.applied();
            recent.durable(id(n));
        }
        assert_eq!(recent.remembered(), 200);
        recent.close(read);
        recent.applied();
        assert_eq!(recent.remembered(), 0);
    }
}
