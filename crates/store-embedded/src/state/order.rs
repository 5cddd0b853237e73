//! Order: the times under which postponed and paused tasks are listed.
//!
//! The timeline has no entry of these tasks at their time: the entry of a postponed task is at an
//! earlier time, and a paused task has none. [`OrderLog`] returns the next of them after a key
//! without examining the others. Keys that were noted since the last checkpoint are in memory, in
//! sorted chunks; the others are rows of the catalog.
//! A postponed or paused task is found under its present time. It may also be found under an
//! earlier one that no longer holds, so a reader checks the task itself.
//! Names are noted in the same way, so that keys with a common prefix are found together
//! (`read::list`), and the fires of dead letters, so that a page of them examines no others
//! (`read::dead_letters`).

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::sync::Arc;

use punctual_core::{FireId, PartitionId, TaskId, Timestamp};
use punctual_store::codec::CodecError;

use crate::catalog::Paused;
use crate::key::EntryKey;
use crate::state::relocation::Relocation;

/// Keys that are sorted together: few enough to cost a commit little, enough for a small number of
/// chunks.
const CHUNK_LENGTH: usize = 4096;

/// The kind of task that a row of the order is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ListedKind {
    /// Scheduled, with an entry at another time.
    Postponed = 0,
    Paused = 1,
}

/// A key as bytes that sort in the same order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct OrderKey([u8; Self::BYTES]);

impl OrderKey {
    pub(crate) const BYTES: usize = 26;

    pub(crate) fn of(key: EntryKey) -> Self {
        let mut bytes = [0; Self::BYTES];
        bytes[..2].copy_from_slice(&key.partition.get().to_be_bytes());
        bytes[2..10].copy_from_slice(&key.at.as_millis().to_be_bytes());
        bytes[10..].copy_from_slice(&key.id.as_u128().to_be_bytes());
        Self(bytes)
    }

    pub(crate) const fn bytes(&self) -> &[u8; Self::BYTES] {
        &self.0
    }

    /// Decodes a key from its bytes.
    pub(crate) fn read(bytes: &[u8]) -> Result<EntryKey, CodecError> {
        let bytes: &[u8; Self::BYTES] =
            bytes.try_into().map_err(|_| CodecError::Short("key of the order"))?;
        let (partition, rest) = bytes.split_at(2);
        let (at, id) = rest.split_at(8);
        let short = |_| CodecError::Short("key of the order");
        let partition = u16::from_be_bytes(partition.try_into().map_err(short)?);
        let at = i128::from(u64::from_be_bytes(at.try_into().map_err(short)?));
        let id = u128::from_be_bytes(id.try_into().map_err(short)?);
        Ok(EntryKey {
            partition: PartitionId::new(partition).ok_or(CodecError::Invalid("partition"))?,
            at: Timestamp::try_from_millis(at).map_err(|_| CodecError::Invalid("timestamp"))?,
            id: TaskId::try_from_u128(id).map_err(|_| CodecError::Invalid("id"))?,
        })
    }
}

/// The key under which a relocated task is listed; `None` if its entry is at its time. A task whose
/// time of filing only the catalog knows counts as postponed.
pub(crate) fn postponed_key(id: TaskId, relocation: Option<Relocation>) -> Option<EntryKey> {
    let relocation = relocation?;
    let moved = relocation.moved()?;
    (relocation.filed_at() != Some(moved.fire_at)).then(|| EntryKey::new(moved.fire_at, id))
}

/// The key under which a paused task is listed.
pub(crate) fn paused_key(id: TaskId, paused: Option<&Paused>) -> Option<EntryKey> {
    paused.map(|paused| EntryKey::new(paused.fire_at, id))
}

/// A fire in the order in which the catalog has dead letters: by partition, then by fire id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LetterKey(FireId);

impl LetterKey {
    pub(crate) const fn of(fire_id: FireId) -> Self {
        Self(fire_id)
    }

    pub(crate) const fn fire_id(&self) -> FireId {
        self.0
    }

    /// Whether the key is after a fire, which may be one of another partition, in the order of a
    /// partition, or after that partition.
    pub(crate) fn is_after(&self, partition: PartitionId, fire_id: Option<FireId>) -> bool {
        match self.0.task.partition().cmp(&partition) {
            Ordering::Less => false,
            Ordering::Equal => fire_id.is_none_or(|fire_id| self.0 > fire_id),
            Ordering::Greater => true,
        }
    }

    /// Whether the key is of a partition, and not after a fire of it.
    pub(crate) fn is_within(&self, partition: PartitionId, upto: Option<FireId>) -> bool {
        self.0.task.partition() == partition && upto.is_none_or(|upto| self.0 <= upto)
    }
}

impl Ord for LetterKey {
    fn cmp(&self, other: &Self) -> Ordering {
        let partitions = self.0.task.partition().cmp(&other.0.task.partition());
        partitions.then_with(|| self.0.cmp(&other.0))
    }
}

impl PartialOrd for LetterKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Values in sorted chunks, and the latest ones unsorted.
#[derive(Debug, Clone)]
pub(crate) struct SortedChunks<T> {
    sorted: Vec<Arc<[T]>>,
    open: Vec<T>,
}

impl<T> Default for SortedChunks<T> {
    fn default() -> Self {
        Self { sorted: Vec::new(), open: Vec::new() }
    }
}

