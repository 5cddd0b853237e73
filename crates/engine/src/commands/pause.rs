//! Pausing and resuming: a task waits outside of time, and goes on.
//!
//! In: the task as it stands. Out: the same task in the other state, durable before the answer.
//! Invariant: a paused task starts no attempt. One that is under way goes on, and what follows from it waits. What was due by a
//! schedule while the task was paused is left out when it is resumed; a watch begins anew.

use punctual_core::{NextStep, Task, TaskState, Timestamp};
use punctual_store::Change;

use crate::commit::writer::{Decision, Effect};
use crate::handle::command::{Asked, EngineError, Reply};
use crate::owner::Owner;

impl Owner {
    pub(crate) fn pause(&mut self, asked: Asked, task: Option<Task>) {
        let Some(task) = self.standing(TaskState::Paused, &asked, task) else {
            return;
        };
        let was = task.state;
        let task = Task { state: TaskState::Paused, version: task.version.next(), ..task };
        self.stand(asked, task, was);
    }

    pub(crate) fn resume(&mut self, asked: Asked, task: Option<Task>, now: Timestamp) {
        let Some(task) = self.standing(TaskState::Scheduled, &asked, task) else {
            return;
        };
        let (id, was) = (task.id, task.state);
        let task = Task { version: task.version.next(), ..task };
        let next_step = match self.memory.is_firing(id) {
            // It was not paused for long enough to miss anything.
            true => {
                let next = Task { state: TaskState::Scheduled, ..task.clone() };
                NextStep { skipped: None, next: Some(next) }
            }
            false => task.resumed(now),
        };
        match (&next_step.skipped, &next_step.next) {
            (None, Some(next)) => self.stand(asked, next.clone(), was),
            // What was due meanwhile is left out, and with it perhaps the rest.
            (_, next) => {
                let shown = next.clone().unwrap_or(Task { state: TaskState::Done, ..task.clone() });
                let mut decision = Decision::answering(asked);
                let task = Task { state: TaskState::Scheduled, ..task };
                decision.change(Change::Refile { task, was });
                decision.answers(Reply::Task(shown));
                self.skip(id, next_step, &mut decision, now);
                self.write(decision);
            }
        }
    }

    /// The task, unless there is nothing to do about it: then the answer is given.
    fn standing(&mut self, state: TaskState, asked: &Asked, task: Option<Task>) -> Option<Task> {
        let answer = match task {
            None => {
                let claim = asked.subject.as_ref().and_then(|subject| self.claims.attempt(subject));
                Err(claim.map_or(EngineError::NotFound, EngineError::Firing))
            }
            Some(task) if task.state == state => Ok(Reply::Task(self.as_it_stands(task))),
            // A watch that has fired waits for a touch: there is nothing to resume.
            Some(task) if state == TaskState::Scheduled && task.state != TaskState::Paused => {
                Ok(Reply::Task(task))
            }
            Some(task) => return Some(task),
        };
        self.answer(asked.clone(), answer);
        None
    }

    fn stand(&mut self, asked: Asked, task: Task, was: TaskState) {
        let firing = self.memory.is_firing(task.id);
        let mut decision = Decision::answering(asked);
        decision.change(Change::Refile { task: task.clone().earliest(), was });
        let effect = if firing { Effect::stand } else { Effect::file };
        decision.effects.push(effect(task.clone()));
        decision.answers(Reply::Task(task));
        self.write(decision);
    }
}
