//! A damaged run is refused, or read correctly: for every byte and every bit.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use punctual_core::{Epoch, PartitionId, Sequence, TaskId, Timestamp};

use super::{Generation, KeysCache, RunCursor, RunFiles, RunNo, RunWriter, SortedRun};
use crate::fault::StorageFault;
use crate::golden::assert_golden;
use crate::key::EntryKey;

const NO: RunNo = RunNo(7);
/// So small that each partition has several blocks.
const BLOCK_BYTES: usize = 160;

fn entry(partition: u16, number: u64) -> (EntryKey, Vec<u8>) {
    let partition = PartitionId::new(partition).expect("a partition");
    let due = Timestamp::from_millis(1_000_000 + number / 2 * 10);
    let epoch = Epoch::new(1).expect("an epoch");
    let sequence = Sequence::new(number).expect("a sequence");
    let id = TaskId::new(due, partition, epoch, sequence);
    // Some entries are not at the time in their id, and some have an empty body.
    let at = if number % 5 == 4 { due.after(std::time::Duration::from_millis(3)) } else { due };
    let body =
        (0..number % 4 * 9).map(|at| u8::try_from(at * 7 + number).expect("small")).collect();
    (EntryKey::new(at, id), body)
}

fn entries() -> Vec<(EntryKey, Vec<u8>)> {
    let mut all: Vec<_> =
        [0, 3].into_iter().flat_map(|p| (0..14).map(move |number| entry(p, number))).collect();
    all.sort();
    all
}

fn write(dir: &Path, entries: &[(EntryKey, Vec<u8>)]) -> RunFiles {
    let files = RunFiles::new(dir.to_owned(), 4);
    let mut writer = RunWriter::new(&files, NO, BLOCK_BYTES).expect("a file");
    for (key, body) in entries {
        writer.push(*key, body).expect("written");
    }
    writer.finish().expect("synced").expect("not empty");
    files
}

/// Reads everything in both ways: in order, and by key.
fn read(dir: &Path, wanted: &[(EntryKey, Vec<u8>)]) -> Result<(), StorageFault> {
    // With a single open file, so that each call sees the file as it is now.
    let files = RunFiles::new(dir.to_owned(), 1);
    let run = Arc::new(SortedRun::open(&files, NO, Generation(1))?);
    let mut in_order = Vec::new();
    for partition in (0..4).filter_map(PartitionId::new) {
        let mut cursor = RunCursor::start(Arc::clone(&run), partition);
        while let Some(entry) = cursor.next(&files)? {
            in_order.push((entry.key, entry.body.to_vec()));
        }
    }
    assert!(in_order == wanted, "read in order, without an error");
    for (ordinal, (key, body)) in (0u32..).zip(wanted) {
        assert!(run.may_have(*key), "{key:?}");
        let block = run.block_of(*key).expect("a block");
        let (mut keys, mut bodies) = (Vec::new(), Vec::new());
        let file = run.open_file(&files)?;
        let keys = file.read_keys(block, &mut keys)?;
        let index = run.index_of(&files, block, &keys, *key)?.expect("found by its key");
        assert_eq!(run.ordinal_at(block, index), ordinal);
        let range = file.read_body(block, &keys, index, &mut bodies)?;
        assert!(bodies[range] == *body, "read by its key, without an error");
    }
    Ok(())
}

fn assert_named(fault: &StorageFault) {
    let text = fault.to_string();
    assert!(
        matches!(fault, StorageFault::Damaged { .. }) && text.contains(".run is damaged"),
        "{text}"
    );
}

#[test]
fn keys_that_were_used_recently_stay_in_memory_and_others_do_not() {
    let dir = tempfile::tempdir().expect("a directory");
    let files = write(dir.path(), &entries());
    let run = SortedRun::open(&files, NO, Generation(1)).expect("opens");
    let file = run.open_file(&files).expect("opens");
    let keys = |block| file.read_shared_keys(block).expect("reads");
    let mut cache = KeysCache::new(keys(0).bytes() + 1);
    for block in 0..5 {
        cache.insert(NO, block, keys(block));
        let first = cache.get(NO, 0).expect("used each time");
        assert_eq!(first.key(0), keys(0).key(0));
    }
    assert!(cache.get(NO, 1).is_none() && cache.get(RunNo(8), 0).is_none());
    assert!(cache.get(NO, 4).is_some());
}

