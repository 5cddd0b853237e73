//! The state: everything that is in memory, and the one function that changes it.
//!
//! [`StoreState::apply`] gets commits in their order once they are durable, from the journal or
//! from its replay at opening. It never reads the disk: what memory does not know (where an ended
//! task was filed, which task a key names) is noted, and the background thread looks it up
//! (`checkpoint::resolve`).
//!
//! What always holds:
//! - Memory is a prefix of what is durable.
//! - A scheduled task has exactly one entry that has not ended: in the buffer, in the frozen buffer
//!   or in a run.
//! - An id in `ended` has ended in every entry that was filed before, and in none that was filed
//!   since.

pub(crate) mod buffer;
pub(crate) mod due;
pub(crate) mod endings;
pub(crate) mod history;
pub(crate) mod history_chunk;
pub(crate) mod layers;
pub(crate) mod names;
pub(crate) mod order;
pub(crate) mod partition;
pub(crate) mod relocation;
pub(crate) mod row_table;
pub(crate) mod timeline;

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use punctual_core::{
    FireId, Lease, LetterGroup, PartitionId, Partitions, Seat, TaskId, TaskState, Timestamp,
};
use punctual_journal::CommitNo;
use punctual_store::Position;
use punctual_store::codec::{
    CodecError, RecordName, read_named, read_record_name, read_state, read_summary,
};

use crate::catalog::{Paused, series_key};
use crate::fault::{ReadContext, StorageFault};
use crate::key::EntryKey;
use crate::run::Generation;
use crate::state::buffer::Buffer;
use crate::state::due::{SeriesChanges, SeriesRow};
use crate::state::endings::{Ending, Endings, RecentLocations};
use crate::state::history::HistoryState;
use crate::state::history_chunk::RecordSummary;
use crate::state::layers::Layers;
use crate::state::names::{NameRow, NameRows, NameTarget, free, name};
use crate::state::order::{LetterKey, OrderKey, OrderLog, postponed_key};
use crate::state::partition::PartitionState;
use crate::state::relocation::{Moved, Relocation, Relocations, key_of};
use crate::state::timeline::Timeline;
use crate::write::commit::{Commit, CommitStep};

/// Steps in which the progress of a checkpoint is reported.
pub(crate) const PROGRESS_STEPS: usize = 64;

#[derive(Debug)]
pub(crate) struct StoreState {
    /// The last commit that was applied.
    pub(crate) commit: CommitNo,
    /// The generation of the entries in the buffer.
    pub(crate) generation: Generation,
    pub(crate) buffer: Buffer,
    pub(crate) frozen: Option<(Generation, Arc<Buffer>)>,
    pub(crate) timeline: Arc<Timeline>,
    pub(crate) ended: Endings,
    pub(crate) resolving: Option<Arc<Endings>>,
    pub(crate) recent_locations: RecentLocations,
    pub(crate) relocations: Relocations,
    pub(crate) names: NameRows,
    pub(crate) paused: Layers<TaskId, Option<Paused>>,
    /// Times of postponed and of paused tasks that may not be in the catalog yet.
    pub(crate) postponed_order: OrderLog<OrderKey>,
    pub(crate) paused_order: OrderLog<OrderKey>,
    /// Names that may not be in the catalog yet.
    pub(crate) names_order: OrderLog<NameRow>,
    pub(crate) dead: Layers<FireId, Option<Bytes>>,
    /// Fires whose rows in `dead` may not be in the catalog yet.
    pub(crate) dead_order: OrderLog<LetterKey>,
    pub(crate) series: SeriesChanges,
    /// Whether the catalog says that due counts, series and groups of letters are those of all
    /// tasks. Then they need not be counted at the next opening.
    pub(crate) counted: bool,
    pub(crate) history: HistoryState,
    pub(crate) leases: BTreeMap<Seat, Lease>,
    pub(crate) partitions: Vec<PartitionState>,
    /// The latest time that a caller has given.
    pub(crate) now: Timestamp,
    /// Bytes of the commits since the last checkpoint.
    pub(crate) journal_bytes: u64,
    /// How much of the frozen buffer is on disk, of [`PROGRESS_STEPS`].
    pub(crate) written: usize,
    /// Checkpoints so far: what was read from the catalog before one may be outdated after it.
    pub(crate) checkpoints: u64,
}

