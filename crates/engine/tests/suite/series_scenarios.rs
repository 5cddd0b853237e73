//! Interval tasks and a watch in random scenarios: answers of the store and outcomes in any order,
//! faults of the store, crashes, pauses, edits and redrives at any point. Every nominal time must
//! be in the history exactly once, and agree with what the receiver got. See `seeds` for how to run
//! a seed again.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use crate::fixture::receiver::ReceiverModel;
use crate::fixture::scenario::RandomScenario;
use crate::fixture::{
    OwnerFixture, PARTITION, PendingReply, RandomHandOvers, SeededRng, StoreFault, key, keyed,
    millis, ready, secs, seeds, shop,
};
use punctual_core::{
    Backoff, DeadReason, FireEnd, FireId, FireRecord, Guarantee, Jitter, Misfire, NewTask,
    Occasion, Overlap, Payload, RetryPolicy, Schedule, Series, Task, TaskId, TaskState, Timestamp,
    Version,
};
use punctual_engine::{Cancelled, Command, Condition, Scheduled, Subject, TouchTo};
use punctual_store::{Filter, Position, TaskStore};
use tokio::sync::oneshot::error::TryRecvError;

const SEEDS_DEFAULT: u64 = 200;
/// Each failed once.
const SEEDS_KEPT: [u64; 12] = [8, 9, 18, 25, 27, 29, 30, 73, 100, 114, 418, 726];
/// The same with hand-overs.
const SEEDS_KEPT_HAND_OVER: [u64; 0] = [];

#[test]
fn every_nominal_time_is_accounted_for_in_random_scenarios() {
    let scenario = |seed, hand_overs| SeriesScenario::new(seed, hand_overs).run();
    seeds::run(&SEEDS_KEPT, SEEDS_DEFAULT, scenario);
}

#[test]
fn every_nominal_time_is_accounted_for_when_the_partition_is_handed_over() {
    let scenario = |seed, hand_overs| SeriesScenario::new(seed, hand_overs).run();
    seeds::run_with_hand_overs(&SEEDS_KEPT_HAND_OVER, SEEDS_DEFAULT, scenario);
}

#[test]
fn every_nominal_time_is_accounted_for_when_deliveries_wait_in_the_courier() {
    let scenario = |seed, hand_overs| {
        let mut scenario = SeriesScenario::new(seed, hand_overs);
        scenario.fixture.hold_some_deliveries(seed);
        scenario.run()
    };
    seeds::run(&[], SEEDS_DEFAULT, scenario);
    seeds::run_with_hand_overs(&[], SEEDS_DEFAULT, scenario);
}

/// A series as its caller expects it.
struct ExpectedSeries {
    name: &'static str,
    first: Task,
    interval: Duration,
    count: u32,
    guarantee: Guarantee,
    paused: bool,
    pausing: Option<PendingReply<Task>>,
    /// The version of the last edit that was answered.
    version: Version,
    editing: Vec<PendingReply<Scheduled>>,
}

struct SeriesScenario {
    fixture: OwnerFixture,
    rng: SeededRng,
    hand_overs: Option<RandomHandOvers>,
    receiver: ReceiverModel,
    series: Vec<ExpectedSeries>,
    received: HashMap<FireId, u32>,
    watch: Task,
    /// Until when the watch is armed, according to the last reply.
    armed_until: Timestamp,
    /// Whether a touch was sent whose result is not known.
    in_doubt: bool,
    touching: Option<PendingReply<Timestamp>>,
    /// The due times at which the watch fired.
    watch_fired: HashSet<Timestamp>,
    /// How often a caller wanted a fire to be redriven. Each time it may be received once more.
    redriven: HashMap<FireId, u32>,
    /// How often a redrive may have made a task of its own.
    redriven_apart: i64,
    cancelling: Vec<(FireId, PendingReply<Cancelled>)>,
    /// Redriven fires that were cancelled, and not redriven since.
    cancelled: HashSet<FireId>,
}

