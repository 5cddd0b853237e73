//! Cancelling: a task ends before its next fire, or the reply says why it is too late.
//!
//! `cancelled` is answered only after it is durable, and then the task never fires. For a key that
//! names no task any more, the reply is about the last task that had it, as long as the store has
//! the record of its last fire.

use punctual_core::{FireEnd, FireRecord, Timestamp};
use punctual_store::{Change, Prior};

use crate::commands::lookup::FoundTask;
use crate::commit::decision::{Decision, Effect};
use crate::delivery::claim::RecalledClaim;
use crate::handle::call::Requester;
use crate::handle::error::EngineError;
use crate::handle::reply::{Cancelled, Reply};
use crate::owner::Owner;

impl Owner {
    pub(crate) fn cancel(&mut self, requester: Requester, found: FoundTask, now: Timestamp) {
        let subject = requester.subject.as_ref();
        let Some(task) = found.task else {
            let recalled = subject.map(|subject| self.recall_claim(subject, now));
            match recalled.unwrap_or(RecalledClaim::No) {
                RecalledClaim::Recalled(fire_id) => {
                    let mut decision = Decision::answering(requester);
                    self.end_recalled_claim(&mut decision, fire_id, FireEnd::Cancelled, now);
                    decision.replies(Reply::Cancelled(Cancelled::Cancelled));
                    return self.write(decision);
                }
                RecalledClaim::Ending => return self.answer(requester, Err(EngineError::Stopped)),
                RecalledClaim::No => {}
            }
            let subject = requester.subject.as_ref();
            let claimed = subject.and_then(|subject| self.deliveries.claimed_attempt(subject));
            // The store has a claimed task as a dead letter while it fires.
            if let Some(attempt) = claimed {
                let firing = Cancelled::Firing(attempt);
                return self.answer(requester, Ok(Reply::Cancelled(firing)));
            }
            return match too_late(found.last) {
                Ok(ended) => self.answer_read(requester, Reply::Cancelled(ended)),
                Err(error) => self.answer(requester, Err(error)),
            };
        };
        let claimed = subject.and_then(|subject| self.deliveries.claimed_attempt(subject));
        let in_flight = self.tasks.is_firing(task.id).then(|| task.attempt_next());
        let firing = in_flight.or(claimed).map(Cancelled::Firing);
        // An attempt in flight cannot be called back. A `once` task has nothing else to cancel; any
        // other task gets no further fires and no retry.
        if let Some(firing) = firing.filter(|_| !task.recurs()) {
            return self.answer(requester, Ok(Reply::Cancelled(firing)));
        }
        let mut decision = Decision::answering(requester);
        let task = decision.end_overlapping(task, FireEnd::Cancelled, now);
        let record = FireRecord::of(&task, FireEnd::Cancelled, now);
        decision.change(Change::Settle { record, next: None, was: Prior::of(&task) });
        decision.effects.push(Effect::Remove(task.id));
        decision.replies(Reply::Cancelled(firing.unwrap_or(Cancelled::Cancelled)));
        self.write(decision);
    }
}

/// Returns how a task ended that is not in the store any more, from the record of its last fire.
fn too_late(last: Option<Box<FireRecord>>) -> Result<Cancelled, EngineError> {
    let last = last.ok_or(EngineError::NotFound)?;
    let fired_at = last.attempts.first().map(|attempt| attempt.fired_at);
    match (last.end, fired_at) {
        (FireEnd::Cancelled, _) => Ok(Cancelled::Cancelled),
        (_, Some(fired_at)) => Ok(Cancelled::AlreadyFired(fired_at)),
        // It was replaced before it fired, and what replaced it left no record.
        (FireEnd::Replaced, None) => Err(EngineError::NotFound),
        // It expired, or its outcome is unknown, or its last fires were skipped.
        (_, None) => Ok(Cancelled::AlreadyFired(last.ended_at)),
    }
}
