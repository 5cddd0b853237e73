//! A broker: a member, the moves of its partitions and its owners as values, and what is in flight
//! between them.
//!
//! What `server/src/{membership,routing,peer}` does with threads and connections is done here with
//! events.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use punctual_cluster::{Member, PartitionMoves};
use punctual_core::{BrokerId, Epoch, PartitionId, Timestamp, Topology};
use punctual_engine::{Command, Delivery, EngineError, InFlight, Owner, Replies};
use tokio::sync::oneshot::Receiver;

use crate::clock::SimClock;
use crate::event_queue::SimEvent;
use crate::waits::QUEUES;

/// What an owner returns when it has stopped for a hand-over.
pub(crate) type HandOverReply = Receiver<Result<Vec<InFlight>, EngineError>>;

pub(crate) struct SimBroker {
    pub(crate) id: BrokerId,
    /// Counts its starts: events for an earlier incarnation are dropped.
    pub(crate) incarnation: u32,
    pub(crate) state: BrokerState,
    pub(crate) started_at: u64,
    pub(crate) is_leaving: bool,
    pub(crate) clock: SimClock,
    /// Since when its clock differs by more than is allowed, in true time.
    pub(crate) skewed_since: Option<u64>,
    pub(crate) member: Option<Member>,
    pub(crate) owners: BTreeMap<PartitionId, RunningOwner>,
    /// Owners that have ended.
    pub(crate) ended: BTreeSet<(PartitionId, Epoch)>,
    /// The owners of all partitions, as far as it knows.
    pub(crate) topology: Topology,
    /// Partitions that come and go.
    pub(crate) moves: PartitionMoves<InFlight, OfferReply>,
    /// Owners that are to stop for a hand-over.
    pub(crate) stopping: Vec<(PartitionId, Epoch, HandOverReply)>,
    /// Answers to offers that are not sent yet.
    pub(crate) answers: Vec<(OfferReply, Option<Epoch>)>,
    /// Calls that wait for the reply of a local owner.
    pub(crate) open: Vec<OpenCall>,
    /// Events that arrived while it is paused.
    pub(crate) inbox: VecDeque<SimEvent>,
    /// Owners that have something to do.
    pub(crate) ready_owners: BTreeSet<PartitionId>,
    /// Whether the member has something to do.
    pub(crate) member_ready: bool,
    /// Pauses the broker for this long as soon as the member or an owner has decided something,
    /// before the decision is carried out.
    pub(crate) freeze_ms: Option<u64>,
    /// When its next wake-up is due.
    pub(crate) wakes_at: Option<u64>,
    /// Deliveries that wait in their couriers, by number.
    pub(crate) waiting: BTreeMap<u64, WaitingDelivery>,
    /// How many deliveries each owner has sent that were not reported to it.
    pub(crate) sent: BTreeMap<(PartitionId, Epoch), usize>,
    /// How many deliveries the workers of each queue take at once.
    pub(crate) capacities: [usize; QUEUES.len()],
    /// Deliveries and reports in flight; the broker stays until there are none, even if its member
    /// has left.
    pub(crate) in_flight_count: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BrokerState {
    Dead,
    Runs,
    /// Stopped by a signal; continues later from the same state.
    Paused,
    /// Its member has left; it stays until nothing is in flight.
    Left,
}

/// A running owner.
pub(crate) struct RunningOwner {
    pub(crate) epoch: Epoch,
    pub(crate) owner: Owner,
    /// Until when it may act.
    pub(crate) until: Timestamp,
    /// How many deliveries in flight it has inherited.
    pub(crate) inherited: usize,
}

/// A delivery whose first byte has not left.
pub(crate) struct WaitingDelivery {
    pub(crate) partition: PartitionId,
    pub(crate) epoch: Epoch,
    pub(crate) delivery: Delivery,
    /// The courier stops waiting for its sake.
    pub(crate) ends: bool,
}

/// Where the answer to an offer goes.
#[derive(Debug)]
pub(crate) struct OfferReply {
    pub(crate) partition: PartitionId,
    /// The epoch of the previous owner.
    pub(crate) before: Epoch,
    /// The broker that released the partition, and its incarnation.
    pub(crate) to: (usize, u32),
}

/// A command that a local owner has received.
pub(crate) struct OpenCall {
    pub(crate) call: u64,
    /// The broker that sent it, and its incarnation.
    pub(crate) from: (usize, u32),
    pub(crate) command: Command,
    /// The epoch of the owner.
    pub(crate) epoch: Epoch,
    pub(crate) answers: Receiver<Replies>,
}

impl SimBroker {
    pub(crate) fn new(id: BrokerId, clock: SimClock, topology: Topology) -> Self {
        Self {
            id,
            incarnation: 0,
            state: BrokerState::Dead,
            started_at: 0,
            is_leaving: false,
            clock,
            skewed_since: None,
            member: None,
            owners: BTreeMap::new(),
            ended: BTreeSet::new(),
            topology,
            moves: PartitionMoves::default(),
            stopping: Vec::new(),
            answers: Vec::new(),
            open: Vec::new(),
            inbox: VecDeque::new(),
            ready_owners: BTreeSet::new(),
            member_ready: false,
            freeze_ms: None,
            wakes_at: None,
            waiting: BTreeMap::new(),
            sent: BTreeMap::new(),
            capacities: [0; QUEUES.len()],
            in_flight_count: 0,
        }
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.state != BrokerState::Dead
    }

    /// Returns whether a local owner exists and has not ended.
    pub(crate) fn decides(&self, partition: PartitionId) -> bool {
        self.epoch(partition).is_some_and(|epoch| !self.ended.contains(&(partition, epoch)))
    }

    /// Returns the epoch of the local owner.
    pub(crate) fn epoch(&self, partition: PartitionId) -> Option<Epoch> {
        self.owners.get(&partition).map(|held| held.epoch)
    }
}
