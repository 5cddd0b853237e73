//! History: records of how fires ended, in runs of their own.
//!
//! A later record of the same fire replaces an earlier one, so newer runs are read first. A run is
//! deleted as a whole, with its index (`fire_index`), once every partition in it has swept it.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use bytes::Bytes;
use punctual_core::{FireId, PartitionId, TaskId, Timestamp};
use punctual_store::Retention;
use punctual_store::codec::{read_record_id, read_record_name};

use crate::catalog::{ListedRun, RunKind};
use crate::fault::{ReadContext, StorageFault};
use crate::fire_index::FireIndex;
use crate::key::EntryKey;
use crate::run::{RunFiles, RunNo, SortedRun};
use crate::state::history_chunk::{HistoryChunk, HistoryEntry, RecordSummary, ShortHash};
use crate::state::layers::IdHash;

/// Records that are sorted together: a commit adds hundreds, and inserting each into one large tree
/// is expensive.
const CHUNK_LENGTH: usize = 4096;

/// Records in memory, in sorted chunks, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct HistoryBuffer {
    chunks: Vec<Arc<HistoryChunk>>,
    open: Vec<HistoryEntry>,
    /// Hashes of the keys in `open`.
    open_hashes: Vec<ShortHash>,
    pub(crate) bytes: usize,
}

/// A run of history.
#[derive(Debug, Clone)]
pub(crate) struct HistoryRun {
    pub(crate) run: Arc<SortedRun>,
    /// `None` if it could not be written, or not be read.
    pub(crate) index: Option<Arc<FireIndex>>,
    /// Partitions that have swept this run. Kept in the list of runs: its records must not reappear
    /// after the records that replaced them are gone.
    swept: BTreeSet<PartitionId>,
    /// Whether `swept` changed since the last checkpoint.
    changed: bool,
}

impl HistoryRun {
    /// Whether the records of a partition in this run are deleted.
    pub(crate) fn is_swept(&self, partition: PartitionId) -> bool {
        self.swept.contains(&partition)
    }

    /// Bytes of the run and its index.
    pub(crate) fn file_bytes(&self) -> u64 {
        self.run.file_bytes + self.index.as_ref().map_or(0, |index| index.file_bytes())
    }
}

/// Everything that has records of ended fires of a partition, at one moment.
#[derive(Debug)]
pub(crate) struct HistorySources {
    /// Oldest first, before all chunks.
    pub(crate) runs: Vec<HistoryRun>,
    /// Oldest first.
    pub(crate) chunks: Vec<Arc<HistoryChunk>>,
    /// The newest records, which are not in a chunk yet.
    open: Vec<HistoryEntry>,
    open_hashes: Vec<ShortHash>,
}

impl HistorySources {
    /// Makes a chunk of the newest records. To be called without the lock of the state.
    pub(crate) fn sorted(mut self) -> Self {
        if !self.open.is_empty() {
            let hashes = std::mem::take(&mut self.open_hashes);
            let open = HistoryChunk::new(std::mem::take(&mut self.open), hashes);
            self.chunks.push(Arc::new(open));
        }
        self
    }
}

#[derive(Debug, Default)]
pub(crate) struct HistoryState {
    pub(crate) buffer: HistoryBuffer,
    pub(crate) frozen: Option<Arc<HistoryBuffer>>,
    /// Oldest first.
    pub(crate) runs: Vec<HistoryRun>,
}

impl HistoryBuffer {
    fn keep(&mut self, summary: RecordSummary, record: Bytes) {
        self.bytes += record.len() + HistoryChunk::ENTRY_BYTES;
        if self.open.capacity() == 0 {
            self.open.reserve_exact(CHUNK_LENGTH);
        }
        self.open_hashes.extend(summary.key_hash);
        self.open.push(HistoryEntry::new(summary, record));
        if self.open.len() >= CHUNK_LENGTH {
            self.seal();
        }
    }

