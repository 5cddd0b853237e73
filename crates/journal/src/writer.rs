//! The writer: takes entries from the queue in groups, and makes each group durable.
//!
//! A group is written only when the one before it is durable, and is in one file. Bytes of a group
//! that failed cannot be read as frames later; if that cannot be ensured, the journal is broken.
//! One thread at a time has the turn to write: that of the writer or, for a small group while the
//! disk is quick, that of the caller, which saves two changes of thread.
//! `file_pool` provides the next file, `completion` reports to the store, and `scan` reads what is
//! written here.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Notify;

use super::commit::{Class, CommitNo, JournalEntry};
use super::completion::{Completion, CompletionReceiver, CompletionSender, ReceiverGone};
use super::disk::{Disk, means_full};
use super::error::JournalError;
use super::file_pool::{FilePool, LiveFile, NextFile};
use super::frame::{FrameHead, frame_bytes, padding, payload_sum};
use super::options::JournalOptions;
use super::stats::{JournalStats, StoreStopwatch};

/// Payloads up to this length are copied next to their heads; longer ones are written without a
/// copy.
const COPY_BYTES_MAX: usize = 4096;
/// Bytes of a group that the writer completes itself: the store applies them in less than a
/// millisecond.
const COMPLETE_BYTES_MAX: u64 = 64 * 1024;
/// The slowest recent group with which a caller still writes on its own thread. Its other work
/// waits meanwhile: with slower disks that costs more than a change of thread.
const CALLER_WRITES_MAX: Duration = Duration::from_millis(2);
/// How slow a disk is taken to be before its first group: callers begin to write themselves after
/// some tens of quick groups.
const UNKNOWN_DISK: Duration = Duration::from_secs(1);

/// What callers, the writer and the completing thread share.
#[derive(Debug)]
pub(super) struct JournalShared<T> {
    state: Mutex<WriterState<T>>,
    /// Signals an entry in the queue, or the end.
    work: Condvar,
    /// Signals that the queue was emptied, or that the journal ended.
    pub(super) capacity: Notify,
}

#[derive(Debug)]
pub(super) struct WriterState<T> {
    queue: Queue<T>,
    queue_bytes: usize,
    /// Whether a thread has the turn to write.
    pub(super) writing: bool,
    stopping: bool,
    broken: Option<Arc<str>>,
    last: CommitNo,
    file_left: u64,
    /// How long a recent slow group took to write and sync. Shrinks with every quicker group.
    pub(super) slow_group: Duration,
    stats: JournalStats,
}

/// An entry in the queue, with the checksum of its payload.
#[derive(Debug)]
pub(super) struct QueuedEntry<T> {
    pub(super) bytes: Bytes,
    class: Class,
    item: T,
    sum: u64,
}

impl<T> QueuedEntry<T> {
    pub(super) fn new(entry: JournalEntry<T>) -> Self {
        let JournalEntry { bytes, class, item } = entry;
        let sum = payload_sum(&bytes);
        Self { bytes, class, item, sum }
    }

    fn frame_bytes(&self) -> u64 {
        frame_bytes(self.bytes.len())
    }
}

