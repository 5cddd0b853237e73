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
    Action, Answer as Told, Answers, Budget, Call, Cancelled, Command, Condition, Delivery,
    EngineError, Event, Gauges, Looked, Order, Owner, Possession, Push, Scheduled, Subject, take,
};
use punctual_store::{BatchNo, Counts, MemoryStore, Retention, StoreError, TaskStore};
use tokio::sync::oneshot::Receiver;
use tokio::sync::oneshot::error::TryRecvError;

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
    /// What workers of the queue "orders" want at once.
    pub(crate) room: usize,
}

/// Where the answer to one command arrives.
pub(crate) struct Answer<T>(Receiver<Answers>, fn(Told) -> Option<T>);

impl<T> Answer<T> {
    pub(crate) fn try_recv(&mut self) -> Result<Result<T, EngineError>, TryRecvError> {
        let answers = self.0.try_recv()?;
        let answer = answers.into_iter().next().unwrap();
        Ok(answer.map(|told| (self.1)(told).expect("the answer to another command")))
    }
}

const BUDGET: Budget = Budget { tasks: 1_000_000, payload_bytes: 1 << 30 };
const ROOM: usize = 256;

impl World {
    pub(crate) fn new() -> Self {
        Self::with_budget(BUDGET)
    }

    pub(crate) fn with_budget(budget: Budget) -> Self {
        let store = MemoryStore::default();
        let possession = possess(&store, START);
        let owner = Owner::new(possession, budget, START);
        let (wanted, carried, sent) = (Vec::new(), Vec::new(), Vec::new());
        let weather = Weather::Fair;
        let stopped = None;
        let mut world = Self {
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
            room: ROOM,
        };
        world.give_room(ROOM);
        world
    }

    /// Workers of the queues that tests use want so much from now on.
    pub(crate) fn give_room(&mut self, room: usize) {
        self.room = room;
        for queue in ["orders", "quick"] {
            let queue = Queue::new(queue).unwrap();
            self.owner.on(Event::Room { namespace: shop(), queue, room }, self.now);
        }
    }

    /// The owner is gone with all that it knew, and so is what it wanted done; another takes over.
    pub(crate) fn crash(&mut self) {
        self.possession = possess(&self.store, self.now);
        self.owner = Owner::new(self.possession, BUDGET, self.now);
        self.give_room(self.room);
        self.wanted.clear();
        self.carried.clear();
    }

    /// Lets the owner act; what it wants done stands in line.
    pub(crate) fn act(&mut self) {
        for action in self.owner.act(self.now) {
            match action {
                Action::Deliver(deliveries) => {
                    self.sent.extend(deliveries.iter().cloned());
                    self.carried.extend(deliveries);
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
        self.owner.on(Event::Ended(vec![delivery.report(Some(outcome))]), self.now);
        self.act();
        delivery
    }

    /// The oldest delivery was certainly not sent.
    pub(crate) fn returned(&mut self) -> Delivery {
        let delivery = self.carried.remove(0);
        self.sent.retain(|sent| sent.fire_id != delivery.fire_id);
        self.owner.on(Event::Ended(vec![delivery.report(None)]), self.now);
        self.act();
        delivery
    }

    pub(crate) fn send_schedule(
        &mut self,
        new_task: NewTask,
        condition: Condition,
    ) -> Answer<Scheduled> {
        let order = Order { new_task: new_task.into(), condition, receipt: None };
        self.send(Command::Schedule(order), |told| match told {
            Told::Scheduled(scheduled) => Some(scheduled),
            _ => None,
        })
    }

    pub(crate) fn send_cancel(&mut self, subject: Subject) -> Answer<Cancelled> {
        self.send(Command::Cancel(subject), |told| match told {
            Told::Cancelled(cancelled) => Some(cancelled),
            _ => None,
        })
    }

    pub(crate) fn send_touch(&mut self, subject: Subject, push: Push) -> Answer<Timestamp> {
        self.send(Command::Touch(subject, push), |told| match told {
            Told::Touched { fire_at, .. } => Some(fire_at),
            _ => None,
        })
    }

    /// Something that is answered with a task.
    pub(crate) fn send_for_task(&mut self, command: Command) -> Answer<Task> {
        self.send(command, |told| match told {
            Told::Task(task) => Some(task),
            _ => None,
        })
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

    pub(crate) fn get(&mut self, subject: Subject) -> Result<Task, EngineError> {
        self.task(Command::Get(subject))
    }

    /// Does something that is answered with a task.
    pub(crate) fn task(&mut self, command: Command) -> Result<Task, EngineError> {
        let mut answer = self.send_for_task(command);
        self.settle();
        answer.try_recv().unwrap()
    }

    pub(crate) fn touch(&mut self, subject: Subject, push: Push) -> Result<Timestamp, EngineError> {
        let mut answer = self.send_touch(subject, push);
        self.settle();
        answer.try_recv().unwrap()
    }

    pub(crate) fn gauges(&mut self) -> Gauges {
        let (reply, mut answer) = tokio::sync::oneshot::channel();
        self.owner.on(Event::Gauge(Some(shop()), reply), self.now);
        answer.try_recv().unwrap()
    }

    pub(crate) fn counts(&self) -> Counts {
        ready(self.store.counts(PARTITION, &shop())).unwrap()
    }

    pub(crate) fn send<T>(&mut self, command: Command, wanted: fn(Told) -> Option<T>) -> Answer<T> {
        let (call, answers) = Call::new(vec![command]);
        self.owner.on(Event::Call(call), self.now);
        self.act();
        Answer(answers, wanted)
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
            Action::Look(looks) => Event::Looked(match self.weather {
                Weather::Away | Weather::AnswerLost => {
                    looks.into_iter().map(|look| Looked { look, result: Err(away()) }).collect()
                }
                _ => ready(Looked::read(&self.store, PARTITION, looks)),
            }),
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

pub(crate) fn id(task: &Task) -> Subject {
    Subject::Id(shop(), task.id)
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

/// A small generator, so that a seed means the same for ever.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % sides
    }

    pub(crate) fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.roll(len as u64)).unwrap()
    }
}
