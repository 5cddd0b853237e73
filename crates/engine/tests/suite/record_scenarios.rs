//! The record of what happened, in random scenarios: callbacks, tasks that start paused, answers of
//! receivers and cancels of keys whose tasks have ended, with faults of the store, crashes and
//! hand-overs at any point.
//!
//! Every end of a fire with a callback is reported exactly once, in the batch that ends it, and
//! every callback is received or becomes a dead letter. See `seeds` for how to run a seed again.

use std::collections::{HashMap, HashSet};

use crate::fixture::receiver::ReceiverModel;
use crate::fixture::scenario::RandomScenario;
use crate::fixture::{
    OwnerFixture, PARTITION, PendingReply, RandomHandOvers, SeededRng, StoreFault, answer_to, key,
    keyed, millis, once, ready, secs, seeds, shop,
};
use punctual_core::{
    Backoff, Callbacks, Due, FireEnd, FireRecord, Guarantee, Jitter, NewTask, Outcome, Overlap,
    Payload, Queue, RetryPolicy, Schedule, Series, Target, Task, TaskId, TaskState,
};
use punctual_engine::{
    Cancelled, Command, Condition, EngineError, Scheduled, StartState, Subject, TouchTo,
};
use punctual_store::{Filter, FireFilter, Position, TaskStore};
use tokio::sync::oneshot::error::TryRecvError;

const SEEDS_DEFAULT: u64 = 200;
/// Each failed once.
const SEEDS_KEPT: [u64; 4] = [7876, 2999, 9168, 13703];
const KEYS: u64 = 6;

#[test]
fn every_end_is_reported_once_in_random_scenarios() {
    let scenario = |seed, hand_overs| RecordScenario::new(seed, hand_overs).run();
    seeds::run(&SEEDS_KEPT, SEEDS_DEFAULT, scenario);
}

#[test]
fn every_end_is_reported_once_when_the_partition_is_handed_over() {
    let scenario = |seed, hand_overs| RecordScenario::new(seed, hand_overs).run();
    seeds::run_with_hand_overs(&SEEDS_KEPT, SEEDS_DEFAULT, scenario);
}

#[test]
fn every_end_is_reported_once_when_deliveries_wait_in_the_courier() {
    let scenario = |seed, hand_overs| {
        let mut scenario = RecordScenario::new(seed, hand_overs);
        scenario.fixture.hold_some_deliveries(seed);
        scenario.run()
    };
    seeds::run(&SEEDS_KEPT, SEEDS_DEFAULT, scenario);
    seeds::run_with_hand_overs(&SEEDS_KEPT, SEEDS_DEFAULT, scenario);
}

struct RecordScenario {
    fixture: OwnerFixture,
    rng: SeededRng,
    hand_overs: Option<RandomHandOvers>,
    receiver: ReceiverModel,
    scheduling: Vec<(StartState, PendingReply<Scheduled>)>,
    cancelling: Vec<(Subject, PendingReply<Cancelled>)>,
    /// Tasks that were created.
    created: Vec<TaskId>,
    /// Those that are paused since they were created.
    start_paused: HashSet<TaskId>,
    /// How often each task was received.
    received: HashMap<TaskId, u32>,
}

impl RandomScenario for RecordScenario {
    const STEPS: u32 = 350;

    fn fixture(&mut self) -> &mut OwnerFixture {
        &mut self.fixture
    }

    fn step(&mut self) {
        if let Some(hand_overs) = &mut self.hand_overs
            && hand_overs.step(&mut self.fixture)
        {
            return;
        }
        match self.rng.below(100) {
            0..18 => self.schedule(),
            18..26 => self.cancel(),
            26..30 => self.change(),
            30..33 => self.redrive(),
            33..60 => self.perform_action(),
            60..76 => self.end_delivery(),
            76..92 => self.move_time(),
            92..94 => {
                let capacity = [0, 1, 256, 256][self.rng.index(4)];
                self.fixture.set_capacity(capacity);
            }
            94..98 => {
                use StoreFault::{AnswerLost, Full, FullForNewTasks, None, Unavailable};
                let all = [None, None, Unavailable, AnswerLost, Full, FullForNewTasks];
                self.fixture.fault = all[self.rng.index(all.len())];
            }
            _ if self.hand_overs.as_ref().is_none_or(|it| it.crashes) => self.crash(),
            _ => self.fixture.start_hand_over(),
        }
    }

