//! A journal: it makes commits durable, in groups, and reads them back after a restart.
//!
//! Any number of callers append a [`JournalEntry`] per commit. The embedded store, whose journal it
//! is, gets each entry back, in commit order, once it is on disk; after a restart it gets the bytes
//! of every commit since the checkpoint. The journal knows nothing of tasks: a commit is bytes to
//! it.
//!
//! # How it works
//! One thread writes (`writer`). Whatever waits while a group is being made durable is the next
//! group: one write and one fdatasync for all, one frame and one commit number for each. A caller
//! that may be blocked writes a small entry itself while nothing else waits. A second thread passes
//! durable entries to the store (`completion`), while the first is already writing the next group;
//! if nothing waits, the thread that has written does that itself. A third prepares the next files,
//! recycled or filled with zeros, because a commit into blocks that were written before costs half
//! of one into new blocks (`file_pool`).
//!
//! # What always holds
//! - A group is written only when the one before it is durable. `scan` relies on that to
//!   distinguish a torn tail, which is cut off and reported, from damage, which refuses to open.
//! - Commit numbers start at 1, grow by one, and are never used for two commits that were
//!   acknowledged.
//! - `on_durable` is called exactly once for every accepted entry: for durable ones in commit
//!   order, which is the order of acceptance. (Only a panic in it ends that, and breaks the
//!   journal.)
//! - A failed fsync breaks the journal for good: nothing is acknowledged after it, nothing retried.
//! - Memory is bounded: what waits by [`JournalOptions::queue_bytes_max`] and `queue_commits_max`,
//!   and as much again in each of three steps: being written, waiting to be completed, and being
//!   completed.
//! - A full disk refuses [`Class::Grow`] while at least [`JournalOptions::reserve_bytes`] are left
//!   for [`Class::Shrink`].
//!
//! The caller locks the directory, and keeps the number of the last checkpointed commit, which it
//! passes to `open`.

mod commit;
mod completion;
mod disk;
mod error;
mod file_pool;
mod frame;
mod options;
mod scan;
mod stats;
#[cfg(test)]
mod tests;
mod writer;

use std::fs;
use std::io::{self, ErrorKind, IoSlice};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle, ThreadId};
use std::time::Duration;

pub use commit::CommitNo;
pub use commit::{Class, JournalEntry, Replay, ReplayError};
pub use error::{Dropped, DroppedWhy, JournalError};
pub use frame::StoreId;
pub use options::{FILE_BYTES_MAX, FILE_BYTES_MIN, JournalOptions};
pub use stats::JournalStats;
pub use stats::StoreStopwatch;

use disk::Disk;
use file_pool::{FilePool, LiveFile, NextFile, PoolStart, SealedFile};
use frame::{CLOSED_NAME, CLOSED_UNFINISHED_NAME, ClosingMark, spare_name};
use scan::Scan;
use writer::{JournalShared, JournalWriter, Queue, QueuedEntry};

/// What `open` found.
#[derive(Debug)]
pub struct Opened {
    /// The last commit. The next one has the following number.
    pub last: CommitNo,
    /// How many commits were replayed.
    pub replayed: u64,
    /// Whether the journal was closed. False after a crash and for a new journal.
    pub closed_cleanly: bool,
    /// The torn tail that was cut off. None of it had been acknowledged.
    pub dropped: Option<Dropped>,
}

/// How much can be written into files that already exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpaceLeft {
    /// Bytes left in the current file and in the ready ones.
    pub bytes_preallocated_left: u64,
    /// Whether the last attempt to create a file failed. While it did, `Grow` is refused; each
    /// refusal and each checkpoint starts another attempt.
    pub preallocation_failed: bool,
}

/// An open journal. Dropping it without [`close`](Self::close) writes what was accepted, but leaves
/// no closing mark, as after a crash.
#[derive(Debug)]
pub struct Journal<T> {
    dir: PathBuf,
    options: JournalOptions,
    disk: Disk,
    shared: Arc<JournalShared<T>>,
    writer: Arc<Mutex<JournalWriter<T>>>,
    file_pool: Arc<FilePool>,
    threads: Mutex<Option<Threads>>,
}

/// The turn to write an entry, of a caller that may be blocked. If it is dropped, the writer's
/// thread writes the entry.
#[derive(Debug)]
#[must_use]
pub struct WriterTurn<'a, T> {
    journal: &'a Journal<T>,
    waiting: Queue<T>,
}

impl<T> WriterTurn<'_, T> {
    /// Writes the entry, makes it durable and calls `on_durable` for it, all on this thread.
    pub fn write(mut self) {
        let waiting = std::mem::take(&mut self.waiting);
        let Journal { shared, writer, .. } = self.journal;
        // Without its receiver the journal is broken, which later calls report.
        let _ = writer::write(shared, writer, waiting);
    }
}

