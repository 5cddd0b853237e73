//! Pausing and resuming a task.
//!
//! A paused task starts no attempt. An attempt in flight continues, and what follows from it waits.
//! On resume, fires that were due while the task was paused are skipped, also while an attempt is
//! in flight, and a watch that is not firing is armed anew.

use punctual_core::{Task, TaskState, Timestamp};
use punctual_store::{Change, Prior};

use crate::commit::decision::{Decision, Effect};
use crate::handle::call::Requester;
use crate::handle::error::EngineError;
use crate::handle::reply::Reply;
use crate::loaded::tasks::{LoadedPhase, LoadedTask};
use crate::owner::Owner;

impl Owner {
    pub(crate) fn pause(&mut self, requester: Requester, task: Option<Task>, now: Timestamp) {
        let Some(task) = self.unless_in_state(TaskState::Paused, &requester, task) else {
            return;
        };
        let was = Prior::of(&task);
        let version = task.version.next();
        let task = Task { state: TaskState::Paused, version, updated_at: now, ..task };
        self.set_state(requester, task, was);
    }

    pub(crate) fn resume(&mut self, requester: Requester, task: Option<Task>, now: Timestamp) {
        let Some(task) = self.unless_in_state(TaskState::Scheduled, &requester, task) else {
            return;
        };
        let (id, was) = (task.id, Prior::of(&task));
        let task = Task { version: task.version.next(), updated_at: now, ..task };
        let firing = self.tasks.is_firing(id);
        let next_step = match self.tasks.get(id).map(LoadedTask::phase) {
            Some(LoadedPhase::Firing) => task.resumed_in_flight(now),
            _ => task.resumed(now),
        };
        match (&next_step.skipped, &next_step.next) {
            (None, Some(next)) => self.set_state(requester, next.clone(), was),
            // Fires were skipped; if they were the last ones, the task ends.
            (_, next) => {
                let shown = next.clone().unwrap_or(Task { state: TaskState::Done, ..task.clone() });
                let mut decision = Decision::answering(requester);
                let task = Task { state: TaskState::Scheduled, ..task }.earliest();
                decision.change(Change::Refile { task, was });
                decision.replies(Reply::Task(shown.clone()));
                self.skip(id, next_step, &mut decision, now);
                if firing {
                    // Its attempts in flight continue.
                    decision.effects.clear();
                    decision.effects.push(Effect::update(Task { updated_at: now, ..shown }));
                }
                self.write(decision);
            }
        }
    }

    /// Returns the task if its state is to change. Otherwise answers the command.
    fn unless_in_state(
        &mut self,
        state: TaskState,
        requester: &Requester,
        task: Option<Task>,
    ) -> Option<Task> {
        let reply = match task {
            None => {
                let subject = requester.subject.as_ref();
                let claimed = subject.and_then(|it| self.deliveries.claimed_attempt(it));
                Err(claimed.map_or(EngineError::NotFound, EngineError::Firing))
            }
            Some(task) if task.state == state => Ok(Reply::Task(self.with_firing_state(task))),
            // A watch that has fired waits for a touch: there is nothing to resume.
            Some(task) if state == TaskState::Scheduled && task.state != TaskState::Paused => {
                Ok(Reply::Task(task))
            }
            Some(task) => return Some(task),
        };
        self.answer(requester.clone(), reply);
        None
    }

    fn set_state(&mut self, requester: Requester, task: Task, was: Prior) {
        let firing = self.tasks.is_firing(task.id);
        let mut decision = Decision::answering(requester);
        decision.change(Change::Refile { task: task.clone().earliest(), was });
        let effect = if firing { Effect::update } else { Effect::file };
        decision.effects.push(effect(task.clone()));
        decision.replies(Reply::Task(task));
        self.write(decision);
    }
}
