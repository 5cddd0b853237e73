//! Options of an embedded store: limits of memory and disk, each with its reason.
//!
//! How long things are kept is not an option but an argument of every sweep (`Retention`).

use std::time::Duration;

use punctual_core::Partitions;
use punctual_journal::FILE_BYTES_MAX;
use punctual_store::Batch;

/// Options of an embedded store. All but `partitions` may change from one opening to the next.
#[derive(Debug, Clone)]
pub struct EmbeddedOptions {
    /// Fixed when the store is created.
    pub partitions: Partitions,
    /// Bytes of tasks and records that are held in memory before they are written as runs. More
    /// means fewer, larger files and a longer opening.
    pub buffer_bytes_max: usize,
    /// Bytes of journal after which a checkpoint starts, so that opening stays short.
    pub journal_bytes_max: u64,
    /// Bytes of one journal file. On a small disk it is a thirty-second of the disk, if the largest
    /// batch of the contract fits in that.
    pub journal_file_bytes: u64,
    /// Bytes of changed catalog rows that are held in memory before a checkpoint. During a
    /// checkpoint memory holds up to three times as much: the rows, those of the checkpoint before,
    /// and rows that change meanwhile. A row that changes several times is written
    /// once, so a smaller limit means more bytes written for each touch.
    pub rows_changed_bytes_max: usize,
    /// Bytes of rows that a checkpoint writes ahead of its last batch at once. In memory they take
    /// about three times as much, and as much again in the catalog.
    pub rows_batch_bytes_max: u64,
    /// Bytes of rows of each table that are cached after they were written, and as many after they
    /// were read: enough for the names of a million watches.
    pub rows_cached_bytes_max: usize,
    /// Ended tasks whose bit in a run is not set yet. More share a block when they are looked up,
    /// fewer fit in the processor's cache; most need no lookup, because they were read recently.
    pub ended_max: usize,
    /// Bytes of one block of a run, which is read at once.
    pub block_bytes: usize,
    /// The length of a near slice of time.
    pub slice: Duration,
    /// How many near slices there are; later slices are [`EmbeddedOptions::FAR_SLICES`] times as
    /// long.
    pub near_slices: u64,
    /// Run files that are kept open, at most; fewer if the process may not open as many. A hundred
    /// million tasks are about ten thousand files.
    pub files_open_max: usize,
    /// Runs of a slice above which they are merged.
    pub runs_per_slice_max: usize,
    /// Bytes of the catalog's cache.
    pub catalog_cache_bytes: u64,
    /// Bytes that must be free on the disk for a checkpoint, in addition to what it writes to the
    /// catalog. On a small disk a sixteenth of the disk is enough.
    pub free_bytes_min: u64,
}

impl EmbeddedOptions {
    /// Length of a far slice, in near slices.
    pub const FAR_SLICES: u64 = 32;

    /// The defaults for a store with so many partitions.
    #[must_use]
    pub const fn new(partitions: Partitions) -> Self {
        Self {
            partitions,
            buffer_bytes_max: 64 << 20,
            journal_bytes_max: 64 << 20,
            journal_file_bytes: 16 << 20,
            rows_changed_bytes_max: 80 << 20,
            rows_batch_bytes_max: 2 << 20,
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

    /// Limits so small that a few hundred tasks go through everything that happens in a large
    /// store. For tests.
    #[must_use]
    pub const fn tiny(partitions: Partitions) -> Self {
        Self {
            partitions,
            buffer_bytes_max: 4 << 10,
            journal_bytes_max: 16 << 10,
            journal_file_bytes: 4 << 20,
            rows_changed_bytes_max: 24 * 96,
            rows_batch_bytes_max: 1 << 10,
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

    /// Lowers the limits for a disk of so many bytes in total.
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

/// What the catalog's own files need on the smallest disk.
const SMALL_FREE_BYTES: u64 = 16 << 20;
/// A store must accept twice [`Batch::WEIGHT_MAX`] at once, and a file has a header.
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
            "limits are never raised"
        );
    }
}