    fn check_sent(&mut self) {
        self.take_replies();
        for delivery in self.fixture.sent.drain(..) {
            let id = delivery.fire_id.task;
            self.receiver.receive(&delivery, self.fixture.crashes > 0);
            *self.received.entry(id).or_default() += 1;
            assert!(!self.start_paused.contains(&id), "sent while paused: {delivery:?}");
            let definition = &delivery.definition;
            if let Some(fire_id) = definition.callback_of {
                assert_eq!(definition.payload, Payload::Json(fire_id.to_string().into()));
                assert!(definition.callbacks.is_none() && definition.key.is_none());
            }
        }
    }

    fn forget_replies(&mut self) {
        self.scheduling.clear();
        self.cancelling.clear();
    }
}

impl RecordScenario {
    fn new(seed: u64, hand_overs: Option<RandomHandOvers>) -> Self {
        let mut fixture = OwnerFixture::new();
        fixture.answers = true;
        if let Some(hand_overs) = &hand_overs {
            hand_overs.begin(&mut fixture);
        }
        Self {
            fixture,
            rng: SeededRng::new(seed ^ 0x4ec_0000),
            hand_overs,
            receiver: ReceiverModel::default(),
            scheduling: Vec::new(),
            cancelling: Vec::new(),
            created: Vec::new(),
            start_paused: HashSet::new(),
            received: HashMap::new(),
        }
    }

    /// Runs the scenario and returns how many hand-overs there were.
    fn run(mut self) -> u32 {
        self.run_steps();
        self.recover();
        self.check_end();
        self.fixture.hand_overs
    }

    fn schedule(&mut self) {
        let name = (self.rng.below(3) > 0).then(|| format!("key-{}", self.rng.below(KEYS)));
        let delay = [millis(0), millis(self.rng.below(50)), secs(self.rng.below(40))];
        let delay = delay[self.rng.index(3)];
        let new_task = match &name {
            Some(name) => keyed(name, delay),
            None => once(delay),
        };
        let schedule = match self.rng.below(6) {
            0 => Schedule::watch(secs(1 + self.rng.below(20))),
            1..3 => {
                let overlap = [Overlap::Allow, Overlap::Skip, Overlap::QueueOne];
                let (overlap, count) = (overlap[self.rng.index(3)], Some(3));
                let series = Series { overlap, count, ..Series::default() };
                let interval = millis(500 + self.rng.below(9000));
                Schedule::Every { interval, series: series.into() }
            }
            _ => new_task.schedule.clone(),
        };
        let guarantee = [Guarantee::AtMostOnce, Guarantee::AtLeastOnce][self.rng.index(2)];
        let backoff = Backoff::Fixed(millis(self.rng.below(9_000)));
        let retry = RetryPolicy { attempts_max: 2, backoff, jitter: Jitter::default() };
        let target = |name: &str| Some(Target::Queue(Queue::new(name).unwrap()));
        let callbacks = match self.rng.below(4) {
            0 => None,
            1 => Callbacks::new(target("done"), None),
            2 => Callbacks::new(None, target("dead")),
            _ => Callbacks::new(target("done"), target("dead")),
        };
        let expires = self.rng.below(5) == 0 && guarantee == Guarantee::AtLeastOnce;
        let expires_after = expires.then(|| secs(20));
        let new_task = NewTask { schedule, guarantee, retry, callbacks, expires_after, ..new_task };
        let start = match self.rng.below(6) {
            0 => StartState::Paused,
            _ => StartState::Scheduled,
        };
        let reply = self.fixture.send_started(new_task, Condition::Always, start);
        self.scheduling.push((start, reply));
    }

