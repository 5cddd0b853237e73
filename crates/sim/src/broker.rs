//! A broker: a member and its owners, as values, with what the shell of `server` keeps beside them.
//!
//! What `server/src/{cluster,owners,home}.rs` does with threads and connections is done here by mail that `world` carries.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use punctual_cluster::Member;
use punctual_core::{BrokerId, Epoch, PartitionId, Timestamp, Topology};
use punctual_engine::{Command, EngineError, InFlight, Owner, Replies};
use tokio::sync::oneshot::Receiver;

use crate::clock::Clock;
use crate::mail::What;

/// What is told at the end of a hand-over.
pub(crate) type Flights = Receiver<Result<Vec<InFlight>, EngineError>>;

pub(crate) struct Broker {
    pub(crate) id: BrokerId,
    /// Counts its starts: mail for an earlier life is lost.
    pub(crate) life: u32,
    pub(crate) standing: Standing,
    pub(crate) started_at: u64,
    /// It was told to leave.
    pub(crate) is_leaving: bool,
    pub(crate) clock: Clock,
    /// Since when its clock is off by more than is allowed, by the true time.
    pub(crate) skewed_since: Option<u64>,
    pub(crate) member: Option<Member>,
    pub(crate) owners: BTreeMap<PartitionId, Held>,
    /// Owners that have come to their end.
    pub(crate) ended: BTreeSet<(PartitionId, Epoch)>,
    /// Who holds what, as far as it knows.
    pub(crate) topology: Topology,
    /// Under way elsewhere, of partitions that are offered to it.
    pub(crate) offered: BTreeMap<PartitionId, Vec<InFlight>>,
    /// Under way here, of partitions that it lets go of.
    pub(crate) parting: BTreeMap<PartitionId, Parting>,
    /// Owners that are to become quiet.
    pub(crate) quieting: Vec<(PartitionId, Epoch, Flights)>,
    /// Partitions that others have let go of for it: who waits for a word.
    pub(crate) taking: Vec<Taking>,
    /// Calls that wait for an owner here.
    pub(crate) open: Vec<Open>,
    /// What has come while it is paused.
    pub(crate) inbox: VecDeque<What>,
    /// Owners with something to do.
    pub(crate) stirred: BTreeSet<PartitionId>,
    /// The member has something to do.
    pub(crate) member_stirred: bool,
    /// It is paused as soon as somebody has decided something, before that is done.
    pub(crate) freezes: Option<u64>,
    /// When it is woken next.
    pub(crate) wakes_at: Option<u64>,
    /// Deliveries and reports that are still with it, though its member may have left.
    pub(crate) carried: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    Dead,
    Runs,
    /// Stopped by a signal; goes on where it stood.
    Paused,
    /// Its member has left; it stays until its couriers are back.
    Left,
}

/// An owner that runs.
pub(crate) struct Held {
    pub(crate) epoch: Epoch,
    pub(crate) owner: Owner,
    /// Until when it may act.
    pub(crate) until: Timestamp,
}

/// What is under way of a partition that is let go of.
pub(crate) struct Parting {
    pub(crate) epoch: Epoch,
    pub(crate) flights: Vec<InFlight>,
    /// Who is being told.
    pub(crate) successor: Option<usize>,
}

pub(crate) struct Taking {
    pub(crate) partition: PartitionId,
    /// Under which epoch it was another's.
    pub(crate) before: Epoch,
    /// Who has let go of it, in which life.
    pub(crate) from: (usize, u32),
}

/// A command that an owner has been asked.
pub(crate) struct Open {
    pub(crate) call: u64,
    /// The broker that asks, and its life.
    pub(crate) from: (usize, u32),
    pub(crate) command: Command,
    /// Which owner.
    pub(crate) epoch: Epoch,
    pub(crate) answers: Receiver<Replies>,
}

impl Broker {
    pub(crate) fn new(id: BrokerId, clock: Clock, topology: Topology) -> Self {
        Self {
            id,
            life: 0,
            standing: Standing::Dead,
            started_at: 0,
            is_leaving: false,
            clock,
            skewed_since: None,
            member: None,
            owners: BTreeMap::new(),
            ended: BTreeSet::new(),
            topology,
            offered: BTreeMap::new(),
            parting: BTreeMap::new(),
            quieting: Vec::new(),
            taking: Vec::new(),
            open: Vec::new(),
            inbox: VecDeque::new(),
            stirred: BTreeSet::new(),
            member_stirred: false,
            freezes: None,
            wakes_at: None,
            carried: 0,
        }
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.standing != Standing::Dead
    }

    /// Whether there is an owner here that has not come to its end.
    pub(crate) fn decides(&self, partition: PartitionId) -> bool {
        self.epoch(partition).is_some_and(|epoch| !self.ended.contains(&(partition, epoch)))
    }

    /// The epoch of the owner here.
    pub(crate) fn epoch(&self, partition: PartitionId) -> Option<Epoch> {
        self.owners.get(&partition).map(|held| held.epoch)
    }
}
