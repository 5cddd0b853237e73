//! A table of rows: the rows side by side in one vector, and an index of their positions.
//!
//! A hash table has up to twice as many places as rows, and in a table of rows every place has the
//! size of a row. Here it has four bytes, so a million relocations take some 60 MB instead of 100.
//! [`Layers`](super::layers::Layers) are made of these tables.

use std::borrow::Borrow;
use std::hash::{BuildHasher, Hash};

use hashbrown::HashTable;

/// Rows by their key, in no particular order.
#[derive(Debug)]
pub(crate) struct RowTable<K, V, S> {
    rows: Vec<(K, V)>,
    /// The index of each row in `rows`.
    positions: HashTable<u32>,
    hash: S,
}

impl<K, V, S: Default> Default for RowTable<K, V, S> {
    fn default() -> Self {
        Self { rows: Vec::new(), positions: HashTable::new(), hash: S::default() }
    }
}

impl<K, V, S> RowTable<K, V, S> {
    /// About what one row takes, without memory that its key and value point to: at least half of
    /// the places of the index are used, and each has one byte of metadata.
    pub(crate) const ROW_BYTES: usize = size_of::<(K, V)>() + 2 * (size_of::<u32>() + 1);

    pub(crate) const fn len(&self) -> usize {
        self.rows.len()
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.rows.iter().map(|(key, value)| (key, value))
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = &K> {
        self.rows.iter().map(|(key, _)| key)
    }

    /// The rows, without the index.
    pub(crate) fn into_rows(self) -> Vec<(K, V)> {
        self.rows
    }
}

impl<K: Eq + Hash, V, S: BuildHasher> RowTable<K, V, S> {
    /// The hash of a key, for [`Self::row_of`], [`Self::insert_of`] and [`Self::remove_of`].
    pub(crate) fn hash_of<Q: Hash + ?Sized>(&self, key: &Q) -> u64 {
        self.hash.hash_one(key)
    }

    pub(crate) fn get<Q: Eq + Hash + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.row_of(self.hash_of(key), key).map(|(_, value)| value)
    }

    pub(crate) fn contains_key(&self, key: &K) -> bool {
        self.get(key).is_some()
    }

    /// The row of a key with this hash.
    pub(crate) fn row_of<Q: Eq + ?Sized>(&self, hash: u64, key: &Q) -> Option<(&K, &V)>
    where
        K: Borrow<Q>,
    {
        if self.rows.is_empty() {
            return None;
        }
        let is_key = |position: &u32| self.rows[*position as usize].0.borrow() == key;
        let position = self.positions.find(hash, is_key)?;
        let (key, value) = &self.rows[*position as usize];
        Some((key, value))
    }

    /// Inserts a row, or puts it in the place of the row that the key has. Returns that row.
    #[cfg(test)]
    pub(crate) fn insert(&mut self, key: K, value: V) -> Option<(K, V)> {
        self.insert_of(self.hash_of(&key), key, value)
    }

    /// The same, for a key with this hash.
    pub(crate) fn insert_of(&mut self, hash_of: u64, key: K, value: V) -> Option<(K, V)> {
        let Self { rows, positions, hash } = self;
        if let Some(position) = positions.find(hash_of, |at| rows[*at as usize].0 == key) {
            return Some(std::mem::replace(&mut rows[*position as usize], (key, value)));
        }
        let position = u32::try_from(rows.len()).expect("memory is full long before");
        rows.push((key, value));
        positions.insert_unique(hash_of, position, |at| hash.hash_one(&rows[*at as usize].0));
        None
    }

    /// Removes the row of a key with this hash and returns it.
    pub(crate) fn remove_of(&mut self, hash_of: u64, key: &K) -> Option<(K, V)> {
        let Self { rows, positions, hash } = self;
        let entry = positions.find_entry(hash_of, |at| rows[*at as usize].0 == *key);
        let (position, _) = entry.ok()?.remove();
        let last = rows.len() - 1;
        if position as usize != last {
            // The last row moves to the place of the removed one.
            let moved = positions.find_mut(hash.hash_one(&rows[last].0), |at| *at as usize == last);
            *moved.expect("every row has a position") = position;
        }
        Some(rows.swap_remove(position as usize))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::hash::RandomState;

    use super::*;

    #[test]
    fn a_table_of_rows_behaves_like_a_hash_map() {
        let mut table: RowTable<u64, u64, RandomState> = RowTable::default();
        let mut map = HashMap::new();
        let mut random = 1_u64;
        for step in 0..20_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let key = (random >> 33) % 512;
            if random >> 62 == 0 {
                let removed = table.remove_of(table.hash_of(&key), &key);
                assert_eq!(removed, map.remove_entry(&key), "step {step}");
            } else {
                let replaced = map.insert(key, step).map(|value| (key, value));
                assert_eq!(table.insert(key, step), replaced, "step {step}");
            }
            assert_eq!(table.len(), map.len());
            let other = (random >> 20) % 512;
            assert_eq!(table.get(&other), map.get(&other), "step {step}");
        }
        let mut rows: Vec<_> = table.iter().map(|(key, value)| (*key, *value)).collect();
        let mut expected: Vec<_> = map.into_iter().collect();
        rows.sort_unstable();
        expected.sort_unstable();
        assert_eq!(rows, expected);
    }
}
