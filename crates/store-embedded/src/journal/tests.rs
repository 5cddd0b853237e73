//! The journal from outside: reopening, damage, groups, full disks, failing syncs.

#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "offsets in a file of a few KiB"
)]

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;

use proptest::prelude::*;
use tempfile::TempDir;

use super::frame::{FRAMES_AT, FileHeader, FrameHead, HEAD_BYTES, file_name, frame_bytes};
use super::*;

const STORE: StoreId = StoreId(*b"store under test");
const FILE_BYTES: u64 = 8 * 1024;

type Commits = Vec<(CommitNo, Bytes)>;
type AppendResult = Result<CommitNo, JournalError>;

/// In memory where there is such a place: thousands of journals are made here.
fn temp_dir() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a directory")
}

/// With one file ready at a time, so that a test knows when the thread of the file_pool rests.
fn options() -> JournalOptions {
    JournalOptions { file_bytes: FILE_BYTES, ready_max: 1, ..JournalOptions::new(STORE) }
}

/// A journal whose items are the senders of their own answers.
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
            // A test that does not care has dropped the other end.
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
    match journal.append(JournalEntry { bytes: bytes.into(), class, item: item.clone() }) {
        Ok(()) => {}
        Err(why) => item.send(Err(why)).expect("the receiver is here"),
    }
    answer
}

fn put(journal: &TestJournal, bytes: impl Into<Bytes>) -> AppendResult {
    send(journal, bytes, Class::Grow).recv().expect("an answer")
}

/// What commit `number` holds in these tests: lengths 0 to 99, so that some are empty.
fn payload(number: u64) -> Bytes {
    let length = usize::try_from(number * 7 % 100).expect("small");
    Bytes::from(vec![u8::try_from(number % 251).expect("small"); length])
}

fn numbered(numbers: impl IntoIterator<Item = u64>) -> Commits {
    numbers.into_iter().map(|number| (CommitNo(number), payload(number))).collect()
}

/// The files of a journal that consists of these groups, spelled by hand, and where each group
/// begins and ends. Only what is built so has groups of a known shape.
fn build(dir: &Path, groups: &[Vec<Bytes>], salt: u64) -> Vec<(u64, u64)> {
    build_file(dir, 1, 1, groups, salt)
}

/// One file of such a journal, whose first commit is `commit`.
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
    let mut places = Vec::new();
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
        places.push((at, bytes.len() as u64));
    }
    assert!(bytes.len() as u64 <= FILE_BYTES, "the test fits in one file");
    bytes.resize(FILE_BYTES as usize, 0);
    fs::write(dir.join(file_name(number)), bytes).expect("written");
    places
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

#[test]
fn what_was_durable_is_there_again_empty_commits_too() {
    let dir = temp_dir();
    let (journal, opened, _) = open(dir.path(), 0).expect("opens");
    assert_eq!((opened.last, opened.dropped), (CommitNo(0), None));
    for bytes in ["", "one", "", "", "two", ""] {
        put(&journal, bytes).expect("durable");
    }
    assert_eq!(journal.last(), CommitNo(6));
    drop(journal);

    let (journal, opened, commits) = open(dir.path(), 0).expect("opens");
    let texts: Vec<&[u8]> = commits.iter().map(|(_, bytes)| bytes.as_ref()).collect();
    assert_eq!(texts, [&b""[..], b"one", b"", b"", b"two", b""]);
    assert_eq!((opened.last, opened.replayed, opened.closed_cleanly), (CommitNo(6), 6, false));
    assert_eq!(opened.dropped, None);
    assert_eq!(put(&journal, "more").expect("durable"), CommitNo(7));
}

#[test]
fn many_files_are_read_in_order_and_only_after_the_checkpoint() {
    let dir = temp_dir();
    let (journal, ..) = open(dir.path(), 0).expect("opens");
    for number in 1..=500 {
        assert_eq!(put(&journal, payload(number)).expect("durable"), CommitNo(number));
    }
    assert!(journal.stats().files > 5, "{:?}", journal.stats());
    drop(journal);
    for after in [0, 1, 250, 499, 500] {
        let (opened, commits) = read(dir.path(), after).expect("reads");
        assert_eq!(opened.last, CommitNo(500));
        assert!(commits == numbered(after + 1..=500), "after {after}");
    }
}

#[test]
fn a_checkpoint_recycles_files_and_the_chain_goes_on() {
    let dir = temp_dir();
    let mut number = 0;
    for round in 0..5 {
        let (journal, opened, commits) = open(dir.path(), number).expect("opens");
        assert_eq!((opened.last, commits.len()), (CommitNo(number), 0));
        for _ in 0..1000 {
            number += 1;
            put(&journal, payload(number)).expect("durable");
            if number % 100 == 0 {
                journal.checkpointed(CommitNo(number - 50));
            }
        }
        let stats = journal.stats();
        assert!(stats.files_recycled > 5, "round {round}: {stats:?}");
        assert!(stats.disk_bytes <= 8 * FILE_BYTES, "round {round}: {stats:?}");
        drop(journal);
        let (opened, commits) = read(dir.path(), number - 50).expect("reads");
        assert_eq!((opened.last, opened.dropped), (CommitNo(number), None));
        assert!(commits == numbered(number - 49..=number));
    }
}

