//! Listing: tasks that match a filter, in order, in pages.
//!
//! A page merges the timeline with the postponed and paused tasks in their order (`state::order`),
//! step by step until it is full. So it costs what it shows and what the filter skips, however many
//! tasks there are. What one page examines is bounded: a filter that matches hardly anything gives
//! short pages, not long waits.
//! With a key prefix the page is built from the names with that prefix, unless there are very many.
//! If only series are wanted, it is built from their index (`due`).
//! `load` is for what is due.

use std::sync::atomic::Ordering;

use punctual_core::{Epoch, PartitionId, Sequence, Task, TaskId, TaskState, Timestamp};
use punctual_store::{Filter, KindFilter, Page, Position};

use crate::fault::{ReadContext, StorageFault};
use crate::key::EntryKey;
use crate::read::fetch::{FetchPart, LiveTask, moved_by};
use crate::read::load::{Loading, Postponed};
use crate::state::StoreState;
use crate::state::names::{NameKey, NameRow, name};
use crate::state::order::{ListedKind, OrderKey, paused_key, postponed_key};
use crate::store_core::StoreCore;

/// What one page examines, at most, apart from its last step: about ten milliseconds.
pub(super) const EXAMINED_MAX: usize = 16_384;
/// What one step examines of each kind: first what the page needs, then twice as much each time,
/// within these limits.
pub(super) const STEP: std::ops::RangeInclusive<usize> = 32..=1024;
/// Up to so many names with a prefix, a page is built from names. With more, enough of what is due
/// next has the prefix.
const NAMES_MAX: usize = 8192;
/// Attempts to get a page that no commit has changed meanwhile.
const TRIES_MAX: usize = 4;

/// What is between two keys, both excluded.
type Range = (EntryKey, EntryKey);

/// The tasks of a part of a range.
struct ListStep {
    /// In order.
    tasks: Vec<Task>,
    /// The step is complete up to this key.
    covered: EntryKey,
    examined: usize,
}

impl StoreCore {
    pub(crate) fn list(
        &self,
        partition: PartitionId,
        filter: &Filter,
        after: Position,
        limit: usize,
    ) -> Result<Page<Task, Position>, StorageFault> {
        let after = EntryKey::after(partition, after.max(Position::before(filter.from)));
        let range = (after, end_of(partition, filter.to));
        let mut tries = 0;
        loop {
            tries += 1;
            let version = self.state()?.partition(partition).version;
            let page = self.list_once(filter, range, limit.max(1))?;
            let overtaken = self.state()?.partition(partition).version != version;
            if !overtaken || tries == TRIES_MAX {
                return Ok(page);
            }
        }
    }

    fn list_once(
        &self,
        filter: &Filter,
        range: Range,
        limit: usize,
    ) -> Result<Page<Task, Position>, StorageFault> {
        if range.1 <= range.0 {
            return Ok(Page { items: Vec::new(), next: None });
        }
        if !filter.key_prefix.is_empty()
            && let Some(names) = self.names_of_prefix(range.0.partition, filter)?
        {
            return self.list_by_name(filter, range, limit, &names);
        }
        if filter.kind.is_some_and(KindFilter::selects_series) {
            let partition = range.0.partition;
            return self.list_series(partition, filter, range.0.position(), limit);
        }
        self.list_by_time(filter, range, limit)
    }

    /// Builds a page from everything that is due in a range.
    fn list_by_time(
        &self,
        filter: &Filter,
        (mut after, end): Range,
        limit: usize,
    ) -> Result<Page<Task, Position>, StorageFault> {
        let (mut items, mut examined) = (Vec::new(), 0);
        let mut loading = None;
        let mut want = limit.clamp(*STEP.start(), *STEP.end());
        while examined < EXAMINED_MAX {
            let step = self.list_step(&mut loading, (after, end), want, filter.state)?;
            if let Some(next) = fill(&mut items, limit, filter, step.tasks) {
                return Ok(Page { items, next: Some(next) });
            }
            if step.covered >= end {
                return Ok(Page { items, next: None });
            }
            examined += step.examined;
            after = step.covered;
            want = (want * 2).min(*STEP.end());
        }
        Ok(Page { items, next: Some(after.position()) })
    }

