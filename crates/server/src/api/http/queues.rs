//! Queues over HTTP: workers lease deliveries by long poll and settle them by token.
//!
//! A token whose attempt has ended, or that was not issued for this queue, is `stale` and changes
//! nothing. `courier/hub` decides which worker gets what. A worker that disconnects while it waits
//! has leased nothing.

use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use punctual_core::{
    BACKOFF_MAX, Invalid, Namespace, Payload, Queue, Reason, TIMEOUT_MAX, format_duration,
};
use punctual_engine::EngineError;
use serde::{Deserialize, Serialize};
use serde_json::json;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::request::{
    self, BATCH_MAX, BODY_BYTES_MAX, JsonBody, NAMES_BYTES_MAX, PathName, check_count,
};
use super::response::{self, ApiResult};
use crate::broker::Broker;
use crate::courier::occasion_name;
use crate::courier::queue::poll::{self, PolledDelivery};
use crate::courier::queue::{
    PollOptions, SettleResult, SettleScope, Settlement, WORKER_NAME_BYTES_MAX, WorkerLabel,
    WorkerResult,
};
use crate::fire_form::{OccasionName, ResultJson, lag_ms};
use crate::listen::CallerAddress;
use crate::peer::PeerError;
use crate::problem::Problem;
use crate::schema::{
    Base64Text, ContentTypeText, FireIdText, KeyText, TaskIdText, array, count, documented,
    duration, one_of, reference, with_keywords,
};
use crate::task_form::{Delay, InstantText, Pause, WholeNumber, parse_duration_field};

/// Deliveries in one response.
const LEASE_MAX: usize = 1000;
/// Deliveries in one response by default.
const LEASE_DEFAULT: usize = 1;
/// How long a poll may wait: proxies commonly close a silent connection soon after.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// How long a poll waits at least: due deliveries are with their owners, and an owner sends them
/// only after it learns that a worker waits.
const WAIT_MIN: Duration = Duration::from_millis(100);
/// The shortest lease that a worker can ask for.
const LEASE_TIME_MIN: Duration = Duration::from_secs(1);

/// What became of a settlement.
const ACKED: &str = "acked";
const FAILED: &str = "failed";
const REFUSED: &str = "refused";
const EXTENDED: &str = "extended";
const STALE: &str = "stale";
const REJECTED: &str = "rejected";

/// What a worker asks for.
#[derive(Debug, Deserialize, Default, ToSchema)]
#[serde(deny_unknown_fields, default, expecting = "a JSON object")]
#[schema(as = Lease)]
struct LeaseBody {
    /// Deliveries at most.
    #[schema(value_type = Option<LeaseCount>)]
    max: Option<WholeNumber>,
    /// How long to wait for the first delivery. Default: a fraction of a second.
    #[schema(value_type = Option<WaitTime>)]
    wait: Option<String>,
    /// How long the worker may take before the attempt counts as expired. Default: the `timeout` of
    /// each task.
    #[schema(value_type = Option<LeaseTime>)]
    lease: Option<String>,
    /// The name of the worker in the list of workers.
    #[schema(value_type = Option<WorkerName>)]
    worker: Option<String>,
}

documented!(
    /// The name of a worker.
    WorkerName,
    "WorkerName",
    json!({
        "type": "string",
        "maxLength": WORKER_NAME_BYTES_MAX,
        "x-max-bytes": WORKER_NAME_BYTES_MAX,
    })
);

documented!(
    /// Deliveries in one response.
    LeaseCount,
    "LeaseCount",
    count(1, LEASE_MAX, LEASE_DEFAULT)
);
documented!(
    /// How long a poll may wait.
    WaitTime,
    "WaitTime",
    duration(Duration::ZERO, WAIT_MAX)
);
documented!(
    /// How long a worker may take.
    LeaseTime,
    "LeaseTime",
    duration(LEASE_TIME_MIN, TIMEOUT_MAX)
);

/// Deliveries that the worker has leased.
#[derive(Debug, Serialize, ToSchema)]
struct Deliveries {
    /// At most `max`; empty if nothing was due in time.
    deliveries: Vec<DeliveryAnswer>,
}

