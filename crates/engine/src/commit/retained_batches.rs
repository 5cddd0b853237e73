//! Acknowledged batches that are retained for a while.
//!
//! A store that fails over may have lost the last batches it acknowledged
//! (`docs/adr/0009-redis-store.md`); `failover` sends them again from here. The latest batches are
//! retained, without gaps, within limits on their number, size and age.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use punctual_core::{Namespace, Task, TaskId, TaskKey, Timestamp};
use punctual_store::{Batch, BatchNo, Change};

use crate::handle::command::Subject;

/// As many as an owner writes in some seconds.
const BATCHES_MAX: usize = 256;
/// Two of the largest, and many times the usual size.
const WEIGHT_MAX: usize = 2 * Batch::WEIGHT_MAX;
/// Much longer than a replica may lag.
const AGE_MAX: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub(crate) struct RetainedBatches {
    batches: VecDeque<RetainedBatch>,
    weight: usize,
}

#[derive(Debug)]
struct RetainedBatch {
    batch: Batch,
    weight: usize,
    /// When the store acknowledged it.
    at: Timestamp,
}

impl RetainedBatches {
    /// Retains the batch that the store has just acknowledged.
    pub(crate) fn add(&mut self, batch: Batch, now: Timestamp) {
        let weight = batch.changes.iter().map(|change| change.weight()).sum();
        self.weight += weight;
        self.batches.push_back(RetainedBatch { batch, weight, at: now });
        self.forget(now);
    }

    /// Drops the oldest batches until the limits hold.
    pub(crate) fn forget(&mut self, now: Timestamp) {
        while let Some(oldest) = self.batches.front()
            && (self.batches.len() > BATCHES_MAX
                || self.weight > WEIGHT_MAX
                || oldest.at.after(AGE_MAX) < now)
        {
            self.weight -= oldest.weight;
            self.batches.pop_front();
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.batches.is_empty()
    }

    pub(crate) fn get(&self, number: BatchNo) -> Option<&Batch> {
        let first = self.batches.front()?.batch.number.get();
        let index = usize::try_from(number.get().checked_sub(first)?).ok()?;
        self.batches.get(index).map(|retained| &retained.batch)
    }

    /// Returns the tasks and keys that the batches from a number on change.
    pub(crate) fn subjects_since(&self, number: BatchNo) -> ChangeSubjects {
        let batches = self.batches.iter().map(|retained| &retained.batch);
        let since = batches.filter(|batch| batch.number >= number);
        since.flat_map(|batch| &batch.changes).map(Arc::as_ref).collect()
    }
}

/// The tasks and keys that changes are about. A store that lacks the changes still answers
/// correctly about all others.
#[derive(Debug, Default)]
pub(crate) struct ChangeSubjects {
    tasks: HashSet<TaskId>,
    keys: HashSet<(Namespace, TaskKey)>,
}

impl ChangeSubjects {
    fn add_change(&mut self, change: &Change) {
        self.tasks.insert(change.task_id());
        self.tasks.extend(change.fire_id().map(|fire_id| fire_id.task));
        let (one, other) = match change {
            Change::Put(task) | Change::Refile { task, .. } | Change::Redrive { task, .. } => {
                (Some(task), None)
            }
            Change::Settle { next, .. } => (next.as_ref(), None),
            Change::Dead { letter, next, .. } => (Some(&letter.task), next.as_ref()),
            Change::Postpone { .. } | Change::DeleteLetter { .. } => (None, None),
        };
        for task in one.into_iter().chain(other) {
            self.tasks.insert(task.id);
            self.keys.extend(key_of(task));
        }
    }

    /// Adds the subject of a command.
    pub(crate) fn add(&mut self, subject: &Subject) {
        match subject {
            Subject::Key(namespace, key) => {
                self.keys.insert((namespace.clone(), key.clone()));
            }
            Subject::Id(_, id) => {
                self.tasks.insert(*id);
            }
        }
    }

    /// Whether both have a task or a key in common.
    pub(crate) fn intersects(&self, other: &Self) -> bool {
        !self.tasks.is_disjoint(&other.tasks) || !self.keys.is_disjoint(&other.keys)
    }
}

impl<'a> FromIterator<&'a Change> for ChangeSubjects {
    fn from_iter<I: IntoIterator<Item = &'a Change>>(changes: I) -> Self {
        let mut subjects = Self::default();
        changes.into_iter().for_each(|change| subjects.add_change(change));
        subjects
    }
}

fn key_of(task: &Task) -> Option<(Namespace, TaskKey)> {
    let definition = &task.definition;
    Some((definition.namespace.clone(), definition.key.clone()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(1_000_000);

    fn batch(number: u64) -> Batch {
        Batch { number: BatchNo::new(number), changes: Vec::new() }
    }

    #[test]
    fn the_latest_batches_are_retained_up_to_a_number_and_an_age() {
        let mut retained = RetainedBatches::default();
        for number in 1..=300 {
            retained.add(batch(number), NOW);
        }
        assert_eq!(retained.get(BatchNo::new(44)), None);
        assert_eq!(retained.get(BatchNo::new(45)), Some(&batch(45)));
        assert_eq!(retained.get(BatchNo::new(300)), Some(&batch(300)));
        assert_eq!(retained.get(BatchNo::new(301)), None);
        retained.forget(NOW.after(AGE_MAX));
        assert!(retained.get(BatchNo::new(300)).is_some());
        retained.forget(NOW.after(AGE_MAX + Duration::from_millis(1)));
        assert!(retained.get(BatchNo::new(300)).is_none());
    }
}
