//! `GET /v1/{namespace}/queues` and `/workers`: what waits in queues, and who takes it.
//!
//! Both answer for all brokers of the cluster. `api/queue_list` adds them up.

use std::sync::Arc;

use axum::extract::State;
use punctual_core::{Clock as _, Queue, Timestamp};
use serde::Serialize;
use utoipa::ToSchema;

use super::request::{PathNamespace, QueryParams};
use super::response::{self, ApiResult};
use crate::api::queue_list::{QueueSummary, list_queues, list_workers};
use crate::broker::Broker;
use crate::courier::queue::WorkerView;
use crate::fire_form::lag_ms;
use crate::schema::QueueText;
use crate::task_form::InstantText;

/// The queues of a namespace.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Queues)]
struct QueuesAnswer {
    /// By name.
    queues: Vec<QueueAnswer>,
}

/// A queue that has due tasks, deliveries in flight or workers.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = QueueInfo)]
struct QueueAnswer {
    #[schema(value_type = QueueText)]
    name: String,
    /// Due tasks that wait for a worker.
    waiting: usize,
    /// Whether there are more than `waiting`, which were not counted.
    more: bool,
    /// Deliveries that workers have and have not settled.
    in_flight: usize,
    /// Workers that are connected, by stream or by long poll.
    workers: usize,
    /// How long the first task is overdue that was not sent yet, in milliseconds; 0 if there is
    /// none.
    oldest_overdue_ms: u64,
}

/// List queues
///
/// Lists the queues that have due tasks, deliveries in flight or workers.
#[utoipa::path(
    get, path = "/v1/{namespace}/queues", tag = "queues", operation_id = "list_queues",
    responses((status = 200, description = "The queues.", body = QueuesAnswer))
)]
pub(crate) async fn queues(
    State(broker): State<Arc<Broker>>,
    PathNamespace(namespace): PathNamespace,
    params: QueryParams,
) -> ApiResult {
    params.end()?;
    let permit = broker.limits.reads.acquire(&namespace).await?;
    let queues = list_queues(&broker, &namespace).await?;
    let now = broker.clock.now();
    let queues = queues.iter().map(|(name, queue)| QueueAnswer::of(name, queue, now));
    response::page(&QueuesAnswer { queues: queues.collect() }, permit)
}

impl QueueAnswer {
    fn of(name: &Queue, queue: &QueueSummary, now: Timestamp) -> Self {
        Self {
            name: name.as_str().to_owned(),
            waiting: queue.waiting,
            more: queue.more,
            in_flight: queue.in_flight,
            workers: queue.workers,
            oldest_overdue_ms: queue.oldest_overdue.map_or(0, |oldest| lag_ms(now, oldest)),
        }
    }
}

/// The workers of a namespace.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Workers)]
struct WorkersAnswer {
    /// By name.
    workers: Vec<WorkerAnswer>,
}

/// A worker that is connected to a broker. A worker with streams to several brokers is listed once
/// for each.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = WorkerInfo)]
struct WorkerAnswer {
    /// As it named itself; `null` if it has not.
    name: Option<String>,
    /// Where it connects from; `null` if that is not known.
    address: Option<String>,
    /// The address of the broker.
    broker: String,
    /// The queues that it serves.
    queues: Vec<String>,
    /// Deliveries that it has and has not settled.
    in_flight: usize,
    /// On a stream: how many deliveries it may have. By long polls: how many it waits for.
    credit: usize,
    /// Since when it is connected.
    #[schema(value_type = InstantText)]
    since: String,
}

/// List workers
///
/// Lists the workers of a namespace that are connected, to any broker.
#[utoipa::path(
    get, path = "/v1/{namespace}/workers", tag = "queues", operation_id = "list_workers",
    responses((status = 200, description = "The workers.", body = WorkersAnswer))
)]
pub(crate) async fn workers(
    State(broker): State<Arc<Broker>>,
    PathNamespace(namespace): PathNamespace,
    params: QueryParams,
) -> ApiResult {
    params.end()?;
    let permit = broker.limits.reads.acquire(&namespace).await?;
    let workers = list_workers(&broker, &namespace).await?;
    let workers = workers.into_iter().map(|(address, worker)| WorkerAnswer::of(address, worker));
    response::page(&WorkersAnswer { workers: workers.collect() }, permit)
}

impl WorkerAnswer {
    fn of(broker: String, worker: WorkerView) -> Self {
        let given = |text: Box<str>| Some(text.into_string()).filter(|text| !text.is_empty());
        Self {
            name: given(worker.label.name),
            address: given(worker.label.address),
            broker,
            queues: worker.queues.iter().map(|queue| queue.as_str().to_owned()).collect(),
            in_flight: worker.in_flight,
            credit: worker.credit,
            since: worker.since.to_string(),
        }
    }
}