impl StoreState {
    /// The state of an empty store.
    pub(crate) fn new(partitions: Partitions, slice_millis: u64, cached_bytes_max: usize) -> Self {
        Self {
            commit: CommitNo(0),
            generation: Generation(1),
            buffer: Buffer::default(),
            frozen: None,
            timeline: Arc::new(Timeline::new(slice_millis)),
            ended: Endings::default(),
            resolving: None,
            recent_locations: RecentLocations::default(),
            relocations: Layers::new(false, cached_bytes_max),
            names: Layers::new(false, cached_bytes_max),
            paused: Layers::new(false, cached_bytes_max),
            postponed_order: OrderLog::default(),
            paused_order: OrderLog::default(),
            names_order: OrderLog::default(),
            dead: Layers::new(false, cached_bytes_max),
            dead_order: OrderLog::default(),
            series: SeriesChanges::default(),
            counted: false,
            history: HistoryState::default(),
            leases: BTreeMap::new(),
            partitions: partitions.iter().map(PartitionState::new).collect(),
            now: Timestamp::EPOCH,
            journal_bytes: 0,
            written: 0,
            checkpoints: 0,
        }
    }

    pub(crate) fn partition(&self, id: PartitionId) -> &PartitionState {
        &self.partitions[usize::from(id.get())]
    }

    pub(crate) fn partition_mut(&mut self, id: PartitionId) -> &mut PartitionState {
        &mut self.partitions[usize::from(id.get())]
    }

    /// Applies one commit.
    pub(crate) fn apply(&mut self, no: CommitNo, commit: &Bytes) -> Result<(), StorageFault> {
        self.journal_bytes += commit.len() as u64;
        match Commit::read(commit).reading("commit")? {
            Commit::Batch { partition, number, counts, due, steps } => {
                self.check_partition(partition)?;
                for step in steps {
                    step.and_then(|step| self.step(step)).reading("commit")?;
                }
                let own = self.partition_mut(partition);
                own.count(counts);
                own.count_due(due);
                own.batch = Some(number);
                own.version += 1;
            }
            Commit::Lease { lease, acquired, now } => {
                if let Seat::Partition(partition) = lease.seat {
                    self.check_partition(partition)?;
                    if acquired {
                        self.partition_mut(partition).batch = None;
                    }
                }
                self.leases.insert(lease.seat, lease);
                self.now = self.now.max(now);
            }
            Commit::Sweep { partition, counts, forgotten, groups, now } => {
                self.check_partition(partition)?;
                for (fire_id, namespace, group) in groups {
                    self.leave_group(fire_id, &namespace, &group);
                }
                for fire_id in forgotten {
                    self.set_letter(fire_id, None);
                }
                let own = self.partition_mut(partition);

                own.count(counts);
                own.version += 1;
                self.now = self.now.max(now);
            }
            Commit::Empty => {}
        }
        self.commit = no;
        Ok(())
    }

    /// A commit names an existing partition; another one means damage.
    fn check_partition(&self, partition: PartitionId) -> Result<(), StorageFault> {
        if usize::from(partition.get()) < self.partitions.len() {
            return Ok(());
        }
        Err(CodecError::Invalid("partition")).reading("commit")
    }

    fn step(&mut self, step: CommitStep) -> Result<(), CodecError> {
        match step {
            CommitStep::File { id, fire_at, body, new } => self.file(id, fire_at, body, new),
            CommitStep::Postpone { id, moved } => {
                self.postpone(id, moved);
                Ok(())
            }
            CommitStep::End { id } => {
                self.end(id);
                Ok(())
            }
            CommitStep::Record { record, frees } => self.keep(record, frees),
            CommitStep::Letter { fire_id, letter } => {
                self.set_letter(fire_id, Some(letter));
                Ok(())
            }
            CommitStep::DeleteLetter { fire_id } => {
                self.set_letter(fire_id, None);
                Ok(())
            }
            CommitStep::JoinGroup { fire_id, namespace, group, died_at } => {
                let own = self.partition_mut(fire_id.task.partition());
                own.add_letter(namespace, group, died_at, fire_id);
                Ok(())
            }
            CommitStep::LeaveGroup { fire_id, namespace, group } => {
                self.leave_group(fire_id, &namespace, &group);
                Ok(())
            }
            CommitStep::Series { id, namespace, was, now } => {
                self.list_series(id, &namespace, was, now);
                Ok(())
            }
        }
    }

