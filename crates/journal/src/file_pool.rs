//! The file pool: files before and after their use.
//!
//! The writer takes the next file from the pool and returns full ones. One thread does the slow
//! part ahead of time: it recycles files that the checkpoint no longer needs, fills new ones with
//! zeros if none can be recycled, and writes a header with a new salt. When no file is ready, the
//! next one is only preallocated: commits into it cost more, but no commit waits until megabytes of
//! zeros are on disk.
//! A file gets its name in the chain only when its header and its length are durable. Files leave
//! the chain at its old end only, and the newest one with a commit stays.

use std::collections::VecDeque;
use std::fs::File;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::commit::CommitNo;
use super::disk::{Disk, means_full};
use super::frame::{END, FRAMES_AT, FileHeader, UNFINISHED_NAME, file_name, spare_name};
use super::options::JournalOptions;
use super::stats::JournalStats;

/// Checkpoints for which the number of files between them is remembered: an early checkpoint must
/// not remove the files that the next one needs.
const CHECKPOINTS_REMEMBERED: usize = 8;

/// A file that is being written, or is ready to be.
#[derive(Debug)]
pub(super) struct LiveFile {
    pub(super) file: File,
    pub(super) header: FileHeader,
    /// Where the next frame goes.
    pub(super) at: u64,
}

impl LiveFile {
    pub(super) fn left(&self) -> u64 {
        self.header.file_bytes - self.at
    }

    /// Overwrites the head of a frame, or of what might be one.
    pub(super) fn erase_head(&self, disk: &Disk, at: u64) -> io::Result<()> {
        disk.write_at(&self.file, &mut [IoSlice::new(self.end_at(at))], at)
    }

    /// The end marker, as far as it fits in the file at `at`.
    pub(super) fn end_at(&self, at: u64) -> &'static [u8] {
        let left = self.header.file_bytes.saturating_sub(at);
        &END[..usize::try_from(left).map_or(END.len(), |left| left.min(END.len()))]
    }
}

/// A full file, kept until the checkpoint has passed its last commit.
#[derive(Debug, Clone, Copy)]
pub(super) struct SealedFile {
    pub(super) number: u64,
    pub(super) last: CommitNo,
    pub(super) bytes: u64,
}

/// The files that a scan found.
#[derive(Debug, Default)]
pub(super) struct PoolStart {
    pub(super) number_last: u64,
    pub(super) sealed: Vec<SealedFile>,
    pub(super) retired: Vec<u64>,
    pub(super) spares: Vec<u64>,
    pub(super) ready: VecDeque<LiveFile>,
    pub(super) active_is_empty: bool,
}

/// Whether there is a next file.
#[derive(Debug, Clone)]
pub(super) enum NextFile {
    Ready,
    /// It is being created: wait, and ask again.
    Coming,
    /// It could not be created.
    Failed(Arc<str>),
}

#[derive(Debug)]
pub(super) struct FilePool {
    disk: Disk,
    dir: PathBuf,
    options: JournalOptions,
    state: Mutex<PoolState>,
    changed: Condvar,
}

#[derive(Debug)]
struct PoolState {
    number_last: u64,
    sealed: VecDeque<SealedFile>,
    /// No longer needed, but still under their name in the chain.
    retired: VecDeque<u64>,
    spares: VecDeque<u64>,
    ready: VecDeque<LiveFile>,
    /// The file that is being written has no commit: the newest sealed one has the last commit.
    active_is_empty: bool,
    failed: Option<Arc<str>>,
    /// Whether to try again although the last attempt failed.
    try_again: bool,
    stopping: bool,
    /// The thread has ended: no further file will be created.
    ended: bool,
    begun: u64,
    /// Files begun until the last checkpoint, and between each of the last checkpoints. The pool
    /// keeps as many spares as the most of these.
    begun_at_checkpoint: u64,
    begun_recently: VecDeque<u64>,
    spares_wanted: usize,
    ready_wanted: usize,
    filled: u64,
    preallocated: u64,
    recycled: u64,
}

/// Where the blocks of a file come from.
#[derive(Debug, Clone, Copy)]
pub(super) enum FileSource {
    Spare(u64),
    /// Zeros that are written to disk: the fastest to write to.
    Zeros,
    /// Blocks that are only reserved: the fastest to create.
    Preallocated,
}

/// What the thread of the pool does next.
enum PoolTask {
    Retire(u64),
    Remove(u64),
    Make { number: u64, of: FileSource },
    Stop,
}

