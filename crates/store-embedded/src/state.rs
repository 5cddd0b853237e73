//! StoreState: everything that is in memory, and the one function that changes it.
//!
//! In: commits, in their order, once they are durable: from the journal's thread, or from its replay at opening. Out: what
//! readers see. [`StoreState::apply`] touches no disk: what it does not know (where an ended task stood, whom a key named) it
//! notes as a question, which `resolve` answers in the background.
//!
//! Invariants:
//! - Memory is always a prefix of what is durable.
//! - A scheduled task has exactly one entry that has not ended: in the buffer, in the frozen buffer or in a run.
//! - An id among `ended` has ended in everything that was filed before that, and in nothing filed since.
//!
//! Not here: deciding (`admit`), reading (`fetch`, `load`, `list`), writing to disk (`checkpoint`).

pub(crate) mod buffer;
pub(crate) mod history;
pub(crate) mod layers;
pub(crate) mod names;
pub(crate) mod order;
pub(crate) mod relocation;
pub(crate) mod timeline;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;
use punctual_core::{
    FireId, Lease, PartitionId, Partitions, Seat, TaskId, TaskState, Timestamp, Version,
};
use punctual_store::codec::{CodecError, read_named, read_record_name, read_state, read_summary};
use punctual_store::{BatchNo, Counts};

use crate::catalog::Paused;
use crate::fault::{ReadContext, StorageFault};
use crate::journal::CommitNo;
use crate::key::EntryKey;
use crate::run::{Generation, RunNo};
use crate::state::buffer::Buffer;
use crate::state::history::HistoryState;
use crate::state::layers::{IdHash, Layers};
use crate::state::names::{NameRow, NameRows, NameTarget, free, name};
use crate::state::order::{OrderKey, OrderLog, postponed_key};
use crate::state::relocation::{Moved, Relocation, Relocations, key_of};
use crate::state::timeline::Timeline;
use crate::write::commit::{Commit, CommitStep};

/// Tasks that have ended, whose entries in runs are still to be found.
#[derive(Debug, Default)]
pub(crate) struct Endings {
    by_id: HashMap<TaskId, Ending, IdHash>,
    /// Earlier endings of tasks that were filed again elsewhere, and ended again.
    earlier: Vec<(TaskId, Ending)>,
}

/// That a task has ended in what was filed before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ending {
    /// Where its entry stands; `None` if only the catalog knows.
    pub(crate) filed_at: Option<Timestamp>,
    /// Entries older than this are meant.
    pub(crate) before: Generation,
    /// Its entry, if somebody has read it lately: then nobody has to look for it.
    pub(crate) location: Option<(RunNo, u32)>,
}

/// Where living entries were read lately, so that what is loaded or got and then ends is not looked for again.
/// Bounded: of two halves the older goes.
#[derive(Debug, Default)]
pub(crate) struct RecentLocations {
    young: HashMap<TaskId, (RunNo, u32), IdHash>,
    old: HashMap<TaskId, (RunNo, u32), IdHash>,
}

impl RecentLocations {
    /// Of each half: what is loaded ahead by a busy owner, at 32 bytes each.
    const HALF_MAX: usize = 131_072;

    pub(crate) fn note(&mut self, id: TaskId, run: RunNo, ordinal: u32) {
        if self.young.len() >= Self::HALF_MAX {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(id, (run, ordinal));
    }

    fn take(&mut self, id: TaskId) -> Option<(RunNo, u32)> {
        let young = self.young.remove(&id);
        if self.old.is_empty() {
            return young;
        }
        let old = self.old.remove(&id);
        young.or(old)
    }
}

impl Endings {
    /// Takes all out. As many again find room without the table being moved while everybody waits.
    pub(crate) fn take(&mut self) -> Self {
        let by_id = HashMap::with_capacity_and_hasher(self.by_id.capacity(), IdHash::default());
        std::mem::replace(self, Self { by_id, earlier: Vec::new() })
    }

