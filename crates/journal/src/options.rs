//! Options of a journal: sizes and limits, each with its reason.

use super::frame::{FRAMES_AT, StoreId, frame_bytes};

/// Smallest file: a header and a few frames. For tests.
pub const FILE_BYTES_MIN: u64 = 8 * 1024;
/// Largest file: opening reads a file into memory.
pub const FILE_BYTES_MAX: u64 = 1 << 30;
/// Largest payload of one commit, if a file is not smaller: one caller must not keep all others
/// waiting for long.
const COMMIT_BYTES_MAX: u64 = 16 << 20;

/// Options of a journal. All files of one directory belong to one store.
#[derive(Debug, Clone)]
pub struct JournalOptions {
    /// The store that the directory belongs to.
    pub store: StoreId,
    /// Bytes of one file: the unit in which disk space is reserved and released. The directory
    /// holds the files since the checkpoint, `ready_max` ready ones and `spares_max` more.
    pub file_bytes: u64,
    /// Files that are kept ready, so that the writer does not wait for one.
    pub ready_max: usize,
    /// Recycled files that are kept in addition to the ready ones, at most. As many are kept as
    /// were begun between two of the last checkpoints, so an idle store has none.
    pub spares_max: usize,
    /// Bytes that may wait to be written. A further call waits.
    pub queue_bytes_max: usize,
    /// Commits that may wait to be written.
    pub queue_commits_max: usize,
}

impl JournalOptions {
    /// The defaults: files of 64 MiB, 2 ready and up to 8 spares, 16 MiB or 4,096 commits waiting.
    pub fn new(store: StoreId) -> Self {
        Self {
            store,
            file_bytes: 64 << 20,
            ready_max: 2,
            spares_max: 8,
            queue_bytes_max: 16 << 20,
            queue_commits_max: 4096,
        }
    }

    /// The largest payload that one commit may have.
    pub fn commit_bytes_max(&self) -> u64 {
        (self.file_bytes - FRAMES_AT - frame_bytes(0)).min(COMMIT_BYTES_MAX)
    }

    /// What `Grow` leaves to `Shrink` when no further file can be created: a quarter of a file.
    pub fn reserve_bytes(&self) -> u64 {
        self.file_bytes / 4
    }
}
