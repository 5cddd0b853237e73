//! The witness: stands at the receivers and at the owners' doors, and knows what was promised.
//!
//! In: what callers wanted, what owners answered, what receivers got, each with the true time. Out: the first promise of
//! `guarantees.md` that was broken. It knows nothing of how brokers decide.

use std::collections::{BTreeMap, BTreeSet};

use punctual_core::{
    AttemptNo, DeadReason, Epoch, FireEnd, FireId, Guarantee, Namespace, Outcome, PartitionId,
    Partitions, Schedule, Target, Task, TaskId, TaskKey, TaskState, Timestamp, Version,
};
use punctual_engine::{Cancelled, Command, Delivery, EngineError, Reply, Scheduled, Subject};
use punctual_store::{Filter, Position, TaskStore};

use crate::store::{Store, ready};

/// A page of all that there is.
const ALL: usize = 100_000;

/// A promise that was broken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Broken {
    /// Which one of `guarantees.md`, or what else must hold.
    pub promise: &'static str,
    /// What was seen.
    pub seen: String,
}

/// What a caller ordered.
#[derive(Debug, Clone)]
pub(crate) struct Ordered {
    pub(crate) key: Option<String>,
    pub(crate) guarantee: Guarantee,
    pub(crate) attempts_max: u16,
    /// Due again and again, or to be armed again.
    pub(crate) goes_on: bool,
    /// Its creation is repeatable.
    pub(crate) receipt: bool,
}

/// What was answered about a task.
#[derive(Debug)]
struct Promise {
    order: usize,
    /// Of the owner that answered it last. What a newer owner does comes after all that an older one has done, in whatever order their
    /// answers come: a broker that was paused may answer late.
    epoch: Epoch,
    over: bool,
    version: Version,
    fire_at: Timestamp,
}

/// A delivery as its receiver sees it.
pub(crate) struct Seen<'a> {
    pub(crate) delivery: &'a Delivery,
    pub(crate) partition: PartitionId,
    pub(crate) epoch: Epoch,
    /// The true time.
    pub(crate) now: u64,
    /// What the broker's clock says.
    pub(crate) says: Timestamp,
    /// By how much that may be wrong at this time, in milliseconds.
    pub(crate) error_max: i64,
}

#[derive(Default)]
pub(crate) struct Witness {
    pub(crate) orders: Vec<Ordered>,
    promises: BTreeMap<TaskId, Promise>,
    /// What each fire was received as.
    received: BTreeMap<FireId, Vec<AttemptNo>>,
    acked: BTreeSet<FireId>,
    /// Those whose courier heard it.
    acked_in_time: BTreeSet<FireId>,
    refused: BTreeSet<FireId>,
    /// The newest owner that has acted.
    acting: BTreeMap<PartitionId, Epoch>,
    /// Tasks that were made for an order.
    made: BTreeMap<usize, BTreeSet<TaskId>>,
    /// Those of them that somebody was told of.
    told: BTreeMap<usize, BTreeSet<TaskId>>,
    /// How often nobody knows whether one was made for an order.
    unknown_of: BTreeMap<usize, usize>,
    created: BTreeSet<TaskId>,
    replaced: BTreeSet<TaskId>,
    /// Creations of which nobody knows whether they were made.
    unknown: i64,
    /// Nothing goes wrong in this life, so nothing is received twice.
    peaceful: bool,
    pub(crate) lag_max_ms: u64,
    pub(crate) broken: Option<Broken>,
}

impl Witness {
    pub(crate) fn new(peaceful: bool) -> Self {
        Self { peaceful, ..Self::default() }
    }

    pub(crate) fn received_count(&self) -> usize {
        self.received.values().map(Vec::len).sum()
    }

    pub(crate) fn break_promise(&mut self, promise: &'static str, seen: String) {
        self.broken.get_or_insert(Broken { promise, seen });
    }

    /// An owner has answered a command.
    pub(crate) fn answered(
        &mut self,
        command: &Command,
        epoch: Epoch,
        answer: &Result<Reply, EngineError>,
        disturbed: &BTreeSet<TaskId>,
    ) {
        match (command, answer) {
            (Command::Schedule(order), Ok(Reply::Scheduled(scheduled))) => {
                if let Some(number) = number(&order.new_task.target) {
                    self.scheduled(number, epoch, scheduled, disturbed);
                }
            }
            (Command::Schedule(order), Err(EngineError::Lost)) => {
                self.unknown += 1;
                let number = number(&order.new_task.target).unwrap_or_default();
                *self.unknown_of.entry(number).or_default() += 1;
            }
            (Command::Cancel(subject), Ok(Reply::Cancelled(Cancelled::Cancelled))) => {
                self.cancelled(subject, epoch);
            }
            (Command::Touch(subject, _), Ok(Reply::Touched { fire_at, version })) => {
                let id = self.task_of(subject);
                if let Some(promise) = id.and_then(|id| self.promises.get_mut(&id))
                    && promise.epoch <= epoch
                {
                    promise.epoch = epoch;
                    promise.version = promise.version.max(*version);
                    promise.fire_at = *fire_at;
                }
            }
            _ => {}
        }
    }

