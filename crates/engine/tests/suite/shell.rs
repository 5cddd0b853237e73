//! The shell of an owner: a real thread and a real runtime, with a clock that the test moves and a
//! courier that asks the test for outcomes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use punctual_core::{
    BrokerId, Clock, Due, FireRecord, Namespace, NewTask, Outcome, PartitionId, Queue, Schedule,
    Target, Task, Timestamp,
};
use punctual_engine::{
    Budget, Cancelled, Command, Condition, Courier, Delivery, EngineError, HAND_OVER_WAIT,
    InFlight, OrphanReport, OrphanReports, OwnerConfig, OwnerFailure, OwnerHandle, Ownership,
    Reply, Reports, ScheduleCommand, Scheduled, StartState, Subject, spawn, take,
};
use punctual_store::{MemoryStore, Retention};
use tokio::sync::{mpsc, oneshot};

const HOUR: Duration = Duration::from_secs(3600);

/// A clock that only the test moves.
struct ManualClock(AtomicU64);

impl ManualClock {
    fn advance(&self, time: Duration) {
        let millis = u64::try_from(time.as_millis()).unwrap();
        self.0.fetch_add(millis, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.0.load(Ordering::SeqCst))
    }

    fn until(&self, at: Timestamp) -> Duration {
        at.since(self.now())
    }
}

/// Sends every delivery to the test, which answers with the outcome.
struct ChannelCourier(mpsc::UnboundedSender<(Delivery, oneshot::Sender<Outcome>)>);

impl Courier for ChannelCourier {
    fn carry(&self, deliveries: Vec<Delivery>, reports: &Reports) {
        for delivery in deliveries {
            let (answer, outcome) = oneshot::channel();
            delivery.permit.send(delivery.fired_at).unwrap();
            self.0.send((delivery.clone(), answer)).unwrap();
            let reports = reports.clone();
            tokio::spawn(async move {
                let outcome = outcome.await.unwrap_or(Outcome::Expired);
                reports.send(vec![delivery.report(Some(outcome))]);
            });
        }
    }
}

/// Panics once after it was armed, and is the clock and the courier inside otherwise.
struct PanicsOnce<T> {
    inner: T,
    panics: AtomicBool,
}

impl<T> PanicsOnce<T> {
    fn new(inner: T) -> Self {
        Self { inner, panics: AtomicBool::new(false) }
    }

    fn arm(&self) {
        self.panics.store(true, Ordering::SeqCst);
    }

    fn inner(&self) -> &T {
        assert!(!self.panics.swap(false, Ordering::SeqCst), "armed to panic");
        &self.inner
    }
}

impl<T: Clock> Clock for PanicsOnce<T> {
    fn now(&self) -> Timestamp {
        self.inner().now()
    }

    fn until(&self, at: Timestamp) -> Duration {
        self.inner().until(at)
    }
}

impl<T: Courier> Courier for PanicsOnce<T> {
    fn carry(&self, deliveries: Vec<Delivery>, reports: &Reports) {
        self.inner().carry(deliveries, reports);
    }
}

fn config(budget: Budget, retains_batches: bool) -> OwnerConfig {
    let render_record = |record: &FireRecord| record.fire_id.to_string().into();
    let (retention, load_ahead) = (Retention::default(), OwnerConfig::LOAD_AHEAD);
    OwnerConfig { retention, budget, retains_batches, render_record, load_ahead }
}

struct RunningOwner {
    clock: Arc<ManualClock>,
    owner: OwnerHandle,
    stopped: oneshot::Receiver<OwnerFailure>,
    orphans: mpsc::UnboundedReceiver<OrphanReport>,
    deliveries: mpsc::UnboundedReceiver<(Delivery, oneshot::Sender<Outcome>)>,
}

async fn start() -> RunningOwner {
    let clock = Arc::new(ManualClock(AtomicU64::new(1_700_000_000_000)));
    start_with(Arc::new(MemoryStore::default()), clock, Vec::new()).await
}

async fn start_with(
    store: Arc<MemoryStore>,
    clock: Arc<ManualClock>,
    in_flight: Vec<InFlight>,
) -> RunningOwner {
    let (sender, deliveries) = mpsc::unbounded_channel();
    let courier = Arc::new(ChannelCourier(sender));
    let (owner, stopped, orphans) = start_of(store, courier, Arc::clone(&clock), in_flight).await;
    RunningOwner { clock, owner, stopped, orphans, deliveries }
}

