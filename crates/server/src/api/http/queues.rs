//! Queues over HTTP: workers lease deliveries by long poll, and say what came of them.
//!
//! In: polls and words of workers. Out: deliveries under tokens, and whether a word counted. A token whose attempt is over, or that was
//! never given for this queue, is `stale`, and nothing is changed by it.
//! Next door: `courier/hub` decides who gets what; a worker that goes away while it waits has taken nothing.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use punctual_core::{
    BACKOFF_MAX, Invalid, Namespace, Payload, Queue, Reason, TIMEOUT_MAX, format_duration,
};
use punctual_engine::EngineError;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::answer::{self, Answer};
use super::error::Problem;
use super::fires::lag_ms;
use super::request::{self, BODY_BYTES_MAX, NAMES_BYTES_MAX, Named, Sent, check_count};
use super::task::duration;
use crate::broker::Broker;
use crate::courier::hub::{Heard, Place, Word};
use crate::courier::occasion_name;
use crate::peer::PeerError;
use crate::poll::{self, Found, Want};

/// Deliveries of one poll.
const LEASE_MAX: usize = 1000;
/// How long a poll may wait: proxies commonly cut a silent connection soon after.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// How long a poll waits at least: what is due stands with its owner, who hears only now that somebody wants it.
const WAIT_MIN: Duration = Duration::from_millis(100);
/// The shortest time for which a worker can say that it has something.
const LEASE_TIME_MIN: Duration = Duration::from_secs(1);

/// What a worker wants.
#[derive(Debug, Deserialize, Default, ToSchema)]
#[serde(deny_unknown_fields, default, expecting = "a JSON object")]
#[schema(as = Lease)]
struct LeaseBody {
    /// Deliveries at most: 1 to 1000; 1 unless given.
    max: Option<u64>,
    /// How long to wait for the first: up to 60s; as short as can be unless given.
    wait: Option<String>,
    /// For how long they are the worker's: 1s to 15m; the timeout of the task unless given.
    lease: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
struct Deliveries {
    deliveries: Vec<DeliveryAnswer>,
}

/// What travels for one attempt.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Delivery)]
struct DeliveryAnswer {
    /// Settles it.
    token: String,
    /// For dedup: the same for every attempt of a fire.
    fire_id: String,
    /// The id of the task.
    task: String,
    key: Option<String>,
    /// Why there is this fire: `due` by the schedule, `manual` on request, or the `return` of a watch.
    occasion: &'static str,
    attempt: u16,
    version: u64,
    /// A JSON payload as it was sent; `null` if there is none.
    #[schema(value_type = serde_json::Value)]
    payload: Option<Box<RawValue>>,
    /// Any other payload.
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_base64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content_type: Option<String>,
    fire_at: String,
    fired_at: String,
    lag_ms: u64,
    /// For how long it is the worker's.
    lease: String,
}

/// Waits for deliveries of a queue.
#[utoipa::path(
    post, path = "/v1/{namespace}/queues/{queue}/lease", tag = "queues", request_body = LeaseBody,
    responses((status = 200, description = "some, or none when the wait was over", body = Deliveries))
)]
pub(crate) async fn lease(
    State(broker): State<Arc<Broker>>,
    Named(namespace, queue): Named,
    Sent(body): Sent<BODY_BYTES_MAX>,
) -> Answer {
    let queue = queue_of(&queue)?;
    let body: LeaseBody = request::json_or_default(&body, "what is wanted")?;
    let max = body.max.map_or(Some(1), |max| usize::try_from(max).ok());
    let max = max
        .filter(|max| (1..=LEASE_MAX).contains(max))
        .ok_or_else(|| Invalid::new("max", format!("must be from 1 to {LEASE_MAX}")))?;
    let wait = between("wait", body.wait.as_deref(), Duration::ZERO, WAIT_MAX)?;
    let lease = between("lease", body.lease.as_deref(), LEASE_TIME_MIN, TIMEOUT_MAX)?;
    let wait = wait.unwrap_or_default().max(WAIT_MIN);
    let found = poll::poll(&broker, Want { namespace, queue, max, wait, lease }).await;
    let deliveries = found.iter().map(|found| DeliveryAnswer::of(&broker, found)).collect();
    answer::ok(&Deliveries { deliveries })
}

impl DeliveryAnswer {
    fn of(broker: &Broker, found: &Found) -> Self {
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
            lease: format_duration(delivery.lease),
        }
    }
}

/// What is done.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "a JSON object")]
#[schema(as = Ack)]
struct AckBody {
    tokens: Vec<String>,
}

#[derive(Debug, Serialize, ToSchema)]
struct Acked {
    results: Vec<AckedOne>,
}

#[derive(Debug, Serialize, ToSchema)]
struct AckedOne {
    token: String,
    /// `acked` or `stale`.
    result: &'static str,
}

/// What came of a word.
#[derive(Debug, Serialize, ToSchema)]
struct Settled {
    /// `failed`, `refused`, `extended` or `stale`.
    result: &'static str,
}

