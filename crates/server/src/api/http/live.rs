//! `GET /v1/{namespace}/live` and `/v1/live`: what happens, once a second, as server-sent events.
//!
//! `api/live` makes the messages; all listeners of a namespace get the same. Streams are bounded
//! per namespace and in total. One that is not read, or whose broker drains, ends.

use std::convert::Infallible;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use punctual_core::Namespace;
use serde::Serialize;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use utoipa::ToSchema;

use super::health::TopologyAnswer;
use super::request::{PathNamespace, QueryParams};
use super::response::ApiResult;
use super::stats::StateCounts;
use crate::api::limits::admin_share;
use crate::api::live::{UNREAD_MAX, pass_on};
use crate::api::measured_second::MeasuredSecond;
use crate::broker::Broker;
use crate::fire_form::lag_ms;
use crate::measures::lag::LagPercentiles;
use crate::shares::SharePermit;
use crate::task_form::InstantText;

/// One second: the `data` of an event `second`.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LiveSecond)]
struct LiveAnswer {
    /// When it was measured.
    #[schema(value_type = InstantText)]
    at: String,
    /// Tasks by state. With very many partitions or namespaces they are some seconds old.
    counts: StateCounts,
    /// Tasks that are due and wait to be sent.
    waiting: usize,
    /// Deliveries in flight.
    in_flight: usize,
    /// How long the first task is overdue that was not sent yet, in milliseconds; `null` if there
    /// is none.
    oldest_overdue_ms: Option<u64>,
    /// Ends per second, over the last five seconds.
    rates: LiveRates,
    /// Lags of the fires of the last minute; `null` if there were none.
    lag_ms: Option<LagAnswer>,
    /// Attempts that ended in the last minute.
    attempts: u64,
    /// The brokers of the cluster. Only in the stream of all namespaces.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    topology: Option<TopologyAnswer>,
}

/// Ends per second.
#[derive(Debug, Serialize, ToSchema)]
struct LiveRates {
    /// Fires that succeeded.
    done: f64,
    /// Attempts that failed.
    failed: f64,
    /// Fires that became dead letters.
    dead: f64,
}

/// Percentiles of lags, in milliseconds. Each but the maximum may be somewhat too large.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct LagAnswer {
    p50: f64,
    p99: f64,
    p999: f64,
    max: f64,
}

impl LagAnswer {
    pub(super) fn of(lag: LagPercentiles) -> Self {
        // To a thousandth, so that the text is short.
        let millis = |time: Duration| (time.as_secs_f64() * 1_000_000.0).round() / 1000.0;
        let LagPercentiles { p50, p99, p999, max } = lag;
        Self { p50: millis(p50), p99: millis(p99), p999: millis(p999), max: millis(max) }
    }
}

/// Watch a namespace
///
/// Server-sent events, one `second` each second with a `LiveSecond` as its data: counts, rates and
/// lags of the namespace, over all brokers. The stream ends when the broker stops.
#[utoipa::path(
    get, path = "/v1/{namespace}/live", tag = "statistics", operation_id = "live_namespace",
    responses((
        status = 200, description = "One message a second.",
        body = LiveAnswer, content_type = "text/event-stream",
    ))
)]
pub(crate) async fn namespace(
    State(broker): State<Arc<Broker>>,
    PathNamespace(namespace): PathNamespace,
    params: QueryParams,
) -> ApiResult {
    params.end()?;
    let permit = broker.limits.live_streams.try_acquire(&namespace)?;
    Ok(stream(&broker, Some(namespace), permit))
}

/// Watch all namespaces
///
/// The same as the stream of a namespace, as a sum over all namespaces, with the brokers of the
/// cluster.
#[utoipa::path(
    get, path = "/v1/live", tag = "statistics", operation_id = "live",
    responses((
        status = 200, description = "One message a second.",
        body = LiveAnswer, content_type = "text/event-stream",
    ))
)]
pub(crate) async fn all(State(broker): State<Arc<Broker>>, params: QueryParams) -> ApiResult {
    params.end()?;
    let permit = broker.limits.live_streams.try_acquire(&admin_share()?)?;
    Ok(stream(&broker, None, permit))
}

