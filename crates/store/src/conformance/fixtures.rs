//! Fixtures: names, times, tasks and changes for tests of stores and of their users.
//!
//! A test states the fields that matter to it; the others have plain defaults.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use punctual_core::{
    Answer, AnswerRules, AttemptNo, AttemptRecord, Backoff, BrokerId, Callbacks, Cron, DeadLetter,
    DeadReason, Dst, Due, Epoch, ExpectedValue, FireEnd, FireId, FireRecord, Guarantee, HttpTarget,
    Jitter, Labels, Method, Namespace, NewTask, Outcome, PartitionId, Payload, Queue, Reason,
    RetryPolicy, Schedule, Sequence, Target, Task, TaskId, TaskKey, TaskState, Timestamp, Version,
    Zone,
};

use crate::change::{Change, Prior};

/// The current time in the tests.
pub const NOW: Timestamp = Timestamp::from_millis(1_700_000_000_000);

/// The duration of a lease, unless a test needs another one.
pub const TTL: Duration = Duration::from_secs(10);

/// Returns the time some seconds after [`NOW`].
#[must_use]
pub fn at(seconds: u64) -> Timestamp {
    NOW.after(Duration::from_secs(seconds))
}

/// Returns the partition with a number.
#[must_use]
pub fn partition(number: u16) -> PartitionId {
    PartitionId::new(number).expect("tests use few partitions")
}

/// Returns the epoch with a number.
#[must_use]
pub fn epoch(number: u32) -> Epoch {
    Epoch::new(number).expect("tests use few epochs")
}

/// Returns the broker with a name.
#[must_use]
pub fn broker(name: &str) -> BrokerId {
    BrokerId::new(name)
}

/// Returns the namespace with a name.
#[must_use]
pub fn namespace(name: &str) -> Namespace {
    Namespace::new(name).expect("tests use valid names")
}

/// Returns the default namespace.
#[must_use]
pub fn shop() -> Namespace {
    namespace("shop")
}

/// Returns the key with this text.
#[must_use]
pub fn key(text: &str) -> TaskKey {
    TaskKey::new(text).expect("tests use valid keys")
}

/// Returns the id of the `number`th task that the owner of `epoch` creates.
#[must_use]
pub fn id(due: Timestamp, partition: PartitionId, epoch: Epoch, number: u64) -> TaskId {
    let sequence = Sequence::new(number).expect("tests make few tasks");
    TaskId::new(due, partition, epoch, sequence)
}

/// Starts a task: scheduled, without a key, small, due at the time in its id.
#[must_use]
pub fn task(id: TaskId) -> TaskBuilder {
    let target = Target::Queue(Queue::new("orders").expect("a valid queue"));
    let definition = NewTask::new(shop(), Schedule::Once(Due::At(id.due())), target);
    let task = Task::new(id, Arc::new(definition.clone()), NOW, Version::FIRST);
    TaskBuilder { task, definition }
}

/// Builds a task.
#[derive(Debug, Clone)]
pub struct TaskBuilder {
    task: Task,
    definition: NewTask,
}

impl TaskBuilder {
    /// Sets another namespace than [`shop`].
    #[must_use]
    pub fn namespace(mut self, name: &str) -> Self {
        self.definition.namespace = namespace(name);
        self
    }

    /// Sets the key.
    #[must_use]
    pub fn key(mut self, text: &str) -> Self {
        self.definition.key = Some(key(text));
        self
    }

    /// Adds a label.
    #[must_use]
    pub fn label(mut self, name: &str, value: &str) -> Self {
        let labels = self.definition.labels.iter();
        let mut labels: BTreeMap<String, String> =
            labels.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        labels.insert(name.to_owned(), value.to_owned());
        self.definition.labels = Labels::new(labels).expect("tests use valid labels");
        self
    }

    /// Sets the payload.
    #[must_use]
    pub fn payload(mut self, payload: Payload) -> Self {
        self.definition.payload = payload;
        self
    }

    /// Sets the schedule.
    #[must_use]
    pub fn schedule(mut self, schedule: Schedule) -> Self {
        self.definition.schedule = schedule;
        self
    }

    /// Changes other fields of the definition.
    #[must_use]
    pub fn define(mut self, change: impl FnOnce(&mut NewTask)) -> Self {
        change(&mut self.definition);
        self
    }

    /// Pauses the task.
    #[must_use]
    pub const fn paused(mut self) -> Self {
        self.task.state = TaskState::Paused;
        self
    }

    /// Returns the task.
    #[must_use]
    pub fn build(self) -> Task {
        Task { definition: Arc::new(self.definition), ..self.task }
    }

    /// Returns the change that stores the task.
    #[must_use]
    pub fn put(self) -> Change {
        Change::Put(self.build())
    }
}

/// Returns a task with every field set, most of them to the limit of what is allowed. Golden files
/// hold its bytes: add new fields elsewhere.
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
        updated_at: Timestamp::from_millis(1),
        fire_at: built.fire_at.after(Duration::from_millis(17)),
        version: Version::new(u64::MAX),
        attempts: attempts(),
        resumes_at: Some(at(77)),
        ..built
    }
}

