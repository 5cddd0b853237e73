//! The shell: runs an owner on a thread of its own and does what it wants done.
//!
//! In: calls through a [`OwnerHandle`]. Out: reads and writes of the store, which come back as events, and deliveries for couriers, who
//! report as events. Invariant: the thread that waits for time does nothing but decide; whatever may take long happens on the
//! runtime. A small batch is begun and looked after by this thread itself, because two ways through the runtime take longer than
//! it does. After the owner's end it stays as long as anybody has a way to it, to
//! refuse calls and to pass on what couriers still bring.
//! Bound: [`COMMANDS_MAX`] commands at once. Everything else that can stand in the channel is the answer to one action
//! that the owner itself has under way.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SendError, Sender, channel};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use punctual_core::{Clock, Epoch, Namespace, PartitionId, Queue, Task, Timestamp};
use punctual_store::{Retention, StoreError, TaskStore};
use tokio::runtime;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use crate::commands::lookup::LookupResult;
use crate::delivery::deliver::{Courier, Report};
use crate::event::{Action, Event};
use crate::gauges::Gauges;
use crate::handle::call::{Call, Replies};
use crate::handle::command::{
    Cancelled, Command, EngineError, Reply, ScheduleCommand, Scheduled, Subject,
};
use crate::loaded::tasks::Budget;
use crate::owner::Owner;
use crate::ownership::hand_over::{InFlight, OrphanReport};
use crate::ownership::recover::Ownership;
use crate::shell::next_batch::NextBatch;

/// Commands that wait for their answer at once. Each holds one task; more means that the store cannot
/// keep up, and waiting longer would help nobody.
pub const COMMANDS_MAX: usize = 65_536;

/// How much is taken in before the next look at the time: about a millisecond of deciding, unless a call is large.
const WEIGHT_MAX: usize = 512;
/// Reports of couriers in one event.
const REPORTS_MAX: usize = 256;

/// Changes of a batch that the thread begins itself: some tens of microseconds of writing them out.
const BEGUN_MAX: usize = 64;

/// How long the thread waits when nothing is due: it wakes by events, this is only a bound.
const IDLE_MAX: Duration = Duration::from_secs(1);

/// The door to an owner. Clones lead to the same one.
#[derive(Debug, Clone)]
pub struct OwnerHandle {
    words: Sender<Message>,
    next_batch: Arc<NextBatch>,
    permits: Arc<Semaphore>,
}

/// What reaches the thread.
#[derive(Debug)]
enum Message {
    /// For the owner.
    Event(Event),
    /// The batch that the thread has begun may be written.
    Lookup,
}

/// The way back for couriers.
#[derive(Debug, Clone)]
pub struct Reports {
    words: Sender<Message>,
    /// Tells owners apart.
    owner: (PartitionId, Epoch),
}

