//! Loading: scheduled tasks in the order in which they are due.
//!
//! In: a position, a time and a limit. Out: tasks. Runs are read ahead without the lock; then buffers and what was read are merged
//! under it, in memory, so that a page is a picture of one moment. A postponed entry that comes up before its
//! time is filed anew at its time, in passing.
//! Consecutive loads go on where the last one stopped, without seeking.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, PoisonError};

use bytes::Bytes;
use punctual_core::{PartitionId, Task, TaskId, Timestamp};
use punctual_store::Position;

use crate::fault::Fault;
use crate::fetch::{Found, Still, Want};
use crate::inner::Inner;
use crate::key::Key;
use crate::layers::IdHash;
use crate::merge::{Candidate, Merge};
use crate::run::RunNo;
use crate::standing::{Moved, Standing};
use crate::state::State;

/// Entries that are read ahead at a time, at most: a limit without bound must not read a whole store before it looks.
const AHEAD_MAX: usize = 4096;
/// Standings that are read in a row for each entry that was read ahead, before they are asked for one by one.
const ROWS_PER_ENTRY_MAX: usize = 4;

/// Where an owner goes on loading.
#[derive(Debug)]
pub(crate) struct Loading {
    /// After what.
    after: Key,
    timeline_version: u64,
    merge: Merge,
    /// Read ahead, in order.
    ahead: VecDeque<Candidate>,
    /// Whether the runs have no more than that.
    exhausted: bool,
}

/// An entry that holds now.
#[derive(Debug, Clone)]
pub(crate) struct Living {
    pub(crate) key: Key,
    pub(crate) body: Bytes,
    pub(crate) moved: Option<Moved>,
    /// Where it stands, if in a run.
    place: Option<(RunNo, u32)>,
}

/// What to do about postponed entries that come up before their time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Postponed {
    FileAnew,
    LeaveOut,
}

/// Some of what is in a range.
#[derive(Debug)]
pub(crate) struct Stretch {
    pub(crate) living: Vec<Living>,
    /// Up to where everything was looked at.
    pub(crate) covered: Key,
    /// Whether there is no more in the range.
    pub(crate) whole: bool,
    /// Entries that were looked at.
    pub(crate) looked_at: usize,
}

type Base = HashMap<TaskId, Standing, IdHash>;

impl Inner {
    pub(crate) fn load(
        &self,
        partition: PartitionId,
        after: Position,
        until: Timestamp,
        limit: usize,
    ) -> Result<Vec<Task>, Fault> {
        let after = Key::after(partition, after);
        let end = Key::after(partition, Position::before(until));
        if limit == 0 || end <= after {
            return Ok(Vec::new());
        }
        self.gather_strays(after)?;
        self.file_strays(partition)?;
        let kept = self.loadings[usize::from(partition.get())]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let mut loading = kept.filter(|loading| loading.after == after);
        let stretch = self.stretch(&mut loading, (after, end), limit, Postponed::FileAnew)?;
        let last = stretch.living.last().map_or(after, |living| living.key);
        {
            let mut state = self.state()?;
            let reached = if stretch.whole { end } else { last };
            let frontier = &mut state.partition_mut(partition).frontier;
            *frontier = reached.max(*frontier);
        }
        if let Some(mut loading) = loading {
            loading.go_on_after(last);
            *self.loadings[usize::from(partition.get())]
                .lock()
                .unwrap_or_else(PoisonError::into_inner) = Some(loading);
        }
        let task = |living: &Living| self.task(living.key, &living.body, living.moved);
        stretch.living.iter().map(task).collect()
    }

