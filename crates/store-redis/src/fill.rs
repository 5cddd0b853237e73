//! Counts a partition that an earlier version has written: due tasks, series, and groups of dead
//! letters.
//!
//! It happens when the partition is acquired, before its owner writes, page by page. Each page also
//! extends the lease in Redis. If the acquisition is given up meanwhile, the next one continues
//! behind the last page: nothing else can have changed the partition.

use std::collections::BTreeMap;
use std::time::Duration;

use punctual_core::{Epoch, Namespace, PartitionId, Seat, Timestamp};
use punctual_store::codec::{DueDifferences, put_letter_group};
use punctual_store::{Position, StoreError, minute_of};

use crate::batch::ArgumentList;
use crate::format::codec;
use crate::format::keys::PartitionKeys;
use crate::read::TaskSet;
use crate::store::{RedisStore, millis, script_result};
use crate::transport::reply;
use crate::transport::script::{self, ScriptCall};

/// Tasks or dead letters in one page: some milliseconds of Redis.
const PAGE_MAX: usize = 1000;

/// Up to where a partition is counted.
#[derive(Debug, Clone, PartialEq, Eq)]
enum CountedUpTo {
    /// Scheduled tasks after this position are not.
    Due(Position),
    /// Paused tasks after this position are not.
    Paused(Position),
    /// Dead letters after this member are not.
    Letters(Vec<u8>),
    /// Everything is.
    Done,
}

impl CountedUpTo {
    fn to_bytes(&self) -> Vec<u8> {
        let at = |word: &[u8], position: &Position| {
            let fire_at = position.fire_at.as_millis().to_be_bytes();
            [word, &fire_at, &codec::id(position.id)].concat()
        };
        match self {
            Self::Due(position) => at(b"due", position),
            Self::Paused(position) => at(b"paused", position),
            Self::Letters(member) => [b"letters", member.as_slice()].concat(),
            Self::Done => Vec::new(),
        }
    }

    /// Reads where an acquisition begins. `None` if it cannot be read.
    fn read(bytes: &[u8]) -> Option<Self> {
        let position = |bytes: &[u8]| {
            let Some((fire_at, id)) = bytes.split_first_chunk() else {
                return bytes.is_empty().then_some(Position::START);
            };
            let fire_at = Timestamp::try_from_millis(u64::from_be_bytes(*fire_at).into()).ok()?;
            Some(Position { fire_at, id: codec::read_id(id).ok()? })
        };
        match bytes {
            [] => Some(Self::Done),
            [b'd', b'u', b'e', at @ ..] => position(at).map(Self::Due),
            [b'p', b'a', b'u', b's', b'e', b'd', at @ ..] => position(at).map(Self::Paused),
            _ => bytes.strip_prefix(b"letters").map(|member| Self::Letters(member.to_vec())),
        }
    }
}

/// What the tasks or letters of one page add to the counts.
#[derive(Default)]
struct PageCounts {
    due: DueDifferences,
    series: BTreeMap<Namespace, ArgumentList>,
    letters: ArgumentList,
}

impl RedisStore {
    /// Counts what is not counted yet; `at` is what `acquire.lua` returned.
    pub(crate) async fn fill(
        &self,
        partition: PartitionId,
        epoch: Epoch,
        ttl: Duration,
        at: &[u8],
    ) -> Result<(), StoreError> {
        let keys = self.keys(partition)?;
        let (mut before, mut progress) = (at.to_vec(), CountedUpTo::read(at));
        while progress != Some(CountedUpTo::Done) {
            let from = progress.unwrap_or(CountedUpTo::Due(Position::START));
            let (counts, next) = self.count_page(keys, from).await?;
            let log_bytes =
                self.write_page(partition, epoch, ttl, (&before, &next), &counts).await?;
            self.fold_if_long(partition, epoch, log_bytes).await;
            (before, progress) = (next.to_bytes(), Some(next));
        }
        Ok(())
    }

    /// Counts the next page, and returns up to where everything is counted then.
    async fn count_page(
        &self,
        keys: &PartitionKeys,
        from: CountedUpTo,
    ) -> Result<(PageCounts, CountedUpTo), StoreError> {
        let mut counts = PageCounts::default();
        let next = match from {
            CountedUpTo::Due(after) => {
                let end = self.count_tasks(keys, TaskSet::Due, after, &mut counts).await?;
                end.map_or(CountedUpTo::Paused(Position::START), CountedUpTo::Due)
            }
            CountedUpTo::Paused(after) => {
                let end = self.count_tasks(keys, TaskSet::Paused, after, &mut counts).await?;
                end.map_or(CountedUpTo::Letters(Vec::new()), CountedUpTo::Paused)
            }
            CountedUpTo::Letters(after) => self.count_letters(keys, &after, &mut counts).await?,
            CountedUpTo::Done => CountedUpTo::Done,
        };
        Ok((counts, next))
    }

