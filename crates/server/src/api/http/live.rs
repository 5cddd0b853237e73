//! `GET /v1/{namespace}/live` and `/v1/live`: what happens, once a second, as server-sent events.
//!
//! `api/live` makes the messages; all listeners of a namespace get the same. Streams are bounded
//! per namespace and in total. One that is not read, or whose broker drains, ends.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use punctual_core::Namespace;
use serde::Serialize;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use utoipa::ToSchema;

use super::health::TopologyAnswer;
use super::request::{PathNamespace, QueryParams};
use super::response::ApiResult;
use crate::api::limits::admin_share;
use crate::api::live::{LiveSecond, RATES_OVER, listen};
use crate::broker::Broker;
use crate::fire_form::lag_ms;
use crate::measures::lag::LagPercentiles;
use crate::shares::SharePermit;
use crate::task_form::InstantText;

/// Messages that wait for a client.
const UNREAD_MAX: usize = 2;
/// How long a client may read nothing.
const READ_MAX: Duration = Duration::from_secs(30);

/// One second: the `data` of an event `second`.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LiveSecond)]
struct LiveAnswer {
    /// When it was measured.
    #[schema(value_type = InstantText)]
    at: String,
    /// Tasks by state. With very many partitions or namespaces they are some seconds old.
    counts: LiveStates,
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

/// Tasks by state, as `/stats` counts them.
#[derive(Debug, Serialize, ToSchema)]
struct LiveStates {
    accepted: i64,
    scheduled: i64,
    firing: i64,
    paused: i64,
    done: i64,
    dead: i64,
    cancelled: i64,
    dead_letters: i64,
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
    let messages = listen(broker, namespace, render);
    let (sender, sent) = mpsc::channel(UNREAD_MAX);
    tokio::spawn(pass_on(messages, sender, broker.draining.clone(), permit));
    let headers = [(CONTENT_TYPE, "text/event-stream"), (CACHE_CONTROL, "no-store")];
    (headers, Body::from_stream(ReceiverStream::new(sent))).into_response()
}

/// Passes messages on until the client leaves or does not read, or the broker drains.
async fn pass_on(
    mut messages: watch::Receiver<Bytes>,
    client: mpsc::Sender<Result<Bytes, Infallible>>,
    mut draining: watch::Receiver<bool>,
    _permit: SharePermit,
) {
    loop {
        tokio::select! {
            changed = messages.changed() => {
                if changed.is_err() {
                    return;
                }
            }
            () = client.closed() => return,
            _ = draining.wait_for(|draining| *draining) => return,
        }
        let message = messages.borrow_and_update().clone();
        if message.is_empty() {
            continue;
        }
        match timeout(READ_MAX, client.send(Ok(message))).await {
            Ok(Ok(())) => {}
            _ => return,
        }
    }
}

fn render(broker: &Broker, namespace: &Option<Namespace>, second: &LiveSecond) -> Bytes {
    let topology = match namespace {
        Some(_) => None,
        None => TopologyAnswer::now(broker),
    };
    let answer = LiveAnswer::of(second, topology);
    let json = serde_json::to_string(&answer).unwrap_or_default();
    format!("event: second\ndata: {json}\n\n").into()
}

impl LiveAnswer {
    fn of(second: &LiveSecond, topology: Option<TopologyAnswer>) -> Self {
        let LiveSecond { at, stats, rates, minute } = second;
        let counts = &stats.counts;
        let per_second = |count: u64| {
            let count = f64::from(u32::try_from(count).unwrap_or(u32::MAX));
            count / RATES_OVER.as_secs_f64()
        };
        Self {
            at: at.to_string(),
            counts: LiveStates {
                accepted: stats.accepted(),
                scheduled: counts.scheduled,
                firing: stats.firing,
                paused: counts.paused,
                done: counts.done,
                dead: counts.dead,
                cancelled: counts.cancelled,
                dead_letters: counts.dead_letters,
            },
            waiting: stats.queued,
            in_flight: stats.in_flight,
            oldest_overdue_ms: stats.oldest_overdue.map(|oldest| lag_ms(*at, oldest)),
            rates: LiveRates {
                done: per_second(rates.total.saturating_sub(rates.counted)),
                failed: per_second(rates.counted),
                dead: per_second(rates.dead),
            },
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
        let second = LiveSecond { at, stats, rates, minute };
        let answer = serde_json::to_value(LiveAnswer::of(&second, None)).unwrap();
        assert_eq!(answer["counts"]["accepted"], 9, "{answer}");
        assert_eq!((&answer["waiting"], &answer["in_flight"]), (&2.into(), &4.into()));
        assert_eq!(answer["oldest_overdue_ms"], 1000);
        assert_eq!(answer["rates"], serde_json::json!({"done": 2.0, "failed": 0.4, "dead": 0.2}));
        let lag = serde_json::json!({"p50": 1.0, "p99": 1.1, "p999": 1.1, "max": 1.1});
        assert_eq!((&answer["lag_ms"], &answer["attempts"]), (&lag, &100.into()));
        assert!(answer.get("brokers").is_none(), "{answer}");
        let quiet = WindowSum::empty(at);
        let second = LiveSecond { rates: quiet.clone(), minute: quiet, ..second };
        let answer = serde_json::to_value(LiveAnswer::of(&second, None)).unwrap();
        assert!(answer["lag_ms"].is_null(), "{answer}");
    }
}
