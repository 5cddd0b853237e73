//! Memory: copies of the tasks that are due before the horizon, and their timers.
//!
//! In: tasks that were loaded or have just become durable. Out: those whose time has come.
//! Invariant: every task here that waits has a timer at its `fire_at`; no other has one.
//! Bound: a number of tasks and of bytes. Losing all of it loses nothing: the store has every task.

use std::collections::HashMap;

use punctual_core::{Outcome, Task, TaskId, Timestamp};
use punctual_wheel::{TimerId, Wheel};
use slab::Slab;

use crate::deliver::Delivery;

/// Tasks held in memory. At a few hundred bytes each this is the memory of the engine; with more due than
/// this, loading waits and new tasks for this very time are refused for a moment.
const LOADED_MAX: usize = 1_000_000;
/// Bytes of their payloads, for the same reason: a few thousand of the largest would be as much.
const LOADED_BYTES_MAX: usize = 1 << 30;

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

#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) task: Task,
    pub(crate) phase: Phase,
    /// When the attempt under way was sent.
    pub(crate) fired_at: Timestamp,
    timer: Option<TimerId>,
    /// Where it was before a decision about it was made.
    before: Phase,
    /// What the courier brought while a decision was on its way; counts only if that is undone.
    pub(crate) missed: Option<(Delivery, Outcome)>,
}

#[derive(Debug)]
pub(crate) struct Memory {
    tasks: Slab<Loaded>,
    by_id: HashMap<TaskId, usize>,
    wheel: Wheel<u32>,
    payload_bytes: usize,
}

impl Memory {
    pub(crate) fn new(now: Timestamp) -> Self {
        Self {
            tasks: Slab::new(),
            by_id: HashMap::new(),
            wheel: Wheel::new(now.as_millis()),
            payload_bytes: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.tasks.len()
    }

    /// Whether nothing more should come in.
    pub(crate) fn is_full(&self) -> bool {
        self.tasks.len() >= LOADED_MAX || self.payload_bytes >= LOADED_BYTES_MAX
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
        let fired_at = Timestamp::EPOCH;
        let (phase, before) = (Phase::Waiting, Phase::Waiting);
        let slot =
            self.tasks.insert(Loaded { task, phase, fired_at, timer: None, before, missed: None });
        self.by_id.insert(id, slot);
        // A wheel holds four thousand times as many timers as memory holds tasks.
        let number = u32::try_from(slot).expect("LOADED_MAX is far below");
        let timer = self.wheel.insert(due, number).expect("LOADED_MAX is far below");
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
    pub(crate) fn staying(&mut self, id: TaskId) -> Option<(Delivery, Outcome)> {
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