impl<T> JournalShared<T> {
    pub(super) fn new(last: CommitNo, active: &LiveFile) -> Self {
        Self {
            state: Mutex::new(WriterState {
                queue: VecDeque::new(),
                queue_bytes: 0,
                writing: false,
                stopping: false,
                broken: None,
                last,
                file_left: active.left(),
                slow_group: UNKNOWN_DISK,
                stats: JournalStats::default(),
            }),
            work: Condvar::new(),
            capacity: Notify::new(),
        }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, WriterState<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts an entry in the queue, or returns it with the reason. Returns the queue if the caller
    /// has the turn to write it: that is decided by `spare`, the time for which the caller may be
    /// blocked.
    pub(super) fn offer(
        &self,
        queued: QueuedEntry<T>,
        options: &JournalOptions,
        spare: Duration,
    ) -> Result<Option<Queue<T>>, (JournalError, QueuedEntry<T>)> {
        let mut state = self.state();
        if let Some(why) = &state.broken {
            return Err((JournalError::Broken { why: Arc::clone(why) }, queued));
        }
        if state.stopping {
            return Err((JournalError::Closed, queued));
        }
        if !state.has_capacity(options, queued.bytes.len()) {
            return Err((JournalError::Busy, queued));
        }
        if state.caller_writes(&queued, spare) {
            state.writing = true;
            return Ok(Some(VecDeque::from([queued])));
        }
        state.queue_bytes += queued.bytes.len();
        state.queue.push_back(queued);
        // A thread that is writing checks the queue before it waits.
        if state.queue.len() == 1 && !state.writing {
            self.work.notify_one();
        }
        Ok(None)
    }

    /// Waits for the turn to write, and takes the whole queue. `None` when the journal stops and
    /// everything is written.
    fn wait_for_turn(&self) -> Option<Queue<T>> {
        let mut state = self.state();
        loop {
            if !state.writing && !state.queue.is_empty() {
                state.writing = true;
                state.queue_bytes = 0;
                let taken = std::mem::take(&mut state.queue);
                drop(state);
                self.wake_callers();
                return Some(taken);
            }
            if !state.writing && state.stopping {
                return None;
            }
            state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Ends the turn of a thread. What was queued meanwhile is left to the writer's thread.
    fn end_turn(&self) {
        let mut state = self.state();
        state.writing = false;
        if !state.queue.is_empty() || state.stopping {
            self.work.notify_one();
        }
    }

    /// Ends the turn of a caller that has not written its entries: they are the first of the queue.
    pub(super) fn return_turn(&self, mut waiting: Queue<T>) {
        let mut state = self.state();
        state.queue_bytes += waiting.iter().map(|queued| queued.bytes.len()).sum::<usize>();
        waiting.append(&mut state.queue);
        state.queue = waiting;
        drop(state);
        self.end_turn();
    }

    /// Whether nothing waits to be written.
    fn is_idle(&self) -> bool {
        self.state().queue.is_empty()
    }

    fn wake_callers(&self) {
        self.capacity.notify_waiters();
    }

    pub(super) fn stop(&self) {
        self.state().stopping = true;
        self.work.notify_all();
        self.wake_callers();
    }

    /// Breaks the journal for good. The first reason is kept.
    pub(super) fn break_with(&self, why: String) {
        tracing::error!(why, "journal broken, nothing more is acknowledged");
        self.state().broken.get_or_insert_with(|| Arc::from(why));
        self.wake_callers();
    }

    pub(super) fn broken(&self) -> Option<Arc<str>> {
        self.state().broken.clone()
    }

    pub(super) fn last(&self) -> CommitNo {
        self.state().last
    }

    pub(super) fn file_left(&self) -> u64 {
        self.state().file_left
    }

    pub(super) fn stats(&self) -> JournalStats {
        self.state().stats.clone()
    }
}

impl<T> WriterState<T> {
    fn has_capacity(&self, options: &JournalOptions, bytes: usize) -> bool {
        // A payload that is larger than the whole limit is queued alone.
        self.queue.is_empty()
            || (self.queue.len() < options.queue_commits_max
                && self.queue_bytes + bytes <= options.queue_bytes_max)
    }

    /// Whether a caller that may be blocked for `spare` writes its entry itself.
    fn caller_writes(&self, queued: &QueuedEntry<T>, spare: Duration) -> bool {
        let bytes = queued.frame_bytes();
        // Twice the slowest: a group that takes longer than the last ones still fits.
        let is_quick = self.slow_group <= CALLER_WRITES_MAX && 2 * self.slow_group <= spare;
        is_quick
            && !self.writing
            && self.queue.is_empty()
            && bytes <= COMPLETE_BYTES_MAX
            && bytes <= self.file_left
    }

    /// Counts the time that a group took.
    pub(super) fn count_time(&mut self, time: Duration) {
        self.slow_group = time.max(self.slow_group - self.slow_group / 8);
    }
}

/// Entries in the order in which they were accepted.
pub(super) type Queue<T> = VecDeque<QueuedEntry<T>>;

/// The thread that writes. It ends when the journal is stopped and everything is written.
pub(super) fn run_writer<T>(shared: &JournalShared<T>, writer: &Mutex<JournalWriter<T>>) {
    let _end = EndCompletions(writer);
    while let Some(waiting) = shared.wait_for_turn() {
        if write(shared, writer, waiting).is_err() {
            return;
        }
    }
}

/// Ends the completing thread, which waits for the last sender, when the writer's thread ends or
/// panics.
struct EndCompletions<'a, T>(&'a Mutex<JournalWriter<T>>);

impl<T> Drop for EndCompletions<'_, T> {
    fn drop(&mut self) {
        lock(self.0).sender = None;
    }
}

/// Writes and completes entries on this thread, which has the turn, and ends the turn.
pub(super) fn write<T>(
    shared: &JournalShared<T>,
    writer: &Mutex<JournalWriter<T>>,
    waiting: Queue<T>,
) -> Result<(), ReceiverGone> {
    let _guard = BreakJournalOnPanic(shared);
    let written = lock(writer).write_all(waiting);
    shared.end_turn();
    written
}

fn lock<T>(writer: &Mutex<JournalWriter<T>>) -> MutexGuard<'_, JournalWriter<T>> {
    // A panic has broken the journal, so that nothing more is written.
    writer.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The thread that reports completions to the store.
pub(super) fn run_completions<T>(shared: &JournalShared<T>, groups: CompletionReceiver<T>) {
    let _guard = BreakJournalOnPanic(shared);
    groups.run();
}

/// Breaks the journal if a thread panics, so that no caller waits for it.
struct BreakJournalOnPanic<'a, T>(&'a JournalShared<T>);

