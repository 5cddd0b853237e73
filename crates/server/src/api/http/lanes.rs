//! `GET /v1/{namespace}/lanes`: what waits for each target, what is in flight to it, and what has
//! failed lately. `api/lane_list` adds up the lanes of all brokers of the cluster.

use std::sync::Arc;

use axum::extract::State;
use punctual_core::{Clock as _, Timestamp};
use punctual_engine::LastFailure;
use serde::Serialize;
use utoipa::ToSchema;

use super::request::{PathNamespace, QueryParams};
use super::response::{self, ApiResult};
use crate::api::lane_list::{LANE_KINDS, LaneState, LaneSummary, kind_of, list_lanes};
use crate::broker::Broker;
use crate::fire_form::lag_ms;
use crate::schema::{documented, one_of};
use crate::task_form::InstantText;

/// The lanes of a namespace.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Lanes)]
struct LanesAnswer {
    /// By kind and target, at most 1,000.
    lanes: Vec<LaneAnswer>,
    /// Whether these are all. If not, those with the most waiting tasks are listed.
    complete: bool,
}

/// The deliveries of a namespace to one target.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LaneInfo)]
struct LaneAnswer {
    /// `http` for webhooks and gRPC methods.
    #[schema(value_type = LaneKind)]
    kind: &'static str,
    /// Scheme, host and port of a webhook or a gRPC method, `queue NAME`, a connection and its
    /// place, or `mail`: as in forecasts and groups of dead letters.
    target: String,
    /// The name of the connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    connection: Option<String>,
    /// `full`: as much is in flight as may be at once, and more waits. `slow`: the receiver did not
    /// answer in time, so that less is sent to it at once. `no_workers`: nothing takes the
    /// deliveries of the queue. `away`: the connection cannot be reached.
    #[schema(value_type = LaneStateName)]
    state: &'static str,
    /// Since when there is no worker, or since when the connection is away.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<InstantText>)]
    since: Option<String>,
    /// Due tasks that were not sent.
    waiting: usize,
    /// Whether there are more than `waiting`, which were not counted.
    more: bool,
    /// Deliveries that were sent and whose outcome is not known.
    in_flight: usize,
    /// How many deliveries may be in flight at once.
    capacity: usize,
    /// How long the first task is overdue that was not sent yet, in milliseconds; 0 if there is
    /// none.
    oldest_overdue_ms: u64,
    /// Attempts that failed in the last 15 minutes, since the owner has the partition.
    failed: u64,
    /// The last of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_failure: Option<LaneFailureAnswer>,
}

/// The last failed attempt of a lane.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LaneFailure)]
struct LaneFailureAnswer {
    /// When it ended.
    #[schema(value_type = InstantText)]
    at: String,
    /// The error, or what the receiver answered.
    reason: String,
    /// The earliest time of the next attempt, if the receiver asked for a pause.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<InstantText>)]
    retry_at: Option<String>,
}

documented!(
    /// The kind of the target of a lane.
    LaneKind,
    "LaneKind",
    one_of(LANE_KINDS)
);

documented!(
    /// Whether a lane can send, and what keeps it from that.
    LaneStateName,
    "LaneState",
    one_of(LaneState::ALL.map(LaneState::name))
);

/// List lanes
///
/// Lists the targets that have due tasks, deliveries in flight, or attempts that failed in the last
/// 15 minutes.
#[utoipa::path(
    get, path = "/v1/{namespace}/lanes", tag = "queues", operation_id = "list_lanes",
    responses((status = 200, description = "The lanes.", body = LanesAnswer))
)]
pub(crate) async fn list(
    State(broker): State<Arc<Broker>>,
    PathNamespace(namespace): PathNamespace,
    params: QueryParams,
) -> ApiResult {
    params.end()?;
    let permit = broker.limits.reads.acquire(&namespace).await?;
    let list = list_lanes(&broker, &namespace).await?;
    let now = broker.clock.now();
    let lanes = list.lanes.iter().map(|lane| LaneAnswer::of(lane, now)).collect();
    response::page(&LanesAnswer { lanes, complete: list.complete }, permit)
}

impl LaneAnswer {
    fn of(lane: &LaneSummary, now: Timestamp) -> Self {
        Self {
            kind: kind_of(&lane.target),
            target: lane.target.group(),
            connection: lane.connection().map(str::to_owned),
            state: lane.state.name(),
            since: lane.since.map(|since| since.to_string()),
            waiting: lane.waiting,
            more: lane.more,
            in_flight: lane.in_flight,
            capacity: lane.capacity,
            oldest_overdue_ms: lane.oldest_overdue.map_or(0, |oldest| lag_ms(now, oldest)),
            failed: lane.failed,
            last_failure: lane.last_failure.as_ref().map(LaneFailureAnswer::of),
        }
    }
}

impl LaneFailureAnswer {
    fn of(failure: &LastFailure) -> Self {
        Self {
            at: failure.at.to_string(),
            reason: failure.reason.as_str().to_owned(),
            retry_at: failure.retry_at.map(|at| at.to_string()),
        }
    }
}
