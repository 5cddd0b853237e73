//! Webhooks: a delivery as an HTTP request.
//!
//! In: a [`Delivery`] with an HTTP target. Out: an [`Outcome`], by status: 2xx acks, 410 refuses, anything else fails, and
//! no answer in time is expired. 429 and 503 say with `Retry-After` when to come back. An address that may not be called
//! refuses as well: trying again would not make it allowed.
//! Bound: an answer begins within the task's timeout, and no more than [`ANSWER_BYTES_MAX`] of it is read, for no longer
//! than [`ANSWER_MAX`]. Redirects are not followed, proxies of the environment are not used.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, USER_AGENT};
use http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use punctual_core::{Clock, HttpTarget, Method, Outcome, Reason, Target};
use punctual_engine::Delivery;
use tokio::sync::watch;
use tokio::time::timeout;

use super::dial::{DialError, Dialler};
use super::given_up;
use super::occasion_name;
use super::retry_after::retry_after;
use super::sign::Signer;
use crate::clock::SystemClock;
use crate::telemetry::Telemetry;

/// What is read of an answer: enough to keep the connection for the next delivery.
const ANSWER_BYTES_MAX: usize = 64 * 1024;
/// How long the rest of an answer is waited for when its status is known.
const ANSWER_MAX: Duration = Duration::from_secs(1);
/// How long an idle connection is kept.
const IDLE_MAX: Duration = Duration::from_secs(60);
/// Idle connections kept per host.
const IDLE_CONNECTIONS_MAX: usize = 256;

const WEBHOOK_ID: HeaderName = HeaderName::from_static("webhook-id");
const WEBHOOK_TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
const WEBHOOK_SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");
const PUNCTUAL_NAMESPACE: HeaderName = HeaderName::from_static("punctual-namespace");
const PUNCTUAL_KEY: HeaderName = HeaderName::from_static("punctual-key");
const PUNCTUAL_OCCASION: HeaderName = HeaderName::from_static("punctual-occasion");
const PUNCTUAL_ATTEMPT: HeaderName = HeaderName::from_static("punctual-attempt");
const PUNCTUAL_FIRE_AT: HeaderName = HeaderName::from_static("punctual-fire-at");
const PUNCTUAL_LAG_MS: HeaderName = HeaderName::from_static("punctual-lag-ms");
const PUNCTUAL_VERSION: HeaderName = HeaderName::from_static("punctual-version");
const AGENT: HeaderValue =
    HeaderValue::from_static(concat!("punctual/", env!("CARGO_PKG_VERSION")));

/// Carries deliveries to webhooks over pooled connections. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct HttpCourier {
    client: Client<Dialler, Full<Bytes>>,
    signer: Signer,
    clock: Arc<SystemClock>,
    telemetry: Telemetry,
    /// Becomes true when nobody waits for answers any more. Those who listen are the deliveries under way.
    over: watch::Sender<bool>,
}

impl HttpCourier {
    pub(crate) fn new(
        dialler: Dialler,
        signer: Signer,
        clock: Arc<SystemClock>,
        telemetry: Telemetry,
    ) -> Self {
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_MAX)
            .pool_max_idle_per_host(IDLE_CONNECTIONS_MAX)
            .http1_max_buf_size(ANSWER_BYTES_MAX)
            // A request is sent once: whether to try again is the owner's decision.
            .retry_canceled_requests(false)
            .build(dialler);
        Self { client, signer, clock, telemetry, over: watch::Sender::new(false) }
    }

    /// Carries one delivery and says what came of it, if that is known and counts.
    pub(crate) async fn deliver(&self, delivery: &Delivery) -> Option<Outcome> {
        let mut over = self.over.subscribe();
        let outcome = tokio::select! {
            outcome = self.send(delivery) => outcome?,
            _ = over.wait_for(|over| *over) => given_up(delivery)?,
        };
        if outcome != Outcome::Acked {
            let (fire_id, attempt) = (delivery.fire_id, delivery.attempt.get());
            tracing::debug!(%fire_id, attempt, ?outcome, "an attempt came to nothing");
        }
        self.telemetry.attempt(delivery.attempt, delivery.fire_at, delivery.fired_at, &outcome);
        Some(outcome)
    }

    /// Whether no answer is waited for.
    pub(crate) fn is_idle(&self) -> bool {
        self.over.receiver_count() == 0
    }

    /// Waits for no answer any more; for how many it did.
    pub(crate) fn give_up(&self) -> usize {
        self.over.send_replace(true);
        self.over.receiver_count()
    }

    /// Nothing, if it was not sent because it is too late to.
    async fn send(&self, delivery: &Delivery) -> Option<Outcome> {
        let Target::Http(target) = &delivery.definition.target else {
            return Some(Outcome::Refused { reason: Reason::new("not a webhook") });
        };
        let request = match request(delivery, target, &self.signer) {
            Ok(request) => request,
            Err(error) => {
                return Some(Outcome::Refused { reason: Reason::new(&error.to_string()) });
            }
        };
        if self.clock.now() >= delivery.send_by {
            return None;
        }
        let answer = timeout(delivery.definition.timeout, self.client.request(request)).await;
        Some(match answer {
            Ok(Ok(response)) => {
                let (head, body) = response.into_parts();
                read_rest(body).await;
                judge(head.status, &head.headers)
            }
            Ok(Err(error)) => judge_failure(&error),
            Err(_) => Outcome::Expired,
        })
    }
}

