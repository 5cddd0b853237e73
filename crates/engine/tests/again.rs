//! Tasks that are due again and again, and watches, over random lives: store answers and couriers in any order, bad weather, crashes,
//! pauses and edits at any point. The receiver and the history are the witnesses: every nominal time is accounted for exactly
//! once. Run one seed with `PUNCTUAL_SEED=n`, more of them with `PUNCTUAL_SEEDS=n`.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that is surprised should stop")]

mod world;

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use punctual_core::{
    Backoff, DeadReason, FireEnd, FireId, FireRecord, Guarantee, Jitter, Misfire, NewTask,
    Occasion, Outcome, Overlap, PartitionId, Payload, RetryPolicy, Schedule, Series, Task, TaskId,
    TaskState, Timestamp,
};
use punctual_engine::{Command, Condition, Push};
use punctual_store::TaskStore;
use world::receiver::Receiver;
use world::{Dice, Moves, Reply, Weather, World, key, millis, named, ready, secs, seeds};

const SEEDS_DEFAULT: u64 = 200;
/// Each broke a promise once.
const SEEDS_KEPT: [u64; 11] = [8, 9, 18, 27, 29, 30, 73, 100, 114, 418, 726];
/// The same with moves.
const SEEDS_KEPT_MOVING: [u64; 0] = [];
const STEPS: u32 = 300;
const PARTITION: PartitionId = PartitionId::FIRST;

#[test]
fn every_nominal_time_is_accounted_for_over_random_lives() {
    seeds::live(&SEEDS_KEPT, SEEDS_DEFAULT, |seed, moves| Life::new(seed, moves).live());
}

#[test]
fn every_nominal_time_is_accounted_for_while_the_partition_moves() {
    let live = |seed, moves| Life::new(seed, moves).live();
    seeds::live_moving(&SEEDS_KEPT_MOVING, SEEDS_DEFAULT, live);
}

/// A series as its caller knows it.
struct Known {
    name: &'static str,
    first: Task,
    interval: Duration,
    count: u32,
    guarantee: Guarantee,
    paused: bool,
    pausing: Option<Reply<Task>>,
}

struct Life {
    world: World,
    dice: Dice,
    moves: Option<Moves>,
    receiver: Receiver,
    series: Vec<Known>,
    received: HashMap<FireId, u32>,
    /// The watch, until when it is armed as far as is known, and whether a touch is under way of which nothing is known.
    watch: Task,
    armed_until: Timestamp,
    in_doubt: bool,
    touching: Option<Reply<Timestamp>>,
    told: HashSet<Timestamp>,
}

impl Life {
    fn new(seed: u64, moves: Option<Moves>) -> Self {
        let mut dice = Dice::new(seed);
        let mut world = World::new();
        if let Some(moves) = &moves {
            moves.begin(&mut world);
        }
        let names = ["a", "b", "c"];
        let series = names.map(|name| {
            let interval = millis(500 + dice.roll(9500));
            let count = 3 + u32::try_from(dice.roll(12)).unwrap();
            let guarantee = [Guarantee::AtLeastOnce, Guarantee::AtMostOnce][dice.index(3).min(1)];
            let new_task = new_series(name, interval, count, guarantee, &mut dice);
            let first = world.schedule(new_task);
            let (paused, pausing) = (false, None);
            Known { name, first, interval, count, guarantee, paused, pausing }
        });
        let on_return = dice.roll(2) == 0;
        let within = secs(20);
        let schedule = Schedule::Watch { within, postpone_max: None, on_return };
        let watch =
            world.schedule(NewTask { schedule, retry: retry(&mut dice), ..named("w", secs(0)) });
        Self {
            world,
            dice,
            moves,
            receiver: Receiver::default(),
            series: series.into(),
            received: HashMap::new(),
            armed_until: watch.fire_at,
            watch,
            in_doubt: false,
            touching: None,
            told: HashSet::new(),
        }
    }

    /// Out: how often the partition has moved.
    fn live(mut self) -> u32 {
        for _ in 0..STEPS {
            self.step();
            self.witness();
        }
        self.heal();
        for known in &self.series {
            self.check(known);
        }
        self.check_watch();
        assert!(self.world.owner.is_quiet());
        assert_eq!(self.world.owner.loaded(), 0, "memory is empty");
        let counts = self.world.counts();
        assert_eq!((counts.scheduled, counts.paused), (0, 0), "{counts:?}");
        assert_eq!(counts.accepted(), 4, "{counts:?}");
        self.world.moves
    }

