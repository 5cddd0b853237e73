//! Cancelling: a task is stopped before its next fire, or the answer says why not.
//!
//! In: what the store and memory know of the task. Out: a decision, or the truth at once: it is firing, it has fired, there is none.
//! Invariant: `cancelled` is answered only after it is durable, and then the task never fires.

use punctual_core::{AttemptNo, FireEnd, FireRecord, Guarantee, Timestamp};
use punctual_store::Change;

use crate::command::{Cancelled, EngineError, Reply, Subject};
use crate::event::Sight;
use crate::memory::Phase;
use crate::owner::Owner;
use crate::write::{Decision, Effect};

impl Owner {
    pub(crate) fn cancel(
        &mut self,
        reply: Reply<Cancelled>,
        subject: Option<Subject>,
        sight: Sight,
        now: Timestamp,
    ) {
        if let Some(attempt) = self.claimed(subject.as_ref()) {
            reply.send(Ok(Cancelled::Firing(attempt)));
            return self.answered(subject);
        }
        let Some(task) = sight.task else {
            let answer = match sight.last {
                Some(FireRecord { end: FireEnd::Cancelled, .. }) => Ok(Cancelled::Cancelled),
                Some(record) => match record.attempts.last() {
                    Some(attempt) => Ok(Cancelled::AlreadyFired(attempt.fired_at)),
                    None => Err(EngineError::NotFound),
                },
                None => Err(EngineError::NotFound),
            };
            reply.send(answer);
            return self.answered(subject);
        };
        if self.memory.phase(task.id) == Some(Phase::Firing) {
            reply.send(Ok(Cancelled::Firing(task.attempt_next())));
            return self.answered(subject);
        }
        let record = FireRecord::of(&task, FireEnd::Cancelled, now);
        let changes = vec![Change::Settle { record, next: None, was: task.state }];
        let mut effects = vec![Effect::Leave(task.id), Effect::Cancelled(reply)];
        effects.extend(subject.map(Effect::Free));
        self.write(Decision { changes, effects });
    }

    /// The attempt under way of a task that may be received at most once: the store has it as a dead
    /// letter already, whose outcome only memory waits for.
    fn claimed(&self, subject: Option<&Subject>) -> Option<AttemptNo> {
        let id = match subject? {
            Subject::Id(id) => *id,
            key @ Subject::Key(..) => *self.claims.get(key)?,
        };
        let loaded = self.memory.get(id)?;
        let claims = loaded.task.definition.guarantee == Guarantee::AtMostOnce;
        (claims && loaded.phase == Phase::Firing).then(|| loaded.task.attempt_next())
    }
}
