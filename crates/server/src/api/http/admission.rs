//! The gate: what every request of HTTP passes before its route, and who counts it afterwards.
//!
//! In: a request. Out: the route's answer, or a refusal. One function, not a layer for each question: six layers were a third of what a
//! request for one task cost (`docs/bench.md`).

use std::sync::Arc;

use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use http::request::Parts;

use super::error::Problem;
use crate::broker::Broker;
use crate::listen;

/// What is answered while the broker drains: whether it does, and what workers say of what they have.
const ANSWERED_WHEN_DRAINING: [&str; 7] = [
    "/livez",
    "/readyz",
    "/metrics",
    "/v1/{namespace}/queues/{queue}/ack",
    "/v1/{namespace}/queues/{queue}/fail",
    "/v1/{namespace}/queues/{queue}/refuse",
    "/v1/{namespace}/queues/{queue}/extend",
];

/// Lets a request through that may pass, and counts it.
pub(super) async fn pass(
    State(broker): State<Arc<Broker>>,
    request: Request,
    next: Next,
) -> Response {
    let (mut head, body) = request.into_parts();
    let route = head.extensions.get::<MatchedPath>().cloned();
    let route = route.as_ref().map(MatchedPath::as_str);
    let (method, version) = (head.method.clone(), head.version);
    let telemetry = broker.telemetry.clone();
    let response = match admit(&broker, &mut head, route).await {
        Ok(()) => {
            drop(broker);
            let (body, unread) = listen::timely(body);
            let response = next.run(Request::from_parts(head, body)).await;
            if let Some(unread) = unread.and_then(|unread| unread.take()) {
                Box::pin(listen::read_off(version, unread)).await;
            }
            response
        }
        Err(problem) => {
            Box::pin(listen::read_off(version, body)).await;
            problem.into_response()
        }
    };
    telemetry.request(&method, route, response.status());
    response
}

/// No page of a stranger has made it, whoever asks may, and the broker still takes it.
async fn admit(broker: &Broker, head: &mut Parts, route: Option<&str>) -> Result<(), Problem> {
    broker.strangers.check(&head.uri, &head.headers)?;
    if let Some(route) = route {
        broker.tokens.admit(head, route).await?;
    }
    // Whoever asks is better served by the next broker.
    if broker.is_draining() && !ANSWERED_WHEN_DRAINING.contains(&route.unwrap_or_default()) {
        return Err(Problem::stopping());
    }
    Ok(())
}
