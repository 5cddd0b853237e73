//! Chunks: records of ended fires in memory, in the order of fire ids.
//!
//! A chunk never changes, so that a reader shares it and works without the lock of the state. The
//! orders by end and by key are built when they are first needed.

use std::cmp::Reverse;
use std::sync::OnceLock;

use bytes::Bytes;
use punctual_core::{EndKind, FireId, PartitionId, TaskId, Timestamp};
use punctual_store::FirePosition;
use punctual_store::codec::{RecordName, read_record_name};

use crate::fire_index::key_hash;

/// A record, and what listing needs of it without decoding it.
#[derive(Debug, Clone)]
pub(crate) struct HistoryEntry {
    // Not a `FireId`, whose padding would make every entry larger.
    task: TaskId,
    nominal_at: Timestamp,
    ended: PackedEnd,
    pub(crate) record: Bytes,
}

const _: () = assert!(size_of::<HistoryEntry>() == 64);

/// When and how a fire ended, in one number.
#[derive(Debug, Clone, Copy)]
struct PackedEnd(u64);

const END_BITS: u32 = 3;
const _: () = assert!(EndKind::ALL.len() <= 1 << END_BITS);

impl PackedEnd {
    fn new(ended_at: Timestamp, end: EndKind) -> Self {
        let number = EndKind::ALL.iter().position(|kind| *kind == end).unwrap_or(0);
        Self(ended_at.as_millis() << END_BITS | number as u64)
    }

    const fn at(self) -> Timestamp {
        Timestamp::from_millis(self.0 >> END_BITS)
    }

    fn is(self, end: EndKind) -> bool {
        self.0 == Self::new(self.at(), end).0
    }
}

/// What memory keeps of the names of a record, apart from its bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RecordSummary {
    fire_id: FireId,
    ended: PackedEnd,
    /// The hash of the task's key, if it has one.
    pub(crate) key_hash: Option<ShortHash>,
}

impl RecordSummary {
    pub(crate) fn of(name: &RecordName<'_>) -> Self {
        let partition = name.fire_id.task.partition();
        let hash = |key| ShortHash::of(partition, name.namespace, key);
        Self {
            fire_id: name.fire_id,
            ended: PackedEnd::new(name.ended_at, name.end),
            key_hash: name.key.map(hash),
        }
    }
}

impl HistoryEntry {
    /// An entry for a record whose names were read.
    pub(crate) const fn new(summary: RecordSummary, record: Bytes) -> Self {
        let RecordSummary { fire_id, ended, .. } = summary;
        Self { task: fire_id.task, nominal_at: fire_id.nominal_at, ended, record }
    }

    pub(crate) const fn fire_id(&self) -> FireId {
        FireId { task: self.task, nominal_at: self.nominal_at }
    }

    pub(crate) const fn ended_at(&self) -> Timestamp {
        self.ended.at()
    }

    pub(crate) fn ended_as(&self, end: EndKind) -> bool {
        self.ended.is(end)
    }

    pub(crate) const fn position(&self) -> FirePosition {
        FirePosition { ended_at: self.ended_at(), fire_id: self.fire_id() }
    }

    /// The order of runs: partition first.
    pub(crate) const fn place(&self) -> (PartitionId, FireId) {
        (self.task.partition(), self.fire_id())
    }

    /// Namespace and key. Records in memory were decoded when they came.
    pub(crate) fn names(&self) -> (&str, Option<&str>) {
        read_record_name(&self.record).map_or(("", None), |name| (name.namespace, name.key))
    }
}

/// A part of the hash of a key. A few of these are compared faster than records are decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ShortHash(u32);

impl ShortHash {
    #[expect(clippy::cast_possible_truncation, reason = "a part of the hash")]
    pub(crate) fn of(partition: PartitionId, namespace: &str, key: &str) -> Self {
        Self(key_hash(partition, namespace, key) as u32)
    }
}

/// Records in the order of fire ids; of one fire in the order in which they came.
#[derive(Debug)]
pub(crate) struct HistoryChunk {
    entries: Vec<HistoryEntry>,
    /// Hashes of all keys, in no order.
    key_hashes: Vec<ShortHash>,
    /// The latest and the earliest end.
    newest: Timestamp,
    oldest: Timestamp,
    /// Partition, then newest first: the last record of each fire.
    by_end: OnceLock<Box<[u32]>>,
    /// The same records, if they have keys: partition, namespace, key, then newest first.
    by_key: OnceLock<Box<[u32]>>,
}

impl HistoryChunk {
    /// What a chunk takes for each entry, without the bytes of the record.
    pub(crate) const ENTRY_BYTES: usize =
        size_of::<HistoryEntry>() + size_of::<ShortHash>() + 2 * size_of::<u32>();

