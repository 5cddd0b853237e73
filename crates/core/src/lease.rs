//! Leases: the stored right to act until a time, and the epoch that tells owners apart.
//!
//! Invariant: epochs of a seat only grow. A write that carries an older one is fenced, so a broker
//! that slept through the end of its lease cannot undo what its successor did.
//! Not here: how a lease is kept (`LeaseStore`), who should hold what (`Topology`).

use std::fmt;
use std::sync::Arc;

use crate::{PartitionId, Timestamp};

/// A number that grows with each owner of a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(u32);

impl Epoch {
    /// Before the first owner.
    pub const NONE: Self = Self(0);
    /// The last that an id can carry: a new owner every second for two years.
    pub const MAX: Self = Self((1 << 26) - 1);

    /// From a number, if there can be so many.
    #[must_use]
    pub const fn new(number: u32) -> Option<Self> {
        if number > Self::MAX.0 { None } else { Some(Self(number)) }
    }

    pub(crate) const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The next owner's, unless there can be none.
    #[must_use]
    pub const fn next(self) -> Option<Self> {
        Self::new(self.0 + 1)
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "e{}", self.0)
    }
}

/// One running broker, by the address at which the others reach it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BrokerId(Arc<str>);

impl BrokerId {
    /// By its address.
    #[must_use]
    pub fn new(address: &str) -> Self {
        Self(address.into())
    }

    /// The address.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for BrokerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What can be held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Seat {
    /// The right to propose the topology.
    Leader,
    /// The right to decide everything about a partition.
    Partition(PartitionId),
}

impl fmt::Display for Seat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Leader => f.write_str("the leader seat"),
            Self::Partition(partition) => partition.fmt(f),
        }
    }
}

/// A stored right to act.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// On what.
    pub seat: Seat,
    /// Whose.
    pub broker: BrokerId,
    /// Larger than that of every earlier holder of the seat.
    pub epoch: Epoch,
    /// Until when, by the clock of whoever asked, counted from before the question.
    pub until: Timestamp,
}

impl Lease {
    /// Whether the holder may still act on it.
    #[must_use]
    pub fn holds_at(&self, now: Timestamp) -> bool {
        now < self.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_ends_at_its_time_not_after_it() {
        let lease = Lease {
            seat: Seat::Leader,
            broker: BrokerId::new("a:1"),
            epoch: Epoch::NONE,
            until: Timestamp::from_millis(10),
        };
        assert!(lease.holds_at(Timestamp::from_millis(9)));
        assert!(!lease.holds_at(Timestamp::from_millis(10)));
    }

    #[test]
    fn epochs_grow_and_end() {
        assert_eq!(Epoch::NONE.next(), Epoch::new(1));
        assert_eq!(Epoch::MAX.next(), None);
    }
}
