//! The clocks of the bench. A bench measures real time, so it reads the machine's clocks.

#![expect(clippy::disallowed_methods, reason = "a bench measures real time")]

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Microseconds since the Unix epoch.
pub(crate) fn micros() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

/// Milliseconds since the Unix epoch.
pub(crate) fn millis() -> u64 {
    micros() / 1000
}

/// Measures how long something takes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BenchTimer(Instant);

impl BenchTimer {
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}

/// Sleeps.
pub(crate) async fn pause(millis: u64) {
    tokio::time::sleep(Duration::from_millis(millis)).await;
}
