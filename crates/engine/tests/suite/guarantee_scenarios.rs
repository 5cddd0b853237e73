//! The guarantees that one owner gives, checked in random scenarios: commands, outcomes and answers
//! of the store in any order, faults of the store, crashes at any point. The check compares what
//! the receiver got with what callers were promised. See `seeds` for how to run a seed again.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use crate::fixture::receiver::ReceiverModel;
use crate::fixture::scenario::RandomScenario;
use crate::fixture::{
    OwnerFixture, PARTITION, PendingReply, RandomHandOvers, SeededRng, StoreFault, key, keyed,
    millis, once, ready, secs, seeds, shop,
};
use punctual_core::{
    Backoff, DeadReason, Due, FireEnd, Guarantee, Jitter, NewTask, RetryPolicy, Task, TaskId,
    TaskState, Timestamp,
};
use punctual_engine::{Cancelled, Command, Condition, Delivery, Scheduled, Subject, TouchTo};
use punctual_store::TaskStore;
use tokio::sync::oneshot::error::TryRecvError;

const SEEDS_DEFAULT: u64 = 300;
/// Each failed once.
const SEEDS_KEPT: [u64; 4] = [30, 36, 2730, 8942];
/// The same with deliveries that wait in the courier.
const SEEDS_KEPT_WAITING: [u64; 2] = [2837, 7682];
/// The same with hand-overs.
const SEEDS_KEPT_HAND_OVER: [u64; 2] = [6967, 16470];

#[test]
fn the_guarantees_hold_in_random_scenarios() {
    let scenario = |seed, hand_overs| GuaranteeScenario::new(seed, hand_overs).run();
    seeds::run(&SEEDS_KEPT, SEEDS_DEFAULT, scenario);
}

#[test]
fn the_guarantees_hold_when_deliveries_wait_in_the_courier() {
    let scenario = |seed, hand_overs| {
        GuaranteeScenario::new(seed, hand_overs).with_waiting_deliveries(seed).run()
    };
    seeds::run(&SEEDS_KEPT_WAITING, SEEDS_DEFAULT, scenario);
    seeds::run_with_hand_overs(&[], SEEDS_DEFAULT, scenario);
}

#[test]
fn the_guarantees_hold_when_the_partition_is_handed_over() {
    let scenario = |seed, hand_overs| GuaranteeScenario::new(seed, hand_overs).run();
    seeds::run_with_hand_overs(&SEEDS_KEPT_HAND_OVER, SEEDS_DEFAULT, scenario);
}

/// What a caller was promised about a task.
#[derive(Debug)]
struct ExpectedTask {
    task: Task,
    /// Cancelled or replaced: it must not be sent any more.
    over: bool,
    /// Paused, and no resume was sent since.
    paused: bool,
}

struct GuaranteeScenario {
    fixture: OwnerFixture,
    rng: SeededRng,
    hand_overs: Option<RandomHandOvers>,
    receiver: ReceiverModel,
    expected: HashMap<TaskId, ExpectedTask>,
    /// How often each task was sent.
    received: HashMap<TaskId, u32>,
    scheduling: Vec<(Option<String>, PendingReply<Scheduled>)>,
    cancelling: Vec<(Subject, PendingReply<Cancelled>)>,
    touching: Vec<(TaskId, PendingReply<Timestamp>)>,
    pausing: Vec<(TaskId, PendingReply<Task>)>,
    getting: Vec<(TaskId, PendingReply<Task>)>,
    /// Redriven tasks may be received once more than promised, because a caller asked for it.
    redriven: HashSet<TaskId>,
    /// The task that a key names, according to the replies.
    names: HashMap<String, TaskId>,
}

impl RandomScenario for GuaranteeScenario {
    const STEPS: u32 = 400;

    fn fixture(&mut self) -> &mut OwnerFixture {
        &mut self.fixture
    }

