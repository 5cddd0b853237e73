//! What a live feed says of a second: counts, rates and lags.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::body::Bytes;
use punctual_core::Timestamp;

use super::task_stats::TaskStats;
use crate::measures::windows::WindowSum;

/// The window of rates.
pub(super) const RATES_OVER: Duration = Duration::from_secs(5);

/// What happened up to a second.
#[derive(Debug)]
pub(crate) struct MeasuredSecond {
    pub(crate) at: Timestamp,
    pub(crate) stats: TaskStats,
    /// The last seconds, for rates.
    pub(crate) rates: WindowSum,
    /// The last minute, for lags.
    pub(crate) minute: WindowSum,
}

/// What ended in a second, on average over the last seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct EndsPerSecond {
    /// Fires that succeeded.
    pub(crate) done: f64,
    /// Attempts that failed.
    pub(crate) failed: f64,
    /// Fires that became dead letters.
    pub(crate) dead: f64,
}

impl MeasuredSecond {
    pub(crate) fn ends_per_second(&self) -> EndsPerSecond {
        let WindowSum { total, counted, dead, .. } = self.rates;
        let per_second = |count: u64| {
            let count = f64::from(u32::try_from(count).unwrap_or(u32::MAX));
            count / RATES_OVER.as_secs_f64()
        };
        EndsPerSecond {
            done: per_second(total.saturating_sub(counted)),
            failed: per_second(counted),
            dead: per_second(dead),
        }
    }
}

/// A message of a feed, and its text once a listener has wanted it. `None` until the first second
/// was counted.
pub(crate) type LiveMessage = Option<Arc<(MeasuredSecond, OnceLock<Bytes>)>>;
