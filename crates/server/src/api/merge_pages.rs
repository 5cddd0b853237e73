//! Merges pages of all partitions into one sorted page.
//!
//! One position is the cursor of all partitions, because positions are ordered across them. An
//! entry is returned only when no partition can still have one before it, so pages have neither
//! gaps nor repetitions. Entries of several partitions with the same position become one. The size
//! of each read, the number of reads and the bytes of a page are bounded.

use std::collections::VecDeque;

use punctual_core::{PartitionId, Partitions};
use punctual_store::{Page, StoreError};
use tokio::task::JoinSet;

/// Partitions that are read at the same time.
const READS_MAX: usize = 16;
/// Reads of one partition for one page. With a filter that few tasks pass, pages become short
/// instead of slow.
const ROUNDS_MAX: usize = 8;
/// A page ends when it has this many bytes.
const PAGE_BYTES_MAX: usize = 16 << 20;
/// Entries in one read of a partition, at least.
const READ_MIN: usize = 32;

/// The order and the size of entries, and how those with the same position become one.
#[derive(Debug)]
pub(crate) struct SortBy<T, C> {
    /// What entries are sorted by.
    pub(crate) position: fn(&T) -> C,
    /// About how many bytes an entry takes in a response.
    pub(crate) weight: fn(&T) -> usize,
    /// Adds an entry to that of another partition with the same position. `None` if each position
    /// is in one partition only.
    pub(crate) join: Option<fn(&mut T, T)>,
}

/// What was read of one partition.
struct Source<T, C> {
    partition: PartitionId,
    /// Entries that were read and not returned yet.
    read: VecDeque<T>,
    /// The position of the last entry that was read; `None` before the first read.
    upto: Option<C>,
    /// Whether there are entries after `upto`.
    more: bool,
    rounds: usize,
}

/// Returns one page of all partitions; `fetch` reads a page of one partition.
pub(crate) async fn merge<T, C, F>(
    partitions: Partitions,
    after: Option<C>,
    limit: usize,
    sort_by: &SortBy<T, C>,
    fetch: impl Fn(PartitionId, Option<C>, usize) -> F,
) -> Result<Page<T, C>, StoreError>
where
    T: Send + 'static,
    C: Clone + Ord + Send + 'static,
    F: Future<Output = Result<Page<T, C>, StoreError>> + Send + 'static,
{
    let count = usize::from(partitions.count());
    let chunk = (2 * limit).div_ceil(count).max(READ_MIN).min(limit);
    let mut sources: Vec<Source<T, C>> = partitions
        .iter()
        .map(|partition| {
            let read = VecDeque::new();
            Source { partition, read, upto: after.clone(), more: true, rounds: 0 }
        })
        .collect();
    let mut items = Vec::new();
    let mut bytes = 0;
    let mut last = after;
    loop {
        refill(&mut sources, chunk, &fetch).await?;
        // Up to this position every partition was read.
        let empty = sources.iter().filter(|source| source.more && source.read.is_empty());
        let frontier = empty.map(|source| source.upto.clone()).min();
        let first = sources.iter_mut().filter(|source| !source.read.is_empty());
        let first = first.min_by_key(|source| source.read.front().map(sort_by.position));
        let Some(source) = first else {
            return Ok(Page { items, next: frontier.and_then(|frontier| frontier.max(last)) });
        };
        let position = source.read.front().map(sort_by.position);
        if let (Some(join), Some(same)) = (sort_by.join, items.last_mut())
            && position == last
        {
            source.read.pop_front().into_iter().for_each(|item| join(same, item));
            continue;
        }
        let full = items.len() >= limit || bytes >= PAGE_BYTES_MAX;
        if full || frontier.as_ref().is_some_and(|frontier| position > *frontier) {
            let next = if full { last } else { frontier.flatten().max(last) };
            return Ok(Page { items, next });
        }
        if let Some(item) = source.read.pop_front() {
            bytes += (sort_by.weight)(&item);
            items.push(item);
            last = position;
        }
    }
}

