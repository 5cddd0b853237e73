//! Keeps one connection open, and opens the next one after growing pauses.
//!
//! A caller takes the connection, uses it, and gives it back by [`Reconnecting::lost`] if it broke.
//! Callers that arrive while a connection is being opened wait for it.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;

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
#[derive(Debug)]
pub struct Reconnecting<C> {
    state: Mutex<State<C>>,
}

#[derive(Debug)]
struct State<C> {
    open: Option<Arc<C>>,
    pauses: Pauses,
}

impl<C> Default for Reconnecting<C> {
    fn default() -> Self {
        Self { state: Mutex::new(State { open: None, pauses: Pauses::default() }) }
    }
}

impl<C> Reconnecting<C> {
    /// Returns the open connection, or opens one with `connect`, after a pause if the last attempt
    /// failed.
    pub async fn get<F>(&self, connect: impl FnOnce() -> F) -> Result<Arc<C>, SqlError>
    where
        F: Future<Output = Result<C, SqlError>>,
    {
        let mut state = self.state.lock().await;
        if let Some(open) = &state.open {
            return Ok(Arc::clone(open));
        }
        let pause = state.pauses.current();
        // Counted before the attempt: a caller that gives up during it has not succeeded either.
        state.pauses.failed();
        if !pause.is_zero() {
            // An await that never completes, bounded by the pause.
            let _ = tokio::time::timeout(pause, std::future::pending::<()>()).await;
        }
        let connection = Arc::new(connect().await?);
        state.pauses.succeeded();
        state.open = Some(Arc::clone(&connection));
        Ok(connection)
    }

    /// Forgets a connection that broke, unless a newer one has replaced it.
    pub async fn lost(&self, connection: &Arc<C>) {
        let mut state = self.state.lock().await;
        if state.open.as_ref().is_some_and(|open| Arc::ptr_eq(open, connection)) {
            state.open = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