    /// Counts the next tasks of a set. Returns the position of the last, if there are more.
    async fn count_tasks(
        &self,
        keys: &PartitionKeys,
        set: TaskSet<'_>,
        after: Position,
        counts: &mut PageCounts,
    ) -> Result<Option<Position>, StoreError> {
        let (tasks, end) = self.read_some(keys, set, after, PAGE_MAX).await?;
        for task in &tasks {
            let namespace = &task.definition.namespace;
            if let Some(minute) = minute_of(task) {
                counts.due.add_to(namespace, minute, 1);
            }
            if task.definition.schedule.kind().is_series() {
                let series = counts.series.entry(namespace.clone()).or_default();
                series.push_number(task.fire_at.as_millis());
                series.push(&codec::id(task.id));
            }
        }
        Ok(end)
    }

    async fn count_letters(
        &self,
        keys: &PartitionKeys,
        after: &[u8],
        counts: &mut PageCounts,
    ) -> Result<CountedUpTo, StoreError> {
        let from = match after {
            [] => b"-".to_vec(),
            after => [b"(", after].concat(),
        };
        let page = self.read_dead_range(keys, &from, b"+", PAGE_MAX).await?;
        for letter in &page.letters {
            counts.letters.push(letter.task.definition.namespace.as_str().as_bytes());
            counts.letters.push(&codec::fire(letter.fire_id()));
            counts.letters.write(|out| put_letter_group(out, &letter.group()));
            counts.letters.push_number(letter.died_at.as_millis());
        }
        Ok(page.last.filter(|_| page.more).map_or(CountedUpTo::Done, CountedUpTo::Letters))
    }

    /// Writes the counts of a page. Returns the size of the log of due counts.
    async fn write_page(
        &self,
        partition: PartitionId,
        epoch: Epoch,
        ttl: Duration,
        (before, next): (&[u8], &CountedUpTo),
        counts: &PageCounts,
    ) -> Result<i64, StoreError> {
        let seat = Seat::Partition(partition);
        let keys = self.keys(partition)?;
        let series: Vec<String> =
            counts.series.keys().map(|namespace| keys.series(namespace.as_str())).collect();
        let PartitionKeys { own, counted, due_log, groups, grouped, letters, .. } = keys;
        let keys = [own, counted, due_log, groups, grouped, letters].into_iter().chain(&series);
        let mut call = ScriptCall::new(&script::FILL, keys.map(String::as_str))
            .number(epoch.get())
            .arg(self.epochs.token(seat, epoch))
            .number(millis(ttl))
            .arg(before)
            .arg(next.to_bytes())
            .arg(counts.due.to_bytes().unwrap_or_default())
            .list(&counts.letters);
        for series in counts.series.values() {
            call = call.list(series);
        }
        let (code, rest) = script_result(self.writes(seat).call(&call).await?)?;
        match code {
            0 => reply::integer(rest.first().ok_or_else(|| reply::unexpected("a size"))?),
            // The reply to an earlier sending was lost.
            1 => Ok(0),
            2 => Err(StoreError::Held { seat }),
            _ => Err(reply::unexpected("a result of fill")),
        }
    }
}

#[cfg(test)]
mod tests {
    use punctual_store::conformance::fixtures::{at, epoch, id, partition};

    use super::*;

    #[test]
    fn progress_reads_back() {
        let position = Position { fire_at: at(7), id: id(at(7), partition(3), epoch(2), 7) };
        for progress in [
            CountedUpTo::Due(Position::START),
            CountedUpTo::Due(position),
            CountedUpTo::Paused(position),
            CountedUpTo::Letters(Vec::new()),
            CountedUpTo::Letters(b"shop\0x".to_vec()),
            CountedUpTo::Done,
        ] {
            assert_eq!(CountedUpTo::read(&progress.to_bytes()), Some(progress));
        }
        assert_eq!(CountedUpTo::read(b"due"), Some(CountedUpTo::Due(Position::START)));
        assert_eq!(CountedUpTo::read(b"due1"), None);
        assert_eq!(CountedUpTo::read(b"x"), None);
    }
}
