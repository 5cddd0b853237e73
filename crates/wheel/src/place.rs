//! Places: which slot of which level a due time has, seen from the wheel's time.
//!
//! In: the wheel's time and a due time that is not before it. Out: a `Place`, and when it starts.
//! Invariant: for one wheel time, places order as their due times do (first by level, then by
//! slot), and a place does not change while time moves without entering it.
//! Not here: which places are occupied (`occupancy`), what lies in them (`slot`).

/// Bits of time that one level reads: a byte. With 6, a timer due within the hour would be moved
/// three times instead of two, and four times as many at once; with 10, the tails that a cascade
/// appends to would no longer fit the caches near the core.
const LEVEL_BITS: u32 = 8;

pub(crate) const SLOTS_PER_LEVEL: usize = 1 << LEVEL_BITS;

/// Enough levels for every `u64`.
pub(crate) const LEVELS: usize = (u64::BITS / LEVEL_BITS) as usize;

/// One slot of one level, as its number among all places: first by level, then by slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place(usize);

pub(crate) const PLACES: usize = LEVELS * SLOTS_PER_LEVEL;

impl Place {
    pub(crate) fn new(level: usize, slot: usize) -> Place {
        debug_assert!(level < LEVELS && slot < SLOTS_PER_LEVEL);
        Place(level * SLOTS_PER_LEVEL + slot)
    }

    /// The place of a due time. `due` must not be before `now`; `due == now` has the slot of `now`
    /// itself, at level 0.
    #[inline]
    pub(crate) fn of(now: u64, due: u64) -> Place {
        debug_assert!(due >= now, "a time before the wheel's own has no place");
        // `| 1` gives equal times level 0 and changes no other answer.
        let level = ((now ^ due) | 1).ilog2() / LEVEL_BITS;
        let digit = (due >> (level * LEVEL_BITS)).to_le_bytes()[0];
        Place(level as usize * SLOTS_PER_LEVEL + usize::from(digit))
    }

    /// The first tick of this place, for a wheel at `now`.
    #[inline]
    pub(crate) fn start(self, now: u64) -> u64 {
        let shift = self.level() * LEVEL_BITS as usize;
        // Shifted twice, because the top level has no digits above it and `>> 64` is not defined.
        let above = now >> shift >> LEVEL_BITS << LEVEL_BITS;
        (above | self.slot() as u64) << shift
    }

    #[inline]
    pub(crate) fn level(self) -> usize {
        self.0 / SLOTS_PER_LEVEL
    }

    #[inline]
    pub(crate) fn slot(self) -> usize {
        self.0 % SLOTS_PER_LEVEL
    }

    /// Where this place stands in an array of all `PLACES`.
    #[inline]
    pub(crate) fn index(self) -> usize {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_is_the_highest_digit_that_differs() {
        for (now, due, level, slot, start) in [
            (0, 0, 0, 0, 0),
            (0, 1, 0, 1, 1),
            (0, 255, 0, 255, 255),
            (0, 256, 1, 1, 256),
            (255, 256, 1, 1, 256),
            (256, 257, 0, 1, 257),
            (0xffff, 0x1_0000, 2, 1, 0x1_0000),
            (0x07_3c51, 0x07_3e10, 1, 0x3e, 0x07_3e00),
            (0, u64::MAX, 7, 255, 0xff << 56),
            (u64::MAX - 1, u64::MAX, 0, 255, u64::MAX),
            (u64::MAX, u64::MAX, 0, 255, u64::MAX),
            ((1 << 56) - 1, 1 << 56, 7, 1, 1 << 56),
        ] {
            let place = Place::of(now, due);
            assert_eq!(place, Place::new(level, slot), "now {now}, due {due}");
            assert_eq!(place.start(now), start, "now {now}, due {due}");
        }
    }
}