impl Reports {
    /// Reports what came of deliveries. If the owner has ended, it is passed on to whoever came next.
    pub fn send(&self, reports: Vec<Report>) {
        if reports.len() <= REPORTS_MAX {
            let _ = self.words.send(Message::Event(Event::Ended(reports)));
            return;
        }
        let mut reports = reports.into_iter();
        while !reports.as_slice().is_empty() {
            let some = reports.by_ref().take(REPORTS_MAX);
            let _ = self.words.send(Message::Event(Event::Ended(some.collect())));
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
pub struct OwnerConfig {
    /// How long history and dead letters are kept.
    pub retention: Retention,
    /// What may be held in memory.
    pub budget: Budget,
    /// Whether batches are kept for a while after the store has answered: for one that may forget them (Redis, when it fails over).
    pub keeps_batches: bool,
}

/// Where reports go whose owner has ended. Bound: what is under way.
#[derive(Debug, Clone, Default)]
pub struct OrphanReports(Option<mpsc::UnboundedSender<OrphanReport>>);

impl OrphanReports {
    /// To whoever passes them on to the next owner.
    #[must_use]
    pub const fn to(sender: mpsc::UnboundedSender<OrphanReport>) -> Self {
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
            let _ = sender.send(OrphanReport { partition, reports: reports.collect() });
        }
    }
}

/// Starts an owner. The receiver yields why it stopped, if it did so by itself; it is closed without a value
/// after a drain, a hand-over, or when it was told to end. `flights` are under way at the broker that had the partition before.
pub fn spawn<S, K, C>(
    ownership: Ownership,
    flights: Vec<InFlight>,
    store: Arc<S>,
    courier: Arc<K>,
    clock: Arc<C>,
    terms: OwnerConfig,
    strays: OrphanReports,
) -> std::io::Result<(OwnerHandle, oneshot::Receiver<StoreError>)>
where
    S: TaskStore,
    K: Courier,
    C: Clock,
{
    let (words, received) = channel();
    let (stopped, why) = oneshot::channel();
    let next_batch = Arc::new(NextBatch::default());
    let executor = Executor {
        partition: ownership.partition,
        epoch: ownership.epoch,
        store,
        courier,
        retention: terms.retention,
        runtime: runtime::Handle::current(),
        words: words.clone(),
        next_batch: Arc::clone(&next_batch),
        begun: RefCell::default(),
        bell: Waker::from(Arc::new(BatchWaker(words.clone()))),
        strays,
    };
    thread::Builder::new().name(ownership.partition.to_string()).spawn(move || {
        let mut owner = Owner::new(ownership, terms, clock.now());
        owner.adopt(flights);
        let end = run(owner, &received, &executor, clock.as_ref());
        let (partition, strays) = (ownership.partition, executor.strays.clone());
        // Whoever learns of the end may have the store, and nothing of ours keeps the way to here open.
        drop((executor, clock));
        match end {
            Ok(()) => drop(stopped),
            Err(error) => _ = stopped.send(error),
        }
        stay(&received, &strays, partition);
    })?;
    Ok((OwnerHandle { words, next_batch, permits: Arc::new(Semaphore::new(COMMANDS_MAX)) }, why))
}

/// Returns when a drain or a hand-over has come to its end; an error when the owner may not or cannot go on.
fn run<S: TaskStore, K: Courier, C: Clock>(
    mut owner: Owner,
    received: &Receiver<Message>,
    executor: &Executor<S, K>,
    clock: &C,
) -> Result<(), StoreError> {
    // A store may ask for the runtime's timers when a batch is begun here.
    let _runtime = executor.runtime.enter();
    let mut draining = false;
    let mut heard = VecDeque::new();
    loop {
        let mut end = None;
        for action in owner.act(clock.now()) {
            match action {
                Action::Stop(error) => end = Some(Err(error)),
                Action::End => end = Some(Ok(())),
                action => executor.perform(action),
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
            Ok(word) => executor.hear(word, &mut heard),
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
        let mut weight = 0;
        loop {
            for event in heard.drain(..) {
                draining |= matches!(event, Event::Drain);
                weight += event.weight();
                owner.on(event, clock.now());
            }
            if weight >= WEIGHT_MAX {
                break;
            }
            let Ok(word) = received.try_recv() else { break };
            executor.hear(word, &mut heard);
        }
    }
}

/// After the end: refuses calls and passes on reports, until nobody has a way to here any more.
fn stay(received: &Receiver<Message>, strays: &OrphanReports, partition: PartitionId) {
    for word in received {
        match word {
            Message::Event(Event::Call(call)) => call.refuse(&EngineError::Stopped),
            Message::Event(Event::Ended(reports)) => strays.send(partition, reports),
            // Whoever waits for an answer learns it by the end of the way back.
            _ => {}
        }
    }
}

impl OwnerHandle {
    /// Asks for several things at once; one answer each, in order. At most [`COMMANDS_MAX`].
    ///
    /// It is on its way when this returns, before anybody waits for the answers: what is asked first is decided first.
    pub fn call(
        &self,
        commands: Vec<Command>,
    ) -> impl Future<Output = Result<Replies, EngineError>> + Send + use<> {
        let asked = self.send(commands);
        async move {
            let (answers, _permit) = asked?;
            answers.await.map_err(|_| EngineError::Lost)
        }
    }

    fn send(
        &self,
        commands: Vec<Command>,
    ) -> Result<(oneshot::Receiver<Replies>, OwnedSemaphorePermit), EngineError> {
        let count = u32::try_from(commands.len()).map_err(|_| EngineError::Busy)?;
        let permits = Arc::clone(&self.permits);
        let permit = permits.try_acquire_many_owned(count).map_err(|_| EngineError::Busy)?;
        let (call, answers) = Call::new(commands);
        if let Some(call) = self.next_batch.wait(call) {
            self.tell(Event::Call(call)).map_err(|_| EngineError::Stopped)?;
        }
        Ok((answers, permit))
    }

    fn tell(&self, event: Event) -> Result<(), SendError<Message>> {
        self.words.send(Message::Event(event))
    }

    /// Creates a task, or replaces the one that its key names.
    pub async fn schedule(&self, order: ScheduleCommand) -> Result<Scheduled, EngineError> {
        match self.ask(Command::Schedule(order)).await? {
            Reply::Scheduled(scheduled) => Ok(scheduled),
            answer => unreachable!("another command's answer: {answer:?}"),
        }
    }

    /// Stops a task before its next fire.
    pub async fn cancel(&self, subject: Subject) -> Result<Cancelled, EngineError> {
        match self.ask(Command::Cancel(subject)).await? {
            Reply::Cancelled(cancelled) => Ok(cancelled),
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
            Reply::Task(task) => Ok(task),
            answer => unreachable!("another command's answer: {answer:?}"),
        }
    }

    /// The workers of a queue want so many deliveries at once from now on, those under way included.
    pub fn give_room(&self, namespace: Namespace, queue: Queue, room: usize) {
        let _ = self.tell(Event::Capacity { namespace, queue, room });
    }

    /// How much there is, of one namespace or of all.
    pub async fn gauges(&self, namespace: Option<Namespace>) -> Result<Gauges, EngineError> {
        let (reply, gauges) = oneshot::channel();
        self.tell(Event::Gauge(namespace, reply)).map_err(|_| EngineError::Stopped)?;
        gauges.await.map_err(|_| EngineError::Stopped)
    }

    /// Starts nothing new from here on. The owner ends when what is under way is done.
    pub fn drain(&self) {
        let _ = self.tell(Event::Drain);
    }

    /// The lease of the partition is good until then.
    pub fn extend(&self, until: Timestamp) {
        let _ = self.tell(Event::Extend(until));
    }

    /// Executor the partition over: starts nothing from here on, makes everything durable, waits a little
    /// ([`HAND_OVER_WAIT`](crate::HAND_OVER_WAIT)) for deliveries under way, and tells those that are left. Later calls are refused with
    /// [`EngineError::Stopped`]; reports that come later are strays. [`EngineError::Lost`]: not everything could be written in time, and
    /// whoever takes over does so as after a crash.
    pub fn hand_over(
        &self,
    ) -> impl Future<Output = Result<Vec<InFlight>, EngineError>> + Send + use<> {
        let (reply, flights) = oneshot::channel();
        let sent = self.tell(Event::HandOver(reply));
        async move {
            sent.map_err(|_| EngineError::Stopped)?;
            flights.await.unwrap_or(Err(EngineError::Stopped))
        }
    }

    /// Ends it at once; nothing is written any more, because its lease is lost.
    pub fn end(&self) {
        let _ = self.tell(Event::End);
    }

    /// What couriers of another broker report of deliveries that were under way when the partition came here.
    pub fn report(&self, reports: Vec<Report>) {
        let reports = reports.into_iter().map(Report::passed_on).collect();
        let _ = self.tell(Event::Ended(reports));
    }

    async fn ask(&self, command: Command) -> Result<Reply, EngineError> {
        let answers = self.call(vec![command]).await?;
        answers.into_iter().next().unwrap_or(Err(EngineError::Stopped))
    }
}

/// What does the owner's work.
struct Executor<S, K> {
    partition: PartitionId,
    epoch: Epoch,
    store: Arc<S>,
    courier: Arc<K>,
    retention: Retention,
    runtime: runtime::Handle,
    words: Sender<Message>,
    next_batch: Arc<NextBatch>,
    /// The batch that the thread lookups after itself.
    begun: RefCell<Option<Work>>,
    /// Rings when that may be written.
    bell: Waker,
    strays: OrphanReports,
}

/// Something that ends with an event.
type Work = Pin<Box<dyn Future<Output = Event> + Send>>;

struct BatchWaker(Sender<Message>);

impl Wake for BatchWaker {
    fn wake(self: Arc<Self>) {
        // A thread that is gone has nothing to look after.
        let _ = self.0.send(Message::Lookup);
    }
}

impl<S: TaskStore, K: Courier> Executor<S, K> {
    fn perform(&self, action: Action) {
        let (partition, epoch) = (self.partition, self.epoch);
        let store = Arc::clone(&self.store);
        match action {
            Action::Apply(batch) => {
                self.next_batch.open();
                let is_small = batch.changes.len() <= BEGUN_MAX;
                let work =
                    async move { Event::Applied(store.apply(partition, epoch, batch).await) };
                if is_small { self.begin(work) } else { self.start(work) }
            }
            Action::Load { after, until, limit } => self.start(async move {
                Event::Loaded(store.load(partition, after, until, limit).await)
            }),
            Action::Lookup(lookups) => self.start(async move {
                Event::LookupResult(LookupResult::read(store.as_ref(), partition, lookups).await)
            }),
            Action::Sweep(now) => {
                let retention = self.retention;
                self.start(async move {
                    Event::Swept(store.sweep(partition, epoch, retention, now).await)
                });
            }
            Action::Deliver(deliveries) => {
                let courier = Arc::clone(&self.courier);
                let reports = Reports { words: self.words.clone(), owner: (partition, epoch) };
                // Handing over is quick, but not so quick that time should wait for it.
                self.runtime.spawn(async move { courier.carry(deliveries, &reports) });
            }
            Action::OrphanReport(reports) => self.strays.send(partition, reports),
            Action::Stop(_) | Action::End => unreachable!("the end of the loop"),
        }
    }

    /// What a word says to the owner. With the answer to a batch come those who have waited for it.
    fn hear(&self, word: Message, heard: &mut VecDeque<Event>) {
        let event = match word {
            Message::Event(event) => Some(event),
            Message::Lookup => self.look(),
        };
        if matches!(event, Some(Event::Applied(_))) {
            heard.extend(self.next_batch.close().into_iter().map(Event::Call));
        }
        heard.extend(event);
    }

    /// Has something done on the runtime.
    fn start(&self, work: impl Future<Output = Event> + Send + 'static) {
        let words = self.words.clone();
        self.runtime.spawn(async move {
            // An owner that is gone wants to know nothing any more.
            let _ = words.send(Message::Event(work.await));
        });
    }

    /// Begins something here. There is one batch under way at most.
    fn begin(&self, work: impl Future<Output = Event> + Send + 'static) {
        *self.begun.borrow_mut() = Some(Box::pin(work));
        if let Some(event) = self.look() {
            let _ = self.words.send(Message::Event(event));
        }
    }

    /// What came of that which was begun here, if it is over.
    fn look(&self) -> Option<Event> {
        let mut begun = self.begun.borrow_mut();
        let poll = begun.as_mut()?.as_mut().poll(&mut Context::from_waker(&self.bell));
        match poll {
            Poll::Ready(event) => {
                *begun = None;
                Some(event)
            }
            Poll::Pending => None,
        }
    }
}

impl<S, K> Drop for Executor<S, K> {
    /// What was begun is seen through by the runtime, and who waits for the next batch waits in vain.
    fn drop(&mut self) {
        if let Some(work) = self.begun.take() {
            self.runtime.spawn(work);
        }
        for call in self.next_batch.close() {
            call.refuse(&EngineError::Stopped);
        }
    }
}
