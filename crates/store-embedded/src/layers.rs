//! Layers: rows of the catalog that are in memory, over those that are on disk.
//!
//! In: changes. Out: the newest value of a row, as far as memory knows it. Rows go down: *changed* since the last
//! checkpoint, *frozen* while one is written, *clean* when it has been; below it what was *read*. Only changed and frozen
//! ones must stay; the others are a cache.
//! Invariant: a row that no layer knows is in the catalog as it stands, or nowhere.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::Arc;

/// A hash for ids, which are numbers of our own making and need no protection from their makers.
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

/// Rows by their key.
pub(crate) type Rows<K, V, S> = HashMap<K, V, S>;

#[derive(Debug)]
pub(crate) struct Layers<K, V, S = IdHash> {
    changed: Rows<K, V, S>,
    frozen: Option<Arc<Rows<K, V, S>>>,
    clean: Option<Arc<Rows<K, V, S>>>,
    read: Rows<K, V, S>,
    read_before: Rows<K, V, S>,
    read_max: usize,
    /// Whether the catalog may have rows that no layer knows.
    beneath: bool,
}

impl<K: Eq + Hash, V, S: BuildHasher + Default> Layers<K, V, S> {
    /// `beneath`: whether the catalog has any row.
    pub(crate) fn new(beneath: bool, read_max: usize) -> Self {
        Self {
            changed: Rows::default(),
            frozen: None,
            clean: None,
            read: Rows::default(),
            read_before: Rows::default(),
            read_max,
            beneath,
        }
    }

    /// The row, as far as memory knows it.
    pub(crate) fn get<Q: Eq + Hash + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        let in_layer = |layer: &Rows<K, V, S>| !layer.is_empty();
        if in_layer(&self.changed)
            && let Some(value) = self.changed.get(key)
        {
            return Some(value);
        }
        for layer in [&self.frozen, &self.clean].into_iter().flatten() {
            if let Some(value) = layer.get(key) {
                return Some(value);
            }
        }
        let read = self.read.get(key);
        read.or_else(|| self.read_before.get(key))
    }

    pub(crate) fn set(&mut self, key: K, value: V) {
        // What was read is older than this, and would come up again when this has left memory.
        if !self.read.is_empty() {
            self.read.remove(&key);
        }
        if !self.read_before.is_empty() {
            self.read_before.remove(&key);
        }
        self.changed.insert(key, value);
    }

    /// Remembers a row that was read from the catalog, unless it is known better.
    pub(crate) fn remember(&mut self, key: K, value: V) {
        if self.get(&key).is_some() {
            return;
        }
        if self.read.len() >= self.read_max / 2 {
            self.read_before = std::mem::take(&mut self.read);
        }
        self.read.insert(key, value);
    }

    /// Whether the catalog has to be asked about what memory does not know.
    pub(crate) const fn beneath(&self) -> bool {
        self.beneath
    }

    /// Rows that changed since the last checkpoint.
    pub(crate) fn changed(&self) -> usize {
        self.changed.len()
    }

    /// All rows that the layers above the catalog know, newest first: a key may come more than once.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        let older = [&self.frozen, &self.clean].into_iter().flatten();
        self.changed.iter().chain(older.flat_map(|rows| rows.iter()))
    }

    /// Rows in memory.
    pub(crate) fn len(&self) -> usize {
        let layer =
            |layer: &Option<Arc<Rows<K, V, S>>>| layer.as_ref().map_or(0, |rows| rows.len());
        let read = self.read.len() + self.read_before.len();
        self.changed.len() + layer(&self.frozen) + layer(&self.clean) + read
    }

    /// Begins a checkpoint: what changed is frozen until it is on disk.
    pub(crate) fn freeze(&mut self) -> Arc<Rows<K, V, S>> {
        debug_assert!(self.frozen.is_none(), "one checkpoint at a time");
        let rows = Arc::new(std::mem::take(&mut self.changed));
        self.frozen = Some(Arc::clone(&rows));
        rows
    }

    /// What the last checkpoint wrote, if it is still known.
    pub(crate) fn clean(&self) -> Option<Arc<Rows<K, V, S>>> {
        self.clean.clone()
    }

    /// Ends a checkpoint: what was frozen is on disk. What it displaces is given back, to be
    /// freed without the lock.
    #[must_use]
    pub(crate) fn thaw(&mut self, beneath: bool) -> Option<Arc<Rows<K, V, S>>> {
        self.beneath = beneath;
        let frozen = self.frozen.take().filter(|rows| rows.len() <= self.read_max);
        match frozen {
            Some(rows) if !rows.is_empty() => self.clean.replace(rows),
            Some(_) => None,
            None => self.clean.take(),
        }
    }
}
