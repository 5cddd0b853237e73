//! Full disks: growth is refused, the reserve is left to other commits, and nothing is lost.

use super::*;

#[test]
fn the_newest_file_with_a_commit_is_never_removed() {
    let dir = temp_dir();
    let disk = Disk::default();
    let (journal, ..) = open_with(disk.clone(), dir.path(), options(), 0).expect("opens");
    wait_for_ready_file(&journal);
    disk.faults.no_new_files.store(true, Ordering::SeqCst);
    let half = (FILE_BYTES - FRAMES_AT) / 2 - 200;
    for _ in 0..2 {
        put(&journal, vec![1; half as usize]).expect("durable");
    }
    // The next write goes to the next file and fails: that file is begun, but empty.
    disk.faults.full_once.store(true, Ordering::SeqCst);
    disk.faults.writes_until_full.store(0, Ordering::SeqCst);
    let full = send(&journal, vec![1; half as usize], Class::Shrink).recv().expect("an answer");
    assert!(matches!(full, Err(JournalError::Full { .. })), "{full:?}");
    assert_eq!(journal.stats().files_begun, 1);
    journal.checkpointed(CommitNo(2));
    disk.faults.no_new_files.store(false, Ordering::SeqCst);
    // A retired file would be gone by the time a further file is created.
    journal.checkpointed(CommitNo(2));
    wait_for_ready_file(&journal);
    drop(journal);
    let (journal, opened, _) = open(dir.path(), 2).expect("opens");
    assert_eq!(opened.last, CommitNo(2), "numbers continue");
    assert_eq!(put(&journal, "more").expect("durable"), CommitNo(3));
}

#[test]
fn the_reserve_is_not_used_before_the_free_space_is_known() {
    let dir = temp_dir();
    let disk = Disk::default();
    let (journal, ..) = open_with(disk.clone(), dir.path(), options(), 0).expect("opens");
    wait_for_ready_file(&journal);
    let asking = disk.faults.asking.lock().expect("no other test has it");
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
fn a_write_on_a_full_disk_leaves_no_frame_and_the_next_write_succeeds() {
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
fn on_a_full_disk_growth_is_refused_and_the_reserve_serves_other_commits() {
    let dir = temp_dir();
    let disk = Disk::default();
    let (journal, ..) = open_with(disk.clone(), dir.path(), options(), 0).expect("opens");
    wait_for_ready_file(&journal);
    assert!(!journal.space_left().preallocation_failed);
    // Existing files can be written, but no further one can be created.
    disk.faults.no_new_files.store(true, Ordering::SeqCst);
    let mut grown = 0;
    while put(&journal, vec![1; 100]).is_ok() {
        grown += 1;
    }
    let space = journal.space_left();
    assert!(space.preallocation_failed, "{space:?}");
    assert!(space.bytes_preallocated_left >= options().reserve_bytes(), "{space:?}");
    let mut shrunk = 0;
    while send(&journal, "settled", Class::Shrink).recv().expect("an answer").is_ok() {
        shrunk += 1;
    }
    assert!(shrunk * frame_bytes(7) >= options().reserve_bytes(), "{shrunk} after {grown}");

    disk.faults.no_new_files.store(false, Ordering::SeqCst);
    // Each refusal starts another attempt to create a file.
    while put(&journal, "more").is_err() {
        thread::yield_now();
    }
    let last = journal.last();
    assert_eq!(last, CommitNo(grown + shrunk + 1));
    drop(journal);
    assert_eq!(read(dir.path(), 0).expect("reads").0.last, last);
}

/// A file system in memory, unmounted when dropped.
struct MountedTmpfs(TempDir);

impl MountedTmpfs {
    /// Mounting needs root, which `./test` runs as.
    fn mount(bytes: u64) -> Self {
        let dir = temp_dir();
        let size = format!("size={bytes}");
        let mount = std::process::Command::new("mount")
            .args(["-t", "tmpfs", "-o", &size, "tmpfs"])
            .arg(dir.path())
            .output()
            .expect("the program `mount` is installed");
        let stderr = String::from_utf8_lossy(&mount.stderr);
        assert!(mount.status.success(), "cannot mount a tmpfs; run the tests as root: {stderr}");
        Self(dir)
    }
}

impl Drop for MountedTmpfs {
    fn drop(&mut self) {
        drop(std::process::Command::new("umount").arg(self.0.path()).output());
    }
}

#[test]
fn a_full_file_system_refuses_growth_until_a_checkpoint_frees_space() {
    let mounted = MountedTmpfs::mount(12 * FILE_BYTES);
    let dir = mounted.0.path().join("journal");
    let (journal, ..) = open(&dir, 0).expect("opens");
    let mut grown = 0;
    while put(&journal, vec![1; 100]).is_ok() {
        grown += 1;
    }
    assert!(journal.space_left().preallocation_failed);
    assert!(grown > 200, "most of the space was used: {grown}");
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
