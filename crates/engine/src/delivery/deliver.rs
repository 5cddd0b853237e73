//! Delivering: tasks whose time has come are carried, lane by lane.
//!
//! In: tasks from `fire`. Out: [`Delivery`]s for a [`Courier`], and its [`Report`]s back as events.
//! Invariant: nothing waits for a slow receiver but its own lane, because each lane has its own room. What may be received at most
//! once is claimed, durably, when its turn has come and before it is sent.
//! Not here: how a delivery travels (`server/courier`), what follows from an outcome (`settle`).

use std::sync::Arc;
use std::time::Duration;

use punctual_core::{
    AttemptNo, DeadLetter, DeadReason, FireId, Guarantee, NewTask, NextStep, Occasion, Outcome,
    Overlap, Skipped, Task, TaskId, TaskState, Timestamp, Version,
};
use punctual_store::Change;

use crate::commit::writer::{Decision, Effect};
use crate::delivery::lane::{LaneNo, Pace};
use crate::event::Action;
use crate::handle::command::Subject;
use crate::loaded::tasks::{Loaded, Phase};
use crate::owner::Owner;
use crate::ownership::lease::LeaseEnd;
use crate::shell::thread::Reports;

/// A task that is fired later than this is late work: it stands behind what is on time.
const LATE: Duration = Duration::from_secs(1);
/// A lane without any room for this long parks: its tasks stay in the store, not in memory.
const PARK_AFTER: Duration = Duration::from_secs(5);

/// Deliveries of one lane that start in one turn: about half a millisecond.
const STARTS_MAX: usize = 512;

/// How often lanes are looked over for that.
const PARK_EVERY: Duration = Duration::from_secs(1);

/// Carries deliveries.
///
/// Contract: every delivery is reported exactly once, within its timeout and a little, whatever the receiver does: an answer
/// that does not come in time is [`Outcome::Expired`]. It is sent at most once, and its first byte leaves before
/// [`Delivery::lease_end`], which is checked at that moment, after every wait. One that was certainly not sent may be
/// reported without an outcome.
pub trait Courier: Send + Sync + 'static {
    /// Takes deliveries, without waiting for anything.
    fn carry(&self, deliveries: Vec<Delivery>, reports: &Reports);
}

/// What travels for one attempt.
#[derive(Debug, Clone)]
pub struct Delivery {
    /// For dedup: the same for every attempt of a fire.
    pub fire_id: FireId,
    /// Which attempt.
    pub attempt: AttemptNo,
    /// When the fire was due.
    pub fire_at: Timestamp,
    /// Why there is one.
    pub occasion: Occasion,
    /// When the attempt was sent; a courier that waits before it sends says when it did.
    pub fired_at: Timestamp,
    /// From then on it is not sent, and reported as not sent: another broker may own the partition and may have answered
    /// that the task is cancelled.
    pub lease_end: LeaseEnd,
    /// Which change of the task this is.
    pub version: Version,
    /// What was asked for: target, payload, timeout.
    pub definition: Arc<NewTask>,
    pub(crate) lane: LaneNo,
}

impl Delivery {
    /// For tests of couriers: the first attempt of a task, of no owner's.
    #[doc(hidden)]
    #[must_use]
    pub fn of(task: &Task, now: Timestamp) -> Self {
        delivery(task, LaneNo::NONE, now, LeaseEnd::new(Timestamp::MAX))
    }

    /// What came of it; `None` if it was certainly not sent.
    #[must_use]
    pub fn report(&self, outcome: Option<Outcome>) -> Report {
        let Self { fire_id, attempt, fired_at, lane, .. } = *self;
        Report { fire_id, attempt, fired_at, outcome, lane: Some(lane) }
    }
}

/// What a courier reports of a delivery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Of which fire.
    pub fire_id: FireId,
    /// Of which attempt.
    pub attempt: AttemptNo,
    /// When it was sent.
    pub fired_at: Timestamp,
    /// What came of it; `None` if it was certainly not sent.
    pub outcome: Option<Outcome>,
    /// Whose place it frees. Means nothing to another owner.
    pub(crate) lane: Option<LaneNo>,
}

impl Report {
    /// One that another broker passes on.
    #[must_use]
    pub const fn of(
        fire_id: FireId,
        attempt: AttemptNo,
        fired_at: Timestamp,
        outcome: Option<Outcome>,
    ) -> Self {
        Self { fire_id, attempt, fired_at, outcome, lane: None }
    }

