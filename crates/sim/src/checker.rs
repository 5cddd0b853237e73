//! Checks the promises of `docs/guarantees.md`.
//!
//! The checker sees what callers want, what owners answer and what receivers get, each with the
//! true time. It records the first promise that was broken. It knows nothing of how brokers decide.

use std::collections::{BTreeMap, BTreeSet};

use punctual_core::{
    AttemptNo, DeadReason, Epoch, FireEnd, FireId, Guarantee, Namespace, Outcome, PartitionId,
    Partitions, Schedule, Target, Task, TaskId, TaskKey, TaskState, Timestamp, Version,
};
use punctual_engine::{Cancelled, Command, Delivery, EngineError, Reply, Scheduled, Subject};
use punctual_store::{Filter, Position, TaskStore};

use crate::store::{SimStore, ready};

/// A page size that includes everything.
const ALL: usize = 100_000;

/// A promise that was broken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrokenPromise {
    /// The promise: one of `docs/guarantees.md`, or another condition that must hold.
    pub promise: &'static str,
    /// What was observed.
    pub observed: String,
}

/// A task that a caller ordered.
#[derive(Debug, Clone)]
pub(crate) struct OrderedTask {
    pub(crate) key: Option<String>,
    pub(crate) guarantee: Guarantee,
    pub(crate) attempts_max: u16,
    /// It fires repeatedly, or can be armed again.
    pub(crate) recurs: bool,
    /// Its creation has an idempotency key.
    pub(crate) receipt: bool,
}

/// What was promised about a task.
#[derive(Debug)]
struct TaskPromise {
    order: usize,
    /// The epoch of the owner that answered last. What a newer owner does comes after everything
    /// that an older one did, in whatever order their answers arrive: a broker that was paused may
    /// answer late.
    epoch: Epoch,
    over: bool,
    version: Version,
    fire_at: Timestamp,
}

/// A delivery as its receiver sees it.
pub(crate) struct SentDelivery<'a> {
    pub(crate) delivery: &'a Delivery,
    pub(crate) partition: PartitionId,
    pub(crate) epoch: Epoch,
    /// The true time.
    pub(crate) now: u64,
    /// The time by the broker's clock.
    pub(crate) local_time: Timestamp,
    /// How far that clock may be wrong at this time, in milliseconds.
    pub(crate) error_max: i64,
}

#[derive(Default)]
pub(crate) struct PromiseChecker {
    pub(crate) orders: Vec<OrderedTask>,
    promises: BTreeMap<TaskId, TaskPromise>,
    /// The attempts that were received, by fire.
    received: BTreeMap<FireId, Vec<AttemptNo>>,
    acked: BTreeSet<FireId>,
    /// Fires whose courier got the ack before its timeout.
    acked_in_time: BTreeSet<FireId>,
    refused: BTreeSet<FireId>,
    /// The epoch of the newest owner that has acted.
    acting: BTreeMap<PartitionId, Epoch>,
    /// The tasks that were created, by order.
    made: BTreeMap<usize, BTreeSet<TaskId>>,
    /// Those that were reported to a caller.
    reported: BTreeMap<usize, BTreeSet<TaskId>>,
    /// How often it is not known whether an order created a task.
    unknown_of: BTreeMap<usize, usize>,
    created: BTreeSet<TaskId>,
    replaced: BTreeSet<TaskId>,
    /// Creations of which it is not known whether they happened.
    unknown: i64,
    /// Nothing fails in this run, so nothing may be received twice.
    peaceful: bool,
    pub(crate) lag_max_ms: u64,
    pub(crate) broken: Option<BrokenPromise>,
}

impl PromiseChecker {
    pub(crate) fn new(peaceful: bool) -> Self {
        Self { peaceful, ..Self::default() }
    }

    pub(crate) fn received_count(&self) -> usize {
        self.received.values().map(Vec::len).sum()
    }

    pub(crate) fn break_promise(&mut self, promise: &'static str, observed: String) {
        self.broken.get_or_insert(BrokenPromise { promise, observed });
    }

    /// Records the answer of an owner to a command.
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
        self.reported.entry(number).or_default().insert(task.id);
        self.check_receipt(number, disturbed);
        // A repeated answer about an earlier creation says nothing about the present task of its
        // key.
        let again = matches!(scheduled, Scheduled::Created(_)) && task.id.epoch() != epoch;
        let known = self.promises.get(&task.id);
        if again || known.is_some_and(|known| known.version >= task.version) {
            // The receipt, which says that the task was created, may arrive before this answer.
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
                    // One of the two tasks with this key has ended: the older one.
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
        let promise = TaskPromise { order: number, epoch, over, version, fire_at };
        let known = self.promises.entry(task.id).or_insert(promise);
        if version > known.version {
            (known.order, known.version, known.fire_at) = (number, version, fire_at);
            known.epoch = known.epoch.max(epoch);
        }
    }

