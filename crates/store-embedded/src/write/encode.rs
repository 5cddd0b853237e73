//! Encoding: from a batch to the bytes of a commit.
//!
//! A change about a task that the store does not have is dropped here, so the commit no longer
//! depends on what the store holds. Therefore `state` applies commits without reading the disk, and
//! a replay does exactly what was done.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use punctual_core::{
    FireEnd, FireId, FireRecord, LetterGroup, Namespace, PartitionId, Task, TaskId, TaskState,
    Timestamp,
};
use punctual_journal::Class;
use punctual_store::{Batch, Change, Counts, DueMinute, Prior, count, due_move};

use crate::fault::StorageFault;
use crate::read::fetch::{FetchPart, LiveTask, moved_by};
use crate::state::layers::IdHash;
use crate::state::relocation::Moved;
use crate::store_core::StoreCore;
use crate::write::commit::{CommitWriter, DueOfNamespace};

/// About what a task takes in a commit, without its payload.
const TASK_BYTES: usize = 192;
/// About what a record takes.
const RECORD_BYTES: usize = 128;
/// About what ids and times take.
const IDS_BYTES: usize = 48;

/// Whether the store has a task, for tasks where that decides how a change is encoded.
enum TaskPresence {
    Absent,
    /// Due at this time.
    Scheduled(Timestamp),
    Paused(Task),
}

impl TaskPresence {
    /// When the task is due, if the store has it.
    const fn fire_at(&self) -> Option<Timestamp> {
        match self {
            Self::Absent => None,
            Self::Scheduled(fire_at) => Some(*fire_at),
            Self::Paused(task) => Some(task.fire_at),
        }
    }
}

/// What the store has of the tasks and letters that a batch changes, where that decides how a
/// change is encoded.
#[derive(Default)]
struct KnownContents {
    tasks: HashMap<TaskId, TaskPresence, IdHash>,
    /// The groups of letters that the batch deletes; `None` if the store does not have the letter.
    letters: HashMap<FireId, Option<LetterGroup>, IdHash>,
}

/// What has to be looked up before a batch can be encoded.
#[derive(Debug, Default)]
pub(crate) struct BatchLookups {
    tasks: Vec<TaskId>,
    letters: Vec<FireId>,
}

impl BatchLookups {
    /// The lookups for a batch. If any task may be paused, this includes postponed tasks: a paused
    /// task has no entry that could be postponed. It includes series that end: the index of series
    /// has them under their time.
    pub(crate) fn of(batch: &Batch, paused: bool) -> Self {
        let ends_series = |was: &Prior| was.kind.is_series() && was.state != TaskState::Firing;
        let unknown = |change: &&Arc<Change>| match &***change {
            Change::Refile { .. } => true,
            Change::Settle { next, was, .. } | Change::Dead { next, was, .. } => {
                next.is_some() || ends_series(was)
            }
            Change::Postpone { .. } => paused,
            Change::Put(_) | Change::Redrive { .. } | Change::DeleteLetter { .. } => false,
        };
        let deleted = |change: &Arc<Change>| match &**change {
            Change::Redrive { fire_id, .. } | Change::DeleteLetter { fire_id, .. } => {
                Some(*fire_id)
            }
            _ => None,
        };
        let tasks = batch.changes.iter().filter(unknown).map(|change| change.task_id()).collect();
        Self { tasks, letters: batch.changes.iter().filter_map(deleted).collect() }
    }
}

/// Whether a batch adds data that it does not remove soon.
pub(crate) fn class_of(batch: &Batch) -> Class {
    if batch.changes.iter().any(|change| change.grows()) { Class::Grow } else { Class::Shrink }
}

impl StoreCore {
    /// Whether the lookups may have to read the disk.
    pub(crate) fn needs_disk(&self, lookups: &BatchLookups) -> Result<bool, StorageFault> {
        let state = self.state()?;
        let in_memory = |fire_id| !state.dead.in_catalog() || state.dead.get(fire_id).is_some();
        Ok(!lookups.tasks.is_empty() || !lookups.letters.iter().all(in_memory))
    }

