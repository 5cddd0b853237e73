//! Attempts: the tries to deliver a fire, and what came of them.
//!
//! A courier reports the [`Outcome`] of each attempt, and `settle` decides what follows from it. A
//! task keeps an [`AttemptRecord`] of each attempt of its current fire.

use std::sync::Arc;
use std::time::Duration;

use crate::Timestamp;
use crate::limits::REASON_BYTES_MAX;

/// The number of an attempt of a fire, from 1. No number is used twice, also after a redrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttemptNo(u32);

impl AttemptNo {
    /// The first attempt.
    pub const FIRST: Self = Self(1);

    /// Makes an attempt number.
    #[must_use]
    pub const fn new(number: u32) -> Self {
        Self(number)
    }

    /// The number, from 1.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The number of the attempt after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
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
    /// Records of one fire have numbers without gaps.
    pub number: AttemptNo,
    /// When it was sent.
    pub fired_at: Timestamp,
    /// When its outcome was known.
    pub ended_at: Timestamp,
    /// What the courier reported.
    pub outcome: Outcome,
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
