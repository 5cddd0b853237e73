//! How measured times are spread.

use std::fmt;

/// Times in milliseconds, in order.
pub(crate) struct Spread(Vec<u64>);

impl Spread {
    pub(crate) fn of(times: impl IntoIterator<Item = u64>) -> Self {
        let mut times: Vec<u64> = times.into_iter().collect();
        times.sort_unstable();
        Self(times)
    }

    /// The time that so many of a hundred do not exceed.
    pub(crate) fn percentile(&self, percent: usize) -> u64 {
        let last = self.0.len().saturating_sub(1);
        self.0.get((self.0.len() * percent / 100).min(last)).copied().unwrap_or_default()
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [p50, p99, max] = [50, 99, 100].map(|percent| self.percentile(percent));
        write!(f, "p50 {p50} ms, p99 {p99} ms, max {max} ms of {}", self.0.len())
    }
}
