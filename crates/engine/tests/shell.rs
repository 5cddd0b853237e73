//! The shell around an owner: a real thread and a real runtime, with a clock that the test moves and a courier that it asks.

#![allow(clippy::unwrap_used, reason = "a test that is surprised should stop")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use punctual_core::{
    BrokerId, Clock, Due, Namespace, NewTask, Outcome, PartitionId, Queue, Schedule, Target, Task,
    Timestamp,
};
use punctual_engine::{
    Budget, Cancelled, Command, Condition, Courier, Delivery, EngineError, HAND_OVER_WAIT,
    InFlight, OrphanReport, OrphanReports, OwnerConfig, OwnerHandle, Ownership, Reply, Reports,
    ScheduleCommand, Scheduled, Subject, spawn, take,
};
use punctual_store::{MemoryStore, Retention, StoreError};
use tokio::sync::{mpsc, oneshot};

const HOUR: Duration = Duration::from_secs(3600);

/// StoredAs still until it is moved.
struct HandClock(AtomicU64);

impl HandClock {
    fn pass(&self, time: Duration) {
        let millis = u64::try_from(time.as_millis()).unwrap();
        self.0.fetch_add(millis, Ordering::SeqCst);
    }
}

impl Clock for HandClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.0.load(Ordering::SeqCst))
    }

    fn until(&self, at: Timestamp) -> Duration {
        at.since(self.now())
    }
}

/// Executor every delivery to the test and takes its word for the outcome.
struct Asking(mpsc::UnboundedSender<(Delivery, oneshot::Sender<Outcome>)>);

impl Courier for Asking {
    fn carry(&self, deliveries: Vec<Delivery>, reports: &Reports) {
        for delivery in deliveries {
            let (answer, outcome) = oneshot::channel();
            self.0.send((delivery.clone(), answer)).unwrap();
            let reports = reports.clone();
            tokio::spawn(async move {
                let outcome = outcome.await.unwrap_or(Outcome::Expired);
                reports.send(vec![delivery.report(Some(outcome))]);
            });
        }
    }
}

struct Stage {
    clock: Arc<HandClock>,
    owner: OwnerHandle,
    stopped: oneshot::Receiver<StoreError>,
    strays: mpsc::UnboundedReceiver<OrphanReport>,
    carried: mpsc::UnboundedReceiver<(Delivery, oneshot::Sender<Outcome>)>,
}

async fn stage() -> Stage {
    let clock = Arc::new(HandClock(AtomicU64::new(1_700_000_000_000)));
    stage_with(Arc::new(MemoryStore::default()), clock, Vec::new()).await
}

async fn stage_with(
    store: Arc<MemoryStore>,
    clock: Arc<HandClock>,
    flights: Vec<InFlight>,
) -> Stage {
    let broker = BrokerId::new("here:1");
    let taken = take(store.as_ref(), PartitionId::FIRST, &broker, HOUR, clock.now()).await;
    let (strays, straying) = mpsc::unbounded_channel();
    let (deliveries, carried) = mpsc::unbounded_channel();
    let courier = Arc::new(Asking(deliveries));
    let budget = Budget::shared_by(1);
    let terms = OwnerConfig { retention: Retention::default(), budget, keeps_batches: false };
    let (ownership, strays) = (taken.unwrap(), OrphanReports::to(strays));
    let clocked = Arc::clone(&clock);
    let (owner, stopped) =
        spawn(ownership, flights, store, courier, clocked, terms, strays).unwrap();
    owner.give_room(shop(), Queue::new("orders").unwrap(), 8);
    Stage { clock, owner, stopped, strays: straying, carried }
}

/// Sends one command and waits for its reply.
async fn ask(owner: &OwnerHandle, command: Command) -> Result<Reply, EngineError> {
    let replies = owner.call(vec![command]).await?;
    replies.into_iter().next().unwrap()
}

async fn schedule(owner: &OwnerHandle) -> Result<Task, EngineError> {
    match ask(owner, Command::Schedule(in_an_hour())).await? {
        Reply::Scheduled(Scheduled::Created(task)) => Ok(task),
        reply => unreachable!("nothing was there before: {reply:?}"),
    }
}

async fn get(owner: &OwnerHandle, task: &Task) -> Result<Reply, EngineError> {
    ask(owner, Command::Get(Subject::Id(shop(), task.id))).await
}

async fn cancel(owner: &OwnerHandle, task: &Task) -> Result<Reply, EngineError> {
    ask(owner, Command::Cancel(Subject::Id(shop(), task.id))).await
}

fn shop() -> Namespace {
    Namespace::new("shop").unwrap()
}

fn in_an_hour() -> ScheduleCommand {
    let target = Target::Queue(Queue::new("orders").unwrap());
    let new_task = NewTask::new(shop(), Schedule::Once(Due::In(HOUR)), target);
    ScheduleCommand { new_task: new_task.into(), condition: Condition::Always, receipt: None }
}

