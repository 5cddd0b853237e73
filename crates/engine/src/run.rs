//! The shell: runs an owner on a thread of its own and does what it wants done.
//!
//! In: calls through a [`Handle`]. Out: reads and writes of the store, each a task on the runtime that
//! comes back as an event, and deliveries for couriers, who report as events. Invariant: the thread that waits for time does
//! nothing but decide; whatever may take long happens elsewhere. After the owner's end it stays as long as anybody has a way to it, to
//! refuse calls and to pass on what couriers still bring.
//! Bound: [`COMMANDS_MAX`] commands at once. Everything else that can stand in the channel is the answer to one action
//! that the owner itself has under way.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use punctual_core::{Clock, Epoch, Namespace, PartitionId, Queue, Task, Timestamp};
use punctual_store::{Retention, StoreError, TaskStore};
use tokio::runtime;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use crate::call::{Answers, Call};
use crate::command::{Answer, Cancelled, Command, EngineError, Order, Scheduled, Subject};
use crate::deliver::{Courier, Report};
use crate::event::{Action, Event};
use crate::gauges::Gauges;
use crate::hand_over::{Flight, Stray};
use crate::look::Looked;
use crate::memory::Budget;
use crate::owner::Owner;
use crate::recover::Possession;

/// Commands that wait for their answer at once. Each holds one task; more means that the store cannot
/// keep up, and waiting longer would help nobody.
pub const COMMANDS_MAX: usize = 65_536;

/// How much is taken in before the next look at the time: about a millisecond of deciding, unless a call is large.
const WEIGHT_MAX: usize = 512;
/// Reports of couriers in one event.
const REPORTS_MAX: usize = 256;

/// How long the thread waits when nothing is due: it wakes by events, this is only a bound.
const IDLE_MAX: Duration = Duration::from_secs(1);

/// The door to an owner. Clones lead to the same one.
#[derive(Debug, Clone)]
pub struct Handle {
    events: Sender<Event>,
    permits: Arc<Semaphore>,
}

/// The way back for couriers.
#[derive(Debug, Clone)]
pub struct Reports {
    events: Sender<Event>,
    /// Tells owners apart.
    owner: (PartitionId, Epoch),
}

impl Reports {
    /// Reports what came of deliveries. If the owner has ended, it is passed on to whoever came next.
    pub fn send(&self, reports: Vec<Report>) {
        if reports.len() <= REPORTS_MAX {
            let _ = self.events.send(Event::Ended(reports));
            return;
        }
        let mut reports = reports.into_iter();
        while !reports.as_slice().is_empty() {
            let some = reports.by_ref().take(REPORTS_MAX);
            let _ = self.events.send(Event::Ended(some.collect()));
        }
    }

    /// Whether they lead to the same owner.
    #[must_use]
    pub fn same_as(&self, other: &Self) -> bool {
        self.owner == other.owner
    }
}

/// How an owner is run.
#[derive(Debug, Clone, Copy)]
pub struct Terms {
    /// How long history and dead letters are kept.
    pub retention: Retention,
    /// What may be held in memory.
    pub budget: Budget,
    /// Whether batches are kept for a while after the store has answered: for one that may forget them (Redis, when it fails over).
    pub keeps_batches: bool,
}

/// Where reports go whose owner has ended. Bound: what is under way.
#[derive(Debug, Clone, Default)]
pub struct Strays(Option<mpsc::UnboundedSender<Stray>>);

impl Strays {
    /// To whoever passes them on to the next owner.
    #[must_use]
    pub const fn to(sender: mpsc::UnboundedSender<Stray>) -> Self {
        Self(Some(sender))
    }

    /// Nowhere: for a broker that shares its store with nobody.
    #[must_use]
    pub const fn none() -> Self {
        Self(None)
    }

    fn send(&self, partition: PartitionId, reports: Vec<Report>) {
        if let Some(sender) = &self.0 {
            let reports = reports.into_iter().map(Report::passed_on);
            // A broker that is stopping passes nothing on.
            let _ = sender.send(Stray { partition, reports: reports.collect() });
        }
    }
}