impl RandomScenario for SeriesScenario {
    const STEPS: u32 = 300;

    fn fixture(&mut self) -> &mut OwnerFixture {
        &mut self.fixture
    }

    fn step(&mut self) {
        if let Some(hand_overs) = &mut self.hand_overs
            && hand_overs.step(&mut self.fixture)
        {
            return;
        }
        if self.fixture.roll_waiting(3) == Some(0) {
            return self.command_waiting();
        }
        match self.rng.below(100) {
            0..3 => self.pause(),
            3..7 => self.resume(),
            7..10 => self.edit(),
            10..14 => self.touch(),
            14..19 => self.redrive(),
            19..20 => self.cancel_redriven(),
            20..45 => {
                if !self.fixture.actions.is_empty() {
                    let index = self.rng.index(self.fixture.actions.len());
                    self.fixture.perform(index);
                }
            }
            45..70 => self.end_delivery(),
            70..93 => {
                self.fixture.now = self.fixture.now.after(match self.rng.below(8) {
                    0 => secs(self.rng.below(20)),
                    1..3 => millis(1),
                    _ => millis(self.rng.below(2000)),
                });
                self.fixture.act();
            }
            93..95 => {
                let capacity = [0, 1, 256, 256][self.rng.index(4)];
                self.fixture.set_capacity(capacity);
            }
            95..98 => {
                use StoreFault::{AnswerLost, Full, None, Unavailable};
                let all = [None, None, Unavailable, AnswerLost, Full];
                self.fixture.fault = all[self.rng.index(all.len())];
            }
            _ if self.hand_overs.as_ref().is_none_or(|it| it.crashes) => self.crash(),
            _ => self.fixture.start_hand_over(),
        }
    }

    fn check_sent(&mut self) {
        self.take_replies();
        self.fixture.check_gauges();
        let crashed = self.has_crashed();
        for delivery in self.fixture.sent.drain(..) {
            self.receiver.receive(&delivery, crashed);
            let fire_id = delivery.fire_id;
            let times = self.received.entry(fire_id).or_default();
            *times += 1;
            if fire_id.task == self.watch.id {
                if delivery.occasion == Occasion::Due && !delivery.redriven {
                    let at = delivery.fire_at;
                    let silent = at >= self.armed_until || self.in_doubt;
                    assert!(silent, "armed until {}, and fired: {delivery:?}", self.armed_until);
                    self.watch_fired.insert(at);
                }
                continue;
            }
            let series = self.series.iter().find(|series| series.first.id == fire_id.task);
            let series = series.expect("no other tasks");
            assert_eq!(delivery.definition.key, series.first.definition.key);
            if series.guarantee == Guarantee::AtMostOnce {
                let max = 1 + self.redriven.get(&fire_id).copied().unwrap_or_default();
                assert!(*times <= max, "an at-most-once fire was received again: {delivery:?}");
            }
            let cancelled = delivery.redriven && self.cancelled.contains(&fire_id);
            assert!(!cancelled, "sent after it was cancelled: {delivery:?}");
            let is_old = delivery.version < series.version && !delivery.redriven;
            assert!(!is_old, "an older version: {delivery:?}");
            // A redriven fire does not wait for its series.
            assert!(!series.paused || delivery.redriven, "sent while paused: {delivery:?}");
        }
    }

    fn forget_replies(&mut self) {
        for series in &mut self.series {
            series.pausing = None;
            series.editing.clear();
        }
        self.touching = None;
        self.cancelling.clear();
    }
}

