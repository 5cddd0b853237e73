//! Webhooks: a delivery as an HTTP request.
//!
//! In: a [`Delivery`] with an HTTP target. Out: an [`Outcome`], by status: 2xx acks, 410 refuses, anything else fails, and
//! no answer in time is expired. 429 and 503 say with `Retry-After` when to come back. An address that may not be called
//! refuses as well: trying again would not make it allowed.
//! Bound: an answer begins within the task's timeout, and no more than [`ANSWER_BYTES_MAX`] of it is read, for no longer
//! than [`ANSWER_MAX`]. Redirects are not followed, proxies of the environment are not used.

use std::error::Error;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST, USER_AGENT};
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use punctual_core::{Clock, HttpTarget, Method, Outcome, Reason, Target};
use punctual_engine::{Delivery, LeaseEnd};
use tokio::sync::watch;
use tokio::time::timeout;
use tower_service::Service as _;

use super::connections::{Connection, Connections, Found, Line, Room, Sender, Unanswered, Use};
use super::dial::{BoxError, DialError, Dialler};
use super::gate::{Gate, GatedStream, LeaseOver};
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

/// Carries deliveries to webhooks over connections that are kept and bounded.
#[derive(Debug)]
pub(crate) struct HttpCourier {
    dialler: Dialler,
    connections: Connections,
    signer: Signer,
    clock: Arc<SystemClock>,
    telemetry: Telemetry,
    /// Becomes true when nobody waits for answers any more. Those who listen are the deliveries under way.
    over: watch::Sender<bool>,
}

impl HttpCourier {
    pub(crate) fn new(
        dialler: Dialler,
        connections_max: usize,
        signer: Signer,
        clock: Arc<SystemClock>,
        telemetry: Telemetry,
    ) -> Self {
        let connections = Connections::new(connections_max, Arc::clone(&clock), telemetry.clone());
        connections.watch();
        let over = watch::Sender::new(false);
        Self { dialler, connections, signer, clock, telemetry, over }
    }

