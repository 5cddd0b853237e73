//! Loading: scheduled tasks in the order in which they are due.
//!
//! Runs are read ahead without the lock. Then buffers and what was read ahead are merged under the
//! lock, in memory, so that a page shows one moment. A postponed entry that is found before its
//! time is filed again at its time.
//! Consecutive loads continue where the last one stopped, without another search.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, PoisonError};

use bytes::Bytes;
use punctual_core::{PartitionId, Task, TaskId, Timestamp};
use punctual_store::Position;

use crate::fault::StorageFault;
use crate::key::EntryKey;
use crate::read::fetch::{EntryStatus, FetchPart, LiveTask};
use crate::read::merge::{Candidate, Merge};
use crate::run::RunNo;
use crate::state::StoreState;
use crate::state::layers::IdHash;
use crate::state::relocation::{Moved, Relocation};
use crate::store_core::StoreCore;

/// Entries that are read ahead at once, at most, so that a large limit does not read a
/// whole store.
const AHEAD_MAX: usize = 4096;
/// Relocations that are read as a range, for each entry that was read ahead, before they are read
/// one by one.
const ROWS_PER_ENTRY_MAX: usize = 4;

/// The position at which an owner continues to load.
#[derive(Debug)]
pub(crate) struct Loading {
    /// The last key that was loaded.
    after: EntryKey,
    timeline_version: u64,
    merge: Merge,
    /// Entries that were read ahead, in order.
    ahead: VecDeque<Candidate>,
    /// Whether the runs have no further entries.
    exhausted: bool,
}

/// An entry of a task that has not ended.
#[derive(Debug, Clone)]
pub(crate) struct LiveEntry {
    pub(crate) key: EntryKey,
    pub(crate) body: Bytes,
    pub(crate) moved: Option<Moved>,
    /// The run and the ordinal of the entry, if it is in a run.
    location: Option<(RunNo, u32)>,
}

/// What to do with postponed entries that are found before their time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Postponed {
    /// File them again at their time.
    Refile,
    /// Leave them out of the result.
    Skip,
}

/// The entries of a part of a range.
#[derive(Debug)]
pub(crate) struct LoadedRange {
    pub(crate) live: Vec<LiveEntry>,
    /// The result is complete up to this key.
    pub(crate) covered: EntryKey,
    /// Whether the result is the complete range.
    pub(crate) complete: bool,
    /// Entries that were examined.
    pub(crate) examined: usize,
}

type CatalogRelocations = HashMap<TaskId, Relocation, IdHash>;

impl StoreCore {
    pub(crate) fn load(
        &self,
        partition: PartitionId,
        after: Position,
        until: Timestamp,
        limit: usize,
    ) -> Result<Vec<Task>, StorageFault> {
        let after = EntryKey::after(partition, after);
        let end = EntryKey::after(partition, Position::before(until));
        if limit == 0 || end <= after {
            return Ok(Vec::new());
        }
        self.gather_passed(after)?;
        self.refile_passed(partition)?;
        let kept = self.loadings[usize::from(partition.get())]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let mut loading = kept.filter(|loading| loading.after == after);
        let loaded = self.load_range(&mut loading, (after, end), limit, Postponed::Refile)?;
        let last = loaded.live.last().map_or(after, |live| live.key);
        {
            let mut state = self.state()?;
            let reached = if loaded.complete { end } else { last };
            let frontier = &mut state.partition_mut(partition).frontier;
            *frontier = reached.max(*frontier);
        }
        if let Some(mut loading) = loading {
            loading.continue_after(last);
            *self.loadings[usize::from(partition.get())]
                .lock()
                .unwrap_or_else(PoisonError::into_inner) = Some(loading);
        }
        let task = |live: &LiveEntry| self.task(live.key, &live.body, live.moved);
        loaded.live.iter().map(task).collect()
    }

    /// Live entries between two keys, both excluded, in order, at most `limit`. With
    /// `Postponed::Skip`, postponed entries count towards the limit, so the result may have
    /// fewer entries although there are more.
    pub(crate) fn load_range(
        &self,
        loading: &mut Option<Loading>,
        (after, end): (EntryKey, EntryKey),
        limit: usize,
        postponed: Postponed,
    ) -> Result<LoadedRange, StorageFault> {
        let mut want = limit.min(AHEAD_MAX);
        loop {
            let timeline = Arc::clone(&self.state()?.timeline);
            let current = loading
                .take()
                .filter(|loading| loading.timeline_version == timeline.version)
                .unwrap_or_else(|| Loading {
                    after,
                    timeline_version: timeline.version,
                    merge: Merge::after(&timeline, after),
                    ahead: VecDeque::new(),
                    exhausted: false,
                });
            let current = loading.insert(current);
            current.read_ahead(self, want, end)?;
            let (base, checkpoints) = self.base_of(current)?;

            let mut state = self.state()?;
            if state.timeline.version != current.timeline_version
                || state.checkpoints != checkpoints
            {
                continue;
            }
            let covered = current.covered(end);
            let range = (after, covered.min(end));
            let picked = loop {
                let mut picked = pick(&state, current, &base, range, limit, postponed);
                if picked.early.is_empty() || postponed == Postponed::Skip {
                    break picked;
                }
                for (key, body, relocation, moved) in std::mem::take(&mut picked.early) {
                    state.refile_postponed(key, &body, relocation, moved);
                }
            };
            let examined = picked.examined(postponed);
            let Picked { live, last, .. } = picked;
            if postponed == Postponed::Refile {
                for entry in &live {
                    if let Some((run, ordinal)) = entry.location {
                        state.recent_locations.note(entry.key.id, run, ordinal);
                    }
                }
            }
            // Entries that were filed again are in the buffer now.
            self.request_work(state);
            let (full, read) = (examined >= limit, examined.max(current.ahead.len()));
            let complete = covered >= end && !full;
            let covered = if full { last.unwrap_or(after) } else { range.1 };
            if complete || full || (postponed == Postponed::Skip && covered > after) {
                return Ok(LoadedRange { live, covered, complete, examined: read });
            }
            want = want.saturating_mul(2).max(live.len() + AHEAD_MAX.min(limit));
        }
    }

