//! A simulated owner of a partition: it creates random batches that a real owner could send.
//!
//! The changes fit the tasks that the owner has. A key names at most one living task, the nominal
//! time of a task only grows, and a letter is redriven once.

use std::collections::VecDeque;
use std::time::Duration;

use punctual_core::{
    DeadLetter, DeadReason, FireEnd, Lease, Outcome, PartitionId, Payload, Reason, Schedule, Task,
    TaskId, TaskKind, TaskState, Timestamp,
};

use super::random::ModelRandom;
use crate::change::{Batch, BatchNo, Change, Prior};
use crate::conformance::fixtures::{
    every_minute, id, in_state, namespace, next_fire, postpone, refile, settle, settle_with_next,
    task,
};

/// Few keys, so that they are free, used and reused all the time.
pub(super) const KEYS: [&str; 8] = ["a", "aa", "ab", "b", "b/1", "b/2", "ä", "z"];
pub(super) const NAMESPACES: [&str; 3] = ["shop", "shop-1", "other"];

/// The number of ids whose reads are compared: the newest, whether their tasks live or have ended.
const MADE_KEPT_MAX: usize = 250;

pub(super) struct OwnerModel {
    pub(super) partition: PartitionId,
    pub(super) lease: Lease,
    /// The number of the next batch.
    pub(super) number: BatchNo,
    /// The last batch of this epoch.
    pub(super) last: Option<Batch>,
    /// The newest ids, of living and of ended tasks.
    pub(super) made: VecDeque<TaskId>,
    count: u64,
    living: Vec<Task>,
    letters: Vec<ModelLetter>,
}

struct ModelLetter {
    letter: DeadLetter,
    /// Whether its task continued, so that its fire is redriven as a task of its own.
    task_continues: bool,
}

impl OwnerModel {
    pub(super) const fn new(lease: Lease, partition: PartitionId) -> Self {
        Self {
            partition,
            lease,
            number: BatchNo::FIRST,
            last: None,
            made: VecDeque::new(),
            count: 0,
            living: Vec::new(),
            letters: Vec::new(),
        }
    }

    pub(super) fn begin_epoch(&mut self, lease: Lease) {
        self.lease = lease;
        self.number = BatchNo::FIRST;
        self.last = None;
    }

    /// Forgets the letters that a sweep may have deleted.
    pub(super) fn forget_older(&mut self, age: Duration, now: Timestamp) {
        self.letters.retain(|kept| now.since(kept.letter.died_at) < age);
    }

    /// Returns the next batch. The owner assumes that it is made.
    pub(super) fn batch(&mut self, random: &mut ModelRandom, now: Timestamp) -> Batch {
        let mut changes = Vec::new();
        for _ in 0..random.below(9) {
            self.owner_model(random, now, &mut changes);
        }
        let number = self.number;
        let batch = Batch::new(number, changes);
        self.number = number.next();
        self.last = Some(batch.clone());
        batch
    }

    /// Returns changes that are sent under a wrong epoch or number, and must not be made.
    pub(super) fn invalid_changes(&self, random: &mut ModelRandom, now: Timestamp) -> Vec<Change> {
        let unused = id(now, self.partition, self.lease.epoch, 1 << 40);
        let mut changes = vec![task(unused).key(KEYS[0]).put()];
        if let Some(living) = random.pick(&self.living) {
            changes.push(settle(living, FireEnd::Done, now));
        }
        changes
    }

    fn owner_model(&mut self, random: &mut ModelRandom, now: Timestamp, changes: &mut Vec<Change>) {
        match random.below(100) {
            0..30 => self.put(random, now, changes),
            30..32 => changes.extend(self.stale(random, now)),
            32..50 => changes.extend(self.postpone(random)),
            50..60 => changes.extend(self.retry(random, now)),
            60..67 => changes.extend(self.pause_or_resume(random, now)),
            67..77 => changes.extend(self.settle(random, now)),
            77..85 => changes.extend(self.settle_and_continue(random, now)),
            85..93 => changes.extend(self.die(random, now)),
            _ => self.redrive_or_forget(random, now, changes),
        }
    }

