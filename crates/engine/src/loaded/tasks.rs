//! Memory: copies of the tasks that are due before the horizon, and their timers.
//!
//! In: tasks that were loaded or have just become durable. Out: those whose time has come.
//! Invariant: every task here that waits has a timer at its `fire_at`. One that is firing has a timer only if another fire of it may
//! come up to that one.
//! Bound: a number of tasks and of bytes. Losing all of it loses nothing: the store has every task.

use std::cell::Cell;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use punctual_core::{Namespace, NewTask, Task, TaskId, TaskState, Timestamp};
use punctual_store::Position;
use punctual_wheel::{TimerId, Wheel};
use rapidhash::fast::RandomState;
use slab::Slab;

use crate::delivery::deliver::Report;
use crate::delivery::lane::LaneNo;
use crate::ownership::hand_over::InFlight;

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

#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) task: Task,
    pub(crate) phase: Phase,
    timer: Option<TimerId>,
    /// Its timer has rung, and it has not been looked at since.
    rung: bool,
    /// Where it was before a decision about it was made.
    before: Phase,
    /// Whose place it has while its claim is being written.
    pub(crate) lane: Option<LaneNo>,
    /// What couriers brought while a decision was on its way; counts only for attempts that go on after all.
    pub(crate) missed: Vec<Report>,
    /// The nominal times of its fires that are overlapping and under way.
    pub(crate) in_flight: Vec<Timestamp>,
    /// When an attempt of it was last sent.
    pub(crate) fired_at: Timestamp,
}

impl Loaded {
    /// Whether an attempt is under way, of whichever of its fires.
    pub(crate) fn is_firing(&self) -> bool {
        self.phase == Phase::Firing || !self.in_flight.is_empty()
    }

    pub(crate) const fn has_timer(&self) -> bool {
        self.timer.is_some()
    }

    /// Where the store has it.
    pub(crate) fn position(&self) -> Position {
        Position { fire_at: self.task.first_due(), id: self.task.id }
    }

    /// When another of its fires comes up to the one under way.
    fn turns_at(&self) -> Option<Timestamp> {
        let task = &self.task;
        let alone = task.overlapping.is_empty() && !task.may_overlap();
        if alone || task.state != TaskState::Scheduled {
            return None;
        }
        task.with_next_fire(&self.in_flight).map(|with_next_fire| with_next_fire.fire_at)
    }
}

#[derive(Debug)]
pub(crate) struct Memory {
    tasks: Slab<Loaded>,
    by_id: HashMap<TaskId, usize, RandomState>,
    /// Who was asked for last, and where it is: several things follow from one event about a task.
    last: Cell<Option<(TaskId, usize)>>,
    wheel: Wheel<u32>,
    /// Where tasks are whose timers have rung, in line to be looked at; some have been moved since.
    rung: VecDeque<u32>,
    payload_bytes: usize,
    budget: Budget,
    /// Tasks of which some fires are overlapping, and perhaps under way.
    overlapping: HashSet<TaskId, RandomState>,
}

