//! Computes which slot of which level a due time has, relative to the wheel's time.
//!
//! For one wheel time, slots are ordered like their due times: first by level, then by slot. The
//! slot of a due time stays the same until the wheel's time enters it.

/// The bits of a time that one level reads. With 6 instead of 8, a timer due within the hour would
/// move three times instead of twice. With 10, a cascade would move four times as many timers at
/// once, to more slots than fit the first caches.
const LEVEL_BITS: u32 = 8;

pub(crate) const SLOTS_PER_LEVEL: usize = 1 << LEVEL_BITS;

/// Enough levels for all bits of a `u64`.
pub(crate) const LEVELS: usize = (u64::BITS / LEVEL_BITS) as usize;

/// The number of a slot among all slots: first by level, then by slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SlotIndex(usize);

pub(crate) const SLOTS: usize = LEVELS * SLOTS_PER_LEVEL;

impl SlotIndex {
    pub(crate) fn new(level: usize, slot: usize) -> SlotIndex {
        debug_assert!(level < LEVELS && slot < SLOTS_PER_LEVEL);
        SlotIndex(level * SLOTS_PER_LEVEL + slot)
    }

    /// The slot of a due time, which must not be before `now`. A timer due at `now` is in the slot
    /// of `now` at level 0.
    #[inline]
    pub(crate) fn of(now: u64, due: u64) -> SlotIndex {
        debug_assert!(due >= now, "a time before the wheel's has no slot");
        // `| 1` gives equal times level 0 and changes no other result.
        let level = ((now ^ due) | 1).ilog2() / LEVEL_BITS;
        let digit = (due >> (level * LEVEL_BITS)).to_le_bytes()[0];
        SlotIndex(level as usize * SLOTS_PER_LEVEL + usize::from(digit))
    }

    /// The first tick of this slot, for a wheel at `now`.
    #[inline]
    pub(crate) fn start(self, now: u64) -> u64 {
        let shift = self.level() * LEVEL_BITS as usize;
        // Two shifts, because the top level has no digits above it and `>> 64` is not defined.
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

    /// The index in an array of all [`SLOTS`].
    #[inline]
    pub(crate) fn number(self) -> usize {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slot_is_given_by_the_highest_digit_that_differs() {
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
            let slot_index = SlotIndex::of(now, due);
            assert_eq!(slot_index, SlotIndex::new(level, slot), "now {now}, due {due}");
            assert_eq!(slot_index.start(now), start, "now {now}, due {due}");
        }
    }
}
