//! Redriving: a dead letter is scheduled again, or deleted.
//!
//! The task gets its old id back and is due now, with the same fire id, so that a receiver that
//! deduplicates still has one effect. A letter is redriven once: a second command finds none. A
//! task that was paused during its last attempt is scheduled again like any other.

use punctual_core::{DeadLetter, Due, NewTask, Schedule, Task, TaskState, Timestamp, Version};
use punctual_store::Change;

use crate::commands::lookup::FoundTask;
use crate::commit::decision::{Decision, Effect};
use crate::handle::call::Requester;
use crate::handle::error::EngineError;
use crate::handle::reply::Reply;
use crate::owner::Owner;

impl Owner {
    pub(crate) fn redrive(&mut self, requester: Requester, found: FoundTask, now: Timestamp) {
        let Some(letter) = self.settled_letter(found.letter) else {
            return self.answer(requester, Err(EngineError::DeadLetterNotFound));
        };
        if letter.task.recurs() || letter.task.resumes_at.is_some() {
            return self.redrive_as_new_task(letter, requester, now);
        }
        if let Some(task) = found.task {
            // Another task has the key.
            let task = self.with_firing_state(task);
            return self.answer(requester, Err(EngineError::Exists(Box::new(task))));
        }
        let fire_id = letter.fire_id();
        let version = letter.task.version.next();
        let state = TaskState::Scheduled;
        let attempts = Vec::new();
        let task = Task { fire_at: now, state, version, attempts, ..letter.task };
        let mut decision = Decision::answering(requester);
        decision.change(Change::Redrive { fire_id, task: task.clone() });
        decision.effects.push(Effect::file(task.clone()));
        decision.replies(Reply::Task(task));
        self.write(decision);
    }

    /// The task of the letter has continued without that fire, so it fires as a new task without a
    /// key.
    fn redrive_as_new_task(&mut self, letter: DeadLetter, requester: Requester, now: Timestamp) {
        let Some(id) = self.tenure.next_id(now) else {
            return self.stop_out_of_ids();
        };
        let fire_id = letter.fire_id();
        let namespace = letter.task.definition.namespace.clone();
        let schedule = Schedule::Once(Due::At(now));
        let definition = NewTask { key: None, schedule, ..NewTask::clone(&letter.task.definition) };
        let task = Task::new(id, definition.into(), now, Version::FIRST);
        let mut decision = Decision::answering(requester);
        decision.change(Change::DeleteLetter { fire_id, namespace });
        decision.change(Change::Put(task.clone()));
        decision.effects.push(Effect::file(task.clone()));
        decision.replies(Reply::Task(task));
        self.write(decision);
    }

    /// Deletes a dead letter.
    pub(crate) fn forget(&mut self, requester: Requester, found: FoundTask) {
        let Some(letter) = self.settled_letter(found.letter) else {
            return self.answer(requester, Err(EngineError::DeadLetterNotFound));
        };
        let fire_id = letter.fire_id();
        let namespace = letter.task.definition.namespace.clone();
        let mut decision = Decision::answering(requester);
        decision.change(Change::DeleteLetter { fire_id, namespace });
        decision.replies(Reply::LetterDeleted);
        self.write(decision);
    }

    /// Returns the letter unless it is the claim of a fire in flight.
    fn settled_letter(&self, letter: Option<DeadLetter>) -> Option<DeadLetter> {
        letter.filter(|letter| !self.deliveries.is_claimed(letter.fire_id()))
    }
}
