//! Leading: the leader seat, and what its holder proposes.
//!
//! In: answers of the store about the seat. Out: questions about it. Anybody takes the seat when nobody has it; whoever has it proposes
//! the assignment that all can work out, when it is another than the one that stands.
//! Invariant: a proposal is fenced by the store, so that a leader that does not know of its end changes nothing.

use punctual_core::{Assignment, Lease, Seat, Timestamp};
use punctual_store::StoreError;

use crate::event::MemberAction;
use crate::terms::MemberConfig;

#[derive(Debug, Default)]
pub(crate) struct Lead {
    lease: Option<Lease>,
    /// A question about the seat under way.
    asking: Option<Timestamp>,
    renew_at: Option<Timestamp>,
    /// The proposal under way.
    proposing: Option<Assignment>,
    /// The roll for which the seat, or a proposal, was last tried: once for each.
    tried: Option<Timestamp>,
    proposed: Option<Timestamp>,
}

impl Lead {
    pub(crate) fn is_ours(&self) -> bool {
        self.lease.is_some()
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.asking.is_none() && self.proposing.is_none()
    }

    /// Nobody leads, says the roll that was asked for then.
    pub(crate) fn acquire(&mut self, roll: Timestamp, now: Timestamp) -> Option<MemberAction> {
        if self.lease.is_some() || self.asking.is_some() || self.tried == Some(roll) {
            return None;
        }
        (self.asking, self.tried) = (Some(now), Some(roll));
        Some(MemberAction::Acquire(Seat::Leader))
    }

    pub(crate) fn acquired(&mut self, answer: Result<Lease, StoreError>, terms: &MemberConfig) {
        let asked_at = self.asking.take();
        match (answer, asked_at) {
            (Ok(lease), Some(asked_at)) => {
                tracing::info!(epoch = %lease.epoch, "leads");
                (self.lease, self.renew_at) = (Some(lease), Some(terms.renew_at(asked_at)));
            }
            // Somebody was quicker, or the store is away: the next roll tells.
            _ => self.lease = None,
        }
    }

    pub(crate) fn renew(&mut self, now: Timestamp) -> Option<MemberAction> {
        if self.renew_at()? > now {
            return None;
        }
        self.asking = Some(now);
        self.lease.clone().map(MemberAction::Renew)
    }

    pub(crate) fn renew_at(&self) -> Option<Timestamp> {
        self.lease.as_ref()?;
        if self.asking.is_some() { None } else { self.renew_at }
    }

    pub(crate) fn renewed(
        &mut self,
        answer: Result<Lease, StoreError>,
        terms: &MemberConfig,
        now: Timestamp,
    ) {
        let Some(asked_at) = self.asking.take() else { return };
        match answer {
            Ok(_) => self.renew_at = Some(terms.renew_at(asked_at)),
            Err(StoreError::Held { .. }) => self.lose(),
            Err(_) => self.renew_at = Some(now.after(terms.pause())),
        }
    }

    /// Whether a proposal may be made on the ground of this roll.
    pub(crate) fn may_propose(&self, roll: Timestamp) -> bool {
        self.lease.is_some() && self.proposing.is_none() && self.proposed != Some(roll)
    }

    /// We have changed our mind since the last roll.
    pub(crate) fn may_propose_again(&mut self) {
        self.proposed = None;
    }

    pub(crate) fn propose(
        &mut self,
        roll: Timestamp,
        assignment: Assignment,
    ) -> Option<MemberAction> {
        let lease = self.lease.clone()?;
        (self.proposing, self.proposed) = (Some(assignment.clone()), Some(roll));
        Some(MemberAction::Propose(lease, assignment))
    }

    /// What stands from now on, if the proposal was taken.
    pub(crate) fn answered(&mut self, answer: Result<(), StoreError>) -> Option<Assignment> {
        let assignment = self.proposing.take()?;
        match answer {
            Ok(()) => return Some(assignment),
            Err(StoreError::Held { .. }) => self.lose(),
            Err(error) => tracing::warn!(%error, "not_proposed"),
        }
        None
    }

    /// Gives the seat back. Whoever still answers is not listened to.
    pub(crate) fn release(&mut self, now: Timestamp) -> Option<MemberAction> {
        let lease = self.lease.take()?;
        self.asking = Some(now);
        Some(MemberAction::Release(lease))
    }

    pub(crate) fn released(&mut self) {
        self.asking = None;
    }

    fn lose(&mut self) {
        tracing::info!("leads_no_more");
        self.lease = None;
    }
}