    fn insert(&mut self, id: TaskId, ending: Ending) {
        let earlier = self.by_id.insert(id, ending);
        if let Some(earlier) = earlier.filter(|earlier| earlier.filed_at != ending.filed_at) {
            self.earlier.push((id, earlier));
        }
    }

    fn has(&self, id: TaskId, generation: Generation) -> bool {
        !self.by_id.is_empty()
            && self.by_id.get(&id).is_some_and(|ending| generation < ending.before)
    }

    pub(crate) fn len(&self) -> usize {
        self.by_id.len() + self.earlier.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (TaskId, Ending)> {
        let latest = self.by_id.iter().map(|(id, ending)| (*id, *ending));
        latest.chain(self.earlier.iter().copied())
    }
}

/// What is known of one partition.
#[derive(Debug)]
pub(crate) struct PartitionState {
    /// The batch that its owner made last.
    pub(crate) batch: Option<BatchNo>,
    /// Up to where loading has come: postponed entries before it have been filed anew.
    pub(crate) frontier: EntryKey,
    /// Postponed tasks whose entries stand before the frontier, or may.
    pub(crate) passed: HashSet<TaskId, IdHash>,

    /// Commits that were applied to it.
    pub(crate) version: u64,
    pub(crate) counts: HashMap<String, NamespaceCounts>,
}

/// Counts, and whether they changed since the last checkpoint.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct NamespaceCounts {
    pub(crate) counts: Counts,
    pub(crate) changed: bool,
}

/// Steps in which it is told how much of a checkpoint is on disk.
pub(crate) const PROGRESS_STEPS: usize = 64;

#[derive(Debug)]
pub(crate) struct StoreState {
    /// The last commit that is in here.
    pub(crate) commit: CommitNo,
    /// Of what is in the buffer.
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
    /// Where postponed tasks are listed, and paused ones, as far as the catalog does not know it.
    pub(crate) postponed_order: OrderLog<OrderKey>,
    pub(crate) paused_order: OrderLog<OrderKey>,
    /// NameRows that may not be in the catalog yet.
    pub(crate) names_order: OrderLog<NameRow>,
    pub(crate) dead: Layers<FireId, Option<Bytes>>,
    pub(crate) history: HistoryState,
    pub(crate) leases: BTreeMap<Seat, Lease>,
    pub(crate) partitions: Vec<PartitionState>,
    /// The latest time that anybody has told the store.
    pub(crate) now: Timestamp,
    /// Bytes of the commits since the last checkpoint.
    pub(crate) journal_bytes: u64,
    /// How much of the frozen buffer is on disk, of [`PROGRESS_STEPS`].
    pub(crate) written: usize,
    /// Checkpoints made: what was read from the catalog before one may be old after it.
    pub(crate) checkpoints: u64,
}

impl PartitionState {
    pub(crate) fn new(id: PartitionId) -> Self {
        Self {
            batch: None,
            frontier: EntryKey::after(id, punctual_store::Position::START),
            passed: HashSet::default(),

            version: 0,
            counts: HashMap::new(),
        }
    }

    fn count(&mut self, counts: Vec<(String, Counts)>) {
        for (namespace, moved) in counts {
            let tally = self.counts.entry(namespace).or_default();
            tally.counts.add(moved);
            tally.changed = true;
        }
    }
}

impl StoreState {
    /// An empty one.
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