    /// Living entries between two keys, both excluded, in order, at most `limit`. Where postponed ones are left out they count
    /// too, so that no more is looked at than that; so there may be fewer, and more to come.
    pub(crate) fn stretch(
        &self,
        loading: &mut Option<Loading>,
        (after, end): (Key, Key),
        limit: usize,
        postponed: Postponed,
    ) -> Result<Stretch, Fault> {
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
                if picked.early.is_empty() || postponed == Postponed::LeaveOut {
                    break picked;
                }
                for (key, body, standing, moved) in std::mem::take(&mut picked.early) {
                    state.surface(key, &body, standing, moved);
                }
            };
            let looked_at = picked.looked_at(postponed);
            let Picked { living, last, .. } = picked;
            if postponed == Postponed::FileAnew {
                for entry in &living {
                    if let Some((run, ordinal)) = entry.place {
                        state.located.note(entry.key.id, run, ordinal);
                    }
                }
            }
            // What was filed anew is in the buffer now.
            self.ask_for_relief(state);
            let (full, read) = (looked_at >= limit, looked_at.max(current.ahead.len()));
            let whole = covered >= end && !full;
            let covered = if full { last.unwrap_or(after) } else { range.1 };
            if whole || full || (postponed == Postponed::LeaveOut && covered > after) {
                return Ok(Stretch { living, covered, whole, looked_at: read });
            }
            want = want.saturating_mul(2).max(living.len() + AHEAD_MAX.min(limit));
        }
    }

    /// The catalog's standings of what was read ahead.
    fn base_of(&self, loading: &Loading) -> Result<(Base, u64), Fault> {
        let mut base = Base::default();
        let (beneath, checkpoints) = {
            let state = self.state()?;
            (state.standings.beneath(), state.checkpoints)
        };
        if !beneath {
            return Ok((base, checkpoints));
        }
        let at_home = |key: Key| key.at == key.id.due();
        let mut home = loading.ahead.iter().map(|c| c.entry.key).filter(|key| at_home(*key));
        // Up to where rows were read in a row: between two entries there may be many of tasks that have left long ago.
        let mut read_to = None;
        if let Some(first) = home.next() {
            let last = home.next_back().unwrap_or(first);
            let mut left = loading.ahead.len() * ROWS_PER_ENTRY_MAX;
            read_to = Some(last.id);
            self.catalog.standings_between(first.id, last.id, |id, standing| {
                base.insert(id, standing);
                left -= 1;
                if left == 0 {
                    read_to = Some(id);
                }
                left > 0
            })?;
        }
        for candidate in &loading.ahead {
            let key = candidate.entry.key;
            let read = at_home(key) && read_to.is_some_and(|id| key.id <= id);
            if !read && let Some(standing) = self.catalog.standing(key.id)? {
                base.insert(key.id, standing);
            }
        }
        Ok((base, checkpoints))
    }

    /// Whoever begins to load beyond where loading has come finds the postponed tasks that it would have passed.
    fn gather_strays(&self, after: Key) -> Result<(), Fault> {
        let partition = after.partition;
        {
            let state = self.state()?;
            if after <= state.partition(partition).frontier {
                return Ok(());
            }
        }
        let strays = self.postponed_of(partition)?;
        let mut state = self.state()?;
        let own = state.partition_mut(partition);
        own.strays.extend(strays.into_iter().map(|(id, _)| id));
        own.frontier = after.max(own.frontier);
        Ok(())
    }

    /// All tasks of a partition whose entries do not stand at their time, and their time. Reads all standings.
    pub(crate) fn postponed_of(
        &self,
        partition: PartitionId,
    ) -> Result<Vec<(TaskId, Timestamp)>, Fault> {
        let mut rows: HashMap<TaskId, Option<Standing>, IdHash> = HashMap::default();
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
        // Memory first: a checkpoint that ends in between moves rows from memory to the catalog, never back.
        for (id, standing) in self.state()?.standings.iter() {
            if id.partition() == partition {
                rows.entry(*id).or_insert(*standing);
            }
        }
        self.catalog.standings_between(first, last, |id, standing| {
            rows.entry(id).or_insert(Some(standing));
            true
        })?;
        let away = |(id, standing): (TaskId, Option<Standing>)| {
            let standing = standing?;
            let moved = standing.moved()?;
            (standing.filed_at() != Some(moved.fire_at)).then_some((id, moved.fire_at))
        };
        Ok(rows.into_iter().filter_map(away).collect())
    }

    /// Files postponed tasks anew whose entries loading has passed or would pass.
    fn file_strays(&self, partition: PartitionId) -> Result<(), Fault> {
        loop {
            let strays: Vec<TaskId> = {
                let mut state = self.state()?;
                state.partition_mut(partition).strays.drain().collect()
            };
            if strays.is_empty() {
                return Ok(());
            }
            let found = self.fetch(partition, &strays, Want::Bodies)?;
            let mut state = self.state()?;
            for (id, found) in strays.into_iter().zip(found) {
                if let Some(found) = found {
                    file_stray(&mut state, id, found);
                }
            }
            self.ask_for_relief(state);
        }
    }
}

