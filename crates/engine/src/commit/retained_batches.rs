//! Batches that the store has answered, kept for a while.
//!
//! A store that fails over may have forgotten the last that it answered (`docs/adr/0009-redis-store.md`). In: batches, once they are durable. Out: those
//! that are missing, by their numbers, and what they are about. Invariant: what is kept is the latest, without gaps.
//! Bound: [`BATCHES_MAX`], [`WEIGHT_MAX`], [`AGE_MAX`].

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use punctual_core::{Namespace, Task, TaskId, TaskKey, Timestamp};
use punctual_store::{Batch, BatchNo, Change};

use crate::handle::command::Subject;

/// As many as an owner makes in some seconds.
const BATCHES_MAX: usize = 256;
/// Two of the largest, and a multiple of what is usual.
const WEIGHT_MAX: usize = 2 * Batch::WEIGHT_MAX;
/// What a replica may be behind by far; one that lacks more is no replica.
const AGE_MAX: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub(crate) struct RetainedBatches {
    batches: VecDeque<One>,
    weight: usize,
}

#[derive(Debug)]
struct One {
    batch: Batch,
    weight: usize,
    at: Timestamp,
}

impl RetainedBatches {
    /// Keeps the batch that the store has just answered.
    pub(crate) fn keep(&mut self, batch: Batch, now: Timestamp) {
        let weight = batch.changes.iter().map(|change| change.weight()).sum();
        self.weight += weight;
        self.batches.push_back(One { batch, weight, at: now });
        self.forget(now);
    }

    /// Forgets what is too old or too much.
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

    /// One of them.
    pub(crate) fn get(&self, number: BatchNo) -> Option<&Batch> {
        let first = self.batches.front()?.batch.number.get();
        let index = usize::try_from(number.get().checked_sub(first)?).ok()?;
        self.batches.get(index).map(|one| &one.batch)
    }

    /// What those from a number on are about.
    pub(crate) fn about_since(&self, number: BatchNo) -> About {
        let batches = self.batches.iter().map(|one| &one.batch);
        let since = batches.filter(|batch| batch.number >= number);
        since.flat_map(|batch| &batch.changes).map(Arc::as_ref).collect()
    }
}

/// The tasks and names that changes are about: whoever reads any other in a store that lacks these changes is told the truth.
#[derive(Debug, Default)]
pub(crate) struct About {
    tasks: HashSet<TaskId>,
    names: HashSet<(Namespace, TaskKey)>,
}

impl About {
    fn take_in(&mut self, change: &Change) {
        self.tasks.insert(change.task_id());
        let (one, other) = match change {
            Change::Put(task) | Change::Refile { task, .. } | Change::Redrive { task, .. } => {
                (Some(task), None)
            }
            Change::Settle { next, .. } => (next.as_ref(), None),
            Change::Dead { letter, next, .. } => (Some(&letter.task), next.as_ref()),
            Change::Postpone { .. } | Change::Forget { .. } => (None, None),
        };
        for task in one.into_iter().chain(other) {
            self.tasks.insert(task.id);
            self.names.extend(name_of(task));
        }
    }

    /// Adds whom somebody asked about.
    pub(crate) fn add(&mut self, subject: &Subject) {
        match subject {
            Subject::Key(namespace, key) => {
                self.names.insert((namespace.clone(), key.clone()));
            }
            Subject::Id(_, id) => {
                self.tasks.insert(*id);
            }
        }
    }

    /// Whether both are about the same task or the same name.
    pub(crate) fn meets(&self, other: &Self) -> bool {
        !self.tasks.is_disjoint(&other.tasks) || !self.names.is_disjoint(&other.names)
    }
}

impl<'a> FromIterator<&'a Change> for About {
    fn from_iter<I: IntoIterator<Item = &'a Change>>(changes: I) -> Self {
        let mut about = Self::default();
        changes.into_iter().for_each(|change| about.take_in(change));
        about
    }
}

fn name_of(task: &Task) -> Option<(Namespace, TaskKey)> {
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
    fn the_latest_are_kept_up_to_a_number_and_an_age() {
        let mut kept = RetainedBatches::default();
        for number in 1..=300 {
            kept.keep(batch(number), NOW);
        }
        assert_eq!(kept.get(BatchNo::new(44)), None);
        assert_eq!(kept.get(BatchNo::new(45)), Some(&batch(45)));
        assert_eq!(kept.get(BatchNo::new(300)), Some(&batch(300)));
        assert_eq!(kept.get(BatchNo::new(301)), None);
        kept.forget(NOW.after(AGE_MAX));
        assert!(kept.get(BatchNo::new(300)).is_some());
        kept.forget(NOW.after(AGE_MAX + Duration::from_millis(1)));
        assert!(kept.get(BatchNo::new(300)).is_none());
    }
}
