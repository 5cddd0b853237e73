//! The right of an owner to act: its lease, its epoch, and how the partition passes to the next
//! owner, by a hand-over or after a crash. Who owns which partition is decided in `cluster`.

pub(crate) mod hand_over;
pub(crate) mod in_flight;
pub(crate) mod lease;
pub(crate) mod recover;
pub(crate) mod sweep;
pub(crate) mod take_over;

use std::time::Duration;

use punctual_core::{Epoch, PartitionId, Sequence, TaskId, Timestamp};

use crate::delivery::attempt::Report;
use crate::ownership::in_flight::PendingHandOver;
use crate::ownership::lease::LeaseEnd;
use crate::ownership::recover::Ownership;

/// From one sweep to the next. Retention is counted in days, so a minute does not matter.
const SWEEP_EVERY: Duration = Duration::from_secs(60);

/// The time of an owner in office: from when it acquired the partition until it stops.
#[derive(Debug)]
pub(crate) struct Tenure {
    partition: PartitionId,
    epoch: Epoch,
    lease_end: LeaseEnd,
    /// The lease was over at the last check.
    lapsed: bool,
    /// Of the next task id; `None` when the epoch has none left.
    sequence: Option<Sequence>,
    draining: bool,
    handing_over: Option<PendingHandOver>,
    /// When the next sweep is due; `None` while one is in flight.
    sweeps_at: Option<Timestamp>,
}

impl Tenure {
    pub(crate) fn new(ownership: Ownership, now: Timestamp) -> Self {
        Self {
            partition: ownership.partition,
            epoch: ownership.epoch,
            lease_end: LeaseEnd::new(ownership.until),
            lapsed: false,
            sequence: Some(Sequence::FIRST),
            draining: false,
            handing_over: None,
            // Not at once: an owner that starts has more urgent work.
            sweeps_at: Some(now.after(SWEEP_EVERY)),
        }
    }

    pub(crate) const fn partition(&self) -> PartitionId {
        self.partition
    }

    /// Whether the lease lasts beyond `now`. Past its end the owner fires, delivers, claims and
    /// decides nothing until the lease is extended. Batches that were decided before are still
    /// written: the store refuses them if another owner has taken over.
    pub(crate) fn may_act(&self, now: Timestamp) -> bool {
        !self.lease_end.is_over(now)
    }

    /// Checks the lease, logs when it has ended, and returns whether the owner may act.
    pub(crate) fn check_lease(&mut self, now: Timestamp) -> bool {
        let lapsed = !self.may_act(now);
        if lapsed && !self.lapsed {
            let partition = self.partition;
            tracing::warn!(%partition, "lease ended; firing stops until it is extended");
        }
        self.lapsed = lapsed;
        !lapsed
    }

    /// Whether the lease was over at the last check.
    pub(crate) const fn is_lapsed(&self) -> bool {
        self.lapsed
    }

    pub(crate) fn extend(&mut self, until: Timestamp) {
        self.lease_end.extend(until);
        self.lapsed = false;
    }

    /// Returns the end of the lease, shared with a delivery.
    pub(crate) fn lease_end(&self) -> LeaseEnd {
        self.lease_end.clone()
    }

    /// Returns the next task id of this epoch; `None` when the epoch has none left.
    pub(crate) fn next_id(&mut self, due: Timestamp) -> Option<TaskId> {
        let sequence = self.sequence?;
        self.sequence = sequence.next();
        Some(TaskId::new(due, self.partition, self.epoch, sequence))
    }

    pub(crate) const fn is_draining(&self) -> bool {
        self.draining
    }

    pub(crate) const fn drain(&mut self) {
        self.draining = true;
    }

    pub(crate) const fn is_handing_over(&self) -> bool {
        self.handing_over.is_some()
    }

    /// Returns when a hand-over continues even if no event arrives.
    pub(crate) fn hand_over_wakes_at(&self) -> Option<Timestamp> {
        self.handing_over.as_ref().map(PendingHandOver::wakes_at)
    }

    /// Keeps reports that arrive too late to be settled here, and returns the others.
    pub(crate) fn keep_late(&mut self, reports: Vec<Report>) -> Vec<Report> {
        match &mut self.handing_over {
            Some(hand_over) => hand_over.keep_late(reports),
            None => reports,
        }
    }

    /// Fails a hand-over that has not finished. Returns the reports that arrived late.
    pub(crate) fn fail_hand_over(&mut self) -> Option<Vec<Report>> {
        self.handing_over.take().map(PendingHandOver::fail)
    }

    /// Returns when the next sweep is due, unless one is in flight.
    pub(crate) const fn next_sweep(&self) -> Option<Timestamp> {
        self.sweeps_at
    }
}