    fn put(&mut self, random: &mut ModelRandom, now: Timestamp, changes: &mut Vec<Change>) {
        let id = self.next_id(soon(random, now));
        let mut built = task(id).namespace(NAMESPACES[random.index(3)]);
        if random.below(3) > 0 {
            built = built.key(KEYS[random.index(KEYS.len())]);
        }
        if random.below(4) == 0 {
            built = built.label("zone", ["eu", "us"][random.index(2)]);
        }
        if random.below(8) == 0 {
            built = built.paused();
        }
        match random.below(9) {
            0..3 => built = built.schedule(Schedule::watch(Duration::from_secs(60))),
            3..5 => built = built.schedule(Schedule::every(Duration::from_secs(60))),
            5 => built = built.schedule(every_minute()),
            _ => {}
        }
        let size = if random.below(50) == 0 { 50_000 } else { 50 };
        let bytes = vec![b'0'; random.index(size)];
        let task = built.payload(Payload::Json(bytes.into())).build();
        if let Some(old) = self.named(&task) {
            let old = self.living.swap_remove(old);
            changes.push(settle(&old, FireEnd::Replaced, now));
        }
        self.living.push(task.clone());
        changes.push(Change::Put(task));
    }

    /// Postpones a task that has ended or never existed.
    fn stale(&self, random: &mut ModelRandom, now: Timestamp) -> Option<Change> {
        let made: Vec<_> = self.made.iter().copied().collect();
        let id = *random.pick(&made)?;
        let ended = self.living.iter().all(|task| task.id != id);
        let was = Prior { state: TaskState::Cancelled, kind: TaskKind::Once, fire_at: now };
        ended.then(|| Change::Postpone {
            id,
            namespace: namespace(NAMESPACES[0]),
            fire_at: soon(random, now),
            version: punctual_core::Version::new(9),
            updated_at: now,
            was,
        })
    }

    fn postpone(&mut self, random: &mut ModelRandom) -> Option<Change> {
        let task = self.pick(random)?;
        if task.state != TaskState::Scheduled || task.definition.schedule.kind().is_series() {
            return None;
        }
        let from = task.fire_at.max(task.nominal_at);
        let later = from.after(Duration::from_millis(1 + random.below(60_000)));
        let (postponed, change) = postpone(task, later);
        *task = postponed;
        Some(change)
    }

    fn retry(&mut self, random: &mut ModelRandom, now: Timestamp) -> Option<Change> {
        let fire_at = soon(random, now);
        let task = self.pick(random)?;
        let mut retried = Task { fire_at, ..task.clone() };
        let outcome = Outcome::Failed { reason: Reason::new("HTTP 503"), retry_in: None };
        retried.add_attempt(now, now, outcome);
        let change = refile(task, &retried);
        *task = retried;
        Some(change)
    }

    fn pause_or_resume(&mut self, random: &mut ModelRandom, now: Timestamp) -> Option<Change> {
        let fire_at = soon(random, now);
        let task = self.pick(random)?;
        let mut toggled = match task.state {
            TaskState::Paused => in_state(task, TaskState::Scheduled),
            _ => in_state(task, TaskState::Paused),
        };
        if random.below(2) == 0 {
            toggled.fire_at = fire_at;
        }
        let change = refile(task, &toggled);
        *task = toggled;
        Some(change)
    }

    fn settle(&mut self, random: &mut ModelRandom, now: Timestamp) -> Option<Change> {
        let end = [FireEnd::Done, FireEnd::Cancelled][random.index(2)];
        let task = self.take(random)?;
        Some(settle(&task, end, now))
    }