impl<T> Drop for WriterTurn<'_, T> {
    fn drop(&mut self) {
        if !self.waiting.is_empty() {
            self.journal.shared.return_turn(std::mem::take(&mut self.waiting));
        }
    }
}

#[derive(Debug)]
struct Threads {
    write: JoinHandle<()>,
    complete: JoinHandle<()>,
    file_pool: JoinHandle<()>,
}

impl Threads {
    fn ids(&self) -> [ThreadId; 3] {
        [self.write.thread().id(), self.complete.thread().id(), self.file_pool.thread().id()]
    }
}

/// Reads everything and changes nothing: for `punctual store check`.
///
/// The tail that `dropped` describes is not cut off. The caller holds the store's lock.
pub fn check(
    dir: &Path,
    store: StoreId,
    after: CommitNo,
    replay: &mut Replay<'_>,
) -> Result<Opened, JournalError> {
    let scan = scan::scan(&Disk::default(), dir, store, after, replay)?;
    Ok(scan.map_or_else(Opened::new, |scan| Opened::from(&scan)))
}

impl Opened {
    fn new() -> Self {
        Self { last: CommitNo(0), replayed: 0, closed_cleanly: false, dropped: None }
    }

    fn from(scan: &Scan) -> Self {
        Self {
            last: scan.last,
            replayed: scan.replayed,
            closed_cleanly: scan.closed,
            dropped: scan.dropped.clone(),
        }
    }
}