/// The caller's headers come first and ours replace them: whatever the store holds, nobody speaks in our name.
fn request(
    delivery: &Delivery,
    target: &HttpTarget,
    signer: &Signer,
) -> Result<Request<Full<Bytes>>, http::Error> {
    let (task, payload) = (&delivery.definition, &delivery.definition.payload);
    let body = match target.method() {
        Method::Get => Bytes::new(),
        _ => payload.bytes().clone(),
    };
    let mut request = Request::builder()
        .method(target.method().as_str())
        .uri(target.url())
        .body(Full::new(body.clone()))?;
    let headers = request.headers_mut();
    headers.insert(USER_AGENT, AGENT);
    for (name, value) in target.headers() {
        let (name, value) = (HeaderName::try_from(name)?, HeaderValue::try_from(value)?);
        headers.insert(name, value);
    }
    let (id, timestamp) = (delivery.fire_id.to_string(), delivery.fired_at.as_millis() / 1000);
    if let Some(signature) = signer.sign(&task.namespace, &id, timestamp, &body) {
        headers.insert(WEBHOOK_SIGNATURE, signature);
    }
    headers.insert(WEBHOOK_ID, id.try_into()?);
    headers.insert(WEBHOOK_TIMESTAMP, timestamp.into());
    headers.insert(PUNCTUAL_NAMESPACE, task.namespace.as_str().try_into()?);
    let occasion = HeaderValue::from_static(occasion_name(delivery.occasion));
    headers.insert(PUNCTUAL_OCCASION, occasion);
    headers.insert(PUNCTUAL_ATTEMPT, delivery.attempt.get().into());
    headers.insert(PUNCTUAL_FIRE_AT, delivery.fire_at.to_string().try_into()?);
    headers.insert(PUNCTUAL_LAG_MS, lag_millis(delivery).into());
    headers.insert(PUNCTUAL_VERSION, delivery.version.get().into());
    if let Some(key) = &task.key {
        headers.insert(PUNCTUAL_KEY, HeaderValue::from_bytes(key.as_str().as_bytes())?);
    }
    if let Some(content_type) = payload.content_type()
        && !body.is_empty()
    {
        headers.insert(CONTENT_TYPE, content_type.try_into()?);
    }
    Ok(request)
}

fn lag_millis(delivery: &Delivery) -> u64 {
    let lag = delivery.fired_at.since(delivery.fire_at).as_millis();
    u64::try_from(lag).unwrap_or(u64::MAX)
}

/// Reads what is left of an answer, so that its connection can be used again. An answer that is too long or too slow
/// costs its connection, and nothing else: the status has been said.
async fn read_rest(body: Incoming) {
    let _ = timeout(ANSWER_MAX, Limited::new(body, ANSWER_BYTES_MAX).collect()).await;
}

/// What an answer means.
fn judge(status: StatusCode, headers: &HeaderMap) -> Outcome {
    let said = format!("HTTP {}", status.as_u16());
    match status {
        status if status.is_success() => Outcome::Acked,
        StatusCode::GONE => Outcome::Refused { reason: Reason::new(&said) },
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
            Outcome::Failed { reason: Reason::new(&said), retry_in: retry_after(headers) }
        }
        _ => failed(&said),
    }
}

/// What it means that there is no answer.
fn judge_failure(error: &(dyn std::error::Error + 'static)) -> Outcome {
    let mut cause = error;
    loop {
        if is_of_a_stranger(cause) {
            return failed(
                "no answer: no authority that is trusted has signed its certificate; \
                 --webhook-ca trusts further ones",
            );
        }
        if let Some(DialError::Forbidden(forbidden)) = cause.downcast_ref() {
            return Outcome::Refused { reason: Reason::new(&forbidden.to_string()) };
        }
        match cause.source() {
            Some(source) => cause = source,
            // The innermost error is the one that says something ("connection refused").
            None => return failed(&format!("no answer: {cause}")),
        }
    }
}

/// Whether a certificate leads to no authority that is trusted, or to a stranger with the name of one.
fn is_of_a_stranger(error: &(dyn std::error::Error + 'static)) -> bool {
    use rustls::CertificateError::{BadSignature, UnknownIssuer};
    // What stands in an io::Error is not its source, but the error itself.
    let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
    let inner = inner.and_then(|inner| inner.downcast_ref());
    matches!(inner, Some(rustls::Error::InvalidCertificate(UnknownIssuer | BadSignature)))
}

fn failed(reason: &str) -> Outcome {
    Outcome::Failed { reason: Reason::new(reason), retry_in: None }
}
