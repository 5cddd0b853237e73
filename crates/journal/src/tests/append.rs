//! Appending: groups, completion, the queue, failed syncs and panics.

use std::sync::atomic::AtomicU64;

use super::*;

#[test]
fn concurrent_callers_share_an_fsync_and_complete_in_order() {
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
            answer.send(commit).expect("the test waits");
        },
    )
    .expect("opens");
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..50 {
                    let (item, answer) = mpsc::channel();
                    let bytes = Bytes::from_static(b"something");
                    append_blocking(&journal, JournalEntry { bytes, class: Class::Grow, item })
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
    // The commit that was not acknowledged may be there or not.
    let (opened, commits) = read(dir.path(), 0).expect("reads");
    assert!(commits.len() <= 2 && commits[0].1 == "one" && !opened.closed_cleanly);
}

#[test]
fn opening_syncs_what_it_read_before_it_returns() {
    let dir = temp_dir();
    let (journal, ..) = open(dir.path(), 0).expect("opens");
    put(&journal, "one").expect("durable");
    drop(journal);
    let disk = Disk::default();
    disk.faults.syncs_until_failure.store(0, Ordering::SeqCst);
    let refused = open_with(disk.clone(), dir.path(), options(), 0);
    assert!(matches!(refused, Err(JournalError::Io { .. })), "not synced: {refused:?}");
    // Opening writes twice: the last group again, and the end marker.
    for write in [0, 1] {
        disk.faults.writes_until_full.store(write, Ordering::SeqCst);
        let refused = open_with(disk.clone(), dir.path(), options(), 0);
        assert!(matches!(refused, Err(JournalError::Io { .. })), "write {write}: {refused:?}");
    }
    disk.faults.writes_until_full.store(-1, Ordering::SeqCst);
    assert_eq!(open_with(disk, dir.path(), options(), 0).expect("opens").2.len(), 1);
}

#[test]
fn a_full_queue_returns_busy_and_an_oversized_commit_is_refused() {
    let dir = temp_dir();
    let (hold, held) = mpsc::channel::<()>();
    // The largest commit is too large for the writer to complete it itself, which would leave
    // nothing to the other thread and only three commits accepted.
    let options = JournalOptions { queue_commits_max: 2, file_bytes: 256 << 10, ..options() };
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
    let refused = append_blocking(&journal, entry(bytes_max + 1)).expect_err("too large");
    assert!(matches!(refused, JournalError::TooLarge { .. }));
    append_blocking(&journal, entry(bytes_max)).expect("just fits");
    // `on_durable` waits for this test, so everything fills up with groups of one or two: one is
    // being completed, one waits for that, one is being written, and the rest is in the queue.
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
fn a_panic_in_on_durable_breaks_the_journal_and_no_caller_hangs() {
    let dir = temp_dir();
    let (journal, _) =
        Journal::open(dir.path(), options(), CommitNo(0), &mut |_, _| Ok(()), |_, (): ()| {
            panic!("for the test")
        })
        .expect("opens");
    let entry = || JournalEntry { bytes: Bytes::new(), class: Class::Grow, item: () };
    while append_blocking(&journal, entry()).is_ok() {}
    assert!(matches!(
        append_blocking(&journal, entry()).expect_err("broken"),
        JournalError::Broken { .. }
    ));
    assert!(journal.close().is_err());
}

#[tokio::test]
async fn callers_wait_for_queue_capacity_without_blocking() {
    let dir = temp_dir();
    let options = JournalOptions { queue_commits_max: 1, ..options() };
    let (journal, _) = Journal::open(
        dir.path(),
        options,
        CommitNo(0),
        &mut |_, _| Ok(()),
        |outcome, answer: tokio::sync::oneshot::Sender<CommitNo>| {
            answer.send(outcome.expect("durable")).expect("the test waits");
        },
    )
    .expect("opens");
    let mut answers = Vec::new();
    for number in 1..=200 {
        let (item, answer) = tokio::sync::oneshot::channel();
        let entry = JournalEntry { bytes: payload(number), class: Class::Grow, item };
        assert!(journal.append(entry, Duration::ZERO).await.expect("accepted").is_none());
        answers.push(answer);
    }
    for (number, answer) in (1..).zip(answers) {
        assert_eq!(answer.await.expect("durable"), CommitNo(number));
    }
}

/// Appends an entry for a caller that may be blocked, and writes it if the caller has the turn.
/// Returns whether it had.
fn append_here(journal: &TestJournal, bytes: Bytes) -> (bool, mpsc::Receiver<AppendResult>) {
    let (item, answer) = mpsc::channel();
    let entry = JournalEntry { bytes, class: Class::Grow, item };
    let append = pin!(journal.append(entry, Duration::from_secs(1)));
    let Poll::Ready(turn) = append.poll(&mut Context::from_waker(Waker::noop())) else {
        panic!("the queue has capacity");
    };
    let turn = turn.expect("accepted");
    let had_turn = turn.is_some();
    turn.into_iter().for_each(WriterTurn::write);
    (had_turn, answer)
}

/// Lets callers write: no thread has the turn, the next file is ready, and the disk is taken to be
/// quick.
fn become_quick<T: Send + 'static>(journal: &Journal<T>, slow_group: Duration) {
    let is_ready = || matches!(journal.file_pool.next(), NextFile::Ready);
    while journal.shared.state().writing || !is_ready() {
        thread::yield_now();
    }
    journal.shared.set_slow_group(slow_group);
}

/// With files in which everything of these tests has space.
fn open_large(dir: &Path) -> (TestJournal, Opened, Commits) {
    let options = JournalOptions { file_bytes: 1 << 20, ..options() };
    open_with(Disk::default(), dir, options, 0).expect("opens")
}

const QUICK: Duration = Duration::from_micros(100);

