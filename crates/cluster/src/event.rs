//! Everything that reaches a member, everything that it wants done, and what its broker is to do.
//!
//! Invariant: every store [`MemberAction`] is answered by exactly one [`MemberEvent`], also when the store does not answer in time, and
//! at most one is under way per seat, one heartbeat, one proposal, one leaving.

use std::sync::Arc;

use punctual_core::{
    Assignment, BrokerId, Epoch, Heartbeat, Lease, PartitionId, Seat, Timestamp, Topology,
};
use punctual_store::{Members, StoreError};

/// What reaches a member.
#[derive(Debug)]
pub enum MemberEvent {
    /// The answer to [`MemberAction::Heartbeat`].
    Heard(Result<Members, StoreError>),
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
    /// An owner that was to be handed over has stopped: nothing of it is on its way to the store, and it starts
    /// nothing more.
    Quiet {
        /// Of which partition.
        partition: PartitionId,
        /// Under which epoch.
        epoch: Epoch,
    },
    /// The successor knows.
    HandedOver {
        /// Which partition.
        partition: PartitionId,
        /// Under which epoch it was ours.
        epoch: Epoch,
    },
    /// The successor could not be reached, or does not want it.
    HandOverFailed {
        /// Of which partition.
        partition: PartitionId,
        /// Under which epoch it was ours.
        epoch: Epoch,
    },
    /// An owner has come to its end by itself: it was fenced, or is broken.
    Ended {
        /// Of which partition.
        partition: PartitionId,
        /// Under which epoch.
        epoch: Epoch,
    },
    /// Another broker has let go of a partition for us.
    Offered {
        /// Which.
        partition: PartitionId,
    },
    /// Give everything back and leave.
    Leave,
}

/// What a member wants done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MemberAction {
    /// Say that we are there. Lasts [`MemberConfig::lease`](crate::MemberConfig).
    Heartbeat(Heartbeat),
    /// Take a seat. The time is the `now` of the `act` that gives this out, also below.
    Acquire(Seat),
    /// Extend a lease.
    Renew(Lease),
    /// Give a seat back.
    Release(Lease),
    /// Propose who should hold what, under our lease of the leader seat.
    Propose(Lease, Assignment),
    /// Strike us off the roll.
    Leave,
    /// For the broker.
    Directive(Directive),
}

/// What the broker is to do, in this order. Of one partition and epoch: `Start`, any number of `Extend`, and then either
/// `Drop`, or `HandOver` and `Released`; a `Drop` may also come after `HandOver`, and a `Released` after another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Directive {
    /// Run an owner of this partition.
    Start {
        /// Which, and under which epoch.
        partition: PartitionId,
        /// Larger than that of every earlier owner.
        epoch: Epoch,
        /// It may act until then, exclusively: fire, send, answer calls. Later it stands still until extended.
        until: Timestamp,
    },
    /// Its lease was renewed.
    Extend {
        /// Which.
        partition: PartitionId,
        /// Whose.
        epoch: Epoch,
        /// It may act until then. May lie in the past when the answer came late.
        until: Timestamp,
    },
    /// Hand it over: start nothing new, write what is decided, wait a little for what is under way. When nothing of
    /// it is on its way to the store any more, say [`Quiet`](MemberEvent::Quiet), and keep what is still under way for `Released`. Its
    /// lease is not renewed from here on.
    HandOver {
        /// Which.
        partition: PartitionId,
        /// Whose.
        epoch: Epoch,
        /// Who takes it over; `None`: whoever comes.
        successor: Option<BrokerId>,
    },
    /// The lease of a partition that was quiet is given back, or is over: tell the successor, with what is still under way, and
    /// then say [`HandedOver`](MemberEvent::HandedOver). Without an successor there is nothing to say. Until it is said, or half a lease has passed,
    /// this broker goes on being listed as the holder, so that the successor does not take the partition before it is told.
    /// If the successor cannot be told, say [`HandOverFailed`](MemberEvent::HandOverFailed) and keep what is under way: another `Released` with
    /// another successor may follow, or a `Start` under the next epoch, to which it belongs.
    Released {
        /// Which.
        partition: PartitionId,
        /// Whose.
        epoch: Epoch,
        /// Whom to tell.
        successor: Option<BrokerId>,
    },
    /// Its lease is lost: end it at once. Nothing that it writes counts any more.
    Drop {
        /// Which.
        partition: PartitionId,
        /// Whose.
        epoch: Epoch,
    },
    /// Who is there and who holds what, as far as is known. Comes with every heartbeat and every change.
    Publish(Arc<ClusterView>),
    /// This broker's clock is off from the others' by so many milliseconds (ahead if positive), and it gives up its partitions;
    /// `None`: it is trusted again.
    Skew(Option<i64>),
    /// All is given back, or the time for that is over: the broker may stop. Nothing comes after it.
    Left,
}

/// What one broker knows of all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterView {
    /// Who holds what, and who leads.
    pub topology: Topology,
    /// Who is there, in the order of their ids.
    pub present: Vec<BrokerView>,
}

/// A broker that is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrokerView {
    /// Who.
    pub broker: BrokerId,
    /// When it last said so, by our clock.
    pub heard_at: Timestamp,
    /// Whether it wants no partitions.
    pub leaving: bool,
    /// How far its clock is ahead of the store's, in milliseconds.
    pub ahead_ms: Option<i64>,
}
