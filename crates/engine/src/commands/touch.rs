//! Touching: the next fire of a task is moved.
//!
//! In: where the task stands, and where to. Out: a small postponement when it is moved later and nothing else about it changes; otherwise
//! it is filed anew. Invariant: after the answer no fire of before happens.
//! Not here: creating what is missing (`schedule`).

use punctual_core::{AttemptNo, Due, FireEnd, FireRecord, Schedule, Task, TaskState, Timestamp};
use punctual_store::{Change, Head};

use crate::commands::lookup::FoundTask;
use crate::commit::writer::{Decision, Effect};
use crate::handle::command::{Asked, Command, EngineError, Push, Reply};
use crate::owner::Owner;

impl Owner {
    pub(crate) fn touch(&mut self, push: Push, asked: Asked, sight: FoundTask, now: Timestamp) {
        let Some(head) = sight.head else {
            return self.answer(asked, Err(EngineError::NotFound));
        };
        let due = match self.due(&head, push) {
            Ok(due) => due,
            Err(error) => return self.answer(asked, Err(error)),
        };
        match (sight.task, &asked.subject) {
            (_, Some(subject)) if self.is_simple(&head, due, now) => {
                let namespace = subject.namespace().clone();
                let (id, version) = (head.id, head.version.next());
                let fire_at = due.resolve(now);
                let mut decision = Decision::answering(asked);
                decision.change(Change::Postpone { id, fire_at, version });
                decision.effects.push(Effect::Postpone { namespace, id, fire_at, version });
                decision.answers(Reply::Touched { fire_at, version });
                self.write(decision);
            }
            (Some(task), _) => match task.definition.schedule {
                Schedule::Watch { .. } => self.touch_watch(&task, due, asked, now),
                _ => self.move_whole(task, due.resolve(now), asked),
            },
            // Filing anew takes the whole task.
            (None, Some(subject)) => {
                let subject = subject.clone();
                self.look_deeper(Command::Touch(subject.clone(), push), asked.reply, subject);
            }
            (None, None) => self.answer(asked, Err(EngineError::NotFound)),
        }
    }

    /// By how much, unless it cannot be touched.
    fn due(&self, head: &Head, push: Push) -> Result<Due, EngineError> {
        let watch = matches!(head.schedule, Schedule::Watch { .. });
        if self.memory.is_firing(head.id) && !watch {
            let attempt = self.memory.get(head.id).map(|loaded| loaded.task.attempt_next());
            return Err(EngineError::Firing(attempt.unwrap_or(AttemptNo::FIRST)));
        }
        if head.state == TaskState::Paused {
            return Err(EngineError::Paused);
        }
        match (push, &head.schedule) {
            (_, Schedule::Every { .. } | Schedule::Cron { .. }) => Err(EngineError::NoTouch),
            (Push::To(due), _) => Ok(due),
            (Push::Within, Schedule::Watch { within, .. }) => Ok(Due::In(*within)),
            (Push::Within, Schedule::Once(_)) => Err(EngineError::NoWatch),
        }
    }

    /// Whether it is put off and nothing else about it changes: its time has not come, and no limit is near.
    fn is_simple(&self, head: &Head, due: Due, now: Timestamp) -> bool {
        let limited = matches!(head.schedule, Schedule::Watch { postpone_max: Some(_), .. });
        let waits = head.state == TaskState::Scheduled && !self.memory.is_firing(head.id);
        let ahead = head.fire_at == head.nominal_at
            && (head.fire_at > now || matches!(head.schedule, Schedule::Once(_)));
        waits && ahead && !limited && due.resolve(now) > head.fire_at
    }

    /// A watch whose time has come, that has fired, or that touches cannot put off for ever.
    fn touch_watch(&mut self, task: &Task, due: Due, asked: Asked, now: Timestamp) {
        let until = match due {
            Due::In(within) => task.touched_until(within, now),
            Due::At(at) => at,
        };
        let was = task.state;
        let version = task.version.next();
        let mut decision = Decision::answering(asked);
        decision.answers(Reply::Touched { fire_at: until, version });
        if self.memory.is_firing(task.id) {
            // The attempt goes on; the watch is armed when it is over.
            let (resumes_at, armed_at) = (Some(until), Some(now));
            let task = Task { resumes_at, armed_at, version, ..task.clone() };
            decision.change(Change::Refile { task: task.clone(), was });
            decision.effects.push(Effect::stand(task));
            return self.write(decision);
        }
        let touched = Task { version, ..task.touched(until, now) };
        let given_up = !task.attempts.is_empty() && touched.nominal_at != task.nominal_at;
        let change = if given_up {
            // It was to be told that it is silent, and is not silent any more.
            let record = FireRecord::of(task, FireEnd::Replaced, now);
            Change::Settle { record, next: Some(touched.clone()), was }
        } else {
            Change::Refile { task: touched.clone(), was }
        };
        decision.change(change);
        decision.effects.push(Effect::file(touched));
        self.write(decision);
    }

    /// Earlier than before, or while a retry waits: a new fire from the first attempt on.
    fn move_whole(&mut self, task: Task, fire_at: Timestamp, asked: Asked) {
        let was = task.state;
        let version = task.version.next();
        let moved = Task { fire_at, nominal_at: fire_at, version, attempts: Vec::new(), ..task };
        let mut decision = Decision::answering(asked);
        decision.change(Change::Refile { task: moved.clone(), was });
        decision.effects.push(Effect::file(moved));
        decision.answers(Reply::Touched { fire_at, version });
        self.write(decision);
    }
}