#[test]
fn spares_follow_the_busiest_of_the_last_checkpoints() {
    let dir = temp_dir();
    let (journal, ..) = open(dir.path(), 0).expect("opens");
    let mut number = 0;
    let mut commit = |count: u64| {
        for _ in 0..count {
            number += 1;
            put(&journal, payload(number)).expect("durable");
        }
        journal.checkpointed(CommitNo(number));
    };
    // Checkpoints that follow quickly on busy ones: what they leave is needed again.
    for _ in 0..6 {
        commit(300);
        commit(1);
        commit(1);
    }
    let begun_with = journal.stats();
    for _ in 0..3 {
        commit(300);
        commit(1);
        commit(1);
    }
    let stats = journal.stats();
    let made = |stats: &JournalStats| stats.files_filled + stats.files_promised;
    let begun = stats.files_begun - begun_with.files_begun;
    assert!(begun > 10, "{stats:?}");
    assert!(made(&stats) - made(&begun_with) < begun / 2, "{begun_with:?} {stats:?}");
}

#[test]
fn a_closed_journal_keeps_no_file_that_holds_nothing() {
    let dir = temp_dir();
    let options = JournalOptions { ready_max: 2, ..options() };
    let mut number = 0;
    for _ in 0..4 {
        let opened = open_with(Disk::default(), dir.path(), options.clone(), number);
        let (journal, opened, _) = opened.expect("opens");
        assert_eq!(opened.last, CommitNo(number));
        for _ in 0..200 {
            number += 1;
            put(&journal, payload(number)).expect("durable");
        }
        journal.checkpointed(CommitNo(number));
        journal.close().expect("closes");
        let entries = fs::read_dir(dir.path()).expect("a directory");
        let names: Vec<_> = entries.map(|entry| entry.expect("an entry").file_name()).collect();
        // The closing mark, and the file with the last commit; the one before it, if that has just been begun.
        assert!(names.len() <= 3, "{names:?}");
    }
}

#[test]
fn a_journal_that_does_not_join_up_with_the_checkpoint_is_refused() {
    let dir = temp_dir();
    assert!(matches!(open(dir.path(), 1), Err(JournalError::SteppedBack { .. })), "nothing there");
    let (journal, ..) = open(dir.path(), 0).expect("opens");
    for number in 1..=300 {
        put(&journal, payload(number)).expect("durable");
    }
    drop(journal);
    let ends_before = open(dir.path(), 301);
    assert!(matches!(ends_before, Err(JournalError::SteppedBack { .. })), "{ends_before:?}");
    fs::remove_file(dir.path().join(file_name(1))).expect("removed");
    let begins_after = open(dir.path(), 0);
    assert!(matches!(begins_after, Err(JournalError::Gap { .. })), "{begins_after:?}");
    fs::remove_file(dir.path().join(file_name(3))).expect("removed");
    let hole = open(dir.path(), 200);
    assert!(matches!(hole, Err(JournalError::Missing { .. })), "{hole:?}");
}

#[test]
fn what_is_not_ours_is_refused() {
    let dir = temp_dir();
    let (journal, ..) = open(dir.path(), 0).expect("opens");
    put(&journal, "one").expect("durable");
    drop(journal);
    let path = dir.path().join(file_name(1));
    let good = fs::read(&path).expect("reads");

    let other = StoreId(*b"some other store");
    let refused = check(dir.path(), other, CommitNo(0), &mut |_, _| Ok(()));
    assert!(matches!(refused, Err(JournalError::Foreign { .. })), "{refused:?}");

    let page = FileHeader { store: STORE, number: 7, salt: 7, file_bytes: FILE_BYTES }.to_page();
    fs::write(&path, page).expect("written");
    assert!(matches!(open(dir.path(), 0), Err(JournalError::Foreign { .. })), "other number");
    fs::write(
        &path,
        b"something else entirely, and long enough to be read as a header. ".repeat(9),
    )
    .expect("written");
    assert!(matches!(open(dir.path(), 0), Err(JournalError::Foreign { .. })), "other magic");

    let mut newer = good.clone();
    newer[8] = 2;
    let sum = frame::payload_sum(&newer[..56]);
    newer[56..64].copy_from_slice(&sum.to_le_bytes());
    fs::write(&path, newer).expect("written");
    let refused = open(dir.path(), 0);
    assert!(matches!(refused, Err(JournalError::Version { found: 2, .. })), "{refused:?}");

    fs::write(&path, good).expect("written");
    fs::write(dir.path().join("notes.txt"), "hello").expect("written");
    assert!(matches!(open(dir.path(), 0), Err(JournalError::Foreign { .. })), "other name");
    fs::remove_file(dir.path().join("notes.txt")).expect("removed");
    open(dir.path(), 0).expect("opens again");
}

