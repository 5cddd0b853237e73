//! `/v1/clock`: shows and moves the virtual clock. Only a broker on a virtual clock has these
//! routes (`punctual dev`), and they are no part of the OpenAPI document.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::routing::{get, post};
use axum::{Extension, Router};
use punctual_core::{Clock as _, Invalid, Timestamp, format_duration};
use serde::{Deserialize, Serialize};

use super::request::{self, BODY_BYTES_MAX, JsonBody};
use super::response::{self, ApiResult};
use crate::broker::Broker;
use crate::clock::Speed;
use crate::problem::Problem;
use crate::task_form::parse_duration_field;
use crate::virtual_clock::{AdvanceEnd, AdvanceError, VirtualClock};

/// How long deliveries that workers hold are waited for at each instant.
const WAIT_DEFAULT: Duration = Duration::from_secs(5);
/// The most: longer than any test should take.
const WAIT_MAX: Duration = Duration::from_secs(600);

/// The routes.
pub(super) fn routes(clock: VirtualClock) -> Router<Arc<Broker>> {
    Router::new()
        .route("/v1/clock", get(show))
        .route("/v1/clock/advance", post(advance))
        .route("/v1/clock/run", post(run))
        .route("/v1/clock/freeze", post(freeze))
        .layer(Extension(clock))
}

/// The virtual clock.
#[derive(Debug, Serialize)]
struct ClockAnswer {
    now: String,
    /// Whether time passes by itself.
    running: bool,
    /// Virtual seconds per second; 0 while it is frozen.
    speed: f64,
}

impl ClockAnswer {
    fn of(broker: &Broker) -> Self {
        let speed = broker.clock.speed();
        Self {
            now: broker.clock.now().to_string(),
            running: speed.is_some(),
            speed: speed.map_or(0.0, Speed::get),
        }
    }
}

async fn show(State(broker): State<Arc<Broker>>) -> ApiResult {
    response::ok(&ClockAnswer::of(&broker))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a JSON object")]
struct AdvanceBody {
    #[serde(default)]
    by: Option<String>,
    #[serde(default)]
    to: Option<String>,
    #[serde(default)]
    wait: Option<String>,
}

#[derive(Debug, Serialize)]
struct AdvanceAnswer {
    now: String,
    /// Fires that became due on the way. Retries do not count.
    fires: u64,
    /// Deliveries that workers held longer than `wait`.
    unsettled: usize,
}

async fn advance(
    State(broker): State<Arc<Broker>>,
    Extension(clock): Extension<VirtualClock>,
    JsonBody(body): JsonBody<BODY_BYTES_MAX>,
) -> ApiResult {
    let body: AdvanceBody = request::json(&body, "an advance with by or to")?;
    let end = end_of(&body, broker.clock.now())?;
    let wait = match body.wait.as_deref() {
        Some(text) => wait_of(text)?,
        None => WAIT_DEFAULT,
    };
    let advanced = clock.advance(&broker, end, wait).await;
    let advanced = advanced.map_err(|error| match error {
        AdvanceError::Past { .. } => Invalid::new("to", error.to_string()).into(),
        AdvanceError::Owner(error) => Problem::from(error),
    })?;
    response::ok(&AdvanceAnswer {
        now: advanced.now.to_string(),
        fires: advanced.fires,
        unsettled: advanced.unsettled,
    })
}

fn end_of(body: &AdvanceBody, now: Timestamp) -> Result<AdvanceEnd, Invalid> {
    match (body.by.as_deref(), body.to.as_deref()) {
        (Some(by), None) => {
            let time = parse_duration_field("by", by)?;
            match time > Timestamp::MAX.since(now) {
                true => Err(Invalid::new("by", format!("must end before {}", Timestamp::MAX))),
                false => Ok(AdvanceEnd::By(time)),
            }
        }
        (None, Some(to)) => {
            let end = Timestamp::parse_rfc3339(to);
            Ok(AdvanceEnd::To(end.map_err(|error| Invalid::new("to", error.to_string()))?))
        }
        (None, None) => Err(Invalid::new("by", "must be given, or to")),
        (Some(_), Some(_)) => Err(Invalid::new("to", "must not be given together with by")),
    }
}

fn wait_of(text: &str) -> Result<Duration, Invalid> {
    let wait = parse_duration_field("wait", text)?;
    match wait > WAIT_MAX {
        true => {
            let (max, wait) = (format_duration(WAIT_MAX), format_duration(wait));
            Err(Invalid::new("wait", format!("must be from 0s to {max}, is {wait}")))
        }
        false => Ok(wait),
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a JSON object")]
struct RunBody {
    #[serde(default)]
    speed: Option<f64>,
}

async fn run(
    State(broker): State<Arc<Broker>>,
    Extension(clock): Extension<VirtualClock>,
    JsonBody(body): JsonBody<BODY_BYTES_MAX>,
) -> ApiResult {
    let body: RunBody = request::json(&body, "a run with a speed")?;
    let speed = body.speed.and_then(Speed::new).ok_or_else(|| {
        let problem = format!("must be given, from {} to {}", Speed::MIN, Speed::MAX);
        Invalid::new("speed", problem)
    })?;
    clock.set_speed(&broker, Some(speed)).await;
    response::ok(&ClockAnswer::of(&broker))
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a JSON object")]
struct FreezeBody {}

async fn freeze(
    State(broker): State<Arc<Broker>>,
    Extension(clock): Extension<VirtualClock>,
    JsonBody(body): JsonBody<BODY_BYTES_MAX>,
) -> ApiResult {
    let FreezeBody {} = request::json_or_default(&body, "an empty object")?;
    clock.set_speed(&broker, None).await;
    response::ok(&ClockAnswer::of(&broker))
}
