//! Slots: lists of ids in chunks, all taken from one pool.
//!
//! In: ids in order of insertion. Out: the same ids in the same order, a chunk at a time.
//! Invariant: a slot's chunks are full but for the last; a chunk is in one slot or free.
//! Not here: which ids are live (`timers`); a slot only counts what it is told.
//!
//! Chunks rather than one growing array a slot, because memory that one slot gives back is then
//! good for any other, and nothing is ever copied in order to grow.

use crate::pages::Pages;
use crate::timers::TimerId;

/// Ids in a chunk: with the link they fill 256 bytes, four cache lines.
pub(crate) const CHUNK_LEN: usize = 31;

/// A slot is swept when its dead ids exceed the live ones by more than this: two chunks, since
/// sweeping less would give nothing back.
const DEAD_SLACK: u32 = 62;

/// Chunks in a page of the pool: 64 KiB.
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
    pub(crate) fn ids(&self, taken: &Taken) -> &[TimerId] {
        &self.chunks.get(taken.index).ids[..taken.len]
    }

    #[inline]
    pub(crate) fn give_back(&mut self, taken: Taken) {
        self.give_back_all(taken.index, taken.index);
    }

    /// Gives back the chunks from `head` to `tail`, however many there are between them.
    fn give_back_all(&mut self, head: u32, tail: u32) {
        self.chunks.get_mut(tail).next = self.first_free;
        self.first_free = head;
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.chunks.memory_bytes()
    }
}

/// A chunk on its way from a slot back to the pool.
#[derive(Debug)]
#[must_use = "a chunk that is not given back is lost"]
pub(crate) struct Taken {
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
        // As if a full chunk were there, so that the first push takes one.
        tail_len: CHUNK_LEN,
        live: 0,
        dead: 0,
        earliest_due: u64::MAX,
    };

    pub(crate) fn is_empty(&self) -> bool {
        self.live == 0
    }

    /// The earliest due time ever pushed since the slot was empty or swept; `u64::MAX` if empty.
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

    /// Notes that one of the ids died and stays in the list.
    #[inline]
    pub(crate) fn note_dead(&mut self) {
        self.live -= 1;
        self.dead += 1;
    }

    /// Whether so many ids are dead that reading them all pays for itself.
    #[inline]
    pub(crate) fn wants_sweep(&self) -> bool {
        self.dead > self.live + DEAD_SLACK
    }

    /// Takes the first chunk out of the list. Its ids are read with `Chunks::ids`, and it goes back
    /// with `Chunks::give_back`.
    #[inline]
    pub(crate) fn pop_chunk(&mut self, chunks: &Chunks) -> Option<Taken> {
        let index = self.head;
        if index == NO_CHUNK {
            return None;
        }
        let is_tail = index == self.tail;
        self.head = if is_tail { NO_CHUNK } else { chunks.chunks.get(index).next };
        Some(Taken { index, len: if is_tail { self.tail_len } else { CHUNK_LEN } })
    }

    /// Forgets everything and gives all chunks back, without reading them.
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
        assert_eq!(chunks.chunks.len(), 5, "each list reused the chunks of the one before");
    }
}