impl<T: Send + 'static> Journal<T> {
    /// Opens the journal in `dir`, or creates one if `after` is 0 and there is none.
    ///
    /// Calls `replay` for every commit after `after`, in order. After an error the caller has to
    /// drop what was replayed. `on_durable` runs on a thread of the journal; it gets every accepted
    /// item back, with its commit number once it is durable, or with the reason why it never will
    /// be. It must not wait for the journal's queue, and it delays all later completions while it
    /// runs (but not the disk, for about two groups).
    pub fn open(
        dir: &Path,
        options: JournalOptions,
        after: CommitNo,
        replay: &mut Replay<'_>,
        on_durable: impl FnMut(Result<CommitNo, &JournalError>, T) + Send + 'static,
    ) -> Result<(Self, Opened), JournalError> {
        Self::open_on(Disk::default(), dir, options, after, replay, on_durable)
    }

    fn open_on(
        disk: Disk,
        dir: &Path,
        options: JournalOptions,
        after: CommitNo,
        replay: &mut Replay<'_>,
        on_durable: impl FnMut(Result<CommitNo, &JournalError>, T) + Send + 'static,
    ) -> Result<(Self, Opened), JournalError> {
        let file_bytes = options.file_bytes;
        if !(FILE_BYTES_MIN..=FILE_BYTES_MAX).contains(&file_bytes) || !file_bytes.is_multiple_of(8)
        {
            return Err(JournalError::Options { file_bytes });
        }
        let scan = scan::scan(&disk, dir, options.store, after, replay)?;
        let opened = scan.as_ref().map_or_else(Opened::new, Opened::from);
        if let Some(dropped) = &opened.dropped {
            tracing::warn!(%dropped, "torn tail of the journal cut off");
        }
        let (active, start) = match scan {
            Some(scan) => continue_journal(&disk, dir, &options, scan)?,
            None => begin(&disk, dir, &options)?,
        };

        let file_pool = Arc::new(FilePool::new(disk.clone(), dir, &options, start));
        let shared = Arc::new(JournalShared::new(opened.last, &active));
        let (sender, receiver) = completion::completion_channel(on_durable);
        let (last, parts) = (opened.last, (&shared, &file_pool));
        let writer = JournalWriter::new(disk.clone(), &options, parts, active, last, sender);
        let writer = Arc::new(Mutex::new(writer));
        let threads = Threads {
            write: spawn("journal-write", {
                let (shared, writer) = (Arc::clone(&shared), Arc::clone(&writer));
                move || writer::run_writer(&shared, &writer)
            })?,
            complete: spawn("journal-complete", {
                let shared = Arc::clone(&shared);
                move || writer::run_completions(&shared, receiver)
            })?,
            file_pool: spawn("journal-files", {
                let (file_pool, shared) = (Arc::clone(&file_pool), Arc::clone(&shared));
                move || file_pool.run(&|why| shared.break_with(why))
            })?,
        };
        let threads = Mutex::new(Some(threads));
        let dir = dir.to_owned();
        Ok((Self { dir, options, disk, shared, writer, file_pool, threads }, opened))
    }

    /// Queues an entry and returns before it is durable. Waits while the queue is full.
    ///
    /// `spare` is how long the thread of the caller may be blocked; zero if it may not. If the disk
    /// is quick enough for that and nothing else waits, the entry is not queued: the caller gets
    /// the turn to write it, and should take it soon, because other entries wait meanwhile.
    pub async fn append(
        &self,
        entry: JournalEntry<T>,
        spare: Duration,
    ) -> Result<Option<WriterTurn<'_, T>>, JournalError> {
        let mut queued = self.admit(entry)?;
        // Without a next file the writer may have to wait for one.
        let may_block = !spare.is_zero() && matches!(self.file_pool.next(), NextFile::Ready);
        let spare = if may_block { spare } else { Duration::ZERO };
        loop {
            let mut capacity = pin!(self.shared.capacity.notified());
            // From here on no wake-up is missed.
            capacity.as_mut().enable();
            match self.shared.offer(queued, &self.options, spare) {
                Ok(turn) => {
                    return Ok(turn.map(|waiting| WriterTurn { journal: self, waiting }));
                }
                Err((JournalError::Busy, back)) => queued = back,
                Err((why, _)) => return Err(why),
            }
            capacity.await;
        }
    }

    /// Checks that need no writer, and the checksum, which is better computed on the caller's
    /// thread.
    fn admit(&self, entry: JournalEntry<T>) -> Result<QueuedEntry<T>, JournalError> {
        let bytes = entry.bytes.len() as u64;
        let bytes_max = self.options.commit_bytes_max();
        if bytes > bytes_max {
            return Err(JournalError::TooLarge { bytes, bytes_max });
        }
        if entry.class == Class::Grow
            && let Some(why) = self.file_pool.refuses_growth()
        {
            return Err(JournalError::Full { why });
        }
        Ok(QueuedEntry::new(entry))
    }

    /// Everything up to `up_to` is durable elsewhere: files with nothing later are recycled or
    /// deleted, in the background. The newest file with a commit in it always stays.
    pub fn checkpointed(&self, up_to: CommitNo) {
        self.file_pool.checkpointed(up_to);
    }

    /// How much can be written into files that already exist.
    pub fn space_left(&self) -> SpaceLeft {
        let (ready, preallocation_failed) = self.file_pool.space_left();
        let left = self.shared.file_left();
        SpaceLeft { bytes_preallocated_left: left + ready, preallocation_failed }
    }

    /// Statistics since opening.
    pub fn stats(&self) -> JournalStats {
        let mut stats = self.shared.stats();
        self.file_pool.count(&mut stats);
        stats
    }

    /// Writes and completes what was accepted, and leaves a closing mark with the last commit, so
    /// that a loss after this is detected. Removes empty files. Later calls do nothing.
    pub fn close(&self) -> Result<(), JournalError> {
        if !self.stop() {
            return Ok(());
        }
        if let Some(why) = self.shared.broken() {
            return Err(JournalError::Broken { why });
        }
        self.file_pool.clear().map_err(|source| JournalError::io("clear", &self.dir, source))?;
        let closed = ClosingMark { store: self.options.store, last: self.shared.last() };
        let unfinished = self.dir.join(CLOSED_UNFINISHED_NAME);
        let path = self.dir.join(CLOSED_NAME);
        let file = self
            .disk
            .create(&unfinished)
            .map_err(|source| JournalError::io("create", &unfinished, source))?;
        self.disk
            .write_at(&file, &mut [IoSlice::new(&closed.to_bytes())], 0)
            .and_then(|()| self.disk.sync_data(&file))
            .and_then(|()| self.disk.rename(&unfinished, &path))
            .and_then(|()| self.disk.sync_dir(&self.dir))
            .or_else(|source| match source.kind() {
                // Without its mark the journal opens as after a crash, which loses nothing.
                ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
                    tracing::warn!("disk full, journal closed without its closing mark");
                    Ok(())
                }
                _ => Err(JournalError::io("write", &path, source)),
            })
    }
}

impl<T> Journal<T> {
    /// Ends the threads once every accepted entry is completed. False if they had ended.
    fn stop(&self) -> bool {
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(running) = threads.take() else {
            return false;
        };
        self.shared.stop();
        if running.ids().contains(&thread::current().id()) {
            // Dropped inside `on_durable`: these threads end by themselves, but only after this
            // call.
            self.file_pool.stop();
            return true;
        }
        // In this order, because each may still need the next. A panic has already broken the
        // journal, see `writer`.
        drop(running.write.join());
        drop(running.complete.join());
        self.file_pool.stop();
        drop(running.file_pool.join());
        true
    }
}

