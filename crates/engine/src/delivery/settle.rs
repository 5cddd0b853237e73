//! Settling: the outcome of an attempt is known, and the owner writes what becomes of the fire.
//!
//! Done, retry or dead letter is decided by [`settle`] of `core`. A fire is settled at most once
//! per epoch; the outcome of an attempt that is over changes nothing.

use punctual_core::{
    AttemptResult, DeadLetter, DeadReason, FireEnd, FireId, FireRecord, NextStep, Outcome, Reason,
    SettleContext, Task, TaskId, TaskState, Timestamp, Verdict, settle,
};
use punctual_store::{Change, Head, Prior};

use crate::commit::decision::{Decision, Effect};
use crate::delivery::attempt::Report;
use crate::delivery::claim::Claim;
use crate::delivery::deliver::without_overlapping;
use crate::handle::call::Requester;
use crate::handle::command::Subject;
use crate::handle::error::EngineError;
use crate::loaded::loaded_ref::LoadedRef;
use crate::loaded::tasks::LoadedPhase;
use crate::owner::Owner;

impl Owner {
    pub(crate) fn on_ended(&mut self, reports: Vec<Report>, now: Timestamp) {
        for report in self.tenure.keep_late(reports) {
            // A report that was passed on counts if its delivery was inherited.
            let inherited = || self.deliveries.inherited.remove(&report);
            let Some(route) = report.route().or_else(inherited) else {
                continue;
            };
            let is_recalled = report.is_recalled();
            report.close_permit();
            self.deliveries.lanes.ended(route.share, report.outcome.as_ref(), now);
            if !is_recalled {
                self.settle_at(route.task, report, now);
            }
        }
    }

    pub(crate) fn settle(&mut self, id: TaskId, report: Report, now: Timestamp) {
        self.settle_at(LoadedRef::without_slot(id), report, now);
    }

    fn settle_at(&mut self, at: LoadedRef, report: Report, now: Timestamp) {
        if let Some(claim) = self.deliveries.claims.get(report.fire_id) {
            let claim = claim.clone();
            return self.settle_claimed(claim, report, now);
        }
        let Some(loaded) = self.tasks.get_at(at) else { return };
        let id = at.id;
        if loaded.phase() == LoadedPhase::Deciding {
            return self.tasks.hold_report(id, report);
        }
        if loaded.is_overlapping_in_flight(report.fire_id.nominal_at) {
            return self.settle_overlapping(report, now);
        }
        let task = loaded.task();
        let present = task.fire().id == report.fire_id && loaded.phase() == LoadedPhase::Firing;
        if !present || task.attempt_next() != report.attempt {
            return;
        }
        let task = task.clone();
        let was = Prior::of(&task);
        let Report { fired_at, outcome, answer, .. } = report;
        let Some(outcome) = outcome else {
            // No attempt was made: the task waits in its lane again, unless it was paused
            // meanwhile.
            return match was.state {
                TaskState::Paused => self.tasks.unsent_while_paused(id),
                _ => self.enqueue(id, now),
            };
        };
        let callbacks = task.definition.callbacks.clone();
        let touched = task.touched_while_firing();
        let decision = match end_attempt(task, fired_at, AttemptResult { outcome, answer }, now) {
            AttemptEnd::Done(task) => {
                let next_step = self.count_skips(task.next_step(TaskState::Done, now));
                let record = FireRecord::of_ended(task, FireEnd::Done, now);
                let done = |next, was| Change::Settle { record, next, was };
                Decision::next_step(id, next_step, was, now, done)
            }
            AttemptEnd::Retry(task, _) if touched => Decision::touched_while_firing(&task, now),
            AttemptEnd::Retry(task, fire_at) => {
                let task = Task { fire_at, ..task }.earliest();
                let change = Change::Refile { task: task.clone(), was };
                Decision::own(change, Effect::file(task))
            }
            AttemptEnd::Dead(letter) => {
                let next_step = self.count_skips(letter.task.next_step(TaskState::Dead, now));
                let letter = DeadLetter { task: without_overlapping(letter.task), ..letter };
                let dead = |next, was| Change::Dead { letter, next, was };
                Decision::next_step(id, next_step, was, now, dead)
            }
        };
        self.write_end(decision, callbacks, now);
    }

    fn count_skips(&mut self, next_step: NextStep) -> NextStep {
        if let Some((_, skipped)) = &next_step.skipped {
            self.deliveries.skips.count(*skipped);
        }
        next_step
    }

    /// Settles a fire that overlaps the present one of its task.
    fn settle_overlapping(&mut self, report: Report, now: Timestamp) {
        let FireId { task: id, nominal_at } = report.fire_id;
        let Some(loaded) = self.tasks.get(id) else { return };
        let task = loaded.task().clone();
        let Some(before) = task.before_overlapping(nominal_at) else { return };
        if before.attempt_next() != report.attempt {
            return;
        }
        let Report { fired_at, outcome, answer, .. } = report;
        let Some(outcome) = outcome else {
            return self.tasks.overlapping_returned(id, nominal_at);
        };
        let result = AttemptResult { outcome, answer };
        let was = Prior::of(&task);
        let callbacks = task.definition.callbacks.clone();
        let task = Task { updated_at: now, ..task };
        let without = task.with_overlapping(nominal_at, None);
        let (change, updated) = match end_attempt(before, fired_at, result, now) {
            AttemptEnd::Done(before) => {
                let record = FireRecord::of(&before, FireEnd::Done, now);
                let next = Some(Box::new(without.clone().earliest()));
                (Change::Settle { record, next, was }, without)
            }
            AttemptEnd::Retry(before, fire_at) => {
                let retry = Task { fire_at, ..before }.as_overlapping();
                let task = task.with_overlapping(nominal_at, Some(retry));
                (Change::Refile { task: task.clone().earliest(), was }, task)
            }
            AttemptEnd::Dead(letter) => {
                let letter = DeadLetter { task: without_overlapping(letter.task), ..letter };
                let next = Some(Box::new(without.clone().earliest()));
                (Change::Dead { letter, next, was }, without)
            }
        };
        self.tasks.overlapping_ended(id, nominal_at);
        self.write_end(Decision::own(change, Effect::update(updated)), callbacks, now);
    }

