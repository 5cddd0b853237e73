//! The HTTP API: requests become commands, answers become JSON.
//!
//! In: HTTP. Out: HTTP. `tasks` holds the calls, `task` the wire form of a task, `error` every status code that is
//! not a success. Invariant: whatever comes in, the answer is one of the API's own, and an error names what to change.

mod calls;
mod error;
mod grpc;
mod task;
mod tasks;

use std::sync::Arc;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::routing::{get, post, put};

use crate::broker::Broker;
use error::Problem;

/// One request's body: a task with the largest payload, in base64, with room for the rest of it.
pub(crate) const BODY_BYTES_MAX: usize = 512 * 1024;

/// All routes.
pub(crate) fn router(broker: Arc<Broker>) -> Router {
    let task = put(tasks::replace).get(tasks::show).delete(tasks::cancel);
    Router::new()
        .route("/v1/{namespace}/tasks", post(tasks::create))
        .route("/v1/{namespace}/tasks/{key}", task)
        .route("/livez", get(async || "alive\n"))
        .route("/readyz", get(async || "ready\n"))
        .fallback(async || Problem::no_such_route())
        .method_not_allowed_fallback(async || Problem::method_not_allowed())
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .with_state(Arc::clone(&broker))
        .merge(grpc::routes(&broker))
}
