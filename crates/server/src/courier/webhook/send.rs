//! Sends a delivery as an HTTP request and reports what came of it.
//!
//! The status of the response decides, with the rules of the webhook (`answer`). No response within
//! the task's timeout is expired. An address that may not be called refuses, because a retry would
//! not help.
//!
//! A delivery may wait for a connection and for the lookup of a host name, which it shares with
//! others. That is not part of its attempt, and ends if the owner recalls it. The request is built
//! when its connection is open: what it says of time is the moment of sending.
//!
//! Redirects are not followed, and proxies of the environment are not used. Payloads, headers and
//! answers are not logged.

use std::error::Error;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HOST, USER_AGENT};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, Uri};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use punctual_core::{AttemptResult, Clock, HttpTarget, Method, Outcome, Reason, Target};
use punctual_engine::{Delivery, NotSendable};
use tokio::time::timeout;

use super::answer::{BODY_BYTES_MAX, WebhookResponse};
use super::connections::{
    Checkout, ConnectionPool, InUseGuard, OpenConnection, RequestSender, Unanswered,
    WebhookConnection,
};
use super::dial::{BoxError, DialError, Dialler, LookupPermit};
use super::gate::{GatedStream, SendGate};
use super::sign::Signer;
use crate::clock::SystemClock;
use crate::courier::stop::StopSignal;
use crate::courier::{inner_error, occasion_name};
use crate::shares::ShareKey;
use crate::telemetry::Telemetry;

const WEBHOOK_ID: HeaderName = HeaderName::from_static("webhook-id");
const WEBHOOK_TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
const WEBHOOK_SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");
const PUNCTUAL_NAMESPACE: HeaderName = HeaderName::from_static("punctual-namespace");
pub(in crate::courier) const PUNCTUAL_KEY: HeaderName = HeaderName::from_static("punctual-key");
const PUNCTUAL_OCCASION: HeaderName = HeaderName::from_static("punctual-occasion");
const PUNCTUAL_ATTEMPT: HeaderName = HeaderName::from_static("punctual-attempt");
const PUNCTUAL_FIRE_AT: HeaderName = HeaderName::from_static("punctual-fire-at");
const PUNCTUAL_LAG_MS: HeaderName = HeaderName::from_static("punctual-lag-ms");
const PUNCTUAL_VERSION: HeaderName = HeaderName::from_static("punctual-version");
const PUNCTUAL_CALLBACK_OF: HeaderName = HeaderName::from_static("punctual-callback-of");
/// Headers that a request has in addition to those of its task.
const OUR_HEADERS_MAX: usize = 14;
pub(in crate::courier) const AGENT: HeaderValue =
    HeaderValue::from_static(concat!("punctual/", env!("CARGO_PKG_VERSION")));

/// Carries deliveries to webhooks over a pool of connections.
#[derive(Debug)]
pub(crate) struct HttpCourier {
    parts: Arc<HttpParts>,
}

/// What the couriers of webhooks and of gRPC methods share. Both use one pool.
#[derive(Debug)]
pub(in crate::courier) struct HttpParts {
    pub(in crate::courier) dialler: Dialler,
    pub(in crate::courier) pool: ConnectionPool,
    pub(in crate::courier) signer: Signer,
    /// Bytes of each answer that are kept.
    pub(in crate::courier) answer_bytes: usize,
    pub(in crate::courier) clock: Arc<SystemClock>,
    pub(in crate::courier) telemetry: Telemetry,
    stop: StopSignal,
}

impl HttpCourier {
    pub(crate) fn new(
        dialler: Dialler,
        connections_max: usize,
        signer: Signer,
        answer_bytes: usize,
        clock: Arc<SystemClock>,
        telemetry: Telemetry,
    ) -> Self {
        let pool = ConnectionPool::new(connections_max, Arc::clone(&clock), telemetry.clone());
        pool.watch();
        let stop = StopSignal::new();
        let parts = HttpParts { dialler, pool, signer, answer_bytes, clock, telemetry, stop };
        Self { parts: Arc::new(parts) }
    }

    /// What the courier of gRPC methods shares with this one.
    pub(in crate::courier) fn parts(&self) -> Arc<HttpParts> {
        Arc::clone(&self.parts)
    }

