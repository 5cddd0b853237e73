//! Due counts, and pages of series.
//!
//! Both merge the catalog with what changed since the last checkpoint. A checkpoint that ends in
//! between moves rows from memory to the catalog, so a read that one overtook is made again.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use punctual_core::{Namespace, PartitionId, Task, TaskId, Timestamp};
use punctual_store::{DueSteps, Filter, Page, Position};

use crate::catalog::{namespace_prefix, read_series_key, series_key};
use crate::fault::{ReadContext, StorageFault};
use crate::read::list::{EXAMINED_MAX, STEP, fill};
use crate::run::Generation;
use crate::state::due::{FrozenDue, SeriesRow};
use crate::store_core::StoreCore;

/// Some series of a namespace, in order.
struct SeriesStep {
    positions: Vec<Position>,
    /// All keys up to this one were read; `None` if there are none after it.
    covered: Option<Box<[u8]>>,
    examined: usize,
}

impl StoreCore {
    pub(crate) fn due_counts(
        &self,
        partition: PartitionId,
        namespace: &Namespace,
        steps: &DueSteps,
    ) -> Result<Vec<i64>, StorageFault> {
        loop {
            let checkpoints = self.state()?.checkpoints;
            let mut sums = vec![0; steps.count()];
            let generation =
                self.catalog.add_due(partition, namespace.as_str(), steps, &mut sums)?;
            let state = self.state()?;
            if state.checkpoints != checkpoints {
                continue;
            }
            // Between the commit of the catalog and the end of a checkpoint, both have its rows.
            let frozen = state.frozen.as_ref().map(|(frozen, _)| Generation(frozen.0 + 1));
            let frozen = match frozen == generation && frozen.is_some() {
                true => FrozenDue::Written,
                false => FrozenDue::NotWritten,
            };
            let tally = state.partition(partition).counts.get(namespace.as_str());
            for (minute, by) in tally.into_iter().flat_map(|tally| tally.due.iter(frozen)) {
                if let Some(step) = steps.step_of(minute) {
                    sums[step] += by;
                }
            }
            return Ok(sums);
        }
    }

    /// A page of the series of a namespace.
    pub(super) fn list_series(
        &self,
        partition: PartitionId,
        filter: &Filter,
        after: Position,
        limit: usize,
    ) -> Result<Page<Task, Position>, StorageFault> {
        let namespace = filter.namespace.as_str();
        let mut after = series_key(partition, namespace, after);
        let mut end = namespace_prefix(partition, namespace);
        // After all keys of the namespace, which go on with a time.
        end.extend_from_slice(&[u8::MAX; 8]);
        let (mut items, mut examined) = (Vec::new(), 0);
        let mut want = limit.clamp(*STEP.start(), *STEP.end());
        while examined < EXAMINED_MAX {
            let step = self.series_after(&after, &end, want)?;
            let past =
                |position: &Position| filter.to != Timestamp::MAX && position.fire_at >= filter.to;
            let is_last = step.covered.is_none() || step.positions.last().is_some_and(past);
            let tasks = self.tasks_listed_at(partition, &step.positions)?;
            if let Some(next) = fill(&mut items, limit, filter, tasks) {
                return Ok(Page { items, next: Some(next) });
            }
            let Some(covered) = step.covered.filter(|_| !is_last) else {
                return Ok(Page { items, next: None });
            };
            examined += step.examined;
            after = covered;
            want = (want * 2).min(*STEP.end());
        }
        let next = read_series_key(&after).reading("series")?;
        Ok(Page { items, next: Some(next) })
    }

    /// The next series after a key and before another. Reads at most `count` rows of the catalog
    /// and as many of each layer in memory.
    fn series_after(
        &self,
        after: &[u8],
        end: &[u8],
        count: usize,
    ) -> Result<SeriesStep, StorageFault> {
        loop {
            let checkpoints = self.state()?.checkpoints;
            let stored = self.catalog.series_between(after, end, count)?;
            let state = self.state()?;
            if state.checkpoints != checkpoints {
                continue;
            }
            let changed = state.series.between(after, end, count);
            drop(state);
            let mut covered = (stored.len() >= count).then(|| stored.last().cloned()).flatten();
            if changed.len() >= count {
                // Each layer is complete up to this key at least.
                let last = changed.keys().nth(count - 1).cloned();
                covered = [covered, last].into_iter().flatten().min();
            }
            let examined = stored.len() + changed.len();
            self.examined.fetch_add(examined as u64, Ordering::Relaxed);
            let stored = stored.into_iter().map(|key| (key, SeriesRow::Present));
            let mut rows: BTreeMap<Box<[u8]>, SeriesRow> = stored.collect();
            rows.extend(changed);
            let mut positions = Vec::new();
            let within = |key: &[u8]| covered.as_deref().is_none_or(|covered| key <= covered);
            for (key, row) in rows.iter().take_while(|(key, _)| within(key)) {
                if *row == SeriesRow::Present {
                    positions.push(read_series_key(key).reading("series")?);
                }
            }
            return Ok(SeriesStep { positions, covered, examined });
        }
    }

    /// The tasks that are still at these positions, in order.
    fn tasks_listed_at(
        &self,
        partition: PartitionId,
        positions: &[Position],
    ) -> Result<Vec<Task>, StorageFault> {
        let ids: Vec<TaskId> = positions.iter().map(|position| position.id).collect();
        let tasks = self.tasks_of(partition, &ids)?;
        let found = tasks.into_iter().zip(positions);
        let found = found
            .filter_map(|(task, position)| task.filter(|task| Position::of(task) == *position));
        Ok(found.collect())
    }
}
