//! Ranges of lags, and percentiles of lags that were counted by range.

use std::time::Duration;

use punctual_core::{AttemptNo, Occasion};
use punctual_engine::Delivery;

/// Ranges of lags: four per power of two, up to 2^22 ms, which is more than an hour.
pub(crate) const LAG_RANGES: usize = 4 * 22 + 1;

/// Percentiles of the lags of some fires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LagPercentiles {
    pub(crate) p50: Duration,
    pub(crate) p99: Duration,
    pub(crate) p999: Duration,
    pub(crate) max: Duration,
}

impl LagPercentiles {
    /// Estimates percentiles by the end of the range that each of them is in; none is larger than
    /// `max`. `None` without fires.
    pub(crate) fn of(
        counts: &[u64],
        end_of: impl Fn(usize) -> Duration,
        max: Duration,
    ) -> Option<Self> {
        let total: u64 = counts.iter().sum();
        let at = |permille: u64| {
            let allowed = total * (1000 - permille) / 1000;
            let mut later = total;
            let range = counts.iter().position(|count| {
                later -= count;
                later <= allowed
            });
            range.map_or(max, |range| end_of(range).min(max))
        };
        (total > 0).then(|| Self { p50: at(500), p99: at(990), p999: at(999), max })
    }
}

/// A retry or a redrive is late on purpose, and a manual fire has no due time of its own.
pub(crate) fn has_lag(delivery: &Delivery) -> bool {
    let is_scheduled = matches!(delivery.occasion, Occasion::Due | Occasion::Return);
    delivery.attempt == AttemptNo::FIRST && is_scheduled && !delivery.redriven
}

/// The range of a lag.
pub(crate) fn range_of(lag: Duration) -> usize {
    let end = |range: &usize| lag <= end_of(*range);
    (0..LAG_RANGES).find(end).unwrap_or(LAG_RANGES - 1)
}

/// The largest lag of a range: 2^(range / 4) milliseconds.
pub(crate) fn end_of(range: usize) -> Duration {
    let power = u32::try_from(range / 4).unwrap_or(u32::MAX);
    let quarter = [1000, 1189, 1414, 1682][range % 4];
    Duration::from_micros((1_u64 << power.min(32)).saturating_mul(quarter))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const MILLISECOND: Duration = Duration::from_millis(1);

    #[test]
    fn ranges_of_lags_grow_by_a_fifth_and_reach_an_hour() {
        assert_eq!(end_of(0), MILLISECOND);
        assert_eq!(end_of(LAG_RANGES - 1), Duration::from_millis(1 << 22));
        for range in 1..LAG_RANGES {
            assert_eq!(range_of(end_of(range)), range);
            assert_eq!(range_of(end_of(range - 1) + Duration::from_nanos(1)), range);
            assert!(end_of(range) <= end_of(range - 1) * 6 / 5, "{range}");
        }
        assert_eq!(range_of(Duration::ZERO), 0);
        assert_eq!(range_of(SECOND * 86_400), LAG_RANGES - 1);
    }

    #[test]
    fn percentiles_are_the_ends_of_ranges_and_no_larger_than_the_maximum() {
        let ends = [1, 2, 5, 10];
        let of = |counts: &[u64], max: u32| {
            let end = |range: usize| MILLISECOND * ends.get(range).copied().unwrap_or(3600);
            let found = LagPercentiles::of(counts, end, MILLISECOND * max)?;
            Some([found.p50, found.p99, found.p999, found.max].map(|it| it.as_millis()))
        };
        for (counts, max, want) in [
            (&[0, 0, 0, 0][..], 0, None),
            (&[1, 0, 0, 0], 1, Some([1, 1, 1, 1])),
            (&[99, 1, 0, 0], 2, Some([1, 1, 2, 2])),
            (&[98, 2, 0, 0], 2, Some([1, 2, 2, 2])),
            (&[500, 400, 99, 1], 7, Some([1, 5, 5, 7])),
            (&[0, 0, 0, 3], 8, Some([8, 8, 8, 8])),
        ] {
            assert_eq!(of(counts, max), want, "{counts:?}");
        }
    }
}