    fn step(&mut self) {
        if let Some(hand_overs) = &mut self.hand_overs
            && hand_overs.step(&mut self.fixture)
        {
            return;
        }
        if self.fixture.roll_waiting(3) == Some(0) && self.command_waiting() {
            return;
        }
        match self.rng.below(100) {
            0..20 => self.schedule(),
            20..27 => self.cancel(),
            27..32 => self.touch(),
            32..35 => self.pause(),
            35..38 => self.resume(),
            38..40 => self.redrive(),
            40..65 => self.perform_action(),
            65..80 => self.end_delivery(),
            80..93 => self.move_time(),
            93..95 => {
                let capacity = [0, 1, 256][self.rng.index(3)];
                self.fixture.set_capacity(capacity);
            }
            95..98 => {
                let all = [
                    StoreFault::None,
                    StoreFault::None,
                    StoreFault::Unavailable,
                    StoreFault::AnswerLost,
                    StoreFault::Full,
                ];
                self.fixture.fault = all[self.rng.index(all.len())];
            }
            _ if self.hand_overs.as_ref().is_none_or(|it| it.crashes) => self.crash(),
            _ => self.fixture.start_hand_over(),
        }
    }

    /// Checks what was sent, after the callers have taken their replies.
    fn check_sent(&mut self) {
        self.take_replies();
        self.take_replies_of_changes();
        self.take_replies_of_lookups();
        self.fixture.check_gauges();
        for delivery in self.fixture.sent.drain(..) {
            let id = delivery.fire_id.task;
            self.receiver.receive(&delivery, self.fixture.crashes > 0);
            let times = self.received.entry(id).or_default();
            *times += 1;
            let at_most_once = delivery.definition.guarantee == Guarantee::AtMostOnce;
            if at_most_once && !self.redriven.contains(&id) {
                assert_eq!(*times, 1, "an at-most-once fire was received twice: {delivery:?}");
            }
            if let Some(expected_task) = self.expected.get(&id) {
                // A redrive may send it, even if another task had its key meanwhile.
                let over = expected_task.over && !self.redriven.contains(&id);
                assert!(!over, "sent after it was cancelled or replaced: {delivery:?}");
                assert!(!expected_task.paused, "sent while paused: {delivery:?}");
                assert!(
                    delivery.version >= expected_task.task.version,
                    "an older version: {delivery:?}"
                );
            }
        }
    }

    fn forget_replies(&mut self) {
        self.scheduling.clear();
        self.cancelling.clear();
        self.touching.clear();
        self.pausing.clear();
        self.getting.clear();
    }
}

impl GuaranteeScenario {
    fn new(seed: u64, hand_overs: Option<RandomHandOvers>) -> Self {
        let mut fixture = OwnerFixture::new();
        if let Some(hand_overs) = &hand_overs {
            hand_overs.begin(&mut fixture);
        }
        Self {
            fixture,
            rng: SeededRng::new(seed),
            hand_overs,
            receiver: ReceiverModel::default(),
            expected: HashMap::new(),
            received: HashMap::new(),
            scheduling: Vec::new(),
            cancelling: Vec::new(),
            touching: Vec::new(),
            pausing: Vec::new(),
            getting: Vec::new(),
            redriven: HashSet::new(),
            names: HashMap::new(),
        }
    }

    fn with_waiting_deliveries(mut self, seed: u64) -> Self {
        self.fixture.hold_some_deliveries(seed);
        self
    }

    /// Runs the scenario and returns how many hand-overs there were.
    fn run(mut self) -> u32 {
        self.run_steps();
        self.recover();
        self.check_end();
        self.fixture.hand_overs
    }