    /// As another owner can read it.
    pub(crate) fn passed_on(self) -> Self {
        Self { lane: None, ..self }
    }
}

impl Owner {
    /// Puts a task whose time has come into its lane, or lets go of it if there are too many before it.
    pub(crate) fn enqueue(&mut self, id: TaskId, now: Timestamp) {
        let Some(loaded) = self.memory.get(id) else {
            return;
        };
        let task = &loaded.task;
        let position = loaded.position();
        let late = !task.attempts.is_empty() || now.since(task.fire_at) > LATE;
        let lane = self.lanes.open(&task.definition, now);
        if self.lanes.get_mut(lane).is_full() && loaded.in_flight.is_empty() {
            let behind = self.loader.behind();
            self.lanes.spill(lane, position, behind);
            return self.memory.remove(id);
        }
        self.memory.queued(id);
        self.lanes.push(lane, id, if late { Pace::Late } else { Pace::OnTime });
    }

    /// Serves all lanes that may have something to send, each with its share of this turn.
    pub(crate) fn deliver(&mut self, now: Timestamp) {
        for lane in self.lanes.take_ready() {
            let mut started = 0;
            while let Some(id) = self.lanes.get_mut(lane).take() {
                self.start(id, lane, now);
                started += 1;
                if started == STARTS_MAX {
                    self.lanes.wake(lane);
                    break;
                }
            }
            if let Some(spilled) = self.lanes.start_feeding(lane) {
                self.loader.feed(spilled);
            }
            self.lanes.close_if_over(lane);
        }
    }

    /// Executor over what is to be carried.
    pub(crate) fn send_outbox(&mut self, now: Timestamp) {
        if self.outbox.is_empty() {
            return;
        }
        let deliveries = std::mem::take(&mut self.outbox);
        if self.may_act(now) {
            return self.actions.push(Action::Deliver(deliveries));
        }
        // Claims that became durable when the lease was over.
        let unsent = deliveries.iter().map(|delivery| delivery.report(None));
        self.on_ended(unsent.collect(), now);
    }

    fn start(&mut self, id: TaskId, lane: LaneNo, now: Timestamp) {
        // One that was cancelled, moved or let go of while it stood in line is passed over.
        let Some(loaded) = self.memory.get_mut(id).filter(|loaded| loaded.phase == Phase::Queued)
        else {
            return;
        };
        if loaded.task.touched_while_firing() {
            let decision = Decision::silent_no_more(&loaded.task, now);
            return self.write(decision);
        }
        if let Some(next_step) = loaded.task.missed(now) {
            let mut decision = Decision::default();
            self.skip(id, next_step, &mut decision, now);
            return self.write(decision);
        }
        if loaded.task.expires_at().is_some_and(|expires_at| expires_at <= now) {
            let task = loaded.task.clone();
            let (was, next_step) = (task.state, task.next_step(TaskState::Dead, now));
            let letter =
                DeadLetter { died_at: now, reason: DeadReason::Expired, task: alone(task) };
            let died = |next, was| Change::Dead { letter, next, was };
            let decision = Decision::next_step(id, next_step, was, now, died);
            return self.write(decision);
        }
        if loaded.task.definition.guarantee == Guarantee::AtMostOnce {
            return self.claim(id, lane, now);
        }
        loaded.fired_at = now;
        let delivery = delivery(&loaded.task, lane, now, self.lease.end());
        self.memory.firing(id);
        self.lanes.sent(lane);
        self.outbox.push(delivery);
    }

    /// What may be received at most once is a dead letter with an unknown outcome from here on until its outcome is known. A
    /// crash leaves just that.
    fn claim(&mut self, id: TaskId, lane: LaneNo, now: Timestamp) {
        let Some(loaded) = self.memory.get_mut(id) else {
            return;
        };
        let task = loaded.task.clone();
        let overlap = task.definition.schedule.series().map(|series| series.overlap);
        let subject = Subject::Id(task.definition.namespace.clone(), id);
        let before = self.claims.attempt(&subject);
        match overlap.filter(|overlap| *overlap != Overlap::Allow && before.is_some()) {
            None => {}
            Some(Overlap::Skip) => {
                let mut decision = Decision::default();
                self.skip(id, task.overlapped(now), &mut decision, now);
                return self.write(decision);
            }
            // It waits for the one before: see `unclaim`.
            Some(_) => return loaded.phase = Phase::Waiting,
        }
        loaded.lane = Some(lane);
        let (was, next_step) = (task.state, task.next_step(TaskState::Done, now));
        let letter = DeadLetter { died_at: now, reason: DeadReason::Unknown, task: alone(task) };
        let died = |next, was| Change::Dead { letter, next, was };
        let mut decision = Decision::next_step(id, next_step, was, now, died);
        let next = match decision.effects.pop() {
            Some(Effect::File(next)) => Some(next),
            _ => None,
        };
        decision.effects.push(Effect::Send { id, next });
        self.lanes.sent(lane);
        self.write(decision);
    }