    fn cancel(&mut self) {
        let subject = match self.rng.below(4) {
            0 if !self.created.is_empty() => self.any_task(),
            1 => self.any_callback().unwrap_or_else(|| key("key-0")),
            _ => key(&format!("key-{}", self.rng.below(KEYS))),
        };
        let reply = self.fixture.send_cancel(subject.clone());
        self.cancelling.push((subject, reply));
    }

    /// Pauses, resumes, fires or touches a task, or a callback.
    fn change(&mut self) {
        if self.created.is_empty() {
            return;
        }
        let task = self.any_task();
        let subject = match self.rng.below(4) {
            0 => self.any_callback().unwrap_or(task),
            _ => task,
        };
        match self.rng.below(5) {
            0 => drop(self.fixture.send_for_task(Command::Pause(subject))),
            1 => drop(self.fixture.send_for_task(Command::Fire(subject))),
            2 => {
                let to = TouchTo::To(Due::In(secs(self.rng.below(30))));
                drop(self.fixture.send_touch(subject, to));
            }
            _ => self.resume(&subject),
        }
    }

    fn resume(&mut self, subject: &Subject) {
        if let Subject::Id(_, id) = subject {
            self.start_paused.remove(id);
        }
        drop(self.fixture.send_for_task(Command::Resume(subject.clone())));
    }

    fn any_task(&mut self) -> Subject {
        Subject::Id(shop(), self.created[self.rng.index(self.created.len())])
    }

    fn any_callback(&mut self) -> Option<Subject> {
        let callbacks = self.fixture.check_callbacks();
        (!callbacks.is_empty())
            .then(|| Subject::Id(shop(), callbacks[self.rng.index(callbacks.len())].0))
    }

    fn redrive(&mut self) {
        let letters = ready(self.fixture.store.dead(PARTITION, &shop(), None, 9)).unwrap().items;
        if letters.is_empty() {
            return;
        }
        let letter = &letters[self.rng.index(letters.len())];
        let subject = match letter.task.definition.key.clone() {
            Some(key) => Subject::Key(shop(), key),
            None => Subject::Id(shop(), letter.task.id),
        };
        let fire_id = letter.fire_id();
        self.start_paused.remove(&letter.task.id);
        drop(self.fixture.send_for_task(Command::Redrive { subject, fire_id }));
    }

    fn perform_action(&mut self) {
        if !self.fixture.actions.is_empty() {
            let index = self.rng.index(self.fixture.actions.len());
            self.fixture.perform(index);
        }
    }

    fn end_delivery(&mut self) {
        if let Some(fire_id) = self.receiver.end_one(&mut self.fixture, &mut self.rng) {
            *self.received.entry(fire_id.task).or_default() -= 1;
        }
    }

    fn move_time(&mut self) {
        self.fixture.now = self.fixture.now.after(match self.rng.below(3) {
            0 => millis(1),
            1 => millis(self.rng.below(100)),
            _ => secs(self.rng.below(12)),
        });
        self.fixture.act();
    }

    fn take_replies(&mut self) {
        for (start, mut reply) in std::mem::take(&mut self.scheduling) {
            match reply.try_recv() {
                Ok(Ok(scheduled)) => self.scheduled(start, scheduled.task()),
                Err(TryRecvError::Empty) => self.scheduling.push((start, reply)),
                _ => {}
            }
        }
        for (subject, mut reply) in std::mem::take(&mut self.cancelling) {
            match reply.try_recv() {
                Ok(reply) => self.check_cancelled(&subject, reply),
                Err(TryRecvError::Empty) => self.cancelling.push((subject, reply)),
                Err(TryRecvError::Closed) => {}
            }
        }
    }

