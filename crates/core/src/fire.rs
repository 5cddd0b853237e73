//! Fires: one due moment of one task, and the record of how it ended.
//!
//! [`Task::fire`] is the current fire of a task. It is delivered in attempts, which are in
//! `attempt`. History keeps a [`FireRecord`] of each fire that has ended; `dead` has those without
//! success.

use std::time::Duration;

use bytes::Bytes;

use crate::attempt::{AttemptNo, AttemptRecord, Outcome};
use crate::dead::DeadReason;
use crate::{FireId, Labels, Namespace, Occasion, Task, TaskId, TaskKey, Timestamp};

/// One due moment of one task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fire {
    /// The same for every attempt.
    pub id: FireId,
    /// When the next attempt is due.
    pub fire_at: Timestamp,
}

impl Task {
    /// The current fire.
    #[must_use]
    pub fn fire(&self) -> Fire {
        let own = FireId { task: self.id, nominal_at: self.nominal_at };
        let id = self.origin().map_or(own, |origin| origin.fire_id);
        Fire { id, fire_at: self.fire_at }
    }
}

/// How a fire ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FireEnd {
    /// An attempt was acked.
    Done,
    /// The fire is a dead letter.
    Dead(DeadReason),
    /// The task was cancelled before the fire ended.
    Cancelled,
    /// The task was replaced, edited or moved before the fire ended.
    Replaced,
    /// A policy skipped the fire, and perhaps more after it.
    Skipped(Skipped),
}

/// How a fire ended, without the details.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EndKind {
    /// An attempt was acked.
    Done,
    /// The fire is a dead letter.
    Dead,
    /// The task was cancelled.
    Cancelled,
    /// The task was replaced, edited or moved.
    Replaced,
    /// A policy skipped the fire.
    Skipped,
}

impl EndKind {
    /// All kinds.
    pub const ALL: [Self; 5] =
        [Self::Done, Self::Dead, Self::Cancelled, Self::Replaced, Self::Skipped];
}

impl FireEnd {
    /// How the fire ended, without the details.
    #[must_use]
    pub const fn kind(self) -> EndKind {
        match self {
            Self::Done => EndKind::Done,
            Self::Dead(_) => EndKind::Dead,
            Self::Cancelled => EndKind::Cancelled,
            Self::Replaced => EndKind::Replaced,
            Self::Skipped(_) => EndKind::Skipped,
        }
    }
}

/// Fires that were skipped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Skipped {
    /// How many, including the fire of the record. For cron no more than
    /// [`SKIPS_COUNTED_MAX`](crate::SKIPS_COUNTED_MAX) are counted.
    pub fires: u32,
    /// The nominal time of the last of them.
    pub until: Timestamp,
    /// The policy that skipped them.
    pub why: SkipReason,
}

/// Why fires were skipped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SkipReason {
    /// They were missed, and the misfire policy skips them.
    Misfire,
    /// The previous fire had not ended, and the overlap policy skips them.
    Overlap,
    /// The task was paused.
    Paused,
}

/// What history keeps of a fire that has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FireRecord {
    /// The fire, and with it the task.
    pub fire_id: FireId,
    /// The task under which the fire was redriven, if its own task had continued without it.
    pub redriven_as: Option<TaskId>,
    /// The namespace of the task.
    pub namespace: Namespace,
    /// The key of the task that the fire belongs to.
    pub key: Option<TaskKey>,
    /// When the fire ended.
    pub ended_at: Timestamp,
    /// How the fire ended.
    pub end: FireEnd,
    /// The attempts in order; empty if none was made. Of very many the latest.
    pub attempts: Vec<AttemptRecord>,
    /// When the fire was due: its nominal time plus jitter.
    pub due_at: Timestamp,
    /// Why there was a fire.
    pub occasion: Occasion,
    /// The labels of the task when the fire ended.
    pub labels: Labels,
}

impl FireRecord {
    /// The record of the current fire of a task.
    #[must_use]
    pub fn of(task: &Task, end: FireEnd, ended_at: Timestamp) -> Self {
        let origin = task.origin();
        let key = origin.map_or(&task.definition.key, |origin| &origin.key);
        Self {
            fire_id: task.fire().id,
            redriven_as: origin.map(|_| task.id),
            namespace: task.definition.namespace.clone(),
            key: key.clone(),
            ended_at,
            end,
            attempts: task.attempts.clone(),
            due_at: task.due_at(),
            occasion: task.occasion,
            labels: task.definition.labels.clone(),
        }
    }

    /// The same as [`FireRecord::of`], but takes the attempts out of the task instead of copying
    /// them.
    #[must_use]
    pub fn of_ended(mut task: Task, end: FireEnd, ended_at: Timestamp) -> Self {
        let attempts = std::mem::take(&mut task.attempts);
        Self { attempts, ..Self::of(&task, end, ended_at) }
    }

    /// The task that ended with this record, or that the fire was a part of.
    #[must_use]
    pub fn task_id(&self) -> TaskId {
        self.redriven_as.unwrap_or(self.fire_id.task)
    }

    /// How late the first attempt was sent; `None` without an attempt, or if it is not kept.
    #[must_use]
    pub fn lag(&self) -> Option<Duration> {
        self.first_attempt().map(|first| first.fired_at.since(self.due_at))
    }

    /// The result that a worker sent with its ack.
    #[must_use]
    pub fn result(&self) -> Option<&Bytes> {
        let last = self.attempts.last().filter(|last| last.outcome == Outcome::Acked)?;
        let answer = last.answer.as_ref()?;
        answer.is_result().then(|| answer.body())
    }

    /// The first attempt, if one was made and is kept.
    #[must_use]
    pub fn first_attempt(&self) -> Option<&AttemptRecord> {
        self.attempts.first().filter(|first| first.number == AttemptNo::FIRST)
    }
}