impl<T: Ord + Clone> SortedChunks<T> {
    fn note(&mut self, value: T) {
        self.open.push(value);
        if self.open.len() >= CHUNK_LENGTH {
            self.open.sort_unstable();
            self.open.dedup();
            self.sorted.push(self.open.as_slice().into());
            self.open.clear();
        }
    }

    /// The first values that are not `before` the range and are `within` it: in order, without
    /// duplicates, at most `limit`.
    fn select(
        &self,
        before: impl Fn(&T) -> bool,
        within: impl Fn(&T) -> bool,
        limit: usize,
    ) -> Vec<T> {
        let wanted = |value: &&T| !before(value) && within(value);
        let mut open: Vec<&T> = self.open.iter().filter(wanted).collect();
        open.sort_unstable();
        // The next value of each chunk, and the rest of the chunk.
        let mut heads = BinaryHeap::with_capacity(self.sorted.len() + 1);
        for chunk in &self.sorted {
            let mut rest = chunk[chunk.partition_point(&before)..].iter();
            heads.extend(rest.next().map(|value| Reverse((value, rest.as_slice()))));
        }
        let mut open = open.into_iter().peekable();
        let mut found: Vec<T> = Vec::new();
        while found.len() < limit {
            let from_open = match (open.peek(), heads.peek()) {
                (None, None) => break,
                (one, None) => one.is_some(),
                (None, Some(_)) => false,
                (Some(one), Some(Reverse((other, _)))) => one <= other,
            };
            let next = if from_open {
                open.next()
            } else {
                heads.pop().map(|Reverse((value, rest))| {
                    let next = rest.split_first();
                    heads.extend(next.map(|(next, rest)| Reverse((next, rest))));
                    value
                })
            };
            match next {
                Some(next) if within(next) => {
                    if found.last() != Some(next) {
                        found.push(next.clone());
                    }
                }
                _ => break,
            }
        }
        found
    }
}

/// What was noted since the last checkpoint, and what the running checkpoint writes.
#[derive(Debug)]
pub(crate) struct OrderLog<T> {
    now: SortedChunks<T>,
    frozen: Option<SortedChunks<T>>,
}

impl<T> Default for OrderLog<T> {
    fn default() -> Self {
        Self { now: SortedChunks::default(), frozen: None }
    }
}

impl<T: Ord + Clone> OrderLog<T> {
    pub(crate) fn note(&mut self, value: T) {
        self.now.note(value);
    }

    /// The first values that are not `before` the range and are `within` it: in order, without
    /// duplicates, at most `limit`.
    pub(crate) fn select(
        &self,
        before: impl Fn(&T) -> bool,
        within: impl Fn(&T) -> bool,
        limit: usize,
    ) -> Vec<T> {
        let mut found = self.now.select(&before, &within, limit);
        if let Some(frozen) = &self.frozen {
            found.extend(frozen.select(&before, &within, limit));
            found.sort_unstable();
            found.dedup();
            found.truncate(limit);
        }
        found
    }

    /// Starts a checkpoint.
    pub(crate) fn freeze(&mut self) {
        self.frozen = Some(std::mem::take(&mut self.now));
    }

    /// Ends a checkpoint: what was noted before it is in the catalog. Returned to be freed after
    /// the lock is released.
    #[must_use]
    pub(crate) const fn thaw(&mut self) -> Option<SortedChunks<T>> {
        self.frozen.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn piles_give_what_was_noted_in_order_and_each_once() {
        let mut noted = OrderLog::default();
        let number = |n: u64| n.wrapping_mul(7919) % 20_011;
        for n in 0..12_000 {
            noted.note(number(n));
        }
        noted.freeze();
        for n in 11_000..19_500 {
            noted.note(number(n));
        }
        let mut all: Vec<u64> = (0..19_500).map(number).collect();
        all.sort_unstable();
        all.dedup();
        for (after, end, limit) in [
            (0, 20_011, 1),
            (0, 20_011, 100_000),
            (77, 9999, 5000),
            (20_000, 20_005, 50),
            (9, 9, 3),
        ] {
            let rest = all.iter().copied().filter(|n| *n > after && *n < end);
            let want: Vec<u64> = rest.take(limit).collect();
            let found = noted.select(|n| *n <= after, |n| *n < end, limit);
            assert_eq!(found, want, "{limit} between {after} and {end}");
        }
        drop(noted.thaw());
        assert_eq!(noted.select(|_| false, |_| true, 100_000).len(), 8500);
    }

    #[test]
    fn bytes_of_a_key_sort_as_it_does_and_read_back() {
        let key = |partition, at, id: u64| {
            let id = TaskId::floor(Timestamp::from_millis(id));
            let partition = PartitionId::new(partition).expect("a partition");
            EntryKey { partition, at: Timestamp::from_millis(at), id }
        };
        let keys = [key(0, 0, 1), key(0, 1, 0), key(0, 256, 0), key(1, 2, 9), key(256, 0, 0)];
        for (one, other) in keys.iter().zip(&keys[1..]) {
            assert!(OrderKey::of(*one) < OrderKey::of(*other), "{one:?} {other:?}");
            assert_eq!(OrderKey::read(OrderKey::of(*one).bytes()), Ok(*one));
        }
        assert!(OrderKey::read(&[0; 5]).is_err());
    }
}
