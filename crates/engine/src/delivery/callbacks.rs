//! Callbacks: the end of a fire is reported by a task of its own.
//!
//! The callback is created in the batch that ends the fire as done or as a dead letter, so that no
//! crash separates the two, and each end has exactly one. From then on it is a task like any other
//! (`core/task/callback`).
//!
//! The claim of an at-most-once fire is a dead letter before it is known how the fire ends. Its
//! *provisional callback* is created with it and becomes due when the attempt must be over. The
//! owner that has the claim holds it back; the decision that ends the claim removes it and reports
//! the actual end, if there is one. After a crash the next owner has no claim, and sends it.

use std::sync::Arc;
use std::time::Duration;

use punctual_core::{
    Callbacks, DeadLetter, FireEnd, FireId, FireRecord, Labels, Namespace, NewTask, Occasion, Task,
    TaskId, TaskKind, TaskState, Timestamp,
};
use punctual_store::{Change, Prior};

use crate::commit::decision::{Decision, Effect};
use crate::handle::command::Command;
use crate::handle::error::EngineError;
use crate::handle::reply::{Cancelled, Reply};
use crate::owner::Owner;

/// How much longer than its timeout an at-most-once attempt may take, before a report of its
/// unknown outcome is due.
const OUTCOME_SLACK: Duration = Duration::from_secs(5);

/// The epoch has no task ids left.
pub(crate) struct NoIdLeft;

impl Owner {
    /// Writes a decision that may end a fire of a task with these callbacks, and the callback that
    /// reports the end.
    pub(crate) fn write_end(
        &mut self,
        mut decision: Decision,
        callbacks: Option<Arc<Callbacks>>,
        now: Timestamp,
    ) {
        if let Some(callbacks) = callbacks
            && self.add_callback(&mut decision, &callbacks, now, now).is_err()
        {
            return self.stop_out_of_ids();
        }
        self.write(decision);
    }

    /// Adds the provisional callback of a claim to the decision that makes the claim. Returns its
    /// id.
    pub(crate) fn add_provisional_callback(
        &mut self,
        decision: &mut Decision,
        definition: &NewTask,
        now: Timestamp,
    ) -> Result<Option<TaskId>, NoIdLeft> {
        let due = now.after(definition.timeout).after(OUTCOME_SLACK);
        match &definition.callbacks {
            Some(callbacks) => self.add_callback(decision, callbacks, due, now),
            None => Ok(None),
        }
    }

    /// Adds the callback of the fire that a decision ends, if its end is to be reported. Returns
    /// its id.
    fn add_callback(
        &mut self,
        decision: &mut Decision,
        callbacks: &Callbacks,
        due: Timestamp,
        now: Timestamp,
    ) -> Result<Option<TaskId>, NoIdLeft> {
        for change in decision.changes.clone() {
            let Some(end) = end_of(&change) else { continue };
            let Some(target) = callbacks.target_of(end) else { continue };
            let id = self.tenure.next_id(due).ok_or(NoIdLeft)?;
            let callback = match &*change {
                Change::Settle { record, .. } => {
                    record.callback(target, id, self.render_record, now)
                }
                Change::Dead { letter: DeadLetter { task, died_at, .. }, .. } => {
                    let record = FireRecord::of(task, end, *died_at);
                    record.callback(target, id, self.render_record, now)
                }
                _ => continue,
            };
            decision.put(callback);
            return Ok(Some(id));
        }
        Ok(None)
    }

    /// Returns the reply to a command that would change a provisional callback while its owner
    /// waits for the outcome.
    pub(crate) fn awaits_outcome(
        &self,
        command: &Command,
        task: Option<&Task>,
    ) -> Option<Result<Reply, EngineError>> {
        let attempt = self.deliveries.awaited_attempt(task?)?;
        match command {
            Command::Cancel(_) => Some(Ok(Reply::Cancelled(Cancelled::Firing(attempt)))),
            Command::Touch(..) | Command::Pause(_) | Command::Resume(_) | Command::Fire(_) => {
                Some(Err(EngineError::Firing(attempt)))
            }
            Command::Schedule(_)
            | Command::Bind(..)
            | Command::Get(_)
            | Command::Redrive { .. }
            | Command::DeleteLetter { .. } => None,
        }
    }
}

/// Returns how a change ends a fire.
fn end_of(change: &Change) -> Option<FireEnd> {
    match change {
        Change::Settle { record, .. } => Some(record.end),
        Change::Dead { letter, .. } => Some(FireEnd::Dead(letter.reason)),
        _ => None,
    }
}

impl Decision {
    /// Removes the provisional callback of a claim that this decision ends. It counts as replaced:
    /// by the callback of the actual end, or by none.
    pub(crate) fn end_provisional_callback(
        &mut self,
        callback: Option<TaskId>,
        namespace: &Namespace,
        now: Timestamp,
    ) {
        let Some(id) = callback else { return };
        let record = FireRecord {
            fire_id: FireId { task: id, nominal_at: id.due() },
            redriven_as: None,
            namespace: namespace.clone(),
            key: None,
            ended_at: now,
            end: FireEnd::Replaced,
            attempts: Vec::new(),
            due_at: id.due(),
            occasion: Occasion::Due,
            labels: Labels::default(),
        };
        // No caller can touch or pause it while its claim continues.
        let was = Prior { state: TaskState::Scheduled, kind: TaskKind::Once, fire_at: id.due() };
        self.change(Change::Settle { record, next: None, was });
        self.effects.push(Effect::Remove(id));
    }
}