    /// If the store lost a task, it may have lost its receipt too.
    fn check_receipt(&mut self, number: usize, disturbed: &BTreeSet<TaskId>) {
        let made = self.made.get(&number).map_or(0, |made| made.difference(disturbed).count());
        if self.orders[number].receipt && made > 1 {
            let observed = format!("order {number} has an idempotency key and made {made} tasks");
            self.break_promise("G12 create is idempotent", observed);
        }
    }

    fn cancelled(&mut self, subject: &Subject, epoch: Epoch) {
        for (id, promise) in &mut self.promises {
            let same = match subject {
                Subject::Id(_, cancelled) => id == cancelled,
                // A task that a newer owner created with the same key is another task.
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
            |promise: &TaskPromise| self.orders[promise.order].key.as_deref() == Some(key.as_str());
        let living = self.promises.iter().filter(|(_, promise)| !promise.over && named(promise));
        // Returns a task only if it is certain which one the answer is about.
        let mut living = living.map(|(id, _)| *id);
        living.next().filter(|_| living.next().is_none())
    }

    /// Returns the tasks about which something was promised.
    pub(crate) fn promised(&self) -> Vec<TaskId> {
        self.promises.keys().copied().collect()
    }

    /// Checks a delivery that a receiver gets.
    pub(crate) fn receive(&mut self, sent: &SentDelivery<'_>, disturbed: &BTreeSet<TaskId>) {
        let SentDelivery { delivery, partition, epoch, .. } = *sent;
        let FireId { task: id, .. } = delivery.fire_id;
        let what = describe(delivery);
        // A broker with a wrong clock may have sent it before, and a retry follows what was sent.
        let first = !self.received.contains_key(&delivery.fire_id);
        if first {
            self.check_time(sent, &what);
        }
        let newest = self.acting.entry(partition).or_insert(epoch);
        if epoch < *newest {
            let observed = format!("{partition} {epoch} sends {what} after {newest} has acted");
            self.break_promise("G11 one owner acts", observed);
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
            self.break_promise("G4 at most once", format!("received {times} times: {what}"));
        }
        if self.peaceful && twice {
            self.break_promise("a graceful move doubles nothing", format!("sent twice: {what}"));
        }
        if self.peaceful && self.acked_in_time.contains(&delivery.fire_id) {
            self.break_promise(
                "a graceful move doubles nothing",
                format!("acked, and sent: {what}"),
            );
        }
        self.check_promise(sent, first, &what);
    }

    fn check_promise(&mut self, sent: &SentDelivery<'_>, first: bool, what: &str) {
        let Some(promise) = self.promises.get(&sent.delivery.fire_id.task) else { return };
        let (over, version, due) = (promise.over, promise.version, promise.fire_at);
        if over {
            self.break_promise(
                "G7 cancel and replace are true",
                format!("sent afterwards: {what}"),
            );
        }
        if sent.delivery.version < version {
            let observed = format!("version {} was answered: {what}", version.get());
            self.break_promise("G8 postpone is true", observed);
        }
        if first
            && sent.delivery.version == version
            && !self.recurs_or_unknown(sent)
            && sent.local_time < due
        {
            self.break_promise("G2 never early", format!("due at {}: {what}", due.as_millis()));
        }
    }

    /// Returns whether the promised time says nothing about this fire.
    fn recurs_or_unknown(&self, sent: &SentDelivery<'_>) -> bool {
        let target = &sent.delivery.definition.target;
        number(target).is_none_or(|number| self.orders[number].recurs)
    }

    fn check_time(&mut self, sent: &SentDelivery<'_>, what: &str) {
        let (due, local_time) = (sent.delivery.fire_at, sent.local_time);
        if local_time < due {
            let observed =
                format!("at {} by the broker's own clock: {what}", local_time.as_millis());
            return self.break_promise("G2 never early", observed);
        }
        let early = due.as_millis().saturating_sub(sent.now);
        if i64::try_from(early).unwrap_or(i64::MAX) > sent.error_max {
            self.break_promise(
                "G2 never early",
                format!("{early} ms before the true time: {what}"),
            );
        }
        if sent.delivery.attempt == AttemptNo::FIRST {
            self.lag_max_ms = self.lag_max_ms.max(sent.now.saturating_sub(due.as_millis()));
        }
    }

    /// Records the answer of a receiver.
    pub(crate) fn receiver_answered(&mut self, fire_id: FireId, outcome: &Outcome, in_time: bool) {
        match outcome {
            Outcome::Acked => {
                self.acked.insert(fire_id);
                self.acked_in_time.extend(in_time.then_some(fire_id));
            }
            Outcome::Refused { .. } => _ = self.refused.insert(fire_id),
            _ => {}
        }
    }

    /// Checks the final state of the store.
    pub(crate) fn check_at_rest(
        &mut self,
        store: &SimStore,
        namespace: &Namespace,
        partitions: Partitions,
        callbacks: usize,
    ) {
        // Callbacks are accepted tasks that no caller has created.
        let mut accepted = -i64::try_from(callbacks).unwrap_or(i64::MAX);
        let (mut letters, mut wrong) = (BTreeSet::new(), Vec::new());
        for partition in partitions.iter() {
            let counts =
                ready(store.memory.counts(partition, namespace)).expect("the memory store answers");
            let filter = Filter::all(namespace.clone());
            let page = ready(store.memory.list(partition, &filter, Position::START, ALL));
            let tasks = page.expect("the memory store answers").items;
            let page = ready(store.memory.dead(partition, namespace, None, ALL));
            let dead = page.expect("the memory store answers").items;
            let of = |state: TaskState| {
                let count = tasks.iter().filter(|task| task.state == state).count();
                i64::try_from(count).unwrap_or(i64::MAX)
            };
            let kept = i64::try_from(dead.len()).unwrap_or(i64::MAX);
            let right = counts.scheduled == of(TaskState::Scheduled)
                && counts.paused == of(TaskState::Paused)
                && counts.dead_letters == kept;
            if !right && store.nothing_lost {
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
        for observed in wrong {
            self.break_promise("G15 counts add up", observed);
        }
        let created =
            i64::try_from(self.created.difference(&self.replaced).count()).unwrap_or(i64::MAX);
        let unknown = self.unknown;
        if store.nothing_lost && !(created..=created + unknown).contains(&accepted) {
            let observed = format!("{accepted} accepted, {created} created, {unknown} unknown");
            self.break_promise("G15 counts add up", observed);
        }
    }

    /// Checks that a command answered as not executed was not executed: every task that was
    /// received was reported to its caller, or reported as unknown.
    fn check_answers(&mut self) {
        let mut broken = None;
        for (number, made) in &self.made {
            let what = self.reported.get(number).map_or(0, |what| made.intersection(what).count());
            let unreported = made.len() - what;
            let unknown = self.unknown_of.get(number).copied().unwrap_or_default();
            if unreported > unknown {
                broken = Some(format!(
                    "order {number} created {unreported} tasks unknown to its caller"
                ));
            }
        }
        if let Some(observed) = broken {
            self.break_promise("not done is not done", observed);
        }
    }

    /// Checks that a dead letter has the right reason.
    fn check_letter(&mut self, task: &Task, reason: DeadReason, store: &SimStore) {
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
            let observed = format!("{reason:?} after {} attempts: {fire_id}", task.attempts.len());
            self.break_promise("G5 attempts go on until they are used up", observed);
        }
    }

    /// Checks that nothing acknowledged is lost, and that every fire that is done was acked.
    fn check_all_received(&mut self, store: &SimStore, letters: &BTreeSet<FireId>) {
        let mut broken = Vec::new();
        for (id, promise) in &self.promises {
            if store.is_excused(*id) {
                continue;
            }
            let records = ready(store.memory.history(id.partition(), *id, ALL))
                .expect("the memory store answers");
            for record in &records {
                if record.end == FireEnd::Done && !self.acked.contains(&record.fire_id) {
                    let observed = format!("done without an ack: {}", record.fire_id);
                    broken.push(("G5 attempts go on until one succeeds", observed));
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
                let observed =
                    format!("order {} as {id}: neither received nor dead", promise.order);
                broken.push(("G1 nothing acknowledged is lost", observed));
            }
        }
        for (promise, observed) in broken {
            self.break_promise(promise, observed);
        }
    }
}

/// Returns the number of the order of a delivery, which is at the end of its URL.
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

/// Returns whether a task with this schedule can fire more than once.
pub(crate) fn recurs(schedule: &Schedule) -> bool {
    !matches!(schedule, Schedule::Once(_))
}
