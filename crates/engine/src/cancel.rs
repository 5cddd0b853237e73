//! Cancelling: a task is stopped before its next fire, or the answer says why not.
//!
//! In: what the store and memory know of the task. Out: a decision, or the truth at once: it is firing, it has fired, there is none.
//! Invariant: `cancelled` is answered only after it is durable, and then the task never fires.

use punctual_core::{FireEnd, FireRecord, Timestamp};
use punctual_store::Change;

use crate::command::{Answer, Asked, Cancelled, EngineError};
use crate::look::Sight;
use crate::memory::Phase;
use crate::owner::Owner;
use crate::write::{Decision, Effect};

impl Owner {
    pub(crate) fn cancel(&mut self, asked: Asked, sight: Sight, now: Timestamp) {
        let Some(task) = sight.task else {
            let answer = self.too_late(&asked, sight.last);
            return self.answer(asked, answer.map(Answer::Cancelled));
        };
        if self.memory.phase(task.id).is_some_and(Phase::is_firing) {
            let firing = Cancelled::Firing(task.attempt_next());
            return self.answer(asked, Ok(Answer::Cancelled(firing)));
        }
        let record = FireRecord::of(&task, FireEnd::Cancelled, now);
        let mut decision = Decision::answering(asked);
        decision.changes.push(Change::Settle { record, next: None, was: task.state });
        decision.effects.push(Effect::Leave(task.id));
        decision.answer = Some(Answer::Cancelled(Cancelled::Cancelled));
        self.write(decision);
    }

    /// The truth about a task that lives no more.
    fn too_late(&self, asked: &Asked, last: Option<FireRecord>) -> Result<Cancelled, EngineError> {
        // A task that may be received at most once is a dead letter in the store already while it fires.
        if let Some(attempt) =
            asked.subject.as_ref().and_then(|subject| self.claims.attempt(subject))
        {
            return Ok(Cancelled::Firing(attempt));
        }
        let last = last.ok_or(EngineError::NotFound)?;
        match (last.end, last.attempts.last()) {
            (FireEnd::Cancelled, _) => Ok(Cancelled::Cancelled),
            (_, Some(attempt)) => Ok(Cancelled::AlreadyFired(attempt.fired_at)),
            (_, None) => Err(EngineError::NotFound),
        }
    }
}
