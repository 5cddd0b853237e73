//! Delivering: due tasks wait in their lanes and are sent when their lane has capacity.
//!
//! A slow receiver holds up its own lane only. An at-most-once fire is claimed, durably, before it
//! is sent. What becomes of a fire whose outcome is known is decided in `settle`; how a delivery
//! travels is in `server/courier`.

use std::sync::Arc;
use std::time::Duration;

use punctual_core::{
    DeadLetter, DeadReason, FireId, Guarantee, NextStep, Overlap, Skipped, Task, TaskId, TaskState,
    Timestamp,
};
use punctual_store::{Change, Prior};

use crate::commit::decision::{ClaimedFire, Decision, Effect};
use crate::delivery::attempt::{Delivery, ReportRoute};
use crate::delivery::lane::{HandedOut, LaneNo, Urgency};
use crate::event::Action;
use crate::handle::command::Subject;
use crate::loaded::loaded_ref::LoadedRef;
use crate::loaded::tasks::{LoadedPhase, LoadedTask};
use crate::owner::Owner;

/// A task that is fired later than this waits behind tasks that are on time.
const LATE: Duration = Duration::from_secs(1);
/// A lane without capacity for this long is parked: its tasks stay in the store, not in memory.
const PARK_AFTER: Duration = Duration::from_secs(5);
/// How often lanes are checked for that.
const PARK_EVERY: Duration = Duration::from_secs(1);

/// Deliveries of one lane that start in one turn: about half a millisecond.
const STARTS_MAX: usize = 512;

impl Owner {
    /// Puts a due task into its lane, or spills it if the lane is full.
    pub(crate) fn enqueue(&mut self, id: TaskId, now: Timestamp) {
        let Some(loaded) = self.tasks.get(id) else {
            return;
        };
        let task = loaded.task();
        let position = loaded.position();
        let late = !task.attempts.is_empty() || now.since(task.fire_at) > LATE;
        let lane = self.deliveries.lanes.open(&task.definition, now);
        let has_room = !self.deliveries.lanes.get_mut(lane).is_full()
            && self.tasks.queued().may_take(&task.definition.namespace);
        if !has_room && !loaded.has_overlapping_in_flight() {
            self.deliveries.lanes.spill(lane, position, self.loader.refill_position());
            return self.tasks.remove(id);
        }
        self.tasks.set_queued(id);
        let urgency = if late { Urgency::Late } else { Urgency::OnTime };
        self.deliveries.lanes.push(lane, self.tasks.reference(id), urgency);
    }

    /// Serves all lanes that may have something to send, each up to its share of this turn.
    pub(crate) fn deliver(&mut self, now: Timestamp) {
        for lane in self.deliveries.lanes.take_ready() {
            let mut started = 0;
            while let Some(at) = self.deliveries.lanes.take(lane) {
                self.start(at, lane, now);
                started += 1;
                if started == STARTS_MAX {
                    self.deliveries.lanes.wake(lane);
                    break;
                }
            }
            if let Some(spilled) = self.deliveries.lanes.start_refill(lane, self.tasks.queued()) {
                self.loader.refill_from(spilled);
            }
            self.deliveries.lanes.close_if_idle(lane, now);
        }
    }

    /// Sends the deliveries of this turn.
    pub(crate) fn send_outbox(&mut self, now: Timestamp) {
        if self.deliveries.outbox.is_empty() {
            return;
        }
        let deliveries = std::mem::take(&mut self.deliveries.outbox);
        if self.tenure.may_act(now) && !self.tenure.is_handing_over() {
            return self.actions.push(Action::Deliver(deliveries));
        }
        // Claims that became durable after the lease had ended, or during a hand-over.
        let unsent = deliveries.iter().map(|delivery| delivery.report(None));
        self.on_ended(unsent.collect(), now);
    }

    fn start(&mut self, at: LoadedRef, lane: LaneNo, now: Timestamp) {
        let id = at.id;
        // A task that was cancelled, moved or spilled while it waited is passed over.
        let queued = |loaded: &&LoadedTask| loaded.phase() == LoadedPhase::Queued;
        let Some(loaded) = self.tasks.get_at(at).filter(queued) else {
            return;
        };
        let task = loaded.task();
        if task.touched_while_firing() {
            let decision = Decision::touched_while_firing(task, now);
            return self.write(decision);
        }
        if let Some(next_step) = task.missed(now) {
            let mut decision = Decision::default();
            self.skip(id, next_step, &mut decision, now);
            return self.write(decision);
        }
        if task.expires_at().is_some_and(|expires_at| expires_at <= now) {
            let task = task.clone();
            let callbacks = task.definition.callbacks.clone();
            let (was, next_step) = (Prior::of(&task), task.next_step(TaskState::Dead, now));
            let task = without_overlapping(task);
            let letter = DeadLetter { died_at: now, reason: DeadReason::Expired, task };
            let dead = |next, was| Change::Dead { letter, next, was };
            let decision = Decision::next_step(id, next_step, was, now, dead);
            return self.write_end(decision, callbacks, now);
        }
        if task.definition.guarantee == Guarantee::AtMostOnce {
            let task = task.clone();
            return self.claim(task, lane, now);
        }
        let share = self.deliveries.lanes.sent(lane, &task.definition);
        let route = ReportRoute { share, task: at };
        let delivery = Delivery::new(task, route, now, self.tenure.lease_end());
        let (fire_at, permit) = (task.fire_at, delivery.permit.clone());
        let handed_out = HandedOut { fire_at, permit };
        self.deliveries.lanes.handed_out(share, handed_out);
        self.tasks.set_sent(id, delivery.permit.clone());
        self.deliveries.outbox.push(delivery);
    }