/// Says that deliveries are done.
#[utoipa::path(
    post, path = "/v1/{namespace}/queues/{queue}/ack", tag = "queues", request_body = AckBody,
    responses((status = 200, description = "one result each", body = Acked))
)]
pub(crate) async fn ack(
    State(broker): State<Arc<Broker>>,
    Named(namespace, queue): Named,
    Sent(body): Sent<NAMES_BYTES_MAX>,
) -> Answer {
    let queue = queue_of(&queue)?;
    let body: AckBody = request::json(&body, "a list of tokens")?;
    check_count("tokens", body.tokens.len())?;
    let words = body.tokens.iter().map(|text| (text.clone(), Word::Ack));
    let heard = poll::settle(&broker, place(&namespace, &queue), words.collect()).await;
    let heard = heard.map_err(unheard)?;
    let results = body.tokens.into_iter().zip(heard).map(|(token, heard)| {
        let result = said(heard, "acked");
        AckedOne { token, result }
    });
    answer::ok(&Acked { results: results.collect() })
}

/// What is not done, and worth another try.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "a JSON object")]
#[schema(as = Fail)]
struct FailBody {
    token: String,
    #[serde(default)]
    reason: String,
    /// When to try again; as the retry policy says unless given.
    #[serde(default)]
    retry_in: Option<String>,
}

/// Says that a delivery is not done, and worth another try.
#[utoipa::path(
    post, path = "/v1/{namespace}/queues/{queue}/fail", tag = "queues", request_body = FailBody,
    responses((status = 200, description = "failed, or stale", body = Settled))
)]
pub(crate) async fn fail(
    State(broker): State<Arc<Broker>>,
    Named(namespace, queue): Named,
    Sent(body): Sent<BODY_BYTES_MAX>,
) -> Answer {
    let queue = queue_of(&queue)?;
    let body: FailBody = request::json(&body, "a token and a reason")?;
    let retry_in = between("retry_in", body.retry_in.as_deref(), Duration::ZERO, BACKOFF_MAX)?;
    let word = Word::Fail { reason: Reason::new(&body.reason), retry_in };
    settle(&broker, place(&namespace, &queue), body.token, word, "failed").await
}

/// What is never to be tried again.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "a JSON object")]
#[schema(as = Refuse)]
struct RefuseBody {
    token: String,
    #[serde(default)]
    reason: String,
}

/// Says that a delivery is never to be tried again.
#[utoipa::path(
    post, path = "/v1/{namespace}/queues/{queue}/refuse", tag = "queues", request_body = RefuseBody,
    responses((status = 200, description = "refused, or stale", body = Settled))
)]
pub(crate) async fn refuse(
    State(broker): State<Arc<Broker>>,
    Named(namespace, queue): Named,
    Sent(body): Sent<BODY_BYTES_MAX>,
) -> Answer {
    let queue = queue_of(&queue)?;
    let body: RefuseBody = request::json(&body, "a token and a reason")?;
    let word = Word::Refuse { reason: Reason::new(&body.reason) };
    settle(&broker, place(&namespace, &queue), body.token, word, "refused").await
}

/// What takes longer.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "a JSON object")]
#[schema(as = Extend)]
struct ExtendBody {
    token: String,
    /// From now on: 1s to 15m.
    lease: String,
}

/// Gives a lease another end.
#[utoipa::path(
    post, path = "/v1/{namespace}/queues/{queue}/extend", tag = "queues", request_body = ExtendBody,
    responses((status = 200, description = "extended, or stale", body = Settled))
)]
pub(crate) async fn extend(
    State(broker): State<Arc<Broker>>,
    Named(namespace, queue): Named,
    Sent(body): Sent<BODY_BYTES_MAX>,
) -> Answer {
    let queue = queue_of(&queue)?;
    let body: ExtendBody = request::json(&body, "a token and a lease")?;
    let lease = between("lease", Some(&body.lease), LEASE_TIME_MIN, TIMEOUT_MAX)?;
    let word = Word::Extend { lease: lease.unwrap_or(LEASE_TIME_MIN) };
    settle(&broker, place(&namespace, &queue), body.token, word, "extended").await
}

async fn settle(
    broker: &Broker,
    place: Place<'_>,
    token: String,
    word: Word,
    taken: &'static str,
) -> Answer {
    let heard = poll::settle(broker, place, vec![(token, word)]).await.map_err(unheard)?;
    let heard = heard.into_iter().next().unwrap_or(Heard::Stale);
    answer::ok(&Settled { result: said(heard, taken) })
}

const fn said(heard: Heard, taken: &'static str) -> &'static str {
    match heard {
        Heard::Taken => taken,
        Heard::Stale => "stale",
    }
}

/// The broker that leased could not be told: whether the word counts is not known, and saying it again does no harm.
fn unheard(error: PeerError) -> Problem {
    tracing::debug!(%error, "a word of a worker was not passed on");
    EngineError::Lost.into()
}

/// A word counts for what came from the queue in its path.
const fn place<'a>(namespace: &'a Namespace, queue: &'a Queue) -> Place<'a> {
    Place { namespace, queue: Some(queue) }
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
    let length = duration(field, text)?;
    if (min..=max).contains(&length) {
        return Ok(Some(length));
    }
    let (min, max) = (format_duration(min), format_duration(max));
    Err(Invalid::new(field, format!("must be from {min} to {max}, is {}", format_duration(length))))
}
