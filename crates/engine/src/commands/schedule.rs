//! Scheduling: a task is created, or takes the place of the one that its key names.
//!
//! In: a checked [`NewTask`](punctual_core::NewTask) and what the key names now. Out: a decision with a new id, or a refusal.
//! Invariant: what is replaced ends in the same batch in which its successor begins, so there is never none and never two.

use std::sync::Arc;

use punctual_core::{
    Edited, FireEnd, FireRecord, IDEMPOTENCY_KEPT, Sequence, Task, TaskId, TaskState, Timestamp,
    Version,
};
use punctual_store::{Change, StoreError};

use crate::commands::idempotency as receipt;
use crate::commit::writer::{Decision, Effect};
use crate::handle::command::{Asked, Condition, EngineError, Reply, ScheduleCommand, Scheduled};
use crate::owner::Owner;

impl Owner {
    pub(crate) fn schedule(
        &mut self,
        order: ScheduleCommand,
        asked: Asked,
        existing: Option<Task>,
        receipt: Option<Task>,
        now: Timestamp,
    ) {
        if let (Some(ours), Some(kept)) = (&order.receipt, &receipt) {
            let answer = receipt::recall(&order.new_task, ours, kept);
            return self.answer(asked, answer.map(Reply::Scheduled));
        }
        if let Some(error) = self.refusal(order.condition, existing.as_ref()) {
            return self.answer(asked, Err(error));
        }
        if let Some(old) = existing.as_ref().filter(|old| old.is_edited_by(&order.new_task)) {
            return self.edit(old.clone(), &order, asked, now);
        }
        let Some(fire_at) = order.new_task.schedule.first_at(now) else {
            return self.answer(asked, Err(EngineError::Never));
        };
        let Some(id) = self.next_id(fire_at) else {
            // The shell takes the partition anew, with a new epoch.
            return self.stop(StoreError::Broken("the epoch has no sequence left".to_owned()));
        };
        let version = existing.as_ref().map_or(Version::FIRST, |task| task.version.next());
        let task = Task::new(id, Arc::clone(&order.new_task), now, version);
        let mut decision = Decision::answering(asked);
        let scheduled = match existing {
            None => Scheduled::Created(task.clone()),
            Some(old) => {
                let old = decision.end_aside(old, FireEnd::Replaced, now);
                let record = FireRecord::of(&old, FireEnd::Replaced, now);
                decision.change(Change::Settle { record, next: None, was: old.state });
                decision.effects.push(Effect::Leave(old.id));
                Scheduled::Replaced(task.clone())
            }
        };
        if !self.keep_receipt(&mut decision, &order, &task, now) {
            return self.stop(StoreError::Broken("the epoch has no sequence left".to_owned()));
        }
        decision.change(Change::Put(task.clone()));
        decision.effects.push(Effect::file(task));
        decision.answers(Reply::Scheduled(scheduled));
        self.write(decision);
    }

    /// Remembers what was made under an idempotency key, if there is one; false if the epoch is used up.
    fn keep_receipt(
        &mut self,
        decision: &mut Decision,
        order: &ScheduleCommand,
        task: &Task,
        now: Timestamp,
    ) -> bool {
        let Some(ours) = &order.receipt else {
            return true;
        };
        let Some(id) = self.next_id(now.after(IDEMPOTENCY_KEPT)) else {
            return false;
        };
        let kept = receipt::receipt(id, ours, task);
        decision.change(Change::Put(kept.clone()));
        decision.effects.push(Effect::file(kept));
        true
    }

    /// A task that goes on does so by its new definition from now on, under its id: its history stays, and what was fired already is
    /// not fired again.
    fn edit(&mut self, old: Task, order: &ScheduleCommand, asked: Asked, now: Timestamp) {
        let firing = self.memory.is_firing(old.id);
        let was = old.state;
        let mut decision = Decision::answering(asked);
        let task = match old.edited(Arc::clone(&order.new_task), firing, now) {
            None => {
                let asked = decision.asked.take();
                return asked
                    .into_iter()
                    .for_each(|asked| self.answer(asked, Err(EngineError::Never)));
            }
            Some(Edited::SameTimes(task)) => {
                let stored = task.clone().earliest();
                decision.change(Change::Refile { task: stored.clone(), was });
                let effect =
                    if firing { Effect::stand(task.clone()) } else { Effect::file(stored) };
                decision.effects.push(effect);
                task
            }
            Some(Edited::Anew(task)) => {
                let rests = matches!(was, TaskState::Done | TaskState::Dead);
                let due = old.fire_at <= now && old.nominal_at != task.nominal_at;
                let begun =
                    firing || !old.attempts.is_empty() || !old.overlapping.is_empty() || due;
                if begun && !rests {
                    // An attempt that is under way belongs to the definition of before: whatever comes of it changes nothing.
                    let old = decision.end_aside(old, FireEnd::Replaced, now);
                    let record = FireRecord::of(&old, FireEnd::Replaced, now);
                    let next = Some(task.clone());
                    decision.change(Change::Settle { record, next, was });
                } else {
                    decision.change(Change::Refile { task: task.clone(), was });
                }
                decision.effects.push(Effect::Leave(task.id));
                decision.effects.push(Effect::file(task.clone()));
                task
            }
        };
        if !self.keep_receipt(&mut decision, order, &task, now) {
            return self.stop(StoreError::Broken("the epoch has no sequence left".to_owned()));
        }
        decision.answers(Reply::Scheduled(Scheduled::Replaced(task)));
        self.write(decision);
    }

    fn refusal(&self, condition: Condition, existing: Option<&Task>) -> Option<EngineError> {
        match (condition, existing) {
            (Condition::Absent, Some(task)) => {
                Some(EngineError::Exists(Box::new(self.as_it_stands(task.clone()))))
            }
            (Condition::Version(_), None) => Some(EngineError::NotFound),
            (Condition::Version(wanted), Some(task)) if task.version != wanted => {
                Some(EngineError::OtherVersion(task.version))
            }
            _ => None,
        }
    }

    /// The next id of this epoch; `None` when the epoch is used up.
    pub(crate) fn next_id(&mut self, due: Timestamp) -> Option<TaskId> {
        let sequence: Sequence = self.sequence?;
        self.sequence = sequence.next();
        Some(TaskId::new(due, self.partition, self.epoch, sequence))
    }
}
