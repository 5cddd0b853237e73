//! Dice: all chance of a life, from its seed.

/// A small generator, so that a seed means the same for ever.
#[derive(Debug, Clone)]
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) const fn new(seed: u64) -> Self {
        // The odd constant spreads seeds that are close to each other; the state must not be zero.
        let mixed = (seed ^ 0x51_7c_c1_b7_27_22_0a_95).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Self(mixed ^ (mixed >> 29) | 1)
    }

    /// From 0 to below `sides`.
    pub(crate) fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % sides.max(1)
    }

    /// From `low` to below `high`.
    pub(crate) fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.roll(high - low)
    }

    /// True in so many of a thousand.
    pub(crate) fn thousandths(&mut self, share: u64) -> bool {
        share > 0 && self.roll(1000) < share
    }

    /// One of these.
    pub(crate) fn pick<T: Copy>(&mut self, of: &[T]) -> Option<T> {
        let index = usize::try_from(self.roll(of.len() as u64)).ok()?;
        of.get(index).copied()
    }

    /// From minus to plus.
    pub(crate) fn around(&mut self, most: u64) -> i64 {
        let span = i64::try_from(self.roll(2 * most + 1)).unwrap_or(0);
        span - i64::try_from(most).unwrap_or(0)
    }
}