/// One attempt, leased by a worker.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Delivery)]
struct DeliveryAnswer {
    /// Settles the delivery: ack, fail, refuse or extend.
    token: String,
    /// The same for all attempts of a fire; use it to recognize repetitions.
    #[schema(value_type = FireIdText)]
    fire_id: String,
    /// The id of the task.
    #[schema(value_type = TaskIdText)]
    task: String,
    /// The key of the task; `null` if it has none.
    #[schema(value_type = Option<KeyText>)]
    key: Option<String>,
    /// Why the task fires: `due` (the schedule), `manual` (a caller asked) or `return` (a watch
    /// that had fired was touched).
    #[schema(value_type = OccasionName)]
    occasion: &'static str,
    /// Counts from 1.
    attempt: u32,
    /// The version of the task.
    version: u64,
    /// The JSON payload as it was sent; `null` if there is none.
    #[schema(value_type = serde_json::Value)]
    payload: Option<Box<RawValue>>,
    /// Any other payload, in base64 with padding.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Base64Text>)]
    payload_base64: Option<String>,
    /// The content type of `payload_base64`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<ContentTypeText>)]
    content_type: Option<String>,
    /// When the fire was due.
    #[schema(value_type = InstantText)]
    fire_at: String,
    /// When this attempt was sent.
    #[schema(value_type = InstantText)]
    fired_at: String,
    /// `fired_at` minus `fire_at`, in milliseconds.
    lag_ms: u64,
    /// The fire whose end is reported, if the task is a callback.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<FireIdText>)]
    callback_of: Option<String>,
    /// How long the worker has, from now, to settle or extend.
    #[schema(value_type = Delay)]
    lease: String,
}

/// Lease deliveries
///
/// Waits for due deliveries of a queue and leases them to the worker.
#[utoipa::path(
    post, path = "/v1/{namespace}/queues/{queue}/lease", tag = "queues",
    request_body = LeaseBody,
    responses((
        status = 200, description = "The deliveries; none if the wait ended first.",
        body = Deliveries,
    ))
)]
pub(crate) async fn lease(
    State(broker): State<Arc<Broker>>,
    PathName(namespace, queue): PathName,
    address: Option<Extension<CallerAddress>>,
    JsonBody(bytes): JsonBody<BODY_BYTES_MAX>,
) -> ApiResult {
    let queue = queue_of(&queue)?;
    let body: LeaseBody = request::json_or_default(&bytes, "a lease request")?;
    // Not kept while the worker waits.
    drop(bytes);
    let max = body.max.map_or(Some(LEASE_DEFAULT), |max| usize::try_from(max.0).ok());
    let max = max
        .filter(|max| (1..=LEASE_MAX).contains(max))
        .ok_or_else(|| Invalid::new("max", format!("must be from 1 to {LEASE_MAX}")))?;
    let wait = between("wait", body.wait.as_deref(), Duration::ZERO, WAIT_MAX)?;
    let lease = between("lease", body.lease.as_deref(), LEASE_TIME_MIN, TIMEOUT_MAX)?;
    let wait = wait.unwrap_or_default().max(WAIT_MIN);
    let label = worker_label(body.worker.as_deref(), address)?;
    let _stream = broker.limits.streams.try_acquire(&namespace)?;
    let leased =
        poll::poll(&broker, PollOptions { namespace, queue, max, wait, lease, label }).await;
    let deliveries = leased.iter().map(|leased| DeliveryAnswer::of(&broker, leased)).collect();
    response::ok(&Deliveries { deliveries })
}

fn worker_label(
    name: Option<&str>,
    address: Option<Extension<CallerAddress>>,
) -> Result<WorkerLabel, Invalid> {
    let name = name.unwrap_or_default();
    if name.len() > WORKER_NAME_BYTES_MAX {
        let problem = format!("must have at most {WORKER_NAME_BYTES_MAX} bytes");
        return Err(Invalid::new("worker", problem));
    }
    // Without the port: each poll may come from another one.
    let host = |Extension(address): Extension<CallerAddress>| address.0.ip().to_string();
    let address = address.map_or_else(String::new, host);
    Ok(WorkerLabel::new(name, &address))
}

