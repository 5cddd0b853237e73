//! The timeline: the runs of tasks, by slice of time.
//!
//! Near slices are a day long, far ones
//! [`EmbeddedOptions::FAR_SLICES`](crate::EmbeddedOptions::FAR_SLICES) days, so that tasks that are
//! years away need few files. A timeline never changes: a checkpoint makes the next version, and
//! readers keep theirs.
//! Ids of a partition are numbered in the order in which they were made, so each run of a slice has
//! one range of numbers. Runs are sorted by these ranges, and the run that has an id is found by a
//! search.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use punctual_core::{PartitionId, Timestamp};

use crate::catalog::RunKind;
use crate::key::EntryKey;
use crate::options::EmbeddedOptions;
use crate::run::{RunNo, SortedRun, number_of};

/// A slice of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Slice {
    pub(crate) start: u64,
    pub(crate) far: bool,
}

#[derive(Debug, Clone)]
pub(crate) struct Timeline {
    /// Increases with every change.
    pub(crate) version: u64,
    slice_millis: u64,
    slices: BTreeMap<Slice, SliceRuns>,
}

/// The runs of a slice, and an index of them.
#[derive(Debug, Clone, Default)]
struct SliceRuns {
    all: Vec<Arc<SortedRun>>,
    by_partition: BTreeMap<PartitionId, PartitionSpans>,
}

/// The runs that have entries of a partition, as indexes into `SliceRuns::all`.
#[derive(Debug, Clone, Default)]
struct PartitionSpans {
    /// Sorted by the least number of an id whose entry is at the time in the id.
    at_due: Vec<NumberSpan>,
    /// Runs with entries that are at another time.
    relocated: Vec<u32>,
}

#[derive(Debug, Clone, Copy)]
struct NumberSpan {
    low: u128,
    /// The greatest number in this run and in all before it.
    high: u128,
    run: u32,
}

impl Slice {
    /// The slice of a time, seen from `now`.
    pub(crate) fn of(at: Timestamp, now: Timestamp, options: &EmbeddedOptions) -> Self {
        let near = options.slice_millis();
        let horizon = (now.as_millis() / near + options.near_slices) * near;
        // A far slice begins where its whole length is far, so that near and far slices overlap
        // little.
        let far = at.as_millis() >= horizon;
        Self::holding(at, near, far)
    }

    fn holding(at: Timestamp, near: u64, far: bool) -> Self {
        let span = if far { near * EmbeddedOptions::FAR_SLICES } else { near };
        Self { start: at.as_millis() / span * span, far }
    }

    pub(crate) const fn kind(self) -> RunKind {
        if self.far { RunKind::Far } else { RunKind::Near }
    }

    /// The time at which the slice ends.
    pub(crate) const fn end(self, near: u64) -> u64 {
        let span = if self.far { near * EmbeddedOptions::FAR_SLICES } else { near };
        self.start + span
    }
}

impl Timeline {
    pub(crate) fn new(slice_millis: u64) -> Self {
        Self { version: 0, slice_millis, slices: BTreeMap::new() }
    }

    /// Adds a run, before there are readers.
    pub(crate) fn add(&mut self, run: SortedRun, kind: RunKind) {
        let slice = Slice::holding(run.first().at, self.slice_millis, kind == RunKind::Far);
        self.slices.entry(slice).or_default().push(Arc::new(run));
    }

    /// The next version, with some runs added and some removed.
    pub(crate) fn with(&self, added: Vec<(RunKind, Arc<SortedRun>)>, dropped: &[RunNo]) -> Self {
        let mut next = self.clone();
        next.version += 1;
        if !dropped.is_empty() {
            let dropped: HashSet<RunNo> = dropped.iter().copied().collect();
            next.slices.retain(|_, runs| {
                runs.remove(&dropped);
                !runs.all.is_empty()
            });
        }
        for (kind, run) in added {
            let slice = Slice::holding(run.first().at, self.slice_millis, kind == RunKind::Far);
            next.slices.entry(slice).or_default().push(run);
        }
        next
    }

    /// Runs that may have an entry with this key.
    pub(crate) fn covering(&self, key: EntryKey) -> impl Iterator<Item = &Arc<SortedRun>> {
        [false, true]
            .into_iter()
            .filter_map(move |far| self.slices.get(&Slice::holding(key.at, self.slice_millis, far)))
            .flat_map(move |runs| runs.covering(key))
            .filter(move |run| run.may_have(key))
    }

    /// Whether a run that had an entry with this key is still on the timeline.
    pub(crate) fn has(&self, key: EntryKey, run: &Arc<SortedRun>) -> bool {
        self.covering(key).any(|other| other.no == run.no)
    }

    /// Runs of slices that end after a time.
    pub(crate) fn after(&self, at: Timestamp) -> impl Iterator<Item = &Arc<SortedRun>> {
        let near = self.slice_millis;
        self.slices
            .iter()
            .filter(move |(slice, _)| slice.end(near) > at.as_millis())
            .flat_map(|(_, runs)| &runs.all)
    }

    pub(crate) fn slices(&self) -> impl Iterator<Item = (Slice, &[Arc<SortedRun>])> {
        self.slices.iter().map(|(slice, runs)| (*slice, runs.all.as_slice()))
    }