/// Returns the attempts of [`attempts`] with answers of each form.
#[must_use]
pub fn answered_attempts() -> Vec<AttemptRecord> {
    let mut attempts = attempts();
    for (attempt, answer) in [
        (0, Answer::of_response(503, "text/plain", b"boom: db locked", true, 1024)),
        (1, Answer::of_response(429, "", &[0, 255, 10], false, 1024)),
        (4, Answer::of_worker(Bytes::from_static(br#"{"cost":17}"#))),
    ] {
        attempts[attempt].answer = Some(Box::new(answer));
    }
    attempts
}

/// Returns a task with the fields that [`rich_task`] does not set: answers, answer rules,
/// callbacks, the fire of a callback, and the time of a change.
#[must_use]
pub fn answered_task(id: TaskId) -> Task {
    let json = vec![ExpectedValue { pointer: "/errcode".to_owned(), value: "0".to_owned() }];
    let rules = AnswerRules::new(vec![200, 204], json, vec![400, 404]).expect("valid rules");
    let webhook = HttpTarget::new("https://example.org/robot", Method::Post, vec![])
        .expect("a valid webhook")
        .with_rules(rules);
    let queue = Target::Queue(Queue::new("ends").expect("a valid queue"));
    let built = task(id)
        .key("robot")
        .label("zone", "eu west")
        .define(|definition| {
            definition.callbacks = Callbacks::new(Some(queue), Some(Target::Http(webhook.clone())));
            definition.callback_of = Some(FireId { task: id, nominal_at: at(7) });
            definition.target = Target::Http(webhook);
        })
        .build();
    Task { updated_at: at(5), attempts: answered_attempts(), ..built }
}

/// Returns one attempt of each outcome.
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
            number: AttemptNo::new(u32::try_from(second + 1).expect("a few")),
            fired_at: at(second),
            ended_at: at(second + 1),
            outcome,
            answer: None,
        })
        .collect()
}

/// Returns the change that ends a task.
#[must_use]
pub fn settle(task: &Task, end: FireEnd, ended_at: Timestamp) -> Change {
    Change::Settle { record: FireRecord::of(task, end, ended_at), next: None, was: Prior::of(task) }
}

/// Returns the change that ends a fire of a task that continues as `next`.
#[must_use]
pub fn settle_with_next(task: &Task, ended_at: Timestamp, next: &Task) -> Change {
    Change::Settle {
        record: FireRecord::of(task, FireEnd::Done, ended_at),
        next: Some(Box::new(next.clone())),
        was: Prior::of(task),
    }
}

/// Returns the dead letter of the current fire of a task.
#[must_use]
pub fn letter(task: &Task, died_at: Timestamp) -> DeadLetter {
    DeadLetter { task: task.clone(), died_at, reason: DeadReason::Exhausted }
}

/// Returns the change that makes a dead letter of the current fire; the task continues as `next`,
/// if given.
#[must_use]
pub fn die(task: &Task, died_at: Timestamp, next: Option<&Task>) -> Change {
    Change::Dead {
        letter: letter(task, died_at),
        next: next.cloned().map(Box::new),
        was: Prior::of(task),
    }
}

/// Returns the change that replaces a task.
#[must_use]
pub fn refile(was: &Task, task: &Task) -> Change {
    Change::Refile { task: task.clone(), was: Prior::of(was) }
}

/// Returns a task postponed to `fire_at`, and the change that does it.
#[must_use]
pub fn postpone(task: &Task, fire_at: Timestamp) -> (Task, Change) {
    let version = task.version.next();
    let updated_at = NOW;
    let (namespace, was) = (task.definition.namespace.clone(), Prior::of(task));
    let change = Change::Postpone { id: task.id, namespace, fire_at, version, updated_at, was };
    let task = Task { fire_at, nominal_at: fire_at, version, updated_at, ..task.clone() };
    (task, change)
}

/// Returns the schedule of a task that is due every minute.
#[must_use]
pub fn every_minute() -> Schedule {
    let cron = Cron::new("* * * * *", Zone::utc(), Dst::default()).expect("a valid expression");
    Schedule::Cron { cron: Arc::new(cron), series: Arc::default() }
}

/// Returns the task due at another time after a retry: its fire stays the same.
#[must_use]
pub fn due_at(task: &Task, fire_at: Timestamp) -> Task {
    Task { fire_at, ..task.clone() }
}

/// Returns the task before its next fire.
#[must_use]
pub fn next_fire(task: &Task, nominal_at: Timestamp) -> Task {
    let (attempts, redrive) = (Vec::new(), None);
    Task { fire_at: nominal_at, nominal_at, attempts, redrive, ..task.clone() }
}

/// Returns the task in another state, with the next version.
#[must_use]
pub fn in_state(task: &Task, state: TaskState) -> Task {
    Task { state, version: task.version.next(), ..task.clone() }
}
