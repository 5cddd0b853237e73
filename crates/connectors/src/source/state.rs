//! What a source does at present, for operators and for metrics.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use punctual_core::{Clock, Namespace, Timestamp};

use crate::courier::{ConnectorEvent, Observer};

/// What a source does at present, for operators.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceState {
    /// The name of the source: its connection, and its table, queue, topic, subject or stream.
    pub name: String,
    /// The namespace of its tasks.
    pub namespace: String,
    /// When it last read, also without a row or a message.
    pub read_at: Option<Timestamp>,
    /// Rows or messages that this broker has applied.
    pub applied: u64,
    /// Rows or messages that this broker has moved aside.
    pub rejected: u64,
    /// How long the oldest of the last read had waited; zero if the system does not know.
    pub lag: Duration,
    /// Why it cannot go on at present.
    pub problem: Option<String>,
}

/// Keeps the state of a source, and tells the observer.
pub struct SourceStatus {
    state: Mutex<SourceState>,
    clock: Arc<dyn Clock>,
    observer: Observer,
}

impl fmt::Debug for SourceStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SourceStatus").field("state", &self.state()).finish_non_exhaustive()
    }
}

impl SourceStatus {
    /// The status of a source that has read nothing yet.
    #[must_use]
    pub fn new(
        name: String,
        namespace: &Namespace,
        clock: Arc<dyn Clock>,
        observer: Observer,
    ) -> Self {
        let state = SourceState {
            name,
            namespace: namespace.as_str().to_owned(),
            read_at: None,
            applied: 0,
            rejected: 0,
            lag: Duration::ZERO,
            problem: None,
        };
        Self { state: Mutex::new(state), clock, observer }
    }

    /// What it does at present.
    #[must_use]
    pub fn state(&self) -> SourceState {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn change(&self, change: impl FnOnce(&mut SourceState)) {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// It was read, perhaps without a row or a message. Returns the present time.
    pub(crate) fn read(&self) -> Timestamp {
        let now = self.clock.now();
        self.change(|state| state.read_at = Some(now));
        now
    }

    /// It was read without a problem.
    pub(crate) fn works(&self) {
        self.change(|state| state.problem = None);
    }

    /// It cannot be read. Logged if it is news.
    pub(crate) fn failed(&self, problem: String) {
        if self.state().problem.as_ref() != Some(&problem) {
            tracing::warn!(source = self.state().name, error = problem, "source not read");
        }
        self.change(|state| state.problem = Some(problem));
    }

    /// What came of those that were read. `refused` says why some stay.
    pub(crate) fn settled(
        &self,
        applied: usize,
        rejected: usize,
        lag: Duration,
        refused: Option<&str>,
    ) {
        self.change(|state| {
            state.applied += applied as u64;
            state.rejected += rejected as u64;
            state.lag = lag;
            state.problem = refused.map(str::to_owned);
        });
        let name = self.state().name;
        if applied + rejected > 0 {
            (self.observer)(ConnectorEvent::Taken { source: &name, applied, rejected, lag });
        }
        if rejected > 0 {
            tracing::warn!(source = name, rejected, "rejected and moved aside");
        }
        if let Some(why) = refused {
            tracing::debug!(source = name, error = why, "refused; applied again later");
        }
    }
}
