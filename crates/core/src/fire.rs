//! Fires: one due moment of one task, its attempts, and the record of how it ended.
//!
//! A courier reports the [`Outcome`] of each attempt, and `settle` decides what follows from it.
//! History keeps a [`FireRecord`] of each fire that has ended; `dead` has those without success.

use std::sync::Arc;
use std::time::Duration;

use crate::dead::DeadReason;
use crate::limits::REASON_BYTES_MAX;
use crate::{FireId, Namespace, Task, TaskKey, Timestamp};

/// One due moment of one task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fire {
    /// The same for every attempt.
    pub id: FireId,
    /// When the next attempt is due.
    pub fire_at: Timestamp,
}

/// The number of an attempt of a fire, from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttemptNo(u16);

impl AttemptNo {
    /// The first attempt.
    pub const FIRST: Self = Self(1);

    /// Makes an attempt number.
    #[must_use]
    pub const fn new(number: u16) -> Self {
        Self(number)
    }

    /// The number, from 1.
    #[must_use]
    pub const fn get(self) -> u16 {
        self.0
    }
}

/// What a courier reports of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The receiver has done its work.
    Acked,
    /// The attempt failed and may be retried.
    Failed {
        /// The error, or what the receiver answered.
        reason: Reason,
        /// The pause before the next attempt, if the receiver asked for one.
        retry_in: Option<Duration>,
    },
    /// The receiver wants no further attempt.
    Refused {
        /// What the receiver answered.
        reason: Reason,
    },
    /// No answer came in time, so it is not known whether the receiver has done its work.
    Expired,
}

/// An error text or a receiver's answer: one line of at most [`REASON_BYTES_MAX`] bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reason(Arc<str>);

impl Reason {
    /// Cuts a text to the limit and replaces control characters by blanks.
    #[must_use]
    pub fn new(text: &str) -> Self {
        let mut end = text.len().min(REASON_BYTES_MAX);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let text = &text[..end];
        if text.chars().any(char::is_control) {
            return Self(text.replace(char::is_control, " ").into());
        }
        Self(text.into())
    }

    /// The reason as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// One attempt that has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttemptRecord {
    /// When it was sent.
    pub fired_at: Timestamp,
    /// When its outcome was known.
    pub ended_at: Timestamp,
    /// What the courier reported.
    pub outcome: Outcome,
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
    /// The namespace of the task.
    pub namespace: Namespace,
    /// The key of the task.
    pub key: Option<TaskKey>,
    /// When the fire ended.
    pub ended_at: Timestamp,
    /// How the fire ended.
    pub end: FireEnd,
    /// The attempts in order; empty if none was made.
    pub attempts: Vec<AttemptRecord>,
    /// When the fire was due: its nominal time plus jitter.
    pub due_at: Timestamp,
}

impl FireRecord {
    /// The record of the current fire of a task.
    #[must_use]
    pub fn of(task: &Task, end: FireEnd, ended_at: Timestamp) -> Self {
        Self {
            fire_id: task.fire().id,
            namespace: task.definition.namespace.clone(),
            key: task.definition.key.clone(),
            ended_at,
            end,
            attempts: task.attempts.clone(),
            due_at: task.due_at(),
        }
    }

    /// The same as [`FireRecord::of`], but takes the attempts out of the task instead of copying
    /// them.
    #[must_use]
    pub fn of_ended(mut task: Task, end: FireEnd, ended_at: Timestamp) -> Self {
        let attempts = std::mem::take(&mut task.attempts);
        Self { attempts, ..Self::of(&task, end, ended_at) }
    }

    /// How late the first attempt was sent; `None` without an attempt.
    #[must_use]
    pub fn lag(&self) -> Option<Duration> {
        self.attempts.first().map(|first| first.fired_at.since(self.due_at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_one_line_within_its_limit() {
        assert_eq!(Reason::new("HTTP 500").as_str(), "HTTP 500");
        assert_eq!(Reason::new("a\r\nb\u{1b}[31m").as_str(), "a  b [31m");
        assert_eq!(Reason::new(&"ä".repeat(400)).as_str(), "ä".repeat(256));
        assert_eq!(Reason::new(&format!("x{}", "ä".repeat(400))).as_str().len(), 511);
    }
}
