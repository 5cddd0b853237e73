//! Memory: copies of the tasks that are due before the horizon, and their timers.
//!
//! In: tasks that were loaded or have just become durable. Out: those whose time has come.
//! Invariant: every task here that waits has a timer at its `fire_at`; no other has one.
//! Bound: a number of tasks and of bytes. Losing all of it loses nothing: the store has every task.

use std::collections::HashMap;

use punctual_core::{Task, TaskId, Timestamp};
use punctual_store::Position;
use punctual_wheel::{TimerId, Wheel};
use rapidhash::fast::RandomState;
use slab::Slab;

use crate::deliver::Report;
use crate::lane::LaneNo;

/// What one owner may hold in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// Tasks. At about half a kilobyte each this is most of the memory of an engine.
    pub tasks: usize,
    /// Bytes of their payloads, for the same reason: a few thousand of the largest would be as much.
    pub payload_bytes: usize,
}

impl Budget {
    /// What a broker may hold, shared among so many owners.
    #[must_use]
    pub fn shared_by(owners: u16) -> Self {
        let owners = usize::from(owners.max(1));
        let tasks = (BROKER_TASKS / owners).max(OWNER_TASKS_MIN);
        Self { tasks, payload_bytes: (BROKER_PAYLOAD_BYTES / owners).max(OWNER_PAYLOAD_BYTES_MIN) }
    }
}

/// Of one broker: with the rest of it well below half a gibibyte.
const BROKER_TASKS: usize = 400_000;
const BROKER_PAYLOAD_BYTES: usize = 128 << 20;
/// However many owners there are: a page of loading must fit.
const OWNER_TASKS_MIN: usize = 10_000;
const OWNER_PAYLOAD_BYTES_MIN: usize = 4 << 20;

/// Where a task in memory is on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Has a timer.
    Waiting,
    /// Its time has come; it stands in its lane.
    Queued,
    /// A courier carries it.
    Firing,
    /// Something about it is decided and not durable yet.
    Leaving,
}

impl Phase {
    /// Whether an attempt is under way.
    pub(crate) fn is_firing(self) -> bool {
        self == Self::Firing
    }
}

#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) task: Task,
    pub(crate) phase: Phase,
    timer: Option<TimerId>,
    /// Where it was before a decision about it was made.
    before: Phase,
    /// Whose place it has while its claim is being written.
    pub(crate) lane: Option<LaneNo>,
    /// What the courier brought while a decision was on its way; counts only if the attempt goes on after all.
    pub(crate) missed: Option<Report>,
}

#[derive(Debug)]
pub(crate) struct Memory {
    tasks: Slab<Loaded>,
    by_id: HashMap<TaskId, usize, RandomState>,
    wheel: Wheel<u32>,
    payload_bytes: usize,
    budget: Budget,
}

impl Memory {
    pub(crate) fn new(budget: Budget, now: Timestamp) -> Self {
        Self {
            tasks: Slab::new(),
            by_id: HashMap::default(),
            wheel: Wheel::new(now.as_millis()),
            payload_bytes: 0,
            budget,
        }
    }

    /// How far time has come here.
    pub(crate) fn time(&self) -> Timestamp {
        Timestamp::from_millis(self.wheel.time())
    }

    pub(crate) fn len(&self) -> usize {
        self.tasks.len()
    }

    /// Whether nothing more should come in.
    pub(crate) fn is_full(&self) -> bool {
        self.tasks.len() >= self.budget.tasks || self.payload_bytes >= self.budget.payload_bytes
    }

    /// Whether more than half of it is free.
    pub(crate) fn is_roomy(&self) -> bool {
        self.tasks.len() < self.budget.tasks / 2
            && self.payload_bytes < self.budget.payload_bytes / 2
    }

    pub(crate) fn contains(&self, id: TaskId) -> bool {
        self.by_id.contains_key(&id)
    }

    pub(crate) fn phase(&self, id: TaskId) -> Option<Phase> {
        self.get(id).map(|loaded| loaded.phase)
    }

