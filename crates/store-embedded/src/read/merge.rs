//! Merging: the live entries of one partition over several runs, in order.
//!
//! A run is opened only when its first entry is next, so that runs far ahead cost nothing.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use crate::fault::StorageFault;
use crate::key::EntryKey;
use crate::run::{RunCursor, RunEntry, RunFiles, SortedRun};
use crate::state::timeline::Timeline;

#[derive(Debug)]
pub(crate) struct Merge {
    after: EntryKey,
    /// Runs that are not open yet, by their first key of the partition, the next one last.
    waiting: Vec<(EntryKey, Arc<SortedRun>)>,
    open: Vec<RunCursor>,
    heads: BinaryHeap<Reverse<NextEntry>>,
}

/// The next entry of an open run.
#[derive(Debug)]
struct NextEntry {
    entry: RunEntry,
    cursor: usize,
}

impl PartialEq for NextEntry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for NextEntry {}

impl PartialOrd for NextEntry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for NextEntry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.entry.key, self.cursor).cmp(&(other.entry.key, other.cursor))
    }
}

/// An entry and its run.
#[derive(Debug, Clone)]
pub(crate) struct Candidate {
    pub(crate) entry: RunEntry,
    pub(crate) run: Arc<SortedRun>,
}

impl Merge {
    /// All entries of the partition of `after` that are greater than it.
    pub(crate) fn after(timeline: &Timeline, after: EntryKey) -> Self {
        Self::of(timeline.after(after.at).cloned(), after)
    }

    /// The same for some runs.
    pub(crate) fn of(runs: impl Iterator<Item = Arc<SortedRun>>, after: EntryKey) -> Self {
        let mut waiting: Vec<_> = runs
            .filter_map(|run| {
                let blocks = run.blocks_of(after.partition);
                let first = (!blocks.is_empty()).then(|| run.footer.fences[blocks.start].first)?;
                Some((first, run))
            })
            .collect();
        waiting.sort_unstable_by_key(|(first, run)| Reverse((*first, run.no)));
        Self { after, waiting, open: Vec::new(), heads: BinaryHeap::new() }
    }

    pub(crate) fn next(&mut self, files: &RunFiles) -> Result<Option<Candidate>, StorageFault> {
        self.open_due(files)?;
        let Some(mut top) = self.heads.peek_mut() else {
            return Ok(None);
        };
        let cursor = &mut self.open[top.0.cursor];
        let run = Arc::clone(cursor.run());
        let entry = match cursor.next(files)? {
            Some(next) => std::mem::replace(&mut top.0.entry, next),
            None => std::collections::binary_heap::PeekMut::pop(top).0.entry,
        };
        Ok(Some(Candidate { entry, run }))
    }

    /// Opens the runs whose first entry may be next.
    fn open_due(&mut self, files: &RunFiles) -> Result<(), StorageFault> {
        while let Some((first, _)) = self.waiting.last() {
            let due = self.heads.peek().is_none_or(|head| *first <= head.0.entry.key);
            if !due {
                break;
            }
            let Some((first, run)) = self.waiting.pop() else {
                break;
            };
            let mut cursor = if first > self.after {
                RunCursor::start(run, self.after.partition)
            } else {
                RunCursor::after(files, run, self.after)?
            };
            if let Some(entry) = cursor.next(files)? {
                let cursor_no = self.open.len();
                self.open.push(cursor);
                self.heads.push(Reverse(NextEntry { entry, cursor: cursor_no }));
            }
        }
        Ok(())
    }
}
