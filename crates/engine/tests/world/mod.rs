//! A world for an owner: a memory store, couriers that a test answers for, and time that a test moves.
//!
//! Actions wait in line until the test lets them happen, in any order, so that every race is an order that a test
//! writes down. A crash takes the owner with all that it knew; the store stays.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use punctual_core::{
    BrokerId, Due, Epoch, Namespace, NewTask, Outcome, PartitionId, Queue, Reason, Schedule,
    Target, Task, TaskKey, Timestamp,
};
use punctual_engine::{
    Action, Cancelled, Command, Condition, Delivery, EngineError, Event, Owner, Possession, Reply,
    Scheduled, Sight, Subject, take,
};
use punctual_store::{BatchNo, Counts, MemoryStore, Retention, StoreError, TaskStore};
use tokio::sync::oneshot::Receiver;

pub(crate) const START: Timestamp = Timestamp::from_millis(1_700_000_000_000);
const PARTITION: PartitionId = PartitionId::FIRST;

/// What the store does with the next batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Weather {
    Fair,
    /// Does nothing and says that it may have.
    Away,
    /// Makes the batch and says that it may not have.
    AnswerLost,
    Full,
}

pub(crate) struct World {
    pub(crate) store: MemoryStore,
    pub(crate) owner: Owner,
    pub(crate) possession: Possession,
    pub(crate) now: Timestamp,
    pub(crate) weather: Weather,
    /// Wanted of the store, not done yet.
    pub(crate) wanted: Vec<Action>,
    /// On their way to receivers.
    pub(crate) carried: Vec<Delivery>,
    /// The last batch whose answer was lost.
    pub(crate) made: Option<(Epoch, BatchNo)>,
    /// All that was ever sent.
    pub(crate) sent: Vec<Delivery>,
    /// Why the owner stopped.
    pub(crate) stopped: Option<StoreError>,
}

pub(crate) type Answer<T> = Receiver<Result<T, EngineError>>;

impl World {
    pub(crate) fn new() -> Self {
        let store = MemoryStore::default();
        let possession = possess(&store, START);
        let owner = Owner::new(possession, START);
        let (wanted, carried, sent) = (Vec::new(), Vec::new(), Vec::new());
        let weather = Weather::Fair;
        let stopped = None;
        Self {
            store,
            owner,
            possession,
            now: START,
            weather,
            wanted,
            carried,
            sent,
            made: None,
            stopped,
        }
    }

    /// The owner is gone with all that it knew, and so is what it wanted done; another takes over.
    pub(crate) fn crash(&mut self) {
        self.possession = possess(&self.store, self.now);
        self.owner = Owner::new(self.possession, self.now);
        self.wanted.clear();
        self.carried.clear();
    }

    /// Lets the owner act; what it wants done stands in line.
    pub(crate) fn act(&mut self) {
        for action in self.owner.act(self.now) {
            match action {
                Action::Deliver(delivery) => {
                    self.sent.push(delivery.clone());
                    self.carried.push(delivery);
                }
                Action::Stop(error) => self.stopped = Some(error),
                wanted => self.wanted.push(wanted),
            }
        }
    }

    /// Does one of the things that stand in line.
    pub(crate) fn perform(&mut self, index: usize) {
        let action = self.wanted.remove(index);
        let event = self.answer(action);
        self.owner.on(event, self.now);
        self.act();
    }

    /// Does everything that stands in line, and what follows from it, until nothing is wanted.
    pub(crate) fn settle(&mut self) {
        self.act();
        while !self.wanted.is_empty() {
            self.perform(0);
        }
    }

    /// Moves time, stopping wherever the owner wants to be woken. Everything is done at once.
    pub(crate) fn pass(&mut self, duration: Duration) {
        let end = self.now.after(duration);
        self.settle();
        let mut woken_for = None;
        while let Some(at) = self.owner.wakes_at().filter(|at| *at <= end) {
            assert!(woken_for != Some((at, self.now)), "woken again for nothing: a busy loop");
            woken_for = Some((at, self.now.max(at)));
            self.now = self.now.max(at);
            self.settle();
        }
        self.now = end;
        self.settle();
    }

    /// A courier comes back from the oldest delivery.
    pub(crate) fn comes_back(&mut self, outcome: Outcome) -> Delivery {
        self.comes_back_from(0, outcome)
    }

    pub(crate) fn comes_back_from(&mut self, index: usize, outcome: Outcome) -> Delivery {
        let delivery = self.carried.remove(index);
        self.owner.on(Event::Ended { delivery: delivery.clone(), outcome }, self.now);
        self.act();
        delivery
    }