    /// Leaves out fires by a policy, and counts them.
    pub(crate) fn skip(
        &mut self,
        id: TaskId,
        next_step: NextStep,
        decision: &mut Decision,
        now: Timestamp,
    ) {
        if let Some((task, skipped)) = &next_step.skipped {
            self.skips.count(*skipped);
            let namespace = task.definition.namespace.as_str();
            let Skipped { fires, why, .. } = skipped;
            tracing::info!(namespace, task = %id, fires, ?why, "fires are left out");
        }
        decision.skip_fires(id, next_step, now);
    }

    /// A claim is durable: its task may be sent, and is in the store no more, or stands before its next fire there.
    pub(crate) fn send_claimed(&mut self, id: TaskId, next: Option<Box<Task>>, now: Timestamp) {
        let Some(loaded) = self.memory.get(id) else {
            return;
        };
        let lane = loaded.lane.expect("set when it was claimed");
        let task = loaded.task.clone();
        self.outbox.push(delivery(&task, lane, now, self.lease.end()));
        self.memory.remove(id);
        self.claims.insert(task, next.is_some(), now);
        if let Some(next) = next {
            self.file(*next);
        }
    }

    /// The outcome of a claimed fire is durable: one of the same task that has waited for it may go.
    pub(crate) fn unclaim(&mut self, fire_id: FireId, now: Timestamp) {
        self.claims.remove(fire_id);
        let waits = |loaded: &&Loaded| {
            loaded.phase == Phase::Waiting && loaded.task.fire_at <= now && !loaded.has_timer()
        };
        if let Some(loaded) = self.memory.get(fire_id.task).filter(waits) {
            let task = loaded.task.clone();
            self.memory.insert(task);
        }
    }

    /// Lets go of what stands in lanes that nobody has served for a while.
    pub(crate) fn park(&mut self, now: Timestamp) {
        if !self.lanes.starved || self.parks_at > now {
            return;
        }
        self.parks_at = now.after(PARK_EVERY);
        let in_line = self.lanes.iter().filter(|(_, lane)| lane.len() > 0);
        let starved = in_line.filter_map(|(number, lane)| Some((number, lane.starved_since?)));
        let starved: Vec<_> = starved.collect();
        let (long, short): (Vec<_>, Vec<_>) =
            starved.into_iter().partition(|(_, since)| since.after(PARK_AFTER) <= now);
        self.lanes.starved = !short.is_empty();
        for (lane, _) in long {
            self.let_go(lane, 0);
        }
    }

    /// Keeps the first of a line in memory and lets go of the others: they stay in the store.
    pub(crate) fn let_go(&mut self, lane: LaneNo, keep: usize) {
        for id in self.lanes.get_mut(lane).shorten(keep) {
            let Some(loaded) = self.memory.get(id).filter(|loaded| loaded.phase == Phase::Queued)
            else {
                continue;
            };
            if !loaded.in_flight.is_empty() {
                self.lanes.push(lane, id, Pace::Late);
                continue;
            }
            let position = loaded.position();
            self.lanes.spill(lane, position, self.loader.behind());
            self.memory.remove(id);
        }
    }
}

/// A task before a fire that is to be kept, without its other fires.
pub(crate) fn alone(task: Task) -> Task {
    Task { overlapping: Vec::new(), ..task }
}

fn delivery(task: &Task, lane: LaneNo, now: Timestamp, lease_end: LeaseEnd) -> Delivery {
    Delivery {
        fire_id: task.fire().id,
        attempt: task.attempt_next(),
        fire_at: task.due_at(),
        fired_at: now,
        occasion: task.occasion,
        lease_end,
        version: task.version,
        definition: Arc::clone(&task.definition),
        lane,
    }
}