#[test]
fn a_run_reads_back_in_order_and_by_key() {
    let dir = tempfile::tempdir().expect("a directory");
    let files = write(dir.path(), &entries());
    let run = SortedRun::open(&files, NO, Generation(1)).expect("opens");
    assert!(run.footer.fences.len() > 6 && run.footer.sections.len() == 2);
    read(dir.path(), &entries()).expect("reads");
}

#[test]
fn every_flipped_bit_of_a_run_is_refused_or_does_not_matter() {
    let dir = tempfile::tempdir().expect("a directory");
    let wanted = entries();
    let path = write(dir.path(), &wanted).path(NO);
    let good = fs::read(&path).expect("reads");
    let mut harmless = Vec::new();
    for at in 0..good.len() {
        // Every single bit, and the whole byte.
        for mask in (0..8).map(|bit| 1 << bit).chain([0xff]) {
            let mut bad = good.clone();
            bad[at] ^= mask;
            fs::write(&path, &bad).expect("written");
            match read(dir.path(), &wanted) {
                Ok(()) => harmless.push(at),
                Err(fault) => assert_named(&fault),
            }
        }
    }
    // The header is for people: nothing is read from it.
    assert!(harmless.iter().all(|at| *at < 16), "{harmless:?}");
}

#[test]
fn a_run_that_is_cut_anywhere_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let wanted = entries();
    let path = write(dir.path(), &wanted).path(NO);
    let good = fs::read(&path).expect("reads");
    for length in 0..good.len() {
        fs::write(&path, &good[..length]).expect("written");
        assert_named(&read(dir.path(), &wanted).expect_err("refused"));
        // The same length, but the rest never reached the disk.
        let mut zeros = good[..length].to_vec();
        zeros.resize(good.len(), 0);
        fs::write(&path, &zeros).expect("written");
        if zeros != good {
            assert_named(&read(dir.path(), &wanted).expect_err("refused"));
        }
    }
}

#[test]
fn a_good_block_in_the_wrong_place_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let wanted = entries();
    let files = write(dir.path(), &wanted);
    let run = SortedRun::open(&files, NO, Generation(1)).expect("opens");
    let good = fs::read(files.path(NO)).expect("reads");
    let fences = &run.footer.fences;
    for (a, b) in fences.iter().zip(&fences[1..]) {
        let mut bad = good.clone();
        let (from, to) = (usize_of(b.offset), usize_of(a.offset));
        bad.copy_within(from..from + 64, to);
        fs::write(files.path(NO), &bad).expect("written");
        assert_named(&read(dir.path(), &wanted).expect_err("refused"));
    }
    // A run is not accepted under another number.
    fs::write(files.path(RunNo(8)), &good).expect("written");
    assert_named(&SortedRun::open(&files, RunNo(8), Generation(1)).expect_err("refused"));
}

#[test]
fn a_run_that_was_given_up_leaves_no_file() {
    let dir = tempfile::tempdir().expect("a directory");
    let files = RunFiles::new(dir.path().to_owned(), 4);
    let mut writer = RunWriter::new(&files, NO, BLOCK_BYTES).expect("a file");
    for (key, body) in &entries() {
        writer.push(*key, body).expect("written");
    }
    assert!(files.path(NO).exists());
    drop(writer);
    assert!(
        !files.path(NO).exists(),
        "on a full disk it would be tried again, and again leave one"
    );
}

fn usize_of(offset: u64) -> usize {
    usize::try_from(offset).expect("a small file")
}

#[test]
fn a_run_has_the_bytes_of_format_1() {
    // Two partitions, several blocks, entries that are not at the time in their id, empty bodies.
    let entries: Vec<_> = entries().into_iter().step_by(3).collect();
    let dir = tempfile::tempdir().expect("a directory");
    let path = write(dir.path(), &entries).path(NO);
    let golden = assert_golden("run_file", &fs::read(&path).expect("reads"));
    assert_eq!(path.file_name().and_then(|name| name.to_str()), Some("0000000000000007.run"));
    fs::write(&path, golden).expect("written");
    read(dir.path(), &entries).expect("reads");
}
