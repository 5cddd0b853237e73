//! Resolving: find the entries of ended tasks in the runs, and set their bits.
//!
//! Only the background thread sets bits, so no bit changes while it merges or writes.

use std::collections::HashMap;
use std::sync::Arc;

use punctual_core::TaskId;

use crate::fault::StorageFault;
use crate::key::EntryKey;
use crate::read::fetch::FetchPart;
use crate::run::{Generation, RunNo, SortedRun};
use crate::state::endings::Endings;
use crate::state::timeline::Timeline;
use crate::store_core::StoreCore;

/// Endings that are looked up together: enough to share blocks, few enough to need little memory.
const RESOLVE_CHUNK: usize = 65_536;

impl StoreCore {
    /// Sets the bits of all tasks that have ended so far.
    pub(crate) fn resolve(&self) -> Result<(), StorageFault> {
        let (endings, timeline) = {
            let mut state = self.state()?;
            if state.ended.len() == 0 || state.resolving.is_some() {
                return Ok(());
            }
            // The frozen buffer has no bits: endings in it stay until it is a run.
            let endings = Arc::new(state.ended.take());
            state.resolving = Some(Arc::clone(&endings));
            (endings, Arc::clone(&state.timeline))
        };
        let stale = self.set_bits(&endings, &timeline)?;
        let mut state = self.state()?;
        for id in stale {
            // Unless the task was filed again meanwhile.
            if state.relocations.get(&id).is_none() {
                state.relocations.set(id, None);
            }
        }
        let done = state.resolving.take();
        drop(state);
        drop(done);
        Ok(())
    }

    /// Sets the bits of endings. Returns the ids whose relocation in the catalog no longer holds.
    pub(crate) fn set_bits(
        &self,
        endings: &Endings,
        timeline: &Timeline,
    ) -> Result<Vec<TaskId>, StorageFault> {
        let mut stale = Vec::new();
        if timeline.is_empty() {
            return Ok(stale);
        }
        let runs: HashMap<RunNo, &Arc<SortedRun>> =
            timeline.runs().map(|run| (run.no, run)).collect();
        let mut all: Vec<(EntryKey, Generation)> = Vec::new();
        for (id, ending) in endings.iter() {
            let known = ending.location.and_then(|(no, ordinal)| Some((*runs.get(&no)?, ordinal)));
            if let Some((run, ordinal)) = known {
                run.ended.set(ordinal);
                if ending.filed_at.is_none() && self.catalog.relocation(id)?.is_some() {
                    stale.push(id);
                }
                continue;
            }
            let filed_at = match ending.filed_at {
                Some(at) => at,
                None => match self.catalog.relocation(id)? {
                    Some(relocation) => {
                        stale.push(id);
                        relocation.filed_at().unwrap_or(id.due())
                    }
                    None => id.due(),
                },
            };
            all.push((EntryKey::new(filed_at, id), ending.before));
        }
        all.sort_unstable();
        for chunk in all.chunks(RESOLVE_CHUNK) {
            let keys: Vec<(usize, EntryKey)> =
                chunk.iter().enumerate().map(|(index, (key, _))| (index, *key)).collect();
            for hit in self.search(timeline, &keys, FetchPart::Presence)? {
                if hit.run.generation < chunk[hit.wanted].1 {
                    hit.run.ended.set(hit.ordinal);
                }
            }
        }
        Ok(stale)
    }
}
