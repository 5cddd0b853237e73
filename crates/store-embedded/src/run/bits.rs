//! Which entries of a run have ended: one bit each.
//!
//! One thread sets bits; any thread reads them without a lock. Bits are never cleared. The catalog
//! keeps them in chunks; the numbers of chunks that changed since they were last written are kept
//! here.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Bytes of one chunk: small enough that one ended task rewrites little, large enough that there
/// are few.
const CHUNK_BYTES: usize = 512;
const CHUNK_WORDS: usize = CHUNK_BYTES / 8;

#[derive(Debug)]
pub(crate) struct EndedBits {
    words: Vec<AtomicU64>,
    set: AtomicU32,
    changed: Mutex<BTreeSet<u32>>,
}

impl EndedBits {
    pub(crate) fn new(count: u32) -> Self {
        let words = (count as usize).div_ceil(64);
        Self {
            words: (0..words).map(|_| AtomicU64::new(0)).collect(),
            set: AtomicU32::new(0),
            changed: Mutex::new(BTreeSet::new()),
        }
    }

    pub(crate) fn get(&self, ordinal: u32) -> bool {
        self.words
            .get(ordinal as usize / 64)
            .is_some_and(|word| word.load(Ordering::Acquire) & (1 << (ordinal % 64)) != 0)
    }

    /// Whether all of these entries have ended.
    pub(crate) fn all(&self, ordinals: std::ops::Range<u32>) -> bool {
        let mut ordinal = ordinals.start;
        while ordinal < ordinals.end {
            let upto = ordinals.end.min((ordinal / 64 + 1) * 64);
            let mask = (u64::MAX >> (64 - (upto - ordinal))) << (ordinal % 64);
            let word = self.words.get(ordinal as usize / 64);
            if word.is_none_or(|word| word.load(Ordering::Acquire) & mask != mask) {
                return false;
            }
            ordinal = upto;
        }
        true
    }

    pub(crate) fn set(&self, ordinal: u32) {
        let index = ordinal as usize / 64;
        let mask = 1 << (ordinal % 64);
        if self.words[index].fetch_or(mask, Ordering::AcqRel) & mask == 0 {
            self.set.fetch_add(1, Ordering::AcqRel);
            let chunk = u32::try_from(index / CHUNK_WORDS).expect("fewer chunks than entries");
            self.changed().insert(chunk);
        }
    }

    /// How many bits are set.
    pub(crate) fn count(&self) -> u32 {
        self.set.load(Ordering::Acquire)
    }

    /// Chunks that changed since the last call, with their bytes.
    pub(crate) fn take_changed(&self) -> Vec<(u32, Vec<u8>)> {
        let changed = std::mem::take(&mut *self.changed());
        changed.into_iter().map(|chunk| (chunk, self.chunk(chunk))).collect()
    }

    /// The number of chunks.
    pub(crate) fn chunks(&self) -> u32 {
        u32::try_from(self.words.len().div_ceil(CHUNK_WORDS)).expect("fewer chunks than entries")
    }

    fn chunk(&self, chunk: u32) -> Vec<u8> {
        let start = chunk as usize * CHUNK_WORDS;
        let end = (start + CHUNK_WORDS).min(self.words.len());
        let words = &self.words[start.min(end)..end];
        let word = |word: &AtomicU64| word.load(Ordering::Acquire).to_le_bytes();
        words.iter().flat_map(word).collect()
    }

    /// Restores a chunk from the catalog; false if it does not fit.
    pub(crate) fn restore(&self, chunk: u32, bytes: &[u8]) -> bool {
        let start = chunk as usize * CHUNK_WORDS;
        let end = (start + CHUNK_WORDS).min(self.words.len());
        if start >= end || bytes.len() != (end - start) * 8 {
            return false;
        }
        for (word, bytes) in self.words[start..end].iter().zip(bytes.chunks_exact(8)) {
            let value = u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
            let before = word.swap(value, Ordering::AcqRel);
            let grown = value.count_ones() - (before & value).count_ones();
            self.set.fetch_add(grown, Ordering::AcqRel);
        }
        true
    }

    fn changed(&self) -> std::sync::MutexGuard<'_, BTreeSet<u32>> {
        self.changed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_counted_once_and_kept_in_chunks() {
        let bits = EndedBits::new(10_000);
        for ordinal in [0, 63, 64, 4095, 4096, 9_999, 0] {
            bits.set(ordinal);
        }
        assert_eq!(bits.count(), 6);
        assert!(bits.all(63..65) && bits.all(4095..4097) && bits.all(9..9));
        assert!(!bits.all(62..65) && !bits.all(0..2) && !bits.all(9_999..10_001));
        let kept = bits.take_changed();
        assert_eq!(kept.iter().map(|(chunk, _)| *chunk).collect::<Vec<_>>(), [0, 1, 2]);
        assert!(bits.take_changed().is_empty());

        let again = EndedBits::new(10_000);
        assert!(kept.iter().all(|(chunk, bytes)| again.restore(*chunk, bytes)));
        assert_eq!(again.count(), 6);
        assert!(again.get(9_999) && again.get(64) && !again.get(65));
        assert!(!again.restore(3, &[0; 8]));
        assert!(!again.restore(0, &[0; 8]));
    }

    #[test]
    fn a_chunk_of_bits_has_the_bytes_of_format_2() {
        let bits = EndedBits::new(130);
        [0, 9, 63, 64, 129].into_iter().for_each(|ordinal| bits.set(ordinal));
        let chunks = bits.take_changed();
        let golden = crate::golden::assert_golden("catalog_bits_chunk", &chunks[0].1);
        let again = EndedBits::new(130);
        assert!(again.restore(0, &golden));
        assert_eq!(again.count(), 5);
        assert!(again.get(9) && again.get(129) && !again.get(10));
    }
}
