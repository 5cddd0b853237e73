//! Fires: one due moment of one task, the attempts to get it done, and the record of how it ended.
//!
//! In: a task whose time has come. Out: what a courier reports of each attempt, and what history keeps.
//! Not here: what follows from an outcome (`settle`), fires that came to nothing (`dead`).

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
    /// When this attempt of it is due.
    pub fire_at: Timestamp,
}

/// Which try of a fire, from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttemptNo(u16);

impl AttemptNo {
    /// The first.
    pub const FIRST: Self = Self(1);

    /// By its number.
    #[must_use]
    pub const fn new(number: u16) -> Self {
        Self(number)
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u16 {
        self.0
    }
}

/// What a courier reports of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Done.
    Acked,
    /// Not done; worth another try.
    Failed {
        /// Why.
        reason: Reason,
        /// When the receiver wants to be asked again, if it said.
        retry_in: Option<Duration>,
    },
    /// Never to be tried again.
    Refused {
        /// Why.
        reason: Reason,
    },
    /// No answer in time: whether it was done is not known.
    Expired,
}

/// A receiver's words or an error's, cut to what is worth keeping.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reason(Arc<str>);

impl Reason {
    /// Keeps the beginning of a text, in one line.
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

    /// The words.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// One attempt, as it went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttemptRecord {
    /// When it was sent.
    pub fired_at: Timestamp,
    /// When its outcome was known.
    pub ended_at: Timestamp,
    /// What came of it.
    pub outcome: Outcome,
}

/// How a fire ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FireEnd {
    /// An attempt was acked.
    Done,
    /// It is a dead letter.
    Dead(DeadReason),
    /// The task was cancelled before it.
    Cancelled,
    /// The task was replaced under its key, edited or moved before it.
    Replaced,
    /// A policy left it out, perhaps with some after it.
    Skipped(Skipped),
}

/// Fires that were left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Skipped {
    /// How many, the one of the record included; see [`SKIPS_COUNTED_MAX`](crate::SKIPS_COUNTED_MAX).
    pub fires: u32,
    /// The nominal time of the last of them.
    pub until: Timestamp,
    /// Why.
    pub why: SkipReason,
}

/// Why fires were left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SkipReason {
    /// They were missed, and `misfire` says so.
    Misfire,
    /// The one before was not over, and `overlap` says so.
    Overlap,
    /// The task was paused.
    Paused,
}

/// What history keeps of a fire; the record that settles it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FireRecord {
    /// Which.
    pub fire_id: FireId,
    /// Whose.
    pub namespace: Namespace,
    /// The task's name, if it has one.
    pub key: Option<TaskKey>,
    /// When it ended.
    pub ended_at: Timestamp,
    /// How.
    pub end: FireEnd,
    /// The attempts made, in order. None if it never came to one.
    pub attempts: Vec<AttemptRecord>,
    /// When it was due: its nominal time, and what jitter added.
    pub due_at: Timestamp,
}

impl FireRecord {
    /// The record of a task's present fire that ends now.
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

    /// The same, with the attempts of a task that nobody needs any more.
    #[must_use]
    pub fn of_ended(mut task: Task, end: FireEnd, ended_at: Timestamp) -> Self {
        let attempts = std::mem::take(&mut task.attempts);
        Self { attempts, ..Self::of(&task, end, ended_at) }
    }

    /// How late the first attempt was, if there was one.
    #[must_use]
    pub fn lag(&self) -> Option<Duration> {
        self.attempts.first().map(|first| first.fired_at.since(self.due_at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_one_short_line() {
        assert_eq!(Reason::new("HTTP 500").as_str(), "HTTP 500");
        assert_eq!(Reason::new("a\r\nb\u{1b}[31m").as_str(), "a  b [31m");
        assert_eq!(Reason::new(&"ä".repeat(400)).as_str(), "ä".repeat(256));
        assert_eq!(Reason::new(&format!("x{}", "ä".repeat(400))).as_str().len(), 511);
    }
}
