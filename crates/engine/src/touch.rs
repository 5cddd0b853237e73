//! Touching: the next fire of a task is moved.
//!
//! In: where the task stands, and where to. Out: a small postponement when it is moved later and nothing else about it changes; otherwise
//! it is filed anew. Invariant: after the answer no fire of before happens.
//! Not here: creating what is missing (`schedule`).

use punctual_core::{AttemptNo, Due, Schedule, Task, TaskState, Timestamp};
use punctual_store::{Change, Head};

use crate::command::{Answer, Asked, Command, EngineError, Push};
use crate::look::Sight;
use crate::memory::Phase;
use crate::owner::Owner;
use crate::write::{Decision, Effect};

impl Owner {
    pub(crate) fn touch(&mut self, push: Push, asked: Asked, sight: Sight, now: Timestamp) {
        let Some(head) = sight.head else {
            return self.answer(asked, Err(EngineError::NotFound));
        };
        let fire_at = match self.moved_to(&head, push, now) {
            Ok(fire_at) => fire_at,
            Err(error) => return self.answer(asked, Err(error)),
        };
        let postponed = fire_at > head.fire_at && head.fire_at == head.nominal_at;
        match (postponed, sight.task, &asked.subject) {
            (true, _, Some(subject)) => {
                let namespace = subject.namespace().clone();
                let (id, version) = (head.id, head.version.next());
                let mut decision = Decision::answering(asked);
                decision.changes.push(Change::Postpone { id, fire_at, version });
                decision.effects.push(Effect::Postpone { namespace, id, fire_at, version });
                decision.answer = Some(Answer::Touched { fire_at, version });
                self.write(decision);
            }
            (_, Some(task), _) => self.move_whole(task, fire_at, asked),
            // Filing anew takes the whole task.
            (_, None, Some(subject)) => {
                let subject = subject.clone();
                self.look_deeper(Command::Touch(subject.clone(), push), asked.reply, subject);
            }
            (_, None, None) => self.answer(asked, Err(EngineError::NotFound)),
        }
    }

    fn moved_to(&self, head: &Head, push: Push, now: Timestamp) -> Result<Timestamp, EngineError> {
        if self.memory.phase(head.id).is_some_and(Phase::is_firing) {
            let attempt = self.memory.get(head.id).map(|loaded| loaded.task.attempt_next());
            return Err(EngineError::Firing(attempt.unwrap_or(AttemptNo::FIRST)));
        }
        if head.state == TaskState::Paused {
            return Err(EngineError::Paused);
        }
        let due = match (push, &head.schedule) {
            (Push::To(due), _) => due,
            (Push::Within, Schedule::Watch { within }) => Due::In(*within),
            (Push::Within, _) => return Err(EngineError::NoWatch),
        };
        Ok(due.resolve(now))
    }

    /// Earlier than before, or while a retry waits: a new fire from the first attempt on.
    fn move_whole(&mut self, task: Task, fire_at: Timestamp, asked: Asked) {
        let was = task.state;
        let version = task.version.next();
        let moved = Task { fire_at, nominal_at: fire_at, version, attempts: Vec::new(), ..task };
        let mut decision = Decision::answering(asked);
        decision.changes.push(Change::Refile { task: moved.clone(), was });
        decision.effects.push(Effect::File(moved));
        decision.answer = Some(Answer::Touched { fire_at, version });
        self.write(decision);
    }
}
