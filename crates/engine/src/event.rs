//! Events, which an owner takes, and actions, which it asks for. The shell carries both; every
//! action that reads, writes or delivers is answered with an event.

use std::time::Duration;

use punctual_core::{ConnectionName, Namespace, Queue, Task, Timestamp};
use punctual_store::{Batch, Position, StoreError, Swept};
use tokio::sync::oneshot;

use crate::commands::lookup::{Lookup, LookupResult};
use crate::delivery::attempt::{Delivery, Report};
use crate::delivery::lane::ConnectionState;
use crate::delivery::lane_view::{LaneQuery, OwnerView};
use crate::gauges::Gauges;
use crate::handle::call::Call;
use crate::handle::error::EngineError;
use crate::idle::IdleReport;
use crate::ownership::in_flight::InFlight;

/// How long to wait before a store that was unavailable is asked again.
const STORE_PAUSE: Duration = Duration::from_millis(100);

/// What happens to an owner.
#[derive(Debug)]
pub enum Event {
    /// A caller sends commands.
    Call(Call),
    /// The store has answered [`Action::Apply`].
    Applied(Result<(), StoreError>),
    /// The store has answered [`Action::Load`].
    Loaded(Result<Vec<Task>, StoreError>),
    /// The store has answered [`Action::Lookup`].
    LookupResult(Vec<LookupResult>),
    /// Couriers report outcomes, of this broker or of one that passes their reports on.
    Ended(Vec<Report>),
    /// The workers of a queue take another number of deliveries at once from now on.
    Capacity {
        /// The namespace of the queue.
        namespace: Namespace,
        /// The queue that the workers subscribe to.
        queue: Queue,
        /// Deliveries at once, those in flight included; zero if there is no worker.
        capacity: usize,
    },
    /// A connection to which sinks deliver is away, or is back.
    Connection(ConnectionName, ConnectionState),
    /// The store has answered [`Action::Sweep`].
    Swept(Result<Swept, StoreError>),
    /// Asks for the gauges of one namespace, or of all.
    Gauge(Option<Namespace>, oneshot::Sender<Gauges>),
    /// Asks for the lanes of a namespace.
    View(Namespace, LaneQuery, oneshot::Sender<OwnerView>),
    /// Asks for a report once nothing is left to do at the present time.
    WhenIdle(oneshot::Sender<IdleReport>),
    /// Start nothing new; finish what is in flight.
    Drain,
    /// The lease of the partition was extended to this time.
    Extend(Timestamp),
    /// Another broker takes over: start nothing, write everything, return what is in flight, end.
    HandOver(oneshot::Sender<Result<Vec<InFlight>, EngineError>>),
    /// The partition is lost: end at once.
    End,
}

impl Event {
    /// Estimates how much there is to decide, in commands, tasks or reports.
    pub(crate) fn weight(&self) -> usize {
        let weight = match self {
            Self::Call(call) => call.commands.len(),
            Self::Loaded(Ok(tasks)) => tasks.len(),
            Self::LookupResult(results) => results.len(),
            Self::Ended(reports) => reports.len(),
            _ => 0,
        };
        weight.max(1)
    }

    /// Whether the store was available; `None` if the event is not an answer of the store.
    pub(crate) fn store_available(&self) -> Option<bool> {
        let away = |error: Option<&StoreError>| matches!(error, Some(StoreError::Unavailable(_)));
        match self {
            Self::Applied(result) => Some(!away(result.as_ref().err())),
            Self::Loaded(result) => Some(!away(result.as_ref().err())),
            Self::LookupResult(results) => {
                Some(!results.iter().any(|result| away(result.result.as_ref().err())))
            }
            _ => None,
        }
    }
}

/// What an owner asks its shell to do.
#[derive(Debug)]
pub enum Action {
    /// Write these changes; answer with [`Event::Applied`].
    Apply(Batch),
    /// Read the next tasks by time; answer with [`Event::Loaded`].
    Load {
        /// Exclusive start.
        after: Position,
        /// Exclusive end.
        until: Timestamp,
        /// The largest number of tasks to read.
        limit: usize,
    },
    /// Read what the store has about these subjects; answer with [`Event::LookupResult`].
    Lookup(Vec<Lookup>),
    /// Delete what is past its retention at this time; answer with [`Event::Swept`].
    Sweep(Timestamp),
    /// Send these deliveries; answer with [`Event::Ended`].
    Deliver(Vec<Delivery>),
    /// Pass these reports on to the next owner of the partition.
    OrphanReport(Vec<Report>),
    /// Stop: this owner may not or cannot continue.
    Stop(StoreError),
    /// Stop: this owner has ended as requested.
    End,
}

/// The actions that an owner has asked for and the shell has not taken yet.
#[derive(Debug, Default)]
pub(crate) struct ActionQueue {
    ready: Vec<Action>,
    /// Actions to try again when the store was unavailable.
    later: Vec<(Timestamp, Action)>,
}

impl ActionQueue {
    pub(crate) fn push(&mut self, action: Action) {
        self.ready.push(action);
    }

    /// Adds an action that is repeated after a pause, because the store was unavailable.
    pub(crate) fn retry(&mut self, action: Action, now: Timestamp) {
        self.later.push((now.after(STORE_PAUSE), action));
    }

    /// Moves the actions whose pause is over to those that are ready.
    pub(crate) fn release_due(&mut self, now: Timestamp) {
        let due = self.later.extract_if(.., |(at, _)| *at <= now);
        self.ready.extend(due.map(|(_, action)| action));
    }

    /// Returns when the first pause is over.
    pub(crate) fn next_retry(&self) -> Option<Timestamp> {
        self.later.iter().map(|(at, _)| *at).min()
    }

    /// Takes the actions that are ready.
    pub(crate) fn take(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.ready)
    }
}
