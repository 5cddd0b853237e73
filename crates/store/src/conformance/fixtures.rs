//! Fixtures: names, times and tasks to test stores with. Also for the tests of whoever uses a store.
//!
//! In: the little that a test cares about. Out: a task with everything else filled in.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use punctual_core::{
    AttemptRecord, Backoff, BrokerId, DeadLetter, DeadReason, Due, Epoch, FireEnd, FireRecord,
    Guarantee, HttpTarget, Jitter, Labels, Method, Namespace, NewTask, Outcome, PartitionId,
    Payload, Queue, Reason, RetryPolicy, Schedule, Sequence, Target, Task, TaskId, TaskKey,
    TaskState, Timestamp, Version,
};

use crate::change::Change;

/// When the tests take place.
pub const NOW: Timestamp = Timestamp::from_millis(1_700_000_000_000);

/// How long leases last, unless a test says otherwise.
pub const TTL: Duration = Duration::from_secs(10);

/// So many seconds after [`NOW`].
#[must_use]
pub fn at(seconds: u64) -> Timestamp {
    NOW.after(Duration::from_secs(seconds))
}

/// A partition by its number.
#[must_use]
pub fn partition(number: u16) -> PartitionId {
    PartitionId::new(number).expect("tests use few partitions")
}

/// An epoch by its number.
#[must_use]
pub fn epoch(number: u32) -> Epoch {
    Epoch::new(number).expect("tests use few epochs")
}

/// A broker by its name.
#[must_use]
pub fn broker(name: &str) -> BrokerId {
    BrokerId::new(name)
}

/// A namespace.
#[must_use]
pub fn namespace(name: &str) -> Namespace {
    Namespace::new(name).expect("tests use valid names")
}

/// The namespace of tasks that do not say otherwise.
#[must_use]
pub fn shop() -> Namespace {
    namespace("shop")
}

/// A key.
#[must_use]
pub fn key(text: &str) -> TaskKey {
    TaskKey::new(text).expect("tests use valid keys")
}

/// The id of the `number`th task that the owner of `epoch` files.
#[must_use]
pub fn id(due: Timestamp, partition: PartitionId, epoch: Epoch, number: u64) -> TaskId {
    let sequence = Sequence::new(number).expect("tests make few tasks");
    TaskId::new(due, partition, epoch, sequence)
}

/// Begins a task: scheduled, unnamed, small, due when its id says.
#[must_use]
pub fn task(id: TaskId) -> TaskBuilder {
    let target = Target::Queue(Queue::new("orders").expect("a valid queue"));
    let definition = NewTask::new(shop(), Schedule::Once(Due::At(id.due())), target);
    let task = Task::new(id, Arc::new(definition.clone()), NOW, Version::FIRST);
    TaskBuilder { task, definition }
}

/// A task in the making.
#[derive(Debug, Clone)]
pub struct TaskBuilder {
    task: Task,
    definition: NewTask,
}

impl TaskBuilder {
    /// Of another namespace than [`shop`].
    #[must_use]
    pub fn namespace(mut self, name: &str) -> Self {
        self.definition.namespace = namespace(name);
        self
    }

    /// With a name.
    #[must_use]
    pub fn key(mut self, text: &str) -> Self {
        self.definition.key = Some(key(text));
        self
    }

    /// With a label.
    #[must_use]
    pub fn label(mut self, name: &str, value: &str) -> Self {
        let labels = self.definition.labels.iter();
        let mut labels: BTreeMap<String, String> =
            labels.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        labels.insert(name.to_owned(), value.to_owned());
        self.definition.labels = Labels::new(labels).expect("tests use valid labels");
        self
    }

    /// With something to carry.
    #[must_use]
    pub fn payload(mut self, payload: Payload) -> Self {
        self.definition.payload = payload;
        self
    }

    /// Due by another rule.
    #[must_use]
    pub fn schedule(mut self, schedule: Schedule) -> Self {
        self.definition.schedule = schedule;
        self
    }

    /// Any other change of what the caller asked for.
    #[must_use]
    pub fn define(mut self, change: impl FnOnce(&mut NewTask)) -> Self {
        change(&mut self.definition);
        self
    }

    /// Waits to be resumed.
    #[must_use]
    pub const fn paused(mut self) -> Self {
        self.task.state = TaskState::Paused;
        self
    }

    /// The task.
    #[must_use]
    pub fn build(self) -> Task {
        Task { definition: Arc::new(self.definition), ..self.task }
    }

