//! Settling: an attempt has an outcome; the verdict is written.
//!
//! In: [`Report`]s from couriers. Out: one decision each, by the pure [`settle`]. Invariant: a fire settles at
//! most once per epoch; an outcome of an attempt that is over changes nothing.

use punctual_core::{
    AttemptRecord, DeadLetter, DeadReason, FireEnd, FireRecord, Outcome, Task, TaskState, Terms,
    Timestamp, Verdict, settle,
};
use punctual_store::Change;
use smallvec::SmallVec;

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
            // It was not sent: no attempt was made, and it stands in line again.
            return self.enqueue(id, now);
        };
        let decision = match judge(task, report.fired_at, outcome, now) {
            Judged::Done(record) => {
                Decision::own(Change::Settle { record, next: None, was }, Effect::Leave(id))
            }
            Judged::Again(task) => {
                let change = Change::Refile { task: task.clone(), was };
                Decision::own(change, Effect::File(task))
            }
            Judged::Dead(letter) => {
                Decision::own(Change::Dead { letter, next: None, was }, Effect::Leave(id))
            }
        };
        self.write(decision);
    }

    /// It ended as a dead letter with an unknown outcome when it was claimed. Now the outcome is known, and another end takes the
    /// place of that one.
    fn settle_claimed(&mut self, task: Task, report: Report, now: Timestamp) {
        let fire_id = report.fire_id;
        let namespace = task.definition.namespace.clone();
        let was = TaskState::Dead;
        let mut effects = SmallVec::from([Effect::Unclaim(fire_id)]);
        let judged = match report.outcome {
            Some(outcome) => judge(task, report.fired_at, outcome, now),
            // It was not sent, so it may be.
            None => Judged::Again(task),
        };
        let change = match judged {
            Judged::Done(record) => Change::Settle { record, next: None, was },
            Judged::Again(task) => {
                effects.push(Effect::File(task.clone()));
                Change::Redrive { fire_id, task }
            }
            Judged::Dead(letter) => Change::Dead { letter, next: None, was },
        };
        let mut changes = SmallVec::new();
        if !matches!(change, Change::Redrive { .. }) {
            changes.push(Change::Forget { fire_id, namespace });
        }
        changes.push(change);
        self.write(Decision { changes, effects, ..Decision::default() });
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
