//! The shell: runs an owner on a thread of its own and does what it wants done.
//!
//! In: commands through a [`Handle`]. Out: reads and writes of the store and deliveries, each a task on the runtime that
//! comes back as an event. Invariant: the thread that waits for time does nothing but decide; whatever
//! may take long happens elsewhere.
//! Bound: [`COMMANDS_MAX`] commands at once. Everything else that can stand in the channel is the answer to one action
//! that the owner itself has under way.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use punctual_core::{Clock, Epoch, Namespace, NewTask, PartitionId, Task};
use punctual_store::{LeaseStore, Retention, StoreError, TaskStore};
use tokio::runtime;
use tokio::sync::{Semaphore, oneshot};

use crate::command::{Cancelled, Command, Condition, EngineError, Reply, Scheduled, Subject};
use crate::deliver::Courier;
use crate::event::{Action, Event, Sight};
use crate::owner::Owner;
use crate::recover::Possession;

/// Commands that wait for their answer at once. Each holds one task; more means that the store cannot
/// keep up, and waiting longer would help nobody.
pub const COMMANDS_MAX: usize = 16_384;

/// Events taken in before the next look at the time: some tens of microseconds of deciding.
const EVENTS_MAX: usize = 256;

/// How long the thread waits when nothing is due: it wakes by events, this is only a bound.
const IDLE_MAX: Duration = Duration::from_secs(1);

/// The door to an owner. Clones lead to the same one.
#[derive(Debug, Clone)]
pub struct Handle {
    events: Sender<Event>,
    permits: Arc<Semaphore>,
}

/// Starts an owner. The receiver yields why it stopped, if it did so by itself; it is closed without a value
/// after a drain.
pub fn spawn<S, K, C>(
    possession: Possession,
    store: Arc<S>,
    courier: Arc<K>,
    clock: Arc<C>,
    retention: Retention,
) -> std::io::Result<(Handle, oneshot::Receiver<StoreError>)>
where
    S: TaskStore + LeaseStore,
    K: Courier,
    C: Clock,
{
    let (events, received) = channel();
    let (stopped, why) = oneshot::channel();
    let hands = Hands {
        partition: possession.partition,
        epoch: possession.epoch,
        store,
        courier,
        retention,
        runtime: runtime::Handle::current(),
        events: events.clone(),
    };
    thread::Builder::new().name(possession.partition.to_string()).spawn(move || {
        if let Err(error) = run(possession, &received, &hands, clock.as_ref()) {
            let _ = stopped.send(error);
        }
    })?;
    Ok((Handle { events, permits: Arc::new(Semaphore::new(COMMANDS_MAX)) }, why))
}

/// Returns when a drain has come to its end; an error when the owner may not or cannot go on.
fn run<S: TaskStore, K: Courier, C: Clock>(
    possession: Possession,
    received: &Receiver<Event>,
    hands: &Hands<S, K>,
    clock: &C,
) -> Result<(), StoreError> {
    let mut owner = Owner::new(possession, clock.now());
    let mut draining = false;
    loop {
        for action in owner.act(clock.now()) {
            hands.perform(action)?;
        }
        if draining && owner.is_quiet() {
            return Ok(());
        }
        let wait = owner.wakes_at().map_or(IDLE_MAX, |at| clock.until(at).min(IDLE_MAX));
        match received.recv_timeout(wait) {
            Ok(event) => {
                draining |= matches!(event, Event::Drain);
                owner.on(event, clock.now());
            }
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
        for event in received.try_iter().take(EVENTS_MAX) {
            draining |= matches!(event, Event::Drain);
            owner.on(event, clock.now());
        }
    }
}

impl Handle {
    /// Creates a task, or replaces the one that its key names.
    pub async fn schedule(
        &self,
        new_task: NewTask,
        condition: Condition,
    ) -> Result<Scheduled, EngineError> {
        let new_task = Box::new(new_task);
        self.ask(|reply| Command::Schedule { new_task, condition, reply }).await
    }

    /// Stops a task before its next fire.
    pub async fn cancel(
        &self,
        namespace: Namespace,
        subject: Subject,
    ) -> Result<Cancelled, EngineError> {
        self.ask(|reply| Command::Cancel { subject, namespace, reply }).await
    }

    /// Shows a living task.
    pub async fn get(&self, namespace: Namespace, subject: Subject) -> Result<Task, EngineError> {
        self.ask(|reply| Command::Get { subject, namespace, reply }).await
    }

    /// Starts nothing new from here on. The owner ends when what is under way is done.
    pub fn drain(&self) {
        let _ = self.events.send(Event::Drain);
    }

    async fn ask<T>(&self, command: impl FnOnce(Reply<T>) -> Command) -> Result<T, EngineError> {
        let _permit = self.permits.try_acquire().map_err(|_| EngineError::Busy)?;
        let (reply, answer) = Reply::new();
        let sent = self.events.send(Event::Command(command(reply)));
        sent.map_err(|_| EngineError::Stopped)?;
        answer.await.unwrap_or(Err(EngineError::Stopped))
    }
}

/// What does the owner's work.
struct Hands<S, K> {
    partition: PartitionId,
    epoch: Epoch,
    store: Arc<S>,
    courier: Arc<K>,
    retention: Retention,
    runtime: runtime::Handle,
    events: Sender<Event>,
}

impl<S: TaskStore, K: Courier> Hands<S, K> {
    fn perform(&self, action: Action) -> Result<(), StoreError> {
        let (partition, epoch) = (self.partition, self.epoch);
        let store = Arc::clone(&self.store);
        match action {
            Action::Apply(batch) => self
                .start(async move { Event::Applied(store.apply(partition, epoch, batch).await) }),
            Action::Load { after, until, limit } => self.start(async move {
                Event::Loaded(store.load(partition, after, until, limit).await)
            }),
            Action::Look(subject) => self.start(async move {
                let result = Sight::look(store.as_ref(), partition, &subject).await;
                Event::Looked { subject, result }
            }),
            Action::Sweep(now) => {
                let retention = self.retention;
                self.start(async move {
                    Event::Swept(store.sweep(partition, epoch, retention, now).await)
                });
            }
            Action::Deliver(delivery) => {
                let courier = Arc::clone(&self.courier);
                self.start(async move {
                    let outcome = courier.carry(delivery.clone()).await;
                    Event::Ended { delivery, outcome }
                });
            }
            Action::Stop(error) => return Err(error),
        }
        Ok(())
    }

    fn start(&self, work: impl Future<Output = Event> + Send + 'static) {
        let events = self.events.clone();
        self.runtime.spawn(async move {
            // An owner that is gone wants to know nothing any more.
            let _ = events.send(work.await);
        });
    }
}
