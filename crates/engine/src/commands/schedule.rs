//! Scheduling: a task is created, or replaces the one that its key names.
//!
//! A task that is replaced ends in the same batch in which its successor is stored, so there is
//! never none and never two. A task that fires more than once keeps its id and gets a new
//! definition.

use std::sync::Arc;

use punctual_core::{
    Edited, FireEnd, FireRecord, IDEMPOTENCY_KEPT, Task, TaskState, Timestamp, Version,
};
use punctual_store::{Change, Prior};

use crate::commands::idempotency;
use crate::commit::decision::{Decision, Effect};
use crate::delivery::claim::RecalledClaim;
use crate::handle::call::Requester;
use crate::handle::command::{Condition, ScheduleCommand, Subject};
use crate::handle::error::EngineError;
use crate::handle::reply::{Reply, Scheduled};
use crate::owner::Owner;

impl Owner {
    /// Schedules a task. `existing` is the task that its key names, `receipt` what was stored under
    /// its idempotency key.
    pub(crate) fn schedule(
        &mut self,
        command: ScheduleCommand,
        requester: Requester,
        existing: Option<Task>,
        receipt: Option<Task>,
        now: Timestamp,
    ) {
        if let (Some(given), Some(stored)) = (&command.receipt, &receipt) {
            let reply = idempotency::recall(&command, given, stored);
            return self.answer(requester, reply.map(Reply::Scheduled));
        }
        let unsent = requester.subject.as_ref().and_then(|it| self.deliveries.unsent_claim(it));
        if let Some(error) = self.unmet(command.condition, existing.as_ref().or(unsent)) {
            return self.answer(requester, Err(error));
        }
        if let Some(old) = existing.as_ref().filter(|old| old.is_edited_by(&command.new_task)) {
            return self.edit(old.clone(), &command, requester, now);
        }
        let Some(fire_at) = command.new_task.schedule.first_at(now) else {
            return self.answer(requester, Err(EngineError::NeverFires));
        };
        let Some(id) = self.tenure.next_id(fire_at) else {
            return self.stop_out_of_ids();
        };
        let claim = match self.recall_claim_of_key(&command, existing.as_ref(), now) {
            RecalledClaim::Recalled(fire_id) => Some(fire_id),
            RecalledClaim::Ending => return self.answer(requester, Err(EngineError::Stopped)),
            // It was sent meanwhile.
            RecalledClaim::No if existing.is_none() && command.condition.is_version() => {
                return self.answer(requester, Err(EngineError::NotFound));
            }
            RecalledClaim::No => None,
        };
        let claimed = claim.and_then(|fire_id| Some(&self.deliveries.claim(fire_id)?.task));
        let old = existing.as_ref().or(claimed);
        let version = old.map_or(Version::FIRST, |task| task.version.next());
        let task = command.start.begin(Task::new(id, Arc::clone(&command.new_task), now, version));
        let mut decision = Decision::answering(requester);
        decision.replies_scheduled(old);
        if let Some(fire_id) = claim {
            self.end_recalled_claim(&mut decision, fire_id, FireEnd::Replaced, now);
        }
        if let Some(old) = existing {
            let old = decision.end_overlapping(old, FireEnd::Replaced, now);
            let record = FireRecord::of(&old, FireEnd::Replaced, now);
            decision.change(Change::Settle { record, next: None, was: Prior::of(&old) });
            decision.effects.push(Effect::Remove(old.id));
        }
        if !self.store_receipt(&mut decision, &command, &task, now) {
            return self.stop_out_of_ids();
        }
        decision.put(task);
        self.write(decision);
    }

    /// Recalls the delivery of the claimed task that has the key of a command, so that the new task
    /// replaces it. The store has freed the key.
    fn recall_claim_of_key(
        &mut self,
        command: &ScheduleCommand,
        existing: Option<&Task>,
        now: Timestamp,
    ) -> RecalledClaim {
        let definition = &command.new_task;
        match (definition.key.clone(), existing, command.condition) {
            (Some(key), None, Condition::Always | Condition::Version(_)) => {
                let subject = Subject::Key(definition.namespace.clone(), key);
                self.recall_claim(&subject, now)
            }
            _ => RecalledClaim::No,
        }
    }

    /// Adds the receipt to a decision, if the command has an idempotency key. Returns `false` if
    /// the epoch has no ids left.
    fn store_receipt(
        &mut self,
        decision: &mut Decision,
        command: &ScheduleCommand,
        task: &Task,
        now: Timestamp,
    ) -> bool {
        let Some(given) = &command.receipt else {
            return true;
        };
        let Some(id) = self.tenure.next_id(now.after(IDEMPOTENCY_KEPT)) else {
            return false;
        };
        decision.put(idempotency::receipt(id, given, task));
        true
    }

    /// Gives a task a new definition under its id: its history stays, and what was fired is not
    /// fired again.
    fn edit(&mut self, old: Task, command: &ScheduleCommand, requester: Requester, now: Timestamp) {
        let firing = self.tasks.is_firing(old.id);
        let was = Prior::of(&old);
        let Some(edited) = old.edited(Arc::clone(&command.new_task), firing, now) else {
            return self.answer(requester, Err(EngineError::NeverFires));
        };
        let mut decision = Decision::answering(requester);
        let task = match edited {
            Edited::SameTimes(task) => {
                let task = command.start.begin(task);
                let stored = task.clone().earliest();
                decision.change(Change::Refile { task: stored.clone(), was });
                let effect =
                    if firing { Effect::update(task.clone()) } else { Effect::file(stored) };
                decision.effects.push(effect);
                task
            }
            Edited::Restarted(task) => {
                let task = command.start.begin(task);
                let ended = matches!(was.state, TaskState::Done | TaskState::Dead);
                let due = old.fire_at <= now && old.nominal_at != task.nominal_at;
                let begun =
                    firing || !old.attempts.is_empty() || !old.overlapping.is_empty() || due;
                if begun && !ended {
                    // An attempt in flight belongs to the old definition: its outcome is ignored.
                    let old = decision.end_overlapping(old, FireEnd::Replaced, now);
                    let record = FireRecord::of(&old, FireEnd::Replaced, now);
                    let next = Some(Box::new(task.clone()));
                    decision.change(Change::Settle { record, next, was });
                } else {
                    decision.change(Change::Refile { task: task.clone(), was });
                }
                decision.effects.push(Effect::Remove(task.id));
                decision.effects.push(Effect::file(task.clone()));
                task
            }
        };
        if !self.store_receipt(&mut decision, command, &task, now) {
            return self.stop_out_of_ids();
        }
        decision.replies(Reply::Scheduled(Scheduled::Replaced(task)));
        self.write(decision);
    }

    /// Returns the error if the condition of a command does not hold.
    fn unmet(&self, condition: Condition, existing: Option<&Task>) -> Option<EngineError> {
        match (condition, existing) {
            (Condition::Absent, Some(task)) => {
                Some(EngineError::Exists(Box::new(self.with_firing_state(task.clone()))))
            }
            (Condition::Version(_), None) => Some(EngineError::NotFound),
            (Condition::Version(wanted), Some(task)) if task.version != wanted => {
                Some(EngineError::VersionMismatch(task.version))
            }
            _ => None,
        }
    }
}