/// Starts an owner. The receiver yields why it stopped, if it did so by itself; it is closed without a value
/// after a drain, a hand-over, or when it was told to end. `flights` are under way at the broker that had the partition before.
pub fn spawn<S, K, C>(
    possession: Possession,
    flights: Vec<Flight>,
    store: Arc<S>,
    courier: Arc<K>,
    clock: Arc<C>,
    terms: Terms,
    strays: Strays,
) -> std::io::Result<(Handle, oneshot::Receiver<StoreError>)>
where
    S: TaskStore,
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
        retention: terms.retention,
        runtime: runtime::Handle::current(),
        events: events.clone(),
        strays,
    };
    thread::Builder::new().name(possession.partition.to_string()).spawn(move || {
        let mut owner = Owner::new(possession, terms, clock.now());
        owner.adopt(flights);
        let end = run(owner, &received, &hands, clock.as_ref());
        let (partition, strays) = (possession.partition, hands.strays.clone());
        // Whoever learns of the end may have the store, and nothing of ours keeps the way to here open.
        drop((hands, clock));
        match end {
            Ok(()) => drop(stopped),
            Err(error) => _ = stopped.send(error),
        }
        stay(&received, &strays, partition);
    })?;
    Ok((Handle { events, permits: Arc::new(Semaphore::new(COMMANDS_MAX)) }, why))
}