    /// The change that files it.
    #[must_use]
    pub fn put(self) -> Change {
        Change::Put(self.build())
    }
}

/// A task with something in every field, most of it at the edge of what is allowed.
#[must_use]
pub fn rich_task(id: TaskId) -> Task {
    let headers =
        vec![("X-Tenant".to_owned(), "a, b".to_owned()), ("x-empty".to_owned(), String::new())];
    let target = HttpTarget::new("https://example.org/hook?a=b", Method::Patch, headers)
        .expect("a valid webhook");
    let built = task(id)
        .key("geräte/halle 3/Ω")
        .label("zone", "eu west")
        .label("empty", "")
        .payload(Payload::Binary {
            bytes: (0..=255).collect::<Vec<u8>>().into(),
            content_type: "application/x-thing; v=2".into(),
        })
        .schedule(Schedule::every(Duration::from_millis(100)))
        .define(|definition| {
            definition.target = Target::Http(target);
            definition.guarantee = Guarantee::ExactlyOnce;
            definition.timeout = Duration::from_millis(12_345);
            definition.expires_after = Some(Duration::from_secs(99));
            definition.retry = RetryPolicy {
                attempts_max: 100,
                backoff: Backoff::List(vec![Duration::ZERO, Duration::from_millis(1)]),
                jitter: Jitter::from_thousandths(1000).expect("the largest"),
            };
        })
        .build();
    Task {
        created_at: Timestamp::from_millis(1),
        fire_at: built.fire_at.after(Duration::from_millis(17)),
        version: Version::new(u64::MAX),
        attempts: attempts(),
        resumes_at: Some(at(77)),
        ..built
    }
}

/// One attempt of each outcome.
#[must_use]
pub fn attempts() -> Vec<AttemptRecord> {
    let failed = |retry_in| Outcome::Failed { reason: Reason::new("HTTP 503: später"), retry_in };
    let refused = Outcome::Refused { reason: Reason::new(&"x".repeat(512)) };
    let outcomes = [
        failed(None),
        failed(Some(Duration::from_millis(1500))),
        Outcome::Expired,
        refused,
        Outcome::Acked,
    ];
    (0..)
        .zip(outcomes)
        .map(|(second, outcome)| AttemptRecord {
            fired_at: at(second),
            ended_at: at(second + 1),
            outcome,
        })
        .collect()
}

/// The change that ends a task.
#[must_use]
pub fn settle(task: &Task, end: FireEnd, ended_at: Timestamp) -> Change {
    Change::Settle { record: FireRecord::of(task, end, ended_at), next: None, was: task.state }
}

/// The change that ends a fire of a task that goes on as `next`.
#[must_use]
pub fn settle_with_next(task: &Task, ended_at: Timestamp, next: &Task) -> Change {
    Change::Settle {
        record: FireRecord::of(task, FireEnd::Done, ended_at),
        next: Some(next.clone()),
        was: task.state,
    }
}

/// The letter of a task whose present fire died.
#[must_use]
pub fn letter(task: &Task, died_at: Timestamp) -> DeadLetter {
    DeadLetter { task: task.clone(), died_at, reason: DeadReason::Exhausted }
}

/// The change that makes a dead letter of a task's present fire, with or without going on.
#[must_use]
pub fn die(task: &Task, died_at: Timestamp, next: Option<&Task>) -> Change {
    Change::Dead { letter: letter(task, died_at), next: next.cloned(), was: task.state }
}

/// The change that files a task differently.
#[must_use]
pub fn refile(was: &Task, task: &Task) -> Change {
    Change::Refile { task: task.clone(), was: was.state }
}

/// A task postponed, and the change that does it.
#[must_use]
pub fn postpone(task: &Task, fire_at: Timestamp) -> (Task, Change) {
    let version = task.version.next();
    let change = Change::Postpone { id: task.id, fire_at, version };
    let task = Task { fire_at, nominal_at: fire_at, version, ..task.clone() };
    (task, change)
}

/// The same task, due at another time by retry: its fire stays the same.
#[must_use]
pub fn due_at(task: &Task, fire_at: Timestamp) -> Task {
    Task { fire_at, ..task.clone() }
}

/// The same task before its next fire.
#[must_use]
pub fn next_fire(task: &Task, nominal_at: Timestamp) -> Task {
    Task { fire_at: nominal_at, nominal_at, attempts: Vec::new(), ..task.clone() }
}

/// The same task in another state, one version on.
#[must_use]
pub fn in_state(task: &Task, state: TaskState) -> Task {
    Task { state, version: task.version.next(), ..task.clone() }
}