#[test]
fn after_a_clean_close_nothing_may_be_missing() {
    let dir = temp_dir();
    let (journal, ..) = open(dir.path(), 0).expect("opens");
    for number in 1..=20 {
        put(&journal, payload(number)).expect("durable");
    }
    journal.close().expect("closes");
    journal.close().expect("closes twice");
    assert!(matches!(put(&journal, "late"), Err(JournalError::Closed)));
    drop(journal);
    let (opened, commits) = read(dir.path(), 0).expect("reads");
    assert!(opened.closed_cleanly && commits.len() == 20);

    let path = dir.path().join(file_name(1));
    let good = fs::read(&path).expect("reads");
    let end = FRAMES_AT + (1..=20).map(|n| frame_bytes(payload(n).len())).sum::<u64>();
    for at in FRAMES_AT..end {
        fs::write(&path, &good[..at as usize]).expect("written");
        assert!(read(dir.path(), 0).is_err(), "cut at {at}");
    }
    let last = end - frame_bytes(payload(20).len());
    for (from, to) in [(last, end), (last, last + 8), (end - 64, end)] {
        let mut zeroed = good.clone();
        zeroed[from as usize..to as usize].fill(0);
        fs::write(&path, &zeroed).expect("written");
        assert!(read(dir.path(), 0).is_err(), "zeros in {from}..{to}");
    }
    fs::write(&path, &good).expect("written");
    let (journal, opened, _) = open(dir.path(), 0).expect("opens");
    assert!(opened.closed_cleanly);
    put(&journal, "more").expect("durable");
    drop(journal);
    let (opened, commits) = read(dir.path(), 0).expect("reads");
    assert!(!opened.closed_cleanly && commits.len() == 21, "the mark is gone before an append");
}

#[test]
fn cut_at_any_byte_it_opens_with_everything_before_the_cut() {
    let dir = temp_dir();
    let groups = ten_groups();
    build(dir.path(), &groups, 5);
    let all: Vec<Bytes> = groups.concat();
    let path = dir.path().join(file_name(1));
    let good = fs::read(&path).expect("reads");
    for length in 0..good.len() {
        fs::write(&path, &good[..length]).expect("written");
        if length < 64 {
            assert!(matches!(read(dir.path(), 0), Err(JournalError::Damaged { .. })), "{length}");
            continue;
        }
        let mut end = FRAMES_AT;
        let whole = all.iter().take_while(|payload| {
            end += frame_bytes(payload.len());
            end <= length as u64
        });
        let want: Commits = (1..).map(CommitNo).zip(whole.cloned()).collect();
        let (opened, commits) = read(dir.path(), 0).expect("reads");
        assert!(commits == want, "cut at {length}");
        assert!(opened.dropped.is_some(), "cut at {length} must be told");
        // Appending after it is right too; every byte would take too long.
        if length % 61 == 0 {
            let (journal, ..) = open(dir.path(), 0).expect("opens");
            put(&journal, "more").expect("durable");
            drop(journal);
            let (opened, commits) = read(dir.path(), 0).expect("reads");
            assert_eq!((commits.len(), opened.dropped), (want.len() + 1, None));
            for entry in fs::read_dir(dir.path()).expect("lists") {
                fs::remove_file(entry.expect("an entry").path()).expect("removed");
            }
        }
    }
}

#[test]
fn a_flip_in_the_last_group_drops_its_end_and_one_before_refuses() {
    let dir = temp_dir();
    let groups = ten_groups();
    let places = build(dir.path(), &groups, 5);
    let all: Commits = (1..).map(CommitNo).zip(groups.concat()).collect();
    let last_group = places[9];
    let before_last = all.len() - groups[9].len();
    let path = dir.path().join(file_name(1));
    let good = fs::read(&path).expect("reads");
    let mut seen = BTreeSet::new();
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 1 << (at % 8);
        fs::write(&path, &bad).expect("written");
        let at = at as u64;
        match read(dir.path(), 0) {
            Err(error) => {
                assert!(at < last_group.0, "a flip at {at} is in the tail: {error}");
                seen.insert("refused");
            }
            Ok((opened, commits)) => {
                assert!(commits == all[..commits.len()], "wrong data after a flip at {at}");
                assert!(commits.len() >= before_last, "a flip at {at} lost a group");
                if commits.len() < all.len() {
                    assert!(opened.dropped.is_some(), "a flip at {at} was not told");
                    assert!((last_group.0..last_group.1).contains(&at), "flip at {at}");
                    seen.insert("dropped");
                } else {
                    seen.insert("harmless");
                }
            }
        }
    }
    assert_eq!(seen, BTreeSet::from(["refused", "dropped", "harmless"]));
}

