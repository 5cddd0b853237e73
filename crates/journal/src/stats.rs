//! Statistics of the journal, for metrics and benchmarks. Nothing is decided by them.

use std::time::{Duration, Instant};

/// Number of buckets of the fsync histogram.
const FSYNC_BUCKETS: usize = 16;

/// Statistics since opening.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JournalStats {
    /// Commits made durable.
    pub commits: u64,
    /// Groups made durable, each with one fdatasync.
    pub groups: u64,
    /// Bytes written for them, heads and padding included.
    pub bytes: u64,
    /// Most commits in one group.
    pub group_commits_max: u64,
    /// Most bytes in one group.
    pub group_bytes_max: u64,
    /// Time spent in write, all groups.
    pub write_micros_total: u64,
    /// Time spent in fdatasync, all groups.
    pub fsync_micros_total: u64,
    /// The longest fdatasync.
    pub fsync_micros_max: u64,
    /// The last fdatasync.
    pub fsync_micros_last: u64,
    /// Histogram of fdatasync: bucket `i` counts those under `64 << i` microseconds that no earlier
    /// bucket counts, the last bucket all others.
    pub fsync_micros_buckets: [u64; FSYNC_BUCKETS],
    /// How often the writer waited for the next file.
    pub file_waits: u64,
    /// Commits refused as `Full` after they were accepted.
    pub refused_full: u64,
    /// Files begun since opening.
    pub files_begun: u64,
    /// Files created by writing zeros since opening.
    pub files_filled: u64,
    /// Files created by preallocation since opening, because one was needed at once.
    pub files_preallocated: u64,
    /// Files recycled since opening.
    pub files_recycled: u64,
    /// Files on disk now, spares included.
    pub files: u64,
    /// Bytes of the files on disk now.
    pub disk_bytes: u64,
}

impl JournalStats {
    pub(super) fn count_group(
        &mut self,
        commits: u64,
        bytes: u64,
        write: Duration,
        sync: Duration,
    ) {
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let fsync = micros(sync);
        self.commits += commits;
        self.groups += 1;
        self.bytes += bytes;
        self.group_commits_max = self.group_commits_max.max(commits);
        self.group_bytes_max = self.group_bytes_max.max(bytes);
        self.write_micros_total += micros(write);
        self.fsync_micros_total += fsync;
        self.fsync_micros_max = self.fsync_micros_max.max(fsync);
        self.fsync_micros_last = fsync;
        let bucket = (0..FSYNC_BUCKETS - 1).find(|i| fsync < 64 << i).unwrap_or(FSYNC_BUCKETS - 1);
        self.fsync_micros_buckets[bucket] += 1;
    }
}

/// Measures how long something took. The result is shown, and decides which thread writes the next
/// group; neither needs a `Clock` that tests can move.
#[derive(Debug)]
pub struct StoreStopwatch(Instant);

impl StoreStopwatch {
    #[expect(clippy::disallowed_methods, reason = "the time of a disk, which no test moves")]
    pub fn start() -> Self {
        Self(Instant::now())
    }

    pub fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}