    fn list_step(
        &self,
        loading: &mut Option<Loading>,
        (after, end): Range,
        want: usize,
        state: Option<TaskState>,
    ) -> Result<ListStep, StorageFault> {
        let (mut covered, mut examined) = (end, 0);
        let (mut live, mut listed) = (Vec::new(), Vec::new());
        if state.is_none_or(|state| state == TaskState::Scheduled) {
            listed = self.order_after(ListedKind::Postponed, (after, end), want, &mut covered)?;
            examined += listed.len();
            let loaded = self.load_range(loading, (after, end), want, Postponed::Skip)?;
            examined += loaded.examined;
            if !loaded.complete {
                covered = covered.min(loaded.covered);
            }
            live = loaded.live;
        }
        if state.is_none_or(|state| state != TaskState::Scheduled) {
            let paused = self.order_after(ListedKind::Paused, (after, end), want, &mut covered)?;
            examined += paused.len();
            listed.extend(paused);
        }
        self.examined.fetch_add(examined as u64, Ordering::Relaxed);
        listed.retain(|key| *key <= covered);
        let mut tasks = self.tasks_at(after.partition, listed)?;
        for entry in live.iter().filter(|entry| entry.key <= covered) {
            tasks.push(self.task(entry.key, &entry.body, entry.moved)?);
        }
        tasks.sort_unstable_by_key(Position::of);
        if let Some(loading) = loading {
            loading.continue_after(covered);
        }
        Ok(ListStep { tasks, covered, examined })
    }

    /// The next keys of the order, at most `limit`. If there may be more, lowers `covered` to the
    /// last of them.
    pub(crate) fn order_after(
        &self,
        kind: ListedKind,
        (after, end): Range,
        limit: usize,
        covered: &mut EntryKey,
    ) -> Result<Vec<EntryKey>, StorageFault> {
        // Memory first: a checkpoint that ends in between moves rows from memory to the catalog,
        // never back.
        let (noted, in_catalog) = {
            let state = self.state()?;
            let (order, in_catalog) = match kind {
                ListedKind::Postponed => (&state.postponed_order, state.relocations.in_catalog()),
                ListedKind::Paused => (&state.paused_order, state.paused.in_catalog()),
            };
            let (after, end) = (OrderKey::of(after), OrderKey::of(end));
            (order.select(|key| *key <= after, |key| *key < end, limit), in_catalog)
        };
        let mut keys = Vec::with_capacity(noted.len());
        for key in &noted {
            keys.push(OrderKey::read(key.bytes()).reading("order")?);
        }
        if keys.len() >= limit {
            *covered = keys.last().map_or(*covered, |last| *last.min(covered));
        }
        if in_catalog {
            let rows = self.catalog.order_between(kind, (after, end), limit)?;
            if rows.len() >= limit {
                *covered = rows.last().map_or(*covered, |last| *last.min(covered));
            }
            keys.extend(rows);
            keys.sort_unstable();
            keys.dedup();
        }
        Ok(keys)
    }

    /// The tasks that are still listed under these keys.
    fn tasks_at(
        &self,
        partition: PartitionId,
        mut keys: Vec<EntryKey>,
    ) -> Result<Vec<Task>, StorageFault> {
        {
            let state = self.state()?;
            keys.retain(|key| may_be_at(&state, *key));
        }
        keys.sort_unstable();
        keys.dedup();
        let ids: Vec<TaskId> = keys.iter().map(|key| key.id).collect();
        let mut tasks = Vec::new();
        for (listed, found) in keys.iter().zip(self.fetch(partition, &ids, FetchPart::Bodies)?) {
            match found {
                Some(LiveTask::Scheduled { key, body, relocation, .. })
                    if postponed_key(key.id, relocation) == Some(*listed) =>
                {
                    tasks.push(self.task(key, &body, moved_by(relocation))?);
                }
                Some(LiveTask::Paused(paused))
                    if paused_key(listed.id, Some(&paused)) == Some(*listed) =>
                {
                    tasks.push(self.paused_task(listed.id, &paused)?);
                }
                _ => {}
            }
        }
        Ok(tasks)
    }

