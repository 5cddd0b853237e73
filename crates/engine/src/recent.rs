//! What was decided while somebody was reading.
//!
//! A read of the store takes a while, and the owner goes on deciding meanwhile. What a read brought
//! about a task is believed only if nothing about that task was decided after the read was issued and nothing
//! decided before it was still on its way. This is the only place that knows.
//!
//! In: decisions, their durability, and reads that open and close. Out: whether a read is out of date.
//! Bound: ids are forgotten as soon as no open read is older than their change.

use std::collections::{BTreeMap, HashMap, VecDeque};

use punctual_core::TaskId;
use rapidhash::fast::RandomState;

/// When a read was issued: how many batches had been made by then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Issued(u64);

#[derive(Debug, Default)]
pub(crate) struct Recent {
    /// Batches made so far.
    batches: u64,
    /// Decisions about a task that are not durable yet.
    undurable: HashMap<TaskId, u32, RandomState>,
    /// The batch that last changed a task, as long as a read is open that may have missed it.
    changed: HashMap<TaskId, u64, RandomState>,
    /// The same by age, to forget them in order.
    by_age: VecDeque<(u64, TaskId)>,
    /// Open reads by when they were issued.
    open: BTreeMap<Issued, u32>,
}

impl Recent {
    pub(crate) fn open(&mut self) -> Issued {
        let issued = Issued(self.batches);
        *self.open.entry(issued).or_default() += 1;
        issued
    }

    pub(crate) fn close(&mut self, issued: Issued) {
        if let Some(count) = self.open.get_mut(&issued) {
            *count -= 1;
            if *count == 0 {
                self.open.remove(&issued);
            }
        }
    }

    pub(crate) fn decided(&mut self, id: TaskId) {
        *self.undurable.entry(id).or_default() += 1;
    }

    /// A decision about a task, part of the batch last applied, is durable.
    pub(crate) fn durable(&mut self, id: TaskId) {
        // A read that is issued from now on sees it; without an open one nobody can have missed it.
        if !self.open.is_empty() {
            self.changed.insert(id, self.batches);
            self.by_age.push_back((self.batches, id));
        }
        self.undone(id);
    }

    /// A decision about a task will never be made.
    pub(crate) fn undone(&mut self, id: TaskId) {
        let Some(count) = self.undurable.get_mut(&id) else {
            return;
        };
        *count -= 1;
        if *count == 0 {
            self.undurable.remove(&id);
        }
    }

    /// One more batch is durable; its decisions are named next.
    pub(crate) fn applied(&mut self) {
        self.batches += 1;
        let oldest = self.open.keys().next().map_or(self.batches, |issued| issued.0);
        while let Some((batch, id)) = self.by_age.front().copied() {
            if batch > oldest {
                break;
            }
            self.by_age.pop_front();
            if self.changed.get(&id) == Some(&batch) {
                self.changed.remove(&id);
            }
        }
    }

    pub(crate) fn is_undurable(&self, id: TaskId) -> bool {
        self.undurable.contains_key(&id)
    }

    /// Whether a read that was issued then may be out of date about a task.
    pub(crate) fn changed_since(&self, id: TaskId, issued: Issued) -> bool {
        self.is_undurable(id) || self.changed.get(&id).is_some_and(|batch| *batch > issued.0)
    }

    #[cfg(test)]
    fn remembered(&self) -> usize {
        self.undurable.len() + self.changed.len() + self.by_age.len()
    }
}

#[cfg(test)]
mod tests {
    use punctual_core::Timestamp;

    use super::*;

    fn id(n: u64) -> TaskId {
        TaskId::floor(Timestamp::from_millis(n))
    }

    #[test]
    fn a_read_is_out_of_date_about_what_was_decided_since() {
        let mut recent = Recent::default();
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
        let mut recent = Recent::default();
        recent.decided(id(1));
        recent.decided(id(1));
        recent.durable(id(1));
        assert!(recent.is_undurable(id(1)));
        recent.undone(id(1));
        assert!(!recent.is_undurable(id(1)));
    }

    #[test]
    fn nothing_is_remembered_once_no_read_can_have_missed_it() {
        let mut recent = Recent::default();
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
