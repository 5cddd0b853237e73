//! Everything that reaches a member, everything that it wants done, and what its broker is to do.
//!
//! Invariant: every store [`Action`] is answered by exactly one [`Event`], also when the store does not answer in time, and
//! at most one is under way per seat, one heartbeat, one proposal, one leaving.

use std::sync::Arc;

use punctual_core::{
    Assignment, BrokerId, Epoch, Lease, PartitionId, Presence, Seat, Timestamp, Topology,
};
use punctual_store::{Roll, StoreError};

/// What reaches a member.
#[derive(Debug)]
pub enum Event {
    /// The answer to [`Action::Heartbeat`].
    Heard(Result<Roll, StoreError>),
    /// The answer to [`Action::Acquire`].
    Acquired(Seat, Result<Lease, StoreError>),
    /// The answer to [`Action::Renew`].
    Renewed(Seat, Result<Lease, StoreError>),
    /// The answer to [`Action::Release`].
    Released(Seat, Result<(), StoreError>),
    /// The answer to [`Action::Propose`].
    Proposed(Result<(), StoreError>),
    /// The answer to [`Action::Leave`].
    Struck(Result<(), StoreError>),
    /// An owner that was to be handed over has stopped: nothing of it is on its way to the store, and it starts
    /// nothing more.
    Quiet {
        /// Of which partition.
        partition: PartitionId,
        /// Under which epoch.
        epoch: Epoch,
    },
    /// The heir knows.
    HandedOver {
        /// Which partition.
        partition: PartitionId,
        /// Under which epoch it was ours.
        epoch: Epoch,
    },
    /// The heir could not be reached, or does not want it.
    NotTold {
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
pub enum Action {
    /// Say that we are there. Lasts [`Terms::lease`](crate::Terms).
    Heartbeat(Presence),
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
    Order(Order),
}

/// What the broker is to do, in this order. Of one partition and epoch: `Start`, any number of `Extend`, and then either
/// `Drop`, or `HandOver` and `Released`; a `Drop` may also come after `HandOver`, and a `Released` after another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Order {
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
    /// it is on its way to the store any more, say [`Quiet`](Event::Quiet), and keep what is still under way for `Released`. Its
    /// lease is not renewed from here on.
    HandOver {
        /// Which.
        partition: PartitionId,
        /// Whose.
        epoch: Epoch,
        /// Who takes it over; `None`: whoever comes.
        heir: Option<BrokerId>,
    },
    /// The lease of a partition that was quiet is given back, or is over: tell the heir, with what is still under way, and
    /// then say [`HandedOver`](Event::HandedOver). Without an heir there is nothing to say. Until it is said, or half a lease has passed,
    /// this broker goes on being listed as the holder, so that the heir does not take the partition before it is told.
    /// If the heir cannot be told, say [`NotTold`](Event::NotTold) and keep what is under way: another `Released` with
    /// another heir may follow, or a `Start` under the next epoch, to which it belongs.
    Released {
        /// Which.
        partition: PartitionId,
        /// Whose.
        epoch: Epoch,
        /// Whom to tell.
        heir: Option<BrokerId>,
    },
    /// Its lease is lost: end it at once. Nothing that it writes counts any more.
    Drop {
        /// Which.
        partition: PartitionId,
        /// Whose.
        epoch: Epoch,
    },
    /// Who is there and who holds what, as far as is known. Comes with every heartbeat and every change.
    Publish(Arc<View>),
    /// This broker's clock is off from the others' by so many milliseconds (ahead if positive), and it gives up its partitions;
    /// `None`: it is trusted again.
    Skew(Option<i64>),
    /// All is given back, or the time for that is over: the broker may stop. Nothing comes after it.
    Left,
}

/// What one broker knows of all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct View {
    /// Who holds what, and who leads.
    pub topology: Topology,
    /// Who is there, in the order of their ids.
    pub present: Vec<Seen>,
}

/// A broker that is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// Who.
    pub broker: BrokerId,
    /// When it last said so, by our clock.
    pub heard_at: Timestamp,
    /// Whether it wants no partitions.
    pub leaving: bool,
    /// How far its clock is ahead of the store's, in milliseconds.
    pub ahead_ms: Option<i64>,
}
