//! Scheduling: a task is created, or takes the place of the one that its key names.
//!
//! In: a checked [`NewTask`](punctual_core::NewTask) and what the key names now. Out: a decision with a new id, or a refusal.
//! Invariant: what is replaced ends in the same batch in which its successor begins, so there is never none and never two.

use std::sync::Arc;

use punctual_core::{
    FireEnd, FireRecord, IDEMPOTENCY_KEPT, Sequence, Task, TaskId, Timestamp, Version,
};
use punctual_store::{Change, StoreError};

use crate::command::{Answer, Asked, Condition, EngineError, Order, Scheduled};
use crate::owner::Owner;
use crate::receipt;
use crate::write::{Decision, Effect};

impl Owner {
    pub(crate) fn schedule(
        &mut self,
        order: Order,
        asked: Asked,
        existing: Option<Task>,
        receipt: Option<Task>,
        now: Timestamp,
    ) {
        if let (Some(ours), Some(kept)) = (&order.receipt, &receipt) {
            let answer = receipt::recall(&order.new_task, ours, kept);
            return self.answer(asked, answer.map(Answer::Scheduled));
        }
        if let Some(error) = self.refusal(order.condition, existing.as_ref()) {
            return self.answer(asked, Err(error));
        }
        let fire_at = order.new_task.schedule.first_fire_at(now);
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
                let record = FireRecord::of(&old, FireEnd::Replaced, now);
                decision.changes.push(Change::Settle { record, next: None, was: old.state });
                decision.effects.push(Effect::Leave(old.id));
                Scheduled::Replaced(task.clone())
            }
        };
        if let Some(ours) = &order.receipt {
            let fire_at = now.after(IDEMPOTENCY_KEPT);
            let Some(id) = self.next_id(fire_at) else {
                return self.stop(StoreError::Broken("the epoch has no sequence left".to_owned()));
            };
            let kept = receipt::receipt(id, ours, &task);
            decision.changes.push(Change::Put(kept.clone()));
            decision.effects.push(Effect::File(kept));
        }
        decision.changes.push(Change::Put(task.clone()));
        decision.effects.push(Effect::File(task));
        decision.answer = Some(Answer::Scheduled(scheduled));
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
