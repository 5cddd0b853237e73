//! Touching: the next fire of a task is moved.
//!
//! If a task is only moved to a later time, a small change is written; otherwise the whole task is.
//! A caller that wants the task afterwards sends a read with the touch; the task is then read once,
//! before the touch.
//! After the reply, no fire at the old time happens.

use punctual_core::{
    AttemptNo, Due, FireEnd, FireRecord, Occasion, Schedule, Task, TaskState, Timestamp,
};
use punctual_store::{Change, Head, Prior};

use crate::commands::lookup::FoundTask;
use crate::commit::decision::{Decision, Effect};
use crate::handle::call::Requester;
use crate::handle::command::{Command, TouchTo};
use crate::handle::error::EngineError;
use crate::handle::reply::Reply;
use crate::owner::Owner;

impl Owner {
    pub(crate) fn touch(
        &mut self,
        push: TouchTo,
        requester: Requester,
        found: FoundTask,
        now: Timestamp,
    ) {
        let head = found.head.or_else(|| found.task.as_ref().map(Head::of));
        let Some(head) = head else {
            let subject = requester.subject.as_ref();
            let claimed = subject.and_then(|it| self.deliveries.claimed_attempt(it));
            let error = claimed.map_or(EngineError::NotFound, EngineError::Firing);
            return self.answer(requester, Err(error));
        };
        let due = match self.touched_due(&head, push) {
            Ok(due) => due,
            Err(error) => return self.answer(requester, Err(error)),
        };
        match (found.task, &requester.subject) {
            (task, Some(subject)) if self.only_postpones(&head, due, now) => {
                let namespace = subject.namespace().clone();
                let (id, version) = (head.id, head.version.next());
                let (fire_at, was) = (due.resolve(now), Prior::of_head(&head));
                let mut decision = Decision::answering(requester);
                let (updated_at, of) = (now, namespace.clone());
                decision.change(Change::Postpone {
                    id,
                    namespace: of,
                    fire_at,
                    version,
                    updated_at,
                    was,
                });
                decision.effects.push(Effect::Postpone(namespace));
                decision.replies(Reply::Touched { fire_at, version });
                decision.task_after = task.map(|task| {
                    let nominal_at = fire_at;
                    Task { fire_at, nominal_at, version, updated_at, ..task }.into()
                });
                self.write(decision);
            }
            (Some(task), _) => match task.definition.schedule {
                Schedule::Watch { .. } => self.touch_watch(&task, due, requester, now),
                _ => self.move_whole(task, due.resolve(now), requester, now),
            },
            (None, Some(subject)) => {
                let subject = subject.clone();
                let command = Command::Touch(subject.clone(), push);
                self.look_up_whole(command, requester.reply, subject);
            }
            (None, None) => self.answer(requester, Err(EngineError::NotFound)),
        }
    }

    /// Returns the new due time, or why the task cannot be touched.
    fn touched_due(&self, head: &Head, push: TouchTo) -> Result<Due, EngineError> {
        let watch = matches!(head.schedule, Schedule::Watch { .. });
        if self.tasks.is_firing(head.id) && !watch {
            let attempt = self.tasks.get(head.id).map(|loaded| loaded.task().attempt_next());
            return Err(EngineError::Firing(attempt.unwrap_or(AttemptNo::FIRST)));
        }
        if head.state == TaskState::Paused {
            return Err(EngineError::Paused);
        }
        match (push, &head.schedule) {
            (_, Schedule::Every { .. } | Schedule::Cron { .. }) => Err(EngineError::NotTouchable),
            (TouchTo::To(due), _) => Ok(due),
            (TouchTo::Within, Schedule::Watch { within, .. }) => Ok(Due::In(*within)),
            (TouchTo::Within, Schedule::Once(_)) => Err(EngineError::NotAWatch),
        }
    }

    /// Whether the task is only moved to a later time: it waits for the first attempt of the fire
    /// of its schedule, and no limit of the schedule applies. A task that is due may have a manual
    /// fire, which is not moved.
    fn only_postpones(&self, head: &Head, due: Due, now: Timestamp) -> bool {
        let limited = matches!(head.schedule, Schedule::Watch { postpone_max: Some(_), .. });
        let waits = head.state == TaskState::Scheduled && !self.tasks.is_firing(head.id);
        let loaded = self.tasks.get(head.id);
        let is_scheduled = loaded.is_none_or(|it| it.task().occasion == Occasion::Due);
        let ahead = head.fire_at == head.nominal_at && head.fire_at > now && is_scheduled;
        waits && ahead && !limited && due.resolve(now) > head.fire_at
    }

    /// Touches a watch that is due, has fired, or has a limit on its postponement.
    fn touch_watch(&mut self, task: &Task, due: Due, requester: Requester, now: Timestamp) {
        let until = match due {
            Due::In(within) => task.touched_until(within, now),
            Due::At(at) => at,
        };
        let was = Prior::of(task);
        let version = task.version.next();
        let mut decision = Decision::answering(requester);
        decision.replies(Reply::Touched { fire_at: until, version });
        if self.tasks.is_firing(task.id) {
            // The attempt continues; the watch is armed when it has ended.
            let (resumes_at, armed_at) = (Some(until), Some(now));
            let task = Task { resumes_at, armed_at, version, updated_at: now, ..task.clone() };
            decision.change(Change::Refile { task: task.clone(), was });
            decision.effects.push(Effect::update(task));
            return self.write(decision);
        }
        let touched = Task { version, ..task.touched(until, now) };
        let given_up = !task.attempts.is_empty() && touched.nominal_at != task.nominal_at;
        let change = if given_up {
            // A retry was pending, and the watch is not silent any more.
            let record = FireRecord::of(task, FireEnd::Replaced, now);
            Change::Settle { record, next: Some(Box::new(touched.clone())), was }
        } else {
            Change::Refile { task: touched.clone(), was }
        };
        decision.change(change);
        decision.effects.push(Effect::file(touched));
        self.write(decision);
    }

    /// Moves a task to an earlier time, or while a retry is pending: that is another fire, which
    /// starts with its first attempt.
    fn move_whole(&mut self, task: Task, fire_at: Timestamp, requester: Requester, now: Timestamp) {
        let was = Prior::of(&task);
        let version = task.version.next();
        let moved = Task { version, updated_at: now, ..task.moved(fire_at) };
        let mut decision = Decision::answering(requester);
        decision.change(Change::Refile { task: moved.clone(), was });
        decision.effects.push(Effect::file(moved));
        decision.replies(Reply::Touched { fire_at, version });
        self.write(decision);
    }
}
