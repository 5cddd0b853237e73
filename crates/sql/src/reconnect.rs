//! Keeps one connection open, and opens the next one after growing pauses.
//!
//! A caller takes the connection, uses it, and gives it back by [`Reconnecting::lost`] if it broke.
//! Callers that arrive while a connection is being opened wait for it.

use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::error::SqlError;

/// The pauses before attempts to connect: none, then growing, never more than a bound.
#[derive(Debug, Clone, Copy, Default)]
pub struct Pauses {
    failures: u32,
}

impl Pauses {
    /// The pause after the first failure.
    const FIRST: Duration = Duration::from_millis(20);
    /// The longest pause: a database that is back is noticed within it.
    pub const LONGEST: Duration = Duration::from_secs(1);

    /// Returns the pause before the next attempt.
    #[must_use]
    pub fn current(self) -> Duration {
        match self.failures {
            0 => Duration::ZERO,
            failures => Self::FIRST.saturating_mul(1 << (failures - 1).min(10)).min(Self::LONGEST),
        }
    }

    /// Notes a failed attempt.
    pub const fn failed(&mut self) {
        self.failures = self.failures.saturating_add(1);
    }

    /// Notes a successful attempt: the next pause is none.
    pub const fn succeeded(&mut self) {
        self.failures = 0;
    }
}

/// One connection that is opened when it is needed.
///
/// It is opened by a task of its own: a caller that gives up, because its own deadline is shorter
/// than a pause or a handshake, does not begin them anew.
#[derive(Debug)]
pub struct Reconnecting<C> {
    shared: Arc<Shared<C>>,
}

#[derive(Debug)]
struct Shared<C> {
    state: Mutex<State<C>>,
    /// Wakes the callers when an attempt has ended.
    attempted: Notify,
}

#[derive(Debug)]
struct State<C> {
    open: Option<Arc<C>>,
    connecting: bool,
    last_error: Option<SqlError>,
    pauses: Pauses,
}

impl<C> Shared<C> {
    /// A panic cannot leave this state half-written.
    fn state(&self) -> MutexGuard<'_, State<C>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends an attempt, also if its task ends without a result.
struct ConnectAttempt<C>(Arc<Shared<C>>);

impl<C> Drop for ConnectAttempt<C> {
    fn drop(&mut self) {
        self.0.state().connecting = false;
        self.0.attempted.notify_waiters();
    }
}

impl<C> Default for Reconnecting<C> {
    fn default() -> Self {
        let (open, last_error) = (None, None);
        let state = State { open, connecting: false, last_error, pauses: Pauses::default() };
        let shared = Shared { state: Mutex::new(state), attempted: Notify::new() };
        Self { shared: Arc::new(shared) }
    }
}

impl<C: Send + Sync + 'static> Reconnecting<C> {
    /// Returns the open connection, or opens one with `connect`, after a pause if the last attempt
    /// failed. Callers that arrive during an attempt share its result.
    pub async fn get<F>(&self, connect: impl FnOnce() -> F) -> Result<Arc<C>, SqlError>
    where
        F: Future<Output = Result<C, SqlError>> + Send + 'static,
    {
        let attempted = self.shared.attempted.notified();
        tokio::pin!(attempted);
        attempted.as_mut().enable();
        {
            let mut state = self.shared.state();
            if let Some(open) = &state.open {
                return Ok(Arc::clone(open));
            }
            if !state.connecting {
                state.connecting = true;
                let attempt = ConnectAttempt(Arc::clone(&self.shared));
                tokio::spawn(attempt.run(state.pauses.current(), connect()));
            }
        }
        attempted.await;
        let state = self.shared.state();
        match (&state.open, &state.last_error) {
            (Some(open), _) => Ok(Arc::clone(open)),
            (None, Some(error)) => Err(error.clone()),
            (None, None) => Err(SqlError::Unexpected("connecting ended early".to_owned())),
        }
    }

    /// Forgets a connection that broke, unless a newer one has replaced it.
    pub fn lost(&self, connection: &Arc<C>) {
        let mut state = self.shared.state();
        if state.open.as_ref().is_some_and(|open| Arc::ptr_eq(open, connection)) {
            state.open = None;
        }
    }
}

impl<C> ConnectAttempt<C> {
    async fn run(self, pause: Duration, connect: impl Future<Output = Result<C, SqlError>>) {
        if !pause.is_zero() {
            // An await that never completes, bounded by the pause.
            let _ = tokio::time::timeout(pause, std::future::pending::<()>()).await;
        }
        let connected = connect.await;
        let mut state = self.0.state();
        match connected {
            Ok(connection) => {
                state.pauses.succeeded();
                state.open = Some(Arc::new(connection));
            }
            Err(error) => {
                state.pauses.failed();
                state.last_error = Some(error);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn callers_that_give_up_do_not_delay_the_connection() {
        let kept: Reconnecting<u32> = Reconnecting::default();
        let slow = || async {
            let _ =
                tokio::time::timeout(Duration::from_millis(60), std::future::pending::<()>()).await;
            Ok(7)
        };
        let mut attempts = 0;
        let found = loop {
            attempts += 1;
            let patience = Duration::from_millis(10);
            if let Ok(found) = tokio::time::timeout(patience, kept.get(slow)).await {
                break found;
            }
            assert!(attempts < 1000, "the connection is never opened");
        };
        assert_eq!(*found.unwrap(), 7);
    }

    #[test]
    fn pauses_grow_up_to_a_bound_and_begin_anew_after_a_success() {
        let mut pauses = Pauses::default();
        let mut seen = Vec::new();
        for _ in 0..9 {
            seen.push(pauses.current().as_millis());
            pauses.failed();
        }
        assert_eq!(seen, [0, 20, 40, 80, 160, 320, 640, 1000, 1000]);
        for _ in 0..100 {
            pauses.failed();
        }
        assert_eq!(pauses.current(), Pauses::LONGEST);
        pauses.succeeded();
        assert_eq!(pauses.current(), Duration::ZERO);
    }
}