impl SeriesScenario {
    fn new(seed: u64, hand_overs: Option<RandomHandOvers>) -> Self {
        let mut rng = SeededRng::new(seed);
        let mut fixture = OwnerFixture::new();
        if let Some(hand_overs) = &hand_overs {
            hand_overs.begin(&mut fixture);
        }
        let names = ["a", "b", "c"];
        let series = names.map(|name| {
            let interval = millis(500 + rng.below(9500));
            let count = 3 + u32::try_from(rng.below(12)).unwrap();
            let guarantee = [Guarantee::AtLeastOnce, Guarantee::AtMostOnce][rng.index(3).min(1)];
            let new_task = new_series(name, interval, count, guarantee, &mut rng);
            let first = fixture.schedule(new_task);
            let (paused, pausing) = (false, None);
            let (version, editing) = (first.version, Vec::new());
            ExpectedSeries {
                name,
                first,
                interval,
                count,
                guarantee,
                paused,
                pausing,
                version,
                editing,
            }
        });
        let on_return = rng.below(2) == 0;
        let within = secs(20);
        let schedule = Schedule::Watch { within, postpone_max: None, on_return };
        let watch =
            fixture.schedule(NewTask { schedule, retry: retry(&mut rng), ..keyed("w", secs(0)) });
        Self {
            fixture,
            rng,
            hand_overs,
            receiver: ReceiverModel::default(),
            series: series.into(),
            received: HashMap::new(),
            armed_until: watch.fire_at,
            watch,
            in_doubt: false,
            touching: None,
            watch_fired: HashSet::new(),
            redriven: HashMap::new(),
            redriven_apart: 0,
            cancelling: Vec::new(),
            cancelled: HashSet::new(),
        }
    }

    /// Runs the scenario and returns how many hand-overs there were.
    fn run(mut self) -> u32 {
        self.run_steps();
        self.recover();
        for series in &self.series {
            self.check(series);
        }
        self.check_watch();
        let series = self.series.iter().map(|series| series.first.id);
        self.fixture.check_attempts(series.chain([self.watch.id]));
        assert!(self.fixture.owner.is_quiet());
        assert_eq!(self.fixture.owner.loaded(), 0, "memory is empty");
        let counts = self.fixture.counts();
        assert_eq!((counts.scheduled, counts.paused), (0, 0), "{counts:?}");
        let accepted = 4..=4 + self.redriven_apart;
        assert!(accepted.contains(&counts.accepted()), "{accepted:?}: {counts:?}");
        self.fixture.hand_overs
    }

    /// Sends a command about a task whose delivery waits in the courier, or lets the owner lose
    /// the delivery in another way.
    fn command_waiting(&mut self) {
        let Some(delivery) = self.fixture.any_waiting() else { return };
        let of = |series: &ExpectedSeries| series.first.id == delivery.fire_id.task;
        match (self.series.iter().position(of), self.rng.below(8)) {
            (_, 0) if self.hand_overs.as_ref().is_none_or(|it| it.crashes) => {
                self.lose_partition();
            }
            (_, 0) => self.fixture.start_hand_over(),
            _ if delivery.redriven => self.cancel_redriven(),
            (Some(index), 1..3) => self.pause_one(index),
            (Some(index), 3..5) => self.resume_one(index),
            (Some(index), _) => self.edit_one(index),
            (None, _) => self.touch(),
        }
        self.perform_at_times();
    }

    fn pause(&mut self) {
        let index = self.rng.index(self.series.len());
        self.pause_one(index);
    }

    fn pause_one(&mut self, index: usize) {
        let command = Command::Pause(key(self.series[index].name));
        let answer = self.fixture.send_for_task(command);
        self.series[index].pausing = Some(answer);
    }

    fn resume(&mut self) {
        let index = self.rng.index(self.series.len());
        self.resume_one(index);
    }

    fn resume_one(&mut self, index: usize) {
        let series = &mut self.series[index];
        (series.paused, series.pausing) = (false, None);
        let command = Command::Resume(key(series.name));
        drop(self.fixture.send_for_task(command));
    }

    /// Changes the payload. The schedule stays as it is, and with it every nominal time.
    fn edit(&mut self) {
        let index = self.rng.index(self.series.len());
        self.edit_one(index);
    }

