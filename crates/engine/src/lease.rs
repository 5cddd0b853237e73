//! The lease: until when the owner may act.
//!
//! In: how long the lease of the partition is good, counted by whoever keeps it. Out: whether to act now. Past the end nothing is fired,
//! delivered, claimed or decided until the lease is extended; what was decided before goes on to the store, which fences.
//! Not here: keeping the lease (`cluster`).

use punctual_core::Timestamp;

use crate::owner::Owner;

/// Until when to act.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lease {
    pub(crate) until: Timestamp,
    /// It was over when the owner last looked: no use in waking up for what is due.
    pub(crate) lapsed: bool,
}

impl Lease {
    pub(crate) const fn new(until: Timestamp) -> Self {
        Self { until, lapsed: false }
    }
}

impl Owner {
    /// Whether the owner may act.
    pub(crate) fn may_act(&self, now: Timestamp) -> bool {
        now < self.lease.until
    }

    /// The lease is good for longer. News may overtake each other: the longest counts.
    pub(crate) fn on_extend(&mut self, until: Timestamp) {
        self.lease.until = self.lease.until.max(until);
        self.lease.lapsed = false;
    }

    /// Looks at the time. Out: whether to act.
    pub(crate) fn look_at_lease(&mut self, now: Timestamp) -> bool {
        let lapsed = !self.may_act(now);
        if lapsed && !self.lease.lapsed {
            tracing::warn!(partition = %self.partition, "the lease is over; nothing is fired until it is extended");
        }
        self.lease.lapsed = lapsed;
        !lapsed
    }
}
