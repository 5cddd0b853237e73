//! The end of an owner's lease, shared with its deliveries.
//!
//! The broker's membership extends the lease of a partition (`cluster`); the owner and its
//! deliveries read its end. A delivery shares it because a courier may wait for a lookup or a
//! connection longer than one lease, and in that time the lease is extended or lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use punctual_core::Timestamp;

/// The end of an owner's lease, as it is now. Clones share one value.
///
/// An owner of a later epoch has another one, so a delivery of an owner that lost its partition can
/// never be sent again.
#[derive(Debug, Clone)]
pub struct LeaseEnd(Arc<OwnCacheLine>);

/// Apart from the count of references, which changes with every delivery: couriers on other cores
/// read the time twice for each.
#[derive(Debug)]
#[repr(align(64))]
struct OwnCacheLine(AtomicU64);

impl LeaseEnd {
    /// A lease that ends at `until`, exclusively.
    #[must_use]
    pub fn new(until: Timestamp) -> Self {
        Self(Arc::new(OwnCacheLine(AtomicU64::new(until.as_millis()))))
    }

    /// Returns when the lease ends.
    #[must_use]
    pub fn get(&self) -> Timestamp {
        Timestamp::from_millis(self.0.0.load(Ordering::Relaxed))
    }

    /// Whether the lease is over at `now`.
    #[must_use]
    pub fn is_over(&self, now: Timestamp) -> bool {
        now >= self.get()
    }

    /// Moves the end out. Extensions may overtake each other: the latest end counts.
    pub fn extend(&self, until: Timestamp) {
        self.0.0.fetch_max(until.as_millis(), Ordering::Relaxed);
    }
}
