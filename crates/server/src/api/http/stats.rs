//! Statistics of a namespace: how many tasks are in which state, and what is overdue.
//!
//! The store counts states, owners know what is firing. The numbers add up: every accepted task is
//! scheduled, firing, paused, done, dead or cancelled.

use std::sync::Arc;

use axum::extract::State;
use punctual_core::{Clock as _, Namespace, Timestamp};
use punctual_engine::Gauges;
use punctual_store::{Counts, Filter, TaskStore as _};
use serde::Serialize;
use utoipa::ToSchema;

use super::request::{PathNamespace, QueryParams};
use super::response::{self, ApiResult};
use super::tasks::fires::lag_ms;
use crate::api::task_pages::{StateFilter, task_page};
use crate::broker::Broker;
use crate::problem::Problem;
use crate::task_form::InstantText;

/// The tasks of a namespace, by state.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Stats)]
struct StatsAnswer {
    /// The namespace that was counted.
    namespace: String,
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
    let mut counts = Counts::default();
    for partition in broker.owners.partitions().iter() {
        counts.add(broker.store.counts(partition, &namespace).await?);
    }
    let gauges = broker.owners.gauges(Some(&namespace)).await?;
    let now = broker.clock.now();
    // In the store a firing task is scheduled; an at-most-once task that is due is dead until its
    // outcome is known. If nothing of it was sent, it is scheduled.
    let count = |number| i64::try_from(number).unwrap_or(i64::MAX);
    let unknown = counts.dead.min(counts.dead_letters);
    let claimed = count(gauges.claimed).min(unknown);
    let unsent = count(gauges.claimed_unsent).min(unknown - claimed);
    let firing = count(gauges.firing).min(counts.scheduled).max(0);
    let letters = (claimed + unsent + count(gauges.claimed_overlapping)).min(counts.dead_letters);
    let oldest = oldest_overdue(&broker, &namespace, &gauges, now).await?;
    response::ok(&StatsAnswer {
        namespace: namespace.as_str().to_owned(),
        accepted: counts.accepted(),
        scheduled: counts.scheduled - firing + unsent,
        firing: firing + claimed,
        paused: counts.paused,
        done: counts.done,
        dead: counts.dead - claimed - unsent,
        cancelled: counts.cancelled,
        dead_letters: counts.dead_letters - letters,
        queued: gauges.queued,
        parked_lanes: gauges.parked_lanes,
        oldest_overdue: oldest.map(|oldest| oldest.to_string()),
        oldest_overdue_ms: oldest.map_or(0, |oldest| lag_ms(now, oldest)),
    })
}

/// Tasks that are read to find the first one that is due and not firing.
const OVERDUE_READ_MAX: usize = 64;

/// Returns when the oldest task was due that was not sent yet. Owners know those that they have
/// loaded; if they are behind, the store is read.
async fn oldest_overdue(
    broker: &Broker,
    namespace: &Namespace,
    gauges: &Gauges,
    now: Timestamp,
) -> Result<Option<Timestamp>, Problem> {
    let mut oldest = gauges.oldest_overdue;
    if gauges.unread_since.is_some() {
        let filter = Filter { to: now, ..Filter::all(namespace.clone()) };
        let page =
            task_page(broker, StateFilter::Scheduled, filter, None, OVERDUE_READ_MAX).await?;
        let unread = page.items.first().map(|task| task.fire_at);
        oldest = [oldest, unread].into_iter().flatten().min();
    }
    Ok(oldest.filter(|oldest| *oldest <= now))
}
