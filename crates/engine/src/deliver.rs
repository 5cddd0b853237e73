//! Delivering: tasks whose time has come are carried, lane by lane.
//!
//! In: tasks from `fire`. Out: [`Delivery`]s for a [`Courier`], and its [`Report`]s back as events.
//! Invariant: nothing waits for a slow receiver but its own lane, because each lane has its own room. What may be received at most
//! once is claimed, durably, when its turn has come and before it is sent.
//! Not here: how a delivery travels (`server/courier`), what follows from an outcome (`settle`).

use std::sync::Arc;
use std::time::Duration;

use punctual_core::{
    AttemptNo, DeadLetter, DeadReason, FireId, Guarantee, NewTask, Outcome, Task, TaskId,
    Timestamp, Version,
};
use punctual_store::{Change, Position};

use crate::event::Action;
use crate::lane::{LaneNo, Pace};
use crate::memory::Phase;
use crate::owner::Owner;
use crate::run::Reports;
use crate::write::{Decision, Effect};

/// A task that is fired later than this is late work: it stands behind what is on time.
const LATE: Duration = Duration::from_secs(1);
/// A lane without any room for this long parks: its tasks stay in the store, not in memory.
const PARK_AFTER: Duration = Duration::from_secs(5);

/// How often lanes are looked over for that.
const PARK_EVERY: Duration = Duration::from_secs(1);

/// Carries deliveries.
///
/// Contract: every delivery is reported exactly once, within its timeout and a little, whatever the receiver does: an answer
/// that does not come in time is [`Outcome::Expired`]. It is sent at most once. One that was certainly not sent may be
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
    /// When the fire was due by the schedule.
    pub fire_at: Timestamp,
    /// When the attempt was sent; a courier that waits before it sends says when it did.
    pub fired_at: Timestamp,
    /// Which change of the task this is.
    pub version: Version,
    /// What was asked for: target, payload, timeout.
    pub definition: Arc<NewTask>,
    pub(crate) lane: LaneNo,
}

impl Delivery {
    /// What came of it; `None` if it was certainly not sent.
    #[must_use]
    pub fn report(&self, outcome: Option<Outcome>) -> Report {
        let Self { fire_id, attempt, fired_at, lane, .. } = *self;
        Report { fire_id, attempt, fired_at, outcome, lane }
    }
}

/// What a courier reports of a delivery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    pub(crate) fire_id: FireId,
    pub(crate) attempt: AttemptNo,
    pub(crate) fired_at: Timestamp,
    pub(crate) outcome: Option<Outcome>,
    pub(crate) lane: LaneNo,
}

impl Owner {
    /// Puts a task whose time has come into its lane, or lets go of it if there are too many before it.
    pub(crate) fn enqueue(&mut self, id: TaskId, now: Timestamp) {
        let Some(loaded) = self.memory.get_mut(id) else {
            return;
        };
        let task = &loaded.task;
        let position = Position::of(task);
        let late = !task.attempts.is_empty() || now.since(task.fire_at) > LATE;
        let lane = self.lanes.open(&task.definition, now);
        if self.lanes.get_mut(lane).is_full() {
            let behind = self.loader.behind();
            self.lanes.spill(lane, position, behind);
            return self.memory.remove(id);
        }
        loaded.phase = Phase::Queued;
        self.lanes.push(lane, id, if late { Pace::Late } else { Pace::OnTime });
    }

    /// Serves all lanes that may have something to send.
    pub(crate) fn deliver(&mut self, now: Timestamp) {
        for lane in self.lanes.take_ready() {
            while let Some(id) = self.lanes.get_mut(lane).take() {
                self.start(id, lane, now);
            }
            if let Some(spilled) = self.lanes.start_feeding(lane) {
                self.loader.feed(spilled);
            }
            self.lanes.close_if_over(lane);
        }
    }

    /// Hands over what is to be carried.
    pub(crate) fn send_outbox(&mut self) {
        if !self.outbox.is_empty() {
            self.actions.push(Action::Deliver(std::mem::take(&mut self.outbox)));
        }
    }

    fn start(&mut self, id: TaskId, lane: LaneNo, now: Timestamp) {
        // One that was cancelled, moved or let go of while it stood in line is passed over.
        let Some(loaded) = self.memory.get_mut(id).filter(|loaded| loaded.phase == Phase::Queued)
        else {
            return;
        };
        if loaded.task.expires_at().is_some_and(|expires_at| expires_at <= now) {
            let task = loaded.task.clone();
            let was = task.state;
            let next = task.next();
            let effect = next.clone().map_or(Effect::Leave(id), Effect::File);
            let letter = DeadLetter { died_at: now, reason: DeadReason::Expired, task };
            return self.write(Decision::own(Change::Dead { letter, next, was }, effect));
        }
        if loaded.task.definition.guarantee == Guarantee::AtMostOnce {
            // Whatever happens from here on, it is known as a dead letter with an unknown outcome until
            // its outcome is known. A crash leaves just that.
            loaded.lane = Some(lane);
            let task = loaded.task.clone();
            let was = task.state;
            let letter = DeadLetter { died_at: now, reason: DeadReason::Unknown, task };
            let change = Change::Dead { letter, next: None, was };
            self.lanes.sent(lane);
            return self.write(Decision::own(change, Effect::Send(id)));
        }
        loaded.phase = Phase::Firing;
        let delivery = delivery(&loaded.task, lane, now);
        self.lanes.sent(lane);
        self.outbox.push(delivery);
    }

    /// A claim is durable: its task may be sent, and is in the store no more.
    pub(crate) fn send_claimed(&mut self, id: TaskId, now: Timestamp) {
        let Some(loaded) = self.memory.get(id) else {
            return;
        };
        let lane = loaded.lane.expect("set when it was claimed");
        let task = loaded.task.clone();
        self.outbox.push(delivery(&task, lane, now));
        self.memory.remove(id);
        self.claims.insert(task);
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
            let position = Position::of(&loaded.task);
            self.lanes.spill(lane, position, self.loader.behind());
            self.memory.remove(id);
        }
    }
}

fn delivery(task: &Task, lane: LaneNo, now: Timestamp) -> Delivery {
    Delivery {
        fire_id: task.fire().id,
        attempt: task.attempt_next(),
        fire_at: task.nominal_at,
        fired_at: now,
        version: task.version,
        definition: Arc::clone(&task.definition),
        lane,
    }
}
