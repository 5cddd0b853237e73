//! Writes groups to a journal, damages its files, and reads them back, several times in a row.
//!
//! The target panics if a reopened journal holds anything but a prefix of what was written, if it
//! is shorter without reporting so, or if it cannot be opened though nothing was damaged. Known
//! kinds of damage are tested byte by byte in `crates/journal/src/tests/damage.rs`.

#![no_main]

use std::fs;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use punctual_journal::{
    Class, CommitNo, FILE_BYTES_MIN, Journal, JournalEntry, JournalError, JournalOptions, Opened,
    ReplayError, StoreId, check,
};

const STORE: StoreId = StoreId(*b"store under fuzz");
/// How often the journal is opened and closed.
const ROUNDS_MAX: u8 = 4;
/// Few enough that no group can be turned into zeros, which look like a regular end.
const DAMAGES_MAX: u8 = 3;

/// The input, taken from the front; zeros when it is used up.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        let Some((byte, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *byte
    }

    fn below(&mut self, bound: u64) -> u64 {
        let wide =
            u64::from_le_bytes(std::array::from_fn(|at| if at < 3 { self.byte() } else { 0 }));
        wide % bound.max(1)
    }
}

fuzz_target!(|bytes: &[u8]| {
    let mut input = Input(bytes);
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
    let mut written: Vec<Bytes> = Vec::new();
    for _ in 0..input.byte() % ROUNDS_MAX + 1 {
        write(dir.path(), &mut input, &mut written);
        let damages = input.byte() % (DAMAGES_MAX + 1);
        for _ in 0..damages {
            damage(dir.path(), &mut input);
        }
        match read(dir.path()) {
            Ok((opened, commits)) => {
                assert!(commits.len() <= written.len() && commits[..] == written[..commits.len()]);
                assert!(commits.len() == written.len() || opened.dropped.is_some());
                assert_eq!(opened.last, CommitNo(commits.len() as u64));
                written = commits;
            }
            Err(_) if damages > 0 => return,
            Err(error) => panic!("not damaged, but refused: {error}"),
        }
    }
});

/// Opens the journal, appends some groups, and closes it for half of the inputs.
fn write(dir: &Path, input: &mut Input<'_>, written: &mut Vec<Bytes>) {
    let options = JournalOptions { file_bytes: FILE_BYTES_MIN, ..JournalOptions::new(STORE) };
    let mut replayed = 0;
    let (journal, _) = Journal::open(
        dir,
        options,
        CommitNo(0),
        &mut |_, _| {
            replayed += 1;
            Ok(())
        },
        |outcome, answer: mpsc::Sender<bool>| answer.send(outcome.is_ok()).expect("received below"),
    )
    .expect("a journal that can be read can be opened");
    assert_eq!(replayed, written.len());
    for _ in 0..input.byte() % 16 {
        let (answer, answers) = mpsc::channel();
        for _ in 0..input.byte() % 4 {
            let length = input.byte();
            let bytes = Bytes::from(vec![input.byte(); usize::from(length)]);
            written.push(bytes.clone());
            let entry = JournalEntry { bytes, class: Class::Grow, item: answer.clone() };
            block_on(journal.append(entry)).expect("accepted");
        }
        drop(answer);
        assert!(answers.iter().all(|durable| durable));
    }
    if input.byte() % 2 == 0 {
        journal.close().expect("closes");
    }
}

struct UnparkThread(thread::Thread);

impl Wake for UnparkThread {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(UnparkThread(thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

/// Flips bits of one byte of one file, or truncates the file there.
fn damage(dir: &Path, input: &mut Input<'_>) {
    let mut files: Vec<PathBuf> =
        fs::read_dir(dir).expect("lists").map(|entry| entry.expect("an entry").path()).collect();
    files.sort();
    let path = &files[usize::from(input.byte()) % files.len()];
    let mut bytes = fs::read(path).expect("reads");
    let at = usize::try_from(input.below(bytes.len() as u64)).expect("small");
    match input.byte() {
        0 => bytes.truncate(at),
        bits => {
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= bits;
            }
        }
    }
    fs::write(path, bytes).expect("writes");
}

fn read(dir: &Path) -> Result<(Opened, Vec<Bytes>), JournalError> {
    let mut commits = Vec::new();
    let opened = check(dir, STORE, CommitNo(0), &mut |commit, bytes| {
        commits.push(bytes);
        assert_eq!(commit, CommitNo(commits.len() as u64));
        Ok::<(), ReplayError>(())
    })?;
    Ok((opened, commits))
}
