//! The handle of a running owner: sends calls and events to its thread (`shell::thread`).
//!
//! At most [`COMMANDS_MAX`] commands are pending at once; further calls are refused with
//! [`EngineError::Busy`]. A small call that only adds tasks waits for the next batch without waking
//! the thread (`shell::next_batch`).

use std::sync::Arc;
use std::sync::mpsc::{SendError, Sender};

use punctual_core::{ConnectionName, Namespace, Queue, Timestamp};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::delivery::attempt::Report;
use crate::delivery::lane::ConnectionState;
use crate::delivery::lane_view::{LaneQuery, OwnerView};
use crate::event::Event;
use crate::gauges::Gauges;
use crate::handle::call::{Call, Replies};
use crate::handle::command::Command;
use crate::handle::error::EngineError;
use crate::idle::IdleReport;
use crate::ownership::in_flight::InFlight;
use crate::shell::message::Message;
use crate::shell::next_batch::NextBatch;

/// Commands of one owner that may be pending at once. Each holds one task; more means that the
/// store cannot keep up.
pub const COMMANDS_MAX: usize = 65_536;

/// A handle of a running owner. Clones lead to the same owner.
#[derive(Debug, Clone)]
pub struct OwnerHandle {
    messages: Sender<Message>,
    next_batch: Arc<NextBatch>,
    permits: Arc<Semaphore>,
}

impl OwnerHandle {
    pub(crate) fn new(messages: Sender<Message>, next_batch: Arc<NextBatch>) -> Self {
        Self { messages, next_batch, permits: Arc::new(Semaphore::new(COMMANDS_MAX)) }
    }

    /// Sends several commands at once, at most [`COMMANDS_MAX`]. Yields one reply each, in order.
    ///
    /// The call is sent before this returns, so calls are decided in the order in which they are
    /// made, not in the order in which their futures are polled.
    pub fn call(
        &self,
        commands: Vec<Command>,
    ) -> impl Future<Output = Result<Replies, EngineError>> + Send + use<> {
        let pending = self.send_call(commands);
        async move {
            let (replies, _permit) = pending?;
            replies.await.map_err(|_| EngineError::Lost)
        }
    }

    fn send_call(
        &self,
        commands: Vec<Command>,
    ) -> Result<(oneshot::Receiver<Replies>, OwnedSemaphorePermit), EngineError> {
        let count = u32::try_from(commands.len()).map_err(|_| EngineError::Busy)?;
        let permits = Arc::clone(&self.permits);
        let permit = permits.try_acquire_many_owned(count).map_err(|_| EngineError::Busy)?;
        let (call, replies) = Call::new(commands);
        if let Some(call) = self.next_batch.wait(call) {
            self.send(Event::Call(call)).map_err(|_| EngineError::Stopped)?;
        }
        Ok((replies, permit))
    }

    fn send(&self, event: Event) -> Result<(), SendError<Message>> {
        self.messages.send(Message::Event(event))
    }

    /// Sets how many deliveries the workers of a queue take at once, those in flight included.
    pub fn set_capacity(&self, namespace: Namespace, queue: Queue, capacity: usize) {
        let _ = self.send(Event::Capacity { namespace, queue, capacity });
    }

    /// Says that a connection is away, so that its lanes wait, or is back.
    pub fn set_connection(&self, connection: ConnectionName, state: ConnectionState) {
        let _ = self.send(Event::Connection(connection, state));
    }

    /// Returns the gauges of one namespace, or of all.
    pub async fn gauges(&self, namespace: Option<Namespace>) -> Result<Gauges, EngineError> {
        let (reply, gauges) = oneshot::channel();
        self.send(Event::Gauge(namespace, reply)).map_err(|_| EngineError::Stopped)?;
        gauges.await.map_err(|_| EngineError::Stopped)
    }

    /// Returns the lanes of a namespace that a caller wants to see.
    pub async fn view(
        &self,
        namespace: Namespace,
        query: LaneQuery,
    ) -> Result<OwnerView, EngineError> {
        let (reply, view) = oneshot::channel();
        self.send(Event::View(namespace, query, reply)).map_err(|_| EngineError::Stopped)?;
        view.await.map_err(|_| EngineError::Stopped)
    }

    /// Wakes the owner, and returns a report once it has nothing left to do at the present time.
    /// Deliveries to queues may be in flight then.
    ///
    /// The message is sent before this returns.
    pub fn when_idle(
        &self,
    ) -> impl Future<Output = Result<IdleReport, EngineError>> + Send + use<> {
        let (reply, report) = oneshot::channel();
        let sent = self.send(Event::WhenIdle(reply));
        async move {
            sent.map_err(|_| EngineError::Stopped)?;
            report.await.map_err(|_| EngineError::Stopped)
        }
    }

    /// Stops taking work. The owner ends when everything in flight has ended.
    pub fn drain(&self) {
        let _ = self.send(Event::Drain);
    }

    /// Extends the lease of the partition.
    pub fn extend(&self, until: Timestamp) {
        let _ = self.send(Event::Extend(until));
    }

    /// Hands the partition over: the owner starts nothing new, writes everything, waits up to
    /// [`HAND_OVER_WAIT`](crate::HAND_OVER_WAIT) for deliveries in flight and returns those that
    /// are left. Later calls are refused with [`EngineError::Stopped`]; later reports are orphans.
    ///
    /// Fails with [`EngineError::Lost`] if the store could not be written in time. The successor
    /// then recovers as after a crash.
    pub fn hand_over(
        &self,
    ) -> impl Future<Output = Result<Vec<InFlight>, EngineError>> + Send + use<> {
        let (reply, in_flight) = oneshot::channel();
        let sent = self.send(Event::HandOver(reply));
        async move {
            sent.map_err(|_| EngineError::Stopped)?;
            in_flight.await.unwrap_or(Err(EngineError::Stopped))
        }
    }

    /// Ends the owner at once, without further writes, because its lease is lost.
    pub fn end(&self) {
        let _ = self.send(Event::End);
    }

    /// Passes on reports that couriers of another broker made about deliveries that were in flight
    /// when the partition was handed over.
    pub fn report(&self, reports: Vec<Report>) {
        let reports = reports.into_iter().map(Report::passed_on).collect();
        let _ = self.send(Event::Ended(reports));
    }
}
