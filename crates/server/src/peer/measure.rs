//! Encodes what brokers measure for alarms, as protobuf messages.
//!
//! What a peer sends is untrusted: names are checked, and lists are bounded.

use std::time::Duration;

use punctual_core::{Invalid, Namespace, Timestamp};
use punctual_proto::v1;

use super::wire::WireError;
use crate::alarms::windows::{LAG_RANGES, WINDOWS_MAX, WindowCounts, WindowSpec, WindowSum};

pub(super) fn put_windows(windows: &[WindowSpec]) -> v1::MeasureRequest {
    v1::MeasureRequest { windows: windows.iter().map(put_window).collect() }
}

fn put_window(spec: &WindowSpec) -> v1::MeasuredWindow {
    v1::MeasuredWindow {
        namespace: spec.namespace.as_str().to_owned(),
        window_ms: millis(spec.window),
        later_than_ms: match spec.counts {
            WindowCounts::Failures => None,
            WindowCounts::LaterThan(limit) => Some(millis(limit)),
        },
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
        None => WindowCounts::Failures,
        Some(limit) => WindowCounts::LaterThan(Duration::from_millis(limit)),
    };
    let namespace = Namespace::new(&window.namespace)?;
    Ok(WindowSpec { namespace, window: Duration::from_millis(window.window_ms), counts })
}

pub(super) fn put_sums(sums: &[WindowSum]) -> v1::MeasureReply {
    let put = |sum: &WindowSum| v1::MeasuredSum {
        since_ms: sum.since.as_millis(),
        total: sum.total,
        counted: sum.counted,
        lags: sum.lags.clone(),
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
    };
    Ok(reply.sums.into_iter().map(read).collect())
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
        let windows = [WindowCounts::Failures, WindowCounts::LaterThan(window)]
            .map(|counts| WindowSpec { namespace: namespace.clone(), window, counts });
        assert_eq!(read_windows(put_windows(&windows)).unwrap(), windows);
        let since = Timestamp::from_millis(1_700_000_000_000);
        let sums = [
            WindowSum::empty(since),
            WindowSum { since, total: 3, counted: 2, lags: vec![1; LAG_RANGES] },
        ];
        assert_eq!(read_sums(put_sums(&sums), 2).unwrap(), sums);
        assert!(read_sums(put_sums(&sums), 1).is_err());
    }
}
