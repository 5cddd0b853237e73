//! Recalling deliveries that wait in their couriers.
//!
//! A command that changes a task recalls its deliveries first. Those that were not sent count as
//! never handed out, so that a cancel answers `cancelled` and a replacement sends nothing of the
//! old task; those that were sent are in flight as before. `permit` decides between the two.

use punctual_core::{FireEnd, FireId, FireRecord, TaskId, TaskState, Timestamp};
use punctual_store::{Change, Prior};

use crate::commit::decision::{Decision, Effect};
use crate::delivery::attempt::Report;
use crate::delivery::claim::{Claim, RecalledClaim};
use crate::handle::command::{Command, Subject};
use crate::owner::Owner;

impl Command {
    /// Whether the command changes a task, so that a delivery of the task must not be sent as it
    /// was.
    pub(crate) const fn recalls(&self) -> bool {
        match self {
            Self::Schedule(_) | Self::Cancel(_) | Self::Touch(..) | Self::Pause(_) => true,
            Self::Bind(..)
            | Self::Get(_)
            | Self::Resume(_)
            | Self::Fire(_)
            | Self::Redrive { .. }
            | Self::DeleteLetter { .. } => false,
        }
    }
}

impl Owner {
    /// Recalls the deliveries of a task that were not sent. A claimed fire of a series is not sent
    /// again, so it becomes a dead letter that says so.
    pub(crate) fn recall(&mut self, id: TaskId, now: Timestamp) {
        self.tasks.recall(id);
        for claim in self.deliveries.recall_claims_of(id) {
            self.settle_recalled(claim, now);
        }
    }

    /// Recalls the delivery of the claimed task that a subject names, and those of earlier fires of
    /// the same series.
    pub(crate) fn recall_claim(&mut self, subject: &Subject, now: Timestamp) -> RecalledClaim {
        if let Some(id) = self.deliveries.claimed_task_id(subject) {
            self.recall(id, now);
        }
        self.deliveries.recall_claim(subject)
    }

    /// Recalls the delivery of a claimed task whose key was given to another task.
    pub(crate) fn recall_replaced(&mut self, subject: &Subject, now: Timestamp) {
        if let RecalledClaim::Recalled(fire_id) = self.recall_claim(subject, now)
            && let Some(claim) = self.deliveries.claim(fire_id).cloned()
        {
            self.settle_recalled(claim, now);
        }
    }

    /// Recalls everything that was not sent, because another broker continues. Returns whether
    /// claims were recalled, whose tasks are to be stored again.
    pub(crate) fn recall_all(&mut self, now: Timestamp) -> bool {
        self.tasks.recall_all();
        let recalled = self.deliveries.recall_claims();
        let any = !recalled.is_empty();
        for claim in recalled {
            self.settle_recalled(claim, now);
        }
        any
    }

    /// Decides about a claimed fire whose delivery was recalled, as if it had come back unsent.
    fn settle_recalled(&mut self, claim: Claim, now: Timestamp) {
        let (fire_id, attempt) = (claim.task.fire().id, claim.task.attempt_next());
        let report = Report::of(fire_id, attempt, claim.fired_at, None);
        self.settle_claimed(claim, report, now);
    }

    /// Ends the claim of a fire whose delivery was recalled, as part of a decision. If the decision
    /// is undone, `put_back` stores the task again.
    pub(crate) fn end_recalled_claim(
        &self,
        decision: &mut Decision,
        fire_id: FireId,
        end: FireEnd,
        now: Timestamp,
    ) {
        let Some(Claim { task, callback, .. }) = self.deliveries.claim(fire_id) else {
            return;
        };
        let namespace = task.definition.namespace.clone();
        let record = FireRecord::of(task, end, now);
        let was = Prior::of(task).in_state(TaskState::Dead);
        decision.end_provisional_callback(*callback, &namespace, now);
        decision.change(Change::DeleteLetter { fire_id, namespace });
        decision.change(Change::Settle { record, next: None, was });
        decision.effects.push(Effect::ReleaseClaim(fire_id));
    }

    /// Stores the tasks of recalled claims again whose end was decided and is undone.
    pub(crate) fn undo_recalled_claims(&mut self, decision: &Decision, now: Timestamp) {
        let released = decision.effects.iter().filter_map(|effect| match effect {
            Effect::ReleaseClaim(fire_id) => Some(*fire_id),
            _ => None,
        });
        for fire_id in released.collect::<Vec<_>>() {
            self.put_back(fire_id, None, None, now);
        }
    }
}
