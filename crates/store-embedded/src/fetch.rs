//! Fetching: tasks by id, without an index.
//!
//! In: ids. Out: where each stands, and its record. The id says when the task was due, the standings say
//! whether that still holds; so there is one key to look for, in the buffers and in the few runs that may have it. Keys of many
//! ids are looked up in the order of the blocks, so that a block is read once.

use std::sync::Arc;

use bytes::Bytes;
use punctual_core::{PartitionId, Task, TaskId};

use crate::catalog::Paused;
use crate::fault::Fault;
use crate::inner::Inner;
use crate::key::Key;
use crate::run::{Birth, Run};
use crate::standing::{Moved, Standing, key_of};
use crate::state::State;
use crate::timeline::Timeline;

/// Tries to get an answer that no commit has overtaken. Beyond them, the answer is what was true at some time
/// for each id.
const TRIES_MAX: usize = 4;

/// Whether bodies are wanted, or only whether there is something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Want {
    Bodies,
    Presence,
}

/// A living task.
#[derive(Debug, Clone)]
pub(crate) enum Found {
    Scheduled { key: Key, body: Bytes, standing: Option<Standing>, place: Place },
    Paused(Paused),
}

/// Where an entry was found.
#[derive(Debug, Clone)]
pub(crate) enum Place {
    Buffer,
    Frozen(Birth),
    Run(Arc<Run>, u32),
}

/// Whether an entry that was found is still there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Still {
    Lives,
    Ended,
    /// It was written somewhere else meanwhile: look again.
    Moved,
}

impl Place {
    pub(crate) fn still(&self, state: &State, key: Key) -> Still {
        let ended = match self {
            Self::Buffer if state.buffer.get(key).is_some() => false,
            Self::Buffer => return Still::Moved,
            Self::Frozen(birth) => match &state.frozen {
                Some((frozen, _)) if frozen == birth => state.has_ended(key.id, *birth),
                _ => return Still::Moved,
            },
            Self::Run(run, ordinal) => {
                if !state.timeline.has(key, run) {
                    return Still::Moved;
                }
                run.ended.get(*ordinal) || state.has_ended(key.id, run.birth)
            }
        };
        if ended { Still::Ended } else { Still::Lives }
    }
}

/// A hit in a run; whether it has ended is another question.
#[derive(Debug)]
pub(crate) struct Hit {
    pub(crate) wanted: usize,
    pub(crate) run: Arc<Run>,
    pub(crate) ordinal: u32,
    body: Bytes,
}

/// What one look at memory says of an id.
enum Look {
    Known(Option<Found>),
    /// To be looked for in the runs, at the place that this standing says, or the catalog's; and, if it `may_be_paused`,
    /// among the paused tasks of the catalog.
    Sought {
        standing: Option<Option<Standing>>,
        may_be_paused: bool,
    },
}

/// What is looked for on disk.
struct Sought {
    wanted: usize,
    key: Key,
    standing: Option<Standing>,
    may_be_paused: bool,
}

impl Inner {
    /// Living tasks by id.
    pub(crate) fn fetch(
        &self,
        partition: PartitionId,
        ids: &[TaskId],
        want: Want,
    ) -> Result<Vec<Option<Found>>, Fault> {
        let mut tries = 0;
        loop {
            tries += 1;
            let state = self.state()?;
            let version = state.partition(partition).version;
            let checkpoints = state.checkpoints;
            let timeline = Arc::clone(&state.timeline);
            let mut found: Vec<Option<Found>> = Vec::with_capacity(ids.len());
            let mut asked = Vec::with_capacity(ids.len());
            for (wanted, id) in ids.iter().enumerate() {
                found.push(match look(&state, partition, *id) {
                    Look::Known(known) => known,
                    Look::Sought { standing, may_be_paused } => {
                        asked.push((wanted, standing, may_be_paused));
                        None
                    }
                });
            }
            drop(state);
            let mut sought = Vec::with_capacity(asked.len());
            for (wanted, standing, may_be_paused) in asked {
                let standing = self.standing_of(ids[wanted], standing)?;
                let key = key_of(ids[wanted], standing);
                sought.push(Sought { wanted, key, standing, may_be_paused });
            }
            let keys: Vec<(usize, Key)> = sought.iter().map(|s| (s.wanted, s.key)).collect();
            let hits = self.search(&timeline, &keys, want)?;
            self.keep_living(hits, &sought, &mut found)?;
            self.add_paused(&sought, &mut found)?;
            let state = self.state()?;
            let same =
                state.partition(partition).version == version && state.checkpoints == checkpoints;
            if same || sought.is_empty() || tries == TRIES_MAX {
                return Ok(found);
            }
        }
    }

    /// The same, as tasks.
    pub(crate) fn tasks_of(
        &self,
        partition: PartitionId,
        ids: &[TaskId],
    ) -> Result<Vec<Option<Task>>, Fault> {
        let found = self.fetch(partition, ids, Want::Bodies)?;
        let task = |(id, found): (&TaskId, Option<Found>)| match found {
            None => Ok(None),
            Some(Found::Paused(paused)) => self.paused_task(*id, &paused).map(Some),
            Some(Found::Scheduled { key, body, standing, .. }) => {
                self.task(key, &body, moved_of(standing)).map(Some)
            }
        };
        ids.iter().zip(found).map(task).collect()
    }