#[test]
fn a_torn_group_is_a_tail_in_whatever_order_its_sectors_were_written() {
    let dir = temp_dir();
    // The last group spans eight sectors of 64 bytes (smaller than real ones: more cases).
    let mut groups = ten_groups();
    groups[9] = (0..4).map(|i| Bytes::from(vec![i + 1; 80])).collect();
    let before: usize = groups[..9].iter().map(Vec::len).sum();
    let places = build(dir.path(), &groups, 5);
    let all: Commits = (1..).map(CommitNo).zip(groups.concat()).collect();
    let path = dir.path().join(file_name(1));
    let good = fs::read(&path).expect("reads");
    let (from, to) = places[9];
    let sectors = (to - from).div_ceil(64);
    for missing in 1u64..1 << sectors {
        let mut torn = good.clone();
        for sector in (0..sectors).filter(|sector| missing & (1 << sector) != 0) {
            let at = from + sector * 64;
            torn[at as usize..(at + 64).min(to) as usize].fill(0);
        }
        fs::write(&path, &torn).expect("written");
        let (_, commits) = read(dir.path(), 0).expect("a torn tail opens");
        assert!(commits.len() >= before && commits == all[..commits.len()], "{missing:b}");
        if missing % 16 == 1 {
            // The next group is smaller than the torn one: nothing of that may show behind it.
            let (journal, ..) = open(dir.path(), 0).expect("opens");
            put(&journal, "").expect("durable");
            drop(journal);
            let (opened, again) = read(dir.path(), 0).expect("reads");
            assert_eq!((again.len(), opened.dropped), (commits.len() + 1, None), "{missing:b}");
        }
    }
}

#[test]
fn damage_in_an_earlier_group_refuses_and_names_the_place() {
    let dir = temp_dir();
    let groups = ten_groups();
    let places = build(dir.path(), &groups, 5);
    let path = dir.path().join(file_name(1));
    let good = fs::read(&path).expect("reads");
    let mut commit = 1;
    for (group, (from, to)) in groups.iter().zip(&places).take(9) {
        let mut bad = good.clone();
        bad[*from as usize..*to as usize].fill(0);
        fs::write(&path, bad).expect("written");
        match read(dir.path(), 0) {
            Err(JournalError::Damaged { file, offset, commit: named, .. }) => {
                assert_eq!((file, offset, named), (path.clone(), *from, Some(CommitNo(commit))));
            }
            other => panic!("group at {from}: {other:?}"),
        }
        commit += group.len() as u64;
    }
}

#[test]
fn damage_at_the_end_of_a_full_file_refuses_when_a_later_file_goes_on() {
    let dir = temp_dir();
    let (journal, ..) = open(dir.path(), 0).expect("opens");
    for number in 1..=200 {
        put(&journal, payload(number)).expect("durable");
    }
    drop(journal);
    let path = dir.path().join(file_name(1));
    let good = fs::read(&path).expect("reads");
    let mut harmless = 0;
    for at in (FRAMES_AT as usize)..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 0x10;
        fs::write(&path, &bad).expect("written");
        if let Ok((_, commits)) = read(dir.path(), 0) {
            assert!(commits == numbered(1..=200), "a flip at {at} lost something");
            harmless += 1;
        }
    }
    assert!(harmless < 1000, "only padding and what stands after the end: {harmless}");
    fs::write(&path, &good[..good.len() / 2 + 2048]).expect("written");
    assert!(matches!(read(dir.path(), 0), Err(JournalError::Damaged { .. })));
}

#[test]
fn only_the_end_of_everything_can_be_torn() {
    let dir = temp_dir();
    let group = || vec![Bytes::from_static(b"some bytes"); 2];
    let places = build_file(dir.path(), 1, 1, &[group(), group()], 5);
    let path = dir.path().join(file_name(1));
    let good = fs::read(&path).expect("reads");
    // Commits 3 and 4 in the first file; 3 torn, so that only its end and 4 are there.
    let mut torn = good.clone();
    torn[places[1].0 as usize..places[1].0 as usize + 8].fill(0);
    // No frame, and no end either.
    let mut bad = good.clone();
    bad[places[1].1 as usize] = 1;
    for (what, first, next, opens) in [
        ("torn, then an empty file", &torn, vec![], true),
        ("torn, then a file that goes on where it tore", &torn, vec![(3, group())], false),
        ("torn, then a file that goes on after it", &torn, vec![(5, group())], false),
        ("bad bytes, then an empty file", &bad, vec![], true),
        ("bad bytes, then a file that goes on: nothing is missing", &bad, vec![(5, group())], true),
        ("bad bytes, then a file with a gap", &bad, vec![(6, group())], false),
    ] {
        fs::write(&path, first).expect("written");
        let commit = next.first().map_or(1, |(commit, _)| *commit);
        let groups: Vec<Vec<Bytes>> = next.into_iter().map(|(_, group)| group).collect();
        build_file(dir.path(), 2, commit, &groups, 6);
        let read = read(dir.path(), 0);
        assert_eq!(read.is_ok(), opens, "{what}: {read:?}");
    }
    // Two ends that could both be torn: one of them was durable.
    fs::write(&path, &bad).expect("written");
    build_file(dir.path(), 2, 5, &[], 6);
    let next = dir.path().join(file_name(2));
    let mut bytes = fs::read(&next).expect("reads");
    bytes[FRAMES_AT as usize] = 1;
    fs::write(&next, bytes).expect("written");
    assert!(matches!(read(dir.path(), 0), Err(JournalError::Damaged { .. })));
}