    /// The relocations that the catalog has for entries that were read ahead.
    fn base_of(&self, loading: &Loading) -> Result<(CatalogRelocations, u64), StorageFault> {
        let mut base = CatalogRelocations::default();
        let (in_catalog, checkpoints) = {
            let state = self.state()?;
            (state.relocations.in_catalog(), state.checkpoints)
        };
        if !in_catalog {
            return Ok((base, checkpoints));
        }
        let at_due = |key: EntryKey| key.at == key.id.due();
        let mut keys_at_due = loading.ahead.iter().map(|c| c.entry.key).filter(|key| at_due(*key));
        // The last id of the rows that were read as a range. Between two entries there may be many
        // rows of tasks that are elsewhere.
        let mut read_to = None;
        if let Some(first) = keys_at_due.next() {
            let last = keys_at_due.next_back().unwrap_or(first);
            let mut left = loading.ahead.len() * ROWS_PER_ENTRY_MAX;
            read_to = Some(last.id);
            self.catalog.relocations_between(first.id, last.id, |id, relocation| {
                base.insert(id, relocation);
                left -= 1;
                if left == 0 {
                    read_to = Some(id);
                }
                left > 0
            })?;
        }
        for candidate in &loading.ahead {
            let key = candidate.entry.key;
            let read = at_due(key) && read_to.is_some_and(|id| key.id <= id);
            if !read && let Some(relocation) = self.catalog.relocation(key.id)? {
                base.insert(key.id, relocation);
            }
        }
        Ok((base, checkpoints))
    }

    /// A load that begins beyond the frontier collects the postponed tasks that it would miss.
    fn gather_passed(&self, after: EntryKey) -> Result<(), StorageFault> {
        let partition = after.partition;
        {
            let state = self.state()?;
            if after <= state.partition(partition).frontier {
                return Ok(());
            }
        }
        let passed = self.postponed_of(partition)?;
        let mut state = self.state()?;
        let own = state.partition_mut(partition);
        own.passed.extend(passed.into_iter().map(|(id, _)| id));
        own.frontier = after.max(own.frontier);
        Ok(())
    }

    /// All tasks of a partition whose entries are not at their time, with their time. Reads all
    /// relocations.
    pub(crate) fn postponed_of(
        &self,
        partition: PartitionId,
    ) -> Result<Vec<(TaskId, Timestamp)>, StorageFault> {
        let mut rows: HashMap<TaskId, Option<Relocation>, IdHash> = HashMap::default();
        let first = TaskId::new(
            Timestamp::EPOCH,
            partition,
            punctual_core::Epoch::NONE,
            punctual_core::Sequence::FIRST,
        );
        let last = TaskId::new(
            Timestamp::MAX,
            partition,
            punctual_core::Epoch::MAX,
            punctual_core::Sequence::MAX,
        );
        // Memory first: a checkpoint that ends in between moves rows from memory to the catalog,
        // never back.
        for (id, relocation) in self.state()?.relocations.iter() {
            if id.partition() == partition {
                rows.entry(*id).or_insert(*relocation);
            }
        }
        self.catalog.relocations_between(first, last, |id, relocation| {
            rows.entry(id).or_insert(Some(relocation));
            true
        })?;
        let relocated = |(id, relocation): (TaskId, Option<Relocation>)| {
            let relocation = relocation?;
            let moved = relocation.moved()?;
            (relocation.filed_at() != Some(moved.fire_at)).then_some((id, moved.fire_at))
        };
        Ok(rows.into_iter().filter_map(relocated).collect())
    }

    /// Files postponed tasks again whose entries are before the frontier.
    fn refile_passed(&self, partition: PartitionId) -> Result<(), StorageFault> {
        loop {
            let passed: Vec<TaskId> = {
                let mut state = self.state()?;
                state.partition_mut(partition).passed.drain().collect()
            };
            if passed.is_empty() {
                return Ok(());
            }
            let found = self.fetch(partition, &passed, FetchPart::Bodies)?;
            let mut state = self.state()?;
            for (id, found) in passed.into_iter().zip(found) {
                if let Some(found) = found {
                    refile_one(&mut state, id, found);
                }
            }
            self.request_work(state);
        }
    }
}

