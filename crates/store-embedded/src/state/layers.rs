//! Layers: rows of the catalog that are in memory.
//!
//! [`Layers`] returns the newest value of a row that memory knows. A row moves from layer to layer:
//! *changed* since the last checkpoint, *frozen* while a checkpoint writes it, *clean* afterwards;
//! below these is what was *read* from the catalog. Changed and frozen rows must stay in memory;
//! the others are a cache.
//! A row that is in no layer is in the catalog with its present value, or does not exist.

use std::borrow::Borrow;
use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::Arc;

use bytes::Bytes;
use punctual_core::{FireId, TaskId};

use crate::state::row_table::RowTable;

/// A hash for ids. Ids are made by the broker, so the hash needs no protection against chosen
/// values.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct IdHash(u64);

impl BuildHasher for IdHash {
    type Hasher = Self;

    fn build_hasher(&self) -> Self {
        *self
    }
}

impl Hasher for IdHash {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u32(&mut self, word: u32) {
        self.write_u64(u64::from(word));
    }

    fn write_u64(&mut self, word: u64) {
        let product = u128::from(self.0 ^ word) * 0x9e37_79b9_7f4a_7c15;
        self.0 = fold(product);
    }

    fn write_u128(&mut self, word: u128) {
        self.write_u64(fold(word ^ (word >> 23)));
        self.write_u64(fold(word));
    }
}

#[expect(clippy::cast_possible_truncation, reason = "both halves are used")]
const fn fold(word: u128) -> u64 {
    (word >> 64) as u64 ^ word as u64
}

/// The heap memory of a key or a value.
pub(crate) trait Weight {
    fn heap_bytes(&self) -> usize {
        0
    }
}

impl Weight for () {}

impl Weight for TaskId {}

impl Weight for FireId {}

impl Weight for Bytes {
    fn heap_bytes(&self) -> usize {
        self.len()
    }
}

impl<T: Weight> Weight for Option<T> {
    fn heap_bytes(&self) -> usize {
        self.as_ref().map_or(0, Weight::heap_bytes)
    }
}

/// Rows, and about how many bytes of memory they take.
#[derive(Debug)]
struct Layer<K, V, S> {
    rows: RowTable<K, V, S>,
    bytes: usize,
}

impl<K, V, S: Default> Default for Layer<K, V, S> {
    fn default() -> Self {
        Self { rows: RowTable::default(), bytes: 0 }
    }
}

impl<K: Eq + Hash + Weight, V: Weight, S: BuildHasher + Default> Layer<K, V, S> {
    const ROW_BYTES: usize = RowTable::<K, V, S>::ROW_BYTES;

    /// Inserts a row in place of an equal one. A key may contain the value, so it is replaced too.
    fn insert(&mut self, hash: u64, key: K, value: V) {
        self.bytes += Self::ROW_BYTES + key.heap_bytes() + value.heap_bytes();
        let replaced = self.rows.insert_of(hash, key, value);
        self.uncount(replaced);
    }

    fn remove(&mut self, hash: u64, key: &K) {
        if !self.rows.is_empty() {
            let removed = self.rows.remove_of(hash, key);
            self.uncount(removed);
        }
    }

    fn uncount(&mut self, removed: Option<(K, V)>) {
        if let Some((key, value)) = removed {
            self.bytes -= Self::ROW_BYTES + key.heap_bytes() + value.heap_bytes();
        }
    }
}

/// Rows that are on disk or that a checkpoint is writing, and their bytes.
type WrittenLayer<K, V, S> = Option<(Arc<RowTable<K, V, S>>, usize)>;

#[derive(Debug)]
pub(crate) struct Layers<K, V, S = IdHash> {
    changed: Layer<K, V, S>,
    frozen: WrittenLayer<K, V, S>,
    clean: WrittenLayer<K, V, S>,
    read: Layer<K, V, S>,
    read_before: Layer<K, V, S>,
    cached_bytes_max: usize,
    /// Whether the catalog may have rows that are in no layer.
    in_catalog: bool,
}

/// Every `S::default()` must hash alike, so that a key is hashed once for all layers.
impl<K: Eq + Hash + Weight, V: Weight, S: BuildHasher + Default> Layers<K, V, S> {
    /// `in_catalog`: whether the catalog has any row.
    pub(crate) fn new(in_catalog: bool, cached_bytes_max: usize) -> Self {
        Self {
            changed: Layer::default(),
            frozen: None,
            clean: None,
            read: Layer::default(),
            read_before: Layer::default(),
            cached_bytes_max,
            in_catalog,
        }
    }