    pub(crate) fn send_schedule(
        &mut self,
        new_task: NewTask,
        condition: Condition,
    ) -> Answer<Scheduled> {
        let (reply, answer) = Reply::new();
        let new_task = Box::new(new_task);
        self.command(Command::Schedule { new_task, condition, reply });
        answer
    }

    pub(crate) fn send_cancel(&mut self, subject: Subject) -> Answer<Cancelled> {
        let (reply, answer) = Reply::new();
        self.command(Command::Cancel { subject, namespace: shop(), reply });
        answer
    }

    pub(crate) fn schedule(&mut self, new_task: NewTask) -> Task {
        let mut answer = self.send_schedule(new_task, Condition::Always);
        self.settle();
        match answer.try_recv().unwrap().unwrap() {
            Scheduled::Created(task) | Scheduled::Replaced(task) => task,
        }
    }

    pub(crate) fn cancel(&mut self, subject: Subject) -> Result<Cancelled, EngineError> {
        let mut answer = self.send_cancel(subject);
        self.settle();
        answer.try_recv().unwrap()
    }

    pub(crate) fn get(
        &mut self,
        namespace: Namespace,
        subject: Subject,
    ) -> Result<Task, EngineError> {
        let (reply, mut answer) = Reply::new();
        self.command(Command::Get { subject, namespace, reply });
        self.settle();
        answer.try_recv().unwrap()
    }

    pub(crate) fn counts(&self) -> Counts {
        ready(self.store.counts(PARTITION, &shop())).unwrap()
    }

    fn command(&mut self, command: Command) {
        self.owner.on(Event::Command(command), self.now);
        self.act();
    }

    fn answer(&mut self, action: Action) -> Event {
        let away = || StoreError::Unavailable("away".into());
        match action {
            Action::Apply(batch) => Event::Applied(match self.weather {
                Weather::Away => Err(away()),
                // Full or not, a store knows a batch that it has made.
                Weather::Full if self.made != Some((self.possession.epoch, batch.number)) => {
                    Err(StoreError::Full("full".to_owned()))
                }
                Weather::Fair | Weather::Full => {
                    ready(self.store.apply(PARTITION, self.possession.epoch, batch))
                }
                Weather::AnswerLost => {
                    self.made = Some((self.possession.epoch, batch.number));
                    ready(self.store.apply(PARTITION, self.possession.epoch, batch)).unwrap();
                    Err(away())
                }
            }),
            Action::Load { after, until, limit } => Event::Loaded(match self.weather {
                Weather::Away | Weather::AnswerLost => Err(away()),
                _ => ready(self.store.load(PARTITION, after, until, limit)),
            }),
            Action::Look(subject) => {
                let result = match self.weather {
                    Weather::Away | Weather::AnswerLost => Err(away()),
                    _ => ready(Sight::look(&self.store, PARTITION, &subject)),
                };
                Event::Looked { subject, result }
            }
            Action::Sweep(now) => {
                let (epoch, retention) = (self.possession.epoch, Retention::default());
                Event::Swept(ready(self.store.sweep(PARTITION, epoch, retention, now)))
            }
            Action::Deliver(_) | Action::Stop(_) => unreachable!("taken out by `act`"),
        }
    }
}

fn possess(store: &MemoryStore, now: Timestamp) -> Possession {
    let broker = BrokerId::new("here:1");
    ready(take(store, PARTITION, &broker, Duration::from_secs(5), now)).unwrap()
}

/// The memory store never waits.
pub(crate) fn ready<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("the memory store never waits"),
    }
}

pub(crate) fn shop() -> Namespace {
    Namespace::new("shop").unwrap()
}

pub(crate) fn key(name: &str) -> Subject {
    Subject::Key(shop(), TaskKey::new(name).unwrap())
}

pub(crate) fn once(delay: Duration) -> NewTask {
    let target = Target::Queue(Queue::new("orders").unwrap());
    NewTask::new(shop(), Schedule::Once(Due::In(delay)), target)
}

pub(crate) fn named(name: &str, delay: Duration) -> NewTask {
    NewTask { key: Some(TaskKey::new(name).unwrap()), ..once(delay) }
}

pub(crate) fn failed() -> Outcome {
    Outcome::Failed { reason: Reason::new("HTTP 500"), retry_in: None }
}

pub(crate) const fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

pub(crate) const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}
