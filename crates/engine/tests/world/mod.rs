//! A world for an owner: a memory store, couriers that a test answers for, and time that a test moves.
//!
//! Actions wait in line until the test lets them happen, in any order, so that every race is an order that a test
//! writes down. A crash takes the owner with all that it knew; the store stays.

#![allow(dead_code, reason = "each test file uses a part of it")]

pub(crate) mod receiver;
pub(crate) mod seeds;

use std::collections::HashSet;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use punctual_core::{
    AttemptNo, BrokerId, Due, Epoch, FireId, Namespace, NewTask, Outcome, PartitionId, Queue,
    Reason, Schedule, Target, Task, TaskKey, Timestamp,
};
use punctual_engine::{
    Action, Budget, Call, Cancelled, Command, Condition, Delivery, EngineError, Event, Gauges,
    InFlight, LookupResult, Owner, OwnerConfig, Ownership, Push, Replies, Reply as Told, Report,
    ScheduleCommand, Scheduled, Subject, take,
};
use punctual_store::{
    Batch, BatchNo, Counts, MemoryStore, Resource, Retention, StoreError, TaskStore,
};
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
    /// Refuses all.
    Full,
    /// Refuses what makes a task.
    Filled,
}

pub(crate) struct World {
    pub(crate) store: MemoryStore,
    pub(crate) owner: Owner,
    pub(crate) ownership: Ownership,
    pub(crate) now: Timestamp,
    pub(crate) weather: Weather,
    /// Where there is no room when it is full.
    pub(crate) lacks: Resource,
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
    /// All that was made of the store, in order: for a store that forgets.
    made_of: Vec<Made>,
    /// How long leases are; without end if not said.
    pub(crate) lease: Option<Duration>,
    /// A hand-over that has begun.
    handing_over: Option<Receiver<Result<Vec<InFlight>, EngineError>>>,
    /// Carried on behalf of an owner before this one.
    elsewhere: HashSet<(FireId, AttemptNo)>,
    /// Reports that came to an owner that has ended.
    pub(crate) strays: Vec<Report>,
    /// Whether the owner was told to end.
    pub(crate) ended: bool,
    /// How often an owner was gone with all that it knew, and how often one has handed over.
    pub(crate) crashes: u32,
    pub(crate) moves: u32,
    /// What workers of the queue "orders" want at once.
    pub(crate) room: usize,
    /// The batch that was last sent without an answer, made or not.
    unanswered: Option<(Epoch, BatchNo)>,
    /// Owners do not end by themselves: no batch that was sent without an answer finds the store full afterwards.
    pub(crate) calm: bool,
}

/// What was made of the store.
enum Made {
    Taken,
    Batch(Batch),
}

/// Where the answer to one command arrives.
pub(crate) struct Reply<T>(Receiver<Replies>, fn(Told) -> Option<T>);

