//! Firing: tasks whose time has come go to their lanes.
//!
//! No task passes before its `fire_at`. Tasks fire about in the order of their times: of many that
//! are due at once only a part passes in one turn, so that tasks that are due a moment later do not
//! wait for all of them. A caller may also fire a task now, in addition to its schedule.

use punctual_core::{FireEnd, FireRecord, Task, TaskState, Timestamp};
use punctual_store::{Change, Prior};

use crate::commit::decision::{Decision, Effect};
use crate::handle::call::Requester;
use crate::handle::command::Subject;
use crate::handle::error::EngineError;
use crate::handle::reply::Reply;
use crate::loaded::tasks::LoadedPhase;
use crate::owner::Owner;

/// Tasks that fire in one turn, of those that have just become due, and as many of those that were
/// left from earlier turns: about a millisecond.
const FIRES_MAX: usize = 512;

impl Owner {
    /// Fires due tasks, or the first of them.
    pub(crate) fn fire(&mut self, now: Timestamp) {
        for slot in self.tasks.advance(now, FIRES_MAX) {
            self.fire_one(slot, now);
        }
    }

    fn fire_one(&mut self, slot: u32, now: Timestamp) {
        let Some(loaded) = self.tasks.take_expired(slot) else {
            return;
        };
        let (task, phase) = (loaded.task(), loaded.phase());
        let id = task.id;
        if phase == LoadedPhase::Firing {
            if self.tasks.overlap(id, now) {
                self.idle_waiters.count_fire();
                self.enqueue(id, now);
            }
            return;
        }
        assert!(task.fire_at <= now, "a timer was early: {id}");
        assert!(phase == LoadedPhase::Waiting, "only a waiting task has a timer: {id}");
        if task.definition.namespace.is_of_receipts() {
            // A receipt is not delivered: it was kept long enough.
            let record = FireRecord::of(task, FireEnd::Done, now);
            let was = Prior::of(task);
            let change = Change::Settle { record, next: None, was };
            return self.write(Decision::own(change, Effect::Remove(id)));
        }
        // Neither a retry nor a task that was spilled and is loaded again.
        if task.attempts.is_empty() && task.fire_at == now {
            self.idle_waiters.count_fire();
        }
        if self.deliveries.awaited_attempt(task).is_some() {
            // The decision that ends the claim replaces its provisional callback.
            return self.tasks.set_waiting_for_claim(id);
        }
        self.enqueue(id, now);
    }

    /// Fires a task once, now, in addition to its schedule. A pending retry or redrive is made now.
    pub(crate) fn fire_manually(
        &mut self,
        requester: Requester,
        task: Option<Task>,
        now: Timestamp,
    ) {
        let task = task.ok_or(EngineError::NotFound).and_then(|task| self.fireable(task));
        let task = match task {
            Ok(task) => task,
            Err(error) => return self.answer(requester, Err(error)),
        };
        let was = Prior::of(&task);
        let version = task.version.next();
        let task = Task { version, updated_at: now, ..task.fired_manually(now) };
        let mut decision = Decision::answering(requester);
        decision.change(Change::Refile { task: task.clone(), was });
        decision.effects.push(Effect::file(task.clone()));
        decision.replies(Reply::Task(task));
        self.write(decision);
    }

    fn fireable(&self, task: Task) -> Result<Task, EngineError> {
        if self.tasks.is_firing(task.id) {
            return Err(EngineError::Firing(task.attempt_next()));
        }
        let subject = Subject::Id(task.definition.namespace.clone(), task.id);
        if let Some(attempt) = self.deliveries.claimed_attempt(&subject) {
            return Err(EngineError::Firing(attempt));
        }
        if task.state == TaskState::Paused {
            return Err(EngineError::Paused);
        }
        Ok(task)
    }
}