    fn step(&mut self) {
        if let Some(moves) = &mut self.moves
            && moves.step(&mut self.world)
        {
            return;
        }
        match self.dice.roll(100) {
            0..3 => self.pause(),
            3..7 => self.resume(),
            7..10 => self.edit(),
            10..16 => self.touch(),
            16..45 => {
                if !self.world.wanted.is_empty() {
                    let index = self.dice.index(self.world.wanted.len());
                    self.world.perform(index);
                }
            }
            45..70 => self.courier_returns(),
            70..93 => {
                self.world.now = self.world.now.after(match self.dice.roll(8) {
                    0 => secs(self.dice.roll(20)),
                    1..3 => millis(1),
                    _ => millis(self.dice.roll(2000)),
                });
                self.world.act();
            }
            93..95 => {
                let room = [0, 1, 256, 256][self.dice.index(4)];
                self.world.give_room(room);
            }
            95..98 => {
                use Weather::{AnswerLost, Away, Fair, Full};
                let all = [Fair, Fair, Away, AnswerLost, Full];
                self.world.weather = all[self.dice.index(all.len())];
            }
            _ if self.moves.as_ref().is_none_or(|moves| moves.crashes) => self.crash(),
            _ => self.world.start_hand_over(),
        }
    }

    fn pause(&mut self) {
        let index = self.dice.index(self.series.len());
        let command = Command::Pause(key(self.series[index].name));
        let answer = self.world.send_for_task(command);
        self.series[index].pausing = Some(answer);
    }

    fn resume(&mut self) {
        let index = self.dice.index(self.series.len());
        self.resume_one(index);
    }

    fn resume_one(&mut self, index: usize) {
        let known = &mut self.series[index];
        (known.paused, known.pausing) = (false, None);
        let command = Command::Resume(key(known.name));
        drop(self.world.send_for_task(command));
    }

    /// The schedule stays as it is, and with it every time that is due.
    fn edit(&mut self) {
        let index = self.dice.index(self.series.len());
        let Known { first, .. } = &self.series[index];
        let payload = Payload::Json(format!("{}", self.dice.roll(1000)).into());
        let new_task = NewTask { payload, ..NewTask::clone(&first.definition) };
        // One that has ended is not to be made anew.
        let stored = ready(self.world.store.get(PARTITION, &[first.id])).unwrap();
        let Some(Some(task)) = stored.first() else { return };
        let condition = Condition::Version(task.version);
        drop(self.world.send_schedule(new_task, condition));
    }

    fn touch(&mut self) {
        self.hear();
        self.in_doubt = true;
        let answer = self.world.send_touch(key("w"), Push::Within);
        self.touching = Some(answer);
    }

    fn courier_returns(&mut self) {
        let unsent = self.receiver.courier_returns(&mut self.world, &mut self.dice);
        if let Some(fire_id) = unsent {
            *self.received.entry(fire_id).or_default() -= 1;
        }
    }

    fn crash(&mut self) {
        for known in &mut self.series {
            known.pausing = None;
        }
        self.touching = None;
        self.world.crash();
    }

    fn heal(&mut self) {
        self.world.weather = Weather::Fair;
        self.world.give_room(256);
        self.world.renew_for_ever();
        while self.world.is_handing_over() {
            self.world.go_on();
            self.witness();
        }
        // The store is back, and answers what it was asked meanwhile: calls are taken again.
        for _ in 0..3 {
            self.world.now = self.world.now.after(millis(200));
            self.world.act();
            self.witness();
            while !self.world.wanted.is_empty() {
                self.world.perform(0);
                self.witness();
            }
        }
        for index in 0..self.series.len() {
            self.resume_one(index);
        }
        for _ in 0..400 {
            self.world.act();
            self.witness();
            while !self.world.wanted.is_empty() || !self.world.carried.is_empty() {
                if self.world.wanted.is_empty() {
                    self.world.comes_back(Outcome::Acked);
                } else {
                    self.world.perform(0);
                }
                self.witness();
            }
            self.world.now = self.world.now.after(secs(1));
        }
    }