    /// Encodes a batch.
    pub(crate) fn encode(
        &self,
        partition: PartitionId,
        batch: &Batch,
        lookups: &BatchLookups,
    ) -> Result<Bytes, StorageFault> {
        let mut known = KnownContents::default();
        let found = self.fetch(partition, &lookups.tasks, FetchPart::Presence)?;
        for (id, found) in lookups.tasks.iter().zip(found) {
            let presence = match found {
                None => TaskPresence::Absent,
                Some(LiveTask::Scheduled { key, relocation, .. }) => {
                    let moved = moved_by(relocation).map(|moved| moved.fire_at);
                    TaskPresence::Scheduled(moved.unwrap_or(key.at))
                }
                Some(LiveTask::Paused(paused)) => {
                    TaskPresence::Paused(self.paused_task(*id, &paused)?)
                }
            };
            known.tasks.insert(*id, presence);
        }
        let letters = self.dead_letters(partition, &lookups.letters)?;
        for (fire_id, letter) in lookups.letters.iter().zip(letters) {
            known.letters.insert(*fire_id, letter.map(|letter| letter.group()));
        }
        let (counts, due) = (counts_of(batch), due_of(batch));
        let bytes = batch.changes.iter().map(|change| bytes_of(change)).sum();
        let mut commit = CommitWriter::batch(partition, batch.number, &counts, &due, bytes);
        for change in &batch.changes {
            encode_change(&mut commit, &mut known, change);
        }
        Ok(commit.finish())
    }
}

fn encode_change(commit: &mut CommitWriter, known: &mut KnownContents, change: &Change) {
    match change {
        Change::Put(task) => {
            commit.file_new(task);
            list_series(commit, known, FiledBefore::New, task.id, Some(task));
            note(known, task.id, Some(task));
        }
        Change::Refile { task, was } => {
            let before = FiledBefore::Of(was, &task.definition.namespace);
            refile_or_end(commit, known, before, task.id, Some(task));
        }
        Change::Postpone { id, fire_at, version, updated_at, .. } => {
            let (fire_at, version, updated_at) = (*fire_at, *version, Some(*updated_at));
            postpone(commit, known, *id, Moved { fire_at, version, updated_at });
        }
        Change::Settle { record, next, was } => {
            let overlapping = was.state == TaskState::Firing;
            let (id, before) = (record.task_id(), FiledBefore::Of(was, &record.namespace));
            let continues =
                overlapping || refile_or_end(commit, known, before, id, next.as_deref());
            commit.record(record, !continues);
        }
        Change::Dead { letter, next, was } => {
            let overlapping = was.state == TaskState::Firing;
            let before = FiledBefore::Of(was, &letter.task.definition.namespace);
            let continues = overlapping
                || refile_or_end(commit, known, before, letter.task.id, next.as_deref());
            commit.letter(letter);
            let group = letter.group();
            commit.join_group(letter, &group);
            if let Some(known) = known.letters.get_mut(&letter.fire_id()) {
                *known = Some(group);
            }
            let end = FireEnd::Dead(letter.reason);
            commit.record(&FireRecord::of(&letter.task, end, letter.died_at), !continues);
        }
        Change::Redrive { fire_id, task } => {
            delete_letter(commit, known, *fire_id, &task.definition.namespace);
            commit.file(task);
            list_series(commit, known, FiledBefore::New, task.id, Some(task));
            note(known, task.id, Some(task));
        }
        Change::DeleteLetter { fire_id, namespace } => {
            delete_letter(commit, known, *fire_id, namespace);
        }
    }
}

/// What is filed again or ends.
#[derive(Clone, Copy)]
enum FiledBefore<'a> {
    /// Nothing: the task is new.
    New,
    /// A task that was like this, and its namespace.
    Of(&'a Prior, &'a Namespace),
}

/// Deletes a letter. The step of the group is first: it looks whether the letter is still there.
fn delete_letter(
    commit: &mut CommitWriter,
    known: &mut KnownContents,
    fire_id: FireId,
    namespace: &Namespace,
) {
    if let Some(group) = known.letters.get_mut(&fire_id).and_then(Option::take) {
        commit.leave_group(fire_id, namespace.as_str(), &group);
    }
    commit.forget(fire_id);
}

