//! Attempts: the tries to deliver a fire, and what came of them.
//!
//! A courier reports the [`Outcome`] of each attempt and what the receiver answered, and `settle`
//! decides what follows from the outcome. A task keeps an [`AttemptRecord`] of each attempt of its
//! current fire.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::Timestamp;
use crate::limits::{ANSWER_BYTES_MAX, CONTENT_TYPE_BYTES_MAX, REASON_BYTES_MAX};

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

/// What a receiver answered: the response of a webhook, or the result that a worker sent with its
/// ack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    status: Option<u16>,
    content_type: Box<str>,
    body: Bytes,
    truncated: bool,
}

impl Answer {
    /// The response of a webhook. Keeps the first `bytes_max` bytes of the body, at most
    /// [`ANSWER_BYTES_MAX`]. A content type that is too long is left out. `complete` is false if
    /// the body has more bytes than were read.
    #[must_use]
    pub fn of_response(
        status: u16,
        content_type: &str,
        body: &[u8],
        complete: bool,
        bytes_max: usize,
    ) -> Self {
        let kept = body.len().min(bytes_max).min(ANSWER_BYTES_MAX);
        let fits = content_type.len() <= CONTENT_TYPE_BYTES_MAX;
        Self {
            status: Some(status),
            content_type: if fits { content_type.into() } else { Box::default() },
            body: Bytes::copy_from_slice(&body[..kept]),
            truncated: !complete || kept < body.len(),
        }
    }

    /// The result that a worker sent with its ack: a JSON value of at most
    /// [`RESULT_BYTES_MAX`](crate::RESULT_BYTES_MAX) bytes.
    #[must_use]
    pub fn of_worker(result: Bytes) -> Self {
        let content_type = "application/json".into();
        Self { status: None, content_type, body: result, truncated: false }
    }

    /// Whether this is the result that a worker sent, and not the response of a receiver. A webhook
    /// responds with a status, and other receivers with text.
    #[must_use]
    pub fn is_result(&self) -> bool {
        self.status.is_none() && &*self.content_type == "application/json"
    }

    /// An answer that was stored.
    #[must_use]
    pub fn from_stored(
        status: Option<u16>,
        content_type: &str,
        body: &[u8],
        truncated: bool,
    ) -> Self {
        let body = Bytes::copy_from_slice(body);
        Self { status, content_type: content_type.into(), body, truncated }
    }

    /// The status of the response; `None` for the result of a worker.
    #[must_use]
    pub const fn status(&self) -> Option<u16> {
        self.status
    }

    /// The media type as the receiver sent it; empty if it sent none, or a very long one.
    #[must_use]
    pub fn content_type(&self) -> &str {
        &self.content_type
    }

    /// The bytes that are kept.
    #[must_use]
    pub const fn body(&self) -> &Bytes {
        &self.body
    }

    /// Whether the receiver sent more than is kept.
    #[must_use]
    pub const fn is_truncated(&self) -> bool {
        self.truncated
    }

    /// The answer without its body.
    #[must_use]
    pub(crate) fn without_body(&self) -> Self {
        let truncated = self.truncated || !self.body.is_empty();
        Self { body: Bytes::new(), truncated, ..self.clone() }
    }
}

/// What a courier knows when an attempt has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttemptResult {
    /// What came of the attempt.
    pub outcome: Outcome,
    /// What the receiver answered, if it answered and answers are kept. Boxed, because most
    /// attempts of workers have none.
    pub answer: Option<Box<Answer>>,
}

impl From<Outcome> for AttemptResult {
    fn from(outcome: Outcome) -> Self {
        Self { outcome, answer: None }
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
    /// What the receiver answered, if it answered and answers are kept.
    pub answer: Option<Box<Answer>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_keeps_the_first_bytes_and_says_whether_there_were_more() {
        for (body, complete, bytes_max, kept, truncated) in [
            ("boom: db locked", true, 1024, "boom: db locked", false),
            ("boom: db locked", true, 4, "boom", true),
            ("boom", false, 1024, "boom", true),
            ("boom", true, 0, "", true),
            ("", true, 0, "", false),
        ] {
            let answer =
                Answer::of_response(500, "text/plain", body.as_bytes(), complete, bytes_max);
            assert_eq!((&answer.body()[..], answer.is_truncated()), (kept.as_bytes(), truncated));
        }
        let large = vec![b'x'; 20_000];
        let answer = Answer::of_response(200, &"t".repeat(129), &large, true, usize::MAX);
        assert_eq!((answer.body().len(), answer.content_type()), (ANSWER_BYTES_MAX, ""));
    }

    #[test]
    fn a_reason_is_one_line_within_its_limit() {
        assert_eq!(Reason::new("HTTP 500").as_str(), "HTTP 500");
        assert_eq!(Reason::new("a\r\nb\u{1b}[31m").as_str(), "a  b [31m");
        assert_eq!(Reason::new(&"ä".repeat(400)).as_str(), "ä".repeat(256));
        assert_eq!(Reason::new(&format!("x{}", "ä".repeat(400))).as_str().len(), 511);
    }
}
