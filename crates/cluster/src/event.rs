//! The events that a member receives, the actions that it returns, and the directives for its
//! broker.
//!
//! Every [`MemberAction`] for the store is answered by exactly one [`MemberEvent`], even if the
//! store does not answer in time. At most one request is in flight per seat, and at most one
//! heartbeat, one proposal and one deregistration.

use std::sync::Arc;

use punctual_core::{
    Assignment, BrokerId, Epoch, Heartbeat, Lease, PartitionId, Seat, Timestamp, Topology,
};
use punctual_store::{Members, StoreError};

/// What a member receives.
#[derive(Debug)]
pub enum MemberEvent {
    /// The answer to [`MemberAction::Heartbeat`].
    HeartbeatAnswered(Result<Members, StoreError>),
    /// The answer to [`MemberAction::Acquire`].
    Acquired(Seat, Result<Lease, StoreError>),
    /// The answer to [`MemberAction::Renew`].
    Renewed(Seat, Result<Lease, StoreError>),
    /// The answer to [`MemberAction::Release`].
    Released(Seat, Result<(), StoreError>),
    /// The answer to [`MemberAction::Propose`].
    Proposed(Result<(), StoreError>),
    /// The answer to [`MemberAction::Leave`].
    Deregistered(Result<(), StoreError>),
    /// The owner of a partition that is to be handed over has stopped: none of its writes is in
    /// flight, and it starts nothing new.
    Quiet {
        /// The partition.
        partition: PartitionId,
        /// The epoch of the owner.
        epoch: Epoch,
    },
    /// The successor has confirmed the hand-over.
    HandedOver {
        /// The partition.
        partition: PartitionId,
        /// The epoch of the previous owner, on this broker.
        epoch: Epoch,
    },
    /// The successor could not be reached, or refused.
    HandOverFailed {
        /// The partition.
        partition: PartitionId,
        /// The epoch of the previous owner, on this broker.
        epoch: Epoch,
    },
    /// An owner has stopped on its own: it was fenced, or its store failed.
    Ended {
        /// The partition.
        partition: PartitionId,
        /// The epoch of the owner.
        epoch: Epoch,
    },
    /// Another broker has released a partition for this one. A [`Directive::Start`] follows, unless
    /// another broker was faster or this one wants no partitions.
    Offered {
        /// The partition.
        partition: PartitionId,
    },
    /// Hand all partitions over and leave the cluster. [`Directive::Left`] follows within two
    /// leases.
    Leave,
}

/// What a member wants done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MemberAction {
    /// Write a heartbeat, valid for [`MemberConfig::lease`](crate::MemberConfig).
    Heartbeat(Heartbeat),
    /// Acquire the lease of a seat, at the `now` of the `act` that returned this. The same holds
    /// for the actions below.
    Acquire(Seat),
    /// Renew a lease.
    Renew(Lease),
    /// Release a lease.
    Release(Lease),
    /// Propose an assignment, under the lease of the leader.
    Propose(Lease, Assignment),
    /// Remove this broker from the members.
    Leave,
    /// Pass this to the broker.
    Directive(Directive),
}

/// What the broker is to do, in this order. For one partition and epoch: `Start`, any number of
/// `Extend`, and then either `Drop`, or `HandOver` and `Released`. A `Drop` may also follow a
/// `HandOver`, and a `Released` another `Released`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Directive {
    /// Start an owner of this partition.
    Start {
        /// The partition.
        partition: PartitionId,
        /// Greater than the epoch of every earlier owner.
        epoch: Epoch,
        /// The owner may act before this instant: fire, send, answer calls. After it, the owner
        /// pauses until it is extended.
        until: Timestamp,
    },
    /// The lease of an owner was renewed.
    Extend {
        /// The partition.
        partition: PartitionId,
        /// The epoch of the owner.
        epoch: Epoch,
        /// The owner may act before this instant, which is in the past if the answer was late.
        until: Timestamp,
    },
    /// Stop an owner: start nothing new, write what is decided, and wait a little for deliveries in
    /// flight. When none of its writes is in flight, send [`Quiet`](MemberEvent::Quiet), and keep
    /// the deliveries still in flight for `Released`. The lease is no longer renewed.
    HandOver {
        /// The partition.
        partition: PartitionId,
        /// The epoch of the owner.
        epoch: Epoch,
        /// The next owner; `None` if any broker may take the partition.
        successor: Option<BrokerId>,
    },
    /// The lease of a stopped owner is released, or is over. Notify the successor, pass it the
    /// deliveries still in flight, and send [`HandedOver`](MemberEvent::HandedOver); without a
    /// successor, send nothing. Until then, or for half a lease, this broker is still listed as the
    /// owner, so that the successor does not take the partition before it is notified.
    ///
    /// If the successor cannot be notified, send [`HandOverFailed`](MemberEvent::HandOverFailed)
    /// and keep the deliveries in flight: another `Released` with another successor may follow, or
    /// a `Start` with the next epoch, whose owner inherits them.
    Released {
        /// The partition.
        partition: PartitionId,
        /// The epoch of the stopped owner.
        epoch: Epoch,
        /// The broker to notify.
        successor: Option<BrokerId>,
    },
    /// The lease of an owner is lost: end the owner at once. The store no longer accepts its
    /// writes.
    Drop {
        /// The partition.
        partition: PartitionId,
        /// The epoch of the owner.
        epoch: Epoch,
    },
    /// The members and the topology, as last read. Sent after every heartbeat and every change.
    Publish(Arc<ClusterView>),
    /// This broker's clock differs from the other brokers' by this many milliseconds (ahead if
    /// positive), and it gives up its partitions. `None`: the clock is trusted again.
    Skew(Option<i64>),
    /// All partitions are handed over, or the time for that is over: the broker may stop. No
    /// directive follows.
    Left,
}

/// What one broker knows of the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterView {
    /// The owners of all partitions, and the leader.
    pub topology: Topology,
    /// The brokers that are alive, in the order of their ids.
    pub present: Vec<BrokerView>,
}

/// A broker that is alive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrokerView {
    /// Its id.
    pub broker: BrokerId,
    /// When it sent its last heartbeat, by this broker's clock.
    pub heard_at: Timestamp,
    /// Whether it wants no partitions, because it leaves or its clock is wrong.
    pub leaving: bool,
    /// How far its clock is ahead of the store's, in milliseconds. `None` before its first
    /// measurement.
    pub ahead_ms: Option<i64>,
}
