//! Scheduling: a task is created, or takes the place of the one that its key names.
//!
//! In: a checked [`NewTask`] and what the key names now. Out: a decision with a new id, or a refusal. Invariant: what is replaced
//! ends in the same batch in which its successor begins, so there is never none and never two.

use punctual_core::{FireEnd, FireRecord, NewTask, Sequence, Task, TaskId, Timestamp, Version};
use punctual_store::{Change, StoreError};

use crate::command::{Condition, EngineError, Reply, Scheduled, Subject};
use crate::owner::Owner;
use crate::write::{Decision, Effect};

impl Owner {
    pub(crate) fn schedule(
        &mut self,
        new_task: NewTask,
        condition: Condition,
        reply: Reply<Scheduled>,
        subject: Option<Subject>,
        existing: Option<Task>,
        now: Timestamp,
    ) {
        let refusal = match (condition, &existing) {
            (Condition::Absent, Some(task)) => {
                Some(EngineError::Exists(Box::new(self.as_it_stands(task.clone()))))
            }
            (Condition::Version(_), None) => Some(EngineError::NotFound),
            (Condition::Version(wanted), Some(task)) if task.version != wanted => {
                Some(EngineError::OtherVersion(task.version))
            }
            _ => None,
        };
        let fire_at = new_task.schedule.first_fire_at(now);
        let crowded = self.memory.is_full() && self.covers(fire_at);
        if let Some(error) = refusal.or(crowded.then_some(EngineError::Busy)) {
            reply.send(Err(error));
            return self.answered(subject);
        }
        let Some(id) = self.next_id(fire_at) else {
            // The shell takes the partition anew, with a new epoch.
            reply.send(Err(EngineError::Stopped));
            return self.stop(StoreError::Broken("the epoch has no sequence left".to_owned()));
        };
        let version = existing.as_ref().map_or(Version::FIRST, |task| task.version.next());
        let task = Task::new(id, new_task.into(), now, version);
        let mut decision = Decision::default();
        let scheduled = match existing {
            None => Scheduled::Created(task.clone()),
            Some(old) => {
                let record = FireRecord::of(&old, FireEnd::Replaced, now);
                decision.changes.push(Change::Settle { record, next: None, was: old.state });
                decision.effects.push(Effect::Leave(old.id));
                Scheduled::Replaced(task.clone())
            }
        };
        decision.changes.push(Change::Put(task.clone()));
        decision.effects.push(Effect::File(task));
        decision.effects.push(Effect::Scheduled(reply, Box::new(scheduled)));
        decision.effects.extend(subject.map(Effect::Free));
        self.write(decision);
    }

    /// The next id of this epoch; `None` when the epoch is used up.
    fn next_id(&mut self, due: Timestamp) -> Option<TaskId> {
        let sequence: Sequence = self.sequence?;
        self.sequence = sequence.next();
        Some(TaskId::new(due, self.partition, self.epoch, sequence))
    }
}
