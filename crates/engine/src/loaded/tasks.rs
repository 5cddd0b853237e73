//! Copies of the tasks that are due before the horizon, and their timers.
//!
//! Every task here that waits has a timer at its `fire_at`, except one that waits for a claim to be
//! released. A task that is firing has a timer only if its next fire may overlap the present one.
//! The budget bounds the number of tasks and the bytes of their payloads.

use std::cell::Cell;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use punctual_core::{Namespace, NewTask, Task, TaskId, TaskState, Timestamp};
use punctual_store::Position;
use punctual_wheel::{TimerId, Wheel};
use rapidhash::fast::RandomState;
use slab::Slab;
use smallvec::SmallVec;

use crate::delivery::attempt::Report;
use crate::delivery::lane::LaneShare;
use crate::delivery::permit::SendPermit;
use crate::loaded::budget::Budget;
use crate::loaded::loaded_ref::LoadedRef;
use crate::ownership::in_flight::InFlight;
use crate::shares::NamespaceShares;

/// How far a task in memory has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LoadedPhase {
    /// Waits for its timer.
    Waiting,
    /// Is due and waits in its lane.
    Queued,
    /// An attempt of its present fire is in flight.
    Firing,
    /// A decision about it is not durable yet.
    Deciding,
}

/// A task in memory.
#[derive(Debug)]
pub(crate) struct LoadedTask {
    task: Task,
    phase: LoadedPhase,
    timer: Option<TimerId>,
    /// Its timer has expired and was not taken yet.
    expired: bool,
    /// The phase before a decision about it was made.
    before: LoadedPhase,
    /// The lane that counts it as in flight while its claim is being written.
    lane_share: Option<LaneShare>,
    /// Reports that arrived while a decision was not durable. They count only for attempts that
    /// continue.
    held_reports: Vec<Report>,
    /// The nominal times of its overlapping fires that are in flight.
    in_flight: Vec<Timestamp>,
    /// The permits of its fires in flight, by nominal time. Those of other brokers are not here.
    /// Most tasks have one.
    permits: SmallVec<[(Timestamp, SendPermit); 1]>,
}

impl LoadedTask {
    pub(crate) const fn task(&self) -> &Task {
        &self.task
    }

    pub(crate) const fn phase(&self) -> LoadedPhase {
        self.phase
    }

    pub(crate) const fn lane_share(&self) -> Option<LaneShare> {
        self.lane_share
    }

    /// Whether an attempt of any of its fires is in flight.
    fn is_firing(&self) -> bool {
        self.phase == LoadedPhase::Firing || !self.in_flight.is_empty()
    }

    /// Counts its fires of which an attempt was sent, and does not wait in its courier.
    fn count_sent(&self) -> usize {
        let waits = |at: Timestamp| {
            self.permits.iter().any(|(of, permit)| *of == at && permit.is_waiting())
        };
        let present = (self.phase == LoadedPhase::Firing).then_some(self.task.nominal_at);
        present.iter().chain(&self.in_flight).filter(|at| !waits(**at)).count()
    }

    /// Returns when the fire of a nominal time was sent, if this broker has sent it.
    fn sent_at(&self, nominal_at: Timestamp) -> Option<Timestamp> {
        let permit = self.permits.iter().find(|(at, _)| *at == nominal_at);
        permit.and_then(|(_, permit)| permit.sent_at())
    }

    pub(crate) const fn has_overlapping_in_flight(&self) -> bool {
        !self.in_flight.is_empty()
    }

    /// Whether the overlapping fire of a nominal time is in flight.
    pub(crate) fn is_overlapping_in_flight(&self, nominal_at: Timestamp) -> bool {
        self.in_flight.contains(&nominal_at)
    }

    pub(crate) const fn has_timer(&self) -> bool {
        self.timer.is_some()
    }

    /// Returns its position in the store.
    pub(crate) fn position(&self) -> Position {
        Position { fire_at: self.task.first_due(), id: self.task.id }
    }