    fn scheduled(
        &mut self,
        number: usize,
        epoch: Epoch,
        scheduled: &Scheduled,
        disturbed: &BTreeSet<TaskId>,
    ) {
        let task = scheduled.task();
        self.made.entry(number).or_default().insert(task.id);
        self.told.entry(number).or_default().insert(task.id);
        self.check_receipt(number, disturbed);
        // What was made before and is only told again says nothing about what its key names now.
        let again = matches!(scheduled, Scheduled::Created(_)) && task.id.epoch() != epoch;
        let known = self.promises.get(&task.id);
        if again || known.is_some_and(|known| known.version >= task.version) {
            // Its receipt, which says that it was created, may be seen before it.
            if let Scheduled::Replaced(_) = scheduled {
                self.replaced.insert(task.id);
            }
            return;
        }
        let mut over = false;
        if let Some(key) = &self.orders[number].key {
            let key = key.clone();
            for (id, promise) in &mut self.promises {
                if self.orders[promise.order].key.as_ref() == Some(&key) && *id != task.id {
                    // One of the two is over: the one that was there first.
                    let late = promise.epoch > epoch;
                    promise.over |= !late;
                    over |= late;
                }
            }
        }
        if let Scheduled::Created(_) = scheduled {
            self.created.insert(task.id);
        }
        let (version, fire_at) = (task.version, task.fire_at);
        let promise = Promise { order: number, epoch, over, version, fire_at };
        let known = self.promises.entry(task.id).or_insert(promise);
        if version > known.version {
            (known.order, known.version, known.fire_at) = (number, version, fire_at);
            known.epoch = known.epoch.max(epoch);
        }
    }

    /// One that the store has forgotten may have taken its receipt along.
    fn check_receipt(&mut self, number: usize, disturbed: &BTreeSet<TaskId>) {
        let made = self.made.get(&number).map_or(0, |made| made.difference(disturbed).count());
        if self.orders[number].receipt && made > 1 {
            let seen = format!("order {number} has an idempotency key and made {made} tasks");
            self.break_promise("G12 create is idempotent", seen);
        }
    }

    fn cancelled(&mut self, subject: &Subject, epoch: Epoch) {
        for (id, promise) in &mut self.promises {
            let same = match subject {
                Subject::Id(_, cancelled) => id == cancelled,
                // What a newer owner has put under the name is another.
                Subject::Key(_, key) => {
                    self.orders[promise.order].key.as_deref() == Some(key.as_str())
                        && promise.epoch <= epoch
                }
            };
            promise.over |= same;
        }
    }

    fn task_of(&self, subject: &Subject) -> Option<TaskId> {
        match subject {
            Subject::Id(_, id) => Some(*id),
            Subject::Key(_, key) => self.living(key),
        }
    }

    fn living(&self, key: &TaskKey) -> Option<TaskId> {
        let named =
            |promise: &Promise| self.orders[promise.order].key.as_deref() == Some(key.as_str());
        let living = self.promises.iter().filter(|(_, promise)| !promise.over && named(promise));
        // Only one that the answer must be about is known.
        let mut living = living.map(|(id, _)| *id);
        living.next().filter(|_| living.next().is_none())
    }

    /// A task of which something was promised, to be changed by its id.
    pub(crate) fn promised(&self) -> Vec<TaskId> {
        self.promises.keys().copied().collect()
    }

