//! Failures: what a handler returns if it could not do its work.
//!
//! `worker/attempt.rs` makes a settlement of a [`Failure`]; the broker decides by the retry policy
//! of the task whether a further attempt follows.

use std::time::Duration;

/// Why a handler failed, and whether to retry.
///
/// `?` turns any error into a failure that is retried.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub(crate) reason: String,
    pub(crate) then: FailureAction,
}

/// What follows a failed attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FailureAction {
    /// A further attempt, after the pause of the task's retry policy.
    Retry,
    /// A further attempt, after this pause.
    RetryIn(Duration),
    /// No further attempt.
    Refuse,
}

impl Failure {
    /// Fails the attempt; it is retried according to the retry policy of the task.
    pub fn fail(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), then: FailureAction::Retry }
    }

    /// Refuses the fire; it is not retried and becomes a dead letter.
    pub fn refuse(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), then: FailureAction::Refuse }
    }

    /// Fails the attempt; it is retried after this pause instead of that of the policy.
    #[must_use]
    pub fn retry_in(mut self, pause: Duration) -> Self {
        self.then = FailureAction::RetryIn(pause);
        self
    }
}

/// `Failure` itself is no error, because then this conversion of all errors would not be possible.
impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Self {
        let sources = std::iter::successors(error.source(), |error| error.source());
        Self::fail(sources.fold(error.to_string(), |reason, source| format!("{reason}: {source}")))
    }
}