/// Returns when a drain or a hand-over has come to its end; an error when the owner may not or cannot go on.
fn run<S: TaskStore, K: Courier, C: Clock>(
    mut owner: Owner,
    received: &Receiver<Event>,
    hands: &Hands<S, K>,
    clock: &C,
) -> Result<(), StoreError> {
    let mut draining = false;
    loop {
        let mut end = None;
        for action in owner.act(clock.now()) {
            match action {
                Action::Stop(error) => end = Some(Err(error)),
                Action::End => end = Some(Ok(())),
                action => hands.perform(action),
            }
        }
        if let Some(end) = end {
            return end;
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
        let mut weight = 0;
        while weight < WEIGHT_MAX
            && let Ok(event) = received.try_recv()
        {
            draining |= matches!(event, Event::Drain);
            weight += event.weight();
            owner.on(event, clock.now());
        }
    }
}

/// After the end: refuses calls and passes on reports, until nobody has a way to here any more.
fn stay(received: &Receiver<Event>, strays: &Strays, partition: PartitionId) {
    for event in received {
        match event {
            Event::Call(call) => call.refuse(&EngineError::Stopped),
            Event::Ended(reports) => strays.send(partition, reports),
            // Whoever waits for an answer learns it by the end of the way back.
            _ => {}
        }
    }
}

impl Handle {
    /// Asks for several things at once; one answer each, in order. At most [`COMMANDS_MAX`].
    ///
    /// It is on its way when this returns, before anybody waits for the answers: what is asked first is decided first.
    pub fn call(
        &self,
        commands: Vec<Command>,
    ) -> impl Future<Output = Result<Answers, EngineError>> + Send + use<> {
        let asked = self.send(commands);
        async move {
            let (answers, _permit) = asked?;
            answers.await.map_err(|_| EngineError::Lost)
        }
    }

    fn send(
        &self,
        commands: Vec<Command>,
    ) -> Result<(oneshot::Receiver<Answers>, OwnedSemaphorePermit), EngineError> {
        let count = u32::try_from(commands.len()).map_err(|_| EngineError::Busy)?;
        let permits = Arc::clone(&self.permits);
        let permit = permits.try_acquire_many_owned(count).map_err(|_| EngineError::Busy)?;
        let (call, answers) = Call::new(commands);
        self.events.send(Event::Call(call)).map_err(|_| EngineError::Stopped)?;
        Ok((answers, permit))
    }

    /// Creates a task, or replaces the one that its key names.
    pub async fn schedule(&self, order: Order) -> Result<Scheduled, EngineError> {
        match self.ask(Command::Schedule(order)).await? {
            Answer::Scheduled(scheduled) => Ok(scheduled),
            answer => unreachable!("another command's answer: {answer:?}"),
        }
    }

    /// Stops a task before its next fire.
    pub async fn cancel(&self, subject: Subject) -> Result<Cancelled, EngineError> {
        match self.ask(Command::Cancel(subject)).await? {
            Answer::Cancelled(cancelled) => Ok(cancelled),
            answer => unreachable!("another command's answer: {answer:?}"),
        }
    }

    /// Shows a living task.
    pub async fn get(&self, subject: Subject) -> Result<Task, EngineError> {
        self.task(Command::Get(subject)).await
    }

    /// Does what is answered with a task: get, pause, resume, redrive.
    pub async fn task(&self, command: Command) -> Result<Task, EngineError> {
        match self.ask(command).await? {
            Answer::Task(task) => Ok(task),
            answer => unreachable!("another command's answer: {answer:?}"),
        }
    }

    /// The workers of a queue want so many deliveries at once from now on, those under way included.
    pub fn give_room(&self, namespace: Namespace, queue: Queue, room: usize) {
        let _ = self.events.send(Event::Room { namespace, queue, room });
    }

    /// How much there is, of one namespace or of all.
    pub async fn gauges(&self, namespace: Option<Namespace>) -> Result<Gauges, EngineError> {
        let (reply, gauges) = oneshot::channel();
        self.events.send(Event::Gauge(namespace, reply)).map_err(|_| EngineError::Stopped)?;
        gauges.await.map_err(|_| EngineError::Stopped)
    }

    /// Starts nothing new from here on. The owner ends when what is under way is done.
    pub fn drain(&self) {
        let _ = self.events.send(Event::Drain);
    }

    /// The lease of the partition is good until then.
    pub fn extend(&self, until: Timestamp) {
        let _ = self.events.send(Event::Extend(until));
    }

    /// Hands the partition over: starts nothing from here on, makes everything durable, waits a little
    /// ([`HAND_OVER_WAIT`](crate::HAND_OVER_WAIT)) for deliveries under way, and tells those that are left. Later calls are refused with
    /// [`EngineError::Stopped`]; reports that come later are strays. [`EngineError::Lost`]: not everything could be written in time, and
    /// whoever takes over does so as after a crash.
    pub fn hand_over(
        &self,
    ) -> impl Future<Output = Result<Vec<Flight>, EngineError>> + Send + use<> {
        let (reply, flights) = oneshot::channel();
        let sent = self.events.send(Event::HandOver(reply));
        async move {
            sent.map_err(|_| EngineError::Stopped)?;
            flights.await.unwrap_or(Err(EngineError::Stopped))
        }
    }

    /// Ends it at once; nothing is written any more, because its lease is lost.
    pub fn end(&self) {
        let _ = self.events.send(Event::End);
    }

    /// What couriers of another broker report of deliveries that were under way when the partition came here.
    pub fn report(&self, reports: Vec<Report>) {
        let reports = reports.into_iter().map(Report::passed_on).collect();
        let _ = self.events.send(Event::Ended(reports));
    }

    async fn ask(&self, command: Command) -> Result<Answer, EngineError> {
        let answers = self.call(vec![command]).await?;
        answers.into_iter().next().unwrap_or(Err(EngineError::Stopped))
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
    strays: Strays,
}

impl<S: TaskStore, K: Courier> Hands<S, K> {
    fn perform(&self, action: Action) {
        let (partition, epoch) = (self.partition, self.epoch);
        let store = Arc::clone(&self.store);
        match action {
            Action::Apply(batch) => self
                .start(async move { Event::Applied(store.apply(partition, epoch, batch).await) }),
            Action::Load { after, until, limit } => self.start(async move {
                Event::Loaded(store.load(partition, after, until, limit).await)
            }),
            Action::Look(looks) => self.start(async move {
                Event::Looked(Looked::read(store.as_ref(), partition, looks).await)
            }),
            Action::Sweep(now) => {
                let retention = self.retention;
                self.start(async move {
                    Event::Swept(store.sweep(partition, epoch, retention, now).await)
                });
            }
            Action::Deliver(deliveries) => {
                let courier = Arc::clone(&self.courier);
                let reports = Reports { events: self.events.clone(), owner: (partition, epoch) };
                // Handing over is quick, but not so quick that time should wait for it.
                self.runtime.spawn(async move { courier.carry(deliveries, &reports) });
            }
            Action::Stray(reports) => self.strays.send(partition, reports),
            Action::Stop(_) | Action::End => unreachable!("the end of the loop"),
        }
    }

    fn start(&self, work: impl Future<Output = Event> + Send + 'static) {
        let events = self.events.clone();
        self.runtime.spawn(async move {
            // An owner that is gone wants to know nothing any more.
            let _ = events.send(work.await);
        });
    }
}
