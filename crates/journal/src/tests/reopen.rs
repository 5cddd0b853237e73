//! Reopening: replay, checkpoints, recycled files, foreign files, and a clean close.

use super::*;

#[test]
fn durable_commits_are_replayed_including_empty_ones() {
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
fn many_files_are_replayed_in_order_from_the_checkpoint_on() {
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
fn a_checkpoint_recycles_files_and_the_chain_continues() {
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
fn the_number_of_spares_follows_the_busiest_of_the_last_checkpoints() {
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
    // Two checkpoints shortly after a busy one: the spares are needed again.
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
    let made = |stats: &JournalStats| stats.files_filled + stats.files_preallocated;
    let begun = stats.files_begun - begun_with.files_begun;
    assert!(begun > 10, "{stats:?}");
    assert!(made(&stats) - made(&begun_with) < begun / 2, "{begun_with:?} {stats:?}");
}

#[test]
fn a_closed_journal_keeps_no_empty_file() {
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
        // The closing mark, the file with the last commit, and the one before it if the last was
        // just begun.
        assert!(names.len() <= 3, "{names:?}");
    }
}

#[test]
fn a_journal_that_does_not_connect_to_the_checkpoint_is_refused() {
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
fn foreign_files_are_refused() {
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