/// Lists a series under its new time instead of the one at which the store has it.
fn list_series(
    commit: &mut CommitWriter,
    known: &KnownContents,
    before: FiledBefore<'_>,
    id: TaskId,
    next: Option<&Task>,
) {
    let next = next.filter(|task| task.definition.schedule.kind().is_series());
    let now = next.map(|task| task.fire_at);
    let (was, namespace) = match (before, next) {
        (FiledBefore::Of(was, namespace), _) => {
            let stored = known.tasks.get(&id).and_then(TaskPresence::fire_at);
            (stored.filter(|_| was.kind.is_series()), namespace)
        }
        (FiledBefore::New, Some(task)) => (None, &task.definition.namespace),
        (FiledBefore::New, None) => return,
    };
    commit.series(id, namespace.as_str(), was, now);
}

/// Files a task as `next` and returns true; without `next`, ends it and returns false. A task that
/// the store does not have is not filed.
fn refile_or_end(
    commit: &mut CommitWriter,
    known: &mut KnownContents,
    before: FiledBefore<'_>,
    id: TaskId,
    next: Option<&Task>,
) -> bool {
    if next.is_some() && matches!(known.tasks.get(&id), Some(TaskPresence::Absent)) {
        return false;
    }
    list_series(commit, known, before, id, next);
    match next {
        Some(next) => commit.file(next),
        None => commit.end(id),
    }
    note(known, id, next);
    next.is_some()
}

fn postpone(commit: &mut CommitWriter, known: &mut KnownContents, id: TaskId, moved: Moved) {
    match known.tasks.get(&id) {
        Some(TaskPresence::Absent) => {}
        Some(TaskPresence::Paused(task)) => {
            let mut task = task.clone();
            moved.apply_to(&mut task);
            commit.file(&task);
            note(known, id, Some(&task));
        }
        Some(TaskPresence::Scheduled(_)) | None => commit.postpone(id, moved),
    }
}

/// Lets later changes of the same batch see this one.
fn note(known: &mut KnownContents, id: TaskId, now: Option<&Task>) {
    let presence = match now {
        None => TaskPresence::Absent,
        Some(task) if task.state != TaskState::Scheduled => TaskPresence::Paused(task.clone()),
        Some(task) => TaskPresence::Scheduled(task.fire_at),
    };
    // Tasks that were not looked up are not asked for again, but a paused one must be found.
    if known.tasks.contains_key(&id) || matches!(presence, TaskPresence::Paused(_)) {
        known.tasks.insert(id, presence);
    }
}

/// Sums up how a batch moves due counts, by namespace and in the order of minutes.
fn due_of(batch: &Batch) -> Vec<DueOfNamespace<&str>> {
    let mut all: Vec<DueOfNamespace<&str>> = Vec::new();
    for moved in batch.changes.iter().filter_map(|change| due_move(change)) {
        let namespace = moved.namespace.as_str();
        let index = all.iter().rposition(|(other, _)| *other == namespace);
        let index = index.unwrap_or_else(|| {
            all.push((namespace, Vec::new()));
            all.len() - 1
        });
        let minutes = &mut all[index].1;
        for (minute, by) in [(moved.from, -1), (moved.to, 1)] {
            match (minute, minutes.last_mut()) {
                (None, _) => {}
                // Tasks that are due together are often created or settled together.
                (Some(minute), Some((last, sum))) if *last == minute => *sum += by,
                (Some(minute), _) => minutes.push((minute, by)),
            }
        }
    }
    for (_, minutes) in &mut all {
        minutes.sort_unstable_by_key(|(minute, _)| *minute);
        minutes.dedup_by(|next: &mut (DueMinute, i64), sum| {
            let same = next.0 == sum.0;
            if same {
                sum.1 += next.1;
            }
            same
        });
        minutes.retain(|(_, by)| *by != 0);
    }
    all.retain(|(_, minutes)| !minutes.is_empty());
    all
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
        Change::Settle { next, .. } => RECORD_BYTES + next.as_deref().map_or(0, bytes),
        Change::Dead { letter, next, .. } => {
            RECORD_BYTES + bytes(&letter.task) + next.as_deref().map_or(0, bytes)
        }
        Change::Postpone { .. } | Change::DeleteLetter { .. } => IDS_BYTES,
    }
}