    fn scheduled(&mut self, start: StartState, task: &Task) {
        self.created.push(task.id);
        if start == StartState::Paused {
            assert_eq!(task.state, TaskState::Paused);
            let edited = task.version.get() > 1;
            // A command that was sent before may resume a task that was edited.
            if !edited {
                self.start_paused.insert(task.id);
            }
        }
    }

    /// A key without a task answers for its last one.
    fn check_cancelled(&self, subject: &Subject, reply: Result<Cancelled, EngineError>) {
        let Subject::Key(_, key) = subject else { return };
        let last =
            ready(self.fixture.store.last_fires(PARTITION, &shop(), std::slice::from_ref(key)));
        let last = last.unwrap().remove(0);
        match reply {
            Err(EngineError::NotFound) => {
                let unfired =
                    |it: &FireRecord| it.end == FireEnd::Replaced && it.attempts.is_empty();
                assert!(last.as_ref().is_none_or(unfired), "not found: {last:?}");
            }
            Ok(Cancelled::AlreadyFired(at)) => {
                let known = self.records().into_iter().any(|record| {
                    let first = record.attempts.first().map(|attempt| attempt.fired_at);
                    record.key.as_ref() == Some(key) && first.unwrap_or(record.ended_at) == at
                });
                // The record of a redriven fire that has ended again replaces the earlier one.
                assert!(known || last.is_some(), "fired at {at:?}: {last:?}");
            }
            _ => {}
        }
    }

    fn records(&self) -> Vec<FireRecord> {
        let filter = FireFilter::all(shop());
        ready(self.fixture.store.fires(PARTITION, &filter, None, 100_000)).unwrap().items
    }

    /// Answers everything and acks every delivery, until nothing is left to do.
    fn recover(&mut self) {
        self.answer_pending();
        for _ in 0..2 {
            self.resume_all();
            self.settle_all(60);
        }
    }

    /// Resumes all tasks, redriven ones and callbacks included.
    fn resume_all(&mut self) {
        let filter = Filter::all(shop());
        let start = Position::START;
        let tasks = ready(self.fixture.store.list(PARTITION, &filter, start, 100_000)).unwrap();
        for task in tasks.items {
            self.resume(&Subject::Id(shop(), task.id));
        }
    }

    fn check_end(&self) {
        let counts = self.fixture.counts();
        assert_eq!((counts.scheduled, counts.paused), (0, 0), "no task is left: {counts:?}");
        assert_eq!(self.fixture.owner.loaded(), 0, "memory is empty");
        assert!(self.fixture.owner.is_quiet());
        let letters = ready(self.fixture.store.dead(PARTITION, &shop(), None, 100_000)).unwrap();
        let dead: HashSet<_> = letters.items.iter().map(|letter| letter.task.id).collect();
        let cancelled: HashSet<_> = self
            .records()
            .into_iter()
            .filter(|record| matches!(record.end, FireEnd::Cancelled | FireEnd::Replaced))
            .map(|record| record.fire_id.task)
            .collect();
        for (id, fire_id) in self.fixture.check_callbacks() {
            let received = self.received.get(&id).is_some_and(|times| *times > 0);
            let ended = dead.contains(&id) || cancelled.contains(&id);
            assert!(received || ended, "the callback {id} of {fire_id} was not received");
        }
        self.records().iter().for_each(check_answers);
    }
}

/// An attempt that a receiver has answered has that answer.
fn check_answers(record: &FireRecord) {
    for attempt in &record.attempts {
        let expected = answer_to(record.fire_id, attempt.number);
        match (&attempt.outcome, &attempt.answer) {
            (_, Some(answer)) => assert_eq!(**answer, expected, "{record:?}"),
            (Outcome::Acked, None) => panic!("an ack without its answer: {record:?}"),
            (Outcome::Failed { reason, .. }, None) => {
                assert_eq!(reason.as_str(), "it was not sent", "{record:?}");
            }
            (Outcome::Refused { .. } | Outcome::Expired, None) => {}
        }
    }
}
