//! The HTTP API: requests become commands, answers become JSON.
//!
//! In: HTTP. Out: HTTP. `tasks` holds the calls, `task` the wire form of a task, `error` every status code that is
//! not a success. Invariant: whatever comes in, the answer is one of the API's own, and an error names what to change.
//! A new route declares its right in `auth`, or nobody may call it.

mod error;
mod task;
mod tasks;

use axum::extract::{DefaultBodyLimit, MatchedPath, Request, State};
use axum::middleware::{Next, from_fn_with_state, map_request};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use axum::{Extension, Router};
use http::header::CONTENT_TYPE;

use crate::auth::{self, Tokens};
use crate::broker::Owners;
use crate::courier::Guard;
use crate::listen;
use crate::telemetry::{PAGE_TYPE, Telemetry};
pub(crate) use error::Problem;

/// One request's body: a task with the largest payload, in base64, with room for the rest of it.
pub(crate) const BODY_BYTES_MAX: usize = 512 * 1024;

/// What stands between a request and its route.
#[derive(Debug, Clone)]
pub(crate) struct Gate {
    /// Who may come in,
    pub(crate) tokens: Tokens,
    /// what their tasks may call,
    pub(crate) guard: Guard,
    /// and who counts them.
    pub(crate) telemetry: Telemetry,
}

/// All routes, and what every request passes on its way to them.
pub(crate) fn router(owners: Owners, gate: Gate) -> Router {
    routes()
        .fallback(async || Problem::no_such_route())
        .method_not_allowed_fallback(async || Problem::method_not_allowed())
        // Read from the last line up: a request comes in from below.
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .layer(map_request(async |request: Request| request.map(listen::timely)))
        .layer(Extension(gate.guard))
        .layer(Extension(gate.telemetry.clone()))
        .layer(from_fn_with_state(gate.tokens, auth::check))
        .layer(from_fn_with_state(gate.telemetry, count))
        .with_state(owners)
}

/// All routes.
pub(crate) fn routes() -> Router<Owners> {
    let task = put(tasks::replace).get(tasks::show).delete(tasks::cancel);
    Router::new()
        .route("/v1/{namespace}/tasks", post(tasks::create))
        .route("/v1/{namespace}/tasks/{key}", task)
        .route("/livez", get(async || "alive\n"))
        .route("/readyz", get(async || "ready\n"))
        .route("/metrics", get(metrics))
}

/// `GET /metrics`
async fn metrics(Extension(telemetry): Extension<Telemetry>) -> impl IntoResponse {
    // The owners do not say yet what they hold; when they do, it goes in here.
    let gauges = None;
    ([(CONTENT_TYPE, PAGE_TYPE)], telemetry.page(gauges))
}

async fn count(State(telemetry): State<Telemetry>, request: Request, next: Next) -> Response {
    let method = request.method().clone();
    let route = request.extensions().get::<MatchedPath>().cloned();
    let response = next.run(request).await;
    telemetry.request(&method, route.as_ref().map(MatchedPath::as_str), response.status());
    response
}
