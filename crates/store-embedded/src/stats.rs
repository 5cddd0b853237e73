//! Statistics of an open store: what it contains, and what it takes on disk and in memory.

use std::path::Path;
use std::sync::atomic::Ordering;

use punctual_journal::JournalStats;
use punctual_store::StoreError;

use crate::open::directory::EmbeddedOpenError;
use crate::options::EmbeddedOptions;
use crate::state::history::HistoryRun;
use crate::store::EmbeddedStore;

/// Statistics of a store at one moment.
#[derive(Debug, Clone)]
pub struct StoreStats {
    /// Tasks in buffers.
    pub tasks_buffered: u64,
    /// Tasks in runs that have not ended.
    pub tasks_in_runs: u64,
    /// Tasks in runs that have ended and still take space on disk.
    pub tasks_ended: u64,
    /// Slices of time that have runs.
    pub slices: u64,
    /// Runs of tasks.
    pub runs: u64,
    /// Bytes of the runs of tasks.
    pub run_bytes: u64,
    /// Runs of history.
    pub history_runs: u64,
    /// Bytes of the runs of history and of their indexes.
    pub history_bytes: u64,
    /// Bytes of the catalog.
    pub catalog_bytes: u64,
    /// Bytes of commits since the last checkpoint.
    pub journal_bytes: u64,
    /// Catalog rows in memory: relocations, names, paused tasks, dead letters.
    pub rows_in_memory: [u64; 4],
    /// About how many bytes of memory these rows take.
    pub row_bytes_in_memory: [u64; 4],
    /// Bytes in buffers.
    pub buffer_bytes: u64,
    /// Bytes of fences, bits and filters in memory.
    pub index_bytes: u64,
    /// Entries, rows and names that listing has examined since opening.
    pub looked_at: u64,
    /// Checkpoints since opening.
    pub checkpoints: u64,
    /// Bytes that the journal can write into files that already exist.
    pub journal_preallocated_bytes: u64,
    /// Whether the last attempt to create a journal file failed because the disk was full.
    pub journal_disk_full: bool,
    /// Statistics of the journal.
    pub journal: JournalStats,
}

/// Bytes of one fence in memory.
const FENCE_BYTES: u64 = size_of::<crate::run::format::Fence>() as u64;

impl EmbeddedStore {
    /// The statistics at this moment.
    pub fn stats(&self) -> Result<StoreStats, StoreError> {
        let (journal, space) = (self.journal.stats(), self.journal.space_left());
        let catalog_bytes = self.core.catalog.disk_bytes();
        let state = self.core.state()?;
        let frozen = state.frozen.as_ref().map(|(_, buffer)| buffer);
        let frozen_tasks = frozen.map_or(0, |buffer| buffer.len());
        let frozen_bytes = frozen.map_or(0, |buffer| buffer.bytes());
        let mut stats = StoreStats {
            tasks_buffered: (state.buffer.len() + frozen_tasks) as u64,
            tasks_in_runs: 0,
            tasks_ended: 0,
            slices: state.timeline.slices().count() as u64,
            runs: 0,
            run_bytes: 0,
            history_runs: state.history.runs.len() as u64,
            history_bytes: state.history.runs.iter().map(HistoryRun::file_bytes).sum(),
            catalog_bytes,
            journal_bytes: state.journal_bytes,
            rows_in_memory: [
                state.relocations.len() as u64,
                state.names.len() as u64,
                state.paused.len() as u64,
                state.dead.len() as u64,
            ],
            row_bytes_in_memory: [
                state.relocations.bytes() as u64,
                state.names.bytes() as u64,
                state.paused.bytes() as u64,
                state.dead.bytes() as u64,
            ],
            buffer_bytes: (state.buffered() + frozen_bytes) as u64,
            index_bytes: 0,
            looked_at: self.core.examined.load(Ordering::Relaxed),
            checkpoints: state.checkpoints,
            journal_preallocated_bytes: space.bytes_preallocated_left,
            journal_disk_full: space.preallocation_failed,
            journal,
        };
        for history in &state.history.runs {
            stats.index_bytes += history.index.as_ref().map_or(0, |index| index.memory_bytes());
        }
        for run in state.timeline.runs() {
            let ended = u64::from(run.ended.count());
            stats.runs += 1;
            stats.run_bytes += run.file_bytes;
            stats.tasks_ended += ended;
            stats.tasks_in_runs += u64::from(run.count()) - ended;
            let bits = u64::from(run.count()) / 8;
            stats.index_bytes += run.footer.fences.len() as u64 * FENCE_BYTES + bits;
        }
        Ok(stats)
    }
}

/// Statistics of a store that no process has open. Opens it as a broker would.
pub fn stats(dir: &Path) -> Result<StoreStats, EmbeddedOpenError> {
    let partitions = crate::open::directory::Directory::take_existing(dir)?.partitions;
    let (store, _) = EmbeddedStore::open(dir, EmbeddedOptions::new(partitions))?;
    store.stats().map_err(|error| EmbeddedOpenError::Damaged(error.to_string()))
}
