//! The promises of `guarantees.md` that one owner can keep, over random lives: commands, outcomes and answers of the store in
//! any order, bad weather, crashes at any point. The receiver is the witness. Every failing seed is printed; run one with
//! `PUNCTUAL_SEED=n`, more of them with `PUNCTUAL_SEEDS=n`.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that is surprised should stop")]

mod world;

use std::collections::{HashMap, HashSet};

use punctual_core::{
    Backoff, DeadReason, Due, FireEnd, Guarantee, Jitter, NewTask, Outcome, PartitionId,
    RetryPolicy, Task, TaskId, Timestamp,
};
use punctual_engine::{Cancelled, Command, Condition, Delivery, Push, Scheduled, Subject};
use punctual_store::TaskStore;
use tokio::sync::oneshot::error::TryRecvError;
use world::receiver::Receiver;
use world::{
    Dice, Moves, Reply, Weather, World, key, millis, named, once, ready, secs, seeds, shop,
};

const SEEDS_DEFAULT: u64 = 300;
/// Each broke a promise once.
const SEEDS_KEPT: [u64; 4] = [30, 36, 2730, 8942];
/// The same with moves.
const SEEDS_KEPT_MOVING: [u64; 0] = [];
const STEPS: u32 = 400;
const PARTITION: PartitionId = PartitionId::FIRST;

#[test]
fn the_promises_hold_over_random_lives() {
    seeds::live(&SEEDS_KEPT, SEEDS_DEFAULT, |seed, moves| Life::new(seed, moves).live());
}

#[test]
fn the_promises_hold_while_the_partition_moves() {
    let live = |seed, moves| Life::new(seed, moves).live();
    seeds::live_moving(&SEEDS_KEPT_MOVING, SEEDS_DEFAULT, live);
}

/// What was promised about a task.
#[derive(Debug)]
struct Promise {
    task: Task,
    /// It must not be sent any more: cancelled, or replaced.
    over: bool,
    /// It was paused, and nobody has asked to resume it since.
    paused: bool,
}

struct Life {
    world: World,
    dice: Dice,
    moves: Option<Moves>,
    receiver: Receiver,
    promises: HashMap<TaskId, Promise>,
    /// How often each task was sent, promised or not.
    received: HashMap<TaskId, u32>,
    scheduling: Vec<(Option<String>, Reply<Scheduled>)>,
    cancelling: Vec<(Subject, Reply<Cancelled>)>,
    touching: Vec<(TaskId, Reply<Timestamp>)>,
    pausing: Vec<(TaskId, Reply<Task>)>,
    /// What was redriven may be received once more than promised: somebody asked for it.
    redriven: HashSet<TaskId>,
    /// The task that a key names, as far as callers know.
    names: HashMap<String, TaskId>,
}

impl Life {
    fn new(seed: u64, moves: Option<Moves>) -> Self {
        let mut world = World::new();
        if let Some(moves) = &moves {
            moves.begin(&mut world);
        }
        Self {
            world,
            dice: Dice::new(seed),
            moves,
            receiver: Receiver::default(),
            promises: HashMap::new(),
            received: HashMap::new(),
            scheduling: Vec::new(),
            cancelling: Vec::new(),
            touching: Vec::new(),
            pausing: Vec::new(),
            redriven: HashSet::new(),
            names: HashMap::new(),
        }
    }

    /// Out: how often the partition has moved.
    fn live(mut self) -> u32 {
        for _ in 0..STEPS {
            self.step();
            self.witness();
            if self.world.stopped.take().is_some() {
                self.crash();
            }
        }
        self.world.weather = Weather::Fair;
        self.world.give_room(256);
        self.world.renew_for_ever();
        while self.world.is_handing_over() {
            self.world.go_on();
            self.witness();
        }
        self.heal();
        self.check_at_rest();
        self.world.moves
    }

    fn step(&mut self) {
        if let Some(moves) = &mut self.moves
            && moves.step(&mut self.world)
        {
            return;
        }
        match self.dice.roll(100) {
            0..20 => self.schedule(),
            20..27 => self.cancel(),
            27..32 => self.touch(),
            32..35 => self.pause(),
            35..38 => self.resume(),
            38..40 => self.redrive(),
            40..65 => self.store_answers(),
            65..80 => self.courier_returns(),
            80..93 => self.time_passes(),
            93..95 => {
                let room = [0, 1, 256][self.dice.index(3)];
                self.world.give_room(room);
            }
            95..98 => {
                let all = [
                    Weather::Fair,
                    Weather::Fair,
                    Weather::Away,
                    Weather::AnswerLost,
                    Weather::Full,
                ];
                self.world.weather = all[self.dice.index(all.len())];
            }
            _ if self.moves.as_ref().is_none_or(|moves| moves.crashes) => self.crash(),
            _ => self.world.start_hand_over(),
        }
    }

