//! Fetching: tasks by id, without an index.
//!
//! An id contains a time, and the relocations say whether the entry is filed at that time. So there
//! is one key to search for, in the buffers and in the few runs that may have it. The keys of many
//! ids are searched in the order of the blocks, so that each block is read once.

use std::sync::{Arc, PoisonError};

use bytes::Bytes;
use punctual_core::{PartitionId, Task, TaskId};

use crate::catalog::Paused;
use crate::fault::StorageFault;
use crate::key::EntryKey;
use crate::run::{BlockKeys, Generation, OpenRun, SortedRun};
use crate::state::StoreState;
use crate::state::relocation::{Moved, Relocation, key_of};
use crate::state::timeline::Timeline;
use crate::store_core::StoreCore;

/// Attempts to get a result that no commit has changed meanwhile. The last attempt may return tasks
/// as they were at different moments.
const TRIES_MAX: usize = 4;

/// Which part of an entry is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FetchPart {
    Bodies,
    Presence,
}

/// A task that has not ended.
#[derive(Debug, Clone)]
pub(crate) enum LiveTask {
    Scheduled {
        key: EntryKey,
        body: Bytes,
        relocation: Option<Relocation>,
        location: EntryLocation,
    },
    Paused(Paused),
}

/// Where an entry was found.
#[derive(Debug, Clone)]
pub(crate) enum EntryLocation {
    Buffer,
    Frozen(Generation),
    Run(Arc<SortedRun>, u32),
}

/// Whether an entry that was found is still there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EntryStatus {
    Live,
    Ended,
    /// A checkpoint has moved it meanwhile: search again.
    Moved,
}

impl EntryLocation {
    pub(crate) fn status(&self, state: &StoreState, key: EntryKey) -> EntryStatus {
        let ended = match self {
            Self::Buffer if state.buffer.get(key).is_some() => false,
            Self::Buffer => return EntryStatus::Moved,
            Self::Frozen(generation) => match &state.frozen {
                Some((frozen, _)) if frozen == generation => state.has_ended(key.id, *generation),
                _ => return EntryStatus::Moved,
            },
            Self::Run(run, ordinal) => {
                if !state.timeline.has(key, run) {
                    return EntryStatus::Moved;
                }
                run.ended.get(*ordinal) || state.has_ended(key.id, run.generation)
            }
        };
        if ended { EntryStatus::Ended } else { EntryStatus::Live }
    }
}

/// An entry that was found in a run. It may have ended.
#[derive(Debug)]
pub(crate) struct RunHit {
    pub(crate) wanted: usize,
    pub(crate) run: Arc<SortedRun>,
    pub(crate) ordinal: u32,
    body: Bytes,
}

/// What memory knows about an id.
enum MemoryLookup {
    Known(Option<LiveTask>),
    /// The runs have to be searched, at the time that this relocation gives, or the one in the
    /// catalog; and, if it `may_be_paused`, the paused tasks in the catalog.
    OnDisk {
        relocation: Option<Option<Relocation>>,
        may_be_paused: bool,
    },
}

/// A search on disk.
struct DiskLookup {
    wanted: usize,
    key: EntryKey,
    relocation: Option<Relocation>,
    may_be_paused: bool,
}

impl StoreCore {
    /// Tasks by id that have not ended.
    pub(crate) fn fetch(
        &self,
        partition: PartitionId,
        ids: &[TaskId],
        want: FetchPart,
    ) -> Result<Vec<Option<LiveTask>>, StorageFault> {
        let mut tries = 0;
        loop {
            tries += 1;
            let state = self.state()?;
            let version = state.partition(partition).version;
            let checkpoints = state.checkpoints;
            let timeline = Arc::clone(&state.timeline);
            let mut found: Vec<Option<LiveTask>> = Vec::with_capacity(ids.len());
            let mut on_disk = Vec::with_capacity(ids.len());
            for (wanted, id) in ids.iter().enumerate() {
                found.push(match look_up(&state, partition, *id) {
                    MemoryLookup::Known(known) => known,
                    MemoryLookup::OnDisk { relocation, may_be_paused } => {
                        on_disk.push((wanted, relocation, may_be_paused));
                        None
                    }
                });
            }
            drop(state);
            let mut lookups = Vec::with_capacity(on_disk.len());
            for (wanted, relocation, may_be_paused) in on_disk {
                let relocation = self.relocation_of(ids[wanted], relocation)?;
                let key = key_of(ids[wanted], relocation);
                lookups.push(DiskLookup { wanted, key, relocation, may_be_paused });
            }
            let keys: Vec<(usize, EntryKey)> = lookups.iter().map(|s| (s.wanted, s.key)).collect();
            let hits = self.search(&timeline, &keys, want)?;
            self.keep_live(hits, &lookups, &mut found)?;
            self.add_paused(&lookups, &mut found)?;
            let state = self.state()?;
            let same =
                state.partition(partition).version == version && state.checkpoints == checkpoints;
            if same || lookups.is_empty() || tries == TRIES_MAX {
                return Ok(found);
            }
        }
    }