    /// Carries one delivery and says what came of it, if that is known and counts.
    pub(crate) async fn deliver(&self, delivery: &Delivery) -> Option<Outcome> {
        let mut over = self.over.subscribe();
        let line = line(delivery);
        let found = tokio::select! {
            found = self.connections.find(&line) => found,
            // Nobody has got anything of it.
            _ = over.wait_for(|over| *over) => return None,
        };
        let outcome = tokio::select! {
            outcome = self.send(delivery, &line, found) => outcome?,
            _ = over.wait_for(|over| *over) => given_up(delivery)?,
        };
        if outcome != Outcome::Acked {
            let (fire_id, attempt) = (delivery.fire_id, delivery.attempt.get());
            tracing::debug!(%fire_id, attempt, ?outcome, "an attempt came to nothing");
        }
        self.telemetry.attempt(delivery, &outcome);
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
    async fn send(&self, delivery: &Delivery, line: &Line, found: Found) -> Option<Outcome> {
        let Target::Http(target) = &delivery.definition.target else {
            return Some(Outcome::Refused { reason: Reason::new("not a webhook") });
        };
        let request = match request(delivery, target, &self.signer) {
            Ok(request) => request,
            Err(error) => {
                return Some(Outcome::Refused { reason: Reason::new(&error.to_string()) });
            }
        };
        if delivery.lease_end.is_over(self.clock.now()) {
            return None;
        }
        let exchange = self.exchange(request, line, found, &delivery.lease_end);
        let answer = timeout(delivery.definition.timeout, exchange).await;
        Some(match answer {
            Ok(Ok((connection, response))) => {
                let (head, body) = response.into_parts();
                if read_rest(body).await {
                    connection.keep().await;
                }
                judge(head.status, &head.headers)
            }
            Ok(Err(error)) if error.is::<LeaseOver>() => return None,
            Ok(Err(error)) => judge_failure(error.as_ref()),
            Err(_) => Outcome::Expired,
        })
    }

    /// Sends a request and waits for the head of its answer. What has begun to be sent is not sent again: whether to is the owner's
    /// decision.
    async fn exchange(
        &self,
        request: Request<Full<Bytes>>,
        line: &Line,
        mut found: Found,
        lease_end: &LeaseEnd,
    ) -> Result<(Connection, Response<Incoming>), BoxError> {
        let uri = request.uri().clone();
        let mut request = to_origin(request)?;
        loop {
            let (mut connection, is_new) = match found {
                Found::Connection(connection) => (connection, false),
                Found::Room(room, usage) => (self.connect(&uri, room, usage).await?, true),
            };
            match connection.sender.send(request, lease_end.clone()).await {
                Ok(response) => return Ok((connection, response)),
                // A receiver may close a connection that is kept at any time; this was noticed before anything was sent.
                Err(Unanswered::Unsent(unsent, _)) if !is_new => request = unsent,
                Err(Unanswered::Unsent(_, error) | Unanswered::Broken(error)) => {
                    return Err(error.into());
                }
                Err(Unanswered::LeaseOver) => return Err(LeaseOver.into()),
            }
            drop(connection);
            found = self.connections.find(line).await;
        }
    }

    async fn connect(&self, uri: &Uri, room: Room, usage: Use) -> Result<Connection, BoxError> {
        let stream = self.dialler.clone().call(uri.clone()).await?;
        let gate = Gate::new(Arc::clone(&self.clock));
        let stream = GatedStream::new(stream, gate.clone());
        let (requests, connection) =
            http1::Builder::new().max_buf_size(ANSWER_BYTES_MAX).handshake(stream).await?;
        tokio::spawn(async move {
            // What goes wrong is told to whoever waits for the answer.
            let _ = connection.await;
            drop(room);
        });
        Ok(Connection::new(Sender::new(requests, gate), usage))
    }
}

/// Whom a delivery shares connections with.
fn line(delivery: &Delivery) -> Line {
    let definition = &delivery.definition;
    let origin = match &definition.target {
        Target::Http(target) => target.origin(),
        Target::Queue(_) => "",
    };
    Line(definition.namespace.clone(), origin.into())
}

/// As it is said to the receiver itself: the path alone, and the host in its header.
fn to_origin(mut request: Request<Full<Bytes>>) -> Result<Request<Full<Bytes>>, BoxError> {
    let uri = request.uri().clone();
    let authority = uri.authority().ok_or("the URL names no host")?;
    let is_default = matches!(
        (uri.scheme_str(), authority.port_u16()),
        (Some("http"), Some(80)) | (Some("https"), Some(443))
    );
    let host = if is_default { authority.host() } else { authority.as_str() };
    if !request.headers().contains_key(HOST) {
        request.headers_mut().insert(HOST, host.try_into()?);
    }
    let path = uri.path_and_query().map_or("/", PathAndQuery::as_str);
    *request.uri_mut() = path.parse()?;
    Ok(request)
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

/// Reads what is left of an answer, so that its connection can be used again; whether it can. An answer that is too long or too slow
/// costs its connection, and nothing else: the status has been said.
async fn read_rest(body: Incoming) -> bool {
    let read = timeout(ANSWER_MAX, Limited::new(body, ANSWER_BYTES_MAX).collect()).await;
    matches!(read, Ok(Ok(_)))
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
fn judge_failure(error: &(dyn Error + 'static)) -> Outcome {
    use rustls::CertificateError::{BadSignature, UnknownIssuer};
    let mut cause = error;
    loop {
        if let Some(DialError::Forbidden(forbidden)) = cause.downcast_ref() {
            return Outcome::Refused { reason: Reason::new(&forbidden.to_string()) };
        }
        // Nobody has signed it who is trusted, or a stranger with the name of one who is.
        if let Some(rustls::Error::InvalidCertificate(UnknownIssuer | BadSignature)) =
            cause.downcast_ref()
        {
            return failed(
                "no answer: no authority that is trusted has signed its certificate; \
                 --webhook-ca trusts further ones",
            );
        }
        match beneath(cause) {
            Some(source) => cause = source,
            // The innermost error is the one that says something ("connection refused").
            None => return failed(&format!("no answer: {cause}")),
        }
    }
}

/// What an error is about. The one that an [`io::Error`] was made of is not its source.
fn beneath<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a (dyn Error + 'static)> {
    let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
    inner.map_or_else(|| error.source(), |inner| Some(inner))
}

fn failed(reason: &str) -> Outcome {
    Outcome::Failed { reason: Reason::new(reason), retry_in: None }
}