    /// Writes the claim of an at-most-once fire: a dead letter with an unknown outcome, which a
    /// crash leaves as it is. The fire is sent when the claim is durable.
    fn claim(&mut self, task: Task, lane: LaneNo, now: Timestamp) {
        let id = task.id;
        let overlap = task.definition.schedule.series().map(|series| series.overlap);
        let subject = Subject::Id(task.definition.namespace.clone(), id);
        let before = self.deliveries.claims.attempt(&subject);
        match overlap.filter(|overlap| *overlap != Overlap::Allow && before.is_some()) {
            None => {}
            Some(Overlap::Skip) => {
                let mut decision = Decision::default();
                self.skip(id, task.overlapped(now), &mut decision, now);
                return self.write(decision);
            }
            // The fire before is in flight: `release_claim` lets this one continue.
            Some(_) => return self.tasks.set_waiting_for_claim(id),
        }
        let share = self.deliveries.lanes.claiming(lane, &task.definition);
        self.tasks.set_lane_share(id, share);
        let (was, next_step) = (Prior::of(&task), task.next_step(TaskState::Done, now));
        // A series may end with the fires that are skipped after this one.
        let task_continues = next_step.skipped.is_some() || next_step.next.is_some();
        let task = without_overlapping(task);
        let definition = Arc::clone(&task.definition);
        let letter = DeadLetter { died_at: now, reason: DeadReason::Unknown, task };
        let dead = |next, was| Change::Dead { letter, next, was };
        let mut decision = Decision::next_step(id, next_step, was, now, dead);
        let next = match decision.effects.pop() {
            Some(Effect::File(next)) => Some(next),
            _ => None,
        };
        let Ok(callback) = self.add_provisional_callback(&mut decision, &definition, now) else {
            return self.stop_out_of_ids();
        };
        let sent = ClaimedFire { id, next, task_continues, callback };
        decision.effects.push(Effect::SendClaimed(Box::new(sent)));
        self.write(decision);
    }

    /// Adds fires that a policy skips to a decision, counts them and logs them.
    pub(crate) fn skip(
        &mut self,
        id: TaskId,
        next_step: NextStep,
        decision: &mut Decision,
        now: Timestamp,
    ) {
        if let Some((task, skipped)) = &next_step.skipped {
            self.deliveries.skips.count(*skipped);
            let namespace = task.definition.namespace.as_str();
            let Skipped { fires, why, .. } = skipped;
            tracing::info!(namespace, task = %id, fires, reason = ?why, "fires skipped");
        }
        decision.skip_fires(id, next_step, now);
    }

    /// Sends a fire whose claim is durable. The store has freed its task, or has it before its next
    /// fire.
    pub(crate) fn send_claimed(&mut self, claimed: ClaimedFire, now: Timestamp) {
        let ClaimedFire { id, next, task_continues, callback } = claimed;
        let Some(loaded) = self.tasks.get(id) else {
            return;
        };
        let share = loaded.lane_share().expect("set when the fire was claimed");
        let task = loaded.task().clone();
        let route = ReportRoute { share, task: LoadedRef::without_slot(id) };
        let delivery = Delivery::new(&task, route, now, self.tenure.lease_end());
        let permit = delivery.permit.clone();
        let handed_out = HandedOut { fire_at: task.fire_at, permit: permit.clone() };
        self.deliveries.lanes.claimed(share);
        self.deliveries.lanes.handed_out(share, handed_out);
        self.deliveries.outbox.push(delivery);
        self.tasks.remove(id);
        self.deliveries.claims.insert(task, task_continues, callback, now, Some(permit));
        if let Some(next) = next {
            self.file(*next);
        }
    }

    /// Removes a claim whose outcome is durable. A later fire of the same task that waited for it
    /// continues.
    pub(crate) fn release_claim(&mut self, fire_id: FireId, now: Timestamp) {
        self.deliveries.claims.remove(fire_id);
        let waits = |loaded: &&LoadedTask| {
            loaded.phase() == LoadedPhase::Waiting
                && loaded.task().fire_at <= now
                && !loaded.has_timer()
        };
        if let Some(loaded) = self.tasks.get(fire_id.task).filter(waits) {
            let task = loaded.task().clone();
            self.tasks.insert(task);
        }
    }

    /// Parks lanes that have had no capacity for a while, and serves those again that had no share
    /// of the budget.
    pub(crate) fn park(&mut self, now: Timestamp) {
        if self.deliveries.next_park().is_none_or(|parks_at| parks_at > now) {
            return;
        }
        self.deliveries.parks_at = now.after(PARK_EVERY);
        self.deliveries.lanes.wake_without_share();
        for lane in self.deliveries.lanes.starved_for(PARK_AFTER, now) {
            self.shorten_lane(lane, 0);
        }
    }

    /// Keeps the first `keep` tasks of a lane in memory and spills the others.
    pub(crate) fn shorten_lane(&mut self, lane: LaneNo, keep: usize) {
        for at in self.deliveries.lanes.get_mut(lane).shorten(keep) {
            let queued = |loaded: &&LoadedTask| loaded.phase() == LoadedPhase::Queued;
            let Some(loaded) = self.tasks.get_at(at).filter(queued) else {
                continue;
            };
            if loaded.has_overlapping_in_flight() {
                self.deliveries.lanes.push(lane, at, Urgency::Late);
                continue;
            }
            let position = loaded.position();
            self.deliveries.lanes.spill(lane, position, self.loader.refill_position());
            self.tasks.remove(at.id);
        }
    }
}

/// Returns a task with its present fire only.
pub(super) fn without_overlapping(task: Task) -> Task {
    Task { overlapping: Vec::new(), ..task }
}
