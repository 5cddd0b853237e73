//! Timers: the record of each pending timer, and ids that never match another timer.
//!
//! Each record has a generation, which is odd while the record is in use and grows with each insert
//! and each removal. An id contains the generation, so it matches at most one timer. A record whose
//! generations are used up is retired.
//!
//! The generation is in the record, next to the due time: a caller that checks whether an id is
//! live needs the due time as well, and a second array would cost another cache miss.

use crate::pages::Pages;

/// The id of a timer of one wheel. Once the timer has expired or was cancelled, the id matches
/// nothing. It has no meaning for other wheels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TimerId {
    index: u32,
    generation: u32,
}

impl TimerId {
    /// Fills the unused entries of a chunk. It matches nothing, because its generation is even.
    pub(crate) const NONE: TimerId = TimerId { index: 0, generation: 0 };
}

#[derive(Debug, Clone, Copy)]
struct Record<T> {
    /// The due time; for a free record, the index of the next free one. In two halves, so that a
    /// record with a value of four bytes takes sixteen.
    due: [u32; 2],
    value: T,
    generation: u32,
}

impl<T> Record<T> {
    #[inline]
    fn due(&self) -> u64 {
        u64::from(self.due[0]) << 32 | u64::from(self.due[1])
    }
}

/// The halves of a due time.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "the upper half is the other one")]
fn halves(due: u64) -> [u32; 2] {
    [(due >> 32) as u32, due as u32]
}

/// The end of the list of free records.
const NO_INDEX: u32 = u32::MAX;

/// The last even generation. A record that reaches it is not reused, because the generations would
/// start again and a stale id could match.
const RETIRED: u32 = u32::MAX - 1;

/// Records in a page, which has 64 KiB with `T = u32`, so that a small wheel stays small.
const PAGE_LEN: usize = 4096;

#[derive(Debug)]
pub(crate) struct Timers<T> {
    records: Pages<Record<T>, PAGE_LEN>,
    /// The record that was freed last is reused first, because it is still in the cache.
    first_free: u32,
    live: u32,
}

impl<T: Copy> Timers<T> {
    pub(crate) const fn new() -> Self {
        Timers { records: Pages::new(), first_free: NO_INDEX, live: 0 }
    }

    pub(crate) fn live(&self) -> u32 {
        self.live
    }

    /// Adds a timer; `None` if every index is in use or retired.
    #[inline]
    pub(crate) fn insert(&mut self, due: u64, value: T) -> Option<TimerId> {
        let index = self.first_free;
        let id = if index == NO_INDEX {
            let index = self.records.len();
            if index == NO_INDEX {
                return None;
            }
            // A new page is filled with copies, whose generation must match nothing.
            self.records.push(Record { due: halves(due), value, generation: 0 });
            self.records.get_mut(index).generation = 1;
            TimerId { index, generation: 1 }
        } else {
            let record = self.records.get_mut(index);
            self.first_free = record.due[1];
            let generation = record.generation + 1;
            *record = Record { due: halves(due), value, generation };
            TimerId { index, generation }
        };
        self.live += 1;
        Some(id)
    }

    /// Removes a timer and frees its record. Returns due time and value if the id is live.
    #[inline]
    pub(crate) fn remove(&mut self, id: TimerId) -> Option<(u64, T)> {
        // The generation of an id is odd, so it never matches a free record, whose is even.
        let record = self.records.get_checked_mut(id.index)?;
        if record.generation != id.generation {
            return None;
        }
        let (due, value) = (record.due(), record.value);
        record.generation += 1;
        if record.generation != RETIRED {
            record.due[1] = self.first_free;
            self.first_free = id.index;
        }
        self.live -= 1;
        Some((due, value))
    }

    /// Writes the live ids among `ids` with their due times to the beginning of `out`, in order,
    /// and returns how many there are.
    ///
    /// It does not branch on the records that it reads. Most of them are not in the cache, and only
    /// without mispredicted branches are many of them loaded at the same time.
    #[inline]
    pub(crate) fn live_among<const N: usize>(
        &self,
        ids: &[TimerId],
        out: &mut [(u64, TimerId); N],
    ) -> usize {
        let mut live = 0;
        for id in ids.iter().take(N) {
            let record = self.records.get(id.index);
            out[live] = (record.due(), *id);
            live += usize::from(record.generation == id.generation);
        }
        live
    }

    /// Removes every timer. Their ids match nothing from now on.
    pub(crate) fn clear(&mut self) {
        for index in 0..self.records.len() {
            let generation = self.records.get(index).generation;
            if generation % 2 == 1 {
                self.remove(TimerId { index, generation });
            }
        }
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.records.memory_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_eight_bytes_and_a_record_sixteen() {
        assert_eq!(size_of::<TimerId>(), 8);
        assert_eq!(size_of::<Record<u32>>(), 16);
    }

    #[test]
    fn an_index_is_reused_with_another_id() {
        let mut timers = Timers::new();
        let first = timers.insert(5, 'a').unwrap();
        assert_eq!(timers.remove(first), Some((5, 'a')));
        let second = timers.insert(6, 'b').unwrap();
        assert_eq!(first.index, second.index);
        assert_ne!(first, second);
        assert_eq!(timers.remove(first), None);
        assert_eq!(timers.remove(second), Some((6, 'b')));
        assert_eq!(timers.records.len(), 1);
    }

    #[test]
    fn an_index_that_has_used_up_its_generations_is_retired() {
        let mut timers = Timers::new();
        let id = timers.insert(1, 'a').unwrap();
        timers.records.get_mut(id.index).generation = RETIRED - 1;
        let last = TimerId { index: id.index, generation: RETIRED - 1 };
        assert_eq!(timers.remove(last), Some((1, 'a')));
        assert_eq!(timers.remove(last), None);
        let next = timers.insert(2, 'b').unwrap();
        assert_ne!(next.index, id.index, "a stale id could match otherwise");
    }

    #[test]
    fn ids_that_were_never_issued_match_nothing() {
        let mut timers = Timers::new();
        assert_eq!(timers.remove(TimerId { index: 0, generation: 1 }), None);
        timers.insert(1, 'a').unwrap();
        for (index, generation) in [(0, 3), (1, 1), (5_000, 1), (u32::MAX, 1)] {
            assert_eq!(timers.remove(TimerId { index, generation }), None);
        }
        assert_eq!(timers.live(), 1);
    }
}