#[test]
fn a_caller_that_may_be_blocked_writes_its_entry_while_nothing_else_waits() {
    let dir = temp_dir();
    let (journal, ..) = open_large(dir.path());
    assert!(!append_here(&journal, payload(1)).0, "the disk is not known yet");
    put(&journal, payload(2)).expect("durable");
    become_quick(&journal, QUICK);
    for number in 3..30 {
        let (had_turn, answer) = append_here(&journal, payload(number));
        assert!(had_turn, "{number}");
        let commit = answer.try_recv().expect("completed when the call returns");
        assert_eq!(commit.expect("durable"), CommitNo(number));
        become_quick(&journal, QUICK);
    }
    drop(journal);
    assert_eq!(read(dir.path(), 0).expect("reads").1, numbered(1..30));
}

#[test]
fn entries_that_arrive_during_a_callers_turn_are_written_after_it_by_the_thread() {
    let dir = temp_dir();
    let (journal, ..) = open(dir.path(), 0).expect("opens");
    for dropped in [false, true] {
        become_quick(&journal, QUICK);
        let first = journal.last().0 + 1;
        let (item, answer) = mpsc::channel();
        let entry = JournalEntry { bytes: payload(first), class: Class::Grow, item };
        let append = pin!(journal.append(entry, Duration::from_secs(1)));
        let turn = append.poll(&mut Context::from_waker(Waker::noop()));
        let Poll::Ready(Ok(Some(turn))) = turn else { panic!("{turn:?}") };
        let (had_turn, second) = append_here(&journal, payload(first + 1));
        assert!(!had_turn, "another caller has the turn");
        let third = send(&journal, payload(first + 2), Class::Grow);
        assert!(second.try_recv().is_err() && third.try_recv().is_err());
        if dropped {
            drop(turn)
        } else {
            turn.write()
        }
        for (answer, number) in [answer, second, third].into_iter().zip(first..) {
            let commit = answer.recv().expect("an answer").expect("durable");
            assert_eq!(commit, CommitNo(number));
        }
    }
    journal.close().expect("closes");
    assert_eq!(read(dir.path(), 0).expect("reads").1, numbered(1..7));
}

#[test]
fn a_caller_does_not_write_if_the_disk_is_slow_or_the_entry_is_large() {
    let dir = temp_dir();
    let (journal, ..) = open_large(dir.path());
    for (slow_group, spare, bytes, writes) in [
        (100, 1_000, 10, true),
        (100, 200, 10, true),
        (100, 199, 10, false),
        (100, 0, 10, false),
        (2_000, 1_000_000, 10, true),
        (2_001, 1_000_000, 10, false),
        (100, 1_000_000, 60 * 1024, true),
        (100, 1_000_000, 64 * 1024, false),
    ] {
        become_quick(&journal, Duration::from_micros(slow_group));
        let (item, answer) = mpsc::channel();
        let entry = JournalEntry { bytes: vec![7; bytes].into(), class: Class::Grow, item };
        let append = pin!(journal.append(entry, Duration::from_micros(spare)));
        let turn = append.poll(&mut Context::from_waker(Waker::noop()));
        let Poll::Ready(Ok(turn)) = turn else { panic!("{turn:?}") };
        assert_eq!(turn.is_some(), writes, "{slow_group} {spare} {bytes}");
        drop(turn);
        answer.recv().expect("an answer").expect("durable");
    }
}

#[test]
fn the_time_of_a_slow_group_is_forgotten_after_quick_ones() {
    let dir = temp_dir();
    let (journal, ..) = open(dir.path(), 0).expect("opens");
    let quick = Duration::from_micros(100);
    journal.shared.set_slow_group(Duration::from_millis(50));
    let mut groups = 0;
    while journal.shared.count_time(quick) > Duration::from_micros(500) {
        groups += 1;
    }
    assert_eq!(groups, 34);
    assert_eq!(journal.shared.count_time(Duration::from_millis(9)), Duration::from_millis(9));
}

#[test]
fn a_journal_can_be_closed_after_a_panic_of_the_writers_thread() {
    let dir = temp_dir();
    let (journal, _) =
        Journal::open(dir.path(), options(), CommitNo(0), &mut |_, _| Ok(()), |_, (): ()| {
            panic!("for the test")
        })
        .expect("opens");
    // Nothing else waits, so the writer completes it itself.
    let entry = JournalEntry { bytes: payload(1), class: Class::Grow, item: () };
    append_blocking(&journal, entry).expect("accepted");
    while journal.shared.broken().is_none() {
        thread::yield_now();
    }
    assert!(matches!(journal.close(), Err(JournalError::Broken { .. })));
}

#[test]
fn a_panic_while_a_caller_writes_breaks_the_journal() {
    let dir = temp_dir();
    let (journal, _) =
        Journal::open(dir.path(), options(), CommitNo(0), &mut |_, _| Ok(()), |_, (): ()| {
            panic!("a bug in the store")
        })
        .expect("opens");
    become_quick(&journal, QUICK);
    let entry = || JournalEntry { bytes: payload(1), class: Class::Grow, item: () };
    let waker = Waker::noop();
    let append = pin!(journal.append(entry(), Duration::from_secs(1)));
    let Poll::Ready(Ok(Some(turn))) = append.poll(&mut Context::from_waker(waker)) else {
        panic!("the caller has the turn");
    };
    let written = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| turn.write()));
    assert!(written.is_err());
    let append = pin!(journal.append(entry(), Duration::from_secs(1)));
    let refused = append.poll(&mut Context::from_waker(waker));
    assert!(matches!(refused, Poll::Ready(Err(JournalError::Broken { .. }))), "{refused:?}");
    assert!(matches!(journal.close(), Err(JournalError::Broken { .. })), "and it can be closed");
}
