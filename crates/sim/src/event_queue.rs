//! The queue of future events, in the order of their time.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use punctual_cluster::MemberAction;
use punctual_core::{Epoch, Outcome, PartitionId};
use punctual_engine::{Action as OwnerAction, Command, EngineError, InFlight, Reply, Report};

use crate::faults::SimFault;
use crate::store::{StoreAnswer, StoreRequest};

/// What happens.
#[derive(Debug)]
pub(crate) enum SimEvent {
    /// A timer of a broker is due.
    Wake,
    /// A request of a broker reaches the store.
    StoreReceives(u64, usize, StoreRequest),
    /// The answer of the store arrives.
    StoreAnswered(u64, StoreAnswer),
    /// The timeout of a request to the store.
    StoreTimedOut(u64),
    /// A paused broker carries out what its member had decided.
    MemberActs(Vec<MemberAction>, punctual_core::Timestamp),
    /// A paused broker carries out what an owner had decided.
    OwnerActs(PartitionId, Epoch, Vec<OwnerAction>),
    /// The wait of a delivery is over: its first byte is to leave now.
    FirstByte(u64),
    /// The courier of a delivery stops waiting: it was recalled, no worker has taken it, or no
    /// connection could be opened, which is an outcome.
    WaitEnds(u64, Option<Outcome>),
    /// A queue has workers that take this many deliveries at once from now on.
    Workers(usize, usize),
    /// A courier reports a delivery.
    DeliveryEnded(PartitionId, Epoch, Report),
    /// Reports whose owner is gone are forwarded to the present owner, until a time.
    ForwardReports(PartitionId, Vec<Report>, u64),
    /// Reports of another broker arrive.
    ReportsForwarded {
        from: (usize, u32),
        partition: PartitionId,
        reports: Vec<Report>,
        until: u64,
    },
    /// The present owner has accepted forwarded reports.
    ReportsAccepted,
    /// The command of a caller arrives at a broker.
    CallArrived(u64),
    /// A broker tries again to find the owner.
    RetryCall(u64),
    /// The command of a peer arrives.
    PeerCall {
        from: (usize, u32),
        call: u64,
        partition: PartitionId,
        command: Box<Command>,
    },
    /// The reply of a peer arrives.
    PeerReply(u64, Box<Result<Reply, EngineError>>),
    /// Another broker has released a partition for this one.
    Take {
        from: (usize, u32),
        take: PartitionTake,
    },
    /// The successor has started an owner with this epoch. `None` if it has refused, or has not
    /// answered in time.
    Taken {
        partition: PartitionId,
        before: Epoch,
        by: usize,
        epoch: Option<Epoch>,
    },
    /// A caller sends its next command.
    CallerActs,
    /// An answer arrives at a caller.
    CallerAnswered(u64, Box<Result<Reply, EngineError>>),
    /// A caller repeats a command.
    CallerRetries(u64),
    /// The timeout of a caller.
    CallTimedOut(u64),
    Fault(SimFault),
    /// All faults end.
    Heal,
    /// Checks whether the cluster has come to rest.
    CheckRest,
}

/// A released partition, and what its previous owner has in flight.
#[derive(Debug)]
pub(crate) struct PartitionTake {
    pub(crate) partition: PartitionId,
    /// The epoch of the previous owner.
    pub(crate) before: Epoch,
    pub(crate) in_flight: Vec<InFlight>,
}

/// One incarnation of a broker; `None` for the simulation itself.
pub(crate) type To = Option<(usize, u32)>;

#[derive(Debug)]
struct QueuedEvent {
    at: u64,
    number: u64,
    to: To,
    event: SimEvent,
}

impl PartialEq for QueuedEvent {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for QueuedEvent {}

impl PartialOrd for QueuedEvent {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for QueuedEvent {
    /// Reversed, because a heap returns its greatest entry first.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

#[derive(Debug, Default)]
pub(crate) struct EventQueue {
    queue: BinaryHeap<QueuedEvent>,
    number: u64,
}

impl EventQueue {
    pub(crate) fn send(&mut self, at: u64, to: To, event: SimEvent) {
        self.number += 1;
        self.queue.push(QueuedEvent { at, number: self.number, to, event });
    }

    /// Removes and returns the next event, with its time and recipient.
    pub(crate) fn next(&mut self) -> Option<(u64, To, SimEvent)> {
        let QueuedEvent { at, to, event, .. } = self.queue.pop()?;
        Some((at, to, event))
    }
}