    fn schedule(&mut self) {
        let delay = match self.dice.roll(4) {
            0 => millis(0),
            1 => millis(self.dice.roll(50)),
            2 => secs(self.dice.roll(40)),
            _ => secs(self.dice.roll(200)),
        };
        let name = (self.dice.roll(2) == 0).then(|| format!("key-{}", self.dice.roll(6)));
        let new_task = match &name {
            Some(name) => named(name, delay),
            None => once(delay),
        };
        let guarantee = match self.dice.roll(3) {
            0 => Guarantee::AtMostOnce,
            _ => Guarantee::AtLeastOnce,
        };
        let backoff = Backoff::Fixed(millis(self.dice.roll(20_000)));
        let retry = RetryPolicy { attempts_max: 3, backoff, jitter: Jitter::default() };
        let new_task = NewTask { guarantee, retry, ..new_task };
        let answer = self.world.send_schedule(new_task, Condition::Always);
        self.scheduling.push((name, answer));
    }

    fn cancel(&mut self) {
        let subject = if self.dice.roll(2) == 0 || self.promises.is_empty() {
            key(&format!("key-{}", self.dice.roll(6)))
        } else {
            let mut ids: Vec<_> = self.promises.keys().copied().collect();
            ids.sort();
            Subject::Id(shop(), ids[self.dice.index(ids.len())])
        };
        let answer = self.world.send_cancel(subject.clone());
        self.cancelling.push((subject, answer));
    }

    fn touch(&mut self) {
        let Some(id) = self.any_promised() else { return };
        let push = Push::To(Due::In(secs(self.dice.roll(90))));
        let answer = self.world.send_touch(Subject::Id(shop(), id), push);
        self.touching.push((id, answer));
    }

    fn pause(&mut self) {
        let Some(id) = self.any_promised() else { return };
        let answer = self.world.send_for_task(Command::Pause(Subject::Id(shop(), id)));
        self.pausing.push((id, answer));
    }

    fn resume(&mut self) {
        let Some(id) = self.any_promised() else { return };
        self.resume_one(id);
    }

    fn resume_one(&mut self, id: TaskId) {
        if let Some(promise) = self.promises.get_mut(&id) {
            promise.paused = false;
        }
        // A pause that is answered after this may have come before it.
        self.pausing.retain(|(paused, _)| *paused != id);
        drop(self.world.send_for_task(Command::Resume(Subject::Id(shop(), id))));
    }

    fn redrive(&mut self) {
        let letters = ready(self.world.store.dead(PARTITION, &shop(), None, 9)).unwrap().items;
        if letters.is_empty() {
            return;
        }
        let letter = &letters[self.dice.index(letters.len())];
        let (id, fire_id) = (letter.task.id, letter.fire_id());
        let subject = match letter.task.definition.key.clone() {
            Some(key) => Subject::Key(shop(), key),
            None => Subject::Id(shop(), id),
        };
        self.redriven.insert(id);
        drop(self.world.send_for_task(Command::Redrive { subject, fire_id }));
    }

    fn any_promised(&mut self) -> Option<TaskId> {
        let mut ids: Vec<_> = self.promises.keys().copied().collect();
        ids.sort();
        (!ids.is_empty()).then(|| ids[self.dice.index(ids.len())])
    }

    fn store_answers(&mut self) {
        if !self.world.wanted.is_empty() {
            let index = self.dice.index(self.world.wanted.len());
            self.world.perform(index);
        }
    }

    fn courier_returns(&mut self) {
        let unsent = self.receiver.courier_returns(&mut self.world, &mut self.dice);
        if let Some(fire_id) = unsent {
            *self.received.entry(fire_id.task).or_default() -= 1;
        }
    }

    fn time_passes(&mut self) {
        self.world.now = self.world.now.after(match self.dice.roll(3) {
            0 => millis(1),
            1 => millis(self.dice.roll(100)),
            _ => secs(self.dice.roll(20)),
        });
        self.world.act();
    }

    fn crash(&mut self) {
        self.scheduling.clear();
        self.cancelling.clear();
        self.touching.clear();
        self.pausing.clear();
        self.world.crash();
    }

