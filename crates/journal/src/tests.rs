//! The journal as its caller sees it: fixtures, and tests by subject in the modules below.

#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "offsets in a file of a few KiB"
)]

mod append;
mod damage;
mod full_disk;
mod golden;
mod random;
mod reopen;

use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::task::{Context, Poll, Wake, Waker};

use bytes::Bytes;
use tempfile::TempDir;

use super::frame::{FRAMES_AT, FileHeader, FrameHead, HEAD_BYTES, file_name, frame_bytes};
use super::*;

const STORE: StoreId = StoreId(*b"store under test");
const FILE_BYTES: u64 = 8 * 1024;

type Commits = Vec<(CommitNo, Bytes)>;
type AppendResult = Result<CommitNo, JournalError>;

/// In memory if possible: the tests create thousands of journals.
fn temp_dir() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a directory")
}

/// With one ready file, so that a test knows when the thread of the file pool is idle.
fn options() -> JournalOptions {
    JournalOptions { file_bytes: FILE_BYTES, ready_max: 1, ..JournalOptions::new(STORE) }
}

/// A journal whose items are the senders of their own results.
type TestJournal = Journal<mpsc::Sender<AppendResult>>;

fn open_with(
    disk: Disk,
    dir: &Path,
    options: JournalOptions,
    after: u64,
) -> Result<(TestJournal, Opened, Commits), JournalError> {
    let mut commits = Vec::new();
    let (journal, opened) = Journal::open_on(
        disk,
        dir,
        options,
        CommitNo(after),
        &mut |commit, bytes| {
            commits.push((commit, bytes));
            Ok(())
        },
        |outcome, answer: mpsc::Sender<AppendResult>| {
            // A test may have dropped the receiver.
            drop(answer.send(outcome.map_err(JournalError::clone)));
        },
    )?;
    Ok((journal, opened, commits))
}

fn open(dir: &Path, after: u64) -> Result<(TestJournal, Opened, Commits), JournalError> {
    open_with(Disk::default(), dir, options(), after)
}

fn read(dir: &Path, after: u64) -> Result<(Opened, Commits), JournalError> {
    let mut commits = Vec::new();
    let opened = check(dir, STORE, CommitNo(after), &mut |commit, bytes| {
        commits.push((commit, bytes));
        Ok(())
    })?;
    Ok((opened, commits))
}

fn send(
    journal: &TestJournal,
    bytes: impl Into<Bytes>,
    class: Class,
) -> mpsc::Receiver<AppendResult> {
    let (item, answer) = mpsc::channel();
    match append_blocking(journal, JournalEntry { bytes: bytes.into(), class, item: item.clone() })
    {
        Ok(()) => {}
        Err(why) => item.send(Err(why)).expect("the receiver is here"),
    }
    answer
}

fn put(journal: &TestJournal, bytes: impl Into<Bytes>) -> AppendResult {
    send(journal, bytes, Class::Grow).recv().expect("an answer")
}

/// The payload of commit `number` in these tests: 0 to 99 bytes, so that some are empty.
fn payload(number: u64) -> Bytes {
    let length = usize::try_from(number * 7 % 100).expect("small");
    Bytes::from(vec![u8::try_from(number % 251).expect("small"); length])
}

fn numbered(numbers: impl IntoIterator<Item = u64>) -> Commits {
    numbers.into_iter().map(|number| (CommitNo(number), payload(number))).collect()
}

/// Writes a journal with these groups byte by byte, and returns where each group begins and ends.
/// A real journal does not let a test choose its groups.
fn build(dir: &Path, groups: &[Vec<Bytes>], salt: u64) -> Vec<(u64, u64)> {
    build_file(dir, 1, 1, groups, salt)
}

/// Writes one file of such a journal, whose first commit is `commit`.
fn build_file(
    dir: &Path,
    number: u64,
    mut commit: u64,
    groups: &[Vec<Bytes>],
    salt: u64,
) -> Vec<(u64, u64)> {
    let header = FileHeader { store: STORE, number, salt, file_bytes: FILE_BYTES };
    let mut bytes = header.to_page();
    bytes.truncate(FRAMES_AT as usize);
    let mut ranges = Vec::new();
    for group in groups {
        let at = bytes.len() as u64;
        let first = CommitNo(commit);
        for payload in group {
            let head = FrameHead {
                length: u32::try_from(payload.len()).expect("small"),
                commit: CommitNo(commit),
                group: first,
                payload_sum: frame::payload_sum(payload),
            };
            bytes.extend_from_slice(&head.to_bytes(salt));
            bytes.extend_from_slice(payload);
            bytes.resize(bytes.len().next_multiple_of(8), 0);
            commit += 1;
        }
        ranges.push((at, bytes.len() as u64));
    }
    assert!(bytes.len() as u64 <= FILE_BYTES, "the test fits in one file");
    bytes.resize(FILE_BYTES as usize, 0);
    fs::write(dir.join(file_name(number)), bytes).expect("written");
    ranges
}

/// Ten groups of one to four commits.
fn ten_groups() -> Vec<Vec<Bytes>> {
    let mut number = 0;
    (0..10)
        .map(|group| {
            (0..=(group % 4))
                .map(|_| {
                    number += 1;
                    payload(number)
                })
                .collect()
        })
        .collect()
}

/// Ends a thread's wait in [`append_blocking`].
struct UnparkOnWake(thread::Thread);

impl Wake for UnparkOnWake {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Appends from a thread that is not async.
fn append_blocking<T: Send + 'static>(
    journal: &Journal<T>,
    entry: JournalEntry<T>,
) -> Result<(), JournalError> {
    let waker = Waker::from(Arc::new(UnparkOnWake(thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut append = pin!(journal.append(entry, Duration::ZERO));
    loop {
        match append.as_mut().poll(&mut context) {
            Poll::Ready(accepted) => return accepted.map(|turn| assert!(turn.is_none())),
            Poll::Pending => thread::park(),
        }
    }
}

impl<T: Send + 'static> Journal<T> {
    /// Appends, or returns `Busy` instead of waiting.
    fn try_append(&self, entry: JournalEntry<T>) -> Result<(), JournalError> {
        let queued = self.admit(entry)?;
        let offered = self.shared.offer(queued, &self.options, Duration::ZERO);
        offered.map(|turn| assert!(turn.is_none())).map_err(|(why, _)| why)
    }

    /// The last durable commit.
    fn last(&self) -> CommitNo {
        self.shared.last()
    }
}

impl<T> JournalShared<T> {
    /// Sets how long a recent slow group took: tests do not depend on the disk.
    fn set_slow_group(&self, time: Duration) {
        self.state().slow_group = time;
    }

    /// Counts the time of a group, and returns how slow groups are taken to be after it.
    fn count_time(&self, time: Duration) -> Duration {
        let mut state = self.state();
        state.count_time(time);
        state.slow_group
    }
}

/// Waits for the next file, so that injected faults do not hit the file pool.
fn wait_for_ready_file(journal: &TestJournal) {
    while journal.space_left().bytes_preallocated_left < FILE_BYTES {
        thread::yield_now();
    }
}