    /// The standing that holds: the one in memory, or the catalog's.
    pub(crate) fn standing_of(
        &self,
        id: TaskId,
        in_memory: Option<Option<Standing>>,
    ) -> Result<Option<Standing>, Fault> {
        match in_memory {
            Some(Some(standing)) if standing.filed_at().is_none() => {
                Ok(Some(standing.completed(id, self.catalog.standing(id)?)))
            }
            Some(standing) => Ok(standing),
            None => self.catalog.standing(id),
        }
    }

    fn keep_living(
        &self,
        hits: Vec<Hit>,
        sought: &[Sought],
        found: &mut [Option<Found>],
    ) -> Result<(), Fault> {
        let mut state = self.state()?;
        for hit in hits {
            let at = sought.partition_point(|sought| sought.wanted < hit.wanted);
            let Sought { key, standing, .. } = sought[at];
            if hit.run.ended.get(hit.ordinal) || state.has_ended(key.id, hit.run.birth) {
                continue;
            }
            state.located.note(key.id, hit.run.no, hit.ordinal);
            found[hit.wanted] = Some(Found::Scheduled {
                key,
                body: hit.body,
                standing,
                place: Place::Run(hit.run, hit.ordinal),
            });
        }
        Ok(())
    }

    fn add_paused(&self, sought: &[Sought], found: &mut [Option<Found>]) -> Result<(), Fault> {
        for one in sought.iter().filter(|sought| sought.may_be_paused) {
            if found[one.wanted].is_none() {
                found[one.wanted] = self.catalog.paused(one.key.id)?.map(Found::Paused);
            }
        }
        Ok(())
    }

    /// Finds keys in the runs that may have them.
    pub(crate) fn search(
        &self,
        timeline: &Timeline,
        keys: &[(usize, Key)],
        want: Want,
    ) -> Result<Vec<Hit>, Fault> {
        let mut places = Vec::with_capacity(keys.len());
        for (wanted, key) in keys {
            for run in timeline.covering(*key) {
                if let Some(block) = run.block_of(*key) {
                    places.push((run.no, block, *key, *wanted, run));
                }
            }
        }
        places.sort_unstable_by_key(|(no, block, key, ..)| (*no, *block, *key));
        let mut hits = Vec::with_capacity(keys.len());
        // One piece of memory each, however many are looked for.
        let (mut block_keys, mut bodies) = (Vec::new(), Vec::new());
        for of_run in places.chunk_by(|a, b| a.0 == b.0) {
            let run = of_run[0].4;
            let file = run.open_file(&self.files)?;
            for of_block in of_run.chunk_by(|a, b| a.1 == b.1) {
                let block = of_block[0].1;
                let keys = file.read_keys(block, &mut block_keys)?;
                for (_, _, key, wanted, _) in of_block {
                    let Some(index) = run.index_of(&self.files, block, &keys, *key)? else {
                        continue;
                    };
                    let ordinal = run.ordinal_at(block, index);
                    if run.ended.get(ordinal) {
                        continue;
                    }
                    let body = match want {
                        Want::Bodies => file.read_body(block, &keys, index, &mut bodies)?,
                        Want::Presence => 0..0,
                    };
                    hits.push((*wanted, Arc::clone(run), ordinal, body));
                }
            }
        }
        let bodies = Bytes::from(bodies);
        let hit =
            |(wanted, run, ordinal, body)| Hit { wanted, run, ordinal, body: bodies.slice(body) };
        Ok(hits.into_iter().map(hit).collect())
    }
}

fn look(state: &State, partition: PartitionId, id: TaskId) -> Look {
    if id.partition() != partition {
        return Look::Known(None);
    }
    let in_memory = state.standings.get(&id).copied();
    // In the buffers only what has a standing in memory is away from home.
    let standing = in_memory.unwrap_or_default();
    let key = key_of(id, standing);
    let in_buffer = state.buffer.get(key).map(|body| (body, Place::Buffer));
    let in_frozen = || {
        let (birth, frozen) = state.frozen.as_ref()?;
        let body = frozen.get(key)?;
        (!state.has_ended(id, *birth)).then_some((body, Place::Frozen(*birth)))
    };
    if let Some((body, place)) = in_buffer.or_else(in_frozen) {
        let body = body.clone();
        return Look::Known(Some(Found::Scheduled { key, body, standing, place }));
    }
    let may_be_paused = match state.paused.get(&id) {
        Some(Some(paused)) => return Look::Known(Some(Found::Paused(paused.clone()))),
        Some(None) => false,
        None => state.paused.beneath(),
    };
    if state.timeline.is_empty() && !may_be_paused {
        return Look::Known(None);
    }
    Look::Sought {
        standing: in_memory.or_else(|| (!state.standings.beneath()).then_some(None)),
        may_be_paused,
    }
}

/// What holds instead of the record's own.
pub(crate) fn moved_of(standing: Option<Standing>) -> Option<Moved> {
    standing.and_then(|standing| standing.moved())
}