    /// Names with the filter's prefix, unless there are too many.
    fn names_of_prefix(
        &self,
        partition: PartitionId,
        filter: &Filter,
    ) -> Result<Option<Vec<NameKey>>, StorageFault> {
        let prefix = name(partition, filter.namespace.as_str(), &filter.key_prefix);
        let (mut names, in_catalog) = {
            let state = self.state()?;
            let before = |row: &NameRow| row.name() < &*prefix;
            let within = |row: &NameRow| row.name().starts_with(&prefix);
            let noted = state.names_order.select(before, within, NAMES_MAX + 1);
            let noted = noted.iter().map(|row| row.name().into());
            (noted.collect::<Vec<NameKey>>(), state.names.in_catalog())
        };
        if names.len() <= NAMES_MAX && in_catalog {
            names.extend(self.catalog.names_from(&prefix, NAMES_MAX + 1)?);
        }
        self.examined.fetch_add(names.len() as u64, Ordering::Relaxed);
        names.sort_unstable();
        names.dedup();
        Ok((names.len() <= NAMES_MAX).then_some(names))
    }

    fn list_by_name(
        &self,
        filter: &Filter,
        (after, end): Range,
        limit: usize,
        names: &[NameKey],
    ) -> Result<Page<Task, Position>, StorageFault> {
        let heads = self.find(names)?.into_iter().flatten();
        let of_state = heads.filter(|head| filter.state.is_none_or(|state| state == head.state));
        let keys = of_state.map(|head| EntryKey::new(head.fire_at, head.id));
        let mut keys: Vec<EntryKey> = keys.filter(|key| *key > after && *key < end).collect();
        keys.sort_unstable();
        let mut items = Vec::new();
        for some in keys.chunks(limit.clamp(*STEP.start(), *STEP.end())) {
            let ids: Vec<TaskId> = some.iter().map(|key| key.id).collect();
            let tasks = self.tasks_of(after.partition, &ids)?.into_iter().flatten().collect();
            if let Some(next) = fill(&mut items, limit, filter, tasks) {
                return Ok(Page { items, next: Some(next) });
            }
        }
        Ok(Page { items, next: None })
    }
}

/// Adds the tasks that match to a page, and returns where the next page begins if it is full.
pub(super) fn fill(
    items: &mut Vec<Task>,
    limit: usize,
    filter: &Filter,
    tasks: Vec<Task>,
) -> Option<Position> {
    for task in tasks {
        if filter.matches(&task) {
            items.push(task);
            if items.len() >= limit {
                return items.last().map(Position::of);
            }
        }
    }
    None
}

/// Whether a task may be listed under a key, as far as memory knows.
fn may_be_at(state: &StoreState, key: EntryKey) -> bool {
    let id = key.id;
    let postponed = match state.relocations.get(&id) {
        Some(relocation) => postponed_key(id, *relocation) == Some(key),
        None => state.relocations.in_catalog(),
    };
    let paused = match state.paused.get(&id) {
        Some(paused) => paused_key(id, paused.as_ref()) == Some(key),
        None => state.paused.in_catalog(),
    };
    postponed || paused
}

/// A key greater than everything that is due before a time. `Timestamp::MAX` excludes nothing.
pub(crate) fn end_of(partition: PartitionId, to: Timestamp) -> EntryKey {
    if to == Timestamp::MAX {
        let id = TaskId::new(to, partition, Epoch::MAX, Sequence::MAX);
        return EntryKey { partition, at: to, id };
    }
    EntryKey::after(partition, Position::before(to))
}