    fn settle_and_continue(&mut self, random: &mut ModelRandom, now: Timestamp) -> Option<Change> {
        let pause = Duration::from_millis(1 + random.below(60_000));
        // A redriven fire of another task has no next one.
        let task = self.pick(random).filter(|task| task.origin().is_none())?;
        let next = next_fire(task, task.nominal_at.max(now).after(pause));
        let change = settle_with_next(task, now, &next);
        *task = next;
        Some(change)
    }

    fn die(&mut self, random: &mut ModelRandom, now: Timestamp) -> Option<Change> {
        let task = self.take(random)?;
        let task_continues = random.below(3) == 0 && task.origin().is_none();
        let pause = Duration::from_millis(1 + random.below(60_000));
        let next = task_continues.then(|| next_fire(&task, task.nominal_at.max(now).after(pause)));
        self.living.extend(next.clone());
        let was = Prior::of(&task);
        let reason = [DeadReason::Exhausted, DeadReason::Expired][random.index(2)];
        let letter = DeadLetter { task, died_at: now, reason };
        self.letters.push(ModelLetter { letter: letter.clone(), task_continues });
        Some(Change::Dead { letter, next: next.map(Box::new), was })
    }

    /// Redrives a letter, or forgets it. The fire of a task that continued becomes a task of its
    /// own.
    fn redrive_or_forget(
        &mut self,
        random: &mut ModelRandom,
        now: Timestamp,
        changes: &mut Vec<Change>,
    ) {
        if self.letters.is_empty() {
            return;
        }
        let index = random.index(self.letters.len());
        let ModelLetter { letter, task_continues } = self.letters.swap_remove(index);
        let fire_id = letter.fire_id();
        let namespace = letter.task.definition.namespace.clone();
        let forget = Change::DeleteLetter { fire_id, namespace };
        if random.below(4) == 0 {
            changes.push(forget);
        } else if task_continues {
            let fire_at = letter.task.redriven_at(now);
            let task = letter.task.redriven_apart(self.next_id(fire_at), now);
            self.living.push(task.clone());
            changes.extend([forget, Change::Put(task)]);
        } else if self.named(&letter.task).is_some() {
            changes.push(forget);
        } else {
            let task = Task { fire_at: soon(random, now), ..letter.task.redriven(now) };
            self.living.push(task.clone());
            changes.push(Change::Redrive { fire_id, task });
        }
    }

    /// Returns a new id. The newest ids are remembered, to read their tasks.
    fn next_id(&mut self, due: Timestamp) -> TaskId {
        self.count += 1;
        let id = id(due, self.partition, self.lease.epoch, self.count);
        self.made.push_back(id);
        if self.made.len() > MADE_KEPT_MAX {
            self.made.pop_front();
        }
        id
    }

    fn pick(&mut self, random: &mut ModelRandom) -> Option<&mut Task> {
        if self.living.is_empty() {
            return None;
        }
        let index = random.index(self.living.len());
        self.living.get_mut(index)
    }

    fn take(&mut self, random: &mut ModelRandom) -> Option<Task> {
        if self.living.is_empty() {
            return None;
        }
        let index = random.index(self.living.len());
        Some(self.living.swap_remove(index))
    }

    /// Returns the index of the living task with the same key.
    fn named(&self, task: &Task) -> Option<usize> {
        let (key, namespace) = (&task.definition.key, &task.definition.namespace);
        key.as_ref()?;
        self.living.iter().position(|other| {
            other.definition.key == *key && other.definition.namespace == *namespace
        })
    }
}

/// Returns a time so close that many tasks are due together, sometimes in the past or far away.
fn soon(random: &mut ModelRandom, now: Timestamp) -> Timestamp {
    match random.below(20) {
        0 => Timestamp::from_millis(now.as_millis() - random.below(100_000)),
        1 => now.after(Duration::from_secs(86_400 * (1 + random.below(10_000)))),
        _ => {
            let second = now.as_millis() / 1000 + random.below(120);
            Timestamp::from_millis(second * 1000)
        }
    }
}
