//! The HTTP API: requests become commands, answers become JSON.
//!
//! In: HTTP. Out: HTTP. `tasks` holds the calls, `task` the wire form of a task, `error` every status code that is
//! not a success. Invariant: whatever comes in, the answer is one of the API's own, and an error names what to change.
//! A new route declares its right in `auth`, or nobody may call it.

mod error;
mod task;
mod tasks;

use std::sync::Arc;

use axum::Router;
use axum::extract::{DefaultBodyLimit, MatchedPath, Request, State};
use axum::middleware::{Next, from_fn_with_state, map_request};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use http::header::CONTENT_TYPE;
use punctual_core::Clock as _;

use crate::auth;
use crate::broker::Broker;
use crate::listen;
use crate::telemetry::{PAGE_TYPE, Telemetry};
pub(crate) use error::Problem;

/// One request's body: a task with the largest payload, in base64, with room for the rest of it.
pub(crate) const BODY_BYTES_MAX: usize = 512 * 1024;

/// All routes, and what every request passes on its way to them.
pub(crate) fn router(broker: Arc<Broker>) -> Router {
    routes()
        .fallback(async || Problem::no_such_route())
        .method_not_allowed_fallback(async || Problem::method_not_allowed())
        // Read from the last line up: a request comes in from below.
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .layer(map_request(async |request: Request| request.map(listen::timely)))
        .layer(from_fn_with_state(broker.tokens.clone(), auth::check))
        .layer(from_fn_with_state(broker.telemetry.clone(), count))
        .with_state(broker)
}

/// All routes.
pub(crate) fn routes() -> Router<Arc<Broker>> {
    let task = put(tasks::replace).get(tasks::show).delete(tasks::cancel);
    Router::new()
        .route("/v1/{namespace}/tasks", post(tasks::create))
        .route("/v1/{namespace}/tasks/{key}", task)
        .route("/livez", get(async || "alive\n"))
        .route("/readyz", get(async || "ready\n"))
        .route("/metrics", get(metrics))
}

/// `GET /metrics`
async fn metrics(State(broker): State<Arc<Broker>>) -> impl IntoResponse {
    let gauges = broker.owners.gauges(None).await.ok();
    ([(CONTENT_TYPE, PAGE_TYPE)], broker.telemetry.page(gauges, broker.clock.now()))
}

async fn count(State(telemetry): State<Telemetry>, request: Request, next: Next) -> Response {
    let method = request.method().clone();
    let route = request.extensions().get::<MatchedPath>().cloned();
    let response = next.run(request).await;
    telemetry.request(&method, route.as_ref().map(MatchedPath::as_str), response.status());
    response
}