    pub(crate) fn get(&self, id: TaskId) -> Option<&Loaded> {
        self.tasks.get(*self.by_id.get(&id)?)
    }

    pub(crate) fn get_mut(&mut self, id: TaskId) -> Option<&mut Loaded> {
        self.tasks.get_mut(*self.by_id.get(&id)?)
    }

    /// Holds a task as it stands now, with a timer, in place of an older copy.
    pub(crate) fn insert(&mut self, task: Task) {
        self.remove(task.id);
        self.payload_bytes += task.definition.payload.bytes().len();
        let (id, due) = (task.id, task.fire_at.as_millis());
        let (phase, before) = (Phase::Waiting, Phase::Waiting);
        let (timer, lane, missed) = (None, None, None);
        let slot = self.tasks.insert(Loaded { task, phase, timer, before, lane, missed });
        self.by_id.insert(id, slot);
        // A wheel holds four thousand times as many timers as memory holds tasks.
        let number = u32::try_from(slot).expect("the budget is far below");
        let timer = self.wheel.insert(due, number).expect("the budget is far below");
        self.tasks[slot].timer = Some(timer);
    }

    pub(crate) fn remove(&mut self, id: TaskId) {
        let Some(slot) = self.by_id.remove(&id) else {
            return;
        };
        let loaded = self.tasks.remove(slot);
        self.payload_bytes -= loaded.task.definition.payload.bytes().len();
        if let Some(timer) = loaded.timer {
            self.wheel.cancel(timer);
        }
    }

    /// A decision about the task is on its way: it must not fire meanwhile.
    pub(crate) fn leaving(&mut self, id: TaskId) {
        let Some(slot) = self.by_id.get(&id) else {
            return;
        };
        let loaded = &mut self.tasks[*slot];
        if loaded.phase != Phase::Leaving {
            loaded.before = loaded.phase;
            loaded.phase = Phase::Leaving;
        }
        if let Some(timer) = loaded.timer.take() {
            self.wheel.cancel(timer);
        }
    }

    /// The decision was undone: the task goes on as before. One that stood in line gets a timer that is
    /// due at once, because the line has passed it. Out: what its courier brought meanwhile.
    pub(crate) fn staying(&mut self, id: TaskId) -> Option<Report> {
        let loaded = self.get_mut(id)?;
        if loaded.phase != Phase::Leaving {
            return None;
        }
        if loaded.before == Phase::Firing {
            loaded.phase = Phase::Firing;
            return loaded.missed.take();
        }
        let task = loaded.task.clone();
        self.insert(task);
        None
    }

    /// The decision is durable, and the attempt that is under way goes on. Out: what its courier brought meanwhile.
    pub(crate) fn stand(&mut self, task: Task) -> Option<Report> {
        let loaded = self.get_mut(task.id)?;
        loaded.task = task;
        loaded.phase = loaded.before;
        loaded.missed.take()
    }

    /// Lets go of the tasks that wait for a time behind a place: they stay in the store.
    pub(crate) fn drop_waiting_after(&mut self, horizon: Position) {
        let far = |loaded: &Loaded| {
            loaded.phase == Phase::Waiting && Position::of(&loaded.task) > horizon
        };
        let ids: Vec<_> = self
            .tasks
            .iter()
            .filter(|(_, loaded)| far(loaded))
            .map(|(_, loaded)| loaded.task.id)
            .collect();
        for id in ids {
            self.remove(id);
        }
    }

    /// The tasks whose time has come, in order. Their timers are gone; they are queued or decided next.
    pub(crate) fn due(&mut self, now: Timestamp) -> Vec<TaskId> {
        let mut due = Vec::new();
        let tasks = &mut self.tasks;
        self.wheel.advance(now.as_millis(), |_, slot| {
            if let Some(loaded) = tasks.get_mut(slot as usize) {
                loaded.timer = None;
                due.push(loaded.task.id);
            }
        });
        due
    }

    /// When the next timer is due.
    pub(crate) fn next_due(&self) -> Option<Timestamp> {
        self.wheel.next_due().map(Timestamp::from_millis)
    }
}