    /// The same, decoded.
    pub(crate) fn tasks_of(
        &self,
        partition: PartitionId,
        ids: &[TaskId],
    ) -> Result<Vec<Option<Task>>, StorageFault> {
        self.decode(ids, self.fetch(partition, ids, FetchPart::Bodies)?)
    }

    /// The same, if memory knows all of them.
    pub(crate) fn tasks_in_memory(
        &self,
        partition: PartitionId,
        ids: &[TaskId],
    ) -> Result<Option<Vec<Option<Task>>>, StorageFault> {
        let state = self.state()?;
        let mut found = Vec::with_capacity(ids.len());
        for id in ids {
            match look_up(&state, partition, *id) {
                MemoryLookup::Known(known) => found.push(known),
                MemoryLookup::OnDisk { .. } => return Ok(None),
            }
        }
        drop(state);
        self.decode(ids, found).map(Some)
    }

    fn decode(
        &self,
        ids: &[TaskId],
        found: Vec<Option<LiveTask>>,
    ) -> Result<Vec<Option<Task>>, StorageFault> {
        let task = |(id, found): (&TaskId, Option<LiveTask>)| match found {
            None => Ok(None),
            Some(LiveTask::Paused(paused)) => self.paused_task(*id, &paused).map(Some),
            Some(LiveTask::Scheduled { key, body, relocation, .. }) => {
                self.task(key, &body, moved_by(relocation)).map(Some)
            }
        };
        ids.iter().zip(found).map(task).collect()
    }

    /// The present relocation: the one in memory, or the one in the catalog.
    pub(crate) fn relocation_of(
        &self,
        id: TaskId,
        in_memory: Option<Option<Relocation>>,
    ) -> Result<Option<Relocation>, StorageFault> {
        match in_memory {
            Some(Some(relocation)) if relocation.filed_at().is_none() => {
                Ok(Some(relocation.completed(id, self.catalog.relocation(id)?)))
            }
            Some(relocation) => Ok(relocation),
            None => self.catalog.relocation(id),
        }
    }

    fn keep_live(
        &self,
        hits: Vec<RunHit>,
        lookups: &[DiskLookup],
        found: &mut [Option<LiveTask>],
    ) -> Result<(), StorageFault> {
        let mut state = self.state()?;
        for hit in hits {
            let at = lookups.partition_point(|lookup| lookup.wanted < hit.wanted);
            let DiskLookup { key, relocation, .. } = lookups[at];
            if hit.run.ended.get(hit.ordinal) || state.has_ended(key.id, hit.run.generation) {
                continue;
            }
            state.recent_locations.note(key.id, hit.run.no, hit.ordinal);
            found[hit.wanted] = Some(LiveTask::Scheduled {
                key,
                body: hit.body,
                relocation,
                location: EntryLocation::Run(hit.run, hit.ordinal),
            });
        }
        Ok(())
    }

    fn add_paused(
        &self,
        lookups: &[DiskLookup],
        found: &mut [Option<LiveTask>],
    ) -> Result<(), StorageFault> {
        for one in lookups.iter().filter(|lookup| lookup.may_be_paused) {
            if found[one.wanted].is_none() {
                found[one.wanted] = self.catalog.paused(one.key.id)?.map(LiveTask::Paused);
            }
        }
        Ok(())
    }