impl<T> Drop for Journal<T> {
    fn drop(&mut self) {
        self.stop();
    }
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, JournalError> {
    thread::Builder::new()
        .name(name.to_owned())
        .spawn(run)
        .map_err(|source| JournalError::io("start", Path::new(name), source))
}

/// Creates a journal. The first file is filled with zeros before anything is accepted.
fn begin(
    disk: &Disk,
    dir: &Path,
    options: &JournalOptions,
) -> Result<(LiveFile, PoolStart), JournalError> {
    fs::create_dir_all(dir).map_err(|source| JournalError::io("create", dir, source))?;
    if let Some(parent) = dir.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        disk.sync_dir(parent).map_err(|source| JournalError::io("sync", parent, source))?;
    }
    let active = file_pool::make(disk, dir, options, 1, file_pool::FileSource::Zeros)
        .map_err(|source| JournalError::io("create", dir, source))?;
    let start = PoolStart { number_last: 1, active_is_empty: true, ..PoolStart::default() };
    Ok((active, start))
}

/// Continues a journal that was scanned: cuts off its torn tail, durably, before anything is
/// appended.
fn continue_journal(
    disk: &Disk,
    dir: &Path,
    options: &JournalOptions,
    scan: Scan,
) -> Result<(LiveFile, PoolStart), JournalError> {
    let Scan { obsolete, files, active: index, stale, closed, spares, unfinished, .. } = scan;
    let (spares, unfit): (Vec<u64>, Vec<u64>) = spares.into_iter().partition(|number| {
        let length = fs::metadata(dir.join(spare_name(*number))).map(|found| found.len());
        length.is_ok_and(|length| length == options.file_bytes)
    });
    for path in unfit.iter().map(|number| dir.join(spare_name(*number))).chain(unfinished) {
        disk.remove(&path).map_err(|source| JournalError::io("remove", &path, source))?;
    }
    let mut start = PoolStart {
        active_is_empty: files[index].last.is_none(),
        number_last: files.last().map_or(0, |file| file.header.number),
        spares,
        retired: obsolete.iter().map(|file| file.header.number).collect(),
        ..PoolStart::default()
    };
    let mut active = None;
    let mut unfit = Vec::new();
    for (at, file) in files.iter().enumerate() {
        let io = |source| JournalError::io("open", &file.path, source);
        let header = file.header;
        if at < index {
            let last = file.last.unwrap_or_default();
            start.sealed.push(SealedFile { number: header.number, last, bytes: header.file_bytes });
            continue;
        }
        let open = disk.open(&file.path).map_err(io)?;
        let live = LiveFile { file: open, header, at: file.end };
        if at == index {
            rewrite_end(disk, file, &live, &stale).map_err(io)?;
            active = Some(live);
        } else if header.file_bytes == options.file_bytes && file.length == header.file_bytes {
            start.ready.push_back(live);
        } else {
            unfit.push(file);
        }
    }
    // Removes the first file of another size and all after it. From the end, so that a crash in
    // between leaves no gap.
    if let Some(first) = unfit.first().map(|file| file.header.number) {
        start.ready.retain(|live| live.header.number < first);
        for file in files.iter().rev().take_while(|file| file.header.number >= first) {
            disk.remove(&file.path)
                .and_then(|()| disk.sync_dir(dir))
                .map_err(|source| JournalError::io("remove", &file.path, source))?;
        }
        start.number_last = first - 1;
    }
    if closed {
        let path = dir.join(CLOSED_NAME);
        disk.remove(&path)
            .and_then(|()| disk.sync_dir(dir))
            .map_err(|source| JournalError::io("remove", &path, source))?;
    }
    let active = active.expect("the scan found an active file");
    Ok((active, start))
}

/// Makes the end of the active file as if the last good commit had just been written.
///
/// The last group is written again before it is synced: if its fsync failed in the previous
/// process, its pages count as clean, and a sync alone would not write them to disk.
fn rewrite_end(
    disk: &Disk,
    found: &scan::ScannedFile,
    live: &LiveFile,
    stale: &[u64],
) -> io::Result<()> {
    let length = usize::try_from(found.end - found.group_at).expect("a group fits in memory");
    let group = disk.read_at(&live.file, found.group_at, length)?;
    disk.write_at(&live.file, &mut [IoSlice::new(&group)], found.group_at)?;
    if found.length < found.header.file_bytes {
        disk.fill(&live.file, found.length, found.header.file_bytes)?;
    }
    for &at in stale.iter().chain([&found.end]) {
        live.erase_head(disk, at)?;
    }
    disk.sync_data(&live.file)
}
