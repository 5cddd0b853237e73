//! `GET /v1/{namespace}/stats`: how many tasks are in which state, and what is overdue.
//!
//! `api/task_stats` counts them.

use std::sync::Arc;

use axum::extract::State;
use punctual_core::{Clock as _, Namespace, Timestamp};
use serde::Serialize;
use utoipa::ToSchema;

use super::request::{PathNamespace, QueryParams};
use super::response::{self, ApiResult};
use crate::api::count_tasks::count_tasks;
use crate::api::task_stats::TaskStats;
use crate::broker::Broker;
use crate::fire_form::lag_ms;
use crate::task_form::InstantText;

/// The tasks of a namespace, by state.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Stats)]
struct StatsAnswer {
    /// The namespace that was counted.
    namespace: String,
    /// By state.
    #[serde(flatten)]
    states: StateCounts,
    /// Tasks that are due and wait to be sent.
    queued: usize,
    /// Lanes (targets) with due tasks that no worker takes.
    parked_lanes: usize,
    /// The earliest `fire_at` of a task that is due and was not sent yet.
    #[schema(value_type = Option<InstantText>)]
    oldest_overdue: Option<String>,
    /// How long that task is overdue, in milliseconds; 0 if there is none.
    oldest_overdue_ms: u64,
}

/// Tasks by state.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LiveStates)]
pub(super) struct StateCounts {
    /// Tasks that were ever accepted: the sum of all states.
    accepted: i64,
    /// Tasks that wait for their time, or for the next attempt.
    scheduled: i64,
    /// Tasks with an attempt in flight.
    firing: i64,
    /// Tasks that wait to be resumed.
    paused: i64,
    /// Tasks whose last fire succeeded.
    done: i64,
    /// Tasks whose last fire became a dead letter.
    dead: i64,
    /// Tasks that were cancelled.
    cancelled: i64,
    /// Dead letters that are retained.
    dead_letters: i64,
}

impl StateCounts {
    pub(super) fn of(stats: &TaskStats) -> Self {
        let counts = &stats.counts;
        Self {
            accepted: stats.accepted(),
            scheduled: counts.scheduled,
            firing: stats.firing,
            paused: counts.paused,
            done: counts.done,
            dead: counts.dead,
            cancelled: counts.cancelled,
            dead_letters: counts.dead_letters,
        }
    }
}

/// Count tasks
///
/// Counts the tasks of a namespace by state.
#[utoipa::path(
    get, path = "/v1/{namespace}/stats", tag = "statistics",
    responses((status = 200, description = "The counts.", body = StatsAnswer))
)]
pub(crate) async fn stats(
    State(broker): State<Arc<Broker>>,
    PathNamespace(namespace): PathNamespace,
    params: QueryParams,
) -> ApiResult {
    params.end()?;
    let now = broker.clock.now();
    let stats = count_tasks(&broker, &namespace, now).await?;
    response::ok(&StatsAnswer::of(&namespace, &stats, now))
}

impl StatsAnswer {
    fn of(namespace: &Namespace, stats: &TaskStats, now: Timestamp) -> Self {
        let TaskStats { queued, parked_lanes, oldest_overdue, .. } = *stats;
        Self {
            namespace: namespace.as_str().to_owned(),
            states: StateCounts::of(stats),
            queued,
            parked_lanes,
            oldest_overdue: oldest_overdue.map(|oldest| oldest.to_string()),
            oldest_overdue_ms: oldest_overdue.map_or(0, |oldest| lag_ms(now, oldest)),
        }
    }
}
