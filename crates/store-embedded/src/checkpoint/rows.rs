//! The rows that a checkpoint writes to the catalog.
//!
//! In: what was frozen. Out: a batch, not committed yet.
//! Invariant: the catalog lists a postponed or paused task under its time, and under no other: whatever row says when a task is due
//! changes together with its place in the order.

use punctual_core::TaskId;

use super::Frozen;
use crate::catalog::Batch;
use crate::fault::{Fault, Reading};
use crate::inner::Inner;
use crate::names::Known;
use crate::order::{Kind, paused_key, postponed_key};
use crate::standing::Standing;

impl Inner {
    pub(super) fn write_rows(
        &self,
        batch: &mut Batch<'_>,
        frozen: &Frozen,
        stale: &[TaskId],
    ) -> Result<(), Fault> {
        self.write_standings(batch, frozen, stale)?;
        self.write_paused(batch, frozen)?;
        let mut names: Vec<_> = frozen.names.keys().collect();
        names.sort_unstable();
        for row in names {
            let name = row.name();
            match row.known() {
                Known::Is(head) => batch.name(name, Some(head)),
                Known::Gone => batch.name(name, None),
                Known::GoneIf(_) => {
                    let named = row.named().reading("name")?;
                    let head = self.catalog.head(name)?;
                    if head.is_some() && named.resolve(head).is_none() {
                        batch.name(name, None);
                    }
                }
            }
        }
        for (fire_id, letter) in frozen.dead.iter() {
            batch.letter(*fire_id, letter.as_deref());
        }
        for (partition, namespace, counts) in &frozen.counts {
            batch.counts(*partition, namespace, counts);
        }
        for lease in &frozen.leases {
            batch.lease(lease);
        }
        for (partition, owned) in &frozen.owned {
            batch.owned(*partition, *owned);
        }
        Ok(())
    }

    fn write_standings(
        &self,
        batch: &mut Batch<'_>,
        frozen: &Frozen,
        stale: &[TaskId],
    ) -> Result<(), Fault> {
        for id in stale.iter().filter(|id| !frozen.standings.contains_key(*id)) {
            let before = postponed_key(*id, self.standing_before(frozen, *id)?);
            batch.order(Kind::Postponed, before, None);
            batch.standing(*id, None);
        }
        // In the order of the catalog's keys: there each then stands beside the one before it.
        let mut standings: Vec<_> = frozen.standings.iter().collect();
        standings.sort_unstable_by_key(|(id, _)| (id.partition(), **id));
        for (id, standing) in standings {
            let before = self.standing_before(frozen, *id)?;
            let standing = standing.map(|standing| standing.completed(*id, before));
            let listed = postponed_key(*id, standing);
            batch.order(Kind::Postponed, postponed_key(*id, before), listed);
            batch.standing(*id, standing);
        }
        Ok(())
    }

    /// The standing in the catalog.
    fn standing_before(&self, frozen: &Frozen, id: TaskId) -> Result<Option<Standing>, Fault> {
        if !frozen.beneath.0 {
            return Ok(None);
        }
        let known = frozen.standings_before.as_ref().and_then(|rows| rows.get(&id).copied());
        match known {
            // As it was written it had a place.
            Some(Some(standing)) if standing.filed_at().is_none() => self.catalog.standing(id),
            Some(standing) => Ok(standing),
            None => self.catalog.standing(id),
        }
    }

    fn write_paused(&self, batch: &mut Batch<'_>, frozen: &Frozen) -> Result<(), Fault> {
        for (id, paused) in frozen.paused.iter() {
            let before = if frozen.beneath.1 { self.catalog.paused(*id)? } else { None };
            let before = paused_key(*id, before.as_ref());
            batch.order(Kind::Paused, before, paused_key(*id, paused.as_ref()));
            batch.paused(*id, paused.as_ref());
        }
        Ok(())
    }
}