#[test]
fn the_newest_file_with_a_commit_stays_whatever_the_checkpoint_says() {
    let dir = temp_dir();
    let disk = Disk::default();
    let (journal, ..) = open_with(disk.clone(), dir.path(), options(), 0).expect("opens");
    wait_for_ready_file(&journal);
    disk.faults.no_new_files.store(true, Ordering::SeqCst);
    let half = (FILE_BYTES - FRAMES_AT) / 2 - 200;
    for _ in 0..2 {
        put(&journal, vec![1; half as usize]).expect("durable");
    }
    // Goes to the next file, and fails there: that file is begun, but empty.
    disk.faults.full_once.store(true, Ordering::SeqCst);
    disk.faults.writes_until_full.store(0, Ordering::SeqCst);
    let full = send(&journal, vec![1; half as usize], Class::Shrink).recv().expect("an answer");
    assert!(matches!(full, Err(JournalError::Full { .. })), "{full:?}");
    assert_eq!(journal.stats().files_begun, 1);
    journal.checkpointed(CommitNo(2));
    disk.faults.no_new_files.store(false, Ordering::SeqCst);
    // By the time a further file is made, a retired one would be gone.
    journal.checkpointed(CommitNo(2));
    wait_for_ready_file(&journal);
    drop(journal);
    let (journal, opened, _) = open(dir.path(), 2).expect("opens");
    assert_eq!(opened.last, CommitNo(2), "the number goes on");
    assert_eq!(put(&journal, "more").expect("durable"), CommitNo(3));
}

#[test]
fn the_reserve_is_kept_while_nobody_knows_whether_there_is_room() {
    let dir = temp_dir();
    let disk = Disk::default();
    let (journal, ..) = open_with(disk.clone(), dir.path(), options(), 0).expect("opens");
    wait_for_ready_file(&journal);
    let asking = disk.faults.asking.lock().expect("ours");
    let answers: Vec<_> = (0..100).map(|_| send(&journal, vec![1; 100], Class::Grow)).collect();
    while journal.stats().file_waits == 0 {
        thread::yield_now();
    }
    assert!(journal.space_left().bytes_preallocated_left >= options().reserve_bytes());
    disk.faults.no_new_files.store(true, Ordering::SeqCst);
    drop(asking);
    let durable = answers.iter().filter(|answer| answer.recv().expect("an answer").is_ok()).count();
    assert_eq!(durable as u64, journal.last().0);
    assert!(
        durable < 100 && journal.space_left().bytes_preallocated_left >= options().reserve_bytes()
    );
}

#[test]
fn frames_of_an_earlier_life_are_never_read() {
    let dir = temp_dir();
    let old = ten_groups();
    build(dir.path(), &old, 5);
    let path = dir.path().join(file_name(1));
    let earlier = fs::read(&path).expect("reads");
    for groups in 0..10 {
        // The same file in its next life: other salt, fewer groups, then the end, then the rest.
        let places = build(dir.path(), &old[..groups], 6);
        let end = places.last().map_or(FRAMES_AT, |place| place.1) as usize;
        let mut bytes = fs::read(&path).expect("reads");
        bytes[end + HEAD_BYTES..].copy_from_slice(&earlier[end + HEAD_BYTES..]);
        fs::write(&path, &bytes).expect("written");
        let (opened, commits) = read(dir.path(), 0).expect("reads");
        assert_eq!((commits.len(), opened.dropped), (old[..groups].concat().len(), None));
    }
}

#[test]
fn callers_who_wait_share_an_fsync_and_are_answered_in_order() {
    let dir = tempfile::tempdir().expect("a directory on a real disk");
    let order = Arc::new(AtomicU64::new(0));
    let seen = Arc::clone(&order);
    let (journal, _) = Journal::open(
        dir.path(),
        JournalOptions { file_bytes: 1 << 20, ..JournalOptions::new(STORE) },
        CommitNo(0),
        &mut |_, _| Ok(()),
        move |outcome, answer: mpsc::Sender<CommitNo>| {
            let commit = outcome.expect("durable");
            assert_eq!(seen.fetch_add(1, Ordering::SeqCst) + 1, commit.0, "in commit order");
            answer.send(commit).expect("someone waits");
        },
    )
    .expect("opens");
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..50 {
                    let (item, answer) = mpsc::channel();
                    let bytes = Bytes::from_static(b"something");
                    journal
                        .append(JournalEntry { bytes, class: Class::Grow, item })
                        .expect("accepted");
                    answer.recv().expect("durable");
                }
            });
        }
    });
    let stats = journal.stats();
    assert_eq!((stats.commits, order.load(Ordering::SeqCst)), (400, 400));
    assert!(stats.groups < 300, "eight callers share: {stats:?}");
    assert!(stats.group_commits_max > 1);
    assert_eq!(stats.fsync_micros_buckets.iter().sum::<u64>(), stats.groups);
    drop(journal);
    assert_eq!(read(dir.path(), 0).expect("reads").1.len(), 400);
}