impl FilePool {
    pub(super) fn new(disk: Disk, dir: &Path, options: &JournalOptions, start: PoolStart) -> Self {
        let state = PoolState {
            number_last: start.number_last,
            sealed: start.sealed.into(),
            retired: start.retired.into(),
            spares: start.spares.into(),
            ready: start.ready,
            active_is_empty: start.active_is_empty,
            failed: None,
            try_again: false,
            stopping: false,
            ended: false,
            begun: 0,
            begun_at_checkpoint: 0,
            begun_recently: VecDeque::new(),
            spares_wanted: options.spares_max,
            ready_wanted: options.ready_max.max(1),
            filled: 0,
            preallocated: 0,
            recycled: 0,
        };
        Self {
            disk,
            dir: dir.to_owned(),
            options: options.clone(),
            state: Mutex::new(state),
            changed: Condvar::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn next(&self) -> NextFile {
        self.state().next()
    }

    /// Waits until the next file is ready or could not be created.
    pub(super) fn wait(&self) -> NextFile {
        let mut state = self.state();
        loop {
            match state.next() {
                NextFile::Coming => {
                    state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
                next => return next,
            }
        }
    }

    /// Takes the next file if it is ready, and keeps the full one until the checkpoint passes it.
    pub(super) fn rotate(&self, full: &LiveFile, last: CommitNo) -> Option<LiveFile> {
        let mut state = self.state();
        let next = state.ready.pop_front()?;
        let FileHeader { number, file_bytes, .. } = full.header;
        state.sealed.push_back(SealedFile { number, last, bytes: file_bytes });
        state.begun += 1;
        state.active_is_empty = true;
        self.changed.notify_all();
        Some(next)
    }

    /// The file that was taken last has a durable commit now.
    pub(super) fn wrote_first(&self) {
        self.state().active_is_empty = false;
    }

    /// Why growth is refused, if it is. Starts another attempt.
    pub(super) fn refuses_growth(&self) -> Option<Arc<str>> {
        let mut state = self.state();
        let why = state.failed.clone()?;
        state.try_again = true;
        self.changed.notify_all();
        Some(why)
    }

    pub(super) fn checkpointed(&self, up_to: CommitNo) {
        let mut state = self.state();
        while let Some(sealed) = state.sealed.front().copied() {
            let newest_with_commit = state.active_is_empty && state.sealed.len() == 1;
            if sealed.last > up_to || newest_with_commit {
                break;
            }
            state.sealed.pop_front();
            state.retired.push_back(sealed.number);
        }
        let begun = state.begun - state.begun_at_checkpoint;
        state.begun_at_checkpoint = state.begun;
        if state.begun_recently.len() >= CHECKPOINTS_REMEMBERED {
            state.begun_recently.pop_front();
        }
        state.begun_recently.push_back(begun);
        let most = state.begun_recently.iter().max().copied().unwrap_or(0);
        state.spares_wanted =
            usize::try_from(most).unwrap_or(usize::MAX).min(self.options.spares_max);
        state.try_again = true;
        self.changed.notify_all();
    }

    /// Bytes in ready files, and whether the last attempt to create one failed.
    pub(super) fn space_left(&self) -> (u64, bool) {
        let state = self.state();
        (state.ready.iter().map(LiveFile::left).sum(), state.failed.is_some())
    }

    pub(super) fn count(&self, stats: &mut JournalStats) {
        let state = self.state();
        let others = state.retired.len() + state.spares.len() + state.ready.len() + 1;
        stats.files = (others + state.sealed.len()) as u64;
        stats.disk_bytes = state.sealed.iter().map(|sealed| sealed.bytes).sum::<u64>()
            + others as u64 * self.options.file_bytes;
        stats.files_begun = state.begun;
        stats.files_filled = state.filled;
        stats.files_preallocated = state.preallocated;
        stats.files_recycled = state.recycled;
    }

    pub(super) fn stop(&self) {
        self.state().stopping = true;
        self.changed.notify_all();
    }

    /// Removes empty files after the thread has ended, so that a closed journal takes no more space
    /// than it needs. From both ends of the chain, so that a crash in between leaves no gap.
    pub(super) fn clear(&self) -> io::Result<()> {
        let mut state = self.state();
        for number in std::mem::take(&mut state.retired) {
            self.disk.remove(&self.dir.join(file_name(number)))?;
            self.disk.sync_dir(&self.dir)?;
        }
        for live in std::mem::take(&mut state.ready).into_iter().rev() {
            self.disk.remove(&self.dir.join(file_name(live.header.number)))?;
            self.disk.sync_dir(&self.dir)?;
        }
        for number in std::mem::take(&mut state.spares) {
            self.disk.remove(&self.dir.join(spare_name(number)))?;
        }
        Ok(())
    }

    /// The thread. Calls `broken` after a failed sync: no file name can be relied on after it.
    pub(super) fn run(&self, broken: &dyn Fn(String)) {
        let _guard = EndOnDrop(self);
        loop {
            let done = match self.next_task() {
                PoolTask::Stop => return,
                PoolTask::Retire(number) => self.retire(number),
                PoolTask::Remove(number) => self.disk.remove(&self.dir.join(spare_name(number))),
                PoolTask::Make { number, of } => self.make_next(number, of),
            };
            if let Err(error) = done {
                broken(format!(
                    "cannot manage the journal files in {}: {error}",
                    self.dir.display()
                ));
                return;
            }
        }
    }

    fn next_task(&self) -> PoolTask {
        let mut state = self.state();
        loop {
            if let Some(task) = state.next_task() {
                return task;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Takes the oldest file out of the chain. Only then may its bytes be changed.
    fn retire(&self, number: u64) -> io::Result<()> {
        let from = self.dir.join(file_name(number));
        let to = self.dir.join(spare_name(number));
        self.disk.rename(&from, &to)?;
        self.disk.sync_dir(&self.dir)?;
        let fits = to.metadata()?.len() == self.options.file_bytes;
        let keeps = {
            let mut state = self.state();
            state.retired.pop_front();
            // More than the wanted spares, if the next files are about to be made of them.
            let spares_max =
                state.spares_wanted + state.ready_wanted.saturating_sub(state.ready.len());
            let keeps = fits && state.spares.len() < spares_max;
            if keeps {
                state.spares.push_back(number);
            }
            keeps
        };
        if keeps { Ok(()) } else { self.disk.remove(&to) }
    }

    /// Returns an error for a failed sync; a full disk is noted in the state.
    fn make_next(&self, number: u64, of: FileSource) -> io::Result<()> {
        let made = make(&self.disk, &self.dir, &self.options, number, of);
        let mut state = self.state();
        let outcome = match made {
            Ok(live) => {
                state.number_last = number;
                state.ready.push_back(live);
                state.failed = None;
                match of {
                    FileSource::Spare(_) => state.recycled += 1,
                    FileSource::Zeros => state.filled += 1,
                    FileSource::Preallocated => state.preallocated += 1,
                }
                Ok(())
            }
            Err(error) if means_full(&error) => {
                if state.failed.is_none() {
                    tracing::warn!(%error, "disk full, cannot create the next journal file");
                }
                state.failed = Some(Arc::from(error.to_string()));
                Ok(())
            }
            Err(error) => Err(error),
        };
        self.changed.notify_all();
        outcome
    }
}

/// However the thread ends, the writer must not wait for it.
struct EndOnDrop<'a>(&'a FilePool);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.state().ended = true;
        self.0.changed.notify_all();
    }
}

impl PoolState {
    fn next(&self) -> NextFile {
        match &self.failed {
            _ if !self.ready.is_empty() => NextFile::Ready,
            _ if self.ended => NextFile::Failed(Arc::from("the journal is closing")),
            Some(why) if !self.try_again => NextFile::Failed(Arc::clone(why)),
            _ => NextFile::Coming,
        }
    }

    fn next_task(&mut self) -> Option<PoolTask> {
        if self.stopping {
            return Some(PoolTask::Stop);
        }
        if let Some(&number) = self.retired.front() {
            return Some(PoolTask::Retire(number));
        }
        let short = self.ready.len() < self.ready_wanted;
        if short && (self.failed.is_none() || self.try_again) {
            self.try_again = false;
            let of = match self.spares.pop_front() {
                Some(spare) => FileSource::Spare(spare),
                None if self.ready.is_empty() => FileSource::Preallocated,
                None => FileSource::Zeros,
            };
            return Some(PoolTask::Make { number: self.number_last + 1, of });
        }
        if self.spares.len() > self.spares_wanted {
            return self.spares.pop_back().map(PoolTask::Remove);
        }
        None
    }
}

/// Creates the file with this number.
pub(super) fn make(
    disk: &Disk,
    dir: &Path,
    options: &JournalOptions,
    number: u64,
    of: FileSource,
) -> io::Result<LiveFile> {
    let file_bytes = options.file_bytes;
    let unfinished = dir.join(UNFINISHED_NAME);
    let path = dir.join(file_name(number));
    let made = (|| {
        let file = match of {
            FileSource::Spare(spare) => {
                disk.rename(&dir.join(spare_name(spare)), &unfinished)?;
                disk.open(&unfinished)?
            }
            FileSource::Zeros => {
                let file = new(disk, dir, &unfinished, file_bytes)?;
                disk.fill(&file, 0, file_bytes)?;
                file
            }
            FileSource::Preallocated => {
                let file = new(disk, dir, &unfinished, file_bytes)?;
                disk.preallocate(&file, file_bytes)?;
                file
            }
        };
        let header = FileHeader { store: options.store, number, salt: new_salt(), file_bytes };
        disk.write_at(&file, &mut [IoSlice::new(&header.to_page())], 0)?;
        disk.sync_data(&file)?;
        disk.rename(&unfinished, &path)?;
        disk.sync_dir(dir)?;
        Ok(LiveFile { file, header, at: FRAMES_AT })
    })();
    if made.as_ref().is_err_and(means_full) {
        disk.remove(&unfinished)?;
    }
    made
}

fn new(disk: &Disk, dir: &Path, path: &Path, file_bytes: u64) -> io::Result<File> {
    // Checked first: filling the disk to its last block to find out would harm other programs.
    if disk.free_bytes(dir)? < file_bytes {
        return Err(io::ErrorKind::StorageFull.into());
    }
    disk.create(path)
}

/// Different for each use of each file, and not predictable for callers who choose payloads.
fn new_salt() -> u64 {
    RandomState::new().build_hasher().finish()
}