/// Files one anew, if it still is where it was found; else it stays a stray.
fn file_stray(state: &mut State, id: TaskId, found: Found) {
    let Found::Scheduled { key, body, standing: Some(standing), place } = found else {
        return;
    };
    let now = state.standings.get(&id).copied();
    let unchanged =
        now.is_none_or(|now| now.is_some_and(|now| now.completed(id, Some(standing)) == standing));
    let still = place.still(state, key);
    match standing.moved() {
        _ if still == Still::Ended => {}
        Some(_) if !unchanged || still == Still::Moved => {
            state.partition_mut(key.partition).strays.insert(id);
        }
        Some(moved) if moved.fire_at != key.at => state.surface(key, &body, standing, moved),
        _ => {}
    }
}

impl Loading {
    fn read_ahead(&mut self, inner: &Inner, want: usize, end: Key) -> Result<(), Fault> {
        let beyond = |ahead: &VecDeque<Candidate>| {
            ahead.back().is_some_and(|candidate| candidate.entry.key >= end)
        };
        while !self.exhausted && self.ahead.len() < want && !beyond(&self.ahead) {
            match self.merge.next(&inner.files)? {
                Some(candidate) => self.ahead.push_back(candidate),
                None => self.exhausted = true,
            }
        }
        Ok(())
    }

    /// Up to where everything in the runs has been read ahead.
    fn covered(&self, end: Key) -> Key {
        if self.exhausted {
            return end;
        }
        // Everything before the last one, and that one too: keys in runs that have not ended are unique.
        self.ahead.back().map_or(self.after, |candidate| candidate.entry.key.min(end))
    }

    pub(crate) fn go_on_after(&mut self, after: Key) {
        self.after = after;
        while self.ahead.front().is_some_and(|candidate| candidate.entry.key <= after) {
            self.ahead.pop_front();
        }
    }
}

/// What one pass over memory finds.
struct Picked {
    living: Vec<Living>,
    /// Postponed entries before their time.
    early: Vec<(Key, Bytes, Standing, Moved)>,
    /// The last one of both.
    last: Option<Key>,
}

impl Picked {
    const fn looked_at(&self, postponed: Postponed) -> usize {
        match postponed {
            Postponed::FileAnew => self.living.len(),
            Postponed::LeaveOut => self.living.len() + self.early.len(),
        }
    }
}

/// Merges the buffers and what was read ahead, from `after` (excluded) to `to` (included, if an entry was read ahead there).
fn pick(
    state: &State,
    loading: &Loading,
    base: &Base,
    (after, to): (Key, Key),
    limit: usize,
    postponed: Postponed,
) -> Picked {
    use std::ops::Bound::{Excluded, Included};
    let mut picked = Picked { living: Vec::new(), early: Vec::new(), last: None };
    if to <= after {
        return picked;
    }
    let range = (Excluded(after), Included(to));
    let frozen = state.frozen.iter().flat_map(|(birth, buffer)| {
        let entries = buffer.range(range);
        entries.filter(|(key, _)| !state.has_ended(key.id, *birth))
    });
    let runs = loading.ahead.iter().filter(|candidate| {
        let (entry, run) = (&candidate.entry, &candidate.run);
        entry.key > after
            && entry.key <= to
            && !run.ended.get(entry.ordinal)
            && !state.has_ended(entry.key.id, run.birth)
    });
    let mut buffer = state.buffer.range(range).peekable();
    let mut frozen = frozen.peekable();
    let mut runs = runs.peekable();
    while picked.looked_at(postponed) < limit {
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
        let Some((key, body, place)) = next else { break };
        picked.last = Some(key);
        let in_memory = state.standings.get(&key.id);
        let standing = in_memory.copied().unwrap_or_else(|| base.get(&key.id).copied());
        let moved = standing.and_then(|standing| standing.moved());
        match (standing, moved) {
            (Some(standing), Some(moved)) if moved.fire_at != key.at => {
                picked.early.push((key, body.clone(), standing, moved));
            }
            _ => picked.living.push(Living { key, body: body.clone(), moved, place }),
        }
    }
    picked
}