#[test]
fn a_failed_fsync_breaks_the_journal_for_good() {
    let dir = temp_dir();
    let disk = Disk::default();
    let (journal, ..) = open_with(disk.clone(), dir.path(), options(), 0).expect("opens");
    wait_for_ready_file(&journal);
    put(&journal, "one").expect("durable");
    disk.faults.syncs_until_failure.store(0, Ordering::SeqCst);
    assert!(matches!(put(&journal, "two"), Err(JournalError::Broken { .. })));
    assert!(matches!(put(&journal, "three"), Err(JournalError::Broken { .. })), "no retry");
    assert_eq!(journal.last(), CommitNo(1));
    assert!(matches!(journal.close(), Err(JournalError::Broken { .. })));
    drop(journal);
    // What was not acknowledged may be there or not; what was, is.
    let (opened, commits) = read(dir.path(), 0).expect("reads");
    assert!(commits.len() <= 2 && commits[0].1 == "one" && !opened.closed_cleanly);
}

#[test]
fn what_opening_read_is_durable_before_it_counts() {
    let dir = temp_dir();
    let (journal, ..) = open(dir.path(), 0).expect("opens");
    put(&journal, "one").expect("durable");
    drop(journal);
    let disk = Disk::default();
    disk.faults.syncs_until_failure.store(0, Ordering::SeqCst);
    let refused = open_with(disk.clone(), dir.path(), options(), 0);
    assert!(matches!(refused, Err(JournalError::Io { .. })), "not synced: {refused:?}");
    // Two writes: the last group once more, and the end behind it.
    for write in [0, 1] {
        disk.faults.writes_until_full.store(write, Ordering::SeqCst);
        let refused = open_with(disk.clone(), dir.path(), options(), 0);
        assert!(matches!(refused, Err(JournalError::Io { .. })), "write {write}: {refused:?}");
    }
    disk.faults.writes_until_full.store(-1, Ordering::SeqCst);
    assert_eq!(open_with(disk, dir.path(), options(), 0).expect("opens").2.len(), 1);
}

#[test]
fn a_write_without_room_leaves_nothing_behind_and_the_next_one_goes_on() {
    for half in [0, 1, 39, 40, 41, 100, 200, 10_000] {
        let dir = temp_dir();
        let disk = Disk::default();
        let (journal, ..) = open_with(disk.clone(), dir.path(), options(), 0).expect("opens");
        wait_for_ready_file(&journal);
        put(&journal, "one").expect("durable");
        disk.faults.bytes_before_full.store(half, Ordering::SeqCst);
        disk.faults.full_once.store(true, Ordering::SeqCst);
        disk.faults.writes_until_full.store(0, Ordering::SeqCst);
        let full = put(&journal, vec![7; 150]);
        assert!(matches!(full, Err(JournalError::Full { .. })), "{full:?}");
        let (opened, commits) = read(dir.path(), 0).expect("reads");
        assert_eq!((commits.len(), opened.dropped), (1, None), "after {half} bytes");
        assert_eq!(put(&journal, "two").expect("durable"), CommitNo(2));
        drop(journal);
        let (_, commits) = read(dir.path(), 0).expect("reads");
        assert_eq!(commits[1].1, "two");
    }
}

#[test]
fn a_half_written_group_that_cannot_be_erased_breaks_the_journal() {
    let dir = temp_dir();
    let disk = Disk::default();
    let (journal, ..) = open_with(disk.clone(), dir.path(), options(), 0).expect("opens");
    wait_for_ready_file(&journal);
    disk.faults.bytes_before_full.store(100, Ordering::SeqCst);
    disk.faults.writes_until_full.store(0, Ordering::SeqCst);
    assert!(matches!(put(&journal, "one"), Err(JournalError::Broken { .. })));
}

