//! Listing: living tasks that pass a filter, in order, in pages.
//!
//! In: a filter and a position. Out: a page, and where to go on. What one page looks at is bounded, so a filter that hardly
//! anything passes gives short pages, not long waits. Postponed and paused tasks do not stand where they belong in the order; they are
//! gathered and merged in, which reads all standings and paused tasks of the partition for each page.

use punctual_core::{Epoch, PartitionId, Sequence, Task, TaskId, TaskState, Timestamp};
use punctual_store::{Filter, Page, Position};

use crate::fault::Fault;
use crate::fetch::{Found, Want, moved_of};
use crate::inner::Inner;
use crate::key::Key;
use crate::load::{Postponed, Stretch};

/// What one page looks at, at most.
const LOOKED_AT_MAX: usize = 4096;
/// Tries to get a page that no commit has overtaken.
const TRIES_MAX: usize = 4;

impl Inner {
    pub(crate) fn list(
        &self,
        partition: PartitionId,
        filter: &Filter,
        after: Position,
        limit: usize,
    ) -> Result<Page<Task, Position>, Fault> {
        let mut tries = 0;
        loop {
            tries += 1;
            let version = self.state()?.partition(partition).version;
            let page = self.list_once(partition, filter, after, limit)?;
            let overtaken = self.state()?.partition(partition).version != version;
            if !overtaken || tries == TRIES_MAX {
                return Ok(page);
            }
        }
    }

    fn list_once(
        &self,
        partition: PartitionId,
        filter: &Filter,
        after: Position,
        limit: usize,
    ) -> Result<Page<Task, Position>, Fault> {
        let after = Key::after(partition, after.max(Position::before(filter.from)));
        let end = end_of(partition, filter.to);
        if end <= after {
            let items = Vec::new();
            return Ok(Page { items, next: None });
        }
        let mut tasks = Vec::new();
        let mut whole = true;
        // Scheduled ones are not looked at if only paused ones are wanted.
        let mut covered = end;
        if filter.state.is_none_or(|state| state == TaskState::Scheduled) {
            let Stretch { living, whole: no_more } =
                self.stretch(&mut None, (after, end), LOOKED_AT_MAX, Postponed::LeaveOut)?;
            whole = no_more;
            if !whole {
                covered = living.last().map_or(end, |last| last.key);
            }
            for entry in living {
                tasks.push(self.task(entry.key, &entry.body, entry.moved)?);
            }
            let within = |at: Timestamp, id| {
                let key = Key::new(at, id);
                key > after && key <= covered
            };
            tasks.extend(self.postponed_within(partition, within)?);
        }
        tasks.extend(self.paused_within(partition, |key| key > after && key <= covered)?);
        tasks.sort_unstable_by_key(Position::of);
        let mut items: Vec<Task> = Vec::new();
        for task in tasks {
            let position = Position::of(&task);
            if filter.matches(&task) {
                items.push(task);
            }
            if items.len() >= limit {
                let next = Some(position);
                return Ok(Page { items, next });
            }
        }
        let next = (!whole).then(|| covered.position());
        Ok(Page { items, next })
    }

    fn postponed_within(
        &self,
        partition: PartitionId,
        within: impl Fn(Timestamp, TaskId) -> bool,
    ) -> Result<Vec<Task>, Fault> {
        let mut away = self.postponed_of(partition)?;
        away.retain(|(id, fire_at)| within(*fire_at, *id));
        let ids: Vec<TaskId> = away.into_iter().map(|(id, _)| id).collect();
        let mut tasks = Vec::new();
        for chunk in ids.chunks(LOOKED_AT_MAX) {
            for found in self.fetch(partition, chunk, Want::Bodies)? {
                if let Some(Found::Scheduled { key, body, standing, .. }) = found
                    && moved_of(standing).is_some_and(|moved| moved.fire_at != key.at)
                {
                    tasks.push(self.task(key, &body, moved_of(standing))?);
                }
            }
        }
        Ok(tasks)
    }

    pub(crate) fn paused_within(
        &self,
        partition: PartitionId,
        within: impl Fn(Key) -> bool,
    ) -> Result<Vec<Task>, Fault> {
        let mut rows = std::collections::HashMap::new();
        // Memory first: a checkpoint that ends in between moves rows from memory to the catalog, never back.
        let beneath = {
            let state = self.state()?;
            for (id, paused) in state.paused.iter() {
                if id.partition() == partition {
                    rows.entry(*id).or_insert_with(|| paused.clone());
                }
            }
            state.paused.beneath()
        };
        if beneath {
            self.catalog.paused_of(partition, |id, paused| {
                rows.entry(id).or_insert(Some(paused));
            })?;
        }
        let mut tasks = Vec::new();
        for (id, paused) in rows {
            let Some(paused) = paused else { continue };
            if within(Key::new(paused.fire_at, id)) {
                tasks.push(self.paused_task(id, &paused)?);
            }
        }
        Ok(tasks)
    }
}

/// Above everything that is due before a time. The last instant of all time excludes nothing.
pub(crate) fn end_of(partition: PartitionId, to: Timestamp) -> Key {
    if to == Timestamp::MAX {
        let id = TaskId::new(to, partition, Epoch::MAX, Sequence::MAX);
        return Key { partition, at: to, id };
    }
    Key::after(partition, Position::before(to))
}
