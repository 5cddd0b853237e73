//! Encodes what brokers measure, as protobuf messages.
//!
//! What a peer sends is untrusted: names are checked, and lists are bounded.

use std::time::Duration;

use punctual_core::{Invalid, Namespace, Timestamp};
use punctual_proto::v1;

use super::wire::WireError;
use crate::measures::lag::LAG_RANGES;
use crate::measures::series::{EndSeries, LAG_BUCKETS, ROWS, SeriesMinute};
use crate::measures::windows::{WINDOWS_MAX, WindowCounts, WindowSpec, WindowSum};

pub(super) fn put_windows(windows: &[WindowSpec]) -> v1::MeasureRequest {
    v1::MeasureRequest { windows: windows.iter().map(put_window).collect() }
}

fn put_window(spec: &WindowSpec) -> v1::MeasuredWindow {
    v1::MeasuredWindow {
        namespace: spec.namespace.as_ref().map_or("", Namespace::as_str).to_owned(),
        window_ms: millis(spec.window),
        later_than_ms: match spec.counts {
            WindowCounts::Failures | WindowCounts::Ends => None,
            WindowCounts::LaterThan(limit) => Some(millis(limit)),
        },
        ends: spec.counts == WindowCounts::Ends,
    }
}

pub(super) fn read_windows(request: v1::MeasureRequest) -> Result<Vec<WindowSpec>, Invalid> {
    if request.windows.len() > WINDOWS_MAX {
        return Err(Invalid::new("windows", format!("must be at most {WINDOWS_MAX}")));
    }
    request.windows.iter().map(read_window).collect()
}

fn read_window(window: &v1::MeasuredWindow) -> Result<WindowSpec, Invalid> {
    let counts = match window.later_than_ms {
        None if window.ends => WindowCounts::Ends,
        None => WindowCounts::Failures,
        Some(limit) => WindowCounts::LaterThan(Duration::from_millis(limit)),
    };
    let namespace = Some(window.namespace.as_str()).filter(|name| !name.is_empty());
    let namespace = namespace.map(Namespace::new).transpose()?;
    Ok(WindowSpec { namespace, window: Duration::from_millis(window.window_ms), counts })
}

pub(super) fn put_sums(sums: &[WindowSum]) -> v1::MeasureReply {
    let put = |sum: &WindowSum| v1::MeasuredSum {
        since_ms: sum.since.as_millis(),
        total: sum.total,
        counted: sum.counted,
        lags: sum.lags.clone(),
        dead: sum.dead,
        lag_max_ms: millis(sum.lag_max),
    };
    v1::MeasureReply { sums: sums.iter().map(put).collect() }
}

/// `count` is the number of windows that were asked for.
pub(super) fn read_sums(
    reply: v1::MeasureReply,
    count: usize,
) -> Result<Vec<WindowSum>, WireError> {
    if reply.sums.len() != count || reply.sums.iter().any(|sum| sum.lags.len() > LAG_RANGES) {
        return Err(WireError::TooMany(count));
    }
    let read = |sum: v1::MeasuredSum| WindowSum {
        since: Timestamp::from_millis(sum.since_ms),
        total: sum.total,
        counted: sum.counted,
        lags: sum.lags,
        dead: sum.dead,
        lag_max: Duration::from_millis(sum.lag_max_ms),
    };
    Ok(reply.sums.into_iter().map(read).collect())
}

pub(super) fn put_series(series: &EndSeries) -> v1::SeriesReply {
    let put = |(start, row): &(Timestamp, SeriesMinute)| v1::MinuteRow {
        start_ms: start.as_millis(),
        done: row.done,
        failed: row.failed,
        dead: row.dead,
        lags: row.lags.clone(),
        lag_max_ms: millis(row.lag_max),
    };
    let since_ms = series.since.map(Timestamp::as_millis);
    v1::SeriesReply { since_ms, rows: series.rows.iter().map(put).collect() }
}

pub(super) fn read_series(reply: v1::SeriesReply) -> Result<EndSeries, WireError> {
    let is_fine = |row: &v1::MinuteRow| row.lags.len() == LAG_BUCKETS;
    if reply.rows.len() > usize::from(ROWS) || !reply.rows.iter().all(is_fine) {
        return Err(WireError::TooMany(ROWS.into()));
    }
    let read = |row: v1::MinuteRow| {
        let lag_max = Duration::from_millis(row.lag_max_ms);
        let v1::MinuteRow { start_ms, done, failed, dead, lags, .. } = row;
        (Timestamp::from_millis(start_ms), SeriesMinute { done, failed, dead, lags, lag_max })
    };
    let mut rows: Vec<_> = reply.rows.into_iter().map(read).collect();
    rows.sort_by_key(|(start, _)| *start);
    Ok(EndSeries { since: reply.since_ms.map(Timestamp::from_millis), rows })
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_and_sums_are_read_back_unchanged() {
        let namespace = Namespace::new("shop").unwrap();
        let window = Duration::from_secs(60);
        let windows = [
            (Some(namespace.clone()), WindowCounts::Failures),
            (Some(namespace), WindowCounts::LaterThan(window)),
            (None, WindowCounts::Ends),
        ]
        .map(|(namespace, counts)| WindowSpec { namespace, window, counts });
        assert_eq!(read_windows(put_windows(&windows)).unwrap(), windows);
        let since = Timestamp::from_millis(1_700_000_000_000);
        let sums = [
            WindowSum::empty(since),
            WindowSum {
                since,
                total: 3,
                counted: 2,
                dead: 1,
                lags: vec![1; LAG_RANGES],
                lag_max: window,
            },
        ];
        assert_eq!(read_sums(put_sums(&sums), 2).unwrap(), sums);
        assert!(read_sums(put_sums(&sums), 1).is_err());
    }

    #[test]
    fn a_series_is_read_back_unchanged_and_too_many_rows_are_refused() {
        let at = Timestamp::from_millis(1_700_000_040_000);
        let lag_max = Duration::from_millis(7);
        let row = SeriesMinute { done: 1, failed: 2, dead: 3, lags: vec![4; LAG_BUCKETS], lag_max };
        for series in [
            EndSeries { since: None, rows: vec![] },
            EndSeries { since: Some(at), rows: vec![(at, row.clone()), (at.after(lag_max), row)] },
        ] {
            assert_eq!(read_series(put_series(&series)), Ok(series));
        }
        let rows = vec![v1::MinuteRow::default(); usize::from(ROWS) + 1];
        assert!(read_series(v1::SeriesReply { since_ms: None, rows }).is_err());
        let rows = vec![v1::MinuteRow::default()];
        assert!(read_series(v1::SeriesReply { since_ms: None, rows }).is_err(), "no buckets");
    }
}