#[test]
fn on_a_full_disk_growth_is_refused_and_the_reserve_is_left_to_the_rest() {
    let dir = temp_dir();
    let disk = Disk::default();
    let (journal, ..) = open_with(disk.clone(), dir.path(), options(), 0).expect("opens");
    wait_for_ready_file(&journal);
    assert!(!journal.space_left().preallocation_failed);
    // The files that exist can be written; no further one can be made.
    disk.faults.no_new_files.store(true, Ordering::SeqCst);
    let mut grown = 0;
    while put(&journal, vec![1; 100]).is_ok() {
        grown += 1;
    }
    let room = journal.space_left();
    assert!(room.preallocation_failed, "{room:?}");
    assert!(room.bytes_preallocated_left >= options().reserve_bytes(), "{room:?}");
    let mut shrunk = 0;
    while send(&journal, "settled", Class::Shrink).recv().expect("an answer").is_ok() {
        shrunk += 1;
    }
    assert!(shrunk * frame_bytes(7) >= options().reserve_bytes(), "{shrunk} after {grown}");

    disk.faults.no_new_files.store(false, Ordering::SeqCst);
    // Each refusal starts another try, so there is no need to know when there is room again.
    while put(&journal, "more").is_err() {
        thread::yield_now();
    }
    let last = journal.last();
    assert_eq!(last, CommitNo(grown + shrunk + 1));
    drop(journal);
    assert_eq!(read(dir.path(), 0).expect("reads").0.last, last);
}

/// A file system of its own, gone when dropped.
struct Mounted(TempDir);

impl Mounted {
    /// `None` where mounting is not allowed: that takes root.
    fn tmpfs(bytes: u64) -> Option<Self> {
        let dir = temp_dir();
        let size = format!("size={bytes}");
        let mount = std::process::Command::new("mount")
            .args(["-t", "tmpfs", "-o", &size, "tmpfs"])
            .arg(dir.path())
            .output();
        mount.is_ok_and(|done| done.status.success()).then_some(Self(dir))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        drop(std::process::Command::new("umount").arg(self.0.path()).output());
    }
}

#[test]
fn a_file_system_that_is_really_full_refuses_growth_until_a_checkpoint_makes_room() {
    let Some(mounted) = Mounted::tmpfs(12 * FILE_BYTES) else {
        println!("skipped: mounting a tmpfs takes root");
        return;
    };
    let dir = mounted.0.path().join("journal");
    let (journal, ..) = open(&dir, 0).expect("opens");
    let mut grown = 0;
    while put(&journal, vec![1; 100]).is_ok() {
        grown += 1;
    }
    assert!(journal.space_left().preallocation_failed);
    assert!(grown > 200, "most of the room was used: {grown}");
    send(&journal, "settled", Class::Shrink).recv().expect("an answer").expect("durable");
    drop(journal);
    let (journal, opened, commits) = open(&dir, 0).expect("opens on a full disk");
    assert_eq!((opened.last, commits.len() as u64), (CommitNo(grown + 1), grown + 1));
    send(&journal, "settled", Class::Shrink).recv().expect("an answer").expect("durable");
    journal.checkpointed(CommitNo(grown));
    while put(&journal, vec![1; 100]).is_err() {
        thread::yield_now();
    }
    journal.close().expect("closes");
}

#[test]
fn a_full_queue_is_busy_and_an_oversized_commit_is_too_large() {
    let dir = temp_dir();
    let (hold, held) = mpsc::channel::<()>();
    let options = JournalOptions { queue_commits_max: 2, ..options() };
    let bytes_max = options.commit_bytes_max();
    let (journal, _) =
        Journal::open(dir.path(), options, CommitNo(0), &mut |_, _| Ok(()), move |_, ()| {
            held.recv().unwrap_or_default()
        })
        .expect("opens");
    let entry = |length: u64| JournalEntry {
        bytes: Bytes::from(vec![1; usize::try_from(length).expect("small")]),
        class: Class::Grow,
        item: (),
    };
    let refused = journal.append(entry(bytes_max + 1)).expect_err("too large");
    assert!(matches!(refused, JournalError::TooLarge { .. }));
    journal.append(entry(bytes_max)).expect("just fits");
    // The hand-over waits for us, so the stages fill up, with groups of one or two: one being
    // handed over, one waiting for that, one being written; and then the queue.
    let mut accepted = 1;
    loop {
        match journal.try_append(entry(1)) {
            Ok(()) => accepted += 1,
            Err(refused) => {
                assert!(matches!(refused, JournalError::Busy));
                if accepted >= 5 {
                    break;
                }
                thread::yield_now();
            }
        }
        assert!(accepted <= 9, "bounded");
    }
    drop(hold);
    journal.close().expect("closes");
    assert!(journal.stats().commits >= 5);
}

#[test]
fn a_panic_in_the_store_breaks_the_journal_instead_of_hanging_it() {
    let dir = temp_dir();
    let (journal, _) =
        Journal::open(dir.path(), options(), CommitNo(0), &mut |_, _| Ok(()), |_, (): ()| {
            panic!("for the test")
        })
        .expect("opens");
    let entry = || JournalEntry { bytes: Bytes::new(), class: Class::Grow, item: () };
    while journal.append(entry()).is_ok() {}
    assert!(matches!(journal.append(entry()).expect_err("broken"), JournalError::Broken { .. }));
    assert!(journal.close().is_err());
}