async fn start_of<K: Courier, C: Clock>(
    store: Arc<MemoryStore>,
    courier: Arc<K>,
    clock: Arc<C>,
    in_flight: Vec<InFlight>,
) -> (OwnerHandle, oneshot::Receiver<OwnerFailure>, mpsc::UnboundedReceiver<OrphanReport>) {
    let broker = BrokerId::new("here:1");
    let acquired = take(store.as_ref(), PartitionId::FIRST, &broker, HOUR, clock.now()).await;
    let (orphans, orphans_received) = mpsc::unbounded_channel();
    let budget = Budget::shared_by(1);
    let config = config(budget, false);
    let (ownership, orphans) = (acquired.unwrap(), OrphanReports::to(orphans));
    let (owner, stopped) =
        spawn(ownership, in_flight, store, courier, clock, config, orphans).unwrap();
    owner.set_capacity(shop(), Queue::new("orders").unwrap(), 8);
    (owner, stopped, orphans_received)
}

/// Sends one command and waits for its reply.
async fn send(owner: &OwnerHandle, command: Command) -> Result<Reply, EngineError> {
    let replies = owner.call(vec![command]).await?;
    replies.into_iter().next().unwrap()
}

async fn schedule(owner: &OwnerHandle) -> Result<Task, EngineError> {
    match send(owner, Command::Schedule(in_an_hour())).await? {
        Reply::Scheduled(Scheduled::Created(task)) => Ok(task),
        reply => unreachable!("nothing was there before: {reply:?}"),
    }
}

async fn get(owner: &OwnerHandle, task: &Task) -> Result<Reply, EngineError> {
    send(owner, Command::Get(Subject::Id(shop(), task.id))).await
}

async fn cancel(owner: &OwnerHandle, task: &Task) -> Result<Reply, EngineError> {
    send(owner, Command::Cancel(Subject::Id(shop(), task.id))).await
}

fn shop() -> Namespace {
    Namespace::new("shop").unwrap()
}

fn in_an_hour() -> ScheduleCommand {
    let target = Target::Queue(Queue::new("orders").unwrap());
    let new_task = NewTask::new(shop(), Schedule::Once(Due::In(HOUR)), target);
    ScheduleCommand {
        new_task: new_task.into(),
        condition: Condition::Always,
        receipt: None,
        start: StartState::Scheduled,
    }
}

#[tokio::test]
async fn a_task_is_sent_when_it_is_due() {
    let mut running = start().await;
    let task = schedule(&running.owner).await.unwrap();
    assert!(running.deliveries.try_recv().is_err());
    running.clock.advance(HOUR);
    // A command wakes the owner, which then checks the time.
    get(&running.owner, &task).await.unwrap();
    let (delivery, answer) = running.deliveries.recv().await.unwrap();
    assert_eq!(delivery.fire_id, task.fire().id);
    let firing = cancel(&running.owner, &task).await;
    assert!(matches!(firing, Ok(Reply::Cancelled(Cancelled::Firing(_)))), "{firing:?}");
    answer.send(Outcome::Acked).unwrap();
    running.owner.drain();
    assert!(running.stopped.await.is_err(), "it ended without an error");
    let refused = schedule(&running.owner).await;
    assert_eq!(refused, Err(EngineError::Stopped));
}

#[tokio::test(flavor = "multi_thread")]
async fn every_call_is_answered_also_after_the_end() {
    let running = start().await;
    let calls = (0..64).map(|_| {
        let owner = running.owner.clone();
        tokio::spawn(async move {
            let mut created = 0;
            // Until calls are refused.
            while schedule(&owner).await.is_ok() {
                created += 1;
            }
            created
        })
    });
    let calls: Vec<_> = calls.collect();
    for _ in 0..100 {
        schedule(&running.owner).await.unwrap();
    }
    running.owner.drain();
    let mut created = 0;
    for call in calls {
        created += call.await.unwrap();
    }
    assert!(created > 0);
    for _ in 0..100 {
        assert_eq!(schedule(&running.owner).await, Err(EngineError::Stopped));
    }
}

#[tokio::test]
async fn a_delivery_in_flight_is_settled_by_the_next_owner() {
    let clock = Arc::new(ManualClock(AtomicU64::new(1_700_000_000_000)));
    let store = Arc::new(MemoryStore::default());
    let mut old = start_with(Arc::clone(&store), Arc::clone(&clock), Vec::new()).await;
    let task = schedule(&old.owner).await.unwrap();
    clock.advance(HOUR);
    get(&old.owner, &task).await.unwrap();
    let (_, answer) = old.deliveries.recv().await.unwrap();
    let handing_over = old.owner.hand_over();
    // The hand-over has begun when a later request is answered.
    old.owner.gauges(None).await.unwrap();
    clock.advance(HAND_OVER_WAIT);
    let in_flight = handing_over.await.unwrap();
    assert_eq!(in_flight.len(), 1);
    assert!(old.stopped.await.is_err(), "it ended without an error");
    assert_eq!(get(&old.owner, &task).await, Err(EngineError::Stopped));
    assert_eq!(old.owner.hand_over().await, Err(EngineError::Stopped), "once");

    let mut new = start_with(store, clock, in_flight).await;
    let firing = cancel(&new.owner, &task).await;
    assert!(matches!(firing, Ok(Reply::Cancelled(Cancelled::Firing(_)))), "{firing:?}");
    // The courier of the old owner reports there, and the report is passed on.
    answer.send(Outcome::Acked).unwrap();
    let OrphanReport { partition, reports } = old.orphans.recv().await.unwrap();
    assert_eq!((partition, reports.len()), (PartitionId::FIRST, 1));
    new.owner.report(reports);
    new.owner.drain();
    assert!(new.stopped.await.is_err(), "nothing is in flight any more");
    assert!(new.deliveries.try_recv().is_err(), "nothing was sent twice");
}

