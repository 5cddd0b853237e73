//! Firing: a task's time has come.
//!
//! In: the time, or somebody who wants a fire besides the schedule. Out: tasks in their lanes, about in the order of their times: of a crowd
//! that is due at once only a part passes in one turn, and whoever is due a moment later does not wait for the rest of it.
//! Invariant: nothing passes here before its `fire_at`.

use punctual_core::{FireEnd, FireRecord, Task, TaskState, Timestamp};
use punctual_store::Change;

use crate::commit::writer::{Decision, Effect};
use crate::handle::command::{Asked, EngineError, Reply, Subject};
use crate::loaded::tasks::Phase;
use crate::owner::Owner;

/// Tasks that fire in one turn of those that have just become due, and as many of those that have been for longer: about a millisecond.
const FIRES_MAX: usize = 512;

impl Owner {
    /// Fires what is due, or the first of it.
    pub(crate) fn fire(&mut self, now: Timestamp) {
        for slot in self.memory.due(now, FIRES_MAX) {
            self.fire_one(slot, now);
        }
    }

    fn fire_one(&mut self, slot: u32, now: Timestamp) {
        let Some(loaded) = self.memory.take_rung(slot) else {
            return;
        };
        let id = loaded.task.id;
        if loaded.phase == Phase::Firing {
            // Another fire has come up to the one under way.
            if self.memory.turn(id, now) {
                self.enqueue(id, now);
            }
            return;
        }
        assert!(loaded.task.fire_at <= now, "a timer was early: {id}");
        assert!(loaded.phase == Phase::Waiting, "only a waiting task has a timer: {id}");
        if loaded.task.definition.namespace.is_of_receipts() {
            // Nobody waits for it: it has been kept long enough.
            let record = FireRecord::of(&loaded.task, FireEnd::Done, now);
            let was = loaded.task.state;
            let change = Change::Settle { record, next: None, was };
            return self.write(Decision::own(change, Effect::Leave(id)));
        }
        self.enqueue(id, now);
    }

    /// Fires a task now, once, besides its schedule. A retry that waits is made now.
    pub(crate) fn fire_besides(&mut self, asked: Asked, task: Option<Task>, now: Timestamp) {
        let task = match task.ok_or(EngineError::NotFound).and_then(|task| self.fireable(task)) {
            Ok(task) => task,
            Err(error) => return self.answer(asked, Err(error)),
        };
        let was = task.state;
        let version = task.version.next();
        let fresh = task.attempts.is_empty() && task.overlapping.is_empty();
        let task = match (fresh, task.resumes_at) {
            (true, None) => task.fired_manually(now),
            _ => Task { fire_at: now.min(task.fire_at), ..task },
        };
        let task = Task { version, ..task };
        let mut decision = Decision::answering(asked);
        decision.change(Change::Refile { task: task.clone(), was });
        decision.effects.push(Effect::file(task.clone()));
        decision.answers(Reply::Task(task));
        self.write(decision);
    }

    fn fireable(&self, task: Task) -> Result<Task, EngineError> {
        if self.memory.is_firing(task.id) {
            return Err(EngineError::Firing(task.attempt_next()));
        }
        let subject = Subject::Id(task.definition.namespace.clone(), task.id);
        if let Some(attempt) = self.claims.attempt(&subject) {
            return Err(EngineError::Firing(attempt));
        }
        if task.state == TaskState::Paused {
            return Err(EngineError::Paused);
        }
        Ok(task)
    }
}