/// Files a task again if its entry is still where it was found; otherwise it is tried again.
fn refile_one(state: &mut StoreState, id: TaskId, found: LiveTask) {
    let LiveTask::Scheduled { key, body, relocation: Some(relocation), location } = found else {
        return;
    };
    let now = state.relocations.get(&id).copied();
    let unchanged = now
        .is_none_or(|now| now.is_some_and(|now| now.completed(id, Some(relocation)) == relocation));
    let status = location.status(state, key);
    match relocation.moved() {
        _ if status == EntryStatus::Ended => {}
        Some(_) if !unchanged || status == EntryStatus::Moved => {
            state.partition_mut(key.partition).passed.insert(id);
        }
        Some(moved) if moved.fire_at != key.at => {
            state.refile_postponed(key, &body, relocation, moved)
        }
        _ => {}
    }
}

impl Loading {
    fn read_ahead(
        &mut self,
        core: &StoreCore,
        want: usize,
        end: EntryKey,
    ) -> Result<(), StorageFault> {
        let beyond = |ahead: &VecDeque<Candidate>| {
            ahead.back().is_some_and(|candidate| candidate.entry.key >= end)
        };
        while !self.exhausted && self.ahead.len() < want && !beyond(&self.ahead) {
            match self.merge.next(&core.files)? {
                Some(candidate) => self.ahead.push_back(candidate),
                None => self.exhausted = true,
            }
        }
        Ok(())
    }

    /// What was read ahead is complete up to this key.
    fn covered(&self, end: EntryKey) -> EntryKey {
        if self.exhausted {
            return end;
        }
        // Including the last entry: no two live entries in runs have the same key.
        self.ahead.back().map_or(self.after, |candidate| candidate.entry.key.min(end))
    }

    pub(crate) fn continue_after(&mut self, after: EntryKey) {
        self.after = after;
        while self.ahead.front().is_some_and(|candidate| candidate.entry.key <= after) {
            self.ahead.pop_front();
        }
    }
}

/// The result of one pass over memory.
struct Picked {
    live: Vec<LiveEntry>,
    /// Postponed entries before their time.
    early: Vec<(EntryKey, Bytes, Relocation, Moved)>,
    /// The last key of both.
    last: Option<EntryKey>,
}

impl Picked {
    const fn examined(&self, postponed: Postponed) -> usize {
        match postponed {
            Postponed::Refile => self.live.len(),
            Postponed::Skip => self.live.len() + self.early.len(),
        }
    }
}

/// Merges the buffers and what was read ahead, from `after` (excluded) to `to` (included).
fn pick(
    state: &StoreState,
    loading: &Loading,
    base: &CatalogRelocations,
    (after, to): (EntryKey, EntryKey),
    limit: usize,
    postponed: Postponed,
) -> Picked {
    use std::ops::Bound::{Excluded, Included};
    let mut picked = Picked { live: Vec::new(), early: Vec::new(), last: None };
    if to <= after {
        return picked;
    }
    let range = (Excluded(after), Included(to));
    let frozen = state.frozen.iter().flat_map(|(generation, buffer)| {
        let entries = buffer.range(range);
        entries.filter(|(key, _)| !state.has_ended(key.id, *generation))
    });
    let runs = loading.ahead.iter().filter(|candidate| {
        let (entry, run) = (&candidate.entry, &candidate.run);
        entry.key > after
            && entry.key <= to
            && !run.ended.get(entry.ordinal)
            && !state.has_ended(entry.key.id, run.generation)
    });
    let mut buffer = state.buffer.range(range).peekable();
    let mut frozen = frozen.peekable();
    let mut runs = runs.peekable();
    while picked.examined(postponed) < limit {
        let heads = [
            buffer.peek().map(|(key, _)| *key),
            frozen.peek().map(|(key, _)| *key),
            runs.peek().map(|candidate| candidate.entry.key),
        ];
        let Some(least) = heads.iter().flatten().min().copied() else {
            break;
        };
        let next = if heads[0] == Some(least) {
            buffer.next().map(|(key, body)| (key, body, None))
        } else if heads[1] == Some(least) {
            frozen.next().map(|(key, body)| (key, body, None))
        } else {
            runs.next().map(|candidate| {
                let Candidate { entry, run } = candidate;
                (entry.key, &entry.body, Some((run.no, entry.ordinal)))
            })
        };
        let Some((key, body, location)) = next else { break };
        picked.last = Some(key);
        let in_memory = state.relocations.get(&key.id);
        let relocation = in_memory.copied().unwrap_or_else(|| base.get(&key.id).copied());
        let moved = relocation.and_then(|relocation| relocation.moved());
        match (relocation, moved) {
            (Some(relocation), Some(moved)) if moved.fire_at != key.at => {
                picked.early.push((key, body.clone(), relocation, moved));
            }
            _ => picked.live.push(LiveEntry { key, body: body.clone(), moved, location }),
        }
    }
    picked
}
