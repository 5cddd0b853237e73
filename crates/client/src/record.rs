//! What brokers answer about the past and the present of tasks: fires, dead letters, explanations,
//! counts, queues and workers.
//!
//! `wire/record.rs` makes them of their messages, and `namespace/reads.rs` returns them.

use std::time::Duration;

use bytes::Bytes;
use punctual_proto::v1;

use crate::{Error, FireId, Occasion, Task, TaskId, Timestamp};

/// How a fire ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FireEnd {
    /// An attempt was acked.
    Done,
    /// It is a dead letter.
    Dead,
    /// The task was cancelled.
    Cancelled,
    /// The task was replaced, edited or moved.
    Replaced,
    /// A misfire or overlap policy, or a pause, skipped it.
    Skipped,
}

/// One due moment of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct FireInfo {
    /// The same for all attempts.
    pub fire_id: FireId,
    /// The task that it belongs to.
    pub task: TaskId,
    /// The key of the task.
    pub key: Option<String>,
    /// Why there is a fire.
    pub occasion: Occasion,
    /// When the schedule made the fire due.
    pub fire_at: Timestamp,
    /// When the first attempt was sent; `None` if none was, or if it is no longer kept.
    pub fired_at: Option<Timestamp>,
    /// When the fire ended; `None` for the current fire of a task.
    pub ended_at: Option<Timestamp>,
    /// How much later than due the first attempt was sent.
    pub lag: Option<Duration>,
    /// How the fire ended; `None` for the current fire of a task.
    pub end: Option<FireEnd>,
    /// Why the fire is a dead letter: `exhausted`, `refused`, `expired` or `unknown`.
    pub reason: Option<String>,
    /// The fires that were skipped, beginning with this one.
    pub skipped: Option<SkippedTimes>,
    /// The JSON value that a worker sent with its ack; empty if it sent none.
    pub result: Bytes,
    /// Oldest first.
    pub attempts: Vec<Attempt>,
}

/// Fires in a row that were skipped.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SkippedTimes {
    /// How many.
    pub fires: u32,
    /// When the last of them was due.
    pub until: Timestamp,
    /// `misfire`, `overlap` or `paused`.
    pub reason: String,
}

/// One attempt to deliver a fire.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Attempt {
    /// Counts from 1.
    pub attempt: u32,
    /// When it was sent.
    pub at: Timestamp,
    /// How long it took until its outcome was known.
    pub duration: Duration,
    /// `acked`, `failed`, `refused` or `expired`.
    pub outcome: String,
    /// Why it was not a success.
    pub reason: Option<String>,
    /// The pause before the next attempt that the receiver asked for.
    pub retry_in: Option<Duration>,
    /// The HTTP status of the response of a webhook, or the status code of a gRPC method.
    pub status: Option<u16>,
    /// What is kept of the response of a webhook.
    pub answer: Option<WebhookAnswer>,
}

/// What is kept of the response of a webhook.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct WebhookAnswer {
    /// The media type; empty if the receiver sent none.
    pub content_type: String,
    /// The first bytes.
    pub body: Bytes,
    /// Whether the receiver sent more than is kept.
    pub truncated: bool,
}

/// A page of fires.
#[derive(Debug)]
#[non_exhaustive]
pub struct FirePage {
    /// Newest first.
    pub fires: Vec<FireInfo>,
    /// The cursor of the next page; `None` if this is the last one.
    pub next: Option<String>,
}

/// A fire that ended without success.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct DeadLetterInfo {
    /// Names the dead letter in redrive and delete.
    pub fire_id: FireId,
    /// `exhausted`, `refused`, `expired` or `unknown`.
    pub reason: String,
    /// When the fire became a dead letter.
    pub died_at: Timestamp,
    /// Oldest first.
    pub attempts: Vec<Attempt>,
    /// The task as it was when the fire died.
    pub task: Task,
}

/// A page of dead letters.
#[derive(Debug)]
#[non_exhaustive]
pub struct DeadLetters {
    /// In the order of their fire ids.
    pub dead: Vec<DeadLetterInfo>,
    /// The cursor of the next page; `None` if this is the last one.
    pub next: Option<String>,
}

/// The result of a redrive.
#[derive(Debug)]
#[non_exhaustive]
pub struct Redriven {
    /// How many were scheduled again.
    pub redriven: u64,
    /// Those that were not, and why.
    pub problems: Vec<(FireId, Error)>,
    /// Dead letters are left, because one call redrives a limited number. Call again.
    pub more: bool,
}

/// The dead letters of a namespace by group.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeadGroups {
    /// The largest groups first.
    pub groups: Vec<DeadGroup>,
    /// How many letters are in other groups.
    pub more: u64,
}

/// Dead letters with the same reason and target.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeadGroup {
    /// What the last attempt said, in few words: `status 503`, `timeout`, `refused`.
    pub reason: String,
    /// Scheme, host and port of a webhook, or `queue NAME`.
    pub target: String,
    /// How many letters there are.
    pub count: u64,
    /// When the first of them died.
    pub first_at: Timestamp,
    /// When the last of them died.
    pub last_at: Timestamp,
    /// The fire of one of them, if one is known.
    pub example: Option<FireId>,
}

/// Selects the dead letters of a group.
#[derive(Debug, Clone, PartialEq)]
#[must_use = "a filter does nothing until it is passed to a call"]
pub struct DeadGroupFilter(pub(crate) v1::DeadGroupFilter);

impl DeadGroupFilter {
    /// Letters with this reason.
    pub fn reason(reason: impl Into<String>) -> Self {
        Self(v1::DeadGroupFilter { reason: reason.into(), target: String::new() })
    }

