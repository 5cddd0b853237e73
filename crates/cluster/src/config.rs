//! The configuration of a member, and the intervals that follow from it.
//!
//! All intervals are fractions of the lease, so that a cluster with short leases reacts fast.

use std::time::Duration;

use punctual_core::{BrokerId, Partitions, Timestamp};

/// The shortest interval between heartbeats, however short the leases are. Heartbeats that announce
/// a change may be closer.
const HEARTBEAT_MIN: Duration = Duration::from_millis(100);
/// The shortest pause before a retry.
const PAUSE_MIN: Duration = Duration::from_millis(50);
/// Changes within this time are announced with one heartbeat.
pub(crate) const NEWS_GAP: Duration = Duration::from_millis(20);

/// How a broker takes part in the cluster.
#[derive(Debug, Clone)]
pub struct MemberConfig {
    /// The id of this broker.
    pub me: BrokerId,
    /// The number of partitions of the store.
    pub partitions: Partitions,
    /// How long leases and heartbeats last: the same for all brokers, and at least a second.
    pub lease: Duration,
    /// How far its clock may differ from the other brokers'.
    pub skew_max: Duration,
}

impl MemberConfig {
    /// Returns the interval of heartbeats.
    pub(crate) fn heartbeat_every(&self) -> Duration {
        (self.lease / 5).max(HEARTBEAT_MIN)
    }

    /// Returns the interval of heartbeats while partitions move; also the pause before a refused
    /// request is retried.
    pub(crate) fn pause(&self) -> Duration {
        (self.lease / 25).max(PAUSE_MIN)
    }

    /// Returns until when a lease that was requested at an instant is trusted. A tenth is left for
    /// clocks that run at different speeds and for actions in flight when the lease ends.
    pub(crate) fn trusted_until(&self, requested_at: Timestamp) -> Timestamp {
        requested_at.after(self.lease - self.lease / 10)
    }

    /// Returns when a lease that was requested at an instant is certainly over in the store too.
    pub(crate) fn over_at(&self, requested_at: Timestamp) -> Timestamp {
        requested_at.after(self.lease + self.lease / 10)
    }

    /// Returns when a lease that was requested at an instant is renewed.
    pub(crate) fn renew_at(&self, requested_at: Timestamp) -> Timestamp {
        requested_at.after(self.lease / 3)
    }

    /// Returns the timeout of a request to the store.
    pub(crate) fn store_timeout(&self) -> Duration {
        (self.lease / 3).max(PAUSE_MIN)
    }
}
