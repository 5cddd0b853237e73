//! Batches: folds many changes into rows that one statement per table writes.
//!
//! A task, letter or record that several changes touch is written once, with its last value. So the
//! order of the statements does not matter.

use std::collections::BTreeMap;
use std::sync::Arc;

use punctual_core::{
    DeadLetter, FireEnd, FireId, FireRecord, Namespace, Task, TaskId, TaskState, Timestamp, Version,
};
use punctual_store::{Batch, Change, Counts, count, due_move};

use crate::difference_weights::DIFFERENCE_WEIGHT;
use crate::differences::BatchDifferences;
use crate::error::BatchGrowth;

/// A later due time of a task, since its body was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LaterTime {
    pub(crate) fire_at: Timestamp,
    pub(crate) version: Version,
    pub(crate) updated_at: Timestamp,
}

impl LaterTime {
    pub(crate) fn of_task(self, task: Task) -> Task {
        let Self { fire_at, version, updated_at } = self;
        Task { fire_at, nominal_at: fire_at, version, updated_at, ..task }
    }
}

/// The state of a task after the changes so far.
#[derive(Debug)]
pub(crate) enum TaskChange {
    /// Stored, and not in the database before the batch.
    New(Box<Task>),
    /// Stored, in place of what the database has.
    Filed(Box<Task>),
    /// Due later, if the database has it.
    Postponed(LaterTime),
    Ended,
}

/// The state of a dead letter after the changes so far.
#[derive(Debug)]
pub(crate) enum LetterChange {
    /// Stored, and not in the database before the batch.
    Kept(Box<DeadLetter>),
    /// Stored, in place of one that the batch removed.
    Replaced(Box<DeadLetter>),
    Removed,
}

/// The state of everything that a batch changes. Maps are ordered, so that neighbours in an index
/// are written one after the other.
#[derive(Debug, Default)]
pub struct BatchRows {
    pub(crate) tasks: BTreeMap<TaskId, TaskChange>,
    pub(crate) letters: BTreeMap<FireId, LetterChange>,
    pub(crate) records: BTreeMap<FireId, FireRecord>,
    pub(crate) counts: BTreeMap<Namespace, Counts>,
    differences: BatchDifferences,
    /// The row of the table of differences, if the batch has one.
    pub(crate) difference: Option<Vec<u8>>,
}

impl BatchRows {
    pub(crate) fn of(batch: Batch) -> Self {
        let mut folded = Self::default();
        for change in batch.changes {
            folded.add(Arc::unwrap_or_clone(change));
        }
        for letter in folded.letters.values() {
            if let LetterChange::Kept(letter) | LetterChange::Replaced(letter) = letter {
                folded.differences.add_letter(letter);
            }
        }
        folded.difference = folded.differences.to_bytes();
        folded
    }

    /// Returns what the differences of the batch weigh; see `fold`.
    pub(crate) fn difference_weight(&self) -> u64 {
        let removed = |letter: &&LetterChange| !matches!(letter, LetterChange::Kept(_));
        let removed = self.letters.values().filter(removed).count() as u64;
        let own = self.difference.as_ref().map_or(0, |row| DIFFERENCE_WEIGHT + row.len() as u64);
        removed * DIFFERENCE_WEIGHT + own
    }

    pub(crate) fn growth(&self) -> BatchGrowth {
        let grows = |folded: &TaskChange| match folded {
            TaskChange::New(task) => task.definition.callback_of.is_none(),
            _ => false,
        };
        match self.tasks.values().any(grows) {
            true => BatchGrowth::NewTasks,
            false => BatchGrowth::None,
        }
    }

    fn add(&mut self, change: Change) {
        if let Some((namespace, moved)) = count(&change) {
            match self.counts.get_mut(namespace) {
                Some(counts) => counts.add(moved),
                None => _ = self.counts.insert(namespace.clone(), moved),
            }
        }
        if let Some(moved) = due_move(&change) {
            self.differences.move_due(moved);
        }
        match change {
            Change::Put(task) => _ = self.tasks.insert(task.id, TaskChange::New(Box::new(task))),
            Change::Refile { task, .. } => self.file(task),
            Change::Postpone { id, fire_at, version, updated_at, .. } => {
                self.postpone(id, LaterTime { fire_at, version, updated_at });
            }
            Change::Settle { record, next, was } => self.end_fire(record, next, was.state),
            Change::Dead { letter, next, was } => {
                let end = FireEnd::Dead(letter.reason);
                let record = FireRecord::of(&letter.task, end, letter.died_at);
                self.end_fire(record, next, was.state);
                self.keep_letter(letter);
            }
            Change::Redrive { fire_id, task } => {
                self.letters.insert(fire_id, LetterChange::Removed);
                self.file(task);
            }
            Change::DeleteLetter { fire_id, .. } => {
                self.letters.insert(fire_id, LetterChange::Removed);
            }
        }
    }

    fn keep_letter(&mut self, letter: DeadLetter) {
        let fire_id = letter.fire_id();
        let kept = match self.letters.get(&fire_id) {
            Some(LetterChange::Removed | LetterChange::Replaced(_)) => LetterChange::Replaced,
            Some(LetterChange::Kept(_)) | None => LetterChange::Kept,
        };
        self.letters.insert(fire_id, kept(Box::new(letter)));
    }

    fn file(&mut self, task: Task) {
        let id = task.id;
        let folded = match self.tasks.get(&id) {
            // A task that this batch created is still new after further changes.
            Some(TaskChange::New(_)) => TaskChange::New(Box::new(task)),
            _ => TaskChange::Filed(Box::new(task)),
        };
        self.tasks.insert(id, folded);
    }

    fn postpone(&mut self, id: TaskId, postponed: LaterTime) {
        match self.tasks.get_mut(&id) {
            Some(TaskChange::New(task) | TaskChange::Filed(task)) => {
                **task = postponed.of_task((**task).clone());
            }
            Some(TaskChange::Ended) => {}
            Some(TaskChange::Postponed(earlier)) => *earlier = postponed,
            None => _ = self.tasks.insert(id, TaskChange::Postponed(postponed)),
        }
    }

    /// Ends a fire: its task continues as `next`, or ends. If the fire is no longer a part of its
    /// task, the task does not change.
    fn end_fire(&mut self, record: FireRecord, next: Option<Box<Task>>, was: TaskState) {
        match next {
            Some(task) => self.file(*task),
            None if was == TaskState::Firing => {}
            None => _ = self.tasks.insert(record.task_id(), TaskChange::Ended),
        }
        self.records.insert(record.fire_id, record);
    }
}