    /// Takes a letter from its group, unless it was deleted meanwhile: a sweep selects letters
    /// before it is admitted.
    fn leave_group(&mut self, fire_id: FireId, namespace: &str, group: &LetterGroup) {
        if !matches!(self.dead.get(&fire_id), Some(None)) {
            let own = self.partition_mut(fire_id.task.partition());
            own.remove_letter(namespace, group, fire_id);
        }
    }

    /// Moves a series in its index from one time to another.
    fn list_series(
        &mut self,
        id: TaskId,
        namespace: &str,
        was: Option<Timestamp>,
        now: Option<Timestamp>,
    ) {
        for (at, row) in [(was, SeriesRow::Absent), (now, SeriesRow::Present)] {
            if let Some(fire_at) = at {
                let position = Position { fire_at, id };
                self.series.set(series_key(id.partition(), namespace, position), row);
            }
        }
    }

    /// Sets the dead letter of a fire, or deletes it.
    fn set_letter(&mut self, fire_id: FireId, letter: Option<Bytes>) {
        self.dead_order.note(LetterKey::of(fire_id));
        self.dead.set(fire_id, letter);
    }

    /// The rows of a partition's dead letters after one fire, up to another, that the catalog may
    /// not have yet: in order, at most `limit`. `None` is a deleted letter.
    pub(crate) fn changed_letters(
        &self,
        partition: PartitionId,
        after: Option<FireId>,
        upto: Option<FireId>,
        limit: usize,
    ) -> Vec<(FireId, Option<Bytes>)> {
        let before = |key: &LetterKey| !key.is_after(partition, after);
        let within = |key: &LetterKey| key.is_within(partition, upto);
        let keys = self.dead_order.select(before, within, limit);
        let fire_ids = keys.iter().map(LetterKey::fire_id);
        fire_ids.filter_map(|id| Some((id, self.dead.get(&id)?.clone()))).collect()
    }

    fn file(
        &mut self,
        id: TaskId,
        fire_at: Timestamp,
        body: Bytes,
        new: bool,
    ) -> Result<(), CodecError> {
        if !new {
            self.end(id);
        }
        if read_named(&body)? {
            let summary = read_summary(id, fire_at, &body)?;
            let key = summary.key.unwrap_or_default();
            let name = name(id.partition(), summary.namespace, key);
            let row = NameRow::new(&name, &NameTarget::Is(summary.head));
            self.names_order.note(row.clone());
            self.names.set(row, ());
        }
        if read_state(&body)? != TaskState::Scheduled {
            // A slice would keep the whole commit in memory for as long as the task is paused.
            let body = Bytes::copy_from_slice(&body);
            self.paused_order.note(OrderKey::of(EntryKey::new(fire_at, id)));
            self.paused.set(id, Some(Paused { fire_at, body }));
            return Ok(());
        }
        if fire_at != id.due() {
            self.relocations.set(id, Some(Relocation::filed(fire_at)));
        } else if !new && self.may_be_relocated(id) {
            self.relocations.set(id, None);
        }
        self.buffer.insert(EntryKey::new(fire_at, id), body);
        Ok(())
    }

    fn may_be_relocated(&self, id: TaskId) -> bool {
        match self.relocations.get(&id) {
            Some(relocation) => relocation.is_some(),
            None => self.relocations.in_catalog(),
        }
    }

    fn postpone(&mut self, id: TaskId, moved: Moved) {
        let filed_at = match self.relocations.get(&id) {
            Some(Some(relocation)) => relocation.filed_at(),
            Some(None) => Some(id.due()),
            None if self.relocations.in_catalog()
                && self.buffer.get(EntryKey::at_due(id)).is_none() =>
            {
                None
            }
            None => Some(id.due()),
        };
        let relocation = Relocation::postponed(filed_at, moved);
        if let Some(key) = postponed_key(id, Some(relocation)) {
            self.postponed_order.note(OrderKey::of(key));
        }
        self.relocations.set(id, Some(relocation));
        let own = self.partition_mut(id.partition());
        let ahead =
            filed_at.is_some_and(|at| EntryKey::new(at, id) > own.frontier && at <= moved.fire_at);
        if !ahead {
            own.passed.insert(id);
        }
    }

