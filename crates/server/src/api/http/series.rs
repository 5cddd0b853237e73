//! `GET /v1/{namespace}/series`: what ended in each step of the last hours, over all brokers.
//!
//! Each broker keeps a row a minute in memory (`measures/series`), so the series begins anew when a
//! broker starts: `since` says when.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use punctual_core::{Clock as _, Invalid, Namespace, Timestamp, format_duration};
use serde::Serialize;
use utoipa::ToSchema;

use super::live::LagAnswer;
use super::request::{PathNamespace, QueryParams};
use super::response::{self, ApiResult};
use crate::broker::Broker;
use crate::gather_measures::sum_series;
use crate::measures::series::{LAG_BOUNDS_MS, ROW, ROWS, SeriesMinute};
use crate::schema::{documented, duration, one_of};
use crate::task_form::{InstantText, parse_duration_field};

const BACK_DEFAULT: Duration = Duration::from_secs(6 * 3600);
/// The steps that can be asked for, and how they are written.
const STEPS: [(Duration, &str); 4] = [
    (Duration::from_secs(60), "1m"),
    (Duration::from_secs(300), "5m"),
    (Duration::from_secs(900), "15m"),
    (Duration::from_secs(3600), "1h"),
];

/// What ended in each step.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Series)]
struct SeriesAnswer {
    /// When the first point begins.
    #[schema(value_type = InstantText)]
    from: String,
    /// The length of a point.
    #[schema(value_type = SeriesStep)]
    step: &'static str,
    /// Since when all brokers have counted: what ended before is missing. `null` if nothing of the
    /// namespace is kept.
    #[schema(value_type = Option<InstantText>)]
    since: Option<String>,
    /// The largest lag of each bucket in milliseconds. One more bucket has all larger ones.
    lag_bounds_ms: [u32; LAG_BOUNDS_MS.len()],
    /// The points in order. The last one is not over yet.
    points: Vec<SeriesPoint>,
}

/// What ended within a step.
#[derive(Debug, Serialize, ToSchema)]
struct SeriesPoint {
    /// When it begins.
    #[schema(value_type = InstantText)]
    at: String,
    /// Fires that succeeded.
    done: u64,
    /// Attempts that failed.
    failed: u64,
    /// Fires that became dead letters.
    dead: u64,
    /// First attempts by bucket of lag.
    lag: Vec<u64>,
    /// Percentiles of lags, by the bounds of buckets; `null` if no first attempt ended.
    lag_ms: Option<LagAnswer>,
}

documented!(
    /// How far back a series goes.
    SeriesLength,
    "SeriesLength",
    duration(ROW, back_max())
);

documented!(
    /// The length of a point of a series.
    SeriesStep,
    "SeriesStep",
    one_of(STEPS.map(|(_, name)| name))
);

fn back_max() -> Duration {
    ROW * u32::from(ROWS)
}

/// Show what ended
///
/// Counts what ended in each step of the last hours, and its lags. A row a minute is kept in memory
/// by each broker, for a day, and lost at a restart. Each broker keeps those of its 64 busiest
/// namespaces.
#[utoipa::path(
    get, path = "/v1/{namespace}/series", tag = "statistics",
    params(
        ("for" = inline(Option<SeriesLength>), Query, description =
            "How far back. Default: six hours."),
        ("step" = inline(Option<SeriesStep>), Query, description =
            "The length of a point. Default: a minute."),
    ),
    responses((status = 200, description = "The points.", body = SeriesAnswer))
)]
pub(crate) async fn series(
    State(broker): State<Arc<Broker>>,
    PathNamespace(namespace): PathNamespace,
    mut params: QueryParams,
) -> ApiResult {
    let back = params.take("for")?.map(|text| parse_duration_field("for", &text)).transpose()?;
    let back = check_back(back.unwrap_or(BACK_DEFAULT))?;
    let step = params.take("step")?;
    let (step, name) = parse_step(step.as_deref())?;
    params.end()?;
    let permit = broker.limits.reads.acquire(&namespace).await?;
    let MeasuredSteps { from, since, points } =
        measured_steps(&broker, &namespace, back, step).await;
    let answer = SeriesAnswer {
        from: from.to_string(),
        step: name,
        since: since.map(|since| since.to_string()),
        lag_bounds_ms: LAG_BOUNDS_MS,
        points: points.iter().map(|(at, row)| SeriesPoint::of(*at, row)).collect(),
    };
    response::page(&answer, permit)
}