    fn hear(&mut self) {
        for known in &mut self.series {
            if let Some(answer) = &mut known.pausing
                && let Ok(answer) = answer.try_recv()
            {
                known.paused = answer.is_ok();
                known.pausing = None;
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
    }

    fn witness(&mut self) {
        self.hear();
        let crashed = self.crashed();
        for delivery in self.world.sent.drain(..) {
            self.receiver.takes(&delivery, crashed);
            let fire_id = delivery.fire_id;
            let times = self.received.entry(fire_id).or_default();
            *times += 1;
            if fire_id.task == self.watch.id {
                if delivery.occasion == Occasion::Due {
                    let at = delivery.fire_at;
                    let known = at >= self.armed_until || self.in_doubt;
                    assert!(known, "touched until {}, and fired: {delivery:?}", self.armed_until);
                    self.told.insert(at);
                }
                continue;
            }
            let known = self.series.iter().find(|known| known.first.id == fire_id.task);
            let known = known.expect("no other tasks");
            if known.guarantee == Guarantee::AtMostOnce {
                assert_eq!(*times, 1, "at most once, and received twice: {delivery:?}");
            }
            assert!(!known.paused, "sent while it is paused: {delivery:?}");
        }
    }

    /// The history has every nominal time from the first on, once, without a gap, until so many were fired as were asked for.
    fn check(&self, known: &Known) {
        let mut records = self.history(known.first.id);
        records.reverse();
        let mut expected = known.first.nominal_at;
        let mut fired = 0;
        for record in &records {
            let at = record.fire_id.nominal_at;
            assert_eq!(at, expected, "{} of {}: {record:?}", known.name, known.first.id);
            let last = match record.end {
                FireEnd::Skipped(skipped) => skipped.until,
                _ => at,
            };
            match record.end {
                // What was under way when the owner crashed is not known to have been.
                FireEnd::Skipped(_) => {
                    let times = self.received.get(&record.fire_id).copied().unwrap_or_default();
                    assert!(times == 0 || self.crashed(), "skipped, and received: {record:?}");
                }
                FireEnd::Done => {
                    fired += 1;
                    let times = self.received.get(&record.fire_id).copied().unwrap_or_default();
                    assert!(times > 0, "done, and never received: {record:?}");
                }
                FireEnd::Dead(DeadReason::Unknown | DeadReason::Exhausted) => {
                    fired += 1;
                    let acked = self.receiver.acked.contains(&record.fire_id);
                    assert!(!acked || self.crashed(), "acked, and dead: {record:?}");
                }
                FireEnd::Replaced => fired += 1,
                other => panic!("{other:?}: {record:?}"),
            }
            expected = last.after(known.interval);
        }
        assert_eq!(fired, known.count, "{}: {records:?}", known.name);
        let of = |fire_id: &FireId| fire_id.task == known.first.id;
        for (fire_id, times) in self.received.iter().filter(|(fire_id, _)| of(fire_id)) {
            if *times == 0 {
                continue;
            }
            let covers = |record: &&FireRecord| match record.end {
                FireEnd::Skipped(skipped) => {
                    let times = record.fire_id.nominal_at..=skipped.until;
                    self.crashed() && times.contains(&fire_id.nominal_at)
                }
                _ => record.fire_id == *fire_id,
            };
            assert!(records.iter().any(|record| covers(&record)), "{fire_id}: {records:?}");
        }
    }

    const fn crashed(&self) -> bool {
        self.world.crashes > 0
    }

    fn check_watch(&self) {
        let watch = ready(self.world.store.get(PARTITION, &[self.watch.id])).unwrap();
        let watch = watch[0].as_ref().expect("a watch stays");
        let rests = matches!(watch.state, TaskState::Done | TaskState::Dead);
        assert!(rests, "nobody touches it any more: {watch:?}");
        if !self.in_doubt {
            let told = self.told.contains(&self.armed_until);
            assert!(told, "silent since {} and never said so: {watch:?}", self.armed_until);
        }
    }

    fn history(&self, id: TaskId) -> Vec<FireRecord> {
        ready(self.world.store.history(PARTITION, id, 10_000)).unwrap()
    }
}

fn retry(dice: &mut Dice) -> RetryPolicy {
    let backoff = Backoff::Fixed(millis(dice.roll(9000)));
    RetryPolicy { attempts_max: 3, backoff, jitter: Jitter::default() }
}

fn new_series(
    name: &str,
    interval: Duration,
    count: u32,
    guarantee: Guarantee,
    dice: &mut Dice,
) -> NewTask {
    let overlap = [Overlap::Allow, Overlap::Allow, Overlap::Skip, Overlap::QueueOne][dice.index(4)];
    let misfire = [Misfire::FireOnce, Misfire::FireAll, Misfire::Skip][dice.index(3)];
    let jitter = if dice.roll(3) == 0 { millis(dice.roll(400)) } else { Duration::ZERO };
    let count = Some(count);
    let series = Series { count, overlap, misfire, jitter, ..Series::default() };
    let schedule = Schedule::Every { interval, series: series.into() };
    NewTask { schedule, guarantee, retry: retry(dice), ..named(name, secs(0)) }
}
