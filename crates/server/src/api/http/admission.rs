//! The checks that every HTTP request passes before its route.
//!
//! A request is refused if a web page of another origin sent it, if its caller has no right to the
//! route, or if the broker drains; then nothing of its body is kept. Otherwise its body is bounded
//! (`api/body.rs`). Every request is counted with its route and status, and those of operators are
//! noted (`action_notes`). This is one middleware and not one per check: six layers took a third of
//! the time of a request for one task (`docs/lab/bench.md`).

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use http::header::{CONNECTION, HOST};
use http::request::Parts;
use http::{HeaderValue, Version};

use super::action_notes;
use crate::api::begun_action::BegunAction;
use crate::api::body::{self, BodyKind, BodyOwner, BodyProblem, BoundedBody};
use crate::auth::Identity;
use crate::broker::Broker;
use crate::listen::ConnectionTrust;
use crate::problem::Problem;

/// The routes that a draining broker still serves: health, metrics, and settling of deliveries
/// that workers have leased already.
pub(super) const SERVED_WHILE_DRAINING: [&str; 7] = [
    "/livez",
    "/readyz",
    "/metrics",
    "/v1/{namespace}/queues/{queue}/ack",
    "/v1/{namespace}/queues/{queue}/fail",
    "/v1/{namespace}/queues/{queue}/refuse",
    "/v1/{namespace}/queues/{queue}/extend",
];

/// Checks a request, runs its route, and counts it.
pub(super) async fn admit(
    State(broker): State<Arc<Broker>>,
    request: Request,
    next: Next,
) -> Response {
    let (mut head, body) = request.into_parts();
    let route = head.extensions.get::<MatchedPath>().cloned();
    let route = route.as_ref().map(MatchedPath::as_str);
    let (method, version) = (head.method.clone(), head.version);
    let telemetry = broker.telemetry.clone();
    let trust = head.extensions.get::<ConnectionTrust>();
    let stranger = trust.filter(|trust| !trust.is_trusted()).cloned();
    let mut response = match check(&broker, &mut head, route).await {
        Ok(action) => {
            let mut response = if http_body::Body::is_end_stream(&body) {
                drop(broker);
                next.run(Request::from_parts(head, body)).await
            } else {
                let owner = BodyOwner::Path(head.uri.clone());
                let limits = Arc::clone(&broker.limits);
                drop(broker);
                let to_error = |problem| BodyProblem(problem).into();
                let body = BoundedBody::new(body, BodyKind::Whole, owner, limits, to_error);
                let (in_use, unread) = (body.large_permit(), body.unread());
                let response = next.run(Request::from_parts(head, Body::new(body))).await;
                drop(in_use);
                Box::pin(unread.discard(version, response.status())).await;
                response
            };
            if let Some(action) = action {
                action_notes::end(action, &mut response);
            }
            response
        }
        Err(problem) => {
            Box::pin(body::discard_refused(version, body)).await;
            problem.into_response()
        }
    };
    if version < Version::HTTP_2 && stranger.is_some_and(|it| it.is_finishing()) {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    telemetry.request(&method, route, response.status());
    response
}

/// Checks a request. Returns the action to note when its route has succeeded, if it is one.
async fn check(
    broker: &Broker,
    head: &mut Parts,
    route: Option<&str>,
) -> Result<Option<BegunAction>, Problem> {
    check_origin(broker, head)?;
    let identity = match route {
        Some(route) => broker.tokens.check(head, route).await,
        None => Ok(None),
    };
    note_caller(head, identity.as_ref().ok().and_then(Option::as_ref))?;
    let identity = identity?;
    check_stage(broker, route)?;
    match (route, identity) {
        (Some(route), Some(identity)) => {
            Ok(action_notes::begin(broker, head, route, &identity).await)
        }
        _ => Ok(None),
    }
}

/// The same checks for a route that `fast_path` answers. A request that is refused here changes
/// nothing: the router checks it again, and answers it.
pub(super) fn check_fast(
    broker: &Broker,
    head: &Parts,
    trust: &ConnectionTrust,
    route: &str,
    namespace: &str,
) -> Result<(), Problem> {
    check_origin(broker, head)?;
    let identity = broker.tokens.check_in(head, route, namespace)?;
    check_stage(broker, Some(route))?;
    let identity = identity.ok_or_else(Problem::unauthenticated)?;
    if action_notes::is_action(head, route, &identity, namespace) {
        // The router notes it.
        return Err(Problem::not_found());
    }
    trust.identified(&identity)
}

fn check_origin(broker: &Broker, head: &Parts) -> Result<(), Problem> {
    check_host(head)?;
    broker.browser_policy.check(&head.uri, &head.headers)
}

/// A draining broker serves few routes.
fn check_stage(broker: &Broker, route: Option<&str>) -> Result<(), Problem> {
    if broker.is_draining() && !SERVED_WHILE_DRAINING.contains(&route.unwrap_or_default()) {
        return Err(Problem::stopping());
    }
    Ok(())
}

/// Notes on the connection of a request whether its caller has shown a valid token.
pub(crate) fn note_caller(head: &Parts, identity: Option<&Identity>) -> Result<(), Problem> {
    match (head.extensions.get::<ConnectionTrust>(), identity) {
        (Some(trust), Some(identity)) => trust.identified(identity),
        (Some(trust), None) => {
            trust.not_identified();
            Ok(())
        }
        (None, _) => Ok(()),
    }
}

/// A request of HTTP/1.1 must have one `Host` (RFC 9112, 3.2).
pub(crate) fn check_host(head: &Parts) -> Result<(), Problem> {
    let hosts = head.headers.get_all(HOST).iter().count();
    if hosts > 1 || (hosts == 0 && head.version == Version::HTTP_11) {
        let detail = "a request must have exactly one Host header";
        return Err(Problem::invalid_request(detail, Some("host".to_owned())));
    }
    Ok(())
}