    fn edit_one(&mut self, index: usize) {
        let ExpectedSeries { first, .. } = &self.series[index];
        let payload = Payload::Json(format!("{}", self.rng.below(1000)).into());
        let new_task = NewTask { payload, ..NewTask::clone(&first.definition) };
        // A task that has ended must not be created again.
        let stored = ready(self.fixture.store.get(PARTITION, &[first.id])).unwrap();
        let Some(Some(task)) = stored.first() else { return };
        let condition = Condition::Version(task.version);
        let answer = self.fixture.send_schedule(new_task, condition);
        self.series[index].editing.push(answer);
    }

    fn touch(&mut self) {
        self.take_replies();
        self.in_doubt = true;
        let answer = self.fixture.send_touch(key("w"), TouchTo::Within);
        self.touching = Some(answer);
    }

    /// Redrives a dead letter. The fire of a series becomes a task of its own; if that dies, it is
    /// redriven as that task.
    fn redrive(&mut self) {
        let letters = ready(self.fixture.store.dead(PARTITION, &shop(), None, 9)).unwrap().items;
        if letters.is_empty() {
            return;
        }
        let letter = &letters[self.rng.index(letters.len())];
        let (task, fire_id) = (&letter.task, letter.fire_id());
        let subject = match task.definition.key.clone() {
            Some(key) => Subject::Key(shop(), key),
            None => Subject::Id(shop(), task.id),
        };
        *self.redriven.entry(fire_id).or_default() += 1;
        self.cancelled.remove(&fire_id);
        self.cancelling.retain(|(cancelling, _)| *cancelling != fire_id);
        self.redriven_apart += i64::from(task.origin().is_none());
        drop(self.fixture.send_for_task(Command::Redrive { subject, fire_id }));
    }

    /// Cancels a redriven fire.
    fn cancel_redriven(&mut self) {
        let filter = Filter::all(shop());
        let tasks = self.fixture.store.list(PARTITION, &filter, Position::START, 99);
        let mut tasks = ready(tasks).unwrap().items;
        tasks.retain(|task| task.origin().is_some());
        if !tasks.is_empty() {
            let task = &tasks[self.rng.index(tasks.len())];
            let answer = self.fixture.send_cancel(Subject::Id(shop(), task.id));
            self.cancelling.push((task.fire().id, answer));
        }
    }

    fn end_delivery(&mut self) {
        let unsent = self.receiver.end_one(&mut self.fixture, &mut self.rng);
        if let Some(fire_id) = unsent {
            *self.received.entry(fire_id).or_default() -= 1;
        }
    }

    fn recover(&mut self) {
        self.answer_pending();
        for index in 0..self.series.len() {
            self.resume_one(index);
        }
        self.settle_all(400);
    }

    fn take_replies(&mut self) {
        for series in &mut self.series {
            if let Some(answer) = &mut series.pausing
                && let Ok(answer) = answer.try_recv()
            {
                series.paused = answer.is_ok();
                series.pausing = None;
            }
            for mut answer in std::mem::take(&mut series.editing) {
                match answer.try_recv() {
                    Ok(Ok(Scheduled::Created(task) | Scheduled::Replaced(task))) => {
                        series.version = series.version.max(task.version);
                    }
                    Err(TryRecvError::Empty) => series.editing.push(answer),
                    _ => {}
                }
            }
        }
        if let Some(answer) = &mut self.touching
            && let Ok(answer) = answer.try_recv()
        {
            if let Ok(until) = answer {
                (self.armed_until, self.in_doubt) = (until, false);
            }
            self.touching = None;
        }
        for (fire_id, mut answer) in std::mem::take(&mut self.cancelling) {
            match answer.try_recv() {
                Ok(Ok(Cancelled::Cancelled)) => _ = self.cancelled.insert(fire_id),
                Err(TryRecvError::Empty) => self.cancelling.push((fire_id, answer)),
                _ => {}
            }
        }
    }