    /// Sends one delivery and sets its `fired_at`. Returns its result; `None` if it counts as not
    /// sent.
    pub(crate) async fn deliver(&self, delivery: &mut Delivery) -> Option<AttemptResult> {
        let (permit, guarantee) = (delivery.permit.clone(), delivery.definition.guarantee);
        let (fire_id, stop) = (delivery.fire_id, &self.parts.stop);
        let sending = self.send(delivery);
        let result = stop.unless_stopped(fire_id, permit, guarantee, sending).await?;
        self.parts.note(delivery, &result);
        Some(result)
    }

    /// Returns whether no delivery to a webhook or a gRPC method is in flight.
    pub(crate) fn is_idle(&self) -> bool {
        self.parts.stop.is_idle()
    }

    /// Stops waiting for answers. Returns how many deliveries were in flight.
    pub(crate) fn give_up(&self) -> usize {
        self.parts.stop.give_up()
    }

    /// Returns `None` if the owner does not allow it to be sent any more.
    async fn send(&self, delivery: &mut Delivery) -> Option<AttemptResult> {
        let definition = Arc::clone(&delivery.definition);
        let Target::Http(target) = &definition.target else {
            return Some(refused(&"not a webhook").into());
        };
        let uri: Uri = match target.url().parse() {
            Ok(uri) => uri,
            Err(error) => return Some(refused(&error).into()),
        };
        let (parts, origin) = (&*self.parts, target.origin());
        let key = ShareKey::part(definition.namespace.clone(), origin);
        loop {
            let Checkout { in_use, idle } = parts.pool.checkout(&key).await;
            let connection = match idle {
                Some(OpenConnection::Webhook(sender)) => {
                    OpenOrNew::Open(WebhookConnection::new(sender, in_use))
                }
                Some(OpenConnection::Grpc(_)) | None => {
                    let _waits = parts.telemetry.webhook_lookup_waits();
                    let lookup = parts.dialler.lookup_permit(&definition.namespace, &uri);
                    // Boxed, because most deliveries find an open connection.
                    let lookup = Box::pin(lookup).await;
                    OpenOrNew::New(in_use, lookup)
                }
            };
            let was_open = matches!(connection, OpenOrNew::Open(_));
            let mut answered = None;
            let attempt = async {
                let attempt = self.attempt(delivery, target, &uri, connection);
                let (connection, response) = attempt.await?;
                let response = WebhookResponse::new(response, target.rules(), parts.answer_bytes);
                let (connection, response) = answered.insert((connection, response));
                connection.drive(response.read()).await;
                Ok(())
            };
            let ended: Result<Result<(), AttemptError>, _> =
                timeout(definition.timeout, attempt).await;
            if let Some((connection, response)) = answered {
                if response.is_complete() {
                    connection.keep().await;
                }
                return Some(response.judge());
            }
            let error = match ended {
                Ok(Err(error)) => error,
                Ok(Ok(())) | Err(_) => return Some(Outcome::Expired.into()),
            };
            let outcome = match error {
                // The receiver had closed the idle connection, and nothing was sent.
                AttemptError::Unanswered(Unanswered::Closed(_)) if was_open => continue,
                AttemptError::Unanswered(Unanswered::NotSendable(why))
                | AttemptError::NotSendable(why) => {
                    tracing::debug!(fire_id = %delivery.fire_id, %why, "delivery not sent");
                    return None;
                }
                AttemptError::Unanswered(Unanswered::Closed(error) | Unanswered::Broken(error)) => {
                    outcome_of_failure(&error)
                }
                AttemptError::Dial(error) => outcome_of_failure(error.as_ref()),
                AttemptError::Request(error) => refused(&error),
            };
            return Some(outcome.into());
        }
    }

    /// Opens a connection if need be, sends the request and waits for the head of its answer. Once
    /// the first byte has been written, the request is not sent again: that is the owner's
    /// decision.
    async fn attempt(
        &self,
        delivery: &mut Delivery,
        target: &HttpTarget,
        uri: &Uri,
        connection: OpenOrNew,
    ) -> Result<(WebhookConnection, Response<Incoming>), AttemptError> {
        let HttpParts { clock, signer, .. } = &*self.parts;
        delivery.fired_at = clock.now();
        delivery.permit.check(delivery.fired_at).map_err(AttemptError::NotSendable)?;
        let mut connection = match connection {
            OpenOrNew::Open(connection) => connection,
            OpenOrNew::New(in_use, lookup) => {
                let connecting = self.connect(uri, in_use, lookup);
                // Boxed, because it is large and most deliveries find an open connection.
                Box::pin(connecting).await.map_err(AttemptError::Dial)?
            }
        };
        delivery.fired_at = clock.now();
        let request = request(delivery, target, uri, signer).map_err(AttemptError::Request)?;
        let answer = connection.sender.send(request, &delivery.permit).await;
        Ok((connection, answer.map_err(AttemptError::Unanswered)?))
    }

