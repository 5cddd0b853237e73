//! Carries out the actions of an owner: reads and writes of the store and deliveries.
//!
//! Everything that may take long runs as a task on the runtime and comes back as an event. Small
//! batches and lookups are polled by the owner's thread itself, because two hops through the
//! runtime take longer than the store does. A store that has to wait for a disk or a network does
//! not do so in the poll.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use punctual_core::{Epoch, PartitionId};
use punctual_store::{Batch, Retention, TaskStore};
use tokio::runtime;

use crate::commands::lookup::LookupResult;
use crate::delivery::courier::Courier;
use crate::event::{Action, Event};
use crate::handle::error::EngineError;
use crate::ownership::recover::Ownership;
use crate::shell::failure::{OwnerFailure, catch_panic_in};
use crate::shell::message::{Message, OrphanReports, Reports};
use crate::shell::next_batch::NextBatch;

/// Changes of a batch that the thread polls itself: some tens of microseconds of encoding.
const POLLED_CHANGES_MAX: usize = 64;

/// The least time without anything due in which the thread may wait for a disk: less is needed to
/// fire on time.
const SPARE_MIN: Duration = Duration::from_millis(1);

/// Subjects of a lookup that the thread polls itself: some microseconds if the store has the answer
/// in memory.
const POLLED_LOOKUPS_MAX: usize = 16;

/// Carries out the actions of one owner.
pub(crate) struct ActionExecutor<S, K> {
    partition: PartitionId,
    epoch: Epoch,
    store: Arc<S>,
    courier: Arc<K>,
    retention: Retention,
    runtime: runtime::Handle,
    messages: Sender<Message>,
    reports: Reports,
    next_batch: Arc<NextBatch>,
    /// The write that the thread polls itself.
    batch: RefCell<Option<PendingEvent>>,
    /// Sends [`Message::BatchReady`] when that write may have finished.
    waker: Waker,
    orphans: OrphanReports,
}

/// Work that ends with an event.
type PendingEvent = Pin<Box<dyn Future<Output = Event> + Send>>;

struct BatchWaker(Sender<Message>);

impl Wake for BatchWaker {
    fn wake(self: Arc<Self>) {
        // A thread that has ended polls nothing.
        let _ = self.0.send(Message::BatchReady);
    }
}

impl<S, K> ActionExecutor<S, K> {
    /// Creates an executor that uses the runtime of the caller.
    pub(crate) fn new(
        ownership: Ownership,
        store: Arc<S>,
        courier: Arc<K>,
        retention: Retention,
        messages: Sender<Message>,
        next_batch: Arc<NextBatch>,
        orphans: OrphanReports,
    ) -> Self {
        Self {
            partition: ownership.partition,
            epoch: ownership.epoch,
            store,
            courier,
            retention,
            runtime: runtime::Handle::current(),
            messages: messages.clone(),
            reports: Reports::new(messages.clone(), ownership.partition, ownership.epoch),
            next_batch,
            batch: RefCell::default(),
            waker: Waker::from(Arc::new(BatchWaker(messages))),
            orphans,
        }
    }

    pub(crate) const fn runtime(&self) -> &runtime::Handle {
        &self.runtime
    }

    pub(crate) const fn orphans(&self) -> &OrphanReports {
        &self.orphans
    }

    /// Turns a message into events. The answer to a batch brings the calls that waited for it.
    pub(crate) fn receive(
        &self,
        message: Message,
        events: &mut VecDeque<Event>,
    ) -> Result<(), OwnerFailure> {
        let event = match message {
            Message::Event(event) => Some(event),
            Message::BatchReady => self.poll_batch(),
            Message::Failed(failure) => return Err(failure),
        };
        if matches!(event, Some(Event::Applied(_))) {
            events.extend(self.next_batch.close().into_iter().map(Event::Call));
        }
        events.extend(event);
        Ok(())
    }

    /// Runs work on the runtime that ends with an event.
    fn spawn(&self, work: impl Future<Output = Event> + Send + 'static) {
        self.spawn_caught(async move { Some(work.await) });
    }

