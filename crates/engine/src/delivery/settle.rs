//! Settling: an attempt has an outcome; the verdict is written.
//!
//! In: [`Report`]s from couriers. Out: one decision each, by the pure [`settle`]. Invariant: a fire settles at
//! most once per epoch; an outcome of an attempt that is over changes nothing.

use punctual_core::{
    AttemptRecord, DeadLetter, DeadReason, FireEnd, FireId, FireRecord, NextStep, Outcome, Reason,
    SettleContext, Task, TaskState, Timestamp, Verdict, settle,
};
use punctual_store::{Change, Head};

use crate::commit::writer::{Decision, Effect};
use crate::delivery::claim::Claim;
use crate::delivery::deliver::{Report, alone};
use crate::handle::command::{Asked, EngineError, Subject};
use crate::loaded::tasks::Phase;
use crate::owner::Owner;

impl Owner {
    pub(crate) fn on_ended(&mut self, reports: Vec<Report>, now: Timestamp) {
        for report in self.unless_late(reports) {
            // One that is passed on counts if its delivery is known to be under way.
            let Some(lane) = report.lane.or_else(|| self.inherited.end(&report)) else {
                continue;
            };
            self.lanes.came_back(lane, report.outcome.as_ref());
            self.settle(report, now);
        }
    }

    pub(crate) fn settle(&mut self, report: Report, now: Timestamp) {
        if let Some(claim) = self.claims.get(report.fire_id) {
            let claim = claim.clone();
            return self.settle_claimed(claim, report, now);
        }
        let FireId { task: id, nominal_at } = report.fire_id;
        let Some(loaded) = self.memory.get_mut(id) else { return };
        if loaded.phase == Phase::Leaving {
            return loaded.missed.push(report);
        }
        if loaded.in_flight.contains(&nominal_at) {
            return self.settle_aside(report, now);
        }
        let task = &loaded.task;
        let present = task.nominal_at == nominal_at && loaded.phase == Phase::Firing;
        if !present || task.attempt_next() != report.attempt {
            return;
        }
        let task = task.clone();
        let was = task.state;
        let Some(outcome) = report.outcome else {
            // It was not sent: no attempt was made, and it stands in line again, unless it was paused meanwhile.
            return match was {
                TaskState::Paused => self.memory.put_down(id),
                _ => self.enqueue(id, now),
            };
        };
        let over = task.touched_while_firing();
        let decision = match judge(task, report.fired_at, outcome, now) {
            Judged::Done(task) => {
                let next_step = self.count_skips(task.next_step(TaskState::Done, now));
                let record = FireRecord::of_ended(task, FireEnd::Done, now);
                let done = |next, was| Change::Settle { record, next, was };
                Decision::next_step(id, next_step, was, now, done)
            }
            Judged::Again(task, _) if over => Decision::silent_no_more(&task, now),
            Judged::Again(task, fire_at) => {
                let task = Task { fire_at, ..task }.earliest();
                let change = Change::Refile { task: task.clone(), was };
                Decision::own(change, Effect::file(task))
            }
            Judged::Dead(letter) => {
                let next_step = self.count_skips(letter.task.next_step(TaskState::Dead, now));
                let letter = DeadLetter { task: alone(letter.task), ..letter };
                let dead = |next, was| Change::Dead { letter, next, was };
                Decision::next_step(id, next_step, was, now, dead)
            }
        };
        self.write(decision);
    }

    fn count_skips(&mut self, next_step: NextStep) -> NextStep {
        if let Some((_, skipped)) = &next_step.skipped {
            self.skips.count(*skipped);
        }
        next_step
    }

