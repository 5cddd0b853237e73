//! The clocks of a bench: it measures, so it reads them.

#![expect(clippy::disallowed_methods, reason = "a bench measures real time")]

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Microseconds since the Unix epoch by this machine's clock.
pub(super) fn micros() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

/// Milliseconds since the Unix epoch.
pub(super) fn millis() -> u64 {
    micros() / 1000
}

/// Measures how long something takes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stopwatch(Instant);

impl Stopwatch {
    pub(super) fn start() -> Self {
        Self(Instant::now())
    }

    pub(super) fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}

/// Waits.
pub(super) async fn pause(millis: u64) {
    tokio::time::sleep(Duration::from_millis(millis)).await;
}