    /// Runs work on the runtime. If it panics, the owner ends: it would wait for the event, or for
    /// the reports of a courier, without end.
    fn spawn_caught(&self, work: impl Future<Output = Option<Event>> + Send + 'static) {
        let messages = self.messages.clone();
        self.runtime.spawn(async move {
            let message = match catch_panic_in(work).await {
                Ok(event) => event.map(Message::Event),
                Err(failure) => Some(Message::Failed(failure)),
            };
            // An owner that has ended takes no messages.
            message.map(|message| messages.send(message));
        });
    }

    /// Polls work once, and runs it on the runtime if it has not finished then.
    fn poll_or_spawn(&self, work: impl Future<Output = Event> + Send + 'static) {
        let mut work = Box::pin(work);
        match work.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(event) => _ = self.messages.send(Message::Event(event)),
            Poll::Pending => self.spawn(work),
        }
    }

    /// Starts a write that this thread polls. At most one batch is in flight.
    fn start_batch(&self, work: impl Future<Output = Event> + Send + 'static) {
        *self.batch.borrow_mut() = Some(Box::pin(work));
        if let Some(event) = self.poll_batch() {
            let _ = self.messages.send(Message::Event(event));
        }
    }

    /// Writes a batch. While the owner does not need its thread for `spare`, the store may use it.
    fn apply(&self, batch: Batch, spare: Duration)
    where
        S: TaskStore,
    {
        let (partition, epoch, store) = (self.partition, self.epoch, Arc::clone(&self.store));
        self.next_batch.open();
        if batch.changes.len() > POLLED_CHANGES_MAX {
            let work = async move { Event::Applied(store.apply(partition, epoch, batch).await) };
            return self.spawn(work);
        }
        let spare = if spare < SPARE_MIN { Duration::ZERO } else { spare };
        let work = async move { store.apply_here(partition, epoch, batch, spare).await };
        self.start_batch(async move { Event::Applied(work.await) });
    }

    /// Polls the write of this thread and returns its event once it has finished.
    fn poll_batch(&self) -> Option<Event> {
        // Taken out for the poll: a write that panics must not be polled again.
        let mut batch = self.batch.take()?;
        match batch.as_mut().poll(&mut Context::from_waker(&self.waker)) {
            Poll::Ready(event) => Some(event),
            Poll::Pending => {
                self.batch.replace(Some(batch));
                None
            }
        }
    }
}

impl<S: TaskStore, K: Courier> ActionExecutor<S, K> {
    /// Starts an action. [`Action::Stop`] and [`Action::End`] end the thread's loop instead. A
    /// batch may block the thread for about `spare`, so other actions are started first.
    pub(crate) fn perform(&self, action: Action, spare: Duration) {
        let (partition, epoch) = (self.partition, self.epoch);
        let store = Arc::clone(&self.store);
        match action {
            Action::Apply(batch) => self.apply(batch, spare),
            Action::Load { after, until, limit } => self.spawn(async move {
                Event::Loaded(store.load(partition, after, until, limit).await)
            }),
            Action::Lookup(lookups) => {
                let is_small = lookups.len() <= POLLED_LOOKUPS_MAX;
                let work = async move {
                    let results = LookupResult::read(store.as_ref(), partition, lookups);
                    Event::LookupResult(results.await)
                };
                if is_small { self.poll_or_spawn(work) } else { self.spawn(work) }
            }
            Action::Sweep(now) => {
                let retention = self.retention;
                self.spawn(async move {
                    Event::Swept(store.sweep(partition, epoch, retention, now).await)
                });
            }
            Action::Deliver(deliveries) => {
                let courier = Arc::clone(&self.courier);
                let reports = self.reports.clone();
                // The courier is quick, but the thread has timers to watch.
                self.spawn_caught(async move {
                    courier.carry(deliveries, &reports);
                    None
                });
            }
            Action::OrphanReport(reports) => self.orphans.send(partition, reports),
            Action::Stop(_) | Action::End => unreachable!("the loop ends with these"),
        }
    }
}

impl<S, K> Drop for ActionExecutor<S, K> {
    /// The runtime finishes a write that was started; calls that wait for the next batch are
    /// refused.
    fn drop(&mut self) {
        if let Some(batch) = self.batch.take() {
            self.runtime.spawn(batch);
        }
        for call in self.next_batch.close() {
            call.refuse(&EngineError::Stopped);
        }
    }
}