    pub(crate) fn new(mut entries: Vec<HistoryEntry>, key_hashes: Vec<ShortHash>) -> Self {
        // A stable sort: records of one fire stay in the order in which they came.
        entries.sort_by_key(HistoryEntry::place);
        let ends = entries.iter().map(HistoryEntry::ended_at);
        Self {
            newest: ends.clone().max().unwrap_or(Timestamp::EPOCH),
            oldest: ends.min().unwrap_or(Timestamp::MAX),
            entries,
            key_hashes,
            by_end: OnceLock::new(),
            by_key: OnceLock::new(),
        }
    }

    pub(crate) fn entries(&self) -> &[HistoryEntry] {
        &self.entries
    }

    pub(crate) const fn ends(&self) -> (Timestamp, Timestamp) {
        (self.oldest, self.newest)
    }

    pub(crate) fn entry(&self, ordinal: u32) -> &HistoryEntry {
        &self.entries[ordinal as usize]
    }

    /// The records of a task.
    pub(crate) fn of_task(&self, id: TaskId) -> impl Iterator<Item = &HistoryEntry> {
        let first = FireId { task: id, nominal_at: Timestamp::EPOCH };
        let start = self.entries.partition_point(|entry| entry.place() < (id.partition(), first));
        self.entries[start..].iter().take_while(move |entry| entry.task == id)
    }

    pub(crate) fn has_fire(&self, fire_id: FireId) -> bool {
        let place = (fire_id.task.partition(), fire_id);
        self.entries.binary_search_by_key(&place, HistoryEntry::place).is_ok()
    }

    pub(crate) fn may_have_key(&self, hash: ShortHash) -> bool {
        self.key_hashes.contains(&hash)
    }

    /// The fires of a partition, newest first.
    pub(crate) fn by_end(&self, partition: PartitionId) -> &[u32] {
        let all = self.by_end.get_or_init(|| {
            let mut all: Vec<u32> = self.last_records().collect();
            all.sort_unstable_by_key(|ordinal| {
                let entry = self.entry(*ordinal);
                (entry.task.partition(), Reverse((entry.ended_at(), *ordinal)))
            });
            all.into()
        });
        let of = |ordinal: &u32| self.entry(*ordinal).task.partition();
        let start = all.partition_point(|ordinal| of(ordinal) < partition);
        let end = all.partition_point(|ordinal| of(ordinal) <= partition);
        &all[start..end]
    }

    /// The fires of a partition whose key begins with `prefix`, by key, those of one key newest
    /// first.
    pub(crate) fn by_key(&self, partition: PartitionId, namespace: &str, prefix: &str) -> &[u32] {
        let all = self.by_key.get_or_init(|| self.sorted_by_key());
        let name = |ordinal: &u32| {
            let entry = self.entry(*ordinal);
            let (namespace, key) = entry.names();
            (entry.task.partition(), namespace, key.unwrap_or_default())
        };
        let start = all.partition_point(|ordinal| name(ordinal) < (partition, namespace, prefix));
        let within = |ordinal: &u32| {
            let (other, other_namespace, key) = name(ordinal);
            (other, other_namespace) == (partition, namespace) && key.starts_with(prefix)
        };
        let length = all[start..].partition_point(within);
        &all[start..start + length]
    }

    /// How many records have to be sorted before the first search by end.
    pub(crate) fn unsorted_ends(&self) -> usize {
        if self.by_end.get().is_some() { 0 } else { self.entries.len() }
    }

    /// How many records have to be decoded and sorted before the first search by key.
    pub(crate) fn unsorted_keys(&self) -> usize {
        if self.by_key.get().is_some() { 0 } else { self.entries.len() }
    }

    fn sorted_by_key(&self) -> Box<[u32]> {
        let mut named: Vec<_> = self
            .last_records()
            .filter_map(|ordinal| {
                let entry = self.entry(ordinal);
                let (namespace, key) = entry.names();
                let newest_first = Reverse((entry.ended_at(), ordinal));
                Some((entry.task.partition(), namespace, key?, newest_first))
            })
            .collect();
        named.sort_unstable();
        named.iter().map(|(.., Reverse((_, ordinal)))| *ordinal).collect()
    }

    /// The ordinals of records that no later record of the chunk replaces.
    fn last_records(&self) -> impl Iterator<Item = u32> {
        let fires = (0u32..).zip(&self.entries);
        fires.filter_map(|(ordinal, entry)| {
            let next = self.entries.get(ordinal as usize + 1);
            next.is_none_or(|next| next.place() != entry.place()).then_some(ordinal)
        })
    }
}
