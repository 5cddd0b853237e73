//! The keys of blocks that were read recently, so that tasks that are searched by id one after the
//! other do not read the same keys again.
//!
//! A run never changes and its number is never used again, so nothing is ever out of date. Bounded:
//! when the young half is full, it becomes the old half, and the old half is dropped.

use std::collections::HashMap;
use std::sync::Arc;

use super::RunNo;
use super::format::KeysReader;
use crate::state::layers::IdHash;

/// The keys of a block, shared with the cache.
pub(crate) type BlockKeys = KeysReader<Arc<[u8]>>;

/// Bytes of keys in each half: both have the keys of about half a million tasks.
const HALF_BYTES_MAX: usize = 8 << 20;

/// Keys by run and block.
type Half = HashMap<(RunNo, u64), BlockKeys, IdHash>;

#[derive(Debug)]
pub(crate) struct KeysCache {
    half_bytes_max: usize,
    young: Half,
    young_bytes: usize,
    old: Half,
}

impl Default for KeysCache {
    fn default() -> Self {
        Self::new(HALF_BYTES_MAX)
    }
}

impl KeysCache {
    pub(crate) fn new(half_bytes_max: usize) -> Self {
        Self { half_bytes_max, young: Half::default(), young_bytes: 0, old: Half::default() }
    }

    /// The keys of a block, if they are here.
    pub(crate) fn get(&mut self, run: RunNo, block: usize) -> Option<BlockKeys> {
        let at = (run, block as u64);
        if let Some(keys) = self.young.get(&at) {
            return Some(keys.clone());
        }
        let keys = self.old.remove(&at)?;
        self.insert(run, block, keys.clone());
        Some(keys)
    }

    pub(crate) fn insert(&mut self, run: RunNo, block: usize, keys: BlockKeys) {
        if self.young_bytes >= self.half_bytes_max {
            self.old = std::mem::take(&mut self.young);
            self.young_bytes = 0;
        }
        let bytes = keys.bytes();
        if self.young.insert((run, block as u64), keys).is_none() {
            self.young_bytes += bytes;
        }
    }
}