impl<T> Drop for BreakJournalOnPanic<'_, T> {
    fn drop(&mut self) {
        if thread::panicking() {
            let name = thread::current().name().unwrap_or("a thread").to_owned();
            self.0.break_with(format!("{name} panicked"));
            // No thread is left to complete these entries; dropping their items tells the callers.
            let waiting = std::mem::take(&mut self.0.state().queue);
            drop(waiting);
            self.0.end_turn();
        }
    }
}

/// The file, and what it takes to write to it.
#[derive(Debug)]
pub(super) struct JournalWriter<T> {
    /// `None` once the writer's thread has ended.
    sender: Option<CompletionSender<T>>,
    disk: Disk,
    reserve_bytes: u64,
    shared: Arc<JournalShared<T>>,
    file_pool: Arc<FilePool>,
    active: LiveFile,
    active_is_empty: bool,
    last: CommitNo,
    /// Heads and short payloads of the group being written; reused.
    staging: Vec<u8>,
}

/// What to do with the next entry.
enum GroupStep {
    Take,
    /// Write what was taken so far, then wait for the next file.
    Wait,
    /// Write what was taken so far, then continue in the next file.
    Rotate,
    Refuse(JournalError),
}

impl<T> JournalWriter<T> {
    pub(super) fn new(
        disk: Disk,
        options: &JournalOptions,
        (shared, file_pool): (&Arc<JournalShared<T>>, &Arc<FilePool>),
        active: LiveFile,
        last: CommitNo,
        sender: CompletionSender<T>,
    ) -> Self {
        Self {
            sender: Some(sender),
            disk,
            reserve_bytes: options.reserve_bytes(),
            shared: Arc::clone(shared),
            file_pool: Arc::clone(file_pool),
            active,
            // If it is not empty, one call of `wrote_first` too many does no harm.
            active_is_empty: true,
            last,
            staging: Vec::new(),
        }
    }

    /// Makes entries durable, in groups, and completes them.
    fn write_all(&mut self, mut waiting: Queue<T>) -> Result<(), ReceiverGone> {
        while !waiting.is_empty() {
            let (group, bytes) = self.next_group(&mut waiting);
            let idle = waiting.is_empty() && self.shared.is_idle();
            let sender = self.sender.as_ref().ok_or(ReceiverGone)?;
            match group.is_empty() {
                true => {}
                false if idle && bytes <= COMPLETE_BYTES_MAX => sender.complete_now(group)?,
                false => sender.send(group)?,
            }
        }
        Ok(())
    }

    /// Takes entries off the front, as many as fit in one group, and makes them durable. Returns
    /// their completions and how many bytes they were.
    fn next_group(&mut self, waiting: &mut Queue<T>) -> (Vec<Completion<T>>, u64) {
        let mut group = Vec::with_capacity(waiting.len());
        let mut refused = Vec::new();
        let mut bytes = 0;
        let step = loop {
            let Some(queued) = waiting.front() else {
                break GroupStep::Take;
            };
            match self.step(queued, bytes) {
                GroupStep::Take => {
                    bytes += queued.frame_bytes();
                    group.extend(waiting.pop_front());
                }
                GroupStep::Refuse(why) => {
                    refused.extend(waiting.pop_front().map(|queued| (Err(why), queued.item)));
                }
                other => break other,
            }
        };
        let mut outcomes = if group.is_empty() { Vec::new() } else { self.commit(group, bytes) };
        outcomes.extend(refused);
        match step {
            GroupStep::Wait => drop(self.wait_for_file()),
            GroupStep::Rotate => self.rotate(),
            GroupStep::Take | GroupStep::Refuse(_) => {}
        }
        (outcomes, bytes)
    }

    /// Decides about one entry, when the group already has `taken` bytes.
    fn step(&self, queued: &QueuedEntry<T>, taken: u64) -> GroupStep {
        if let Some(why) = self.shared.broken() {
            return GroupStep::Refuse(JournalError::Broken { why });
        }
        let left = self.active.left() - taken;
        let need = queued.frame_bytes();
        let grows = queued.class == Class::Grow;
        match self.file_pool.next() {
            NextFile::Ready if need <= left => GroupStep::Take,
            NextFile::Ready => GroupStep::Rotate,
            NextFile::Failed(why) if grows || need > left => {
                GroupStep::Refuse(JournalError::Full { why })
            }
            // The reserve is not used before it is known whether there will be another file.
            NextFile::Coming if need > left || (grows && left - need < self.reserve_bytes) => {
                GroupStep::Wait
            }
            NextFile::Failed(_) | NextFile::Coming => GroupStep::Take,
        }
    }

