//! Merging: pages of all partitions become one page, in order.
//!
//! In: how to read one partition, and where to begin. Out: at most `limit` entries in order, and where to go on. One place is
//! enough for all partitions, because places are ordered across them.
//! Invariant: an entry is given out only when no partition can still have one before it, so that pages have neither gaps nor doubles.
//! Bound: what is read of a partition at once, how many reads one page takes, and how heavy it may become.

use std::collections::VecDeque;

use punctual_core::{PartitionId, Partitions};
use punctual_store::{Page, StoreError};
use tokio::task::JoinSet;

/// Partitions read at once.
const READS_MAX: usize = 16;
/// Reads of one partition for one page: a filter that hardly anything passes gives short pages, not long waits.
const ROUNDS_MAX: usize = 8;
/// Bytes of one page, after which it ends.
const PAGE_BYTES_MAX: usize = 16 << 20;
/// What is read of a partition at once, at least.
const READ_MIN: usize = 32;

/// How entries are ordered and weighed.
#[derive(Debug)]
pub(crate) struct Order<T, C> {
    /// Where an entry stands.
    pub(crate) place: fn(&T) -> C,
    /// About how many bytes it takes.
    pub(crate) weight: fn(&T) -> usize,
}

struct Source<T, C> {
    partition: PartitionId,
    /// What was read and not given out.
    read: VecDeque<T>,
    /// Up to where it was read; `None` at the beginning.
    upto: Option<C>,
    more: bool,
    rounds: usize,
}

/// One page of all partitions.
pub(crate) async fn merge<T, C, F>(
    partitions: Partitions,
    after: Option<C>,
    limit: usize,
    order: &Order<T, C>,
    fetch: impl Fn(PartitionId, Option<C>, usize) -> F,
) -> Result<Page<T, C>, StoreError>
where
    T: Send + 'static,
    C: Copy + Ord + Send + 'static,
    F: Future<Output = Result<Page<T, C>, StoreError>> + Send + 'static,
{
    let count = usize::from(partitions.count());
    let chunk = (2 * limit).div_ceil(count).max(READ_MIN).min(limit);
    let mut sources: Vec<Source<T, C>> = partitions
        .iter()
        .map(|partition| {
            let read = VecDeque::new();
            Source { partition, read, upto: after, more: true, rounds: 0 }
        })
        .collect();
    let mut items = Vec::new();
    let mut bytes = 0;
    let mut last = after;
    loop {
        refill(&mut sources, chunk, &fetch).await?;
        // Nothing beyond this is known of all partitions.
        let empty = sources.iter().filter(|source| source.more && source.read.is_empty());
        let frontier = empty.map(|source| source.upto).min();
        let first = sources.iter_mut().filter(|source| !source.read.is_empty());
        let first = first.min_by_key(|source| source.read.front().map(order.place));
        let Some(source) = first else {
            return Ok(Page {
                items,
                next: frontier.flatten().max(last).filter(|_| frontier.is_some()),
            });
        };
        let place = source.read.front().map(order.place);
        let full = items.len() >= limit || bytes >= PAGE_BYTES_MAX;
        if full || frontier.is_some_and(|frontier| place > frontier) {
            let next = if full { last } else { frontier.flatten().max(last) };
            return Ok(Page { items, next });
        }
        if let Some(item) = source.read.pop_front() {
            bytes += (order.weight)(&item);
            items.push(item);
            last = place;
        }
    }
}

/// Reads on where nothing is left, some partitions at a time.
async fn refill<T, C, F>(
    sources: &mut [Source<T, C>],
    chunk: usize,
    fetch: &impl Fn(PartitionId, Option<C>, usize) -> F,
) -> Result<(), StoreError>
where
    T: Send + 'static,
    C: Copy + Ord + Send + 'static,
    F: Future<Output = Result<Page<T, C>, StoreError>> + Send + 'static,
{
    loop {
        let mut reads = JoinSet::new();
        for (index, source) in sources.iter().enumerate() {
            if source.read.is_empty() && source.more && source.rounds < ROUNDS_MAX {
                let reading = fetch(source.partition, source.upto, chunk);
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
            source.upto = page.next.or(source.upto);
            source.read = page.items.into();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORDER: Order<u64, u64> = Order { place: |item| *item, weight: |_| 1 };

    /// Partition `p` of `count` has the numbers that are `p` modulo `count`, up to 1000; a page looks at so many at most.
    fn page(
        partition: PartitionId,
        count: u64,
        after: Option<u64>,
        limit: usize,
        look: u64,
    ) -> Page<u64, u64> {
        let first = after.map_or(0, |after| after + 1);
        let all = (first..1000).filter(|number| number % count == u64::from(partition.get()));
        let all: Vec<u64> = all.collect();
        let looked: Vec<u64> = all.iter().copied().take(usize::try_from(look).unwrap()).collect();
        // Only those that a filter lets through.
        let mut items: Vec<u64> = looked.iter().copied().filter(|number| number % 7 != 3).collect();
        let cut = items.len() > limit;
        items.truncate(limit);
        let next = if cut { items.last().copied() } else { looked.last().copied() };
        let more = cut || looked.len() < all.len();
        Page { items, next: next.filter(|_| more) }
    }

    #[tokio::test]
    async fn pages_follow_each_other_without_gaps_or_doubles() {
        let want: Vec<u64> = (0..1000).filter(|number| number % 7 != 3).collect();
        for (count, limit, look) in [(1, 10, 50), (4, 33, 5), (16, 7, 1), (64, 1000, 3), (3, 1, 1)]
        {
            let partitions = Partitions::new(count).unwrap();
            let fetch = |partition, after, limit| {
                let page = page(partition, u64::from(count), after, limit, look);
                async move { Ok(page) }
            };
            let mut got = Vec::new();
            let mut after = None;
            loop {
                let page = merge(partitions, after, limit, &ORDER, fetch).await.unwrap();
                assert!(page.items.len() <= limit);
                assert!(page.next.is_none() || page.next > after, "no way forward");
                got.extend(page.items);
                after = page.next;
                if after.is_none() {
                    break;
                }
            }
            assert_eq!(got, want, "{count} {limit} {look}");
        }
    }
}