    pub(crate) fn runs(&self) -> impl Iterator<Item = &Arc<SortedRun>> {
        self.slices.values().flat_map(|runs| &runs.all)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.slices.is_empty()
    }
}

impl SliceRuns {
    fn push(&mut self, run: Arc<SortedRun>) {
        let index = u32::try_from(self.all.len()).expect("fewer runs than entries");
        for section in &run.footer.sections {
            let spans = self.by_partition.entry(section.partition).or_default();
            if section.relocated > 0 {
                spans.relocated.push(index);
            }
            if section.count > section.relocated {
                let (low, high) = section.numbers;
                spans.push(NumberSpan { low, high, run: index });
            }
        }
        self.all.push(run);
    }

    fn remove(&mut self, dropped: &HashSet<RunNo>) {
        if self.all.iter().any(|run| dropped.contains(&run.no)) {
            let all = std::mem::take(self).all;
            all.into_iter().filter(|run| !dropped.contains(&run.no)).for_each(|run| self.push(run));
        }
    }

    /// Runs whose range of numbers includes that of the key; a few more if ranges overlap.
    fn covering(&self, key: EntryKey) -> impl Iterator<Item = &Arc<SortedRun>> {
        let spans = self.by_partition.get(&key.partition);
        let is_at_due = key.at == key.id.due();
        let at_due = spans.filter(|_| is_at_due);
        let at_due = at_due.map(|spans| spans.covering_number(number_of(key.id)));
        let relocated = spans.filter(|_| !is_at_due).map(|spans| spans.relocated.iter().copied());
        let indexes = at_due.into_iter().flatten().chain(relocated.into_iter().flatten());
        indexes.map(|index| &self.all[index as usize])
    }
}

impl PartitionSpans {
    fn push(&mut self, span: NumberSpan) {
        let at = self.at_due.partition_point(|other| other.low <= span.low);
        self.at_due.insert(at, span);
        // It is nearly always the last: later runs have greater numbers.
        for index in at.max(1)..self.at_due.len() {
            self.at_due[index].high = self.at_due[index].high.max(self.at_due[index - 1].high);
        }
    }

    fn covering_number(&self, number: u128) -> impl Iterator<Item = u32> {
        let end = self.at_due.partition_point(|span| span.low <= number);
        let before = self.at_due[..end].iter().rev();
        before.take_while(move |span| span.high >= number).map(|span| span.run)
    }
}

#[cfg(test)]
mod tests {
    use punctual_core::{Epoch, Sequence, TaskId};

    use super::*;
    use crate::run::{Generation, RunFiles, RunWriter};

    const SLICE_MILLIS: u64 = 1000;

    fn key(partition: u16, number: u64) -> EntryKey {
        let partition = PartitionId::new(partition).expect("a partition");
        let due = Timestamp::from_millis(number * 37 % SLICE_MILLIS);
        let epoch = Epoch::new(1).expect("an epoch");
        let id = TaskId::new(due, partition, epoch, Sequence::new(number).expect("a sequence"));
        // Every eleventh was filed again, later in the slice.
        let at =
            if number.is_multiple_of(11) { Timestamp::from_millis(SLICE_MILLIS - 1) } else { due };
        EntryKey::new(at, id)
    }

    #[test]
    fn runs_are_found_by_number_as_if_each_had_been_asked() {
        let dir = tempfile::tempdir().expect("a directory");
        let files = RunFiles::new(dir.path().to_owned(), 4);
        // In sequence, as checkpoints write them; then overlapping, nested, and out of order.
        let number_ranges =
            [0..20, 20..40, 40..41, 41..80, 10..60, 80..90, 30..35, 0..3, 85..99u64];
        let runs: Vec<Arc<SortedRun>> = (1..)
            .zip(number_ranges)
            .map(|(no, numbers)| {
                let both = numbers.flat_map(|number| [key(0, number), key(5, number + 7)]);
                let mut keys: Vec<EntryKey> = both.collect();
                keys.sort_unstable();
                let mut writer = RunWriter::new(&files, RunNo(no), 512).expect("a file");
                keys.iter().for_each(|key| writer.push(*key, b"body").expect("written"));
                let written = writer.finish().expect("synced").expect("not empty");
                Arc::new(SortedRun::new(written, Generation(no)))
            })
            .collect();
        let added = runs.iter().map(|run| (RunKind::Near, Arc::clone(run))).collect();
        let mut timeline = Timeline::new(SLICE_MILLIS).with(added, &[]);
        for dropped in [&[][..], &[RunNo(5)], &[RunNo(1), RunNo(9)]] {
            timeline = timeline.with(Vec::new(), dropped);
            for (partition, number) in
                [0, 3, 5].into_iter().flat_map(|p| (0..120).map(move |n| (p, n)))
            {
                let key = key(partition, number);
                let mut found: Vec<RunNo> = timeline.covering(key).map(|run| run.no).collect();
                found.sort_unstable();
                let all = timeline.runs().filter(|run| run.may_have(key));
                let mut wanted: Vec<RunNo> = all.map(|run| run.no).collect();
                wanted.sort_unstable();
                assert_eq!(found, wanted, "{key:?} without {dropped:?}");
            }
        }
    }
}
