//! Redriving: a dead letter goes back to be fired, or is deleted.
//!
//! In: the letter, and whoever bears its key now. Out: the task under its old id, due now, with all attempts before it; the same
//! fire id, so that a receiver that dedups still has one effect.
//! Invariant: a letter is redriven once; of two who ask, the second finds none.

use punctual_core::{Task, TaskState, Timestamp};
use punctual_store::Change;

use crate::command::{Answer, Asked, EngineError};
use crate::look::Sight;
use crate::owner::Owner;
use crate::write::{Decision, Effect};

impl Owner {
    pub(crate) fn redrive(&mut self, asked: Asked, sight: Sight, now: Timestamp) {
        let Some(letter) = sight.letter.filter(|letter| !self.claims.has(letter.fire_id())) else {
            return self.answer(asked, Err(EngineError::NoLetter));
        };
        if let Some(task) = sight.task {
            // Its name, or its id, is in use: it cannot be a task again beside that one.
            let task = self.as_it_stands(task);
            return self.answer(asked, Err(EngineError::Exists(Box::new(task))));
        }
        let fire_id = letter.fire_id();
        let version = letter.task.version.next();
        let state = TaskState::Scheduled;
        let attempts = Vec::new();
        let task = Task { fire_at: now, state, version, attempts, ..letter.task };
        let mut decision = Decision::answering(asked);
        decision.changes.push(Change::Redrive { fire_id, task: task.clone() });
        decision.effects.push(Effect::File(task.clone()));
        decision.answer = Some(Answer::Task(task));
        self.write(decision);
    }

    pub(crate) fn forget(&mut self, asked: Asked, sight: Sight) {
        let Some(letter) = sight.letter.filter(|letter| !self.claims.has(letter.fire_id())) else {
            return self.answer(asked, Err(EngineError::NoLetter));
        };
        let fire_id = letter.fire_id();
        let namespace = letter.task.definition.namespace.clone();
        let mut decision = Decision::answering(asked);
        decision.changes.push(Change::Forget { fire_id, namespace });
        decision.answer = Some(Answer::Forgotten);
        self.write(decision);
    }
}
