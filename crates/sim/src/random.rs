//! The random numbers of a run, all from its seed.

/// A small generator of our own, so that a seed always gives the same run.
#[derive(Debug, Clone)]
pub(crate) struct SimRandom(u64);

impl SimRandom {
    pub(crate) const fn new(seed: u64) -> Self {
        // The odd constant spreads seeds that are close together; the state must not be zero.
        let mixed = (seed ^ 0x51_7c_c1_b7_27_22_0a_95).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Self(mixed ^ (mixed >> 29) | 1)
    }

    /// Returns a number from 0 to below `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound.max(1)
    }

    /// Returns a number from `low` to below `high`.
    pub(crate) fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low)
    }

    /// Returns true in this many of a thousand cases.
    pub(crate) fn permille(&mut self, share: u64) -> bool {
        share > 0 && self.below(1000) < share
    }

    /// Returns one of these.
    pub(crate) fn pick<T: Copy>(&mut self, of: &[T]) -> Option<T> {
        let index = usize::try_from(self.below(of.len() as u64)).ok()?;
        of.get(index).copied()
    }

    /// Returns a number from `-most` to `most`.
    pub(crate) fn plus_minus(&mut self, most: u64) -> i64 {
        let span = i64::try_from(self.below(2 * most + 1)).unwrap_or(0);
        span - i64::try_from(most).unwrap_or(0)
    }
}
