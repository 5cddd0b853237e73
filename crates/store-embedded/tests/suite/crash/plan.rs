//! Plans: the batches of one owner, made from a seed and from its tasks. The writer and the model
//! make the same ones, so that the model knows which batch was in flight when the writer was
//! killed.
//!
//! A key names at most one live task, the nominal time of a task only grows, and a dead letter is
//! redriven once.

use std::collections::{BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use punctual_core::{
    DeadLetter, DeadReason, Epoch, FireEnd, Outcome, PartitionId, Payload, Reason, Schedule, Task,
    TaskId, TaskState, Timestamp,
};
use punctual_store::conformance::fixtures::{
    id, in_state, next_fire, postpone, refile, settle, settle_with_next, task,
};
use punctual_store::{Batch, BatchNo, Change, Prior};

pub(crate) const NAMESPACES: [&str; 2] = ["shop", "other"];
/// Enough for many rows of names, few enough that keys are often reused.
pub(crate) const KEYS: u64 = 200;
/// With more live tasks than this, ending tasks is more likely than adding some.
const LIVE_MANY: usize = 400;

/// SplitMix64: a few lines, and every seed is a good one.
#[derive(Debug, Clone)]
pub(crate) struct PlanRandom(u64);

impl PlanRandom {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From 0 to one less than `end`.
    pub(crate) const fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.below(len as u64)).expect("below a usize")
    }
}

/// Where an owner begins: what it read from the store.
#[derive(Debug, Clone)]
pub(crate) struct PlanStart {
    pub(crate) partition: PartitionId,
    pub(crate) epoch: Epoch,
    pub(crate) seed: u64,
    pub(crate) now: Timestamp,
    /// Whether the number of tasks grows or shrinks in the long run.
    pub(crate) grows: bool,
    pub(crate) live: Vec<Task>,
    pub(crate) letters: Vec<DeadLetter>,
}

#[derive(Debug)]
pub(crate) struct WriterPlan {
    partition: PartitionId,
    epoch: Epoch,
    number: BatchNo,
    count: u64,
    random: PlanRandom,
    now: Timestamp,
    grows: bool,
    live: Vec<Task>,
    /// Ids of live tasks by namespace and key.
    named: HashMap<(String, String), TaskId>,
    letters: Vec<DeadLetter>,
}

pub(crate) fn key_of(number: u64) -> String {
    format!("key/{number}")
}

/// A short number by which two batches are compared.
pub(crate) fn digest(batch: &Batch) -> u64 {
    let mut hasher = DefaultHasher::new();
    format!("{batch:?}").hash(&mut hasher);
    hasher.finish()
}

impl WriterPlan {
    pub(crate) fn new(start: PlanStart) -> Self {
        let named = start.live.iter().filter_map(|task| Some((name_of(task)?, task.id)));
        Self {
            partition: start.partition,
            epoch: start.epoch,
            number: BatchNo::FIRST,
            count: 0,
            random: PlanRandom::new(start.seed),
            now: start.now,
            grows: start.grows,
            named: named.collect(),
            live: start.live,
            letters: start.letters,
        }
    }

    /// The next batch.
    pub(crate) fn batch(&mut self) -> Batch {
        self.now = self.now.after(Duration::from_millis(self.random.below(100)));
        let length = match self.random.below(40) {
            0 => 0,
            1 => 150,
            _ => 1 + self.random.below(12),
        };
        let mut changes = Vec::new();
        for _ in 0..length {
            self.plan(&mut changes);
        }
        let number = self.number;
        self.number = number.next();
        Batch::new(number, changes)
    }

    fn plan(&mut self, changes: &mut Vec<Change>) {
        let puts = match (self.grows, self.live.len() > LIVE_MANY) {
            (true, false) => 50,
            (true, true) => 20,
            (false, _) => 10,
        };
        let number = self.random.below(100);
        if number < puts {
            return self.put(changes);
        }
        match (number - puts) * 100 / (100 - puts) {
            0..35 => changes.extend(self.postpone()),
            35..45 => changes.extend(self.retry()),
            45..52 => changes.extend(self.pause_or_resume()),
            52..75 => changes.extend(self.settle()),
            75..82 => changes.extend(self.settle_with_next_fire()),
            82..90 => changes.extend(self.die()),
            _ => self.redrive_or_forget(changes),
        }
    }

    fn put(&mut self, changes: &mut Vec<Change>) {
        self.count += 1;
        let id = id(self.soon(), self.partition, self.epoch, self.count);
        let random = &mut self.random;
        let mut built = task(id).namespace(NAMESPACES[random.index(2)]);
        if random.below(2) == 0 {
            built = built.key(&key_of(random.below(KEYS)));
        }
        if random.below(12) == 0 {
            built = built.paused();
        }
        if random.below(3) == 0 {
            built = built.schedule(Schedule::watch(Duration::from_secs(60)));
        }
        let size = if random.below(60) == 0 { 3000 } else { 100 };
        let bytes =
            vec![b'0' + u8::try_from(random.below(10)).expect("a digit"); random.index(size)];
        let task = built.payload(Payload::Json(bytes.into())).build();
        if let Some(old) = name_of(&task).and_then(|name| self.named.get(&name).copied()) {
            let at = self.live.iter().position(|task| task.id == old).expect("named is live");
            let old = self.take_at(at);
            changes.push(settle(&old, FireEnd::Replaced, self.now));
        }
        self.add(task.clone());
        changes.push(Change::Put(task));
    }

