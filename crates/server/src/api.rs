//! The API of a broker: HTTP with JSON, and gRPC, on one port.
//!
//! `http` and `grpc` turn requests into commands and replies into responses. What both need is
//! beside them: `command_batch` sends many commands to their owners at once, `idempotency` makes a
//! repeated request create nothing, `find_task` finds a task by key or id, living or ended,
//! `explain_task` gathers why it is in its state, `merge_pages`, `task_pages`, `fire_pages` and
//! `namespace_pages` read one page from all partitions, `dead_letters` redrives, deletes and counts
//! letters, `operations` changes all tasks that match, `alarms` reads alarms with their values and
//! notices, `task_stats` counts, `live` makes the messages of live streams, `whoami` says what a
//! token grants, `queue_list` and `lane_list` sum up queues and lanes, `count_waiting` counts what
//! waits in the store only, `body` bounds what callers send, `held_answer` what they leave unread,
//! and `limits` has what namespaces share. Every refusal is a [`Problem`](crate::problem::Problem).

pub(crate) mod alarms;
mod begun_action;
mod body;
pub(crate) mod command_batch;
pub(crate) mod count_tasks;
mod count_waiting;
mod dead_letters;
mod explain_task;
mod find_task;
mod fire_pages;
mod grpc;
mod held_answer;
pub(crate) mod http;
mod idempotency;
mod lane_list;
pub(crate) mod limits;
mod live;
pub(crate) mod live_feeds;
mod measured_second;
mod merge_pages;
mod namespace_pages;
pub(crate) mod operation_list;
mod operations;
pub(crate) mod queue_list;
mod task_pages;
pub(crate) mod task_stats;
mod whoami;

use std::sync::Arc;

use axum::body::Body;

use crate::broker::Broker;
use crate::listen::{Routes, call_router};
use crate::virtual_clock::VirtualClock;
use http::fast_path::{FastPath, FastRoute};

/// Returns all routes, HTTP and gRPC, with the checks that every request passes.
pub(crate) fn routes(broker: &Arc<Broker>, virtual_clock: Option<VirtualClock>) -> Routes {
    // gRPC has limits, deadlines and checks of its own, because its streams last.
    let grpc = grpc::routes(broker);
    let router = self::http::router(Arc::clone(broker), virtual_clock).merge(grpc);
    let fast = FastPath::new(Arc::clone(broker));
    Arc::new(move |request, trust, address| {
        let Some(route) = FastRoute::of(&request) else {
            return call_router(&router, request.map(Body::new), trust, address);
        };
        let (fast, router) = (fast.clone(), router.clone());
        Box::pin(async move {
            match fast.answer(route, &trust, request).await {
                Ok(response) => Ok(response),
                Err(request) => call_router(&router, request, trust, address).await,
            }
        })
    })
}