    /// Everything is answered and every courier succeeds, until nothing is left to do.
    fn heal(&mut self) {
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
        for id in self.promises.keys().copied().collect::<Vec<_>>() {
            self.resume_one(id);
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

    /// Takes in the answers that callers got.
    fn hear(&mut self) {
        for (name, mut answer) in std::mem::take(&mut self.scheduling) {
            match answer.try_recv() {
                Ok(Ok(Scheduled::Created(task) | Scheduled::Replaced(task))) => {
                    if let Some(name) = name {
                        let old = self.names.insert(name, task.id);
                        if let Some(old) = old.and_then(|old| self.promises.get_mut(&old)) {
                            old.over = true;
                        }
                    }
                    let promise = Promise { task, over: false, paused: false };
                    self.promises.entry(promise.task.id).or_insert(promise);
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
                        && let Some(promise) = self.promises.get_mut(id)
                    {
                        promise.over = true;
                        let under_way =
                            |one: &&Delivery| one.fire_id.task == *id && self.world.in_time(one);
                        let under_way = self.world.carried.iter().find(under_way);
                        let crashed = self.world.crashes > 0;
                        assert!(under_way.is_none() || crashed, "cancelled: {under_way:?}");
                    }
                }
                Err(TryRecvError::Empty) => {
                    self.cancelling.push((subject, answer));
                }
                _ => {}
            }
        }
    }

    fn hear_of_changes(&mut self) {
        for (id, mut answer) in std::mem::take(&mut self.touching) {
            match answer.try_recv() {
                Ok(Ok(fire_at)) => {
                    let promise = self.promises.get_mut(&id).unwrap();
                    promise.task.fire_at = fire_at;
                    promise.task.version = promise.task.version.next();
                }
                Err(TryRecvError::Empty) => self.touching.push((id, answer)),
                _ => {}
            }
        }
        for (id, mut answer) in std::mem::take(&mut self.pausing) {
            match answer.try_recv() {
                Ok(Ok(task)) => {
                    let promise = self.promises.get_mut(&id).unwrap();
                    promise.paused = true;
                    promise.task.version = promise.task.version.max(task.version);
                }
                Err(TryRecvError::Empty) => self.pausing.push((id, answer)),
                _ => {}
            }
        }
    }

    /// The receiver lookups at what was sent, after the callers have looked at their answers.
    fn witness(&mut self) {
        self.hear();
        self.hear_of_changes();
        for delivery in self.world.sent.drain(..) {
            let id = delivery.fire_id.task;
            self.receiver.takes(&delivery, self.world.crashes > 0 || self.redriven.contains(&id));
            let times = self.received.entry(id).or_default();
            *times += 1;
            let at_most_once = delivery.definition.guarantee == Guarantee::AtMostOnce;
            if at_most_once && !self.redriven.contains(&id) {
                assert_eq!(*times, 1, "at most once, and received twice: {delivery:?}");
            }
            if let Some(promise) = self.promises.get(&id) {
                // What somebody redrives may be sent after all, whoever bore its name meanwhile.
                let over = promise.over && !self.redriven.contains(&id);
                assert!(!over, "sent after it was cancelled or replaced: {delivery:?}");
                assert!(!promise.paused, "sent while it is paused: {delivery:?}");
                assert!(delivery.version >= promise.task.version, "an older one: {delivery:?}");
            }
        }
    }

    fn check_at_rest(&self) {
        let counts = self.world.counts();
        assert_eq!((counts.scheduled, counts.paused), (0, 0), "nothing stays overdue: {counts:?}");
        assert_eq!(self.world.owner.loaded(), 0, "memory is empty");
        assert!(self.world.owner.is_quiet());
        for fire_id in self.receiver.acked.iter().filter(|_| self.world.crashes == 0) {
            let records = ready(self.world.store.history(PARTITION, fire_id.task, 9)).unwrap();
            let record = records.iter().find(|record| record.fire_id == *fire_id);
            let end = record.map(|record| record.end);
            let told = matches!(end, Some(FireEnd::Done | FireEnd::Replaced | FireEnd::Cancelled));
            assert!(told, "acked, and {end:?}: {fire_id}");
        }
        for (id, promise) in &self.promises {
            if !promise.over && self.received.get(id).is_none_or(|times| *times == 0) {
                self.check_unreceived(promise);
            }
        }
    }

    /// An acknowledged task that was never sent has a reason, and it is on record.
    fn check_unreceived(&self, promise: &Promise) {
        let id = promise.task.id;
        let end = ready(self.world.store.history(id.partition(), id, 1)).unwrap()[0].end;
        let claimed = promise.task.definition.guarantee == Guarantee::AtMostOnce;
        match end {
            // A crash came between the claim and the first byte.
            FireEnd::Dead(DeadReason::Unknown) => assert!(claimed, "{promise:?}"),
            // The caller asked for it, and a crash took the answer.
            FireEnd::Cancelled | FireEnd::Replaced => {}
            end => panic!("{end:?} without ever being sent: {promise:?}"),
        }
    }
}
