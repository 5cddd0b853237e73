//! The HTTP API: requests become commands, answers become JSON.
//!
//! In: HTTP. Out: HTTP. Invariant: whatever comes in, the answer is one of the API's own, and an error names what to change.
//!
//! `tasks` (one task), `batch` (many), `list`, `fires` (history), `dead`, `queues`, `stats`, `forecast` and `health` hold the
//! calls; `task` the wire form of a task; `request` and `answer` what is common to all; `error` every status code that is not a
//! success; `openapi` the document. `calls` and `merge` are how many owners and many partitions are asked at once.

mod answer;
mod error;
mod request;
mod task;

mod calls;
mod cursor;
mod merge;

mod batch;
mod dead;
mod fires;
mod forecast;
mod health;
mod list;
mod openapi;
mod queues;
mod stats;
mod tasks;

use std::sync::Arc;

use axum::{Extension, Router};
use utoipa::openapi::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::broker::Broker;
use error::Problem;

/// All routes, and what every request passes on its way to them.
pub(crate) fn router(broker: Arc<Broker>) -> Router {
    let (routes, document) = routes();
    routes
        .layer(Extension(openapi::whole(document)))
        .fallback(async || Problem::no_such_route())
        .method_not_allowed_fallback(async || Problem::method_not_allowed())
        .with_state(broker)
}

/// All routes, and what they say of themselves. A route that is not made here is not in the document.
fn routes() -> (Router<Arc<Broker>>, OpenApi) {
    OpenApiRouter::with_openapi(openapi::beginning())
        .routes(routes!(batch::create, list::list))
        .routes(routes!(tasks::replace, tasks::show, tasks::cancel))
        .routes(routes!(tasks::touch))
        .routes(routes!(tasks::pause))
        .routes(routes!(tasks::resume))
        .routes(routes!(fires::list))
        .routes(routes!(batch::touch))
        .routes(routes!(batch::cancel))
        .routes(routes!(dead::list))
        .routes(routes!(dead::redrive))
        .routes(routes!(dead::delete))
        .routes(routes!(stats::stats))
        .routes(routes!(forecast::forecast))
        .routes(routes!(queues::lease))
        .routes(routes!(queues::ack))
        .routes(routes!(queues::fail))
        .routes(routes!(queues::refuse))
        .routes(routes!(queues::extend))
        .routes(routes!(health::topology))
        .routes(routes!(health::livez))
        .routes(routes!(health::readyz))
        .routes(routes!(openapi::show))
        .split_for_parts()
}