/// What ended in each step, over all brokers.
pub(crate) struct MeasuredSteps {
    pub(crate) from: Timestamp,
    /// Since when all brokers have counted.
    pub(crate) since: Option<Timestamp>,
    /// The start of each step, and its sum.
    pub(crate) points: Vec<(Timestamp, SeriesMinute)>,
}

pub(crate) async fn measured_steps(
    broker: &Arc<Broker>,
    namespace: &Namespace,
    back: Duration,
    step: Duration,
) -> MeasuredSteps {
    let series = sum_series(broker, namespace).await.sum;
    let (from, count) = points(broker.clock.now(), back, step);
    let rows = series.by_step(from, step, count);
    let starts = (0u32..).map(|number| from.after(step.saturating_mul(number)));
    MeasuredSteps { from, since: series.since, points: starts.zip(rows).collect() }
}

/// Checks the lengths of a series and of its points; zero is the default.
pub(crate) fn check_lengths(
    back: Duration,
    step: Duration,
) -> Result<(Duration, Duration), Invalid> {
    let back = if back.is_zero() { BACK_DEFAULT } else { check_back(back)? };
    let step = if step.is_zero() { STEPS[0].0 } else { known_step(step)?.0 };
    Ok((back, step))
}

impl SeriesPoint {
    fn of(at: Timestamp, row: &SeriesMinute) -> Self {
        Self {
            at: at.to_string(),
            done: row.done,
            failed: row.failed,
            dead: row.dead,
            lag: row.lags.clone(),
            lag_ms: row.lag_percentiles().map(LagAnswer::of),
        }
    }
}

fn check_back(back: Duration) -> Result<Duration, Invalid> {
    if (ROW..=back_max()).contains(&back) {
        return Ok(back);
    }
    let (min, max) = (format_duration(ROW), format_duration(back_max()));
    Err(Invalid::new("for", format!("must be from {min} to {max}")))
}

fn parse_step(text: Option<&str>) -> Result<(Duration, &'static str), Invalid> {
    let Some(text) = text else { return Ok(STEPS[0]) };
    known_step(parse_duration_field("step", text)?)
}

fn known_step(length: Duration) -> Result<(Duration, &'static str), Invalid> {
    let step = STEPS.into_iter().find(|(step, _)| *step == length);
    step.ok_or_else(|| {
        let all = STEPS.map(|(_, name)| name).join(", ");
        Invalid::new("step", format!("must be one of {all}"))
    })
}

/// The start of the first point, and how many there are. Points begin at multiples of the step, and
/// the last one contains `now`.
fn points(now: Timestamp, back: Duration, step: Duration) -> (Timestamp, usize) {
    let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1);
    let count = millis(back).div_ceil(millis(step));
    let last = now.as_millis() / millis(step);
    let first = (last + 1).saturating_sub(count);
    let from = Timestamp::from_millis(first.saturating_mul(millis(step)));
    (from, usize::try_from(count).unwrap_or(usize::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn points_begin_at_whole_steps_and_the_last_one_contains_now() {
        // 2026-11-18T10:07:30Z
        let now = Timestamp::from_millis(1_794_996_450_000);
        for (back, step, from, count) in [
            (MINUTE, MINUTE, "2026-11-18T10:07:00.000Z", 1),
            (10 * MINUTE, MINUTE, "2026-11-18T09:58:00.000Z", 10),
            (60 * MINUTE, 15 * MINUTE, "2026-11-18T09:15:00.000Z", 4),
            (61 * MINUTE, 60 * MINUTE, "2026-11-18T09:00:00.000Z", 2),
            (back_max(), MINUTE, "2026-11-17T10:08:00.000Z", 1440),
        ] {
            let (first, points) = points(now, back, step);
            assert_eq!((first.to_string().as_str(), points), (from, count), "{back:?} {step:?}");
        }
    }

    #[test]
    fn only_the_steps_of_the_list_are_taken() {
        for (text, want) in [
            (None, Some("1m")),
            (Some("60s"), Some("1m")),
            (Some("5m"), Some("5m")),
            (Some("1h"), Some("1h")),
            (Some("2m"), None),
            (Some("x"), None),
        ] {
            assert_eq!(parse_step(text).ok().map(|(_, name)| name), want, "{text:?}");
        }
    }
}