#[tokio::test]
async fn the_thread_of_an_owner_ends_when_its_last_handle_is_dropped() {
    let mut running = start().await;
    running.owner.end();
    assert!(running.stopped.await.is_err(), "it ended as requested");
    assert_eq!(schedule(&running.owner).await, Err(EngineError::Stopped));
    drop(running.owner);
    assert!(running.orphans.recv().await.is_none(), "the thread has ended");
}

#[tokio::test]
async fn past_its_lease_an_owner_refuses_calls_until_the_lease_is_extended() {
    let clock = Arc::new(ManualClock(AtomicU64::new(1_700_000_000_000)));
    let store = Arc::new(MemoryStore::default());
    let broker = BrokerId::new("here:1");
    let acquired = take(store.as_ref(), PartitionId::FIRST, &broker, HOUR, clock.now()).await;
    let ownership = Ownership { until: clock.now().after(HOUR), ..acquired.unwrap() };
    let (sender, _deliveries) = mpsc::unbounded_channel();
    let budget = Budget::shared_by(1);
    let config = config(budget, true);
    let (courier, orphans) = (Arc::new(ChannelCourier(sender)), OrphanReports::none());
    let clocked = Arc::clone(&clock);
    let (owner, _stopped) =
        spawn(ownership, Vec::new(), store, courier, clocked, config, orphans).unwrap();
    schedule(&owner).await.unwrap();
    clock.advance(HOUR);
    assert_eq!(schedule(&owner).await, Err(EngineError::Stopped));
    owner.extend(clock.now().after(HOUR));
    schedule(&owner).await.unwrap();
}

#[tokio::test]
async fn an_owner_that_panics_answers_its_callers_and_the_next_owner_sends_its_tasks() {
    let clock = Arc::new(PanicsOnce::new(ManualClock(AtomicU64::new(1_700_000_000_000))));
    let store = Arc::new(MemoryStore::default());
    let (sender, mut deliveries) = mpsc::unbounded_channel();
    let courier = Arc::new(ChannelCourier(sender));
    let start =
        || start_of(Arc::clone(&store), Arc::clone(&courier), Arc::clone(&clock), Vec::new());
    let (owner, stopped, _) = start().await;
    let task = schedule(&owner).await.unwrap();
    clock.arm();
    let answer = get(&owner, &task).await;
    let pending_or_late = [Err(EngineError::Lost), Err(EngineError::Stopped)];
    assert!(pending_or_late.contains(&answer), "{answer:?}");
    assert_eq!(stopped.await.unwrap().to_string(), "panic: armed to panic");
    assert_eq!(get(&owner, &task).await, Err(EngineError::Stopped));

    let (owner, _stopped, _) = start().await;
    clock.inner.advance(HOUR);
    get(&owner, &task).await.unwrap();
    let (delivery, _answer) = deliveries.recv().await.unwrap();
    assert_eq!(delivery.fire_id, task.fire().id);
}

#[tokio::test]
async fn a_courier_that_panics_ends_the_owner_and_the_next_owner_sends_again() {
    let clock = Arc::new(ManualClock(AtomicU64::new(1_700_000_000_000)));
    let store = Arc::new(MemoryStore::default());
    let (sender, mut deliveries) = mpsc::unbounded_channel();
    let courier = Arc::new(PanicsOnce::new(ChannelCourier(sender)));
    let start =
        || start_of(Arc::clone(&store), Arc::clone(&courier), Arc::clone(&clock), Vec::new());
    let (owner, stopped, _) = start().await;
    let task = schedule(&owner).await.unwrap();
    courier.arm();
    clock.advance(HOUR);
    // The owner may end before it answers.
    let _ = get(&owner, &task).await;
    assert_eq!(stopped.await.unwrap().to_string(), "panic: armed to panic");
    assert!(deliveries.try_recv().is_err());

    let (_owner, _stopped, _) = start().await;
    let (delivery, _answer) = deliveries.recv().await.unwrap();
    assert_eq!(delivery.fire_id, task.fire().id);
}