    /// A receiver gets a delivery.
    pub(crate) fn receive(&mut self, seen: &Seen<'_>, disturbed: &BTreeSet<TaskId>) {
        let Seen { delivery, partition, epoch, .. } = *seen;
        let FireId { task: id, .. } = delivery.fire_id;
        let told = describe(delivery);
        // A clock that was wrong may have sent it before: whoever tries again goes by what was sent.
        let first = !self.received.contains_key(&delivery.fire_id);
        if first {
            self.check_time(seen, &told);
        }
        let newest = self.acting.entry(partition).or_insert(epoch);
        if epoch < *newest {
            let seen = format!("{partition} {epoch} sends {told} after {newest} has acted");
            self.break_promise("G11 one owner acts", seen);
        } else {
            *newest = epoch;
        }
        let Some(number) = number(&delivery.definition.target) else { return };
        self.made.entry(number).or_default().insert(id);
        self.check_receipt(number, disturbed);
        let received = self.received.entry(delivery.fire_id).or_default();
        let twice = received.contains(&delivery.attempt);
        received.push(delivery.attempt);
        let times = received.len();
        if disturbed.contains(&id) {
            return;
        }
        if self.orders[number].guarantee == Guarantee::AtMostOnce && times > 1 {
            self.break_promise("G4 at most once", format!("received {times} times: {told}"));
        }
        if self.peaceful && twice {
            self.break_promise("a graceful move doubles nothing", format!("sent twice: {told}"));
        }
        if self.peaceful && self.acked_in_time.contains(&delivery.fire_id) {
            self.break_promise(
                "a graceful move doubles nothing",
                format!("acked, and sent: {told}"),
            );
        }
        self.check_promise(seen, first, &told);
    }

    fn check_promise(&mut self, seen: &Seen<'_>, first: bool, told: &str) {
        let Some(promise) = self.promises.get(&seen.delivery.fire_id.task) else { return };
        let (over, version, due) = (promise.over, promise.version, promise.fire_at);
        if over {
            self.break_promise(
                "G7 cancel and replace are true",
                format!("sent afterwards: {told}"),
            );
        }
        if seen.delivery.version < version {
            let seen = format!("version {} was answered: {told}", version.get());
            self.break_promise("G8 postpone is true", seen);
        }
        if first && seen.delivery.version == version && !self.is_kept_up(seen) && seen.says < due {
            self.break_promise("G2 never early", format!("due at {}: {told}", due.as_millis()));
        }
    }

    /// Whether its own time says nothing about the fire at hand.
    fn is_kept_up(&self, seen: &Seen<'_>) -> bool {
        let target = &seen.delivery.definition.target;
        number(target).is_none_or(|number| self.orders[number].goes_on)
    }

    fn check_time(&mut self, seen: &Seen<'_>, told: &str) {
        let (due, says) = (seen.delivery.fire_at, seen.says);
        if says < due {
            let seen = format!("at {} by the broker's own clock: {told}", says.as_millis());
            return self.break_promise("G2 never early", seen);
        }
        let early = due.as_millis().saturating_sub(seen.now);
        if i64::try_from(early).unwrap_or(i64::MAX) > seen.error_max {
            self.break_promise(
                "G2 never early",
                format!("{early} ms before the true time: {told}"),
            );
        }
        if seen.delivery.attempt == AttemptNo::FIRST {
            self.lag_max_ms = self.lag_max_ms.max(seen.now.saturating_sub(due.as_millis()));
        }
    }

    /// What a receiver says.
    pub(crate) fn says(&mut self, fire_id: FireId, outcome: &Outcome, in_time: bool) {
        match outcome {
            Outcome::Acked => {
                self.acked.insert(fire_id);
                self.acked_in_time.extend(in_time.then_some(fire_id));
            }
            Outcome::Refused { .. } => _ = self.refused.insert(fire_id),
            _ => {}
        }
    }

    /// Everything has come to rest.
    pub(crate) fn rest(&mut self, store: &Store, namespace: &Namespace, partitions: Partitions) {
        let mut accepted = 0;
        let (mut letters, mut wrong) = (BTreeSet::new(), Vec::new());
        for partition in partitions.iter() {
            let counts = ready(store.memory.counts(partition, namespace)).expect("is inside");
            let filter = Filter::all(namespace.clone());
            let page = ready(store.memory.list(partition, &filter, Position::START, ALL));
            let tasks = page.expect("is inside").items;
            let page = ready(store.memory.dead(partition, namespace, None, ALL));
            let dead = page.expect("is inside").items;
            let of = |state: TaskState| {
                let count = tasks.iter().filter(|task| task.state == state).count();
                i64::try_from(count).unwrap_or(i64::MAX)
            };
            let kept = i64::try_from(dead.len()).unwrap_or(i64::MAX);
            let right = counts.scheduled == of(TaskState::Scheduled)
                && counts.paused == of(TaskState::Paused)
                && counts.dead_letters == kept;
            if !right && store.lost_none {
                wrong.push(format!("{partition}: {counts:?}, {kept} letters"));
            }
            accepted += counts.accepted();
            for letter in dead {
                letters.insert(letter.fire_id());
                self.check_letter(&letter.task, letter.reason, store);
            }
        }
        self.check_all_received(store, &letters);
        self.check_answers();
        for seen in wrong {
            self.break_promise("G15 counts add up", seen);
        }
        let created =
            i64::try_from(self.created.difference(&self.replaced).count()).unwrap_or(i64::MAX);
        let unknown = self.unknown;
        let superseded = self.superseded(store);
        if store.lost_none && !(created - superseded..=created + unknown).contains(&accepted) {
            let seen = format!("{accepted} accepted, {created} created, {unknown} unknown");
            self.break_promise("G15 counts add up", seen);
        }
    }

