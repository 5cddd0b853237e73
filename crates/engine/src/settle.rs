//! Settling: an attempt has an outcome; the verdict is written.
//!
//! In: [`Report`]s from couriers. Out: one decision each, by the pure [`settle`]. Invariant: a fire settles at
//! most once per epoch; an outcome of an attempt that is over changes nothing.

use punctual_core::{
    AttemptRecord, DeadLetter, DeadReason, FireEnd, FireId, FireRecord, Outcome, Task, TaskState,
    Terms, Timestamp, Verdict, settle,
};
use punctual_store::{Change, Head};
use smallvec::SmallVec;

use crate::command::{Asked, EngineError, Subject};
use crate::deliver::Report;
use crate::memory::Phase;
use crate::owner::Owner;
use crate::write::{Decision, Effect};

impl Owner {
    pub(crate) fn on_ended(&mut self, reports: Vec<Report>, now: Timestamp) {
        for report in reports {
            self.lanes.came_back(report.lane, report.outcome.as_ref());
            self.settle(report, now);
        }
    }

    pub(crate) fn settle(&mut self, report: Report, now: Timestamp) {
        if let Some(task) = self.claims.get(report.fire_id) {
            let task = task.clone();
            return self.settle_claimed(task, report, now);
        }
        let Some(loaded) = self.memory.get_mut(report.fire_id.task) else { return };
        let task = &loaded.task;
        if task.fire().id != report.fire_id || task.attempt_next() != report.attempt {
            return;
        }
        match loaded.phase {
            Phase::Firing => {}
            Phase::Leaving => {
                loaded.missed = Some(report);
                return;
            }
            Phase::Waiting | Phase::Queued => return,
        }
        let task = task.clone();
        let id = task.id;
        let was = task.state;
        let Some(outcome) = report.outcome else {
            // It was not sent: no attempt was made, and it stands in line again, unless it was paused meanwhile.
            return match was {
                TaskState::Paused => self.memory.remove(id),
                _ => self.enqueue(id, now),
            };
        };
        let next = task.next();
        let after = match &next {
            Some(next) => Effect::File(next.clone()),
            None => Effect::Leave(id),
        };
        let decision = match judge(task, report.fired_at, outcome, now) {
            Judged::Done(record) => Decision::own(Change::Settle { record, next, was }, after),
            Judged::Again(task) => {
                let change = Change::Refile { task: task.clone(), was };
                Decision::own(change, Effect::File(task))
            }
            Judged::Dead(letter) => Decision::own(Change::Dead { letter, next, was }, after),
        };
        self.write(decision);
    }

    /// It ended as a dead letter with an unknown outcome when it was claimed. Now the outcome is known, and another end takes the
    /// place of that one.
    fn settle_claimed(&mut self, task: Task, report: Report, now: Timestamp) {
        let fire_id = report.fire_id;
        let namespace = task.definition.namespace.clone();
        let Some(outcome) = report.outcome else {
            return match task.definition.key.clone() {
                Some(key) => self.queue_put_back(Subject::Key(namespace, key), fire_id),
                None => self.put_back(fire_id, None, None, now),
            };
        };
        let was = TaskState::Dead;
        let change = match judge(task, report.fired_at, outcome, now) {
            Judged::Done(record) => Change::Settle { record, next: None, was },
            Judged::Again(_) => unreachable!("at most once is never tried again"),
            Judged::Dead(letter) => Change::Dead { letter, next: None, was },
        };
        let changes = SmallVec::from_iter([Change::Forget { fire_id, namespace }, change]);
        let effects = SmallVec::from_iter([Effect::Unclaim(fire_id)]);
        self.write(Decision { changes, effects, ..Decision::default() });
    }

    /// A claimed fire was not sent, so it may be: its task is filed again, unless another was given its name, which is as if it
    /// had been replaced before it fired.
    pub(crate) fn put_back(
        &mut self,
        fire_id: FireId,
        subject: Option<Subject>,
        successor: Option<Head>,
        now: Timestamp,
    ) {
        let asked = Asked { reply: None, subject };
        let Some(task) = self.claims.get(fire_id).cloned() else {
            return self.answer(asked, Err(EngineError::NotFound));
        };
        let mut decision = Decision::answering(asked);
        decision.effects.push(Effect::Unclaim(fire_id));
        if successor.is_some() || self.claims.is_succeeded(fire_id) {
            let namespace = task.definition.namespace.clone();
            let record = FireRecord::of(&task, FireEnd::Replaced, now);
            decision.changes.push(Change::Forget { fire_id, namespace });
            decision.changes.push(Change::Settle { record, next: None, was: TaskState::Dead });
        } else {
            decision.changes.push(Change::Redrive { fire_id, task: task.clone() });
            decision.effects.push(Effect::File(task));
        }
        self.write(decision);
    }
}

/// What becomes of a task.
enum Judged {
    Done(FireRecord),
    Again(Task),
    Dead(DeadLetter),
}

fn judge(mut task: Task, fired_at: Timestamp, outcome: Outcome, now: Timestamp) -> Judged {
    let terms = Terms {
        fire_id: task.fire().id,
        retry: &task.definition.retry,
        guarantee: task.definition.guarantee,
        expires_at: task.expires_at(),
    };
    let verdict = settle(task.attempt_next(), &outcome, &terms, now);
    task.attempts.push(AttemptRecord { fired_at, ended_at: now, outcome });
    match verdict {
        Verdict::Done => Judged::Done(FireRecord::of(&task, FireEnd::Done, now)),
        Verdict::RetryAt(fire_at) => Judged::Again(Task { fire_at, ..task }),
        Verdict::Dead(reason) => {
            log_dead(&task, reason);
            Judged::Dead(DeadLetter { task, died_at: now, reason })
        }
    }
}

fn log_dead(task: &Task, reason: DeadReason) {
    let namespace = task.definition.namespace.as_str();
    let attempts = task.attempts.len();
    tracing::warn!(namespace, fire = %task.fire().id, attempts, ?reason, "dead letter");
}
