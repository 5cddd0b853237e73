//! The catalog rows of a checkpoint, added to a batch that is committed later.
//!
//! The catalog lists a postponed or paused task under its present time and under no other: the row
//! that says when a task is due and its key in the order change in the same batch.
//!
//! Rows of tasks that were only postponed are committed in small batches before that
//! ([`RowsAhead`]): a million of them in one batch take half a gigabyte of memory until the catalog
//! has written them to a table. If the broker stops in between, the journal still has the
//! postponements, and replaying them gives the same rows: nothing else of such a task has changed,
//! and its entry is where the older row says.

use std::cmp::Reverse;

use punctual_core::TaskId;

use super::FrozenState;
use super::relocations_before::catalog_order;
use crate::catalog::{CatalogBatch, RELOCATION_BYTES_MAX};
use crate::fault::{ReadContext, StorageFault};
use crate::state::names::NameBytes;
use crate::state::order::{LetterKey, ListedKind, paused_key};
use crate::state::relocation::{Relocation, key_of};
use crate::store_core::StoreCore;

impl StoreCore {
    pub(super) fn write_rows(
        &self,
        batch: &mut CatalogBatch<'_>,
        frozen: &FrozenState,
    ) -> Result<(), StorageFault> {
        self.write_paused(batch, frozen)?;
        let mut names: Vec<_> = frozen.names.keys().collect();
        names.sort_unstable();
        for row in names {
            let name = row.name();
            match row.target_bytes() {
                NameBytes::Is(head) => batch.name(name, Some(head)),
                NameBytes::Gone => batch.name(name, None),
                NameBytes::GoneIf(_) => {
                    let target = row.target().reading("name")?;
                    let head = self.catalog.head(name)?;
                    if head.is_some() && target.resolve(head).is_none() {
                        batch.name(name, None);
                    }
                }
            }
        }
        let mut letters: Vec<_> = frozen.dead.iter().collect();
        letters.sort_unstable_by_key(|(fire_id, _)| LetterKey::of(**fire_id));
        for (fire_id, letter) in letters {
            batch.letter(*fire_id, letter.as_deref());
        }
        for (partition, namespace, counts) in &frozen.counts {
            batch.counts(*partition, namespace, counts);
        }
        self.write_due(batch, frozen)?;
        for (key, row) in frozen.series.iter() {
            batch.series(key, *row);
        }
        for (partition, namespace, groups) in &frozen.letter_groups {
            batch.letter_groups(*partition, namespace, groups);
        }
        batch.counted();
        for lease in &frozen.leases {
            batch.lease(lease);
        }
        for (partition, last) in &frozen.last_batches {
            batch.last_batch(*partition, *last);
        }
        Ok(())
    }

    /// Adds what changed to the due counts of the hours that have it.
    fn write_due(
        &self,
        batch: &mut CatalogBatch<'_>,
        frozen: &FrozenState,
    ) -> Result<(), StorageFault> {
        for (partition, namespace, changed) in &frozen.due {
            let mut minutes: Vec<_> = changed.iter().filter(|(_, by)| **by != 0).collect();
            minutes.sort_unstable();
            for of_hour in minutes.chunk_by(|(one, _), (other, _)| one.hour() == other.hour()) {
                let hour = of_hour[0].0.hour();
                let mut counts = self.catalog.due_hour(*partition, namespace, hour)?;
                for (minute, by) in of_hour {
                    counts.add(**minute, **by);
                }
                batch.due_hour(*partition, namespace, hour, &counts);
            }
        }
        Ok(())
    }

    /// At most how many bytes `write_relocations` writes.
    pub(super) fn relocation_bytes_max(frozen: &FrozenState, stale: &[TaskId]) -> u64 {
        (frozen.relocations.len() + stale.len()) as u64 * RELOCATION_BYTES_MAX
    }

    /// Adds the rows of relocated tasks to the batch, or commits them ahead of it.
    pub(super) fn write_relocations(
        &self,
        batch: &mut CatalogBatch<'_>,
        frozen: &mut FrozenState,
        stale: &[TaskId],
    ) -> Result<(), StorageFault> {
        frozen.relocations_before.sort();
        for id in stale.iter().filter(|id| !frozen.relocations.contains_key(*id)) {
            let known = frozen.relocations_before.get(*id);
            let before = self.relocation_before(frozen.in_catalog.0, *id, known)?;
            batch.relocate(*id, before, None);
        }
        // In the order of the catalog's keys, so that adjacent rows are written together; the last
        // first, as the rows before are taken.
        let mut relocations: Vec<_> = frozen.relocations.iter().collect();
        relocations.sort_unstable_by_key(|(id, _)| Reverse(catalog_order(**id)));
        let mut ahead = RowsAhead { core: self, batch: self.catalog.batch_ahead() };
        for (id, relocation) in relocations {
            let known = frozen.relocations_before.take(*id);
            let before = self.relocation_before(frozen.in_catalog.0, *id, known)?;
            let relocation = relocation.map(|relocation| relocation.completed(*id, before));
            if only_postponed(*id, before, relocation) {
                ahead.relocate(*id, before, relocation)?;
            } else {
                batch.relocate(*id, before, relocation);
            }
        }
        ahead.commit()
    }

    /// The relocation that is in the catalog, which memory may know.
    fn relocation_before(
        &self,
        in_catalog: bool,
        id: TaskId,
        known: Option<Option<Relocation>>,
    ) -> Result<Option<Relocation>, StorageFault> {
        match known {
            _ if !in_catalog => Ok(None),
            // The catalog has the time of filing, which this row leaves open.
            Some(Some(relocation)) if relocation.filed_at().is_none() => {
                self.catalog.relocation(id)
            }
            Some(relocation) => Ok(relocation),
            None => self.catalog.relocation(id),
        }
    }

    fn write_paused(
        &self,
        batch: &mut CatalogBatch<'_>,
        frozen: &FrozenState,
    ) -> Result<(), StorageFault> {
        for (id, paused) in frozen.paused.iter() {
            let before = if frozen.in_catalog.1 { self.catalog.paused(*id)? } else { None };
            let before = paused_key(*id, before.as_ref());
            batch.order(ListedKind::Paused, before, paused_key(*id, paused.as_ref()));
            batch.paused(*id, paused.as_ref());
        }
        Ok(())
    }
}

/// Whether a task was postponed since the last checkpoint, and its entry stayed where it was.
fn only_postponed(id: TaskId, before: Option<Relocation>, now: Option<Relocation>) -> bool {
    let filed_at = |row: Option<Relocation>| key_of(id, row).at;
    now.is_some_and(|now| now.moved().is_some()) && filed_at(before) == filed_at(now)
}

/// Rows that are committed in batches of their own before the batch of the checkpoint.
struct RowsAhead<'a> {
    core: &'a StoreCore,
    batch: CatalogBatch<'a>,
}

impl RowsAhead<'_> {
    fn relocate(
        &mut self,
        id: TaskId,
        before: Option<Relocation>,
        now: Option<Relocation>,
    ) -> Result<(), StorageFault> {
        self.batch.relocate(id, before, now);
        if self.batch.bytes() >= self.core.options.rows_batch_bytes_max {
            let full = std::mem::replace(&mut self.batch, self.core.catalog.batch_ahead());
            full.commit()?;
            self.core.catalog.flush_relocations()?;
            self.core.step()?;
        }
        Ok(())
    }

    fn commit(self) -> Result<(), StorageFault> {
        self.batch.commit()?;
        self.core.step()
    }
}
