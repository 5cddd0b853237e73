//! The checks that every HTTP request passes before its route.
//!
//! A request is refused if a web page of another origin sent it, if its caller has no right to the
//! route, or if the broker drains. Every request is counted with its route and status. This is one
//! middleware and not one per check: six layers took a third of the time of a request for one task
//! (`docs/lab/bench.md`).

use std::sync::Arc;

use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use http::request::Parts;

use crate::broker::Broker;
use crate::listen;
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
    let response = match check(&broker, &mut head, route).await {
        Ok(()) => {
            drop(broker);
            let (body, unread) = listen::with_deadline(body);
            let response = next.run(Request::from_parts(head, body)).await;
            if let Some(unread) = unread.and_then(|unread| unread.take()) {
                Box::pin(listen::discard_body(version, unread)).await;
            }
            response
        }
        Err(problem) => {
            Box::pin(listen::discard_body(version, body)).await;
            problem.into_response()
        }
    };
    telemetry.request(&method, route, response.status());
    response
}

async fn check(broker: &Broker, head: &mut Parts, route: Option<&str>) -> Result<(), Problem> {
    broker.browser_policy.check(&head.uri, &head.headers)?;
    if let Some(route) = route {
        broker.tokens.check(head, route).await?;
    }
    if broker.is_draining() && !SERVED_WHILE_DRAINING.contains(&route.unwrap_or_default()) {
        return Err(Problem::stopping());
    }
    Ok(())
}