    /// Returns when its next fire overlaps the present one.
    fn overlaps_at(&self) -> Option<Timestamp> {
        let task = &self.task;
        let never_overlaps = task.overlapping.is_empty() && !task.may_overlap();
        if never_overlaps || task.state != TaskState::Scheduled {
            return None;
        }
        task.with_next_fire(&self.in_flight).map(|next| next.fire_at)
    }

    /// Forgets the permits of fires that are not in flight any more.
    fn forget_permits(&mut self) {
        let Self { task, phase, in_flight, permits, .. } = self;
        let present = (*phase == LoadedPhase::Firing).then_some(task.nominal_at);
        permits.retain(|(at, _)| Some(*at) == present || in_flight.contains(at));
    }

    /// Returns the task before each of its fires that are in flight.
    fn before_each_in_flight(&self) -> impl Iterator<Item = Task> {
        let present = (self.phase == LoadedPhase::Firing).then(|| self.task.clone());
        let overlapping = self.in_flight.iter().filter_map(|at| self.task.before_overlapping(*at));
        present.into_iter().chain(overlapping)
    }
}

/// The tasks in memory.
#[derive(Debug)]
pub(crate) struct LoadedTasks {
    tasks: Slab<LoadedTask>,
    by_id: HashMap<TaskId, usize, RandomState>,
    /// The task that was found last, and its slot: one event often needs a task several times.
    last: Cell<Option<(TaskId, usize)>>,
    wheel: Wheel<u32>,
    /// Slots whose timers have expired, in order. The tasks of some have been moved since.
    expired: VecDeque<u32>,
    payload_bytes: usize,
    budget: Budget,
    /// Due tasks that wait in their lanes.
    queued: NamespaceShares,
    /// Tasks that may have overlapping fires in flight.
    overlapping: HashSet<TaskId, RandomState>,
}

impl LoadedTasks {
    pub(crate) fn new(budget: Budget, now: Timestamp) -> Self {
        Self {
            tasks: Slab::new(),
            by_id: HashMap::default(),
            last: Cell::new(None),
            wheel: Wheel::new(now.as_millis()),
            expired: VecDeque::new(),
            payload_bytes: 0,
            budget,
            queued: NamespaceShares::new(budget.queued_weight()),
            overlapping: HashSet::default(),
        }
    }

    /// Returns the time of the wheel.
    pub(crate) fn time(&self) -> Timestamp {
        Timestamp::from_millis(self.wheel.time())
    }

    pub(crate) fn len(&self) -> usize {
        self.tasks.len()
    }

    /// Whether the budget is used up.
    pub(crate) fn is_full(&self) -> bool {
        self.tasks.len() >= self.budget.tasks || self.payload_bytes >= self.budget.payload_bytes
    }

    /// Whether more than half of the budget is left.
    pub(crate) fn is_half_empty(&self) -> bool {
        self.tasks.len() < self.budget.tasks / 2
            && self.payload_bytes < self.budget.payload_bytes / 2
    }

    pub(crate) fn contains(&self, id: TaskId) -> bool {
        self.slot(id).is_some()
    }

    /// Whether an attempt of a task is in flight, or waits in its courier.
    pub(crate) fn is_firing(&self, id: TaskId) -> bool {
        self.get(id).is_some_and(LoadedTask::is_firing)
    }

    /// Whether an attempt of a task was sent and has not ended.
    pub(crate) fn was_sent(&self, id: TaskId) -> bool {
        self.get(id).is_some_and(|loaded| loaded.count_sent() > 0)
    }

    pub(crate) fn get(&self, id: TaskId) -> Option<&LoadedTask> {
        self.tasks.get(self.slot(id)?)
    }

    /// Returns a task, by its slot if it is still there.
    pub(crate) fn get_at(&self, at: LoadedRef) -> Option<&LoadedTask> {
        let slot = at.slot();
        if self.tasks.get(slot).is_some_and(|loaded| loaded.task.id == at.id) {
            self.last.set(Some((at.id, slot)));
        }
        self.get(at.id)
    }

    /// Returns a reference to a task.
    pub(crate) fn reference(&self, id: TaskId) -> LoadedRef {
        LoadedRef::new(id, self.slot(id))
    }