    /// Letters with this target.
    pub fn target(target: impl Into<String>) -> Self {
        Self(v1::DeadGroupFilter { reason: String::new(), target: target.into() })
    }

    /// Of these, letters with this target.
    pub fn and_target(mut self, target: impl Into<String>) -> Self {
        self.0.target = target.into();
        self
    }
}

/// Why a task is in its state.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Explanation {
    /// One sentence for people.
    pub summary: String,
    /// `time`, `retry`, `worker`, `capacity`, `limit`, `pause`, `owner` or `nothing`.
    pub waiting_for: String,
    /// More sentences, each about one fact.
    pub details: Vec<String>,
    /// The task, as far as it is known.
    pub task: Task,
    /// The partition of the task.
    pub partition: u32,
    /// The address of the broker that owns the partition; `None` if none is known.
    pub owner: Option<String>,
    /// The epoch of the owner.
    pub epoch: Option<u32>,
    /// How often a watch was touched or edited; `None` for other tasks.
    pub touches: Option<u64>,
    /// When a watch was touched last.
    pub touched_at: Option<Timestamp>,
    /// The next fires if nothing changes, at most five.
    pub next: Vec<NextFire>,
    /// The last fires, newest first.
    pub fires: Vec<FireInfo>,
}

/// One future fire of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct NextFire {
    /// When it is due.
    pub fire_at: Timestamp,
    /// The same time in the time zone of the schedule.
    pub local: String,
    /// Why it is then, if not by the plain schedule.
    pub why: Option<String>,
}

/// The tasks of a namespace by state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Tasks that were ever accepted: the sum of all states.
    pub accepted: i64,
    /// Tasks that wait for their time, or for the next attempt.
    pub scheduled: i64,
    /// Tasks with an attempt in flight.
    pub firing: i64,
    /// Tasks that wait to be resumed.
    pub paused: i64,
    /// Tasks whose last fire succeeded.
    pub done: i64,
    /// Tasks whose last fire became a dead letter.
    pub dead: i64,
    /// Tasks that were cancelled.
    pub cancelled: i64,
    /// Dead letters that are retained.
    pub dead_letters: i64,
    /// Tasks that are due and wait to be sent.
    pub queued: u64,
    /// Lanes (targets) with due tasks that no worker takes.
    pub parked_lanes: u64,
    /// When the first task was due that was not sent yet.
    pub oldest_overdue: Option<Timestamp>,
}

/// Expected fires by step.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Forecast {
    /// When the first step begins.
    pub from: Timestamp,
    /// The length of a step.
    pub step: Duration,
    /// How many fires are expected in each step. Overdue fires are in the first.
    pub fires: Vec<u64>,
    /// Up to when every fire was counted; `None` if all were.
    pub complete_until: Option<Timestamp>,
    /// The fires of each target by step, if it was asked for: the targets with most fires first.
    pub targets: Vec<(String, Vec<u64>)>,
}

/// A queue that has due tasks, deliveries in flight or workers.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueInfo {
    /// The name of the queue.
    pub name: String,
    /// Due tasks that wait for a worker.
    pub waiting: u64,
    /// There are more than `waiting`, which were not counted.
    pub more: bool,
    /// Deliveries that workers have and have not settled.
    pub in_flight: u64,
    /// Workers that are connected.
    pub workers: u64,
    /// How long the first task is overdue that was not sent yet; zero if there is none.
    pub oldest_overdue: Duration,
}

/// A worker that is connected to a broker.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkerInfo {
    /// As it named itself.
    pub name: Option<String>,
    /// Where it connects from.
    pub address: Option<String>,
    /// The address of the broker.
    pub broker: String,
    /// The queues that it serves.
    pub queues: Vec<String>,
    /// Deliveries that it has and has not settled.
    pub in_flight: u64,
    /// On a stream: how many it may have. By polls: how many it waits for.
    pub credit: u64,
    /// Since when it is connected.
    pub since: Timestamp,
}

/// The lanes of a namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LaneList {
    /// By kind and target.
    pub lanes: Vec<LaneInfo>,
    /// Whether these are all. If not, those with the most waiting tasks are listed.
    pub complete: bool,
}

/// The deliveries of a namespace to one target.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LaneInfo {
    /// `http` for webhooks and gRPC methods, `queue`, `connection`, or `mail`.
    pub kind: String,
    /// Scheme, host and port of a webhook or a gRPC method, `queue NAME`, a connection and its
    /// place, or `mail`.
    pub target: String,
    /// The name of the connection.
    pub connection: Option<String>,
    /// `ready`, `full`, `slow`, `no_workers` or `away`.
    pub state: String,
    /// Since when there is no worker, or since when the connection is away.
    pub since: Option<Timestamp>,
    /// Due tasks that were not sent.
    pub waiting: u64,
    /// There are more than `waiting`, which were not counted.
    pub more: bool,
    /// Deliveries that were sent and whose outcome is not known.
    pub in_flight: u64,
    /// How many deliveries may be in flight at once.
    pub capacity: u64,
    /// How long the first task is overdue that was not sent yet; zero if there is none.
    pub oldest_overdue: Duration,
    /// Attempts that failed in the last 15 minutes, since the owner has the partition.
    pub failed: u64,
    /// The last of them.
    pub last_failure: Option<LaneFailure>,
}

/// The last failed attempt of a lane.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LaneFailure {
    /// When it ended.
    pub at: Timestamp,
    /// The error, or what the receiver answered.
    pub reason: String,
    /// The earliest time of the next attempt, if the receiver asked for a pause.
    pub retry_at: Option<Timestamp>,
}
