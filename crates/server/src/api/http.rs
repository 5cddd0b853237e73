//! The HTTP API: requests become commands, replies become JSON.
//!
//! `tasks`, `explain`, `fires`, `dead_letters`, `operations`, `actions`, `alarms`, `rules`,
//! `queues`, `workers`, `lanes`, `stats`, `namespaces`, `forecast`, `series`, `live`, `preview`,
//! `health`, `whoami`, `clock` and `console` hold the routes.
//! `admission` checks every request first, `action_notes` notes what operators do, `fast_path`
//! answers the most frequent requests without the router, `request` reads paths, queries and
//! bodies, `preference` how much of a task a caller wants back, `response` writes successes,
//! `page_cursor` spells cursors, and `openapi` makes the document.
//! A new route needs a right in `auth`; without one it is refused.

mod action_notes;
mod actions;
mod admission;
mod alarms;
mod clock;
mod connections;
mod console;
mod dead_letters;
mod explain;
pub(super) mod fast_path;
mod fires;
pub(super) mod forecast;
pub(crate) mod health;
mod lanes;
mod live;
mod namespaces;
mod openapi;
pub(crate) mod operations;
pub(super) mod page_cursor;
mod preference;
pub mod preview;
mod queues;
mod request;
mod response;
mod rules;
pub(crate) mod series;
mod stats;
pub(crate) mod tasks;
mod whoami;
mod workers;

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::middleware::from_fn_with_state;
use axum::response::IntoResponse;
use axum::routing::get;
use http::header::CONTENT_TYPE;
use punctual_core::Clock as _;
use utoipa::openapi::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::broker::Broker;
use crate::problem::Problem;
use crate::telemetry::PAGE_TYPE;
use crate::virtual_clock::VirtualClock;
pub(super) use admission::{check_host, note_caller};
use tasks::{batch, list};

/// Returns the routes, and the checks that every request passes before them.
pub(super) fn router(broker: Arc<Broker>, virtual_clock: Option<VirtualClock>) -> Router {
    routes()
        .0
        .merge(virtual_clock.map(clock::routes).unwrap_or_default())
        .fallback(async || Problem::not_found())
        .method_not_allowed_fallback(async || Problem::method_not_allowed(None))
        .layer(from_fn_with_state(Arc::clone(&broker), admission::admit))
        .with_state(broker)
}

/// Show metrics
///
/// Shows the metrics of this broker in the text format of OpenMetrics.
#[utoipa::path(
    get, path = "/metrics", tag = "health",
    responses((
        status = 200, description = "The metrics.",
        body = String, content_type = "application/openmetrics-text",
    ))
)]
async fn metrics(State(broker): State<Arc<Broker>>) -> impl IntoResponse {
    broker.store.tell_losses();
    let gauges = broker.owners.gauges_here(None).await.ok();
    ([(CONTENT_TYPE, PAGE_TYPE)], broker.telemetry.page(gauges, broker.clock.now()))
}

/// Returns all routes and their part of the OpenAPI document. A route that is not listed here is
/// neither served nor documented; the console is no part of the document.
pub(crate) fn routes() -> (Router<Arc<Broker>>, OpenApi) {
    OpenApiRouter::with_openapi(openapi::base())
        .routes(routes!(batch::create, list::list))
        .routes(routes!(tasks::replace, tasks::show, tasks::cancel))
        .routes(routes!(tasks::touch))
        .routes(routes!(tasks::pause))
        .routes(routes!(tasks::resume))
        .routes(routes!(tasks::fire))
        .routes(routes!(tasks::fires::list))
        .routes(routes!(explain::explain))
        .routes(routes!(fires::list))
        .routes(routes!(batch::touch))
        .routes(routes!(batch::cancel))
        .routes(routes!(dead_letters::list))
        .routes(routes!(dead_letters::groups))
        .routes(routes!(dead_letters::redrive))
        .routes(routes!(dead_letters::delete_many))
        .routes(routes!(dead_letters::delete))
        .routes(routes!(operations::start, operations::list))
        .routes(routes!(operations::show, operations::stop))
        .routes(routes!(actions::list))
        .routes(routes!(alarms::list))
        .routes(routes!(alarms::put, alarms::show, alarms::delete))
        .routes(routes!(alarms::test))
        .routes(routes!(rules::list))
        .routes(routes!(rules::put, rules::delete))
        .routes(routes!(stats::stats))
        .routes(routes!(namespaces::list))
        .routes(routes!(connections::list))
        .routes(routes!(connections::test))
        .routes(routes!(forecast::forecast))
        .routes(routes!(series::series))
        .routes(routes!(live::namespace))
        .routes(routes!(live::all))
        .routes(routes!(preview::preview))
        .routes(routes!(workers::queues))
        .routes(routes!(workers::workers))
        .routes(routes!(lanes::list))
        .routes(routes!(queues::lease))
        .routes(routes!(queues::ack))
        .routes(routes!(queues::fail))
        .routes(routes!(queues::refuse))
        .routes(routes!(queues::extend))
        .routes(routes!(health::topology))
        .routes(routes!(whoami::whoami))
        .routes(routes!(health::livez))
        .routes(routes!(health::readyz))
        .routes(routes!(openapi::show))
        .routes(routes!(metrics))
        .route("/", get(console::page))
        .route("/console/{hash}/{*file}", get(console::file))
        .split_for_parts()
}
