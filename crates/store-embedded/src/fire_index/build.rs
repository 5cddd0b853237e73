//! Building an index from the records of a run.

use std::collections::BTreeMap;

use punctual_core::{EndKind, PartitionId, Timestamp};
use punctual_store::codec::{CodecError, RecordName, read_record_name};

use super::entry::{end_code, end_of_code, ends_of, fires_of_key, put_position, put_rank};
use super::filter::{IndexFilter, fire_hash, key_hash};
use super::format::{IndexFooter, IndexWriter};
use crate::run::RunNo;

/// A fire that has a key.
struct IndexedKey<'a> {
    namespace: u32,
    end: EndKind,
    ordinal: u32,
    ended_at: Timestamp,
    key: &'a str,
}

/// The records of a run, as far as an index needs them.
#[derive(Default)]
struct IndexedRecords<'a> {
    /// Numbers of the namespaces of each partition, in the order in which they were found.
    namespaces: BTreeMap<(PartitionId, &'a str), u32>,
    keyed: Vec<IndexedKey<'a>>,
    /// Namespace, kind of end, inverted time and inverted ordinal of each fire, in one number that
    /// sorts like its entry.
    ends: Vec<u128>,
    fire_hashes: Vec<u64>,
    oldest: Option<Timestamp>,
}

impl<'a> IndexedRecords<'a> {
    fn add(&mut self, record: &'a [u8]) -> Result<(), CodecError> {
        let RecordName { fire_id, ended_at, end, namespace, key, .. } = read_record_name(record)?;
        let found = u32::try_from(self.namespaces.len()).expect("fewer than records");
        let name = (fire_id.task.partition(), namespace);
        let namespace = *self.namespaces.entry(name).or_insert(found);
        let ordinal = u32::try_from(self.ends.len()).expect("a run has fewer");
        self.ends.push(packed(namespace, end, ended_at, ordinal));
        self.fire_hashes.push(fire_hash(fire_id));
        self.oldest = Some(self.oldest.map_or(ended_at, |oldest| oldest.min(ended_at)));
        if let Some(key) = key {
            self.keyed.push(IndexedKey { namespace, end, ordinal, ended_at, key });
        }
        Ok(())
    }

    /// Renumbers the namespaces in their order, and sorts everything by it.
    fn sort(&mut self) {
        let mut order = vec![0u32; self.namespaces.len()];
        for (position, number) in (0..).zip(self.namespaces.values_mut()) {
            order[*number as usize] = position;
            *number = position;
        }
        for fire in &mut self.keyed {
            fire.namespace = order[fire.namespace as usize];
        }
        for end in &mut self.ends {
            let number = order[unpacked(*end).0 as usize];
            *end = *end & (u128::MAX >> 32) | u128::from(number) << 96;
        }
        self.ends.sort_unstable();
        self.keyed.sort_unstable_by(|a, b| {
            let newest_first = (b.ended_at, b.ordinal).cmp(&(a.ended_at, a.ordinal));
            a.namespace.cmp(&b.namespace).then_with(|| a.key.cmp(b.key)).then(newest_first)
        });
    }
}

fn packed(namespace: u32, end: EndKind, ended_at: Timestamp, ordinal: u32) -> u128 {
    let time = !ended_at.as_millis() & ((1 << 48) - 1);
    let front = u128::from(namespace) << 16 | u128::from(end_code(end));
    (front << 48 | u128::from(time)) << 32 | u128::from(!ordinal)
}

/// Namespace, code of the end, time and ordinal.
#[expect(clippy::cast_possible_truncation, reason = "each part has as many bits")]
const fn unpacked(end: u128) -> (u32, u8, u64, u32) {
    let time = !(end >> 32) as u64 & ((1 << 48) - 1);
    ((end >> 96) as u32, (end >> 80) as u8, time, !(end as u32))
}

/// Encodes the index of a run with these records, which are in the order of the run.
pub(super) fn index_of<'a>(
    no: RunNo,
    records: impl Iterator<Item = &'a [u8]>,
    block_bytes: usize,
) -> Result<(Vec<u8>, IndexFooter), CodecError> {
    let mut indexed = IndexedRecords::default();
    records.into_iter().try_for_each(|record| indexed.add(record))?;
    indexed.sort();
    let IndexedRecords { namespaces, keyed, ends, fire_hashes, oldest } = indexed;
    let names: Vec<(PartitionId, &str)> = namespaces.into_keys().collect();
    let mut filter = IndexFilter::new(fire_hashes.len() + distinct_keys(&keyed));
    fire_hashes.into_iter().for_each(|hash| filter.add(hash));
    let mut ranks = vec![None; ends.len()];
    for (rank, fire) in (0..).zip(&keyed) {
        ranks[fire.ordinal as usize] = Some(rank);
    }
    let mut writer = IndexWriter::new(no, block_bytes);
    let (mut group, mut front) = (None, Vec::new());
    for end in &ends {
        let (number, code, time, ordinal) = unpacked(*end);
        if group != Some((number, code)) {
            let (partition, namespace) = names[number as usize];
            let kind = end_of_code(code).ok_or(CodecError::Invalid("end"))?;
            front = ends_of(partition, namespace, kind);
            group = Some((number, code));
        }
        let length = front.len();
        put_position(&mut front, Timestamp::from_millis(time), ordinal);
        put_rank(&mut front, ranks[ordinal as usize]);
        writer.push(&front);
        front.truncate(length);
    }
    let mut last = None;
    for fire in &keyed {
        if last != Some((fire.namespace, fire.key)) {
            let (partition, namespace) = names[fire.namespace as usize];
            front = fires_of_key(partition, namespace, fire.key);
            filter.add(key_hash(partition, namespace, fire.key));
            last = Some((fire.namespace, fire.key));
        }
        let length = front.len();
        put_position(&mut front, fire.ended_at, fire.ordinal);
        front.push(end_code(fire.end));
        writer.push(&front);
        front.truncate(length);
    }
    let records = u32::try_from(ends.len()).expect("a run has fewer");
    Ok(writer.finish(records, oldest.unwrap_or(Timestamp::EPOCH), filter))
}

fn distinct_keys(sorted: &[IndexedKey<'_>]) -> usize {
    sorted.chunk_by(|a, b| (a.namespace, a.key) == (b.namespace, b.key)).count()
}
