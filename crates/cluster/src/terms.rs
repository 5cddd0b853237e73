//! MemberConfig: how a broker takes part, and the intervals that follow from it.
//!
//! In: how long a lease lasts. Out: every other time of this crate, so that a cluster with short leases is quick
//! in all it does.

use std::time::Duration;

use punctual_core::{BrokerId, Partitions, Timestamp};

/// Heartbeats are no closer than this, however short the leases are, but for those that carry news.
const HEARTBEAT_MIN: Duration = Duration::from_millis(100);
/// Nothing is tried again sooner than this.
const PAUSE_MIN: Duration = Duration::from_millis(50);
/// What changes within this time goes out with one heartbeat.
pub(crate) const NEWS_GAP: Duration = Duration::from_millis(20);

/// How a broker takes part.
#[derive(Debug, Clone)]
pub struct MemberConfig {
    /// Who it is.
    pub me: BrokerId,
    /// How many partitions there are.
    pub partitions: Partitions,
    /// How long leases and heartbeats last: the same for all brokers, and no less than a second.
    pub lease: Duration,
    /// How far its clock may be off from the others'.
    pub skew_max: Duration,
}

impl MemberConfig {
    /// How often a broker says that it is there.
    pub(crate) fn heartbeat_every(&self) -> Duration {
        (self.lease / 5).max(HEARTBEAT_MIN)
    }

    /// The same while something is on the move, and how long to pause before what was refused is tried again.
    pub(crate) fn pause(&self) -> Duration {
        (self.lease / 25).max(PAUSE_MIN)
    }

    /// How long a lease that was asked for at a time is trusted. A tenth is for clocks that run at different speeds and
    /// for what is under way when it ends.
    pub(crate) fn trusted_until(&self, asked_at: Timestamp) -> Timestamp {
        asked_at.after(self.lease - self.lease / 10)
    }

    /// When a lease that was asked for at a time is over in the store as well, whatever happened.
    pub(crate) fn over_at(&self, asked_at: Timestamp) -> Timestamp {
        asked_at.after(self.lease + self.lease / 10)
    }

    /// When a lease that was asked for at a time is renewed.
    pub(crate) fn renew_at(&self, asked_at: Timestamp) -> Timestamp {
        asked_at.after(self.lease / 3)
    }

    /// How long a question to the store may take.
    pub(crate) fn patience(&self) -> Duration {
        (self.lease / 3).max(PAUSE_MIN)
    }
}
