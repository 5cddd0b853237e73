//! The contract of a membership.

use std::future::Future;
use std::time::Duration;

use punctual_core::{Assignment, BrokerId, Heartbeat, Lease, Timestamp};

use crate::error::StoreError;

/// Keeps which brokers are there, and what their leader proposes.
///
/// # Contract
///
/// **A heartbeat lasts.** A broker is on the roll from its heartbeat until `ttl` has passed without another one, or until it
/// leaves. Time is the store's own.
///
/// **The last word counts.** A later heartbeat of a broker takes the place of its earlier one, and a later proposal that of an
/// earlier one.
///
/// **Only the leader proposes.** A proposal under an epoch of the leader seat that is not current is refused as
/// [`StoreError::Held`] and changes nothing.
///
/// **Nothing here is the truth.** It may be lost altogether (a store that fails over); heartbeats and the next proposal bring
/// it back.
pub trait MembershipStore: Send + Sync + 'static {
    /// Says that a broker is there, and answers who is, itself included.
    fn heartbeat(
        &self,
        presence: &Heartbeat,
        ttl: Duration,
    ) -> impl Future<Output = Result<Members, StoreError>> + Send;

    /// Strikes a broker off the roll.
    fn leave(&self, broker: &BrokerId) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Keeps what the leader proposes. `lease` is its lease of the leader seat.
    fn propose(
        &self,
        lease: &Lease,
        assignment: &Assignment,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;
}

/// Who is there at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Members {
    /// When, by the clock of the store.
    pub at: Timestamp,
    /// All brokers that are there, in the order of their ids.
    pub present: Vec<MemberInfo>,
    /// Who held the leader seat last, as [`LeaseStore::holder`](crate::LeaseStore::holder) would say.
    pub leader: Option<Lease>,
    /// Whether that lease was still good, by the clock of the store.
    pub led: bool,
    /// What was proposed last.
    pub assignment: Option<Assignment>,
}

/// A broker that is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberInfo {
    /// What it says of itself.
    pub presence: Heartbeat,
    /// How long ago it said so.
    pub age: Duration,
}
