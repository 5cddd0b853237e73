//! Slots: lists of timer ids in chunks of one pool.
//!
//! A slot returns its ids in the order of insertion, a chunk at a time. All chunks of a slot but
//! the last are full; every chunk is in one slot or free. A slot counts live and dead ids, but only
//! `timers` knows which are which.
//!
//! With chunks instead of one growing array per slot, every slot can reuse the memory of another,
//! and nothing is copied when a slot grows.

use crate::pages::Pages;
use crate::timers::TimerId;

/// Ids in a chunk: together with the link they fill 256 bytes, four cache lines.
pub(crate) const CHUNK_LEN: usize = 31;

/// A slot is swept when it has this many more dead than live ids: two chunks, because sweeping
/// fewer might free none.
const DEAD_SLACK: u32 = 62;

/// Chunks in a page of the pool, which has 64 KiB.
const PAGE_LEN: usize = 256;

const NO_CHUNK: u32 = u32::MAX;

#[derive(Debug, Clone, Copy)]
struct Chunk {
    ids: [TimerId; CHUNK_LEN],
    next: u32,
}

/// The pool of all chunks of a wheel.
#[derive(Debug)]
pub(crate) struct Chunks {
    chunks: Pages<Chunk, PAGE_LEN>,
    first_free: u32,
}

impl Chunks {
    pub(crate) const fn new() -> Self {
        Chunks { chunks: Pages::new(), first_free: NO_CHUNK }
    }

    fn take(&mut self) -> u32 {
        let index = self.first_free;
        if index == NO_CHUNK {
            self.chunks.push(Chunk { ids: [TimerId::NONE; CHUNK_LEN], next: NO_CHUNK });
            return self.chunks.len() - 1;
        }
        let chunk = self.chunks.get_mut(index);
        self.first_free = chunk.next;
        chunk.next = NO_CHUNK;
        index
    }

    #[inline]
    pub(crate) fn ids(&self, taken: &TakenChunk) -> &[TimerId] {
        &self.chunks.get(taken.index).ids[..taken.len]
    }

    #[inline]
    pub(crate) fn give_back(&mut self, taken: TakenChunk) {
        self.give_back_all(taken.index, taken.index);
    }

    /// Returns the list of chunks from `head` to `tail` to the pool.
    fn give_back_all(&mut self, head: u32, tail: u32) {
        self.chunks.get_mut(tail).next = self.first_free;
        self.first_free = head;
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.chunks.memory_bytes()
    }
}

/// A chunk that was taken from a slot and must be returned to the pool.
#[derive(Debug)]
#[must_use = "a chunk that is not returned to the pool is leaked"]
pub(crate) struct TakenChunk {
    index: u32,
    len: usize,
}

/// One slot: a list of ids, how many of them are live, and the earliest due time among them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Slot {
    head: u32,
    tail: u32,
    tail_len: usize,
    live: u32,
    dead: u32,
    earliest_due: u64,
}

impl Slot {
    pub(crate) const EMPTY: Slot = Slot {
        head: NO_CHUNK,
        tail: NO_CHUNK,
        // As if the last chunk were full, so that the first push takes a new one.
        tail_len: CHUNK_LEN,
        live: 0,
        dead: 0,
        earliest_due: u64::MAX,
    };

    pub(crate) fn is_empty(&self) -> bool {
        self.live == 0
    }

    /// The earliest due time pushed since the slot was last empty or swept; `u64::MAX` if empty.
    pub(crate) fn earliest_due(&self) -> u64 {
        self.earliest_due
    }

    #[inline]
    pub(crate) fn push(&mut self, chunks: &mut Chunks, due: u64, id: TimerId) {
        if self.tail_len == CHUNK_LEN {
            let index = chunks.take();
            match self.tail {
                NO_CHUNK => self.head = index,
                tail => chunks.chunks.get_mut(tail).next = index,
            }
            self.tail = index;
            self.tail_len = 0;
        }
        chunks.chunks.get_mut(self.tail).ids[self.tail_len] = id;
        self.tail_len += 1;
        self.live += 1;
        self.earliest_due = self.earliest_due.min(due);
    }

    /// Counts one id as dead, which stays in the list.
    #[inline]
    pub(crate) fn mark_dead(&mut self) {
        self.live -= 1;
        self.dead += 1;
    }

    /// Whether enough ids are dead for a sweep to pay off.
    #[inline]
    pub(crate) fn needs_sweep(&self) -> bool {
        self.dead > self.live + DEAD_SLACK
    }

    /// Takes the first chunk out of the list. `Chunks::ids` reads its ids, and `Chunks::give_back`
    /// returns it to the pool.
    #[inline]
    pub(crate) fn pop_chunk(&mut self, chunks: &Chunks) -> Option<TakenChunk> {
        let index = self.head;
        if index == NO_CHUNK {
            return None;
        }
        let is_tail = index == self.tail;
        self.head = if is_tail { NO_CHUNK } else { chunks.chunks.get(index).next };
        Some(TakenChunk { index, len: if is_tail { self.tail_len } else { CHUNK_LEN } })
    }

    /// Empties the slot and returns its chunks to the pool, without reading them.
    pub(crate) fn clear(&mut self, chunks: &mut Chunks) {
        if self.head != NO_CHUNK {
            chunks.give_back_all(self.head, self.tail);
        }
        *self = Slot::EMPTY;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timers::Timers;

    #[test]
    fn ids_come_out_in_the_order_they_went_in() {
        let mut timers = Timers::new();
        let mut chunks = Chunks::new();
        for len in [0, 1, CHUNK_LEN - 1, CHUNK_LEN, CHUNK_LEN + 1, 5 * CHUNK_LEN, 100] {
            let ids: Vec<_> = (0..len).map(|_| timers.insert(7, ()).unwrap()).collect();
            let mut slot = Slot::EMPTY;
            for id in &ids {
                slot.push(&mut chunks, 7, *id);
            }
            let mut out = Vec::new();
            while let Some(taken) = slot.pop_chunk(&chunks) {
                out.extend_from_slice(chunks.ids(&taken));
                chunks.give_back(taken);
            }
            assert_eq!(out, ids);
        }
        assert_eq!(chunks.chunks.len(), 5, "each list reuses the chunks of the previous one");
    }
}