    /// Makes a chunk of the newest records.
    pub(crate) fn seal(&mut self) {
        if !self.open.is_empty() {
            let hashes = std::mem::take(&mut self.open_hashes);
            let chunk = HistoryChunk::new(std::mem::take(&mut self.open), hashes);
            self.chunks.push(Arc::new(chunk));
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.chunks.is_empty() && self.open.is_empty()
    }

    /// The records in order, only the last of each fire.
    pub(crate) fn sorted(&self) -> Vec<&HistoryEntry> {
        let chunks = self.chunks.iter().flat_map(|chunk| chunk.entries());
        let mut all: Vec<&HistoryEntry> = chunks.chain(&self.open).collect();
        all.sort_by_key(|entry| entry.place());
        all.dedup_by(|later, earlier| {
            let same = later.place() == earlier.place();
            if same {
                *earlier = later;
            }
            same
        });
        all
    }

    /// Drops records that are past their age, except those that `keep` selects. This is not a
    /// commit: after a crash they are there again, until the next sweep.
    fn sweep(&mut self, past: impl Fn(Timestamp) -> bool, keep: impl Fn(FireId) -> bool) -> u64 {
        let all = self.sorted();
        let stays = |entry: &&HistoryEntry| !past(entry.ended_at()) || keep(entry.fire_id());
        let before = all.len();
        let left: Vec<HistoryEntry> = all.into_iter().filter(stays).cloned().collect();
        let gone = before - left.len();
        if gone > 0 {
            let mut swept = Self::default();
            for entry in &left {
                let name = read_record_name(&entry.record);
                let Ok(name) = name else { continue };
                swept.keep(RecordSummary::of(&name), entry.record.clone());
            }
            *self = swept;
        }
        gone as u64
    }

    fn of_task(&self, id: TaskId) -> impl Iterator<Item = (Timestamp, Bytes)> {
        let sorted = self.chunks.iter().flat_map(move |chunk| chunk.of_task(id));
        let open = self.open.iter().filter(move |entry| entry.fire_id().task == id);
        sorted.chain(open).map(|entry| (entry.fire_id().nominal_at, entry.record.clone()))
    }
}

impl HistoryState {
    pub(crate) fn keep(&mut self, summary: RecordSummary, record: Bytes) {
        self.buffer.keep(summary, record);
    }

    /// What has records of a partition. Copies only references, and the few newest entries.
    pub(crate) fn sources(&self, partition: PartitionId) -> HistorySources {
        let unswept = |history: &&HistoryRun| {
            !history.is_swept(partition) && history.run.count_of(partition) > 0
        };
        let frozen = self.frozen.iter().flat_map(|frozen| &frozen.chunks);
        let own = |entry: &&HistoryEntry| entry.fire_id().task.partition() == partition;
        HistorySources {
            runs: self.runs.iter().filter(unswept).cloned().collect(),
            chunks: frozen.chain(&self.buffer.chunks).cloned().collect(),
            open: self.buffer.open.iter().filter(own).cloned().collect(),
            open_hashes: self.buffer.open_hashes.clone(),
        }
    }

    /// Sets the index of a run that had none, or a damaged one.
    pub(crate) fn set_index(&mut self, no: RunNo, index: &Arc<FireIndex>) {
        if let Some(history) = self.runs.iter_mut().find(|history| history.run.no == no) {
            history.index = Some(Arc::clone(index));
        }
    }

    /// Records of a task that are in memory, by nominal time; and the runs to read, newest first.
    pub(crate) fn find(&self, id: TaskId) -> (BTreeMap<Timestamp, Bytes>, Vec<Arc<SortedRun>>) {
        let mut found = BTreeMap::new();
        for buffer in self.frozen.iter().map(|frozen| &**frozen).chain([&self.buffer]) {
            found.extend(buffer.of_task(id));
        }
        let runs = self.runs.iter().rev().filter(|history| {
            !history.is_swept(id.partition()) && history.run.may_have_history_of(id)
        });
        (found, runs.map(|history| Arc::clone(&history.run)).collect())
    }

    pub(crate) fn add(
        &mut self,
        run: Arc<SortedRun>,
        index: Option<Arc<FireIndex>>,
        swept: &[PartitionId],
    ) {
        let swept = swept.iter().copied().collect();
        self.runs.push(HistoryRun { run, index, swept, changed: false });
    }