    /// The value of a row, if memory knows it.
    pub(crate) fn get<Q: Eq + Hash + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.row(key).map(|(_, value)| value)
    }

    /// The row, if memory knows it.
    pub(crate) fn row<Q: Eq + Hash + ?Sized>(&self, key: &Q) -> Option<(&K, &V)>
    where
        K: Borrow<Q>,
    {
        self.row_of(self.changed.rows.hash_of(key), key)
    }

    /// The row of a key with this hash, which is the same in all tables.
    fn row_of<Q: Eq + ?Sized>(&self, hash: u64, key: &Q) -> Option<(&K, &V)>
    where
        K: Borrow<Q>,
    {
        if let Some(row) = self.changed.rows.row_of(hash, key) {
            return Some(row);
        }
        for (rows, _) in [&self.frozen, &self.clean].into_iter().flatten() {
            if let Some(row) = rows.row_of(hash, key) {
                return Some(row);
            }
        }
        let read = self.read.rows.row_of(hash, key);
        read.or_else(|| self.read_before.rows.row_of(hash, key))
    }

    pub(crate) fn set(&mut self, key: K, value: V) {
        // The cached value is older, and would reappear when this one has left memory.
        let hash = self.changed.rows.hash_of(&key);
        self.read.remove(hash, &key);
        self.read_before.remove(hash, &key);
        self.changed.insert(hash, key, value);
    }

    /// Caches a row that was read from the catalog, unless memory knows a newer value.
    pub(crate) fn remember(&mut self, key: K, value: V) {
        let hash = self.changed.rows.hash_of(&key);
        if self.row_of(hash, &key).is_some() {
            return;
        }
        if self.read.bytes >= self.cached_bytes_max / 2 {
            self.read_before = std::mem::take(&mut self.read);
        }
        self.read.insert(hash, key, value);
    }

    /// Whether rows that memory does not know have to be read from the catalog.
    pub(crate) const fn in_catalog(&self) -> bool {
        self.in_catalog
    }

    /// Bytes of the rows that changed since the last checkpoint.
    pub(crate) const fn changed_bytes(&self) -> usize {
        self.changed.bytes
    }

    /// All rows that were changed or written, newest first: a key may occur more than once.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        let older = [&self.frozen, &self.clean].into_iter().flatten();
        self.changed.rows.iter().chain(older.flat_map(|(rows, _)| rows.iter()))
    }

    /// Rows in memory.
    pub(crate) fn len(&self) -> usize {
        let written = [&self.frozen, &self.clean].into_iter().flatten();
        let written: usize = written.map(|(rows, _)| rows.len()).sum();
        self.changed.rows.len() + written + self.read.rows.len() + self.read_before.rows.len()
    }

    /// About how many bytes the rows in memory take.
    pub(crate) fn bytes(&self) -> usize {
        let written = [&self.frozen, &self.clean].into_iter().flatten();
        let written: usize = written.map(|(_, bytes)| bytes).sum();
        self.changed.bytes + written + self.read.bytes + self.read_before.bytes
    }

    /// Starts a checkpoint: changed rows are frozen until they are on disk.
    pub(crate) fn freeze(&mut self) -> Arc<RowTable<K, V, S>> {
        debug_assert!(self.frozen.is_none(), "one checkpoint at a time");
        let Layer { rows, bytes } = std::mem::take(&mut self.changed);
        let rows = Arc::new(rows);
        self.frozen = Some((Arc::clone(&rows), bytes));
        rows
    }

    /// Takes the rows that the last checkpoint wrote, if they are still in memory. From now on they
    /// are read from the catalog.
    pub(crate) fn take_clean(&mut self) -> Option<RowTable<K, V, S>> {
        Arc::into_inner(self.clean.take()?.0)
    }

    /// Ends a checkpoint: frozen rows are on disk. Returns what they displace, to be freed after
    /// the lock is released.
    #[must_use]
    pub(crate) fn thaw(&mut self, in_catalog: bool) -> WrittenLayer<K, V, S> {
        self.in_catalog = in_catalog;
        match self.frozen.take() {
            Some((rows, _)) if rows.is_empty() => None,
            Some((rows, bytes)) if bytes <= self.cached_bytes_max => {
                self.clean.replace((rows, bytes))
            }
            _ => self.clean.take(),
        }
    }
}
