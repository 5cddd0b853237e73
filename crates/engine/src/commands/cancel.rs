//! Cancelling: a task is stopped before its next fire, or the answer says why not.
//!
//! In: what the store and memory know of the task. Out: a decision, or the truth at once: it is firing, it has fired, there is none.
//! Invariant: `cancelled` is answered only after it is durable, and then the task never fires.

use punctual_core::{FireEnd, FireRecord, Timestamp};
use punctual_store::Change;

use crate::commands::lookup::FoundTask;
use crate::commit::writer::{Decision, Effect};
use crate::handle::command::{Asked, Cancelled, EngineError, Reply};
use crate::owner::Owner;

impl Owner {
    pub(crate) fn cancel(&mut self, asked: Asked, sight: FoundTask, now: Timestamp) {
        let Some(task) = sight.task else {
            let answer = self.too_late(&asked, sight.last);
            return self.answer(asked, answer.map(Reply::Cancelled));
        };
        let under_way = self.memory.is_firing(task.id).then(|| task.attempt_next());
        let claimed = || asked.subject.as_ref().and_then(|subject| self.claims.attempt(subject));
        let firing = under_way.or_else(claimed).map(Cancelled::Firing);
        // The attempt under way cannot be called back. A task that is due once has nothing else to cancel; one that goes on does
        // not go on, and is not tried again.
        if let Some(firing) = firing.filter(|_| !task.goes_on()) {
            return self.answer(asked, Ok(Reply::Cancelled(firing)));
        }
        let mut decision = Decision::answering(asked);
        let task = decision.end_aside(task, FireEnd::Cancelled, now);
        let record = FireRecord::of(&task, FireEnd::Cancelled, now);
        decision.change(Change::Settle { record, next: None, was: task.state });
        decision.effects.push(Effect::Leave(task.id));
        decision.answers(Reply::Cancelled(firing.unwrap_or(Cancelled::Cancelled)));
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
