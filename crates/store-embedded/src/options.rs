//! How a store is kept: budgets of memory and disk, each with its reason.
//!
//! Not here: what is kept for how long (`Retention`, an argument of every sweep).

use std::time::Duration;

use punctual_core::Partitions;
use punctual_store::Batch;

use crate::journal::FILE_BYTES_MAX;

/// How an embedded store is kept. All but the partitions may differ from one opening to the next.
#[derive(Debug, Clone)]
pub struct EmbeddedOptions {
    /// Fixed when the store is first made.
    pub partitions: Partitions,
    /// Bytes of tasks and records that are held in memory before they are written as runs. More
    /// means fewer, larger files and a longer opening.
    pub buffer_bytes_max: usize,
    /// Bytes of journal after which a checkpoint is made, so that opening stays short.
    pub journal_bytes_max: u64,
    /// Bytes of one journal file. On a small disk a thirty-second of it, if that holds the largest batch of the contract.
    pub journal_file_bytes: u64,
    /// Bytes of changed rows of the catalog that are held in memory before a checkpoint. They are there up to four times while one is made:
    /// as they stand, as they are written, in the catalog's own memory, and those that change meanwhile. A row that
    /// changes again meanwhile is written once, so fewer bytes here are more bytes written for each touch.
    pub rows_changed_bytes_max: usize,
    /// Bytes of rows of each table that are remembered after they were written, and as many after they were read: enough for the
    /// names of a million watches.
    pub rows_cached_bytes_max: usize,
    /// Ended tasks whose bit in a run is not set yet. More share a block when they are looked up, fewer stay in the processor's
    /// cache; most need no looking up, because they were read lately.
    pub ended_max: usize,
    /// Bytes of one block of a run: what one read brings in.
    pub block_bytes: usize,
    /// The span of time that one near slice covers.
    pub slice: Duration,
    /// How many near slices there are; beyond them slices are [`EmbeddedOptions::FAR_SLICES`] times as long.
    pub near_slices: u64,
    /// Open run files, at most; fewer if the system does not allow the process as many. A hundred million tasks are some ten
    /// thousand files.
    pub files_open_max: usize,
    /// Runs of a slice above which they are merged.
    pub runs_per_slice_max: usize,
    /// Cache of the catalog.
    pub catalog_cache_bytes: u64,
    /// Bytes that must be free on the disk for a checkpoint to be made, beside what it writes to the catalog. On a small disk
    /// a sixteenth of it is enough.
    pub free_bytes_min: u64,
}

impl EmbeddedOptions {
    /// A far slice is as long as so many near ones.
    pub const FAR_SLICES: u64 = 32;

    /// The defaults for a store of so many partitions.
    #[must_use]
    pub const fn new(partitions: Partitions) -> Self {
        Self {
            partitions,
            buffer_bytes_max: 64 << 20,
            journal_bytes_max: 64 << 20,
            journal_file_bytes: 16 << 20,
            rows_changed_bytes_max: 80 << 20,
            rows_cached_bytes_max: 128 << 20,
            ended_max: 131_072,
            block_bytes: 16 << 10,
            slice: Duration::from_secs(86_400),
            near_slices: 40,
            files_open_max: 16_384,
            runs_per_slice_max: 256,
            catalog_cache_bytes: 16 << 20,
            free_bytes_min: 256 << 20,
        }
    }

    /// Budgets so small that everything that happens to large stores happens to a few hundred tasks.
    #[must_use]
    pub const fn tiny(partitions: Partitions) -> Self {
        Self {
            partitions,
            buffer_bytes_max: 4 << 10,
            journal_bytes_max: 16 << 10,
            journal_file_bytes: 4 << 20,
            rows_changed_bytes_max: 24 * 96,
            rows_cached_bytes_max: 8 * 96,
            ended_max: 6,
            block_bytes: 256,
            slice: Duration::from_secs(30),
            near_slices: 4,
            files_open_max: 4,
            runs_per_slice_max: 3,
            catalog_cache_bytes: 1 << 20,
            free_bytes_min: 1 << 20,
        }
    }

    /// The same, for a disk of so many bytes in all.
    pub(crate) fn fit(&mut self, disk_bytes: u64) {
        let free = (disk_bytes / 16).max(SMALL_FREE_BYTES);
        self.free_bytes_min = self.free_bytes_min.min(free);
        let file = (disk_bytes / 32).max(SMALL_FILE_BYTES) / 4096 * 4096;
        self.journal_file_bytes = self.journal_file_bytes.min(file);
    }

    pub(crate) fn slice_millis(&self) -> u64 {
        u64::try_from(self.slice.as_millis()).unwrap_or(u64::MAX).max(1)
    }
}

/// Room for the catalog's own files, on the smallest disk.
const SMALL_FREE_BYTES: u64 = 16 << 20;
/// What a store must take in one piece is twice [`Batch::WEIGHT_MAX`], and a file has a header.
const SMALL_FILE_BYTES: u64 = 2 * Batch::WEIGHT_MAX as u64 + (1 << 20);

const _: () = assert!(EmbeddedOptions::new(Partitions::ONE).journal_file_bytes <= FILE_BYTES_MAX);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_disk_gets_small_files_and_needs_little_free_space() {
        const MIB: u64 = 1 << 20;
        for (disk_mib, file_mib, free_mib) in [
            (100, 9, 16),
            (150, 9, 16),
            (300, 9, 18),
            (1 << 10, 16, 64),
            (4 << 10, 16, 256),
            (1 << 20, 16, 256),
        ] {
            let mut options = EmbeddedOptions::new(Partitions::ONE);
            options.fit(disk_mib * MIB);
            let got = (options.journal_file_bytes / MIB, options.free_bytes_min / MIB);
            assert_eq!(got, (file_mib, free_mib), "on {disk_mib} MiB");
        }
        let mut tiny = EmbeddedOptions::tiny(Partitions::ONE);
        let before = (tiny.journal_file_bytes, tiny.free_bytes_min);
        tiny.fit(1 << 40);
        assert_eq!(
            (tiny.journal_file_bytes, tiny.free_bytes_min),
            before,
            "never more than was asked for"
        );
    }
}