impl DeliveryAnswer {
    fn of(broker: &Broker, found: &PolledDelivery) -> Self {
        let delivery = &found.polled;
        let (payload, payload_base64, content_type) = match &delivery.payload {
            Payload::Empty => (None, None, None),
            Payload::Json(json) => (serde_json::from_slice(json).ok(), None, None),
            Payload::Binary { bytes, content_type } => {
                (None, Some(STANDARD.encode(bytes)), Some(content_type.to_string()))
            }
        };
        Self {
            token: poll::token_of(broker, found),
            fire_id: delivery.fire_id.to_string(),
            task: delivery.fire_id.task.to_string(),
            key: delivery.key.as_ref().map(|key| key.as_str().to_owned()),
            occasion: occasion_name(delivery.occasion),
            attempt: delivery.attempt.get(),
            version: delivery.version.get(),
            payload,
            payload_base64,
            content_type,
            fire_at: delivery.fire_at.to_string(),
            fired_at: delivery.fired_at.to_string(),
            lag_ms: lag_ms(delivery.fired_at, delivery.fire_at),
            callback_of: delivery.callback_of.map(|fire_id| fire_id.to_string()),
            lease: format_duration(delivery.lease),
        }
    }
}

/// The deliveries that succeeded: at least one of `tokens` and `acks`, together at most 10,000.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "a JSON object")]
#[schema(as = AckFields)]
struct AckBody<'a> {
    /// Tokens of deliveries without a result.
    #[serde(default)]
    #[schema(value_type = Option<TokenList>)]
    tokens: Option<Vec<String>>,
    /// Deliveries with a result.
    #[serde(borrow, default)]
    #[schema(value_type = Option<AckList>)]
    acks: Option<Vec<AckEntry<'a>>>,
}

/// A delivery that succeeded, and its result.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "an object with a `token`")]
#[schema(as = AckEntry)]
struct AckEntry<'a> {
    /// The token of the delivery.
    token: String,
    /// The result, which the history of the task keeps.
    #[serde(borrow, default)]
    #[schema(value_type = ResultJson)]
    result: Option<&'a RawValue>,
}

documented!(
    /// An [`AckBody`] with at least one of its fields.
    AckRequest,
    "Ack",
    {
        let given = |field: &str| {
            json!({"required": [field], "properties": {field: {"type": "array"}}})
        };
        with_keywords(&AckBody::schema(), &json!({"anyOf": [given("tokens"), given("acks")]}))
    },
    fields of AckBody
);
documented!(
    /// Deliveries that succeeded, with their results.
    AckList,
    "AckList",
    array(&reference::<AckEntry<'_>>(), 0, BATCH_MAX),
    uses AckEntry
);

documented!(
    /// The tokens of some deliveries.
    TokenList,
    "TokenList",
    array(&json!({"type": "string"}), 0, BATCH_MAX)
);

/// The result of an ack.
#[derive(Debug, Serialize, ToSchema)]
struct Acked {
    /// One per entry of `tokens`, then one per entry of `acks`, in order.
    results: Vec<AckedOne>,
}

/// The result for one token.
#[derive(Debug, Serialize, ToSchema)]
struct AckedOne {
    /// The token as it was sent.
    token: String,
    /// `stale`: the attempt had ended, and nothing was changed. `rejected`: the result is not
    /// allowed, and the lease continues.
    #[schema(value_type = AckResult)]
    result: &'static str,
    /// Why it was rejected.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<Problem>,
}

documented!(
    /// What became of an ack.
    AckResult,
    "AckResult",
    one_of([ACKED, STALE, REJECTED])
);
documented!(
    /// What became of another settlement.
    SettleResultName,
    "SettleResult",
    one_of([FAILED, REFUSED, EXTENDED, STALE])
);

/// The result of fail, refuse and extend.
#[derive(Debug, Serialize, ToSchema)]
struct Settled {
    /// `stale`: the attempt had ended, and nothing was changed.
    #[schema(value_type = SettleResultName)]
    result: &'static str,
}

/// Ack deliveries
///
/// Reports that deliveries succeeded, with or without results.
#[utoipa::path(
    post, path = "/v1/{namespace}/queues/{queue}/ack", tag = "queues", request_body = AckRequest,
    responses((status = 200, description = "One result each.", body = Acked))
)]
pub(crate) async fn ack(
    State(broker): State<Arc<Broker>>,
    PathName(namespace, queue): PathName,
    JsonBody(body): JsonBody<NAMES_BYTES_MAX>,
) -> ApiResult {
    ack_deliveries(&broker, &namespace, &queue, &body).await
}