    /// Sends a command about a task whose delivery waits in the courier, or lets the owner lose
    /// the delivery in another way.
    fn command_waiting(&mut self) -> bool {
        let Some(delivery) = self.fixture.any_waiting() else { return false };
        let (id, key) = (delivery.fire_id.task, delivery.definition.key.clone());
        let subject = match key.clone() {
            Some(key) if self.rng.below(2) == 0 => Subject::Key(shop(), key),
            _ => Subject::Id(shop(), id),
        };
        if !self.expected.contains_key(&id) {
            return false;
        }
        match self.rng.below(16) {
            0..4 => match key {
                Some(key) => {
                    let delay = self.any_delay();
                    self.schedule_as(Some(key.as_str().to_owned()), delay);
                }
                None => self.cancel_subject(subject),
            },
            4..7 => self.cancel_subject(subject),
            7..10 => self.touch_one(id),
            10..12 => self.pause_one(id),
            12..15 => {
                let answer = self.fixture.send_for_task(Command::Get(subject));
                self.getting.push((id, answer));
            }
            // The sent attempts may be repeated, as after a crash.
            _ if self.hand_overs.as_ref().is_none_or(|it| it.crashes) => self.lose_partition(),
            _ => self.fixture.start_hand_over(),
        }
        self.perform_at_times();
        true
    }

    fn schedule(&mut self) {
        let delay = self.any_delay();
        let name = (self.rng.below(2) == 0).then(|| format!("key-{}", self.rng.below(6)));
        self.schedule_as(name, delay);
    }

    fn any_delay(&mut self) -> Duration {
        match self.rng.below(4) {
            0 => millis(0),
            1 => millis(self.rng.below(50)),
            2 => secs(self.rng.below(40)),
            _ => secs(self.rng.below(200)),
        }
    }

    fn schedule_as(&mut self, name: Option<String>, delay: Duration) {
        let new_task = match &name {
            Some(name) => keyed(name, delay),
            None => once(delay),
        };
        let guarantee = match self.rng.below(3) {
            0 => Guarantee::AtMostOnce,
            _ => Guarantee::AtLeastOnce,
        };
        let backoff = Backoff::Fixed(millis(self.rng.below(20_000)));
        let retry = RetryPolicy { attempts_max: 3, backoff, jitter: Jitter::default() };
        let new_task = NewTask { guarantee, retry, ..new_task };
        let answer = self.fixture.send_schedule(new_task, Condition::Always);
        self.scheduling.push((name, answer));
    }

    fn cancel(&mut self) {
        let subject = if self.rng.below(2) == 0 || self.expected.is_empty() {
            key(&format!("key-{}", self.rng.below(6)))
        } else {
            let mut ids: Vec<_> = self.expected.keys().copied().collect();
            ids.sort();
            Subject::Id(shop(), ids[self.rng.index(ids.len())])
        };
        self.cancel_subject(subject);
    }

    fn cancel_subject(&mut self, subject: Subject) {
        let answer = self.fixture.send_cancel(subject.clone());
        self.cancelling.push((subject, answer));
    }

    fn touch(&mut self) {
        let Some(id) = self.any_expected() else { return };
        self.touch_one(id);
    }

    fn touch_one(&mut self, id: TaskId) {
        let push = TouchTo::To(Due::In(secs(self.rng.below(90))));
        let subject = Subject::Id(shop(), id);
        // Not chosen by `rng`, so that kept seeds stay what they are.
        let answer = match id.sequence().get().is_multiple_of(2) {
            true => self.fixture.send_touch(subject, push),
            false => self.fixture.send_touch_and_get(&subject, push),
        };
        self.touching.push((id, answer));
    }

    fn pause(&mut self) {
        let Some(id) = self.any_expected() else { return };
        self.pause_one(id);
    }

    fn pause_one(&mut self, id: TaskId) {
        let answer = self.fixture.send_for_task(Command::Pause(Subject::Id(shop(), id)));
        self.pausing.push((id, answer));
    }

    fn resume(&mut self) {
        let Some(id) = self.any_expected() else { return };
        self.resume_one(id);
    }

    fn resume_one(&mut self, id: TaskId) {
        if let Some(expected_task) = self.expected.get_mut(&id) {
            expected_task.paused = false;
        }
        // A pause that is answered after this may have been decided before it.
        self.pausing.retain(|(paused, _)| *paused != id);
        drop(self.fixture.send_for_task(Command::Resume(Subject::Id(shop(), id))));
    }

