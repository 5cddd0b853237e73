//! History: how fires ended, kept in runs of its own.
//!
//! In: records, as slices of their frames. Out: those of one task. A later record of the same fire takes the place of
//! an earlier one, so newer runs are asked first.
//! Dropped whole: a run goes when every partition in it has been swept of it.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;
use punctual_core::{FireId, PartitionId, TaskId, Timestamp};
use punctual_store::Retention;
use punctual_store::codec::read_record_id;

use crate::fault::{Fault, Reading};
use crate::key::Key;
use crate::run::{Files, Run, RunNo};

/// What a record costs beside its bytes.
const ENTRY_BYTES: usize = 96;

#[derive(Debug, Default)]
pub(crate) struct HistoryBuffer {
    pub(crate) records: BTreeMap<(PartitionId, FireId), Bytes>,
    pub(crate) bytes: usize,
}

/// A run of history.
#[derive(Debug, Clone)]
pub(crate) struct HistoryRun {
    pub(crate) run: Arc<Run>,
    /// Partitions to which it is gone.
    swept: HashSet<PartitionId>,
}

#[derive(Debug, Default)]
pub(crate) struct History {
    pub(crate) buffer: HistoryBuffer,
    pub(crate) frozen: Option<Arc<HistoryBuffer>>,
    /// Oldest first.
    pub(crate) runs: Vec<HistoryRun>,
}

impl HistoryBuffer {
        /// Forgets what is past its age.
        pub(crate) fn sweep(&mut self, partition: PartitionId, before: Timestamp) -> u64 {
        let past = |owner: PartitionId, record: &[u8]| {
            let ended = read_record_id(record);
            owner == partition && ended.is_ok_and(|(_, ended_at)| ended_at < before)
        };
        let before = self.records.len();
        self.records.retain(|(owner, _), record| !past(*owner, record));
        (before - self.records.len()) as u64
    }

    fn of_task(&self, id: TaskId) -> impl Iterator<Item = (Timestamp, Bytes)> {
        let fire = |nominal_at| {
            let task = id;
            (id.partition(), FireId { task, nominal_at })
        };
        self.records
            .range(fire(Timestamp::EPOCH)..=fire(Timestamp::MAX))
            .map(|((_, fire_id), record)| (fire_id.nominal_at, record.clone()))
    }
}

impl History {
    pub(crate) fn keep(&mut self, fire_id: FireId, record: Bytes) {
        self.buffer.bytes += record.len() + ENTRY_BYTES;
        self.buffer.records.insert((fire_id.task.partition(), fire_id), record);
    }

    /// Records of a task that are in memory, by nominal time; and the runs to look in, newest first.
    pub(crate) fn look(&self, id: TaskId) -> (BTreeMap<Timestamp, Bytes>, Vec<Arc<Run>>) {
        let mut found = BTreeMap::new();
        for buffer in self.frozen.iter().map(|frozen| &**frozen).chain([&self.buffer]) {
            found.extend(buffer.of_task(id));
        }
        let runs = self.runs.iter().rev().filter(|history| {
            !history.swept.contains(&id.partition()) && history.run.may_have_history_of(id)
        });
        (found, runs.map(|history| Arc::clone(&history.run)).collect())
    }

    pub(crate) fn add(&mut self, run: Arc<Run>) {
        let swept = HashSet::new();
        self.runs.push(HistoryRun { run, swept });
    }

    /// Marks what is past its retention for a partition as gone, and says how many records that were.
    pub(crate) fn sweep(
        &mut self,
        partition: PartitionId,
        retention: Retention,
        now: Timestamp,
    ) -> u64 {
        let mut total: u64 = self.runs.iter().map(|history| history.run.file_bytes).sum();
        total += self.buffer.bytes as u64;
        total += self.frozen.as_ref().map_or(0, |frozen| frozen.bytes as u64);
                let mut gone = 0;
        for history in &mut self.runs {
            let bytes = history.run.file_bytes;
            let old = now.since(history.run.newest()) >= retention.history_age;
            // Whole, only if what is left is still more than may be kept.
            let excess = total.saturating_sub(bytes) >= retention.history_bytes;
            if old || excess {
                total = total.saturating_sub(bytes);
                if history.swept.insert(partition) {
                    gone += u64::from(history.run.count_of(partition));
                }
            }
        }
        gone
    }

    /// Runs that no partition has anything in any more.
    pub(crate) fn finished(&self) -> Vec<Arc<Run>> {
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

/// All records of a task in one run, by nominal time.
pub(crate) fn read_of_task(
    files: &Files,
    run: &Run,
    id: TaskId,
) -> Result<Vec<(Timestamp, Bytes)>, Fault> {
    let key = Key::home(id);
    let fences = &run.footer.fences;
    // The first block that may have it is the one before the first that begins at it.
    let first = fences.partition_point(|fence| fence.first < key).saturating_sub(1);
    let mut found = Vec::new();
    for (block_no, fence) in fences.iter().enumerate().skip(first) {
        if fence.first > key {
            break;
        }
        let block = run.read_block(files, block_no)?;
        let damaged = |what| run.damaged(files, block_no, what);
        let start = block.keys.lower_bound(key).map_err(damaged)?;
        for index in start..block.keys.len() {
            if block.keys.key(index).map_err(damaged)? != key {
                break;
            }
            let record = block.body(index).map_err(damaged)?;
            let (fire_id, _) = read_record_id(&record).reading("record of a fire")?;
            found.push((fire_id.nominal_at, record));
        }
    }
    Ok(found)
}
