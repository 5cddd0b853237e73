//! Counting all tasks: for a store that was written before due counts, the index of series and the
//! groups of dead letters existed, and for the check of a store.
//!
//! A store is counted once, at opening: every task and dead letter is read, which takes about a
//! second per million. They are read in pieces, and only their counts are kept. The next checkpoint
//! writes the result; until then the store is counted again at each opening.

use std::collections::{BTreeMap, BTreeSet};

use punctual_core::{DeadLetter, PartitionId, Task, TaskId, Timestamp};
use punctual_journal::StoreStopwatch;
use punctual_store::codec::read_letter;
use punctual_store::{DueMinute, LetterGroups, Position, minute_of};

use crate::catalog::series_key;
use crate::fault::{ReadContext, StorageFault};
use crate::key::EntryKey;
use crate::read::fetch::{FetchPart, LiveTask, moved_by};
use crate::read::list::end_of;
use crate::read::load::Postponed;
use crate::state::due::{FrozenDue, SeriesChanges, SeriesRow};
use crate::state::partition::NamespaceGroups;
use crate::store_core::StoreCore;

/// Entries that are read together.
const CHUNK: usize = 4096;

/// What the counts of a partition have to be.
#[derive(Debug, Default)]
pub(crate) struct CountedPartition {
    pub(crate) due: BTreeMap<String, BTreeMap<DueMinute, i64>>,
    pub(crate) series: BTreeSet<Box<[u8]>>,
    pub(crate) letter_groups: BTreeMap<String, LetterGroups>,
}

impl CountedPartition {
    pub(crate) fn add(&mut self, task: &Task) {
        let namespace = task.definition.namespace.as_str();
        if let Some(minute) = minute_of(task) {
            let minutes = self.due.entry(namespace.to_owned()).or_default();
            *minutes.entry(minute).or_default() += 1;
        }
        if task.definition.schedule.kind().is_series() {
            let key = series_key(task.id.partition(), namespace, Position::of(task));
            self.series.insert(key);
        }
    }
}

impl CountedPartition {
    pub(crate) fn add_letter(&mut self, letter: &DeadLetter) {
        let namespace = letter.task.definition.namespace.as_str().to_owned();
        let groups = self.letter_groups.entry(namespace).or_default();
        groups.add(letter.group(), letter.died_at, letter.fire_id());
    }
}

impl StoreCore {
    /// Notes in the catalog of a new store that everything in it is counted.
    pub(crate) fn begin_counting(&self) -> Result<(), StorageFault> {
        let mut batch = self.catalog.batch();
        batch.counted();
        batch.commit()?;
        self.state()?.counted = true;
        Ok(())
    }

    /// Counts all tasks if the catalog does not have their counts.
    pub(crate) fn count_if_missing(&self) -> Result<(), StorageFault> {
        if self.state()?.counted {
            return Ok(());
        }
        let stopwatch = StoreStopwatch::start();
        let mut series = SeriesChanges::default();
        for partition in self.options.partitions.iter() {
            let counted = self.count_partition(partition)?;
            for key in counted.series {
                series.set(key, SeriesRow::Present);
            }
            let mut state = self.state()?;
            let own = state.partition_mut(partition);
            for tally in own.counts.values_mut() {
                tally.due = Default::default();
            }
            for (namespace, minutes) in counted.due {
                let tally = own.counts.entry(namespace).or_default();
                minutes.into_iter().for_each(|(minute, count)| tally.due.add(minute, count));
            }
            let groups = counted.letter_groups.into_iter();
            let row = |groups| NamespaceGroups { groups, changed: true };
            own.letter_groups = groups.map(|(name, groups)| (name, row(groups))).collect();
        }
        self.state()?.series = series;
        let took_ms = stopwatch.elapsed().as_secs_f64() * 1e3;
        tracing::info!(took_ms, "due tasks, series and groups of dead letters counted");
        Ok(())
    }

    /// Counts the tasks and dead letters of a partition.
    fn count_partition(&self, partition: PartitionId) -> Result<CountedPartition, StorageFault> {
        let mut counted = CountedPartition::default();
        self.each_scheduled(partition, |task| counted.add(task))?;
        self.each_paused(partition, |task| {
            counted.add(&task);
            Ok(())
        })?;
        self.each_letter(partition, |_, letter| {
            counted.add_letter(&read_letter(&letter, &self.interner).reading("dead letter")?);
            Ok(())
        })?;
        Ok(counted)
    }

    /// The counts of a partition as they are stored, in the catalog and in memory.
    pub(crate) fn stored_counts(
        &self,
        partition: PartitionId,
    ) -> Result<CountedPartition, StorageFault> {
        let mut stored = CountedPartition::default();
        let mut add = |namespace: &str, minute, count| {
            let minutes = stored.due.entry(namespace.to_owned()).or_default();
            *minutes.entry(minute).or_default() += count;
        };
        self.catalog.all_due(partition, &mut add)?;
        let state = self.state()?;
        let own = state.partition(partition);
        for (namespace, tally) in &own.counts {
            tally
                .due
                .iter(FrozenDue::NotWritten)
                .for_each(|(minute, by)| add(namespace, minute, by));
        }
        let groups = own.letter_groups.iter();
        stored.letter_groups =
            groups.map(|(name, row)| (name.clone(), row.groups.clone())).collect();
        let number = partition.get();
        let [first, end] = [number.to_be_bytes(), number.saturating_add(1).to_be_bytes()];
        stored.series.extend(self.catalog.series_between(&first, &end, usize::MAX)?);
        for (key, row) in state.series.between(&first, &end, usize::MAX) {
            match row {
                SeriesRow::Present => _ = stored.series.insert(key),
                SeriesRow::Absent => _ = stored.series.remove(&key),
            }
        }
        Ok(stored)
    }

    /// Calls `each` for every scheduled task of a partition, in any order. Returns the postponed
    /// ones with their times.
    pub(crate) fn each_scheduled(
        &self,
        partition: PartitionId,
        mut each: impl FnMut(&Task),
    ) -> Result<Vec<(TaskId, Timestamp)>, StorageFault> {
        let mut after = EntryKey::after(partition, Position::START);
        let end = end_of(partition, Timestamp::MAX);
        loop {
            // The position is not needed again: every entry is read once.
            let mut loading = None;
            let loaded = self.load_range(&mut loading, (after, end), CHUNK, Postponed::Skip)?;
            for entry in &loaded.live {
                each(&self.task(entry.key, &entry.body, entry.moved)?);
            }
            if loaded.complete {
                break;
            }
            after = loaded.covered;
        }
        let postponed = self.postponed_of(partition)?;
        for some in postponed.chunks(CHUNK) {
            let ids: Vec<TaskId> = some.iter().map(|(id, _)| *id).collect();
            for found in self.fetch(partition, &ids, FetchPart::Bodies)?.into_iter().flatten() {
                if let LiveTask::Scheduled { key, body, relocation, .. } = found {
                    each(&self.task(key, &body, moved_by(relocation))?);
                }
            }
        }
        Ok(postponed)
    }
}