/// Reads the partitions of which no entry is left, some at a time.
async fn refill<T, C, F>(
    sources: &mut [Source<T, C>],
    chunk: usize,
    fetch: &impl Fn(PartitionId, Option<C>, usize) -> F,
) -> Result<(), StoreError>
where
    T: Send + 'static,
    C: Clone + Ord + Send + 'static,
    F: Future<Output = Result<Page<T, C>, StoreError>> + Send + 'static,
{
    loop {
        let mut reads = JoinSet::new();
        for (index, source) in sources.iter().enumerate() {
            if source.read.is_empty() && source.more && source.rounds < ROUNDS_MAX {
                let reading = fetch(source.partition, source.upto.clone(), chunk);
                reads.spawn(async move { (index, reading.await) });
            }
            if reads.len() == READS_MAX {
                break;
            }
        }
        if reads.is_empty() {
            return Ok(());
        }
        while let Some(read) = reads.join_next().await {
            let (index, page) = read.map_err(|error| StoreError::Unavailable(error.into()))?;
            let page = page?;
            let source = &mut sources[index];
            source.rounds += 1;
            source.more = page.next.is_some();
            source.upto = page.next.or(source.upto.take());
            source.read = page.items.into();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SORT_BY: SortBy<u64, u64> = SortBy { position: |item| *item, weight: |_| 1, join: None };

    /// Partition `p` of `count` has the numbers that are `p` modulo `count`, up to 1000. A read
    /// scans at most `scan_max` of them.
    fn page(
        partition: PartitionId,
        count: u64,
        after: Option<u64>,
        limit: usize,
        scan_max: u64,
    ) -> Page<u64, u64> {
        let first = after.map_or(0, |after| after + 1);
        let all = (first..1000).filter(|number| number % count == u64::from(partition.get()));
        let all: Vec<u64> = all.collect();
        let scan_max = usize::try_from(scan_max).unwrap();
        let scanned: Vec<u64> = all.iter().copied().take(scan_max).collect();
        // Those that pass a filter.
        let mut items: Vec<u64> =
            scanned.iter().copied().filter(|number| number % 7 != 3).collect();
        let cut = items.len() > limit;
        items.truncate(limit);
        let next = if cut { items.last().copied() } else { scanned.last().copied() };
        let more = cut || scanned.len() < all.len();
        Page { items, next: next.filter(|_| more) }
    }

    #[tokio::test]
    async fn pages_have_no_gaps_and_no_repetitions() {
        let want: Vec<u64> = (0..1000).filter(|number| number % 7 != 3).collect();
        for (count, limit, scan_max) in
            [(1, 10, 50), (4, 33, 5), (16, 7, 1), (64, 1000, 3), (3, 1, 1)]
        {
            let partitions = Partitions::new(count).unwrap();
            let fetch = |partition, after, limit| {
                let page = page(partition, u64::from(count), after, limit, scan_max);
                async move { Ok(page) }
            };
            let mut got = Vec::new();
            let mut after = None;
            loop {
                let page = merge(partitions, after, limit, &SORT_BY, fetch).await.unwrap();
                assert!(page.items.len() <= limit);
                assert!(page.next.is_none() || page.next > after, "the cursor must advance");
                got.extend(page.items);
                after = page.next;
                if after.is_none() {
                    break;
                }
            }
            assert_eq!(got, want, "{count} {limit} {scan_max}");
        }
    }

    /// Each partition has every multiple of its number plus one, once.
    #[tokio::test]
    async fn entries_with_the_same_position_are_joined_and_never_on_two_pages() {
        let sort_by: SortBy<(u64, u64), u64> = SortBy {
            position: |(number, _)| *number,
            weight: |_| 1,
            join: Some(|(_, count), (_, more)| *count += more),
        };
        for (partitions, limit, scan_max) in [(1, 7, 9), (3, 1, 1), (5, 4, 2), (16, 100, 3)] {
            let want: Vec<(u64, u64)> = (1..=300)
                .map(|number| (number, (1..=partitions).filter(|step| number % step == 0).count()))
                .map(|(number, count)| (number, u64::try_from(count).unwrap()))
                .collect();
            let fetch = |partition: PartitionId, after: Option<u64>, limit: usize| {
                let step = u64::from(partition.get()) + 1;
                let rest = (after.unwrap_or(0) + 1..=300).filter(|number| number % step == 0);
                let items = rest.map(|number| (number, 1));
                let page = Page::first(items, limit.min(scan_max), |(number, _)| *number);
                async move { Ok(page) }
            };
            let count = Partitions::new(u16::try_from(partitions).unwrap()).unwrap();
            let (mut got, mut after) = (Vec::new(), None);
            loop {
                let page = merge(count, after, limit, &sort_by, fetch).await.unwrap();
                assert!(page.items.len() <= limit);
                got.extend(page.items);
                after = page.next;
                if after.is_none() {
                    break;
                }
            }
            assert_eq!(got, want, "{partitions} partitions by {limit}");
        }
    }
}