    /// Ends the task with this id, wherever its entry is.
    pub(crate) fn end(&mut self, id: TaskId) {
        let known = self.relocations.get(&id).copied();
        let filed_at = match known {
            Some(Some(relocation)) => relocation.filed_at(),
            Some(None) => Some(id.due()),
            None if self.relocations.in_catalog() => None,
            None => Some(id.due()),
        };
        // An entry in the buffer that is not at the time in its id has a relocation in memory.
        let in_buffer = self.buffer.remove(key_of(id, known.flatten()));
        if !in_buffer && self.has_older() {
            let (before, location) = (self.generation, self.recent_locations.take(id));
            self.ended.insert(id, Ending { filed_at, before, location });
        }
        if matches!(known, Some(Some(_))) {
            self.relocations.set(id, None);
        }
        if self.paused.in_catalog() || self.paused.get(&id).is_some_and(Option::is_some) {
            self.paused.set(id, None);
        }
    }

    fn has_older(&self) -> bool {
        self.frozen.is_some() || !self.timeline.is_empty()
    }

    fn keep(&mut self, record: Bytes, frees: bool) -> Result<(), CodecError> {
        let record_name = read_record_name(&record)?;
        let RecordName { task_id, namespace, key, .. } = record_name;
        if frees && let Some(key) = key {
            let name = name(task_id.partition(), namespace, key);
            free(&mut self.names, &name, task_id)?;
        }
        let summary = RecordSummary::of(&record_name);
        self.history.keep(summary, record);
        Ok(())
    }

    /// Files a postponed entry again, at its time. This follows from its relocation, so it needs no
    /// commit: after a crash the entry is where it was, and loading files it again.
    pub(crate) fn refile_postponed(
        &mut self,
        key: EntryKey,
        body: &Bytes,
        relocation: Relocation,
        moved: Moved,
    ) {
        if !self.buffer.remove(key) {
            let location = self.recent_locations.take(key.id);
            let ending = Ending { filed_at: Some(key.at), before: self.generation, location };
            self.ended.insert(key.id, ending);
        }
        let body = Bytes::copy_from_slice(body);
        self.buffer.insert(EntryKey::new(moved.fire_at, key.id), body);
        let relocation = relocation.refiled(moved.fire_at);
        self.relocations.set(key.id, Some(relocation));
        self.partition_mut(key.partition).version += 1;
    }

    /// Whether an entry of a run or of the frozen buffer has ended, if its bit is not set yet.
    pub(crate) fn has_ended(&self, id: TaskId, generation: Generation) -> bool {
        let resolving = self.resolving.as_ref();
        self.ended.has(id, generation)
            || resolving.is_some_and(|endings| endings.has(id, generation))
    }

    /// Bytes that wait to be written as runs.
    pub(crate) fn buffered(&self) -> usize {
        self.buffer.bytes() + self.history.buffer.bytes
    }

    /// Bytes that may be buffered before writes have to wait, with buffers of `max`. During a
    /// checkpoint the limit grows with its progress, so that writes proceed at the speed of the
    /// disk.
    pub(crate) fn buffered_max(&self, max: usize) -> usize {
        let most = max + max / 2;
        match &self.frozen {
            None => most,
            // A small checkpoint is over soon.
            Some((_, frozen)) if frozen.bytes() < max / 2 => most,
            Some(_) => {
                max / 4 + (max - max / 4) / PROGRESS_STEPS * self.written.min(PROGRESS_STEPS)
            }
        }
    }

    /// Bytes of rows that wait to be written to the catalog.
    pub(crate) const fn changed_bytes(&self) -> usize {
        self.relocations.changed_bytes()
            + self.names.changed_bytes()
            + self.paused.changed_bytes()
            + self.dead.changed_bytes()
    }
}
