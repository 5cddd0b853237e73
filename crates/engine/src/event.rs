//! What an owner is told, and what it wants done: the two closed sets that its shell carries.

use punctual_core::{Namespace, Queue, Task, Timestamp};
use punctual_store::{Batch, Position, StoreError, Swept};
use tokio::sync::oneshot;

use crate::commands::lookup::{Lookup, LookupResult};
use crate::delivery::deliver::{Delivery, Report};
use crate::gauges::Gauges;
use crate::handle::call::Call;
use crate::handle::command::EngineError;
use crate::ownership::hand_over::InFlight;

/// What an owner is told.
#[derive(Debug)]
pub enum Event {
    /// Somebody wants something.
    Call(Call),
    /// The store has answered [`Action::Apply`].
    Applied(Result<(), StoreError>),
    /// The store has answered [`Action::Load`].
    Loaded(Result<Vec<Task>, StoreError>),
    /// The store has answered [`Action::Lookup`].
    LookupResult(Vec<LookupResult>),
    /// Couriers have come back, here or at a broker that passes it on.
    Ended(Vec<Report>),
    /// The workers of a queue want so many deliveries at once from now on.
    Capacity {
        /// Of whom
        namespace: Namespace,
        /// and where.
        queue: Queue,
        /// Those under way included. None: nobody is there.
        room: usize,
    },
    /// The store has answered [`Action::Sweep`].
    Swept(Result<Swept, StoreError>),
    /// Somebody wants to know how much there is, of one namespace or of all.
    Gauge(Option<Namespace>, oneshot::Sender<Gauges>),
    /// Start nothing new; what is under way goes on.
    Drain,
    /// The lease of the partition is good until then.
    Extend(Timestamp),
    /// Another broker takes over: start nothing, make everything durable, and tell what is under way.
    HandOver(oneshot::Sender<Result<Vec<InFlight>, EngineError>>),
    /// The partition is lost: end at once.
    End,
}

impl Event {
    /// About how much there is to decide.
    pub(crate) fn weight(&self) -> usize {
        let weight = match self {
            Self::Call(call) => call.commands.len(),
            Self::Loaded(Ok(tasks)) => tasks.len(),
            Self::LookupResult(looked) => looked.len(),
            Self::Ended(reports) => reports.len(),
            _ => 0,
        };
        weight.max(1)
    }

    /// Whether the store has answered; `None` if this is not of the store.
    pub(crate) fn store_answers(&self) -> Option<bool> {
        let away = |error: Option<&StoreError>| matches!(error, Some(StoreError::Unavailable(_)));
        match self {
            Self::Applied(result) => Some(!away(result.as_ref().err())),
            Self::Loaded(result) => Some(!away(result.as_ref().err())),
            Self::LookupResult(looked) => {
                Some(!looked.iter().any(|looked| away(looked.result.as_ref().err())))
            }
            _ => None,
        }
    }
}

/// What an owner wants done.
#[derive(Debug)]
pub enum Action {
    /// Make these changes durable; answer with [`Event::Applied`].
    Apply(Batch),
    /// Read the next tasks by time; answer with [`Event::Loaded`].
    Load {
        /// From here,
        after: Position,
        /// to here,
        until: Timestamp,
        /// at most so many.
        limit: usize,
    },
    /// Lookup these up; answer with [`Event::LookupResult`].
    Lookup(Vec<Lookup>),
    /// Delete what is past its retention now; answer with [`Event::Swept`].
    Sweep(Timestamp),
    /// Carry these; answer with [`Event::Ended`].
    Deliver(Vec<Delivery>),
    /// Pass these on to the owner who comes next.
    OrphanReport(Vec<Report>),
    /// Stop: this owner may not or cannot go on.
    Stop(StoreError),
    /// Stop: this owner has ended as it was told to.
    End,
}