    /// Finds keys in the runs that may have them.
    pub(crate) fn search(
        &self,
        timeline: &Timeline,
        keys: &[(usize, EntryKey)],
        want: FetchPart,
    ) -> Result<Vec<RunHit>, StorageFault> {
        let mut candidates = Vec::with_capacity(keys.len());
        for (wanted, key) in keys {
            for run in timeline.covering(*key) {
                if let Some(block) = run.block_of(*key) {
                    candidates.push((run.no, block, *key, *wanted, run));
                }
            }
        }
        candidates.sort_unstable_by_key(|(no, block, key, ..)| (*no, *block, *key));
        let mut hits = Vec::with_capacity(keys.len());
        // One buffer for all bodies.
        let mut bodies = Vec::new();
        for of_run in candidates.chunk_by(|a, b| a.0 == b.0) {
            let run = of_run[0].4;
            let file = run.open_file(&self.files)?;
            for of_block in of_run.chunk_by(|a, b| a.1 == b.1) {
                let block = of_block[0].1;
                let keys = self.block_keys(run, &file, block)?;
                for (_, _, key, wanted, _) in of_block {
                    let Some(index) = run.index_of(&self.files, block, &keys, *key)? else {
                        continue;
                    };
                    let ordinal = run.ordinal_at(block, index);
                    if run.ended.get(ordinal) {
                        continue;
                    }
                    let body = match want {
                        FetchPart::Bodies => file.read_body(block, &keys, index, &mut bodies)?,
                        FetchPart::Presence => 0..0,
                    };
                    hits.push((*wanted, Arc::clone(run), ordinal, body));
                }
            }
        }
        let bodies = Bytes::from(bodies);
        let hit = |(wanted, run, ordinal, body)| RunHit {
            wanted,
            run,
            ordinal,
            body: bodies.slice(body),
        };
        Ok(hits.into_iter().map(hit).collect())
    }
}

impl StoreCore {
    /// The keys of a block, from memory if they were read recently.
    fn block_keys(
        &self,
        run: &SortedRun,
        file: &OpenRun<'_>,
        block: usize,
    ) -> Result<BlockKeys, StorageFault> {
        let cache = || self.block_keys.lock().unwrap_or_else(PoisonError::into_inner);
        let known = cache().get(run.no, block);
        if let Some(keys) = known {
            return Ok(keys);
        }
        let keys = file.read_shared_keys(block)?;
        cache().insert(run.no, block, keys.clone());
        Ok(keys)
    }
}

fn look_up(state: &StoreState, partition: PartitionId, id: TaskId) -> MemoryLookup {
    if id.partition() != partition {
        return MemoryLookup::Known(None);
    }
    let in_memory = state.relocations.get(&id).copied();
    // An entry in a buffer that is not at the time in its id has a relocation in memory.
    let relocation = in_memory.unwrap_or_default();
    let key = key_of(id, relocation);
    let in_buffer = state.buffer.get(key).map(|body| (body, EntryLocation::Buffer));
    let in_frozen = || {
        let (generation, frozen) = state.frozen.as_ref()?;
        let body = frozen.get(key)?;
        (!state.has_ended(id, *generation)).then_some((body, EntryLocation::Frozen(*generation)))
    };
    if let Some((body, location)) = in_buffer.or_else(in_frozen) {
        let body = body.clone();
        return MemoryLookup::Known(Some(LiveTask::Scheduled { key, body, relocation, location }));
    }
    let may_be_paused = match state.paused.get(&id) {
        Some(Some(paused)) => return MemoryLookup::Known(Some(LiveTask::Paused(paused.clone()))),
        Some(None) => false,
        None => state.paused.in_catalog(),
    };
    if state.timeline.is_empty() && !may_be_paused {
        return MemoryLookup::Known(None);
    }
    MemoryLookup::OnDisk {
        relocation: in_memory.or_else(|| (!state.relocations.in_catalog()).then_some(None)),
        may_be_paused,
    }
}

/// The time and version that replace those in the entry.
pub(crate) fn moved_by(relocation: Option<Relocation>) -> Option<Moved> {
    relocation.and_then(|relocation| relocation.moved())
}