    fn redrive(&mut self) {
        let letters = ready(self.fixture.store.dead(PARTITION, &shop(), None, 9)).unwrap().items;
        if letters.is_empty() {
            return;
        }
        let letter = &letters[self.rng.index(letters.len())];
        let (id, fire_id) = (letter.task.id, letter.fire_id());
        let subject = match letter.task.definition.key.clone() {
            Some(key) => Subject::Key(shop(), key),
            None => Subject::Id(shop(), id),
        };
        self.redriven.insert(id);
        // The task may have been paused during its last attempt. A redrive schedules it again.
        if let Some(expected_task) = self.expected.get_mut(&id) {
            expected_task.paused = false;
        }
        self.pausing.retain(|(paused, _)| *paused != id);
        drop(self.fixture.send_for_task(Command::Redrive { subject, fire_id }));
    }

    fn any_expected(&mut self) -> Option<TaskId> {
        let mut ids: Vec<_> = self.expected.keys().copied().collect();
        ids.sort();
        (!ids.is_empty()).then(|| ids[self.rng.index(ids.len())])
    }

    fn perform_action(&mut self) {
        if !self.fixture.actions.is_empty() {
            let index = self.rng.index(self.fixture.actions.len());
            self.fixture.perform(index);
        }
    }

    fn end_delivery(&mut self) {
        let unsent = self.receiver.end_one(&mut self.fixture, &mut self.rng);
        if let Some(fire_id) = unsent {
            *self.received.entry(fire_id.task).or_default() -= 1;
        }
    }

    fn move_time(&mut self) {
        self.fixture.now = self.fixture.now.after(match self.rng.below(3) {
            0 => millis(1),
            1 => millis(self.rng.below(100)),
            _ => secs(self.rng.below(20)),
        });
        self.fixture.act();
    }

    /// Takes the replies to lookups: a task of which nothing was sent is not firing.
    fn take_replies_of_lookups(&mut self) {
        for (id, mut answer) in std::mem::take(&mut self.getting) {
            let of_task = |it: &Delivery| it.fire_id.task == id;
            let unsent = |it: &Delivery| of_task(it) && !it.permit.is_recalled();
            match answer.try_recv() {
                Ok(Ok(task)) if !self.fixture.in_flight.iter().any(of_task) => {
                    let waits = self.fixture.waiting.iter().any(unsent);
                    assert!(!waits || task.state != TaskState::Firing, "it waits: {task:?}");
                }
                Err(TryRecvError::Empty) => self.getting.push((id, answer)),
                _ => {}
            }
        }
    }

    /// Answers everything and acks every delivery, until nothing is left to do.
    fn recover(&mut self) {
        self.answer_pending();
        for id in self.expected.keys().copied().collect::<Vec<_>>() {
            self.resume_one(id);
        }
        self.settle_all(400);
    }