    /// The history must have every nominal time from the first on, once and without a gap, until as
    /// many were fired as the series has.
    fn check(&self, series: &ExpectedSeries) {
        let mut records = self.history(series.first.id);
        records.reverse();
        let mut expected = series.first.nominal_at;
        let mut fired = 0;
        for record in &records {
            let at = record.fire_id.nominal_at;
            assert_eq!(at, expected, "{} of {}: {record:?}", series.name, series.first.id);
            let last = match record.end {
                FireEnd::Skipped(skipped) => skipped.until,
                _ => at,
            };
            match record.end {
                // After a crash the owner does not know what was in flight.
                FireEnd::Skipped(_) => {
                    let times = self.received.get(&record.fire_id).copied().unwrap_or_default();
                    assert!(times == 0 || self.has_crashed(), "skipped, and received: {record:?}");
                }
                FireEnd::Done => {
                    fired += 1;
                    let times = self.received.get(&record.fire_id).copied().unwrap_or_default();
                    assert!(times > 0, "done, and never received: {record:?}");
                }
                FireEnd::Dead(DeadReason::Unknown | DeadReason::Exhausted) => {
                    fired += 1;
                    let acked = self.receiver.acked.contains(&record.fire_id);
                    assert!(!acked || self.has_crashed(), "acked, and dead: {record:?}");
                }
                FireEnd::Replaced => fired += 1,
                FireEnd::Cancelled if self.redriven.contains_key(&record.fire_id) => fired += 1,
                other => panic!("{other:?}: {record:?}"),
            }
            expected = last.after(series.interval);
        }
        assert_eq!(fired, series.count, "{}: {records:?}", series.name);
        let of = |fire_id: &FireId| fire_id.task == series.first.id;
        for (fire_id, times) in self.received.iter().filter(|(fire_id, _)| of(fire_id)) {
            if *times == 0 {
                continue;
            }
            let covers = |record: &&FireRecord| match record.end {
                FireEnd::Skipped(skipped) => {
                    let times = record.fire_id.nominal_at..=skipped.until;
                    self.has_crashed() && times.contains(&fire_id.nominal_at)
                }
                _ => record.fire_id == *fire_id,
            };
            assert!(records.iter().any(|record| covers(&record)), "{fire_id}: {records:?}");
        }
    }

    const fn has_crashed(&self) -> bool {
        self.fixture.crashes > 0
    }

    fn check_watch(&self) {
        let watch = ready(self.fixture.store.get(PARTITION, &[self.watch.id])).unwrap();
        let watch = watch[0].as_ref().expect("a watch stays");
        let fired = matches!(watch.state, TaskState::Done | TaskState::Dead);
        assert!(fired, "not touched any more: {watch:?}");
        if !self.in_doubt {
            let fired = self.watch_fired.contains(&self.armed_until);
            assert!(fired, "silent since {} and never fired: {watch:?}", self.armed_until);
        }
    }

    fn history(&self, id: TaskId) -> Vec<FireRecord> {
        ready(self.fixture.store.history(PARTITION, id, 10_000)).unwrap()
    }
}

fn retry(rng: &mut SeededRng) -> RetryPolicy {
    let backoff = Backoff::Fixed(millis(rng.below(9000)));
    let attempts_max = 1 + u16::try_from(rng.below(3)).unwrap();
    RetryPolicy { attempts_max, backoff, jitter: Jitter::default() }
}

fn new_series(
    name: &str,
    interval: Duration,
    count: u32,
    guarantee: Guarantee,
    rng: &mut SeededRng,
) -> NewTask {
    let overlap = [Overlap::Allow, Overlap::Allow, Overlap::Skip, Overlap::QueueOne][rng.index(4)];
    let misfire = [Misfire::FireOnce, Misfire::FireAll, Misfire::Skip][rng.index(3)];
    let jitter = if rng.below(3) == 0 { millis(rng.below(400)) } else { Duration::ZERO };
    let count = Some(count);
    let series = Series { count, overlap, misfire, jitter, ..Series::default() };
    let schedule = Schedule::Every { interval, series: series.into() };
    NewTask { schedule, guarantee, retry: retry(rng), ..keyed(name, secs(0)) }
}
