//! Settling: an attempt has an outcome; the verdict is written.
//!
//! In: [`Outcome`]s from couriers. Out: one decision each, by the pure [`settle`]. Invariant: a fire settles at
//! most once per epoch; an outcome of an attempt that is over changes nothing.

use punctual_core::{
    AttemptRecord, DeadLetter, DeadReason, FireEnd, FireRecord, Guarantee, Outcome, Task,
    TaskState, Terms, Timestamp, Verdict, settle,
};
use punctual_store::Change;

use crate::deliver::Delivery;
use crate::memory::Phase;
use crate::owner::Owner;
use crate::write::{Decision, Effect};

impl Owner {
    pub(crate) fn on_ended(&mut self, delivery: Delivery, outcome: Outcome, now: Timestamp) {
        self.came_back(&delivery.definition, now);
        self.settle(delivery, outcome, now);
    }

    pub(crate) fn settle(&mut self, delivery: Delivery, outcome: Outcome, now: Timestamp) {
        let attempt = delivery.attempt;
        let Some(loaded) = self.memory.get_mut(delivery.fire_id.task) else { return };
        let task = &loaded.task;
        let same = task.fire().id == delivery.fire_id && task.attempt_next() == attempt;
        match loaded.phase {
            Phase::Firing if same => {}
            Phase::Leaving if same => {
                loaded.missed = Some((delivery, outcome));
                return;
            }
            _ => return,
        }
        let fired_at = loaded.fired_at;
        let mut task = loaded.task.clone();
        let terms = Terms {
            fire_id: task.fire().id,
            retry: &task.definition.retry,
            guarantee: task.definition.guarantee,
            expires_at: task.expires_at(),
        };
        let verdict = settle(attempt, &outcome, &terms, now);
        task.attempts.push(AttemptRecord { fired_at, ended_at: now, outcome });
        self.write(decision(task, verdict, now));
    }
}

fn decision(task: Task, verdict: Verdict, now: Timestamp) -> Decision {
    let id = task.id;
    let mut was = task.state;
    let mut changes = Vec::with_capacity(2);
    if task.definition.guarantee == Guarantee::AtMostOnce {
        // It ended as a dead letter with an unknown outcome when it was claimed. Now the outcome is known,
        // and another end takes the place of that one.
        let namespace = task.definition.namespace.clone();
        changes.push(Change::Forget { fire_id: task.fire().id, namespace });
        was = TaskState::Dead;
    }
    let effect = match verdict {
        Verdict::Done => {
            let record = FireRecord::of(&task, FireEnd::Done, now);
            changes.push(Change::Settle { record, next: None, was });
            Effect::Leave(id)
        }
        Verdict::RetryAt(fire_at) => {
            let task = Task { fire_at, ..task };
            changes.push(Change::Refile { task: task.clone(), was });
            Effect::File(task)
        }
        Verdict::Dead(reason) => {
            log_dead(&task, reason);
            let letter = DeadLetter { task, died_at: now, reason };
            changes.push(Change::Dead { letter, next: None, was });
            Effect::Leave(id)
        }
    };
    Decision { changes, effects: vec![effect] }
}

fn log_dead(task: &Task, reason: DeadReason) {
    let namespace = task.definition.namespace.as_str();
    let attempts = task.attempts.len();
    tracing::warn!(namespace, fire = %task.fire().id, attempts, ?reason, "dead letter");
}
