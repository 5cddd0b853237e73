//! Redriving: a dead letter is scheduled again, or deleted.
//!
//! The fire keeps its id and its attempts, so that a receiver that deduplicates has one effect. A
//! task that ended with the letter gets its id back. If the task had continued, the fire becomes a
//! task of its own without a key (`core/task/redrive`). A letter is redriven once: a second command
//! finds none. A task that was paused during its last attempt is scheduled again like any other.

use punctual_core::{DeadLetter, Task, Timestamp};
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
        let fire_id = letter.fire_id();
        let continued = letter.task.continued();
        // A claimed task has its key until it is sent, though the store has freed it.
        let unsent = requester.subject.as_ref().and_then(|it| self.deliveries.unsent_claim(it));
        if let Some(task) = found.task.or_else(|| unsent.cloned()).filter(|_| !continued) {
            // Another task has the key.
            let task = self.with_firing_state(task);
            return self.answer(requester, Err(EngineError::Exists(Box::new(task))));
        }
        let mut decision = Decision::answering(requester);
        let task = if continued {
            let Some(task) = self.redriven_apart(&letter.task, now) else {
                return self.stop_out_of_ids();
            };
            let namespace = letter.task.definition.namespace.clone();
            decision.change(Change::DeleteLetter { fire_id, namespace });
            decision.change(Change::Put(task.clone()));
            task
        } else {
            let task = letter.task.redriven(now);
            decision.change(Change::Redrive { fire_id, task: task.clone() });
            task
        };
        decision.effects.push(Effect::file(task.clone()));
        decision.replies(Reply::Task(task));
        self.write(decision);
    }

    /// Returns the fire of a dead letter as a task of its own; `None` if there is no id left.
    fn redriven_apart(&mut self, dead: &Task, now: Timestamp) -> Option<Task> {
        let id = self.tenure.next_id(dead.redriven_at(now))?;
        Some(dead.redriven_apart(id, now))
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
    fn settled_letter(&self, letter: Option<Box<DeadLetter>>) -> Option<Box<DeadLetter>> {
        letter.filter(|letter| !self.deliveries.is_claimed(letter.fire_id()))
    }
}