    /// A fire that another of its task has come up to is over, or waits for another attempt.
    fn settle_aside(&mut self, report: Report, now: Timestamp) {
        let FireId { task: id, nominal_at } = report.fire_id;
        let Some(loaded) = self.memory.get(id) else { return };
        let task = loaded.task.clone();
        let Some(before) = task.before_overlapping(nominal_at) else { return };
        if before.attempt_next() != report.attempt {
            return;
        }
        let Some(outcome) = report.outcome else {
            return self.memory.returned(id, nominal_at);
        };
        let was = task.state;
        let over = task.with_aside(nominal_at, None);
        let (change, stands) = match judge(before, report.fired_at, outcome, now) {
            Judged::Done(before) => {
                let record = FireRecord::of(&before, FireEnd::Done, now);
                let next = Some(over.clone().earliest());
                (Change::Settle { record, next, was }, over)
            }
            Judged::Again(before, fire_at) => {
                let again = Task { fire_at, ..before }.as_aside();
                let task = task.with_aside(nominal_at, Some(again));
                (Change::Refile { task: task.clone().earliest(), was }, task)
            }
            Judged::Dead(letter) => {
                let letter = DeadLetter { task: alone(letter.task), ..letter };
                let next = Some(over.clone().earliest());
                (Change::Dead { letter, next, was }, over)
            }
        };
        if let Some(loaded) = self.memory.get_mut(id) {
            loaded.in_flight.retain(|at| *at != nominal_at);
        }
        self.write(Decision::own(change, Effect::stand(stands)));
    }

    /// It ended as a dead letter with an unknown outcome when it was claimed. Now the outcome is known, and another end takes the
    /// place of that one.
    fn settle_claimed(&mut self, claim: Claim, report: Report, now: Timestamp) {
        let Claim { task, task_continues, .. } = claim;
        let fire_id = report.fire_id;
        let namespace = task.definition.namespace.clone();
        let outcome = match (report.outcome, task_continues) {
            (Some(outcome), _) => outcome,
            (None, false) => {
                return match task.definition.key.clone() {
                    Some(key) => self.queue_put_back(Subject::Key(namespace, key), fire_id),
                    None => self.put_back(fire_id, None, None, now),
                };
            }
            // The task stands before another fire already, so this one is over.
            (None, true) => {
                Outcome::Failed { reason: Reason::new("it was not sent"), retry_in: None }
            }
        };
        let was = if task_continues { TaskState::Firing } else { TaskState::Dead };
        let change = match judge(task, report.fired_at, outcome, now) {
            Judged::Done(task) => {
                let record = FireRecord::of(&task, FireEnd::Done, now);
                Change::Settle { record, next: None, was }
            }
            Judged::Again(..) => unreachable!("at most once is never tried again"),
            Judged::Dead(letter) => Change::Dead { letter, next: None, was },
        };
        let mut decision = Decision::own(change, Effect::Unclaim(fire_id));
        decision.changes.insert(0, Change::Forget { fire_id, namespace }.into());
        self.write(decision);
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
        let Some(Claim { task, .. }) = self.claims.get(fire_id).cloned() else {
            return self.answer(asked, Err(EngineError::NotFound));
        };
        let mut decision = Decision::answering(asked);
        decision.effects.push(Effect::Unclaim(fire_id));
        if successor.is_some() || self.claims.is_succeeded(fire_id) {
            let namespace = task.definition.namespace.clone();
            let record = FireRecord::of(&task, FireEnd::Replaced, now);
            decision.change(Change::Forget { fire_id, namespace });
            decision.change(Change::Settle { record, next: None, was: TaskState::Dead });
        } else {
            decision.change(Change::Redrive { fire_id, task: task.clone() });
            decision.effects.push(Effect::file(task));
        }
        self.write(decision);
    }
}

/// What becomes of a fire, with the task before it and the attempt that was made.
enum Judged {
    Done(Task),
    Again(Task, Timestamp),
    Dead(DeadLetter),
}

fn judge(mut task: Task, fired_at: Timestamp, outcome: Outcome, now: Timestamp) -> Judged {
    let terms = SettleContext {
        fire_id: task.fire().id,
        retry: &task.definition.retry,
        guarantee: task.definition.guarantee,
        expires_at: task.expires_at(),
    };
    let verdict = settle(task.attempt_next(), &outcome, &terms, now);
    // Most fires have one.
    task.attempts.reserve_exact(1);
    task.attempts.push(AttemptRecord { fired_at, ended_at: now, outcome });
    match verdict {
        Verdict::Done => Judged::Done(task),
        Verdict::RetryAt(fire_at) => Judged::Again(task, fire_at),
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