    fn postpone(&mut self) -> Option<Change> {
        let later = Duration::from_millis(1 + self.random.below(90_000));
        let task = self.pick()?;
        if task.state != TaskState::Scheduled {
            return None;
        }
        let (postponed, change) = postpone(task, task.fire_at.max(task.nominal_at).after(later));
        *task = postponed;
        Some(change)
    }

    fn retry(&mut self) -> Option<Change> {
        let (fire_at, now) = (self.soon(), self.now);
        let task = self.pick()?;
        let mut retried = Task { fire_at, ..task.clone() };
        if retried.attempts.len() > 5 {
            retried.attempts.clear();
        }
        let outcome = Outcome::Failed { reason: Reason::new("HTTP 503"), retry_in: None };
        retried.add_attempt(now, now, outcome);
        let change = refile(task, &retried);
        *task = retried;
        Some(change)
    }

    fn pause_or_resume(&mut self) -> Option<Change> {
        let task = self.pick()?;
        let toggled = match task.state {
            TaskState::Paused => in_state(task, TaskState::Scheduled),
            _ => in_state(task, TaskState::Paused),
        };
        let change = refile(task, &toggled);
        *task = toggled;
        Some(change)
    }

    fn settle(&mut self) -> Option<Change> {
        let end = [FireEnd::Done, FireEnd::Cancelled][self.random.index(2)];
        let task = self.take()?;
        Some(settle(&task, end, self.now))
    }

    fn settle_with_next_fire(&mut self) -> Option<Change> {
        let (pause, now) = (Duration::from_millis(1 + self.random.below(60_000)), self.now);
        // A redriven fire of another task has no next one.
        let task = self.pick().filter(|task| task.origin().is_none())?;
        let next = next_fire(task, task.nominal_at.max(now).after(pause));
        let change = settle_with_next(task, now, &next);
        *task = next;
        Some(change)
    }

    fn die(&mut self) -> Option<Change> {
        let task = self.take()?;
        let continues = self.random.below(3) == 0 && task.origin().is_none();
        let pause = Duration::from_millis(1 + self.random.below(60_000));
        let next = continues.then(|| next_fire(&task, task.nominal_at.max(self.now).after(pause)));
        // The reason of the letter records whether the task ended with it.
        let reason = if continues { DeadReason::Refused } else { DeadReason::Exhausted };
        let was = Prior::of(&task);
        let letter = DeadLetter { task, died_at: self.now, reason };
        self.letters.push(letter.clone());
        if let Some(next) = next.clone() {
            self.add(next);
        }
        Some(Change::Dead { letter, next: next.map(Box::new), was })
    }

    fn redrive_or_forget(&mut self, changes: &mut Vec<Change>) {
        if self.letters.is_empty() {
            return;
        }
        let index = self.random.index(self.letters.len());
        let letter = self.letters.swap_remove(index);
        let fire_id = letter.fire_id();
        let continues = letter.reason == DeadReason::Refused;
        let taken = name_of(&letter.task).is_some_and(|name| self.named.contains_key(&name));
        let namespace = letter.task.definition.namespace.clone();
        let forget = Change::DeleteLetter { fire_id, namespace };
        match self.random.below(4) {
            0 => changes.push(forget),
            _ if continues => {
                self.count += 1;
                let due = letter.task.redriven_at(self.now);
                let id = id(due, self.partition, self.epoch, self.count);
                let task = letter.task.redriven_apart(id, self.now);
                self.add(task.clone());
                changes.extend([forget, Change::Put(task)]);
            }
            _ if taken => changes.push(forget),
            _ => {
                let task = Task { fire_at: self.soon(), ..letter.task.redriven(self.now) };
                self.add(task.clone());
                changes.push(Change::Redrive { fire_id, task });
            }
        }
    }

    fn pick(&mut self) -> Option<&mut Task> {
        if self.live.is_empty() {
            return None;
        }
        let index = self.random.index(self.live.len());
        self.live.get_mut(index)
    }

    fn take(&mut self) -> Option<Task> {
        if self.live.is_empty() {
            return None;
        }
        let index = self.random.index(self.live.len());
        Some(self.take_at(index))
    }

    fn take_at(&mut self, index: usize) -> Task {
        let task = self.live.swap_remove(index);
        if let Some(name) = name_of(&task) {
            self.named.remove(&name);
        }
        task
    }

    fn add(&mut self, task: Task) {
        if let Some(name) = name_of(&task) {
            self.named.insert(name, task.id);
        }
        self.live.push(task);
    }

    /// Mostly within minutes, sometimes in the past or far away.
    fn soon(&mut self) -> Timestamp {
        let now = self.now;
        match self.random.below(20) {
            0 => Timestamp::from_millis(now.as_millis() - self.random.below(100_000)),
            1 => now.after(Duration::from_secs(86_400 * (1 + self.random.below(10_000)))),
            _ => Timestamp::from_millis((now.as_millis() / 1000 + self.random.below(300)) * 1000),
        }
    }
}

fn name_of(task: &Task) -> Option<(String, String)> {
    let key = task.definition.key.as_ref()?;
    Some((task.definition.namespace.as_str().to_owned(), key.as_str().to_owned()))
}

/// The tasks that a batch changes.
pub(crate) fn ids_of(batch: &Batch) -> BTreeSet<TaskId> {
    batch.changes.iter().map(|change| change.task_id()).collect()
}
