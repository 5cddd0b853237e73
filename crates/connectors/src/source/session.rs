//! The seam between the reader of messages and a system that has them.

use std::fmt;
use std::time::Duration;

use super::message::SourceMessage;
use crate::sink::{DynFuture, SessionLost};

/// Opens sessions with a system that has messages.
pub trait MessageSource: fmt::Debug + Send + Sync {
    /// Opens a session, and makes what it needs (a group, a consumer, a subscription). Contract:
    /// the error says what failed without any secret.
    fn open(&self) -> DynFuture<'_, Result<Box<dyn MessageSession>, String>>;
}

/// A session with a system that has messages.
pub trait MessageSession: Send {
    /// Takes messages, in the order of the system.
    ///
    /// Contract: at most as many as `bound` says, and none after its bytes are reached; waits at
    /// most its time for the first. A message that was taken is not taken again in this session,
    /// unless the system gives it again after a time; [`hold`](Self::hold) puts that off.
    fn take(&mut self, bound: TakeBound) -> DynFuture<'_, Result<Vec<SourceMessage>, SessionLost>>;

    /// Settles messages that were taken. Contract: a rejected message is confirmed at its
    /// dead-letter place before it is confirmed here. Returns when the system has what it needs so
    /// as not to give the messages again, or an error if that is not known.
    fn settle<'a>(
        &'a mut self,
        ends: &'a [(SourceMessage, MessageEnd)],
    ) -> DynFuture<'a, Result<(), SessionLost>>;

    /// Keeps messages that were taken and cannot be settled yet.
    fn hold<'a>(
        &'a mut self,
        messages: &'a [SourceMessage],
    ) -> DynFuture<'a, Result<(), SessionLost>>;

    /// Ends the session. Messages that are not settled are given again, to any reader.
    fn close(self: Box<Self>) -> DynFuture<'static, ()>;
}

/// How much is taken at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TakeBound {
    /// The most messages.
    pub messages: usize,
    /// When the messages have this many bytes, no further one is added.
    pub bytes: usize,
    /// How long to wait for the first.
    pub wait: Duration,
}

/// What came of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MessageEnd {
    /// Its command is durable.
    Done,
    /// It will never be applied; the text is a problem document.
    Rejected(String),
}