    /// Takes the replies to schedule and cancel commands.
    fn take_replies(&mut self) {
        for (name, mut answer) in std::mem::take(&mut self.scheduling) {
            match answer.try_recv() {
                Ok(Ok(Scheduled::Created(task) | Scheduled::Replaced(task))) => {
                    if let Some(name) = name {
                        let old = self.names.insert(name, task.id);
                        if let Some(old) = old.and_then(|old| self.expected.get_mut(&old)) {
                            old.over = true;
                        }
                    }
                    let expected_task = ExpectedTask { task, over: false, paused: false };
                    self.expected.entry(expected_task.task.id).or_insert(expected_task);
                }
                Err(TryRecvError::Empty) => {
                    self.scheduling.push((name, answer));
                }
                _ => {}
            }
        }
        for (subject, mut answer) in std::mem::take(&mut self.cancelling) {
            match answer.try_recv() {
                Ok(Ok(Cancelled::Cancelled)) => {
                    if let Subject::Id(_, id) = &subject
                        && let Some(expected_task) = self.expected.get_mut(id)
                    {
                        expected_task.over = true;
                        let of_task =
                            |it: &&Delivery| it.fire_id.task == *id && self.fixture.in_time(it);
                        let in_flight = self.fixture.in_flight.iter().find(of_task);
                        let crashed = self.fixture.crashes > 0;
                        assert!(in_flight.is_none() || crashed, "cancelled: {in_flight:?}");
                    }
                }
                Ok(Ok(Cancelled::Firing(_))) => {
                    let id = match &subject {
                        Subject::Id(_, id) => Some(*id),
                        Subject::Key(..) => None,
                    };
                    let sent = id.is_none_or(|id| {
                        let is_sent = |it: &Delivery| it.fire_id.task == id;
                        self.received.contains_key(&id) || self.fixture.sent.iter().any(is_sent)
                    });
                    let elsewhere = self.fixture.crashes > 0 || self.fixture.hand_overs > 0;
                    assert!(sent || elsewhere, "firing, and nothing was sent: {subject:?}");
                }
                Err(TryRecvError::Empty) => {
                    self.cancelling.push((subject, answer));
                }
                _ => {}
            }
        }
    }

    /// Takes the replies to touch and pause commands.
    fn take_replies_of_changes(&mut self) {
        for (id, mut answer) in std::mem::take(&mut self.touching) {
            match answer.try_recv() {
                Ok(Ok(fire_at)) => {
                    let expected_task = self.expected.get_mut(&id).unwrap();
                    expected_task.task.fire_at = fire_at;
                    expected_task.task.version = expected_task.task.version.next();
                }
                Err(TryRecvError::Empty) => self.touching.push((id, answer)),
                _ => {}
            }
        }
        for (id, mut answer) in std::mem::take(&mut self.pausing) {
            match answer.try_recv() {
                Ok(Ok(task)) => {
                    let expected_task = self.expected.get_mut(&id).unwrap();
                    expected_task.paused = true;
                    expected_task.task.version = expected_task.task.version.max(task.version);
                }
                Err(TryRecvError::Empty) => self.pausing.push((id, answer)),
                _ => {}
            }
        }
    }

    fn check_end(&self) {
        let counts = self.fixture.counts();
        assert_eq!((counts.scheduled, counts.paused), (0, 0), "no task is left: {counts:?}");
        assert_eq!(self.fixture.owner.loaded(), 0, "memory is empty");
        assert!(self.fixture.owner.is_quiet());
        for fire_id in self.receiver.acked.iter().filter(|_| self.fixture.crashes == 0) {
            let records = ready(self.fixture.store.history(PARTITION, fire_id.task, 9)).unwrap();
            let record = records.iter().find(|record| record.fire_id == *fire_id);
            let end = record.map(|record| record.end);
            let ended = matches!(end, Some(FireEnd::Done | FireEnd::Replaced | FireEnd::Cancelled));
            assert!(ended, "acked, and {end:?}: {fire_id}");
        }
        self.fixture.check_attempts(self.expected.keys().copied());
        for (id, expected_task) in &self.expected {
            if !expected_task.over && self.received.get(id).is_none_or(|times| *times == 0) {
                self.check_unreceived(expected_task);
            }
        }
    }

    /// A task that was never sent has a record that says why.
    fn check_unreceived(&self, expected_task: &ExpectedTask) {
        let id = expected_task.task.id;
        let end = ready(self.fixture.store.history(id.partition(), id, 1)).unwrap()[0].end;
        let claimed = expected_task.task.definition.guarantee == Guarantee::AtMostOnce;
        match end {
            // The owner crashed between the claim and the first byte.
            FireEnd::Dead(DeadReason::Unknown) => assert!(claimed, "{expected_task:?}"),
            // The caller asked for it, and the owner crashed before it replied.
            FireEnd::Cancelled | FireEnd::Replaced => {}
            end => panic!("{end:?} without ever being sent: {expected_task:?}"),
        }
    }
}
