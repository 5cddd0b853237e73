//! Random numbers that follow from a seed.

/// SplitMix64: a few lines, and every seed is a good one.
pub(super) struct ModelRandom(u64);

impl ModelRandom {
    pub(super) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number from 0 to one less than `end`.
    pub(super) const fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// Returns an index into a list of `len` elements.
    pub(super) fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.below(len as u64)).expect("below a usize")
    }

    pub(super) fn pick<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        if from.is_empty() {
            return None;
        }
        Some(&from[self.index(from.len())])
    }
}