    /// Takes one commit in.
    pub(crate) fn apply(&mut self, commit: CommitNo, frame: &Bytes) -> Result<(), StorageFault> {
        self.journal_bytes += frame.len() as u64;
        match Commit::read(frame).reading("commit")? {
            Commit::Batch { partition, number, counts, steps } => {
                self.check_partition(partition)?;
                for step in steps {
                    self.step(step).reading("commit")?;
                }
                let own = self.partition_mut(partition);
                own.count(counts);
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
            Commit::Sweep { partition, counts, forgotten, now } => {
                self.check_partition(partition)?;
                for fire_id in forgotten {
                    self.dead.set(fire_id, None);
                }
                let own = self.partition_mut(partition);

                own.count(counts);
                own.version += 1;
                self.now = self.now.max(now);
            }
            Commit::Empty => {}
        }
        self.commit = commit;
        Ok(())
    }

    /// A frame of ours names a partition that we have; another is damage.
    fn check_partition(&self, partition: PartitionId) -> Result<(), StorageFault> {
        if usize::from(partition.get()) < self.partitions.len() {
            return Ok(());
        }
        Err(CodecError::Invalid("partition")).reading("commit")
    }

    fn step(&mut self, step: CommitStep) -> Result<(), CodecError> {
        match step {
            CommitStep::File { id, fire_at, body, new } => self.file(id, fire_at, body, new),
            CommitStep::Postpone { id, fire_at, version } => {
                self.postpone(id, fire_at, version);
                Ok(())
            }
            CommitStep::End { id } => {
                self.end(id);
                Ok(())
            }
            CommitStep::Record { record, frees } => self.keep(record, frees),
            CommitStep::Letter { fire_id, letter } => {
                self.dead.set(fire_id, Some(letter));
                Ok(())
            }
            CommitStep::Forget { fire_id } => {
                self.dead.set(fire_id, None);
                Ok(())
            }
        }
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
            // By itself it would keep the whole frame in memory for as long as it waits outside of time.
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

    fn postpone(&mut self, id: TaskId, fire_at: Timestamp, version: Version) {
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
        let relocation = Relocation::postponed(filed_at, fire_at, version);
        if let Some(key) = postponed_key(id, Some(relocation)) {
            self.postponed_order.note(OrderKey::of(key));
        }
        self.relocations.set(id, Some(relocation));
        let own = self.partition_mut(id.partition());
        let ahead =
            filed_at.is_some_and(|at| EntryKey::new(at, id) > own.frontier && at <= fire_at);
        if !ahead {
            own.passed.insert(id);
        }
    }

    /// Ends whatever stands under an id.
    pub(crate) fn end(&mut self, id: TaskId) {
        let known = self.relocations.get(&id).copied();
        let filed_at = match known {
            Some(Some(relocation)) => relocation.filed_at(),
            Some(None) => Some(id.due()),
            None if self.relocations.in_catalog() => None,
            None => Some(id.due()),
        };
        // What is in the buffer and not at home has a relocation in memory.
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
        let (fire_id, namespace, key) = read_record_name(&record)?;
        if frees && let Some(key) = key {
            let name = name(fire_id.task.partition(), namespace, key);
            free(&mut self.names, &name, fire_id.task)?;
        }
        self.history.keep(fire_id, record);
        Ok(())
    }

    /// RunFiles a postponed entry anew, at its time. Follows from its relocation, so it needs no commit: after a crash the
    /// entry is where it was, and surfaces again.
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

    /// Whether an entry of a run or of the frozen buffer has ended, as far as its bit does not say it.
    pub(crate) fn has_ended(&self, id: TaskId, generation: Generation) -> bool {
        let resolving = self.resolving.as_ref();
        self.ended.has(id, generation)
            || resolving.is_some_and(|endings| endings.has(id, generation))
    }

    /// Bytes that wait to be written as runs.
    pub(crate) fn buffered(&self) -> usize {
        self.buffer.bytes() + self.history.buffer.bytes
    }

    /// Bytes that may wait before writers do, with buffers of `max`. While a checkpoint is written it grows with what is
    /// on disk of it, so that writers go on at the pace of the disk, and neither rush ahead nor stand until it is done.
    pub(crate) fn buffered_max(&self, max: usize) -> usize {
        let most = max + max / 2;
        match &self.frozen {
            None => most,
            // One that is hardly anything is soon done.
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
