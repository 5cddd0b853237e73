//! A damaged index is refused, or read correctly: for every byte and every bit.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use punctual_core::{
    EndKind, Epoch, FireEnd, FireId, FireRecord, Labels, Namespace, Occasion, PartitionId,
    Sequence, SkipReason, Skipped, TaskId, TaskKey, Timestamp,
};
use punctual_store::codec::{put_record, read_record_id};

use super::entry::{ends_of, fires_of_key, read_end, read_key};
use super::{FireIndex, IndexCursor, fire_hash, key_hash};
use crate::fault::StorageFault;
use crate::golden::assert_golden;
use crate::key::EntryKey;
use crate::run::{Generation, RunFiles, RunNo, RunWriter, SortedRun};

const NO: RunNo = RunNo(7);
/// So small that each order has several blocks.
const BLOCK_BYTES: usize = 96;
const KEYS: [&str; 4] = ["", "order/1", "order/12", "unit"];

fn record(partition: u16, number: u64) -> FireRecord {
    let partition = PartitionId::new(partition).expect("a partition");
    let due = Timestamp::from_millis(1_800_000_000_000 + number * 1000);
    let epoch = Epoch::new(1).expect("an epoch");
    let task = TaskId::new(due, partition, epoch, Sequence::new(number).expect("a sequence"));
    let skipped = Skipped { fires: 2, until: due, why: SkipReason::Overlap };
    let ends = [FireEnd::Done, FireEnd::Cancelled, FireEnd::Skipped(skipped)];
    let index = usize::try_from(number).expect("small");
    FireRecord {
        fire_id: FireId { task, nominal_at: due },
        redriven_as: None,
        namespace: Namespace::new(["shop", "other"][index % 2]).expect("a namespace"),
        key: TaskKey::new(KEYS[index % 4]).ok(),
        // Not in the order of the fires, and some at the same time.
        ended_at: due.after(Duration::from_secs(100 - number / 3 * 7)),
        end: ends[index % 3],
        attempts: Vec::new(),
        due_at: due,
        occasion: Occasion::Due,
        labels: Labels::default(),
    }
}

fn encoded(record: &FireRecord) -> Vec<u8> {
    let mut out = Vec::new();
    put_record(&mut out, record);
    out
}

fn records() -> Vec<FireRecord> {
    [0, 3].into_iter().flat_map(|p| (0..14).map(move |number| record(p, number))).collect()
}

/// Writes a run of history and its index.
fn write(dir: &Path) -> RunFiles {
    let files = RunFiles::new(dir.to_owned(), 4);
    let mut writer = RunWriter::new(&files, NO, 256).expect("a file");
    let records: Vec<Vec<u8>> = records().iter().map(encoded).collect();
    for record in &records {
        let (fire_id, _) = read_record_id(record).expect("a record");
        writer.push(EntryKey::at_due(fire_id.task), record).expect("written");
    }
    writer.finish().expect("synced").expect("not empty");
    let index = FireIndex::build(NO, records.iter().map(Vec::as_slice), BLOCK_BYTES);
    index.expect("records").write(&files).expect("synced");
    files
}

fn open(dir: &Path) -> Result<(RunFiles, Arc<FireIndex>), StorageFault> {
    // With a single open file, so that each call sees the file as it is now.
    let files = RunFiles::new(dir.to_owned(), 1);
    let run = SortedRun::open(&files, NO, Generation(1))?;
    let index = FireIndex::open(&files, &run)?.expect("there is a file");
    Ok((files, Arc::new(index)))
}