#[tokio::test]
async fn async_callers_wait_for_room_without_blocking() {
    let dir = temp_dir();
    let options = JournalOptions { queue_commits_max: 1, ..options() };
    let (journal, _) = Journal::open(
        dir.path(),
        options,
        CommitNo(0),
        &mut |_, _| Ok(()),
        |outcome, answer: tokio::sync::oneshot::Sender<CommitNo>| {
            answer.send(outcome.expect("durable")).expect("someone waits");
        },
    )
    .expect("opens");
    let mut answers = Vec::new();
    for number in 1..=200 {
        let (item, answer) = tokio::sync::oneshot::channel();
        let entry = JournalEntry { bytes: payload(number), class: Class::Grow, item };
        journal.append_async(entry).await.expect("accepted");
        answers.push(answer);
    }
    for (number, answer) in (1..).zip(answers) {
        assert_eq!(answer.await.expect("durable"), CommitNo(number));
    }
}

/// Until the next file is made, so that no background work meets an injected fault.
fn wait_for_ready_file(journal: &TestJournal) {
    while journal.space_left().bytes_preallocated_left < FILE_BYTES {
        thread::yield_now();
    }
}

/// What happens to a journal between two openings.
#[derive(Debug, Clone)]
enum Harm {
    Nothing,
    CloseCleanly,
    /// Cut the newest file with frames to this share of its frames.
    Cut(f64),
    /// Flip a bit at this share of its frames.
    Flip(f64, u8),
}

fn harm() -> impl Strategy<Value = Harm> {
    prop_oneof![
        2 => Just(Harm::Nothing),
        2 => Just(Harm::CloseCleanly),
        1 => (0.0..1.0).prop_map(Harm::Cut),
        3 => ((0.9..1.0), 0u8..8).prop_map(|(share, bit)| Harm::Flip(share, bit)),
        1 => ((0.0..1.0), 0u8..8).prop_map(|(share, bit)| Harm::Flip(share, bit)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    /// Whatever happens to the newest file, the journal is a prefix of the model, loses no more
    /// than can be told, and goes on from there; or it refuses.
    #[test]
    fn a_journal_is_always_a_prefix_of_what_was_written(
        rounds in prop::collection::vec(
            (prop::collection::vec(prop::collection::vec(0usize..300, 1..6), 0..12), harm(), 0u64..20),
            1..5,
        ),
    ) {
        let dir = temp_dir();
        let mut model: Vec<Bytes> = Vec::new();
        let mut checkpoint = 0u64;
        for (groups, harm, behind) in rounds {
            let (journal, _, commits) = open(dir.path(), checkpoint).expect("opens");
            let tail: Vec<Bytes> = commits.into_iter().map(|(_, bytes)| bytes).collect();
            prop_assert_eq!(&tail[..], &model[checkpoint as usize..]);
            for group in groups {
                let answers: Vec<_> = group
                    .iter()
                    .map(|&length| {
                        let fill = (model.len() % 255) as u8;
                        model.push(Bytes::from(vec![fill; length]));
                        send(&journal, model.last().expect("pushed").clone(), Class::Grow)
                    })
                    .collect();
                for answer in answers {
                    answer.recv().expect("an answer").expect("durable");
                }
            }
            checkpoint = checkpoint.max((model.len() as u64).saturating_sub(behind));
            journal.checkpointed(CommitNo(checkpoint));
            if matches!(harm, Harm::CloseCleanly) {
                journal.close().expect("closes");
            }
            drop(journal);
            let (path, end) = newest(dir.path(), checkpoint);
            let mut bytes = fs::read(&path).expect("reads");
            let place = |share: f64| FRAMES_AT + ((end - FRAMES_AT) as f64 * share) as u64;
            match harm {
                Harm::Nothing | Harm::CloseCleanly => {}
                Harm::Cut(share) => bytes.truncate(place(share) as usize),
                Harm::Flip(share, bit) => bytes[place(share) as usize] ^= 1 << bit,
            }
            fs::write(&path, bytes).expect("written");
            match read(dir.path(), checkpoint) {
                Ok((opened, commits)) => {
                    let last = opened.last.0 as usize;
                    prop_assert!(last as u64 >= checkpoint);
                    prop_assert!(last == model.len() || opened.dropped.is_some());
                    model.truncate(last);
                    let tail: Vec<Bytes> = commits.into_iter().map(|(_, bytes)| bytes).collect();
                    prop_assert_eq!(&tail[..], &model[checkpoint as usize..]);
                }
                Err(_) => {
                    prop_assert!(matches!(harm, Harm::Cut(_) | Harm::Flip(..)), "{:?}", harm);
                    return Ok(());
                }
            }
        }
    }
}

/// The newest file with a commit, and where its frames end.
fn newest(dir: &Path, after: u64) -> (PathBuf, u64) {
    let scan = scan::scan(&Disk::default(), dir, STORE, CommitNo(after), &mut |_, _| Ok(()));
    let scan = scan.expect("reads").expect("is there");
    let file = &scan.files[scan.active];
    (file.path.clone(), file.end)
}