    async fn connect(
        &self,
        uri: &Uri,
        in_use: InUseGuard,
        lookup: LookupPermit,
    ) -> Result<WebhookConnection, BoxError> {
        let stream = self.parts.dialler.dial(uri, lookup).await?;
        let gate = SendGate::new(Arc::clone(&self.parts.clock));
        let stream = GatedStream::new(stream, gate.clone());
        let (requests, connection) =
            http1::Builder::new().max_buf_size(BODY_BYTES_MAX).handshake(stream).await?;
        Ok(WebhookConnection::new(RequestSender::new(requests, connection, gate), in_use))
    }
}

impl HttpParts {
    /// The signal that ends deliveries in flight.
    pub(in crate::courier) const fn stop(&self) -> &StopSignal {
        &self.stop
    }

    /// Notes that an attempt has ended.
    pub(in crate::courier) fn note(&self, delivery: &Delivery, result: &AttemptResult) {
        log_failure(delivery, result);
        self.telemetry.attempt(delivery, &result.outcome, self.clock.now());
    }
}

/// The reason of an attempt that was answered may repeat a part of the answer; it is not logged.
fn log_failure(delivery: &Delivery, result: &AttemptResult) {
    let (fire_id, attempt) = (delivery.fire_id, delivery.attempt.get());
    match (&result.outcome, &result.answer) {
        (Outcome::Acked, _) => {}
        (_, Some(answer)) => {
            tracing::debug!(%fire_id, attempt, status = answer.status(), "attempt failed");
        }
        (outcome, None) => tracing::debug!(%fire_id, attempt, ?outcome, "attempt failed"),
    }
}

/// What a delivery is sent on.
enum OpenOrNew {
    Open(WebhookConnection),
    New(InUseGuard, LookupPermit),
}

/// Why an attempt has no answer.
enum AttemptError {
    /// Nothing was sent.
    NotSendable(NotSendable),
    Dial(BoxError),
    /// The task has a URL or a header that cannot be sent.
    Request(BoxError),
    Unanswered(Unanswered),
}

/// Returns the value of the header `host`: the port is part of it unless it is the default.
pub(in crate::courier) fn host_of(uri: &Uri) -> Result<HeaderValue, BoxError> {
    let authority = uri.authority().ok_or("the URL names no host")?;
    let is_default = matches!(
        (uri.scheme_str(), authority.port_u16()),
        (Some("http"), Some(80)) | (Some("https"), Some(443))
    );
    let host = if is_default { authority.host() } else { authority.as_str() };
    Ok(host.try_into()?)
}

/// Returns the URI that an origin server expects: the path and the query alone.
fn origin_form(uri: &Uri) -> Result<Uri, BoxError> {
    match uri.path_and_query() {
        // Shares the bytes of the URL.
        Some(path) if path.as_str().len() > 1 && path.as_str().starts_with('/') => {
            Ok(path.clone().into())
        }
        Some(path) if path.as_str().starts_with('?') => Ok(format!("/{}", path.as_str()).parse()?),
        _ => Ok(Uri::default()),
    }
}

/// Adds the headers that tell the receiver about the delivery, except for the key of its task.
pub(in crate::courier) fn put_headers(
    headers: &mut HeaderMap,
    delivery: &Delivery,
    signer: &Signer,
    body: &[u8],
) -> Result<(), BoxError> {
    let task = &delivery.definition;
    let (id, timestamp) = (delivery.fire_id.to_string(), delivery.fired_at.as_millis() / 1000);
    let namespace = task.namespace.of_caller();
    if let Some(signature) = signer.sign(&namespace, &id, timestamp, body) {
        headers.insert(WEBHOOK_SIGNATURE, signature);
    }
    headers.insert(WEBHOOK_ID, id.try_into()?);
    headers.insert(WEBHOOK_TIMESTAMP, timestamp.into());
    headers.insert(PUNCTUAL_NAMESPACE, namespace.as_str().try_into()?);
    let occasion = HeaderValue::from_static(occasion_name(delivery.occasion));
    headers.insert(PUNCTUAL_OCCASION, occasion);
    headers.insert(PUNCTUAL_ATTEMPT, delivery.attempt.get().into());
    headers.insert(PUNCTUAL_FIRE_AT, delivery.fire_at.to_string().try_into()?);
    headers.insert(PUNCTUAL_LAG_MS, lag_millis(delivery).into());
    headers.insert(PUNCTUAL_VERSION, delivery.version.get().into());
    if let Some(fire_id) = task.callback_of {
        headers.insert(PUNCTUAL_CALLBACK_OF, fire_id.to_string().try_into()?);
    }
    Ok(())
}