    /// Settles an at-most-once fire. Its claim is a dead letter with an unknown outcome, which the
    /// outcome that is now known replaces.
    pub(crate) fn settle_claimed(&mut self, claim: Claim, report: Report, now: Timestamp) {
        let Claim { task, task_continues, callback, .. } = claim;
        let Report { fire_id, fired_at, outcome, answer, .. } = report;
        if outcome.is_none() {
            self.deliveries.claims.came_back(fire_id);
        }
        let namespace = task.definition.namespace.clone();
        let outcome = match (outcome, task_continues) {
            (Some(outcome), _) => outcome,
            (None, false) => {
                return match task.definition.key.clone() {
                    Some(key) => self.queue_put_back(Subject::Key(namespace, key), fire_id),
                    None => self.put_back(fire_id, None, None, now),
                };
            }
            // The task is before its next fire already, so this one is over.
            (None, true) => not_sent(),
        };
        let callbacks = task.definition.callbacks.clone();
        let state = if task_continues { TaskState::Firing } else { TaskState::Dead };
        let was = Prior::of(&task).in_state(state);
        let change = match end_attempt(task, fired_at, AttemptResult { outcome, answer }, now) {
            AttemptEnd::Done(task) => {
                let record = FireRecord::of(&task, FireEnd::Done, now);
                Change::Settle { record, next: None, was }
            }
            AttemptEnd::Retry(..) => unreachable!("an at-most-once fire is never retried"),
            AttemptEnd::Dead(letter) => Change::Dead { letter, next: None, was },
        };
        let mut decision = Decision::own(change, Effect::ReleaseClaim(fire_id));
        decision.end_provisional_callback(callback, &namespace, now);
        decision.changes.insert(0, Change::DeleteLetter { fire_id, namespace }.into());
        self.write_end(decision, callbacks, now);
    }

    /// Stores the task of a claimed fire again, because it was not sent. If another task was given
    /// its key since, it ends as if it had been replaced before it fired. It still counts as dead:
    /// the other task was answered and counted as a new one.
    pub(crate) fn put_back(
        &mut self,
        fire_id: FireId,
        subject: Option<Subject>,
        successor: Option<Head>,
        now: Timestamp,
    ) {
        let requester = Requester { reply: None, subject };
        let Some(Claim { task, callback, .. }) = self.deliveries.claims.get(fire_id).cloned()
        else {
            return self.answer(requester, Err(EngineError::NotFound));
        };
        let mut decision = Decision::answering(requester);
        decision.effects.push(Effect::ReleaseClaim(fire_id));
        decision.end_provisional_callback(callback, &task.definition.namespace, now);
        if successor.is_some() || self.deliveries.claims.is_key_reused(fire_id) {
            let namespace = task.definition.namespace.clone();
            let record = FireRecord::of(&task, FireEnd::Replaced, now);
            decision.change(Change::DeleteLetter { fire_id, namespace });
            let was = Prior::of(&task).in_state(TaskState::Firing);
            decision.change(Change::Settle { record, next: None, was });
        } else {
            decision.change(Change::Redrive { fire_id, task: task.clone() });
            decision.effects.push(Effect::file(task));
        }
        self.write(decision);
    }

    /// Ends a claimed fire that was not sent as a dead letter, because it is not known whether its
    /// key was given to another task.
    pub(crate) fn fail_unsent(&mut self, fire_id: FireId, now: Timestamp) {
        if let Some(claim) = self.deliveries.claims.get(fire_id).cloned() {
            let (attempt, fired_at) = (claim.task.attempt_next(), claim.fired_at);
            let report = Report::of(fire_id, attempt, fired_at, Some(not_sent()));
            self.settle_claimed(claim, report, now);
        }
    }
}

fn not_sent() -> Outcome {
    Outcome::Failed { reason: Reason::new("it was not sent"), retry_in: None }
}

/// What becomes of a fire after an attempt. The task has the attempt among its records.
enum AttemptEnd {
    Done(Task),
    Retry(Task, Timestamp),
    Dead(DeadLetter),
}

fn end_attempt(
    mut task: Task,
    fired_at: Timestamp,
    result: AttemptResult,
    now: Timestamp,
) -> AttemptEnd {
    let context = SettleContext {
        fire_id: task.fire().id,
        retry: &task.definition.retry,
        guarantee: task.definition.guarantee,
        expires_at: task.expires_at(),
    };
    let verdict = settle(task.attempt_since_redrive(), &result.outcome, &context, now);
    task.add_attempt(fired_at, now, result);
    match verdict {
        Verdict::Done => AttemptEnd::Done(task),
        Verdict::RetryAt(fire_at) => AttemptEnd::Retry(task, fire_at),
        Verdict::Dead(reason) => {
            log_dead(&task, reason);
            AttemptEnd::Dead(DeadLetter { task, died_at: now, reason })
        }
    }
}

fn log_dead(task: &Task, reason: DeadReason) {
    let namespace = task.definition.namespace.as_str();
    let attempts = task.attempt_next().get() - 1;
    tracing::warn!(namespace, fire = %task.fire().id, attempts, ?reason, "dead letter");
}
