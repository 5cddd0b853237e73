//! The seam between the courier of sinks and a system that takes deliveries.
//!
//! A [`Sink`] opens sessions with the other side of one connection. A [`SinkSession`] sends a batch
//! of deliveries and says what came of each. All that kinds of systems have in common (permits,
//! deadlines, fairness, reconnecting, reports) is in `courier`, so a kind is one file or folder.

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use punctual_core::{Answer, AttemptResult, Guarantee, Outcome, Reason};
use punctual_engine::Delivery;

/// A future of a trait object.
pub type DynFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Opens sessions with the other side of one connection.
pub trait Sink: fmt::Debug + Send + Sync {
    /// Opens a session. Contract: returns within the time that the connection has for connecting,
    /// and the error says what failed without any secret.
    fn connect(&self) -> DynFuture<'_, Result<Box<dyn SinkSession>, String>>;
}

/// A session with the other side of a connection.
pub trait SinkSession: Send {
    /// Sends deliveries of one namespace to one place and returns their results in order.
    ///
    /// Contract: every permit was taken; nothing is sent twice within one call unless it certainly
    /// had no effect. [`Outcome::Acked`] means that the other side has confirmed; a refusal means
    /// that it never will. If the outcome of a delivery is unknown, its result is that of
    /// `unknown`. Dropping the future gives the session up; the caller then drops the session.
    fn send<'a>(&'a mut self, batch: &'a [Delivery]) -> DynFuture<'a, SendResult>;

    /// Whether the other side still answers. Called while the session has nothing to do.
    fn check(&mut self) -> DynFuture<'_, Result<(), SessionLost>>;
}

/// What came of a batch.
#[derive(Debug)]
pub struct SendResult {
    /// The result of each delivery, in order. `None` if it certainly had no effect because its
    /// lease ended meanwhile: it counts as not sent.
    pub results: Vec<Option<AttemptResult>>,
    /// Set if the session is of no use any more.
    pub lost: Option<SessionLost>,
}

/// Why a session is of no use any more.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SessionLost(pub String);

/// The result of a delivery that the other side has confirmed.
pub(crate) fn confirmed(text: &str, bytes_max: usize) -> AttemptResult {
    AttemptResult { outcome: Outcome::Acked, answer: answer(text, bytes_max) }
}

/// The result of a delivery that had no effect, and may have one later.
pub(crate) fn failed(reason: &str) -> AttemptResult {
    Outcome::Failed { reason: Reason::new(reason), retry_in: None }.into()
}

/// The result of a delivery that the other side will never take.
pub(crate) fn refused(reason: &str) -> AttemptResult {
    Outcome::Refused { reason: Reason::new(reason) }.into()
}

/// The result of a delivery that may have had its effect. At most once it is not sent again.
pub(crate) fn unknown(guarantee: Guarantee, reason: &str) -> AttemptResult {
    match guarantee {
        Guarantee::AtMostOnce => Outcome::Expired.into(),
        Guarantee::AtLeastOnce | Guarantee::ExactlyOnce => failed(reason),
    }
}

/// The answer of the other side, as the record of the fire keeps it.
fn answer(text: &str, bytes_max: usize) -> Option<Box<Answer>> {
    let kept = &text[..text.floor_char_boundary(bytes_max)];
    let truncated = kept.len() < text.len();
    let answer = Answer::from_stored(None, "text/plain", kept.as_bytes(), truncated);
    (bytes_max > 0).then(|| Box::new(answer))
}