/// Builds the request. Our headers are set last, so that a task cannot forge them.
fn request(
    delivery: &Delivery,
    target: &HttpTarget,
    uri: &Uri,
    signer: &Signer,
) -> Result<Request<Full<Bytes>>, BoxError> {
    let (task, payload) = (&delivery.definition, &delivery.definition.payload);
    let body = match target.method() {
        Method::Get => Bytes::new(),
        _ => payload.bytes().clone(),
    };
    let mut request = Request::new(Full::new(body.clone()));
    *request.method_mut() = target.method().as_str().try_into()?;
    *request.uri_mut() = origin_form(uri)?;
    let headers = request.headers_mut();
    headers.reserve(OUR_HEADERS_MAX + target.headers().len());
    headers.insert(USER_AGENT, AGENT);
    for (name, value) in target.headers() {
        let (name, value) = (HeaderName::try_from(name)?, HeaderValue::try_from(value)?);
        headers.insert(name, value);
    }
    put_headers(headers, delivery, signer, &body)?;
    if let Some(key) = &task.key {
        headers.insert(PUNCTUAL_KEY, HeaderValue::from_bytes(key.as_str().as_bytes())?);
    }
    if let Some(content_type) = payload.content_type()
        && !body.is_empty()
    {
        headers.insert(CONTENT_TYPE, content_type.try_into()?);
    }
    if body.is_empty() && target.method() != Method::Get {
        headers.insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
    }
    if !headers.contains_key(HOST) {
        headers.insert(HOST, host_of(uri)?);
    }
    Ok(request)
}

fn lag_millis(delivery: &Delivery) -> u64 {
    let lag = delivery.fired_at.since(delivery.fire_at).as_millis();
    u64::try_from(lag).unwrap_or(u64::MAX)
}

/// Returns the outcome for a request without an answer.
pub(in crate::courier) fn outcome_of_failure(error: &(dyn Error + 'static)) -> Outcome {
    use rustls::CertificateError::{BadSignature, UnknownIssuer};
    let mut cause = error;
    loop {
        if let Some(DialError::Forbidden(forbidden)) = cause.downcast_ref() {
            return Outcome::Refused { reason: Reason::new(&forbidden.to_string()) };
        }
        // No trusted authority has signed the certificate, or another with the name of a trusted
        // one.
        if let Some(rustls::Error::InvalidCertificate(UnknownIssuer | BadSignature)) =
            cause.downcast_ref()
        {
            return failed(
                "no answer: its certificate is not signed by a trusted authority; \
                 add one with --webhook-ca",
            );
        }
        match inner_error(cause) {
            Some(source) => cause = source,
            // The innermost error has the useful text ("connection refused").
            None => return failed(&format!("no answer: {cause}")),
        }
    }
}

fn refused(error: &dyn std::fmt::Display) -> Outcome {
    Outcome::Refused { reason: Reason::new(&error.to_string()) }
}

fn failed(reason: &str) -> Outcome {
    Outcome::Failed { reason: Reason::new(reason), retry_in: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receiver_gets_the_path_and_the_host_of_the_url() {
        for (url, path, host) in [
            ("http://example.org", "/", "example.org"),
            ("http://example.org/", "/", "example.org"),
            ("http://example.org:80/a", "/a", "example.org"),
            ("https://example.org:443/a?b=c", "/a?b=c", "example.org"),
            ("https://example.org:80/a/", "/a/", "example.org:80"),
            ("http://[::1]:9000?b=c", "/?b=c", "[::1]:9000"),
        ] {
            let uri: Uri = url.parse().unwrap();
            assert_eq!(origin_form(&uri).unwrap().to_string(), path, "{url}");
            assert_eq!(host_of(&uri).unwrap(), host, "{url}");
        }
    }
}