pub(super) async fn ack_deliveries(
    broker: &Broker,
    namespace: &Namespace,
    queue: &str,
    body: &[u8],
) -> ApiResult {
    let queue = queue_of(queue)?;
    let body: AckBody<'_> = request::json(body, "a list of tokens")?;
    let acks = body.into_acks()?;
    let (mut settlements, mut results) = (Vec::new(), Vec::with_capacity(acks.len()));
    for (token, settlement) in acks {
        results.push(match settlement {
            Ok(settlement) => {
                settlements.push((token.clone(), settlement));
                AckedOne { token, result: STALE, problem: None }
            }
            Err(invalid) => {
                AckedOne { token, result: REJECTED, problem: Some(Problem::from(invalid)) }
            }
        });
    }
    let settled = poll::settle(broker, scope(namespace, &queue), settlements).await;
    let settled = settled.map_err(not_forwarded)?;
    let sent = results.iter_mut().filter(|one| one.problem.is_none());
    sent.zip(settled).for_each(|(one, settled)| one.result = result_name(settled, ACKED));
    response::ok(&Acked { results })
}

/// An ack and its token; an error if its result is not allowed.
type CheckedAck = (String, Result<Settlement, Invalid>);

impl AckBody<'_> {
    /// Checks the results. One that is not allowed does not affect the other acks.
    fn into_acks(self) -> Result<Vec<CheckedAck>, Invalid> {
        if self.tokens.is_none() && self.acks.is_none() {
            return Err(Invalid::new(
                "tokens",
                "at least one of `tokens` and `acks` must be given",
            ));
        }
        let (tokens, acks) = (self.tokens.unwrap_or_default(), self.acks.unwrap_or_default());
        check_count("tokens", tokens.len())?;
        check_count("acks", tokens.len() + acks.len())?;
        let plain = tokens.into_iter().map(|token| (token, Ok(Settlement::Ack)));
        let with_result =
            acks.into_iter().enumerate().map(|(index, AckEntry { token, result })| {
                let Some(json) = result else { return (token, Ok(Settlement::Ack)) };
                let result = WorkerResult::new(json.get().as_bytes());
                let invalid = |problem| Invalid::new(format!("acks[{index}].result"), problem);
                (token, result.map(|result| Settlement::AckWith { result }).map_err(invalid))
            });
        Ok(plain.chain(with_result).collect())
    }
}

/// A delivery that failed.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "a JSON object")]
#[schema(as = Fail)]
struct FailBody {
    /// The token of the delivery.
    token: String,
    /// Why, for the history, which keeps the beginning.
    #[serde(default)]
    reason: String,
    /// The pause before the next attempt. Default: by the retry policy.
    #[serde(default)]
    #[schema(value_type = Option<Pause>)]
    retry_in: Option<String>,
}

/// Fail a delivery
///
/// Reports that a delivery failed. The fire is retried as long as attempts are left.
#[utoipa::path(
    post, path = "/v1/{namespace}/queues/{queue}/fail", tag = "queues", request_body = FailBody,
    responses((status = 200, description = "Whether it counted.", body = Settled))
)]
pub(crate) async fn fail(
    State(broker): State<Arc<Broker>>,
    PathName(namespace, queue): PathName,
    JsonBody(body): JsonBody<BODY_BYTES_MAX>,
) -> ApiResult {
    let queue = queue_of(&queue)?;
    let body: FailBody = request::json(&body, "a token and a reason")?;
    let retry_in = between("retry_in", body.retry_in.as_deref(), Duration::ZERO, BACKOFF_MAX)?;
    let settlement = Settlement::Fail { reason: Reason::new(&body.reason), retry_in };
    settle(&broker, scope(&namespace, &queue), body.token, settlement, FAILED).await
}