    fn get_mut(&mut self, id: TaskId) -> Option<&mut LoadedTask> {
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

    /// Adds a task with a timer, in place of an older copy.
    pub(crate) fn insert(&mut self, task: Task) {
        self.remove(task.id);
        self.payload_bytes += task.definition.payload.bytes().len();
        let (id, due) = (task.id, task.fire_at);
        let slot = self.tasks.insert(LoadedTask {
            task,
            phase: LoadedPhase::Waiting,
            timer: None,
            expired: false,
            before: LoadedPhase::Waiting,
            lane_share: None,
            held_reports: Vec::new(),
            in_flight: Vec::new(),
            permits: SmallVec::new(),
        });
        self.by_id.insert(id, slot);
        self.set_timer(slot, due);
    }

    /// Replaces the copy of a task. Its overlapping fires that are in flight stay so. Returns the
    /// reports that were held.
    pub(crate) fn replace(&mut self, task: Task) -> Vec<Report> {
        let Some(slot) = self.slot(task.id) else {
            self.insert(task);
            return Vec::new();
        };
        // Not queued any more: its definition, and so its weight, may be another.
        self.set_phase(slot, LoadedPhase::Waiting);
        let loaded = &mut self.tasks[slot];
        self.payload_bytes -= loaded.task.definition.payload.bytes().len();
        self.payload_bytes += task.definition.payload.bytes().len();
        loaded.task = task;
        self.rearm(slot)
    }

    /// Sets the phase and the timer of a task whose fires have changed: it waits for its first fire
    /// that is not in flight, or is firing. Returns the reports that were held.
    fn rearm(&mut self, slot: usize) -> Vec<Report> {
        self.set_phase(slot, LoadedPhase::Waiting);
        let loaded = &mut self.tasks[slot];
        let LoadedTask { task, in_flight, .. } = loaded;
        let open = |at: &Timestamp| {
            *at == task.nominal_at
                || task.overlapping.iter().any(|overlapping| overlapping.nominal_at == *at)
        };
        in_flight.retain(open);
        let with_next_fire = task.with_next_fire(in_flight);
        match (in_flight.iter().position(|at| *at == task.nominal_at), with_next_fire) {
            (Some(_), Some(with_next_fire)) => loaded.task = with_next_fire,
            (Some(present), None) => {
                in_flight.swap_remove(present);
                loaded.phase = LoadedPhase::Firing;
            }
            (None, Some(with_next_fire)) if with_next_fire.fire_at < task.fire_at => {
                loaded.task = with_next_fire;
            }
            (None, _) => {}
        }
        loaded.forget_permits();
        let held_reports = std::mem::take(&mut loaded.held_reports);
        let (id, due, state) = (loaded.task.id, loaded.task.fire_at, loaded.task.state);
        match (loaded.phase, loaded.in_flight.is_empty()) {
            (LoadedPhase::Waiting, _) if state == TaskState::Scheduled => self.set_timer(slot, due),
            // Nothing of it is in flight, and nothing will be until it is resumed.
            (LoadedPhase::Waiting, true) => self.remove(id),
            _ => self.stop_timer(slot),
        }
        held_reports
    }

    /// Counts a fire of a task as in flight at another broker. Returns the definition; `None` if
    /// the task has no such attempt.
    pub(crate) fn inherit(&mut self, task: Task, delivery: &InFlight) -> Option<Arc<NewTask>> {
        let (id, at) = (task.id, delivery.fire_id.nominal_at);
        let held = self.get(id).map(|loaded| loaded.task.clone());
        let task = with_open_fire(held.unwrap_or(task), at)?;
        let before =
            if task.nominal_at == at { task.clone() } else { task.before_overlapping(at)? };
        if before.attempt_next() != delivery.attempt {
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
        // Fires that were adopted before stay in flight.
        let present = (loaded.phase == LoadedPhase::Firing).then_some(loaded.task.nominal_at);
        loaded.in_flight.extend(present.into_iter().chain([at]));
        loaded.task = task;
        self.rearm(slot);
        Some(definition)
    }

    /// Returns the task before each fire that is in flight, and when it was sent, if this broker
    /// has sent it.
    pub(crate) fn in_flight(&self) -> impl Iterator<Item = (Task, Option<Timestamp>)> {
        let firing = self.tasks.iter().map(|(_, loaded)| loaded).filter(|it| it.is_firing());
        firing.flat_map(|loaded| {
            loaded.before_each_in_flight().map(|task| {
                let sent_at = loaded.sent_at(task.nominal_at);
                (task, sent_at)
            })
        })
    }

    /// The task is due and waits in its lane.
    pub(crate) fn set_queued(&mut self, id: TaskId) {
        if let Some(slot) = self.slot(id) {
            self.set_phase(slot, LoadedPhase::Queued);
            self.tasks[slot].forget_permits();
            self.stop_timer(slot);
        }
    }

    /// An attempt of the present fire was handed to its courier.
    pub(crate) fn set_sent(&mut self, id: TaskId, permit: SendPermit) {
        if let Some(loaded) = self.get_mut(id) {
            loaded.permits.push((loaded.task.nominal_at, permit));
        }
        self.set_firing(id);
    }

    /// An attempt of the present fire is in flight. The next fire may overlap it.
    fn set_firing(&mut self, id: TaskId) {
        let Some(slot) = self.slot(id) else {
            return;
        };
        self.set_phase(slot, LoadedPhase::Firing);
        match self.tasks[slot].overlaps_at() {
            Some(due) => self.set_timer(slot, due),
            None => self.stop_timer(slot),
        }
    }

    /// Keeps the lane of a fire while its claim is being written.
    pub(crate) fn set_lane_share(&mut self, id: TaskId, share: LaneShare) {
        if let Some(loaded) = self.get_mut(id) {
            loaded.lane_share = Some(share);
        }
    }

    /// The task waits, without a timer, until the claim of its fire before is released.
    pub(crate) fn set_waiting_for_claim(&mut self, id: TaskId) {
        if let Some(slot) = self.slot(id) {
            self.set_phase(slot, LoadedPhase::Waiting);
        }
    }

    /// Keeps a report until the decision about the task is durable.
    pub(crate) fn hold_report(&mut self, id: TaskId, report: Report) {
        if let Some(loaded) = self.get_mut(id) {
            loaded.held_reports.push(report);
        }
    }

    /// Moves a firing task to its next fire; the present one overlaps from now on. Returns whether
    /// the next fire is due.
    pub(crate) fn overlap(&mut self, id: TaskId, now: Timestamp) -> bool {
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
        loaded.phase = LoadedPhase::Waiting;
        let due = loaded.task.fire_at;
        if due > now {
            self.set_timer(slot, due);
        }
        due <= now
    }

    /// An overlapping fire is settled.
    pub(crate) fn overlapping_ended(&mut self, id: TaskId, nominal_at: Timestamp) {
        if let Some(loaded) = self.get_mut(id) {
            loaded.in_flight.retain(|at| *at != nominal_at);
            loaded.permits.retain(|(at, _)| *at != nominal_at);
        }
    }

    /// Recalls the deliveries of a task that were not sent. Their fires are due and wait again, so
    /// that they are sent later unless the caller decides otherwise.
    pub(crate) fn recall(&mut self, id: TaskId) {
        let Some(slot) = self.slot(id) else {
            return;
        };
        let loaded = &mut self.tasks[slot];
        if loaded.phase == LoadedPhase::Deciding {
            return;
        }
        let recalled: Vec<_> = loaded
            .permits
            .iter()
            .filter_map(|(at, permit)| permit.recall().then_some(*at))
            .collect();
        if recalled.is_empty() {
            return;
        }
        if loaded.phase == LoadedPhase::Firing {
            loaded.in_flight.push(loaded.task.nominal_at);
        }
        loaded.in_flight.retain(|at| !recalled.contains(at));
        self.rearm(slot);
    }

    /// Recalls the deliveries of all tasks that were not sent.
    pub(crate) fn recall_all(&mut self) {
        let waits =
            |loaded: &LoadedTask| loaded.permits.iter().any(|(_, permit)| permit.is_waiting());
        let ids = self.tasks.iter().filter(|(_, loaded)| waits(loaded));
        let ids: Vec<_> = ids.map(|(_, loaded)| loaded.task.id).collect();
        ids.into_iter().for_each(|id| self.recall(id));
    }

    /// Recalls all deliveries that were not sent, for an owner that decides nothing any more.
    pub(crate) fn recall_for_good(&self) {
        let permits = self.tasks.iter().flat_map(|(_, loaded)| &loaded.permits);
        permits.for_each(|(_, permit)| _ = permit.recall());
    }

    /// An overlapping fire was not sent.
    pub(crate) fn overlapping_returned(&mut self, id: TaskId, nominal_at: Timestamp) {
        let Some(slot) = self.slot(id) else {
            return;
        };
        let loaded = &mut self.tasks[slot];
        loaded.in_flight.retain(|at| *at != nominal_at);
        loaded.permits.retain(|(at, _)| *at != nominal_at);
        match loaded.phase {
            LoadedPhase::Firing => self.set_firing(id),
            LoadedPhase::Waiting => {
                self.rearm(slot);
            }
            // The fire gets a timer when the task is sent, or when the decision is durable.
            LoadedPhase::Queued | LoadedPhase::Deciding => {}
        }
    }

    /// The present fire of a paused task was not sent. The task stays in memory while another fire
    /// of it is in flight, because the outcome of that fire must be settled.
    pub(crate) fn unsent_while_paused(&mut self, id: TaskId) {
        if let Some(slot) = self.slot(id) {
            self.rearm(slot);
        }
    }

    /// Sets the phase of a task and counts it if it waits in its lane.
    fn set_phase(&mut self, slot: usize, phase: LoadedPhase) {
        let LoadedTask { task, phase: before, .. } = &mut self.tasks[slot];
        let before = std::mem::replace(before, phase);
        let (namespace, weight) =
            (&task.definition.namespace, || self.budget.weight(&task.definition));
        match (before == LoadedPhase::Queued, phase == LoadedPhase::Queued) {
            (true, false) => self.queued.subtract(namespace, weight()),
            (false, true) => self.queued.add(namespace, weight()),
            _ => {}
        }
    }

    /// Returns what the due tasks that wait in their lanes take of the budget.
    pub(crate) const fn queued(&self) -> &NamespaceShares {
        &self.queued
    }

    fn set_timer(&mut self, slot: usize, due: Timestamp) {
        self.stop_timer(slot);
        // A wheel holds four thousand times as many timers as the budget allows tasks.
        let number = u32::try_from(slot).expect("the budget is far below");
        let timer = self.wheel.insert(due.as_millis(), number).expect("the budget is far below");
        self.tasks[slot].timer = Some(timer);
    }

    fn stop_timer(&mut self, slot: usize) {
        self.tasks[slot].expired = false;
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
        if loaded.phase == LoadedPhase::Queued {
            let definition = &loaded.task.definition;
            self.queued.subtract(&definition.namespace, self.budget.weight(definition));
        }
        if let Some(timer) = loaded.timer {
            self.wheel.cancel(timer);
        }
    }

    /// A decision about the task is made: the task must not fire until it is durable.
    pub(crate) fn begin_decision(&mut self, id: TaskId) {
        let Some(slot) = self.slot(id) else {
            return;
        };
        let phase = self.tasks[slot].phase;
        if phase != LoadedPhase::Deciding {
            self.tasks[slot].before = phase;
            self.set_phase(slot, LoadedPhase::Deciding);
        }
        self.stop_timer(slot);
    }

    /// A decision about the task was undone. A task that was queued gets a timer that is due at
    /// once, because its lane has passed it over. Returns the reports that were held.
    pub(crate) fn undo_decision(&mut self, id: TaskId) -> Vec<Report> {
        match self.get(id) {
            Some(loaded) if loaded.phase == LoadedPhase::Deciding => {
                let task = loaded.task.clone();
                self.update(task)
            }
            _ => Vec::new(),
        }
    }

    /// Updates a task whose attempts in flight continue, after the decision is durable. Returns the
    /// reports that were held.
    pub(crate) fn update(&mut self, task: Task) -> Vec<Report> {
        let id = task.id;
        let Some(loaded) = self.get_mut(id) else {
            return Vec::new();
        };
        if loaded.before != LoadedPhase::Firing {
            return self.replace(task);
        }
        let (bytes, before) = (task.definition.payload.bytes().len(), &mut loaded.task);
        let bytes_before = before.definition.payload.bytes().len();
        *before = task;
        self.payload_bytes = self.payload_bytes - bytes_before + bytes;
        self.set_firing(id);
        let loaded = self.get_mut(id);
        loaded.map(|loaded| std::mem::take(&mut loaded.held_reports)).unwrap_or_default()
    }

    /// Counts the deliveries in flight beyond the first of each task, of one namespace or of all.
    pub(crate) fn overlaps(&self, namespace: Option<&Namespace>) -> usize {
        let loaded = self.overlapping.iter().filter_map(|id| self.get(*id));
        let of = |loaded: &&LoadedTask| {
            namespace.is_none_or(|it| loaded.task.definition.namespace == *it)
        };
        let beyond = |loaded: &LoadedTask| loaded.count_sent().saturating_sub(1);
        loaded.filter(of).map(beyond).sum()
    }

    /// Removes the tasks that wait for a time after a position. They stay in the store.
    pub(crate) fn remove_waiting_after(&mut self, horizon: Position) {
        let far = |loaded: &LoadedTask| {
            let waits = loaded.phase == LoadedPhase::Waiting && loaded.in_flight.is_empty();
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

    /// Advances the wheel and returns the slots of due tasks: the first `max` of those that have
    /// just become due, and up to `max` of those that were left before. The others are left for
    /// later. The caller takes them with [`take_expired`](Self::take_expired).
    pub(crate) fn advance(&mut self, now: Timestamp, max: usize) -> Vec<u32> {
        let mut due: Vec<u32> = Vec::new();
        let before = self.expired.len();
        let (tasks, expired) = (&mut self.tasks, &mut self.expired);
        self.wheel.advance(now.as_millis(), |_, slot| {
            if let Some(loaded) = tasks.get_mut(slot as usize) {
                loaded.timer = None;
                loaded.expired = true;
                if due.len() < max { due.push(slot) } else { expired.push_back(slot) }
            }
        });
        due.extend(self.expired.drain(..before.min(max)));
        due
    }

    /// Takes a task whose timer has expired, unless it was moved since. If another task has its
    /// slot by now, that one is returned if its timer has expired too.
    pub(crate) fn take_expired(&mut self, slot: u32) -> Option<&LoadedTask> {
        let slot = slot as usize;
        let loaded = self.tasks.get_mut(slot).filter(|loaded| loaded.expired)?;
        loaded.expired = false;
        self.last.set(Some((loaded.task.id, slot)));
        Some(loaded)
    }

    /// Whether due tasks were left for later.
    pub(crate) fn has_expired(&self) -> bool {
        !self.expired.is_empty()
    }

    /// Returns when the next timer is due.
    pub(crate) fn next_due(&self) -> Option<Timestamp> {
        self.wheel.next_due().map(Timestamp::from_millis)
    }
}

/// Returns the task with the fire of a nominal time open, present or overlapping: the store does
/// not record when a fire has begun to overlap. `None` if the task has no such fire.
fn with_open_fire(mut task: Task, nominal_at: Timestamp) -> Option<Task> {
    while task.nominal_at != nominal_at && task.before_overlapping(nominal_at).is_none() {
        // If all overlapping fires count as in flight, the next fire is that of the schedule.
        let overlapping: Vec<_> =
            task.overlapping.iter().map(|overlapping| overlapping.nominal_at).collect();
        task = task.with_next_fire(&overlapping)?;
    }
    Some(task)
}
