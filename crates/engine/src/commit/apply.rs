//! Writing: the owner sends batches to the store and carries out what follows from them.
//!
//! Nothing is answered and nothing takes effect before it is durable. Effects are carried out in
//! the order of the decisions, some in each turn, so that a large batch does not delay timers. If
//! the result of a batch cannot be found out, the owner stops and the next epoch fences what it
//! sent. With nothing left to write, an empty batch asks after a while whether the store still has
//! the last ones.

use std::sync::Arc;

use punctual_core::Timestamp;
use punctual_store::{Change, Resource, StoreError};

use crate::commands::read_tracker::Scope;
use crate::commit::decision::{Decision, Effect};
use crate::event::Action;
use crate::handle::error::EngineError;
use crate::owner::Owner;

/// Decisions that take effect in one turn: about a millisecond.
const EFFECTS_MAX: usize = 512;

impl Owner {
    /// Adds a decision to the next batch. From now on, reads of its tasks are out of date.
    pub(crate) fn write(&mut self, decision: Decision) {
        for change in &decision.changes {
            let scope = Scope::of(change);
            self.reads.decided(scope);
            if let Scope::Task(id) = scope {
                self.tasks.begin_decision(id);
            }
        }
        self.writer.push(decision);
    }

    /// Sends the next batch unless one is in flight.
    pub(crate) fn flush(&mut self) {
        if let Some(batch) = self.writer.next_batch() {
            self.actions.push(Action::Apply(batch));
        }
    }

    pub(crate) fn on_applied(&mut self, result: Result<(), StoreError>, now: Timestamp) {
        match (result, self.writer.repairing()) {
            (Ok(()), Some(number)) => {
                if self.writer.fence_doubt() {
                    self.undo_unfounded(now);
                }
                self.writer.repair_from(number.next());
                if !self.writer.is_repairing() {
                    self.end_repair(now);
                }
                self.actions.push(Action::Apply(self.writer.batch()));
            }
            // These batches were acknowledged once and are not given up.
            (Err(StoreError::Full { .. }), Some(_)) => self.send_again(now),
            (Ok(()), None) => {
                self.writer.acknowledged(now);
                self.reads.applied();
                self.take_effect(now);
            }
            // An earlier sending may still find space, so new tasks must not be answered as
            // refused.
            (Err(error @ StoreError::Full { .. }), None) if self.writer.may_grow_late() => {
                self.stop(error);
            }
            (Err(StoreError::Full { resource, .. }), None) => self.refuse_growth(resource, now),
            (Err(StoreError::Unavailable(_)), _) => {
                self.writer.unavailable();
                self.send_again(now);
            }
            (Err(StoreError::Gap { expected, given, partition }), _) if expected < given => {
                if !self.writer.begin_repair(expected) {
                    self.writer.refused();
                    return self.stop(StoreError::Gap { expected, given, partition });
                }
                tracing::warn!(%partition, ?expected, ?given, "store lost batches; repair begins");
                self.begin_repair(now);
                self.actions.push(Action::Apply(self.writer.batch()));
            }
            (Err(error @ StoreError::Fenced { .. }), _) => {
                self.writer.refused();
                self.stop(error);
            }
            (Err(error), _) => self.stop(error),
        }
    }

    /// Carries out the effects of durable decisions, or of the first of them.
    pub(crate) fn take_effect(&mut self, now: Timestamp) {
        if self.writer.count_durable() > EFFECTS_MAX {
            // The store need not wait for all effects.
            self.flush();
        }
        for _ in 0..EFFECTS_MAX {
            let Some(decision) = self.writer.take_durable() else {
                return;
            };
            self.on_durable(decision, now);
        }
    }

    /// Carries out the effects of all durable decisions.
    pub(crate) fn take_all_effects(&mut self, now: Timestamp) {
        while self.writer.has_durable() {
            self.take_effect(now);
        }
    }