    fn wait_for_file(&self) -> NextFile {
        self.shared.state().stats.file_waits += 1;
        self.file_pool.wait()
    }

    fn rotate(&mut self) {
        if let Some(next) = self.file_pool.rotate(&self.active, self.last) {
            self.active = next;
            self.active_is_empty = true;
            self.shared.state().file_left = self.active.left();
        }
    }

    /// Writes a group and makes it durable, or ensures that nothing of it can be read.
    fn commit(&mut self, group: Vec<QueuedEntry<T>>, bytes: u64) -> Vec<Completion<T>> {
        let first = CommitNo(self.last.0 + 1);
        let watch = StoreStopwatch::start();
        if let Err(error) = self.write(&group, first) {
            let why = self.undo(&group, error);
            return failed(group, &why);
        }
        let written = watch.elapsed();
        if let Err(error) = self.disk.sync_data(&self.active.file) {
            let why = self.broken("fsync failed", &error);
            return failed(group, &why);
        }
        let synced = watch.elapsed() - written;

        self.last = CommitNo(self.last.0 + group.len() as u64);
        self.active.at += bytes;
        if std::mem::take(&mut self.active_is_empty) {
            self.file_pool.wrote_first();
        }
        let mut state = self.shared.state();
        state.last = self.last;
        state.file_left = self.active.left();
        state.count_time(written + synced);
        state.stats.count_group(group.len() as u64, bytes, written, synced);
        drop(state);
        (first.0..).zip(group).map(|(commit, queued)| (Ok(CommitNo(commit)), queued.item)).collect()
    }

    /// One write for the whole group and the end marker after it.
    fn write(&mut self, group: &[QueuedEntry<T>], first: CommitNo) -> io::Result<()> {
        let mut staging = std::mem::take(&mut self.staging);
        staging.clear();
        // Where a payload that is not copied interrupts the staged bytes.
        let mut cuts = Vec::new();
        for (commit, queued) in (first.0..).zip(group) {
            let length = queued.bytes.len();
            let head = FrameHead {
                length: u32::try_from(length).expect("bounded by COMMIT_BYTES_MAX"),
                commit: CommitNo(commit),
                group: first,
                payload_sum: queued.sum,
            };
            staging.extend_from_slice(&head.to_bytes(self.active.header.salt));
            if length > COPY_BYTES_MAX {
                cuts.push((staging.len(), &queued.bytes));
            } else {
                staging.extend_from_slice(&queued.bytes);
            }
            staging.resize(staging.len() + padding(length), 0);
        }
        let bytes: u64 = group.iter().map(QueuedEntry::frame_bytes).sum();
        let end = self.active.end_at(self.active.at + bytes);

        let mut slices = Vec::with_capacity(2 * cuts.len() + 2);
        let mut from = 0;
        for (cut, payload) in cuts {
            slices.push(IoSlice::new(&staging[from..cut]));
            slices.push(IoSlice::new(payload));
            from = cut;
        }
        slices.push(IoSlice::new(&staging[from..]));
        slices.push(IoSlice::new(end));
        let written = self.disk.write_at(&self.active.file, &mut slices, self.active.at);
        self.staging = staging;
        written
    }

    /// After a failed write: nothing of the group may be read as a frame, not even after a crash.
    fn undo(&mut self, group: &[QueuedEntry<T>], error: io::Error) -> JournalError {
        if !means_full(&error) {
            return self.broken("write failed", &error);
        }
        let mut at = self.active.at;
        for queued in group {
            if let Err(error) = self.active.erase_head(&self.disk, at) {
                return self.broken("a half-written group cannot be erased", &error);
            }
            at += queued.frame_bytes();
        }
        if let Err(error) = self.disk.sync_data(&self.active.file) {
            return self.broken("fsync failed", &error);
        }
        self.shared.state().stats.refused_full += group.len() as u64;
        JournalError::Full { why: Arc::from(error.to_string()) }
    }

    fn broken(&self, what: &str, error: &io::Error) -> JournalError {
        let file = super::frame::file_name(self.active.header.number);
        self.shared.break_with(format!("{what} on {file}: {error}"));
        let why = self.shared.broken().expect("the journal was just broken");
        JournalError::Broken { why }
    }
}

fn failed<T>(group: Vec<QueuedEntry<T>>, why: &JournalError) -> Vec<Completion<T>> {
    group.into_iter().map(|queued| (Err(why.clone()), queued.item)).collect()
}
