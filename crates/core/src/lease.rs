//! Leases: the stored right to own a partition or to lead until an instant, and its epoch.
//!
//! The epochs of a seat only grow. The store refuses a write with an older epoch, so a broker that
//! was stopped past the end of its lease cannot undo what its successor did. `LeaseStore` in
//! `store` keeps leases; `topology` has who owns what.

use std::fmt;
use std::sync::Arc;

use crate::{PartitionId, Timestamp};

/// The generation of an owner. It grows with each new owner of a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(u32);

impl Epoch {
    /// Before the first owner.
    pub const NONE: Self = Self(0);
    /// The last one that fits a task id: enough for a new owner every second for two years.
    pub const MAX: Self = Self((1 << 26) - 1);

    /// Makes an epoch of a number; `None` beyond [`Epoch::MAX`].
    #[must_use]
    pub const fn new(number: u32) -> Option<Self> {
        if number > Self::MAX.0 { None } else { Some(Self(number)) }
    }

    pub(crate) const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// The epoch as a number.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The epoch of the next owner; `None` after [`Epoch::MAX`].
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

/// A broker, identified by the address at which other brokers reach it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BrokerId(Arc<str>);

impl BrokerId {
    /// Makes an id of an address.
    #[must_use]
    pub fn new(address: &str) -> Self {
        Self(address.into())
    }

    /// The address as text.
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

/// What a lease is for.
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

/// The stored right to act, until an instant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// What the lease is for.
    pub seat: Seat,
    /// The broker that holds it.
    pub broker: BrokerId,
    /// Greater than that of every earlier holder of the seat.
    pub epoch: Epoch,
    /// The end by the holder's own clock, counted from before it asked the store for the lease.
    pub until: Timestamp,
}

impl Lease {
    /// Whether the holder may still act at `now`.
    #[must_use]
    pub fn holds_at(&self, now: Timestamp) -> bool {
        now < self.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_does_not_hold_at_its_end() {
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
    fn epochs_grow_up_to_the_last_one() {
        assert_eq!(Epoch::NONE.next(), Epoch::new(1));
        assert_eq!(Epoch::MAX.next(), None);
    }
}
