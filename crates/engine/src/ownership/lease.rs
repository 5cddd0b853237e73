//! The lease: until when the owner may act.
//!
//! The broker's membership extends the lease of a partition; the owner and its deliveries read its end. Past the end the
//! owner fires, delivers, claims and decides nothing until the lease is extended. Batches that were decided before are
//! still written: the store refuses them if another owner has taken over.
//! A delivery shares the end of the lease with its owner ([`LeaseEnd`]), because a courier may wait for a lookup or a
//! connection for longer than one lease, in which the lease is extended or lost.
//! Not here: keeping the lease (`cluster`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use punctual_core::Timestamp;

use crate::owner::Owner;

/// The end of an owner's lease, as it is now. Clones share one value.
///
/// An owner of a later epoch has another one, so a delivery of an owner that lost its partition can never be sent again.
#[derive(Debug, Clone)]
pub struct LeaseEnd(Arc<AtomicU64>);

impl LeaseEnd {
    /// A lease that ends at `until`, exclusively.
    #[must_use]
    pub fn new(until: Timestamp) -> Self {
        Self(Arc::new(AtomicU64::new(until.as_millis())))
    }

    /// Returns when the lease ends.
    #[must_use]
    pub fn get(&self) -> Timestamp {
        Timestamp::from_millis(self.0.load(Ordering::Relaxed))
    }

    /// Whether the lease is over at `now`.
    #[must_use]
    pub fn is_over(&self, now: Timestamp) -> bool {
        now >= self.get()
    }

    /// Moves the end out. Extensions may overtake each other: the latest end counts.
    pub fn extend(&self, until: Timestamp) {
        self.0.fetch_max(until.as_millis(), Ordering::Relaxed);
    }
}

/// Until when to act.
#[derive(Debug)]
pub(crate) struct Lease {
    end: LeaseEnd,
    /// It was over when the owner last looked: no use in waking up for what is due.
    pub(crate) lapsed: bool,
}

impl Lease {
    pub(crate) fn new(until: Timestamp) -> Self {
        Self { end: LeaseEnd::new(until), lapsed: false }
    }

    /// The end, for a delivery to take along.
    pub(crate) fn end(&self) -> LeaseEnd {
        self.end.clone()
    }
}

impl Owner {
    /// Whether the owner may act.
    pub(crate) fn may_act(&self, now: Timestamp) -> bool {
        !self.lease.end.is_over(now)
    }

    /// The lease is good for longer.
    pub(crate) fn on_extend(&mut self, until: Timestamp) {
        self.lease.end.extend(until);
        self.lease.lapsed = false;
    }

    /// Looks at the time. Out: whether to act.
    pub(crate) fn check_lease(&mut self, now: Timestamp) -> bool {
        let lapsed = !self.may_act(now);
        if lapsed && !self.lease.lapsed {
            tracing::warn!(partition = %self.partition, "the lease is over; nothing is fired until it is extended");
        }
        self.lease.lapsed = lapsed;
        !lapsed
    }
}
