//! Webhooks: a delivery as an HTTP request.
//!
//! In: a [`Delivery`] with an HTTP target. Out: an [`Outcome`], by status: 2xx acks, 410 refuses, anything else fails, and
//! no answer in time is expired. 429 and 503 say with `Retry-After` when to come back.
//! Bound: one attempt takes no longer than the task's timeout, and no more than [`ANSWER_BYTES_MAX`] of an answer is
//! read. Redirects are not followed, proxies of the environment are not used.

use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, RETRY_AFTER, USER_AGENT};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use punctual_core::{HttpTarget, Method, Outcome, Reason, Target};
use punctual_engine::Delivery;

/// What is read of an answer: enough to keep the connection for the next delivery.
const ANSWER_BYTES_MAX: usize = 64 * 1024;
/// How long an idle connection is kept.
const IDLE_MAX: Duration = Duration::from_secs(60);
/// Idle connections kept per host.
const IDLE_CONNECTIONS_MAX: usize = 256;

const WEBHOOK_ID: HeaderName = HeaderName::from_static("webhook-id");
const WEBHOOK_TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
const PUNCTUAL_NAMESPACE: HeaderName = HeaderName::from_static("punctual-namespace");
const PUNCTUAL_KEY: HeaderName = HeaderName::from_static("punctual-key");
const PUNCTUAL_ATTEMPT: HeaderName = HeaderName::from_static("punctual-attempt");
const PUNCTUAL_FIRE_AT: HeaderName = HeaderName::from_static("punctual-fire-at");
const PUNCTUAL_LAG_MS: HeaderName = HeaderName::from_static("punctual-lag-ms");
const PUNCTUAL_VERSION: HeaderName = HeaderName::from_static("punctual-version");

/// Carries deliveries to webhooks over pooled connections.
#[derive(Debug)]
pub(crate) struct HttpCourier {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
}

impl HttpCourier {
    pub(crate) fn new() -> Self {
        let mut tcp = HttpConnector::new();
        tcp.set_nodelay(true);
        tcp.enforce_http(false);
        let connector = HttpsConnectorBuilder::new()
            .with_webpki_roots()
            .https_or_http()
            .enable_http1()
            .wrap_connector(tcp);
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_MAX)
            .pool_max_idle_per_host(IDLE_CONNECTIONS_MAX)
            // A request is sent once: whether to try again is the owner's decision.
            .retry_canceled_requests(false)
            .build(connector);
        Self { client }
    }

    async fn send(&self, request: Request<Full<Bytes>>) -> Outcome {
        match self.client.request(request).await {
            Ok(response) => judge(response).await,
            Err(error) => failed(&format!("no answer: {}", root_cause(&error))),
        }
    }
}

impl HttpCourier {
    /// Carries one delivery to its target and says what came of it.
    pub(crate) async fn carry(&self, delivery: &Delivery) -> Outcome {
        let Target::Http(target) = &delivery.definition.target else {
            return Outcome::Refused { reason: Reason::new("not a webhook") };
        };
        match request(delivery, target) {
            Ok(request) => {
                let timeout = delivery.definition.timeout;
                let answer = tokio::time::timeout(timeout, self.send(request)).await;
                answer.unwrap_or(Outcome::Expired)
            }
            Err(error) => Outcome::Refused { reason: Reason::new(&error.to_string()) },
        }
    }
}

fn request(delivery: &Delivery, target: &HttpTarget) -> Result<Request<Full<Bytes>>, http::Error> {
    let payload = &delivery.definition.payload;
    let body = match target.method() {
        Method::Get => Bytes::new(),
        _ => payload.bytes().clone(),
    };
    let mut request = Request::builder()
        .method(target.method().as_str())
        .uri(target.url())
        .header(USER_AGENT, concat!("punctual/", env!("CARGO_PKG_VERSION")))
        .header(WEBHOOK_ID, delivery.fire_id.to_string())
        .header(WEBHOOK_TIMESTAMP, delivery.fired_at.as_millis() / 1000)
        .header(PUNCTUAL_NAMESPACE, delivery.definition.namespace.as_str())
        .header(PUNCTUAL_ATTEMPT, delivery.attempt.get())
        .header(PUNCTUAL_FIRE_AT, delivery.fire_at.to_string())
        .header(PUNCTUAL_LAG_MS, lag_millis(delivery))
        .header(PUNCTUAL_VERSION, delivery.version.get());
    if let Some(key) = &delivery.definition.key {
        request = request.header(PUNCTUAL_KEY, HeaderValue::from_bytes(key.as_str().as_bytes())?);
    }
    if let Some(content_type) = payload.content_type()
        && !body.is_empty()
    {
        request = request.header(CONTENT_TYPE, content_type);
    }
    for (name, value) in target.headers() {
        request = request.header(name, value);
    }
    request.body(Full::new(body))
}

fn lag_millis(delivery: &Delivery) -> u64 {
    let lag = delivery.fired_at.since(delivery.fire_at).as_millis();
    u64::try_from(lag).unwrap_or(u64::MAX)
}

async fn judge(response: Response<Incoming>) -> Outcome {
    let (head, body) = response.into_parts();
    // The rest of a longer answer is not worth waiting for; the connection is dropped with it.
    let _ = Limited::new(body, ANSWER_BYTES_MAX).collect().await;
    let said = format!("HTTP {}", head.status.as_u16());
    match head.status {
        status if status.is_success() => Outcome::Acked,
        StatusCode::GONE => Outcome::Refused { reason: Reason::new(&said) },
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
            Outcome::Failed { reason: Reason::new(&said), retry_in: retry_after(&head.headers) }
        }
        _ => failed(&said),
    }
}

/// The seconds that a receiver asks for. A date instead of a number is not used: it would need the
/// receiver's clock to agree with ours.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}

fn failed(reason: &str) -> Outcome {
    Outcome::Failed { reason: Reason::new(reason), retry_in: None }
}

/// The innermost error, which is the one that says something ("connection refused").
fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}