fn stream(broker: &Arc<Broker>, namespace: Option<Namespace>, permit: SharePermit) -> Response {
    let (sender, sent) = mpsc::channel(UNREAD_MAX);
    let of_all = namespace.is_none();
    let convert = move |broker: &Broker, second: &MeasuredSecond, text: &OnceLock<Bytes>| {
        let text = text.get_or_init(|| {
            let topology = of_all.then(|| TopologyAnswer::now(broker)).flatten();
            render(&LiveAnswer::of(second, topology))
        });
        Ok::<_, Infallible>(text.clone())
    };
    tokio::spawn(pass_on(Arc::clone(broker), namespace, sender, convert, permit));
    let headers = [(CONTENT_TYPE, "text/event-stream"), (CACHE_CONTROL, "no-store")];
    (headers, Body::from_stream(ReceiverStream::new(sent))).into_response()
}

fn render(answer: &LiveAnswer) -> Bytes {
    let json = serde_json::to_string(answer).unwrap_or_default();
    format!("event: second\ndata: {json}\n\n").into()
}

impl LiveAnswer {
    fn of(second: &MeasuredSecond, topology: Option<TopologyAnswer>) -> Self {
        let MeasuredSecond { at, stats, minute, .. } = second;
        let ends = second.ends_per_second();
        Self {
            at: at.to_string(),
            counts: StateCounts::of(stats),
            waiting: stats.queued,
            in_flight: stats.in_flight,
            oldest_overdue_ms: stats.oldest_overdue.map(|oldest| lag_ms(*at, oldest)),
            rates: LiveRates { done: ends.done, failed: ends.failed, dead: ends.dead },
            lag_ms: minute.lag_percentiles().map(LagAnswer::of),
            attempts: minute.total,
            topology,
        }
    }
}

#[cfg(test)]
mod tests {
    use punctual_core::Timestamp;
    use punctual_store::Counts;

    use super::*;
    use crate::api::task_stats::TaskStats;
    use crate::measures::lag::LAG_RANGES;
    use crate::measures::windows::WindowSum;

    #[test]
    fn a_second_shows_counts_rates_and_lags() {
        let at = Timestamp::from_millis(1_700_000_000_000);
        let oldest = Some(Timestamp::from_millis(1_699_999_999_000));
        let stats = TaskStats {
            counts: Counts { scheduled: 3, done: 5, ..Counts::default() },
            firing: 1,
            queued: 2,
            in_flight: 4,
            parked_lanes: 0,
            oldest_overdue: oldest,
        };
        let mut lags = vec![0; LAG_RANGES];
        (lags[0], lags[1]) = (98, 2);
        let lag_max = Duration::from_micros(1100);
        let rates = WindowSum { total: 12, counted: 2, dead: 1, ..WindowSum::empty(at) };
        let minute = WindowSum { total: 100, lags, lag_max, ..WindowSum::empty(at) };
        let second = MeasuredSecond { at, stats, rates, minute };
        let answer = serde_json::to_value(LiveAnswer::of(&second, None)).unwrap();
        assert_eq!(answer["counts"]["accepted"], 9, "{answer}");
        assert_eq!((&answer["waiting"], &answer["in_flight"]), (&2.into(), &4.into()));
        assert_eq!(answer["oldest_overdue_ms"], 1000);
        assert_eq!(answer["rates"], serde_json::json!({"done": 2.0, "failed": 0.4, "dead": 0.2}));
        let lag = serde_json::json!({"p50": 1.0, "p99": 1.1, "p999": 1.1, "max": 1.1});
        assert_eq!((&answer["lag_ms"], &answer["attempts"]), (&lag, &100.into()));
        assert!(answer.get("brokers").is_none(), "{answer}");
        let quiet = WindowSum::empty(at);
        let second = MeasuredSecond { rates: quiet.clone(), minute: quiet, ..second };
        let answer = serde_json::to_value(LiveAnswer::of(&second, None)).unwrap();
        assert!(answer["lag_ms"].is_null(), "{answer}");
    }
}