impl Memory {
    pub(crate) fn new(budget: Budget, now: Timestamp) -> Self {
        Self {
            tasks: Slab::new(),
            by_id: HashMap::default(),
            last: Cell::new(None),
            wheel: Wheel::new(now.as_millis()),
            rung: VecDeque::new(),
            payload_bytes: 0,
            budget,
            overlapping: HashSet::default(),
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
        self.slot(id).is_some()
    }

    /// Whether an attempt of a task is under way.
    pub(crate) fn is_firing(&self, id: TaskId) -> bool {
        self.get(id).is_some_and(Loaded::is_firing)
    }

    pub(crate) fn get(&self, id: TaskId) -> Option<&Loaded> {
        self.tasks.get(self.slot(id)?)
    }

    pub(crate) fn get_mut(&mut self, id: TaskId) -> Option<&mut Loaded> {
        let slot = self.slot(id)?;
        self.tasks.get_mut(slot)
    }

    fn slot(&self, id: TaskId) -> Option<usize> {
        match self.last.get() {
            Some((last, slot)) if last == id => Some(slot),
            _ => {
                let slot = self.by_id.get(&id).copied()?;
                self.last.set(Some((id, slot)));
                Some(slot)
            }
        }
    }

    /// Holds a task as it stands now, with a timer, in place of an older copy.
    pub(crate) fn insert(&mut self, task: Task) {
        self.remove(task.id);
        self.payload_bytes += task.definition.payload.bytes().len();
        let (id, due) = (task.id, task.fire_at);
        let slot = self.tasks.insert(Loaded {
            task,
            phase: Phase::Waiting,
            timer: None,
            rung: false,
            before: Phase::Waiting,
            lane: None,
            missed: Vec::new(),
            in_flight: Vec::new(),
            fired_at: Timestamp::EPOCH,
        });
        self.by_id.insert(id, slot);
        self.set_timer(slot, due);
    }

    /// Holds a task as it stands now in place of an older copy of which some fires are under way; they stay so. Out: what
    /// couriers brought meanwhile.
    pub(crate) fn refile(&mut self, task: Task) -> Vec<Report> {
        let Some(slot) = self.slot(task.id) else {
            self.insert(task);
            return Vec::new();
        };
        let loaded = &mut self.tasks[slot];
        self.payload_bytes -= loaded.task.definition.payload.bytes().len();
        self.payload_bytes += task.definition.payload.bytes().len();
        loaded.task = task;
        self.settle_in(slot)
    }

    /// Gives a task whose fires were set anew its place: before the first that waits, or with one under way.
    fn settle_in(&mut self, slot: usize) -> Vec<Report> {
        let loaded = &mut self.tasks[slot];
        let Loaded { task, in_flight, .. } = loaded;
        let open = |at: &Timestamp| {
            *at == task.nominal_at
                || task.overlapping.iter().any(|overlapping| overlapping.nominal_at == *at)
        };
        in_flight.retain(open);
        loaded.phase = Phase::Waiting;
        let with_next_fire = task.with_next_fire(in_flight);
        match (in_flight.iter().position(|at| *at == task.nominal_at), with_next_fire) {
            (Some(_), Some(with_next_fire)) => loaded.task = with_next_fire,
            (Some(present), None) => {
                in_flight.swap_remove(present);
                loaded.phase = Phase::Firing;
            }
            (None, Some(with_next_fire)) if with_next_fire.fire_at < task.fire_at => {
                loaded.task = with_next_fire
            }
            (None, _) => {}
        }
        let missed = std::mem::take(&mut loaded.missed);
        let (id, due, state) = (loaded.task.id, loaded.task.fire_at, loaded.task.state);
        match (loaded.phase, loaded.in_flight.is_empty()) {
            (Phase::Waiting, _) if state == TaskState::Scheduled => self.set_timer(slot, due),
            // Nothing of it is under way, and nothing will be until it is resumed.
            (Phase::Waiting, true) => self.remove(id),
            _ => self.stop_timer(slot),
        }
        missed
    }

    /// A fire of a task is under way at another broker. Out: what was asked for; `None` if the task knows of no such attempt.
    pub(crate) fn adopt(&mut self, task: Task, flight: &InFlight) -> Option<Arc<NewTask>> {
        let (id, at) = (task.id, flight.fire_id.nominal_at);
        let held = self.get(id).map(|loaded| loaded.task.clone());
        let task = opened(held.unwrap_or(task), at)?;
        let before =
            if task.nominal_at == at { task.clone() } else { task.before_overlapping(at)? };
        if before.attempt_next() != flight.attempt {
            return None;
        }
        let definition = Arc::clone(&task.definition);
        if !self.contains(id) {
            self.insert(task.clone());
        }
        let slot = self.slot(id)?;
        if !task.overlapping.is_empty() {
            self.overlapping.insert(id);
        }
        let loaded = &mut self.tasks[slot];
        // It takes its place among those that were found to be under way before.
        let present = (loaded.phase == Phase::Firing).then_some(loaded.task.nominal_at);
        loaded.in_flight.extend(present.into_iter().chain([at]));
        loaded.fired_at = flight.fired_at;
        loaded.task = task;
        self.settle_in(slot);
        Some(definition)
    }

    /// Tasks of which an attempt is under way.
    pub(crate) fn firing_tasks(&self) -> impl Iterator<Item = &Loaded> {
        self.tasks.iter().map(|(_, loaded)| loaded).filter(|loaded| loaded.is_firing())
    }

    /// Its time has come: it stands in its lane.
    pub(crate) fn queued(&mut self, id: TaskId) {
        if let Some(slot) = self.slot(id) {
            self.tasks[slot].phase = Phase::Queued;
            self.stop_timer(slot);
        }
    }

    /// An attempt of the present fire is under way; another fire may come up to it.
    pub(crate) fn firing(&mut self, id: TaskId) {
        let Some(slot) = self.slot(id) else {
            return;
        };
        let loaded = &mut self.tasks[slot];
        loaded.phase = Phase::Firing;
        match loaded.turns_at() {
            Some(due) => self.set_timer(slot, due),
            None => self.stop_timer(slot),
        }
    }

    /// Another fire of a task has come up to the one under way: that one is overlapping from now on. Out: whether the other is due.
    pub(crate) fn turn(&mut self, id: TaskId, now: Timestamp) -> bool {
        let Some(slot) = self.slot(id) else {
            return false;
        };
        let loaded = &mut self.tasks[slot];
        let Some(with_next_fire) = loaded.task.with_next_fire(&loaded.in_flight) else {
            return false;
        };
        self.overlapping.insert(id);
        loaded.in_flight.push(loaded.task.nominal_at);
        loaded.task = with_next_fire;
        loaded.phase = Phase::Waiting;
        let due = loaded.task.fire_at;
        if due > now {
            self.set_timer(slot, due);
        }
        due <= now
    }

    /// A fire that was overlapping is not under way any more, and not over.
    pub(crate) fn returned(&mut self, id: TaskId, nominal_at: Timestamp) {
        let Some(slot) = self.slot(id) else {
            return;
        };
        let loaded = &mut self.tasks[slot];
        loaded.in_flight.retain(|at| *at != nominal_at);
        match loaded.phase {
            Phase::Firing => self.firing(id),
            Phase::Waiting => {
                self.settle_in(slot);
            }
            // It is looked at again when it is sent, or when the decision is durable.
            Phase::Queued | Phase::Leaving => {}
        }
    }

    /// The present fire of a paused task was not sent. The task stays as long as another fire of it is under way, or what came of
    /// that would be forgotten.
    pub(crate) fn put_down(&mut self, id: TaskId) {
        if let Some(slot) = self.slot(id) {
            self.settle_in(slot);
        }
    }

    fn set_timer(&mut self, slot: usize, due: Timestamp) {
        self.stop_timer(slot);
        // A wheel holds four thousand times as many timers as memory holds tasks.
        let number = u32::try_from(slot).expect("the budget is far below");
        let timer = self.wheel.insert(due.as_millis(), number).expect("the budget is far below");
        self.tasks[slot].timer = Some(timer);
    }

    fn stop_timer(&mut self, slot: usize) {
        self.tasks[slot].rung = false;
        if let Some(timer) = self.tasks[slot].timer.take() {
            self.wheel.cancel(timer);
        }
    }

    pub(crate) fn remove(&mut self, id: TaskId) {
        let Some(slot) = self.by_id.remove(&id) else {
            return;
        };
        self.last.set(None);
        let loaded = self.tasks.remove(slot);
        self.overlapping.remove(&id);
        self.payload_bytes -= loaded.task.definition.payload.bytes().len();
        if let Some(timer) = loaded.timer {
            self.wheel.cancel(timer);
        }
    }

    /// A decision about the task is on its way: it must not fire meanwhile.
    pub(crate) fn leaving(&mut self, id: TaskId) {
        let Some(slot) = self.slot(id) else {
            return;
        };
        let loaded = &mut self.tasks[slot];
        if loaded.phase != Phase::Leaving {
            loaded.before = loaded.phase;
            loaded.phase = Phase::Leaving;
        }
        self.stop_timer(slot);
    }

    /// The decision was undone: the task goes on as before. One that stood in line gets a timer that is
    /// due at once, because the line has passed it. Out: what couriers brought meanwhile.
    pub(crate) fn staying(&mut self, id: TaskId) -> Vec<Report> {
        match self.get(id) {
            Some(loaded) if loaded.phase == Phase::Leaving => {
                let task = loaded.task.clone();
                self.stand(task)
            }
            _ => Vec::new(),
        }
    }

    /// The decision is durable, and the attempts that are under way go on. Out: what couriers brought meanwhile.
    pub(crate) fn stand(&mut self, task: Task) -> Vec<Report> {
        let id = task.id;
        let Some(loaded) = self.get_mut(id) else {
            return Vec::new();
        };
        if loaded.before != Phase::Firing {
            return self.refile(task);
        }
        let (bytes, before) = (task.definition.payload.bytes().len(), &mut loaded.task);
        let bytes_before = before.definition.payload.bytes().len();
        *before = task;
        self.payload_bytes = self.payload_bytes - bytes_before + bytes;
        self.firing(id);
        self.get_mut(id).map(|loaded| std::mem::take(&mut loaded.missed)).unwrap_or_default()
    }

    /// Deliveries under way beyond the first of each task, of one namespace or of all.
    pub(crate) fn overlaps(&self, namespace: Option<&Namespace>) -> usize {
        let loaded = self.overlapping.iter().filter_map(|id| self.get(*id));
        let of =
            |loaded: &&Loaded| namespace.is_none_or(|it| loaded.task.definition.namespace == *it);
        let beyond = |loaded: &Loaded| {
            let present = usize::from(loaded.phase == Phase::Firing);
            (loaded.in_flight.len() + present).saturating_sub(1)
        };
        loaded.filter(of).map(beyond).sum()
    }

    /// Lets go of the tasks that wait for a time behind a place: they stay in the store.
    pub(crate) fn drop_waiting_after(&mut self, horizon: Position) {
        let far = |loaded: &Loaded| {
            let waits = loaded.phase == Phase::Waiting && loaded.in_flight.is_empty();
            waits && loaded.position() > horizon
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

    /// Tasks whose time has come: the first `max` of those for which it just has, and as many for which it came before. They are
    /// taken with [`take_rung`](Self::take_rung); the others are left for later.
    pub(crate) fn due(&mut self, now: Timestamp, max: usize) -> Vec<u32> {
        let mut due: Vec<u32> = Vec::new();
        let before = self.rung.len();
        let (tasks, rung) = (&mut self.tasks, &mut self.rung);
        self.wheel.advance(now.as_millis(), |_, slot| {
            if let Some(loaded) = tasks.get_mut(slot as usize) {
                loaded.timer = None;
                loaded.rung = true;
                if due.len() < max { due.push(slot) } else { rung.push_back(slot) }
            }
        });
        due.extend(self.rung.drain(..before.min(max)));
        due
    }

    /// A task whose timer has rung, unless it was moved since. If another is in its place by now, that one's timer has rung too, or it
    /// is let be.
    pub(crate) fn take_rung(&mut self, slot: u32) -> Option<&Loaded> {
        let slot = slot as usize;
        let loaded = self.tasks.get_mut(slot).filter(|loaded| loaded.rung)?;
        loaded.rung = false;
        self.last.set(Some((loaded.task.id, slot)));
        Some(loaded)
    }

    /// Whether some were left for later.
    pub(crate) fn has_rung(&self) -> bool {
        !self.rung.is_empty()
    }

    /// When the next timer is due.
    pub(crate) fn next_due(&self) -> Option<Timestamp> {
        self.wheel.next_due().map(Timestamp::from_millis)
    }
}

/// The task with a fire of it open, present or overlapping; a store does not know of one that has come up to another. `None` if it is
/// no fire of its.
fn opened(mut task: Task, nominal_at: Timestamp) -> Option<Task> {
    while task.nominal_at != nominal_at && task.before_overlapping(nominal_at).is_none() {
        // With all that are overlapping passed over, the one that turns up is the next by the schedule.
        let overlapping: Vec<_> =
            task.overlapping.iter().map(|overlapping| overlapping.nominal_at).collect();
        task = task.with_next_fire(&overlapping)?;
    }
    Some(task)
}
