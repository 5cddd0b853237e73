//! Which slots have live timers, one bit each, so that the wheel never visits empty ones.
//!
//! The bit of a level in `levels` is set exactly if a bit of one of its slots is.

use crate::slot_index::{LEVELS, SLOTS_PER_LEVEL, SlotIndex};

const WORDS: usize = SLOTS_PER_LEVEL / u64::BITS as usize;

#[derive(Debug, Clone, Default)]
pub(crate) struct Occupancy {
    levels: u64,
    slots: [[u64; WORDS]; LEVELS],
}

impl Occupancy {
    #[inline]
    pub(crate) fn set(&mut self, slot_index: SlotIndex) {
        self.slots[slot_index.level()][slot_index.slot() / 64] |= 1 << (slot_index.slot() % 64);
        self.levels |= 1 << slot_index.level();
    }

    #[inline]
    pub(crate) fn unset(&mut self, slot_index: SlotIndex) {
        let words = &mut self.slots[slot_index.level()];
        words[slot_index.slot() / 64] &= !(1 << (slot_index.slot() % 64));
        if words.iter().all(|word| *word == 0) {
            self.levels &= !(1 << slot_index.level());
        }
    }

    /// The occupied slot that is nearest in time: the lowest slot of the lowest occupied level.
    #[inline]
    pub(crate) fn first(&self) -> Option<SlotIndex> {
        if self.levels == 0 {
            return None;
        }
        let level = self.levels.trailing_zeros() as usize;
        let words = &self.slots[level];
        let word = words.iter().position(|word| *word != 0)?;
        Some(SlotIndex::new(level, word * 64 + words[word].trailing_zeros() as usize))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_slot_is_the_lowest_of_the_lowest_level() {
        let mut occupancy = Occupancy::default();
        assert_eq!(occupancy.first(), None);
        let in_order = [(0, 63), (0, 64), (0, 255), (1, 0), (7, 255)];
        for (level, slot) in in_order.into_iter().rev() {
            occupancy.set(SlotIndex::new(level, slot));
            assert_eq!(occupancy.first(), Some(SlotIndex::new(level, slot)));
        }
        for (level, slot) in in_order {
            assert_eq!(occupancy.first(), Some(SlotIndex::new(level, slot)));
            occupancy.unset(SlotIndex::new(level, slot));
        }
        assert_eq!(occupancy.first(), None);
    }
}