/// Reads both orders, and compares them with the records.
fn read(dir: &Path) -> Result<(), StorageFault> {
    let (files, index) = open(dir)?;
    let all = records();
    let newest_first = |mut fires: Vec<(Timestamp, u32)>| {
        fires.sort_by_key(|fire| std::cmp::Reverse(*fire));
        fires
    };
    let of = |select: &dyn Fn(&FireRecord) -> bool| {
        let fires = (0u32..).zip(&all).filter(|(_, record)| select(record));
        newest_first(fires.map(|(ordinal, record)| (record.ended_at, ordinal)).collect())
    };
    for partition in [0, 1, 3].map(|number| PartitionId::new(number).expect("a partition")) {
        for namespace in ["shop", "other", "none"] {
            let own = |record: &FireRecord| {
                record.fire_id.task.partition() == partition
                    && record.namespace.as_str() == namespace
            };
            for end in EndKind::ALL {
                let front = ends_of(partition, namespace, end);
                let mut cursor = IndexCursor::seek(&files, Arc::clone(&index), &front)?;
                let mut found = Vec::new();
                while let Some(entry) = cursor.entry().filter(|entry| entry.starts_with(&front)) {
                    let fire = read_end(entry).map_err(|error| cursor.damaged(&files, error))?;
                    let keyed = all.get(fire.ordinal as usize).is_some_and(|it| it.key.is_some());
                    assert_eq!(fire.rank.is_some(), keyed);
                    found.push((fire.ended_at, fire.ordinal));
                    cursor.advance(&files)?;
                }
                assert_eq!(found, of(&|record| own(record) && record.end.kind() == end));
            }
            for key in KEYS.into_iter().skip(1) {
                let front = fires_of_key(partition, namespace, key);
                let mut cursor = IndexCursor::seek(&files, Arc::clone(&index), &front)?;
                let mut found = Vec::new();
                while let Some(entry) = cursor.entry().filter(|entry| entry.starts_with(&front)) {
                    let fire = read_key(entry).map_err(|error| cursor.damaged(&files, error))?;
                    found.push((fire.ended_at, fire.ordinal));
                    cursor.advance(&files)?;
                }
                let named = |record: &FireRecord| {
                    own(record) && record.key.as_ref().is_some_and(|other| other.as_str() == key)
                };
                assert!(found.is_empty() || index.may_have(key_hash(partition, namespace, key)));
                assert_eq!(found, of(&named));
            }
        }
    }
    assert!(all.iter().all(|record| index.may_have(fire_hash(record.fire_id))));
    Ok(())
}

fn assert_named(fault: &StorageFault) {
    let text = fault.to_string();
    let damaged = matches!(fault, StorageFault::Damaged { .. });
    assert!(damaged && text.contains(".idx is damaged"), "{text}");
}

#[test]
fn an_index_has_both_orders_of_its_records() {
    let dir = tempfile::tempdir().expect("a directory");
    write(dir.path());
    read(dir.path()).expect("reads");
}

#[test]
fn the_rank_of_a_fire_is_its_position_in_the_order_by_key() {
    let dir = tempfile::tempdir().expect("a directory");
    write(dir.path());
    let (files, index) = open(dir.path()).expect("opens");
    let mut cursor = IndexCursor::seek(&files, Arc::clone(&index), &[]).expect("reads");
    let mut ranks = std::collections::BTreeMap::new();
    while cursor.ordinal() < index.records() {
        let fire = read_end(cursor.entry().expect("an entry")).expect("by end");
        ranks.extend(fire.rank.map(|rank| (rank, fire.ordinal)));
        cursor.advance(&files).expect("reads");
    }
    let mut by_key = Vec::new();
    while let Some(entry) = cursor.entry() {
        let rank = cursor.ordinal() - index.records();
        by_key.push((rank, read_key(entry).expect("by key").ordinal));
        cursor.advance(&files).expect("reads");
    }
    assert_eq!(ranks.into_iter().collect::<Vec<_>>(), by_key);
}

#[test]
fn every_flipped_bit_of_an_index_is_refused_or_does_not_matter() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = write(dir.path()).index_path(NO);
    let good = fs::read(&path).expect("reads");
    let mut harmless = Vec::new();
    for at in 0..good.len() {
        for mask in [1, 0x10, 0x80, 0xff] {
            let mut bad = good.clone();
            bad[at] ^= mask;
            fs::write(&path, &bad).expect("written");
            match read(dir.path()) {
                Ok(()) => harmless.push(at),
                Err(fault) => assert_named(&fault),
            }
        }
    }
    // The header is for people: nothing is read from it.
    assert!(harmless.iter().all(|at| *at < 16), "{harmless:?}");
}

#[test]
fn an_index_that_is_cut_anywhere_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = write(dir.path()).index_path(NO);
    let good = fs::read(&path).expect("reads");
    for length in 0..good.len() {
        fs::write(&path, &good[..length]).expect("written");
        assert_named(&read(dir.path()).expect_err("refused"));
    }
}

#[test]
fn an_index_has_the_bytes_of_format_1() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = write(dir.path()).index_path(NO);
    let golden = assert_golden("index_file", &fs::read(&path).expect("reads"));
    assert_eq!(path.file_name().and_then(|name| name.to_str()), Some("0000000000000007.idx"));
    fs::write(&path, golden).expect("written");
    read(dir.path()).expect("reads");
}