/// A delivery that must not be retried.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "a JSON object")]
#[schema(as = Refuse)]
struct RefuseBody {
    /// The token of the delivery.
    token: String,
    /// Why, for the history, which keeps the beginning.
    #[serde(default)]
    reason: String,
}

/// Refuse a delivery
///
/// Reports that a delivery can never succeed. The fire becomes a dead letter.
#[utoipa::path(
    post, path = "/v1/{namespace}/queues/{queue}/refuse", tag = "queues", request_body = RefuseBody,
    responses((status = 200, description = "Whether it counted.", body = Settled))
)]
pub(crate) async fn refuse(
    State(broker): State<Arc<Broker>>,
    PathName(namespace, queue): PathName,
    JsonBody(body): JsonBody<BODY_BYTES_MAX>,
) -> ApiResult {
    let queue = queue_of(&queue)?;
    let body: RefuseBody = request::json(&body, "a token and a reason")?;
    let settlement = Settlement::Refuse { reason: Reason::new(&body.reason) };
    settle(&broker, scope(&namespace, &queue), body.token, settlement, REFUSED).await
}

/// A delivery that takes longer.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "a JSON object")]
#[schema(as = Extend)]
struct ExtendBody {
    /// The token of the delivery.
    token: String,
    /// The new lease, from now.
    #[schema(value_type = LeaseTime)]
    lease: String,
}

/// Extend a lease
///
/// Gives the worker more time, or less.
#[utoipa::path(
    post, path = "/v1/{namespace}/queues/{queue}/extend", tag = "queues", request_body = ExtendBody,
    responses((status = 200, description = "Whether it counted.", body = Settled))
)]
pub(crate) async fn extend(
    State(broker): State<Arc<Broker>>,
    PathName(namespace, queue): PathName,
    JsonBody(body): JsonBody<BODY_BYTES_MAX>,
) -> ApiResult {
    let queue = queue_of(&queue)?;
    let body: ExtendBody = request::json(&body, "a token and a lease")?;
    let lease = between("lease", Some(&body.lease), LEASE_TIME_MIN, TIMEOUT_MAX)?;
    let settlement = Settlement::Extend { lease: lease.unwrap_or(LEASE_TIME_MIN) };
    settle(&broker, scope(&namespace, &queue), body.token, settlement, EXTENDED).await
}

async fn settle(
    broker: &Broker,
    scope: SettleScope<'_>,
    token: String,
    settlement: Settlement,
    accepted: &'static str,
) -> ApiResult {
    let settled = poll::settle(broker, scope, vec![(token, settlement)]).await;
    let settled = settled.map_err(not_forwarded)?;
    let settled = settled.into_iter().next().unwrap_or(SettleResult::Stale);
    response::ok(&Settled { result: result_name(settled, accepted) })
}

const fn result_name(settled: SettleResult, accepted: &'static str) -> &'static str {
    match settled {
        SettleResult::Accepted => accepted,
        SettleResult::Stale => STALE,
    }
}

/// The broker that issued the token did not answer. Whether the settlement counts is not known;
/// sending it again is safe.
fn not_forwarded(error: PeerError) -> Problem {
    tracing::debug!(%error, "settlement not forwarded");
    EngineError::Lost.into()
}

/// A token counts only for the queue in the path.
const fn scope<'a>(namespace: &'a Namespace, queue: &'a Queue) -> SettleScope<'a> {
    SettleScope { namespace, queue: Some(queue) }
}

fn queue_of(name: &str) -> Result<Queue, Problem> {
    Ok(Queue::new(name).map_err(|invalid| Invalid::new("queue", invalid.problem))?)
}

fn between(
    field: &str,
    text: Option<&str>,
    min: Duration,
    max: Duration,
) -> Result<Option<Duration>, Invalid> {
    let Some(text) = text else {
        return Ok(None);
    };
    let length = parse_duration_field(field, text)?;
    if (min..=max).contains(&length) {
        return Ok(Some(length));
    }
    let (min, max) = (format_duration(min), format_duration(max));
    Err(Invalid::new(field, format!("must be from {min} to {max}, is {}", format_duration(length))))
}
