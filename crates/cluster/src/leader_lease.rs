//! The lease of the leader, and the leader's proposals.
//!
//! Any broker acquires the lease when there is no leader. The leader proposes the assignment that
//! every broker can compute, when it differs from the one in the store. The store fences proposals,
//! so that a leader that does not know yet that it lost the lease changes nothing.

use punctual_core::{Assignment, Lease, Seat, Timestamp};
use punctual_store::StoreError;

use crate::config::MemberConfig;
use crate::event::MemberAction;

#[derive(Debug, Default)]
pub(crate) struct LeaderLease {
    lease: Option<Lease>,
    /// When the request in flight was sent.
    pending_since: Option<Timestamp>,
    renew_at: Option<Timestamp>,
    /// The proposal in flight.
    proposing: Option<Assignment>,
    /// The answer (by its time) for which the lease was last requested, and for which the last
    /// proposal was made: at most one of each per answer.
    tried_for: Option<Timestamp>,
    proposed_for: Option<Timestamp>,
}

impl LeaderLease {
    pub(crate) fn is_ours(&self) -> bool {
        self.lease.is_some()
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.pending_since.is_none() && self.proposing.is_none()
    }

    /// Requests the lease, if the answer that was requested at `read_at` names no leader. At most
    /// once per answer.
    pub(crate) fn acquire(&mut self, read_at: Timestamp, now: Timestamp) -> Option<MemberAction> {
        if self.lease.is_some() || self.pending_since.is_some() || self.tried_for == Some(read_at) {
            return None;
        }
        (self.pending_since, self.tried_for) = (Some(now), Some(read_at));
        Some(MemberAction::Acquire(Seat::Leader))
    }

    pub(crate) fn acquired(&mut self, answer: Result<Lease, StoreError>, config: &MemberConfig) {
        let requested_at = self.pending_since.take();
        match (answer, requested_at) {
            (Ok(lease), Some(requested_at)) => {
                tracing::info!(epoch = %lease.epoch, "leader lease acquired");
                (self.lease, self.renew_at) = (Some(lease), Some(config.renew_at(requested_at)));
            }
            // Another broker was faster, or the store did not answer: the next answer tells.
            _ => self.lease = None,
        }
    }

    pub(crate) fn renew(&mut self, now: Timestamp) -> Option<MemberAction> {
        if self.renew_at()? > now {
            return None;
        }
        self.pending_since = Some(now);
        self.lease.clone().map(MemberAction::Renew)
    }

    pub(crate) fn renew_at(&self) -> Option<Timestamp> {
        self.lease.as_ref()?;
        if self.pending_since.is_some() { None } else { self.renew_at }
    }

    pub(crate) fn renewed(
        &mut self,
        answer: Result<Lease, StoreError>,
        config: &MemberConfig,
        now: Timestamp,
    ) {
        let Some(requested_at) = self.pending_since.take() else { return };
        match answer {
            Ok(_) => self.renew_at = Some(config.renew_at(requested_at)),
            Err(StoreError::Held { .. }) => self.drop_lease(),
            Err(_) => self.renew_at = Some(now.after(config.pause())),
        }
    }

    /// Returns whether a proposal may be made for this answer.
    pub(crate) fn may_propose(&self, read_at: Timestamp) -> bool {
        self.lease.is_some() && self.proposing.is_none() && self.proposed_for != Some(read_at)
    }

    /// Allows another proposal for the same answer, because this broker has decided to leave.
    pub(crate) fn may_propose_again(&mut self) {
        self.proposed_for = None;
    }

    pub(crate) fn propose(
        &mut self,
        read_at: Timestamp,
        assignment: Assignment,
    ) -> Option<MemberAction> {
        let lease = self.lease.clone()?;
        (self.proposing, self.proposed_for) = (Some(assignment.clone()), Some(read_at));
        Some(MemberAction::Propose(lease, assignment))
    }

    /// Returns the new assignment if the store accepted the proposal.
    pub(crate) fn answered(&mut self, answer: Result<(), StoreError>) -> Option<Assignment> {
        let assignment = self.proposing.take()?;
        match answer {
            Ok(()) => return Some(assignment),
            Err(StoreError::Held { .. }) => self.drop_lease(),
            Err(error) => tracing::warn!(%error, "assignment not proposed"),
        }
        None
    }

    /// Releases the lease. Answers to earlier requests are ignored.
    pub(crate) fn release(&mut self, now: Timestamp) -> Option<MemberAction> {
        let lease = self.lease.take()?;
        self.pending_since = Some(now);
        Some(MemberAction::Release(lease))
    }

    pub(crate) fn released(&mut self) {
        self.pending_since = None;
    }

    fn drop_lease(&mut self) {
        tracing::info!("leader lease lost");
        self.lease = None;
    }
}
