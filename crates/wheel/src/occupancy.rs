//! Occupancy: which slots have live timers, one bit each, so that empty ones are never visited.
//!
//! In: places that became occupied or empty. Out: the first occupied place.
//! Invariant: a level's bit in `levels` is set exactly when one of its slots' bits is.
//! Not here: what the slots hold (`slot`), when they start (`place`).

use crate::place::{LEVELS, Place, SLOTS_PER_LEVEL};

const WORDS: usize = SLOTS_PER_LEVEL / u64::BITS as usize;

#[derive(Debug, Clone, Default)]
pub(crate) struct Occupancy {
    levels: u64,
    slots: [[u64; WORDS]; LEVELS],
}

impl Occupancy {
    #[inline]
    pub(crate) fn set(&mut self, place: Place) {
        self.slots[place.level()][place.slot() / 64] |= 1 << (place.slot() % 64);
        self.levels |= 1 << place.level();
    }

    #[inline]
    pub(crate) fn unset(&mut self, place: Place) {
        let words = &mut self.slots[place.level()];
        words[place.slot() / 64] &= !(1 << (place.slot() % 64));
        if words.iter().all(|word| *word == 0) {
            self.levels &= !(1 << place.level());
        }
    }

    /// The earliest occupied place: the lowest level holds the nearest times, its lowest slot the
    /// nearest of those.
    #[inline]
    pub(crate) fn first(&self) -> Option<Place> {
        if self.levels == 0 {
            return None;
        }
        let level = self.levels.trailing_zeros() as usize;
        let words = &self.slots[level];
        let word = words.iter().position(|word| *word != 0)?;
        Some(Place::new(level, word * 64 + words[word].trailing_zeros() as usize))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_place_is_the_lowest_slot_of_the_lowest_level() {
        let mut occupancy = Occupancy::default();
        assert_eq!(occupancy.first(), None);
        let in_order = [(0, 63), (0, 64), (0, 255), (1, 0), (7, 255)];
        for (level, slot) in in_order.into_iter().rev() {
            occupancy.set(Place::new(level, slot));
            assert_eq!(occupancy.first(), Some(Place::new(level, slot)));
        }
        for (level, slot) in in_order {
            assert_eq!(occupancy.first(), Some(Place::new(level, slot)));
            occupancy.unset(Place::new(level, slot));
        }
        assert_eq!(occupancy.first(), None);
    }
}
