//! Checks the promises of `docs/guarantees.md`.
//!
//! The checker sees what callers want, what owners answer and what receivers get, each with the
//! true time. It records the first promise that was broken. It knows nothing of how brokers decide.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use punctual_core::{
    AttemptNo, AttemptRecord, DeadReason, Epoch, FireEnd, FireId, FireRecord, Guarantee, Namespace,
    NewTask, Outcome, PartitionId, Partitions, Schedule, Task, TaskId, TaskKey, TaskState,
    Timestamp, Version,
};
use punctual_engine::{
    Cancelled, Command, Delivery, EngineError, Gauges, Reply, Scheduled, Subject,
};
use punctual_store::{Filter, Position, TaskStore};

use crate::store::{SimStore, ready};

/// Why an attempt failed whose courier could not open a connection.
pub(crate) const NO_CONNECTION: &str = "no answer: connection refused";
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
    /// No attempt of this version starts.
    paused: bool,
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
    /// Tasks that callers wanted to pause.
    pub(crate) pausing: Vec<Subject>,
    promises: BTreeMap<TaskId, TaskPromise>,
    /// When attempts were sent, by the clock of their broker.
    sent_at: BTreeSet<(FireId, AttemptNo, Timestamp)>,
    /// When fires were due, according to the last delivery of each.
    due_at: BTreeMap<FireId, Timestamp>,
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
                if let Some(number) = number(&order.new_task) {
                    self.scheduled(number, epoch, scheduled, disturbed);
                }
            }
            (Command::Schedule(order), Err(EngineError::Lost)) => {
                self.unknown += 1;
                let number = number(&order.new_task).unwrap_or_default();
                *self.unknown_of.entry(number).or_default() += 1;
            }
            (Command::Cancel(subject), Ok(Reply::Cancelled(Cancelled::Cancelled))) => {
                self.cancelled(subject, epoch);
            }
            (Command::Cancel(Subject::Id(_, id)), Ok(Reply::Cancelled(Cancelled::Firing(_)))) => {
                self.firing(*id, disturbed);
            }
            (Command::Pause(_) | Command::Resume(_), Ok(Reply::Task(task))) => {
                self.paused_or_resumed(task, epoch);
            }
            (Command::Touch(subject, _), Ok(Reply::Touched { fire_at, version })) => {
                let id = self.task_of(subject);
                if let Some(promise) = id.and_then(|id| self.promises.get_mut(&id))
                    && promise.epoch <= epoch
                    && promise.version < *version
                {
                    promise.epoch = epoch;
                    promise.version = *version;
                    promise.fire_at = *fire_at;
                    promise.paused = false;
                }
            }
            _ => {}
        }
    }

    /// A cancel was answered with `firing`: something of the task must have been sent.
    fn firing(&mut self, id: TaskId, disturbed: &BTreeSet<TaskId>) {
        if self.received.range(fires_of(id)).next().is_none() && !disturbed.contains(&id) {
            let observed = format!("firing, and nothing was sent: {id}");
            self.break_promise("G7 cancel is true", observed);
        }
    }

    fn paused_or_resumed(&mut self, task: &Task, epoch: Epoch) {
        let Some(promise) = self.promises.get_mut(&task.id) else { return };
        if promise.epoch <= epoch && promise.version <= task.version {
            promise.epoch = epoch;
            (promise.version, promise.fire_at) = (task.version, task.fire_at);
            promise.paused = task.state == TaskState::Paused;
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
        let paused = task.state == TaskState::Paused;
        let promise = TaskPromise { order: number, epoch, over, version, fire_at, paused };
        let known = self.promises.entry(task.id).or_insert(promise);
        if version > known.version {
            (known.order, known.version, known.fire_at) = (number, version, fire_at);
            known.epoch = known.epoch.max(epoch);
            known.paused = paused;
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
    pub(crate) fn receive(&mut self, sent: &SentDelivery<'_>, store: &SimStore) {
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
        self.sent_at.insert((delivery.fire_id, delivery.attempt, delivery.fired_at));
        self.due_at.insert(delivery.fire_id, delivery.fire_at);
        if delivery.fired_at != sent.local_time {
            let (says, local_time) = (delivery.fired_at.as_millis(), sent.local_time.as_millis());
            let observed = format!("sent at {local_time}, and says {says}: {what}");
            self.break_promise("G16 what is shown is so", observed);
        }
        // A callback is no order of a caller.
        let Some(number) = number(&delivery.definition) else { return };
        self.made.entry(number).or_default().insert(id);
        self.check_receipt(number, &store.disturbed);
        let received = self.received.entry(delivery.fire_id).or_default();
        let twice = received.contains(&delivery.attempt);
        received.push(delivery.attempt);
        let times = received.len();
        if store.is_unsettled(id) {
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
        let paused = promise.paused && sent.delivery.version == version;
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
        if paused {
            self.break_promise("G8 a pause is true", format!("sent while paused: {what}"));
        }
        if first && sent.delivery.version == version && !self.recurs_or_unknown(sent) {
            let (says, due_ms) = (sent.delivery.fire_at, due.as_millis());
            if sent.local_time < due {
                self.break_promise("G2 never early", format!("due at {due_ms}: {what}"));
            }
            // The fire of a later attempt was due before.
            if says != due && sent.delivery.attempt == AttemptNo::FIRST {
                let observed = format!("due at {due_ms}, and says {}: {what}", says.as_millis());
                self.break_promise("G16 what is shown is so", observed);
            }
        }
    }

    /// Returns whether the promised time says nothing about this fire.
    fn recurs_or_unknown(&self, sent: &SentDelivery<'_>) -> bool {
        number(&sent.delivery.definition).is_none_or(|number| self.orders[number].recurs)
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
                if !store.disturbed.contains(&letter.task.id) {
                    self.check_attempts(letter.fire_id(), &letter.task.attempts);
                }
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
        let Some(number) = number(&task.definition) else { return };
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
        let mut shown = Vec::new();
        for (id, promise) in &self.promises {
            if store.is_excused(*id) {
                continue;
            }
            let records = ready(store.memory.history(id.partition(), *id, ALL))
                .expect("the memory store answers");
            for record in &records {
                if !store.disturbed.contains(id) {
                    shown.push(record.clone());
                }
                if record.end == FireEnd::Done && !self.acked.contains(&record.fire_id) {
                    let observed = format!("done without an ack: {}", record.fire_id);
                    broken.push(("G5 attempts go on until one succeeds", observed));
                }
            }
            let fires = fires_of(*id);
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
        for record in shown {
            self.check_record(&record);
        }
    }

    /// Checks that a record says of its fire what receivers have seen.
    fn check_record(&mut self, record: &FireRecord) {
        let fire_id = record.fire_id;
        self.check_attempts(fire_id, &record.attempts);
        let due_at = self.due_at.get(&fire_id).copied().unwrap_or(record.due_at);
        if !record.attempts.is_empty() && record.due_at != due_at {
            let (shown, due_at) = (record.due_at.as_millis(), due_at.as_millis());
            let observed = format!("due at {due_at}, and in history {shown}: {fire_id}");
            self.break_promise("G16 what is shown is so", observed);
        }
    }

    /// Checks that every attempt of a fire was sent when it says, if it was sent.
    fn check_attempts(&mut self, fire_id: FireId, attempts: &[AttemptRecord]) {
        for attempt in attempts {
            let sent = (fire_id, attempt.number, attempt.fired_at);
            if !self.sent_at.contains(&sent) && !is_unsent(&attempt.outcome) {
                let (number, at) = (attempt.number.get(), attempt.fired_at.as_millis());
                let observed = format!("attempt {number} of {fire_id} was not sent at {at}");
                self.break_promise("G16 what is shown is so", observed);
            }
        }
    }

    /// Checks what an owner shows against the deliveries that wait in its couriers, and the number
    /// of those that were sent and not reported.
    pub(crate) fn check_gauges<'a>(
        &mut self,
        gauges: &Gauges,
        waiting: impl Iterator<Item = &'a Delivery>,
        sent: usize,
    ) {
        let (mut count, mut oldest) = (0, None);
        for delivery in waiting {
            count += 1;
            let first = delivery.attempt == AttemptNo::FIRST;
            oldest = [oldest, first.then_some(delivery.fire_at)].into_iter().flatten().min();
        }
        let overdue =
            oldest.is_none() || gauges.oldest_overdue.is_some_and(|at| Some(at) <= oldest);
        if !overdue || gauges.queued < count || gauges.in_flight > sent || gauges.firing > sent {
            let observed = format!("{count} wait since {oldest:?}, {sent} were sent: {gauges:?}");
            self.break_promise("G16 what is shown is so", observed);
        }
    }
}

/// Returns the number of the order of a task, which is its payload.
pub(crate) fn number(definition: &NewTask) -> Option<usize> {
    str::from_utf8(definition.payload.bytes()).ok()?.parse().ok()
}

/// Returns the ids of all fires of a task.
const fn fires_of(task: TaskId) -> RangeInclusive<FireId> {
    let first = FireId { task, nominal_at: Timestamp::EPOCH };
    first..=FireId { task, nominal_at: Timestamp::MAX }
}

/// Whether an outcome says that the attempt was not sent.
pub(crate) fn is_unsent(outcome: &Outcome) -> bool {
    let is_unsent = |reason: &str| ["it was not sent", NO_CONNECTION].contains(&reason);
    matches!(outcome, Outcome::Failed { reason, .. } if is_unsent(reason.as_str()))
}

pub(crate) fn describe(delivery: &Delivery) -> String {
    let Delivery { fire_id, attempt, version, .. } = delivery;
    let (attempt, version) = (attempt.get(), version.get());
    let number = number(&delivery.definition).unwrap_or_default();
    format!("order {number} attempt {attempt} version {version} ({fire_id})")
}

/// Returns whether a task with this schedule can fire more than once.
pub(crate) fn recurs(schedule: &Schedule) -> bool {
    !matches!(schedule, Schedule::Once(_))
}
