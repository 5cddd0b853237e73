//! The catalog rows of a checkpoint, added to a batch that is committed later.
//!
//! The catalog lists a postponed or paused task under its present time and under no other: the row
//! that says when a task is due and its key in the order change in the same batch.

use punctual_core::TaskId;

use super::FrozenState;
use crate::catalog::CatalogBatch;
use crate::fault::{ReadContext, StorageFault};
use crate::state::names::NameBytes;
use crate::state::order::{LetterKey, ListedKind, paused_key, postponed_key};
use crate::state::relocation::Relocation;
use crate::store_core::StoreCore;

impl StoreCore {
    pub(super) fn write_rows(
        &self,
        batch: &mut CatalogBatch<'_>,
        frozen: &FrozenState,
        stale: &[TaskId],
    ) -> Result<(), StorageFault> {
        self.write_relocations(batch, frozen, stale)?;
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

    fn write_relocations(
        &self,
        batch: &mut CatalogBatch<'_>,
        frozen: &FrozenState,
        stale: &[TaskId],
    ) -> Result<(), StorageFault> {
        for id in stale.iter().filter(|id| !frozen.relocations.contains_key(*id)) {
            let before = postponed_key(*id, self.relocation_before(frozen, *id)?);
            batch.order(ListedKind::Postponed, before, None);
            batch.relocation(*id, None);
        }
        // In the order of the catalog's keys, so that adjacent rows are written together.
        let mut relocations: Vec<_> = frozen.relocations.iter().collect();
        relocations.sort_unstable_by_key(|(id, _)| (id.partition(), **id));
        for (id, relocation) in relocations {
            let before = self.relocation_before(frozen, *id)?;
            let relocation = relocation.map(|relocation| relocation.completed(*id, before));
            let listed = postponed_key(*id, relocation);
            batch.order(ListedKind::Postponed, postponed_key(*id, before), listed);
            batch.relocation(*id, relocation);
        }
        Ok(())
    }

    /// The relocation that is in the catalog.
    fn relocation_before(
        &self,
        frozen: &FrozenState,
        id: TaskId,
    ) -> Result<Option<Relocation>, StorageFault> {
        if !frozen.in_catalog.0 {
            return Ok(None);
        }
        let known = frozen.relocations_before.as_ref().and_then(|rows| rows.get(&id).copied());
        match known {
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