    /// Runs that were swept since the last call, as rows for the list of runs.
    pub(crate) fn take_changed(&mut self) -> Vec<ListedRun> {
        let mut taken = Vec::new();
        for HistoryRun { run, swept, changed, .. } in &mut self.runs {
            if std::mem::take(changed) {
                taken.push(ListedRun {
                    no: run.no,
                    generation: run.generation,
                    kind: RunKind::History,
                    file_bytes: run.file_bytes,
                    swept: swept.iter().copied().collect(),
                });
            }
        }
        taken
    }

    /// Marks what is past its retention for a partition as swept, and returns how many records that
    /// were.
    ///
    /// When a record goes, an earlier record of the same fire must not reappear. So runs are swept
    /// in the order in which they were written, and a record in memory stays as long as a run may
    /// have an earlier one.
    pub(crate) fn sweep(
        &mut self,
        partition: PartitionId,
        retention: Retention,
        now: Timestamp,
    ) -> u64 {
        let mut total: u64 = self.runs.iter().map(HistoryRun::file_bytes).sum();
        total += self.buffer.bytes as u64;
        total += self.frozen.as_ref().map_or(0, |frozen| frozen.bytes as u64);
        let past = |ended_at| now.since(ended_at) >= retention.history_age;
        let mut gone = 0;
        for history in &mut self.runs {
            let bytes = history.file_bytes();
            // A run goes as a whole, so only if what is left is still more than the limit.
            let excess = total.saturating_sub(bytes) >= retention.history_bytes;
            if history.run.count_of(partition) == 0 {
                continue;
            }
            if !past(history.run.newest()) && !excess {
                break;
            }
            total = total.saturating_sub(bytes);
            if history.swept.insert(partition) {
                history.changed = true;
                gone += u64::from(history.run.count_of(partition));
            }
        }
        let kept: Vec<&Arc<SortedRun>> = self
            .runs
            .iter()
            .filter(|history| !history.is_swept(partition))
            .map(|history| &history.run)
            .collect();
        let earlier = |id: TaskId| kept.iter().any(|run| run.may_have_history_of(id));
        let frozen = self.frozen.iter().flat_map(|frozen| frozen.sorted());
        let writing: HashSet<FireId, IdHash> = frozen.map(HistoryEntry::fire_id).collect();
        let stays = |fire: FireId| {
            fire.task.partition() != partition || writing.contains(&fire) || earlier(fire.task)
        };
        gone + self.buffer.sweep(past, stays)
    }

    /// Runs that every partition has swept.
    pub(crate) fn finished(&self) -> Vec<Arc<SortedRun>> {
        let finished = |history: &&HistoryRun| {
            let mut sections = history.run.footer.sections.iter();
            sections.all(|section| history.swept.contains(&section.partition))
        };
        let runs = self.runs.iter().filter(finished);
        runs.map(|history| Arc::clone(&history.run)).collect()
    }

    pub(crate) fn remove(&mut self, dropped: &[RunNo]) {
        self.runs.retain(|history| !dropped.contains(&history.run.no));
    }
}

/// Calls `each` for the records of a task in one run, the latest nominal time first, until it
/// returns false.
pub(crate) fn each_of_task(
    files: &RunFiles,
    run: &SortedRun,
    id: TaskId,
    mut each: impl FnMut(Timestamp, Bytes) -> bool,
) -> Result<(), StorageFault> {
    let key = EntryKey::at_due(id);
    let fences = &run.footer.fences;
    // Entries may begin in the block before the first one that begins at the key.
    let first = fences.partition_point(|fence| fence.first < key).saturating_sub(1);
    let end = fences.partition_point(|fence| fence.first <= key);
    for block_no in (first..end).rev() {
        let block = run.read_block(files, block_no)?;
        let damaged = |what| run.damaged(files, block_no, what);
        let start = block.keys.lower_bound(key).map_err(damaged)?;
        let mut after = start;
        while after < block.keys.len() && block.keys.key(after).map_err(damaged)? == key {
            after += 1;
        }
        for index in (start..after).rev() {
            let record = block.body(index).map_err(damaged)?;
            let (fire_id, _) = read_record_id(&record).reading("record of a fire")?;
            if !each(fire_id.nominal_at, record) {
                return Ok(());
            }
        }
    }
    Ok(())
}
