//! The shell around an owner: a real thread and a real runtime, with a clock that the test moves and a courier that it asks.

#![allow(clippy::unwrap_used, reason = "a test that is surprised should stop")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use punctual_core::{
    BrokerId, Clock, Due, Namespace, NewTask, Outcome, PartitionId, Queue, Schedule, Target,
    Timestamp,
};
use punctual_engine::{
    Budget, Cancelled, Condition, Courier, Delivery, EngineError, Handle, Order, Reports,
    Scheduled, Subject, Terms, spawn, take,
};
use punctual_store::{MemoryStore, Retention, StoreError};
use tokio::sync::{mpsc, oneshot};

const HOUR: Duration = Duration::from_secs(3600);

/// Stands still until it is moved.
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

/// Hands every delivery to the test and takes its word for the outcome.
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
    owner: Handle,
    stopped: oneshot::Receiver<StoreError>,
    carried: mpsc::UnboundedReceiver<(Delivery, oneshot::Sender<Outcome>)>,
}

async fn stage() -> Stage {
    let clock = Arc::new(HandClock(AtomicU64::new(1_700_000_000_000)));
    let store = Arc::new(MemoryStore::default());
    let broker = BrokerId::new("here:1");
    let taken = take(store.as_ref(), PartitionId::FIRST, &broker, HOUR, clock.now()).await;
    let (deliveries, carried) = mpsc::unbounded_channel();
    let courier = Arc::new(Asking(deliveries));
    let terms = Terms { retention: Retention::default(), budget: Budget::shared_by(1) };
    let (owner, stopped) =
        spawn(taken.unwrap(), store, courier, Arc::clone(&clock), terms).unwrap();
    owner.give_room(shop(), Queue::new("orders").unwrap(), 8);
    Stage { clock, owner, stopped, carried }
}

fn shop() -> Namespace {
    Namespace::new("shop").unwrap()
}

fn in_an_hour() -> Order {
    let target = Target::Queue(Queue::new("orders").unwrap());
    let new_task = NewTask::new(shop(), Schedule::Once(Due::In(HOUR)), target);
    Order { new_task: new_task.into(), condition: Condition::Always, receipt: None }
}

#[tokio::test]
async fn a_task_is_carried_when_the_clock_has_come_to_its_time() {
    let mut stage = stage().await;
    let scheduled = stage.owner.schedule(in_an_hour()).await.unwrap();
    let Scheduled::Created(task) = scheduled else { unreachable!("nothing was there before") };
    assert!(stage.carried.try_recv().is_err());
    stage.clock.pass(HOUR);
    // A command wakes the owner, which then looks at the time.
    stage.owner.get(Subject::Id(shop(), task.id)).await.unwrap();
    let (delivery, answer) = stage.carried.recv().await.unwrap();
    assert_eq!(delivery.fire_id, task.fire().id);
    let firing = stage.owner.cancel(Subject::Id(shop(), task.id)).await;
    assert!(matches!(firing, Ok(Cancelled::Firing(_))), "{firing:?}");
    answer.send(Outcome::Acked).unwrap();
    stage.owner.drain();
    assert!(stage.stopped.await.is_err(), "it ended well, without a reason to give");
    let refused = stage.owner.schedule(in_an_hour()).await;
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
            while owner.schedule(in_an_hour()).await.is_ok() {
                created += 1;
            }
            created
        })
    });
    let calls: Vec<_> = calls.collect();
    for _ in 0..100 {
        stage.owner.schedule(in_an_hour()).await.unwrap();
    }
    stage.owner.drain();
    let mut created = 0;
    for call in calls {
        created += call.await.unwrap();
    }
    assert!(created > 0);
    for _ in 0..100 {
        assert_eq!(stage.owner.schedule(in_an_hour()).await, Err(EngineError::Stopped));
    }
}