    /// Answers the callers of durable decisions, without other effects.
    pub(crate) fn answer_durable(&mut self) {
        while let Some(decision) = self.writer.take_durable() {
            if let Some(reply) = decision.requester.as_ref().and_then(|it| it.reply) {
                self.commands.reply(reply, decision.into_reply());
            }
        }
    }

    fn on_durable(&mut self, mut decision: Decision, now: Timestamp) {
        for change in &decision.changes {
            let scope = Scope::of(change);
            self.reads.durable(scope);
            if let Change::Put(task) = &**change
                && let Some(subject) = self.deliveries.stored_under_key(task)
            {
                self.recall_replaced(&subject, now);
            }
            if let Scope::Task(id) | Scope::New(id) = scope {
                self.loader.forget_aside(id);
            }
            self.wake_watchers(change.task_id());
        }
        for effect in std::mem::take(&mut decision.effects) {
            self.carry_out(effect, &decision.changes, now);
        }
        if let Some(requester) = decision.requester.take() {
            if let (Some(subject), Some(task)) = (&requester.subject, decision.task_after.take()) {
                self.answer_next_read(subject, *task, now);
            }
            self.answer(requester, decision.into_reply());
        }
    }

    fn carry_out(&mut self, effect: Effect, changes: &[Arc<Change>], now: Timestamp) {
        match effect {
            Effect::File(task) => self.file_durable(*task, now),
            Effect::FilePut(index) => {
                if let Some(Change::Put(task)) = changes.get(index).map(Arc::as_ref) {
                    self.file_new(task);
                }
            }
            Effect::Update(task) => {
                let id = task.id;
                for report in self.tasks.update(*task) {
                    self.settle(id, report, now);
                }
            }
            Effect::Postpone(namespace) => {
                if let Some(Change::Postpone { id, fire_at, version, updated_at, .. }) =
                    changes.first().map(Arc::as_ref)
                {
                    self.file_postponed(namespace, *id, *fire_at, *version, *updated_at);
                }
            }
            Effect::Remove(id) => self.tasks.remove(id),
            Effect::SendClaimed(claimed) => self.send_claimed(*claimed, now),
            Effect::ReleaseClaim(fire_id) => self.release_claim(fire_id, now),
            Effect::TakePage(tasks) => self.take_page(tasks),
            Effect::TakeLookup(task, read) => self.take_lookup(*task, read),
        }
    }

    /// Refuses new tasks because the store has no space, and sends the rest of the batch.
    fn refuse_growth(&mut self, resource: Resource, now: Timestamp) {
        self.take_all_effects(now);
        let refused = self.writer.take_growing();
        if refused.is_empty() {
            // Nothing can be refused, and nothing may be dropped: wait until there is space.
            return self.send_again(now);
        }
        for decision in refused {
            self.undo(decision, EngineError::Full(resource), now);
        }
        if self.writer.has_batch_in_flight() {
            self.actions.push(Action::Apply(self.writer.batch()));
        }
    }

    /// Undoes a decision that is not written, and answers its caller with an error.
    pub(crate) fn undo(&mut self, decision: Decision, error: EngineError, now: Timestamp) {
        for change in &decision.changes {
            let (id, scope) = (change.task_id(), Scope::of(change));
            self.reads.undone(scope);
            // A decision about letters holds up no task: one about the task itself may be pending.
            let held = match scope {
                Scope::Task(id) => self.tasks.undo_decision(id),
                Scope::New(_) | Scope::Letters(_) => Vec::new(),
            };
            for report in held {
                self.settle(id, report, now);
            }
            if !self.reads.is_undurable(Scope::Task(id))
                && let Some(task) = self.loader.take_aside(id)
            {
                self.file(task);
            }
            self.wake_watchers(id);
        }
        self.undo_recalled_claims(&decision, now);
        if let Some(requester) = decision.requester {
            self.answer(requester, Err(error));
        }
    }

    /// Sends the batch in flight again after a pause.
    fn send_again(&mut self, now: Timestamp) {
        if self.writer.has_batch_in_flight() {
            self.actions.retry(Action::Apply(self.writer.batch()), now);
        }
    }
}