    /// What was answered as not done is not done: whatever was received, somebody was told of, or told that nobody knows.
    fn check_answers(&mut self) {
        let mut broken = None;
        for (number, made) in &self.made {
            let told = self.told.get(number).map_or(0, |told| made.intersection(told).count());
            let untold = made.len() - told;
            let unknown = self.unknown_of.get(number).copied().unwrap_or_default();
            if untold > unknown {
                broken = Some(format!("order {number} made {untold} tasks unknown to its caller"));
            }
        }
        if let Some(seen) = broken {
            self.break_promise("not done is not done", seen);
        }
    }

    /// Tasks that were claimed, whose name was given to another then, and that were not sent after all: they count as replaced,
    /// although both were answered as created.
    fn superseded(&self, store: &Store) -> i64 {
        let count = self.created.iter().filter(|id| {
            let records = ready(store.memory.history(id.partition(), **id, 1)).expect("is inside");
            let order = self.promises.get(id).map(|promise| &self.orders[promise.order]);
            let once = order.is_some_and(|order| order.guarantee == Guarantee::AtMostOnce);
            once && records.first().is_some_and(|record| record.end == FireEnd::Replaced)
        });
        i64::try_from(count.count()).unwrap_or(i64::MAX)
    }

    /// A dead letter has its reason.
    fn check_letter(&mut self, task: &Task, reason: DeadReason, store: &Store) {
        let Some(number) = number(&task.definition.target) else { return };
        if store.disturbed.contains(&task.id) {
            return;
        }
        let (fire_id, order) = (task.fire().id, &self.orders[number]);
        let all = task.attempts.len() >= usize::from(order.attempts_max);
        let once = order.guarantee == Guarantee::AtMostOnce;
        let right = match reason {
            DeadReason::Refused => self.refused.contains(&fire_id),
            DeadReason::Exhausted => all || (once && task.attempts.len() == 1),
            DeadReason::Unknown => once,
            _ => false,
        };
        if !right {
            let seen = format!("{reason:?} after {} attempts: {fire_id}", task.attempts.len());
            self.break_promise("G5 attempts go on until they are used up", seen);
        }
    }

    /// Nothing that was acknowledged is lost, and what is done was acked.
    fn check_all_received(&mut self, store: &Store, letters: &BTreeSet<FireId>) {
        let mut broken = Vec::new();
        for (id, promise) in &self.promises {
            if store.is_forgiven(*id) {
                continue;
            }
            let records = ready(store.memory.history(id.partition(), *id, ALL)).expect("is inside");
            for record in &records {
                if record.end == FireEnd::Done && !self.acked.contains(&record.fire_id) {
                    let seen = format!("done, and nobody has acked {}", record.fire_id);
                    broken.push(("G5 attempts go on until one succeeds", seen));
                }
            }
            let fires = FireId { task: *id, nominal_at: Timestamp::EPOCH }..=FireId {
                task: *id,
                nominal_at: Timestamp::MAX,
            };
            let received = self.received.range(fires.clone()).next().is_some();
            let dead = letters.range(fires).next().is_some();
            let called_off = records.iter().any(|record| {
                matches!(record.end, FireEnd::Cancelled | FireEnd::Replaced | FireEnd::Skipped(_))
            });
            if !(promise.over || received || dead || called_off) {
                let seen = format!("order {} as {id}: neither received nor dead", promise.order);
                broken.push(("G1 nothing acknowledged is lost", seen));
            }
        }
        for (promise, seen) in broken {
            self.break_promise(promise, seen);
        }
    }
}

/// The number of the order that a delivery is for: it stands at the end of its address.
pub(crate) fn number(target: &Target) -> Option<usize> {
    let Target::Http(http) = target else { return None };
    http.url().rsplit('/').next()?.parse().ok()
}

pub(crate) fn describe(delivery: &Delivery) -> String {
    let Delivery { fire_id, attempt, version, .. } = delivery;
    let (attempt, version) = (attempt.get(), version.get());
    let number = number(&delivery.definition.target).unwrap_or_default();
    format!("order {number} attempt {attempt} version {version} ({fire_id})")
}

/// Whether a schedule goes on by itself or by touches.
pub(crate) fn goes_on(schedule: &Schedule) -> bool {
    !matches!(schedule, Schedule::Once(_))
}