#[tokio::test]
async fn a_task_is_carried_when_the_clock_has_come_to_its_time() {
    let mut stage = stage().await;
    let task = schedule(&stage.owner).await.unwrap();
    assert!(stage.carried.try_recv().is_err());
    stage.clock.pass(HOUR);
    // A command wakes the owner, which then lookups at the time.
    get(&stage.owner, &task).await.unwrap();
    let (delivery, answer) = stage.carried.recv().await.unwrap();
    assert_eq!(delivery.fire_id, task.fire().id);
    let firing = cancel(&stage.owner, &task).await;
    assert!(matches!(firing, Ok(Reply::Cancelled(Cancelled::Firing(_)))), "{firing:?}");
    answer.send(Outcome::Acked).unwrap();
    stage.owner.drain();
    assert!(stage.stopped.await.is_err(), "it ended well, without a reason to give");
    let refused = schedule(&stage.owner).await;
    assert_eq!(refused, Err(EngineError::Stopped));
}

#[tokio::test(flavor = "multi_thread")]
async fn every_call_is_answered_whenever_it_comes_and_after_the_end_as_well() {
    let stage = stage().await;
    let calls = (0..64).map(|_| {
        let owner = stage.owner.clone();
        tokio::spawn(async move {
            let mut created = 0;
            // Until it is told that there is nobody any more.
            while schedule(&owner).await.is_ok() {
                created += 1;
            }
            created
        })
    });
    let calls: Vec<_> = calls.collect();
    for _ in 0..100 {
        schedule(&stage.owner).await.unwrap();
    }
    stage.owner.drain();
    let mut created = 0;
    for call in calls {
        created += call.await.unwrap();
    }
    assert!(created > 0);
    for _ in 0..100 {
        assert_eq!(schedule(&stage.owner).await, Err(EngineError::Stopped));
    }
}

#[tokio::test]
async fn what_is_under_way_goes_on_at_the_owner_who_comes_next() {
    let clock = Arc::new(HandClock(AtomicU64::new(1_700_000_000_000)));
    let store = Arc::new(MemoryStore::default());
    let mut old = stage_with(Arc::clone(&store), Arc::clone(&clock), Vec::new()).await;
    let task = schedule(&old.owner).await.unwrap();
    clock.pass(HOUR);
    get(&old.owner, &task).await.unwrap();
    let (_, answer) = old.carried.recv().await.unwrap();
    let handing_over = old.owner.hand_over();
    // It has begun when what was asked after it is answered.
    old.owner.gauges(None).await.unwrap();
    clock.pass(HAND_OVER_WAIT);
    let flights = handing_over.await.unwrap();
    assert_eq!(flights.len(), 1);
    assert!(old.stopped.await.is_err(), "it ended well");
    assert_eq!(get(&old.owner, &task).await, Err(EngineError::Stopped));
    assert_eq!(old.owner.hand_over().await, Err(EngineError::Stopped), "once");

    let mut new = stage_with(store, clock, flights).await;
    let firing = cancel(&new.owner, &task).await;
    assert!(matches!(firing, Ok(Reply::Cancelled(Cancelled::Firing(_)))), "{firing:?}");
    // The courier of the old owner comes back there, and its word is passed on.
    answer.send(Outcome::Acked).unwrap();
    let OrphanReport { partition, reports } = old.strays.recv().await.unwrap();
    assert_eq!((partition, reports.len()), (PartitionId::FIRST, 1));
    new.owner.report(reports);
    new.owner.drain();
    assert!(new.stopped.await.is_err(), "nothing is under way any more");
    assert!(new.carried.try_recv().is_err(), "and nothing was sent a second time");
}

#[tokio::test]
async fn the_thread_of_an_owner_is_gone_when_nobody_has_a_way_to_it() {
    let mut stage = stage().await;
    stage.owner.end();
    assert!(stage.stopped.await.is_err(), "it was told to end");
    assert_eq!(schedule(&stage.owner).await, Err(EngineError::Stopped));
    drop(stage.owner);
    assert!(stage.strays.recv().await.is_none(), "the last to pass anything on is gone");
}

#[tokio::test]
async fn past_its_lease_an_owner_answers_nobody_until_it_is_extended() {
    let clock = Arc::new(HandClock(AtomicU64::new(1_700_000_000_000)));
    let store = Arc::new(MemoryStore::default());
    let broker = BrokerId::new("here:1");
    let taken = take(store.as_ref(), PartitionId::FIRST, &broker, HOUR, clock.now()).await;
    let ownership = Ownership { until: clock.now().after(HOUR), ..taken.unwrap() };
    let (deliveries, _carried) = mpsc::unbounded_channel();
    let budget = Budget::shared_by(1);
    let terms = OwnerConfig { retention: Retention::default(), budget, keeps_batches: true };
    let (courier, strays) = (Arc::new(Asking(deliveries)), OrphanReports::none());
    let clocked = Arc::clone(&clock);
    let (owner, _stopped) =
        spawn(ownership, Vec::new(), store, courier, clocked, terms, strays).unwrap();
    schedule(&owner).await.unwrap();
    clock.pass(HOUR);
    assert_eq!(schedule(&owner).await, Err(EngineError::Stopped));
    owner.extend(clock.now().after(HOUR));
    schedule(&owner).await.unwrap();
}
