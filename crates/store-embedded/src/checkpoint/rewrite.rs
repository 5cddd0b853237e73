//! Rewriting: replace runs of a slice by fewer, smaller or nearer ones. Ended entries are left out.
//!
//! There are three reasons: a far slice has come near and is split; a slice has too many runs to
//! load quickly; most of a future slice was cancelled and its disk space is wanted back. The next
//! checkpoint puts the new runs in the place of the old ones.
//! One slice at a time is rewritten, and no more than [`INPUT_BYTES_MAX`] of it, because writes
//! wait if it takes long.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use punctual_core::{PartitionId, Timestamp};
use punctual_store::Position;

use crate::checkpoint::{Exchange, RunNumbers};
use crate::fault::StorageFault;
use crate::key::EntryKey;
use crate::read::merge::Merge;
use crate::run::{Generation, RunWriter, SortedRun};
use crate::state::timeline::{Slice, Timeline};
use crate::store_core::StoreCore;

/// Bytes that one call reads, at most: half of what a checkpoint writes, so that the buffers can
/// take what is written meanwhile.
const INPUT_BYTES_MAX: u64 = 32 << 20;

impl StoreCore {
    /// Rewrites the first slice that needs it, if any. All endings so far must have been resolved.
    pub(crate) fn rewrite(&self, numbers: &mut RunNumbers) -> Result<Exchange, StorageFault> {
        let (timeline, now) = {
            let state = self.state()?;
            (Arc::clone(&state.timeline), state.now)
        };
        let Some(runs) = self.choose(&timeline, now) else {
            return Ok(Exchange::default());
        };
        let generation = runs.iter().map(|run| run.generation).max().unwrap_or(Generation(0));
        let mut writers: BTreeMap<Slice, RunWriter> = BTreeMap::new();
        for partition in partitions_of(&runs) {
            let start = EntryKey::after(partition, Position::START);
            let mut merge = Merge::of(runs.iter().cloned(), start);
            while let Some(candidate) = merge.next(&self.files)? {
                let key = candidate.entry.key;
                let slice = Slice::of(key.at, now, &self.options);
                let writer = match writers.entry(slice) {
                    std::collections::btree_map::Entry::Occupied(entry) => entry.into_mut(),
                    std::collections::btree_map::Entry::Vacant(entry) => {
                        let no = numbers.take();
                        entry.insert(RunWriter::new(&self.files, no, self.options.block_bytes)?)
                    }
                };
                writer.push(key, &candidate.entry.body)?;
            }
        }
        let mut exchange = Exchange { dropped: runs, ..Exchange::default() };
        for (slice, writer) in writers {
            match writer.finish() {
                Ok(None) => {}
                Ok(Some(written)) => {
                    let run = Arc::new(SortedRun::new(written, generation));
                    exchange.added.push((slice.kind(), run));
                }
                Err(fault) => {
                    // The disk is full, and it is tried again later; finished files must not stay
                    // until then.
                    for (_, run) in &exchange.added {
                        self.files.remove(run.no)?;
                    }
                    return Err(fault);
                }
            }
        }
        Ok(exchange)
    }

    fn choose(&self, timeline: &Timeline, now: Timestamp) -> Option<Vec<Arc<SortedRun>>> {
        let near = self.options.slice_millis();
        let now = now.as_millis();
        let soon = now.saturating_add(near.saturating_mul(self.options.near_slices / 2));
        timeline.slices().find_map(|(slice, runs)| {
            let bytes: u64 = runs.iter().map(|run| run.file_bytes).sum();
            let comes_near = slice.far
                && slice.start <= soon
                && slice.end(near) <= now + near * self.options.near_slices;
            let current = !slice.far && slice.start <= now + near;
            let too_many = current && runs.len() > self.options.runs_per_slice_max;
            let mostly_ended =
                slice.start > now + near && bytes >= self.options.buffer_bytes_max as u64 / 2;
            if comes_near || too_many {
                return Some(within_bound(runs.to_vec()));
            }
            if mostly_ended {
                let half_ended = |run: &&Arc<SortedRun>| {
                    let left = run.count() - run.ended.count();
                    left > 0 && left < run.count() / 2
                };
                let runs: Vec<Arc<SortedRun>> = runs.iter().filter(half_ended).cloned().collect();
                let worth: u64 = runs.iter().map(|run| run.file_bytes).sum();
                if worth >= bytes / 4 && !runs.is_empty() {
                    return Some(within_bound(runs));
                }
            }
            None
        })
    }
}

/// The smallest runs, as many as may be read at once; at least two, so that there is progress.
fn within_bound(mut runs: Vec<Arc<SortedRun>>) -> Vec<Arc<SortedRun>> {
    runs.sort_by_key(|run| run.file_bytes);
    let mut bytes = 0;
    let mut count = 0;
    for run in &runs {
        bytes += run.file_bytes;
        if bytes > INPUT_BYTES_MAX && count >= 2 {
            break;
        }
        count += 1;
    }
    runs.truncate(count);
    runs
}

fn partitions_of(runs: &[Arc<SortedRun>]) -> BTreeSet<PartitionId> {
    let sections = runs.iter().flat_map(|run| &run.footer.sections);
    sections.map(|section| section.partition).collect()
}
