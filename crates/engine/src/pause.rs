//! Pausing and resuming: a task waits outside of time, and goes on.
//!
//! In: the task as it stands. Out: the same task in the other state, durable before the answer.
//! Invariant: a paused task starts no attempt. One that is under way goes on, and what follows from it waits.

use punctual_core::{Task, TaskState};
use punctual_store::Change;

use crate::command::{Answer, Asked, EngineError};
use crate::memory::Phase;
use crate::owner::Owner;
use crate::write::{Decision, Effect};

impl Owner {
    pub(crate) fn pause(&mut self, asked: Asked, task: Option<Task>) {
        self.stand_in(TaskState::Paused, asked, task);
    }

    pub(crate) fn resume(&mut self, asked: Asked, task: Option<Task>) {
        self.stand_in(TaskState::Scheduled, asked, task);
    }

    fn stand_in(&mut self, state: TaskState, asked: Asked, task: Option<Task>) {
        let Some(task) = task else {
            let claim = asked.subject.as_ref().and_then(|subject| self.claims.attempt(subject));
            let error = claim.map_or(EngineError::NotFound, EngineError::Firing);
            return self.answer(asked, Err(error));
        };
        let was = task.state;
        if was == state {
            let task = self.as_it_stands(task);
            return self.answer(asked, Ok(Answer::Task(task)));
        }
        let task = Task { state, version: task.version.next(), ..task };
        let firing = self.memory.phase(task.id).is_some_and(Phase::is_firing);
        let mut decision = Decision::answering(asked);
        decision.changes.push(Change::Refile { task: task.clone(), was });
        let effect = if firing { Effect::Stand } else { Effect::File };
        decision.effects.push(effect(task.clone()));
        decision.answer = Some(Answer::Task(task));
        self.write(decision);
    }
}