impl<T> Reply<T> {
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
        let ownership = possess(&store, START);
        let owner = Owner::new(ownership, terms(budget), START);
        let (wanted, carried, sent) = (Vec::new(), Vec::new(), Vec::new());
        let weather = Weather::Fair;
        let stopped = None;
        let mut world = Self {
            store,
            owner,
            ownership,
            now: START,
            weather,
            lacks: Resource::Disk,
            wanted,
            carried,
            sent,
            made: None,
            made_of: vec![Made::Taken],
            lease: None,
            handing_over: None,
            elsewhere: HashSet::new(),
            strays: Vec::new(),
            ended: false,
            crashes: 0,
            moves: 0,
            stopped,
            room: ROOM,
            unanswered: None,
            calm: false,
        };
        world.give_room(ROOM);
        world
    }

    /// Workers of the queues that tests use want so much from now on.
    pub(crate) fn give_room(&mut self, room: usize) {
        self.room = room;
        for queue in ["orders", "quick"] {
            let queue = Queue::new(queue).unwrap();
            self.owner.on(Event::Capacity { namespace: shop(), queue, capacity: room }, self.now);
        }
    }

    /// The owner is gone with all that it knew, and so is what it wanted done; another takes over.
    pub(crate) fn crash(&mut self) {
        self.crashes += 1;
        self.handing_over = None;
        self.carried.clear();
        self.elsewhere.clear();
        self.strays.clear();
        self.succeed(Vec::new());
    }

    /// Another owner comes, who knows of these deliveries under way.
    fn succeed(&mut self, flights: Vec<InFlight>) {
        self.ownership = possess(&self.store, self.now);
        self.made_of.push(Made::Taken);
        if let Some(lease) = self.lease {
            self.ownership.until = self.now.after(lease);
        }
        self.owner = Owner::new(self.ownership, terms(BUDGET), self.now);
        self.owner.adopt(flights);
        self.ended = false;
        self.give_room(self.room);
        self.wanted.clear();
    }

    /// From now on leases are so long.
    pub(crate) fn lease_for(&mut self, lease: Duration) {
        self.lease = Some(lease);
        self.crash();
    }

    /// The lease is renewed.
    pub(crate) fn renew(&mut self) {
        if let Some(lease) = self.lease {
            self.ownership.until = self.now.after(lease);
            self.owner.on(Event::Extend(self.ownership.until), self.now);
        }
    }

    /// Nothing ends any more.
    pub(crate) fn renew_for_ever(&mut self) {
        self.lease = None;
        self.ownership.until = Timestamp::MAX;
        self.owner.on(Event::Extend(Timestamp::MAX), self.now);
    }

    /// Begins to hand over; another owner comes as soon as this one has told what is under way.
    pub(crate) fn start_hand_over(&mut self) {
        if self.handing_over.is_none() {
            let (reply, flights) = tokio::sync::oneshot::channel();
            self.owner.on(Event::HandOver(reply), self.now);
            self.handing_over = Some(flights);
        }
        self.act();
    }

    /// Executor over, in fair weather.
    pub(crate) fn hand_over(&mut self) {
        self.start_hand_over();
        while self.is_handing_over() {
            self.settle();
            self.now = self.now.after(millis(10));
        }
        self.settle();
    }

    /// Whether what comes of a delivery now still counts, wherever its owner is.
    pub(crate) fn in_time(&self, delivery: &Delivery) -> bool {
        self.now.since(delivery.fired_at) <= delivery.definition.timeout
    }

    /// Does the next thing that is wanted, or lets a little time pass.
    pub(crate) fn go_on(&mut self) {
        if self.wanted.is_empty() {
            self.now = self.now.after(millis(10));
            return self.act();
        }
        self.perform(0);
    }

    pub(crate) const fn is_handing_over(&self) -> bool {
        self.handing_over.is_some()
    }

    fn take_over(&mut self) {
        let Some(mut handing_over) = self.handing_over.take() else {
            return;
        };
        let Ok(flights) = handing_over.try_recv().expect("told before the end") else {
            return self.crash();
        };
        self.moves += 1;
        self.elsewhere = self.carried.iter().map(|one| (one.fire_id, one.attempt)).collect();
        self.succeed(flights);
        let strays = std::mem::take(&mut self.strays);
        self.owner.on(Event::Ended(strays), self.now);
    }

    /// The store forgets the last batches that it made.
    pub(crate) fn rewind(&mut self, batches: usize) {
        self.made_of.truncate(self.made_of.len() - batches);
        self.store = MemoryStore::default();
        let mut epoch = Epoch::NONE;
        for made in &self.made_of {
            match made {
                Made::Taken => epoch = possess(&self.store, self.now).epoch,
                Made::Batch(batch) => {
                    ready(self.store.apply(PARTITION, epoch, batch.clone())).unwrap();
                }
            }
        }
        assert_eq!(epoch, self.ownership.epoch, "only batches were forgotten");
    }

    /// How many batches the store has of this owner.
    pub(crate) fn batches(&self) -> usize {
        self.made_of.iter().rev().take_while(|made| matches!(made, Made::Batch(_))).count()
    }

    /// Lets the owner act until it has nothing left over; what it wants done stands in line.
    pub(crate) fn act(&mut self) {
        self.turn();
        while self.owner.is_busy() {
            self.turn();
        }
        if self.ended && self.handing_over.is_some() {
            self.take_over();
            self.act();
        }
    }

    /// Lets it act once; some may be left over.
    pub(crate) fn turn(&mut self) {
        for action in self.owner.act(self.now) {
            match action {
                Action::Deliver(deliveries) => {
                    assert!(self.now < self.ownership.until, "sent after the lease was over");
                    self.sent.extend(deliveries.iter().cloned());
                    self.carried.extend(deliveries);
                }
                Action::Stop(error) => self.stopped = Some(error),
                Action::OrphanReport(reports) => {
                    let passed_on =
                        |it: Report| Report::of(it.fire_id, it.attempt, it.fired_at, it.outcome);
                    self.strays.extend(reports.into_iter().map(passed_on));
                }
                Action::End => self.ended = true,
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

    /// The batch that stands in line is sent and not answered in time. Out: what may still come to the store.
    pub(crate) fn send_unanswered(&mut self) -> Batch {
        let apply = self.wanted.iter().position(|action| matches!(action, Action::Apply(_)));
        let Action::Apply(batch) = self.wanted.remove(apply.expect("a batch is wanted")) else {
            unreachable!()
        };
        let silent = Err(StoreError::Unavailable("no answer in time".into()));
        self.owner.on(Event::Applied(silent), self.now);
        self.act();
        batch
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

    /// Moves time to a moment at which the owner wants a page, and answers it. Out: up to when it was read.
    pub(crate) fn loads_until(&mut self, at: Timestamp) -> Timestamp {
        self.now = at;
        self.act();
        let load = self.wanted.iter().position(|action| matches!(action, Action::Load { .. }));
        let load = load.expect("it is time to load");
        let Action::Load { until, .. } = self.wanted[load] else { unreachable!() };
        self.perform(load);
        until
    }

    /// A courier comes back from the oldest delivery.
    pub(crate) fn comes_back(&mut self, outcome: Outcome) -> Delivery {
        self.comes_back_from(0, outcome)
    }

    pub(crate) fn comes_back_from(&mut self, index: usize, outcome: Outcome) -> Delivery {
        self.reported(index, Some(outcome))
    }

    /// A courier of whichever owner says what came of a delivery; nothing if it was not sent.
    pub(crate) fn reported(&mut self, index: usize, outcome: Option<Outcome>) -> Delivery {
        let delivery = self.carried.remove(index);
        let Delivery { fire_id, attempt, fired_at, .. } = delivery;
        let report = match self.elsewhere.remove(&(fire_id, attempt)) {
            true => Report::of(fire_id, attempt, fired_at, outcome),
            false => delivery.report(outcome),
        };
        self.owner.on(Event::Ended(vec![report]), self.now);
        self.act();
        delivery
    }

    /// The oldest delivery was certainly not sent.
    pub(crate) fn returned(&mut self) -> Delivery {
        let fire_id = self.carried[0].fire_id;
        self.sent.retain(|sent| sent.fire_id != fire_id);
        self.reported(0, None)
    }

    pub(crate) fn send_schedule(
        &mut self,
        new_task: NewTask,
        condition: Condition,
    ) -> Reply<Scheduled> {
        let order = ScheduleCommand { new_task: new_task.into(), condition, receipt: None };
        self.send(Command::Schedule(order), |told| match told {
            Told::Scheduled(scheduled) => Some(scheduled),
            _ => None,
        })
    }

    pub(crate) fn send_cancel(&mut self, subject: Subject) -> Reply<Cancelled> {
        self.send(Command::Cancel(subject), |told| match told {
            Told::Cancelled(cancelled) => Some(cancelled),
            _ => None,
        })
    }

    pub(crate) fn send_touch(&mut self, subject: Subject, push: Push) -> Reply<Timestamp> {
        self.send(Command::Touch(subject, push), |told| match told {
            Told::Touched { fire_at, .. } => Some(fire_at),
            _ => None,
        })
    }

    /// Something that is answered with a task.
    pub(crate) fn send_for_task(&mut self, command: Command) -> Reply<Task> {
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

    pub(crate) fn send<T>(&mut self, command: Command, wanted: fn(Told) -> Option<T>) -> Reply<T> {
        let (call, answers) = Call::new(vec![command]);
        self.owner.on(Event::Call(call), self.now);
        self.act();
        Reply(answers, wanted)
    }

    pub(crate) fn make(&mut self, batch: Batch) -> Result<(), StoreError> {
        ready(self.store.apply(PARTITION, self.ownership.epoch, batch.clone()))?;
        self.made_of.push(Made::Batch(batch));
        Ok(())
    }

    fn apply(&mut self, batch: Batch) -> Result<(), StoreError> {
        let away = || StoreError::Unavailable("away".into());
        let this = Some((self.ownership.epoch, batch.number));
        match self.weather {
            Weather::Full if self.calm && self.unanswered == this && self.made != this => {
                Err(away())
            }
            Weather::Away => {
                self.unanswered = this;
                Err(away())
            }
            // Full or not, a store knows a batch that it has made.
            Weather::Full if self.made != this => {
                Err(StoreError::Full { room: self.lacks, why: "full".to_owned() })
            }
            Weather::Filled
                if self.made != this && batch.changes.iter().any(|change| change.grows()) =>
            {
                Err(StoreError::Full { room: self.lacks, why: "full".to_owned() })
            }
            Weather::Fair | Weather::Full | Weather::Filled => self.make(batch),
            Weather::AnswerLost => {
                (self.made, self.unanswered) = (this, this);
                self.make(batch).and_then(|()| Err(away()))
            }
        }
    }

    pub(crate) fn answer(&mut self, action: Action) -> Event {
        let away = || StoreError::Unavailable("away".into());
        match action {
            Action::Apply(batch) => Event::Applied(self.apply(batch)),
            Action::Load { after, until, limit } => Event::Loaded(match self.weather {
                Weather::Away | Weather::AnswerLost => Err(away()),
                _ => ready(self.store.load(PARTITION, after, until, limit)),
            }),
            Action::Lookup(lookups) => Event::LookupResult(match self.weather {
                Weather::Away | Weather::AnswerLost => lookups
                    .into_iter()
                    .map(|look| LookupResult { look, result: Err(away()) })
                    .collect(),
                _ => ready(LookupResult::read(&self.store, PARTITION, lookups)),
            }),
            Action::Sweep(now) => {
                let (epoch, retention) = (self.ownership.epoch, Retention::default());
                Event::Swept(ready(self.store.sweep(PARTITION, epoch, retention, now)))
            }
            Action::Deliver(_) | Action::Stop(_) | Action::OrphanReport(_) | Action::End => {
                unreachable!("taken out by `act`")
            }
        }
    }
}

fn terms(budget: Budget) -> OwnerConfig {
    OwnerConfig { retention: Retention::default(), budget, keeps_batches: true }
}

fn possess(store: &MemoryStore, now: Timestamp) -> Ownership {
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

/// How partitions move in a random life, and how long leases are: from dice of their own, so that a seed without moves means what it
/// always did.
pub(crate) struct Moves {
    dice: Dice,
    /// Whether owners also crash.
    pub(crate) crashes: bool,
    lease: bool,
}

impl Moves {
    pub(crate) const fn new(seed: u64) -> Self {
        let dice = Dice::new(seed ^ 0x5eed_0000);
        Self { dice, crashes: seed.is_multiple_of(2), lease: seed.is_multiple_of(3) }
    }

    pub(crate) fn begin(&self, world: &mut World) {
        world.calm = !self.crashes;
        if self.lease {
            world.lease_for(secs(5));
            world.crashes = 0;
        }
    }

    /// Whether this step was a part of a move.
    pub(crate) fn step(&mut self, world: &mut World) -> bool {
        if self.lease && self.dice.roll(4) > 0 {
            world.renew();
        }
        match self.dice.roll(100) {
            0..4 => world.start_hand_over(),
            4..80 if world.is_handing_over() => match world.wanted.len() {
                0 => world.go_on(),
                wanted => world.perform(self.dice.index(wanted)),
            },
            _ => return false,
        }
        true
    }
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
