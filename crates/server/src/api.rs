//! The HTTP API: requests become commands, answers become JSON.
//!
//! In: HTTP. Out: HTTP. Invariant: whatever comes in, the answer is one of the API's own, and an error names what to change.
//!
//! `tasks` (one task), `batch` (many), `list`, `fires` (history), `dead`, `queues`, `stats`, `forecast`, `preview` and `health` hold the
//! calls; `task` the wire form of a task, `when` what is said of its time; `request` and `answer` what is common to all; `error` every status code that is not a
//! success; `openapi` the document; `gate` what every request passes first. `calls` and `merge` are how many owners and many partitions are asked
//! at once. A new route declares its right in `auth`, or nobody may call it.

mod answer;
mod error;
mod gate;
mod grpc;
mod request;
mod task;

mod when;

mod calls;
mod cursor;
mod idempotency;
mod merge;

mod batch;
mod dead;
mod fires;
mod forecast;
mod health;
mod list;
mod openapi;
pub mod preview;
mod queues;
mod stats;
mod tasks;

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::middleware::from_fn_with_state;
use axum::response::IntoResponse;
use http::header::CONTENT_TYPE;
use punctual_core::Clock as _;
use utoipa::openapi::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::broker::Broker;
use crate::telemetry::PAGE_TYPE;
pub(crate) use error::Problem;

/// All routes, and what every request passes on its way to them.
pub(crate) fn router(broker: Arc<Broker>) -> Router {
    routes()
        .0
        .fallback(async || Problem::no_such_route())
        .method_not_allowed_fallback(async || Problem::method_not_allowed())
        .layer(from_fn_with_state(Arc::clone(&broker), gate::pass))
        .with_state(Arc::clone(&broker))
        // With limits, deadlines and rights of its own: a stream lasts.
        .merge(grpc::routes(&broker))
}

/// What Prometheus reads.
#[utoipa::path(
    get, path = "/metrics", tag = "health",
    responses((status = 200, description = "metrics", body = String, content_type = "application/openmetrics-text"))
)]
async fn metrics(State(broker): State<Arc<Broker>>) -> impl IntoResponse {
    broker.store.tell_rewinds();
    let gauges = broker.owners.gauges_here(None).await.ok();
    ([(CONTENT_TYPE, PAGE_TYPE)], broker.telemetry.page(gauges, broker.clock.now()))
}

/// All routes, and what they say of themselves. A route that is not made here is not in the document.
pub(crate) fn routes() -> (Router<Arc<Broker>>, OpenApi) {
    OpenApiRouter::with_openapi(openapi::beginning())
        .routes(routes!(batch::create, list::list))
        .routes(routes!(tasks::replace, tasks::show, tasks::cancel))
        .routes(routes!(tasks::touch))
        .routes(routes!(tasks::pause))
        .routes(routes!(tasks::resume))
        .routes(routes!(tasks::fire))
        .routes(routes!(fires::list))
        .routes(routes!(batch::touch))
        .routes(routes!(batch::cancel))
        .routes(routes!(dead::list))
        .routes(routes!(dead::redrive))
        .routes(routes!(dead::delete))
        .routes(routes!(stats::stats))
        .routes(routes!(forecast::forecast))
        .routes(routes!(preview::preview))
        .routes(routes!(queues::lease))
        .routes(routes!(queues::ack))
        .routes(routes!(queues::fail))
        .routes(routes!(queues::refuse))
        .routes(routes!(queues::extend))
        .routes(routes!(health::topology))
        .routes(routes!(health::livez))
        .routes(routes!(health::readyz))
        .routes(routes!(openapi::show))
        .routes(routes!(metrics))
        .split_for_parts()
}
