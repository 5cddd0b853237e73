//! Encoding: from a batch to the bytes of a commit.
//!
//! A change about a task that the store does not have is dropped here, so the commit no longer
//! depends on what the store holds. Therefore `state` applies commits without reading the disk, and
//! a replay does exactly what was done.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use punctual_core::{FireEnd, FireRecord, PartitionId, Task, TaskId, TaskState};
use punctual_journal::Class;
use punctual_store::{Batch, Change, Counts, count};

use crate::fault::StorageFault;
use crate::read::fetch::{FetchPart, LiveTask};
use crate::state::layers::IdHash;
use crate::state::relocation::Moved;
use crate::store_core::StoreCore;
use crate::write::commit::CommitWriter;

/// About what a task takes in a commit, without its payload.
const TASK_BYTES: usize = 192;
/// About what a record takes.
const RECORD_BYTES: usize = 128;
/// About what ids and times take.
const IDS_BYTES: usize = 48;

/// Whether the store has a task, for tasks where that decides how a change is encoded.
enum TaskPresence {
    Absent,
    Scheduled,
    Paused(Task),
}

type KnownTasks = HashMap<TaskId, TaskPresence, IdHash>;

/// Tasks that have to be looked up before the batch can be encoded. If any task may be paused, this
/// includes postponed tasks: a paused task has no entry that could be postponed.
pub(crate) fn tasks_to_look_up(batch: &Batch, paused: bool) -> Vec<TaskId> {
    let unknown = |change: &&Arc<Change>| match &***change {
        Change::Refile { .. } => true,
        Change::Settle { next, .. } | Change::Dead { next, .. } => next.is_some(),
        Change::Postpone { .. } => paused,
        Change::Put(_) | Change::Redrive { .. } | Change::DeleteLetter { .. } => false,
    };
    batch.changes.iter().filter(unknown).map(|change| change.task_id()).collect()
}

/// Whether a batch adds data that it does not remove soon.
pub(crate) fn class_of(batch: &Batch) -> Class {
    if batch.changes.iter().any(|change| change.grows()) { Class::Grow } else { Class::Shrink }
}

impl StoreCore {
    /// Encodes a batch.
    pub(crate) fn encode(
        &self,
        partition: PartitionId,
        batch: &Batch,
        unknown: &[TaskId],
    ) -> Result<Bytes, StorageFault> {
        let mut known = KnownTasks::default();
        let found = self.fetch(partition, unknown, FetchPart::Presence)?;
        for (id, found) in unknown.iter().zip(found) {
            let heartbeat = match found {
                None => TaskPresence::Absent,
                Some(LiveTask::Scheduled { .. }) => TaskPresence::Scheduled,
                Some(LiveTask::Paused(paused)) => {
                    TaskPresence::Paused(self.paused_task(*id, &paused)?)
                }
            };
            known.insert(*id, heartbeat);
        }
        let counts = counts_of(batch);
        let bytes = batch.changes.iter().map(|change| bytes_of(change)).sum();
        let mut commit = CommitWriter::batch(partition, batch.number, &counts, bytes);
        for change in &batch.changes {
            encode_change(&mut commit, &mut known, change);
        }
        Ok(commit.finish())
    }
}

fn encode_change(commit: &mut CommitWriter, known: &mut KnownTasks, change: &Change) {
    match change {
        Change::Put(task) => {
            commit.file_new(task);
            note(known, task.id, Some(task));
        }
        Change::Refile { task, .. } => {
            refile_or_end(commit, known, task.id, Some(task));
        }
        Change::Postpone { id, fire_at, version, updated_at, .. } => {
            let (fire_at, version, updated_at) = (*fire_at, *version, Some(*updated_at));
            postpone(commit, known, *id, Moved { fire_at, version, updated_at });
        }
        Change::Settle { record, next, was } => {
            let overlapping = was.state == TaskState::Firing;
            let continues =
                overlapping || refile_or_end(commit, known, record.task_id(), next.as_ref());
            commit.record(record, !continues);
        }
        Change::Dead { letter, next, was } => {
            let overlapping = was.state == TaskState::Firing;
            let continues =
                overlapping || refile_or_end(commit, known, letter.task.id, next.as_ref());
            commit.letter(letter);
            let end = FireEnd::Dead(letter.reason);
            commit.record(&FireRecord::of(&letter.task, end, letter.died_at), !continues);
        }
        Change::Redrive { fire_id, task } => {
            commit.forget(*fire_id);
            commit.file(task);
            note(known, task.id, Some(task));
        }
        Change::DeleteLetter { fire_id, .. } => commit.forget(*fire_id),
    }
}

/// Files a task as `next` and returns true; without `next`, ends it and returns false. A task that
/// the store does not have is not filed.
fn refile_or_end(
    commit: &mut CommitWriter,
    known: &mut KnownTasks,
    id: TaskId,
    next: Option<&Task>,
) -> bool {
    let Some(next) = next else {
        commit.end(id);
        note(known, id, None);
        return false;
    };
    if matches!(known.get(&id), Some(TaskPresence::Absent)) {
        return false;
    }
    commit.file(next);
    note(known, id, Some(next));
    true
}

fn postpone(commit: &mut CommitWriter, known: &mut KnownTasks, id: TaskId, moved: Moved) {
    match known.get(&id) {
        Some(TaskPresence::Absent) => {}
        Some(TaskPresence::Paused(task)) => {
            let mut task = task.clone();
            moved.apply_to(&mut task);
            commit.file(&task);
            note(known, id, Some(&task));
        }
        Some(TaskPresence::Scheduled) | None => commit.postpone(id, moved),
    }
}

/// Lets later changes of the same batch see this one.
fn note(known: &mut KnownTasks, id: TaskId, now: Option<&Task>) {
    let heartbeat = match now {
        None => TaskPresence::Absent,
        Some(task) if task.state != TaskState::Scheduled => TaskPresence::Paused(task.clone()),
        Some(_) => TaskPresence::Scheduled,
    };
    // Tasks that were not looked up are not asked for again, but a paused one must be found.
    if known.contains_key(&id) || matches!(heartbeat, TaskPresence::Paused(_)) {
        known.insert(id, heartbeat);
    }
}

fn counts_of(batch: &Batch) -> Vec<(&str, Counts)> {
    let mut all: Vec<(&str, Counts)> = Vec::new();
    for (namespace, moved) in batch.changes.iter().filter_map(|change| count(change)) {
        let namespace = namespace.as_str();
        match all.iter_mut().rev().find(|(other, _)| *other == namespace) {
            Some((_, counts)) => counts.add(moved),
            None => all.push((namespace, moved)),
        }
    }
    all
}

fn bytes_of(change: &Change) -> usize {
    let bytes = |task: &Task| TASK_BYTES + task.definition.payload.bytes().len();
    match change {
        Change::Put(task) | Change::Refile { task, .. } | Change::Redrive { task, .. } => {
            bytes(task)
        }
        Change::Settle { next, .. } => RECORD_BYTES + next.as_ref().map_or(0, bytes),
        Change::Dead { letter, next, .. } => {
            RECORD_BYTES + bytes(&letter.task) + next.as_ref().map_or(0, bytes)
        }
        Change::Postpone { .. } | Change::DeleteLetter { .. } => IDS_BYTES,
    }
}
