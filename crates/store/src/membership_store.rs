//! The contract of a membership store.
//!
//! It tells brokers of the same store about each other. Stores that only one process can open do
//! not implement it.

use std::future::Future;
use std::time::Duration;

use punctual_core::{Assignment, BrokerId, Heartbeat, Lease, Timestamp};

use crate::error::StoreError;

/// Keeps which brokers are alive, and the assignment that their leader proposed last.
///
/// # Contract
///
/// **Heartbeats expire.** A broker is a member from its heartbeat until `ttl` has passed without
/// another heartbeat, or until it leaves. Time is the store's own clock.
///
/// **The latest wins.** A later heartbeat of a broker replaces its earlier one, and a later
/// proposal replaces an earlier one.
///
/// **Only the leader proposes.** A proposal under an epoch that is not the current epoch of the
/// leader seat returns [`StoreError::Held`] and changes nothing.
///
/// **Not durable.** Members and assignment may be lost (for example when Redis fails over). The
/// next heartbeats and the next proposal restore them. Ownership itself is in the leases.
pub trait MembershipStore: Send + Sync + 'static {
    /// Records a heartbeat and returns all members, the sender included.
    fn heartbeat(
        &self,
        heartbeat: &Heartbeat,
        ttl: Duration,
    ) -> impl Future<Output = Result<Members, StoreError>> + Send;

    /// Removes a broker from the members. Does nothing if it is not a member.
    fn leave(&self, broker: &BrokerId) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Stores the assignment that the leader proposes. `lease` is its lease of the leader seat.
    fn propose(
        &self,
        lease: &Lease,
        assignment: &Assignment,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;
}

/// The members at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Members {
    /// The time of the store's clock.
    pub at: Timestamp,
    /// All members, ordered by broker id.
    pub present: Vec<MemberInfo>,
    /// The last lease of the leader seat, as [`LeaseStore::holder`](crate::LeaseStore::holder)
    /// returns it.
    pub leader: Option<Lease>,
    /// Whether that lease is still valid, by the store's clock.
    pub led: bool,
    /// The assignment that was proposed last.
    pub assignment: Option<Assignment>,
}

/// A broker that is alive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberInfo {
    /// Its latest heartbeat.
    pub heartbeat: Heartbeat,
    /// How long ago the store received that heartbeat.
    pub age: Duration,
}
