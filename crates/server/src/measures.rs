//! What a broker has counted of attempts and fires: within sliding windows, and per minute.
//!
//! `windows` counts what was asked for lately, for alarms and live streams; `series` keeps a row
//! per minute for a day. Both are kept in memory by each broker and lost at its end; `gather` sums
//! them over all brokers of a cluster. `sliding_counts` is the ring of counters that both use,
//! `lag` the ranges of lags and their percentiles.

pub(crate) mod lag;
pub(crate) mod series;
mod sliding_counts;
pub(crate) mod windows;
