//! The `Measures` service: what ended in each step of the last hours, and what happens now.
//! `api/http/series` sums the one, `api/live` makes the messages of the other.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::body::Bytes;
use punctual_core::Timestamp;
use punctual_proto::v1;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use super::caller::{authorized_namespace, identify};
use super::convert;
use super::reads::{counts, refused};
use crate::api::http::series::{MeasuredSteps, check_lengths, measured_steps};
use crate::api::limits::admin_share;
use crate::api::live::{UNREAD_MAX, pass_on};
use crate::api::measured_second::{EndsPerSecond, MeasuredSecond};
use crate::broker::Broker;
use crate::measures::lag::LagPercentiles;
use crate::measures::series::{LAG_BOUNDS_MS, SeriesMinute};

#[derive(Debug)]
pub(super) struct MeasuresApi {
    broker: Arc<Broker>,
}

impl MeasuresApi {
    pub(super) fn new(broker: Arc<Broker>) -> Self {
        Self { broker }
    }
}

#[tonic::async_trait]
impl v1::measures_server::Measures for MeasuresApi {
    type LiveStream = ReceiverStream<Result<v1::LiveSecond, Status>>;

    async fn live(
        &self,
        request: Request<v1::LiveRequest>,
    ) -> Result<Response<Self::LiveStream>, Status> {
        let namespace = match request.get_ref().namespace.as_str() {
            "" => {
                identify(&request)?.check_admin().map_err(refused)?;
                None
            }
            name => Some(authorized_namespace(&request, name)?),
        };
        let share = namespace.clone().map_or_else(admin_share, Ok).map_err(convert::invalid)?;
        let permit = self.broker.limits.live_streams.try_acquire(&share).map_err(refused)?;
        let (sender, sent) = mpsc::channel(UNREAD_MAX);
        let convert = |_: &Broker, second: &MeasuredSecond, _: &OnceLock<Bytes>| Ok(live(second));
        tokio::spawn(pass_on(Arc::clone(&self.broker), namespace, sender, convert, permit));
        Ok(Response::new(ReceiverStream::new(sent)))
    }

    async fn series(
        &self,
        request: Request<v1::MeasureSeriesRequest>,
    ) -> Result<Response<v1::MeasureSeriesResponse>, Status> {
        let v1::MeasureSeriesRequest { namespace, for_ms, step_ms } = request.get_ref();
        let lengths = [*for_ms, *step_ms].map(Duration::from_millis);
        let namespace = authorized_namespace(&request, namespace)?;
        let [back, step] = lengths;
        let (back, step) = check_lengths(back, step).map_err(convert::invalid)?;
        let _permit = self.broker.limits.reads.acquire(&namespace).await.map_err(refused)?;
        let MeasuredSteps { from, since, points } =
            measured_steps(&self.broker, &namespace, back, step).await;
        Ok(Response::new(v1::MeasureSeriesResponse {
            from_ms: from.as_millis(),
            step_ms: u64::try_from(step.as_millis()).unwrap_or(u64::MAX),
            since_ms: since.map_or(0, Timestamp::as_millis),
            lag_bounds_ms: LAG_BOUNDS_MS.to_vec(),
            points: points.iter().map(|(at, row)| point(*at, row)).collect(),
        }))
    }
}

fn live(second: &MeasuredSecond) -> v1::LiveSecond {
    let EndsPerSecond { done, failed, dead } = second.ends_per_second();
    v1::LiveSecond {
        at_ms: second.at.as_millis(),
        counts: Some(counts(&second.stats)),
        in_flight: second.stats.in_flight as u64,
        rates: Some(v1::LiveRates { done, failed, dead }),
        lag_ms: second.minute.lag_percentiles().map(lag),
        attempts: second.minute.total,
    }
}

fn point(at: Timestamp, row: &SeriesMinute) -> v1::MeasurePoint {
    v1::MeasurePoint {
        at_ms: at.as_millis(),
        done: row.done,
        failed: row.failed,
        dead: row.dead,
        lag: row.lags.clone(),
        lag_ms: row.lag_percentiles().map(lag),
    }
}

fn lag(LagPercentiles { p50, p99, p999, max }: LagPercentiles) -> v1::MeasuredLag {
    let [p50, p99, p999, max] = [p50, p99, p999, max].map(|time| time.as_secs_f64() * 1000.0);
    v1::MeasuredLag { p50, p99, p999, max }
}
