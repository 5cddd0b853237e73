//! Redriving: a dead letter goes back to be fired, or is deleted.
//!
//! In: the letter, and whoever bears its key now. Out: the task under its old id, due now, with all attempts before it; the same
//! fire id, so that a receiver that dedups still has one effect.
//! Invariant: a letter is redriven once; of two who ask, the second finds none.

use punctual_core::{DeadLetter, Due, NewTask, Schedule, Task, TaskState, Timestamp, Version};
use punctual_store::{Change, StoreError};

use crate::commands::lookup::FoundTask;
use crate::commit::writer::{Decision, Effect};
use crate::handle::command::{Asked, EngineError, Reply};
use crate::owner::Owner;

impl Owner {
    pub(crate) fn redrive(&mut self, asked: Asked, sight: FoundTask, now: Timestamp) {
        let Some(letter) = sight.letter.filter(|letter| !self.claims.has(letter.fire_id())) else {
            return self.answer(asked, Err(EngineError::NoLetter));
        };
        if letter.task.goes_on() || letter.task.resumes_at.is_some() {
            return self.redrive_alone(letter, asked, now);
        }
        if let Some(task) = sight.task {
            // Its name is in use: it cannot be a task again beside that one.
            let task = self.as_it_stands(task);
            return self.answer(asked, Err(EngineError::Exists(Box::new(task))));
        }
        let fire_id = letter.fire_id();
        let version = letter.task.version.next();
        let state = TaskState::Scheduled;
        let attempts = Vec::new();
        let task = Task { fire_at: now, state, version, attempts, ..letter.task };
        let mut decision = Decision::answering(asked);
        decision.change(Change::Redrive { fire_id, task: task.clone() });
        decision.effects.push(Effect::file(task.clone()));
        decision.answers(Reply::Task(task));
        self.write(decision);
    }

    /// The task of the letter has gone on without that fire, so it fires as a task of its own, without a name.
    fn redrive_alone(&mut self, letter: DeadLetter, asked: Asked, now: Timestamp) {
        let Some(id) = self.next_id(now) else {
            return self.stop(StoreError::Broken("the epoch has no sequence left".to_owned()));
        };
        let fire_id = letter.fire_id();
        let namespace = letter.task.definition.namespace.clone();
        let schedule = Schedule::Once(Due::At(now));
        let definition = NewTask { key: None, schedule, ..NewTask::clone(&letter.task.definition) };
        let task = Task::new(id, definition.into(), now, Version::FIRST);
        let mut decision = Decision::answering(asked);
        decision.change(Change::Forget { fire_id, namespace });
        decision.change(Change::Put(task.clone()));
        decision.effects.push(Effect::file(task.clone()));
        decision.answers(Reply::Task(task));
        self.write(decision);
    }

    pub(crate) fn forget(&mut self, asked: Asked, sight: FoundTask) {
        let Some(letter) = sight.letter.filter(|letter| !self.claims.has(letter.fire_id())) else {
            return self.answer(asked, Err(EngineError::NoLetter));
        };
        let fire_id = letter.fire_id();
        let namespace = letter.task.definition.namespace.clone();
        let mut decision = Decision::answering(asked);
        decision.change(Change::Forget { fire_id, namespace });
        decision.answers(Reply::Forgotten);
        self.write(decision);
    }
}
