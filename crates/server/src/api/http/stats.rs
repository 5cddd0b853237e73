//! Statistics of a namespace: how many tasks are in which state, and what is late.
//!
//! In: what the store counts and what owners hold. Out: numbers that add up: what was accepted is scheduled, firing, paused, done, dead
//! or cancelled.

use std::sync::Arc;

use axum::extract::State;
use punctual_core::Clock as _;
use punctual_store::{Counts, TaskStore as _};
use serde::Serialize;
use utoipa::ToSchema;

use super::answer::{self, Answer};
use super::fires::lag_ms;
use super::request::{Asked, In};
use crate::broker::Broker;

/// How many there are.
#[derive(Debug, Serialize, ToSchema)]
struct Stats {
    namespace: String,
    /// Tasks ever accepted: the sum of all states.
    accepted: i64,
    scheduled: i64,
    firing: i64,
    paused: i64,
    done: i64,
    dead: i64,
    cancelled: i64,
    /// Dead letters that are kept.
    dead_letters: i64,
    /// Tasks whose time has come and that stand in line.
    queued: usize,
    /// Lines with tasks that nobody takes.
    parked_lanes: usize,
    /// The earliest `fire_at` that has come and not been fired.
    oldest_overdue: Option<String>,
    oldest_overdue_ms: u64,
}

/// Counts by state.
#[utoipa::path(
    get, path = "/v1/{namespace}/stats", tag = "statistics",
    responses((status = 200, description = "they add up", body = Stats))
)]
pub(crate) async fn stats(
    State(broker): State<Arc<Broker>>,
    In(namespace): In,
    asked: Asked,
) -> Answer {
    asked.end()?;
    let mut counts = Counts::default();
    for partition in broker.owners.partitions().iter() {
        counts.add(broker.store.counts(partition, &namespace).await?);
    }
    let gauges = broker.owners.gauges(Some(&namespace)).await?;
    let now = broker.clock.now();
    // A task that fires counts as scheduled in the store; one that may be received at most once as dead, until its outcome is known.
    let count = |number| i64::try_from(number).unwrap_or(i64::MAX);
    let claimed = count(gauges.claimed).min(counts.dead).min(counts.dead_letters);
    let others = count(gauges.firing).min(counts.scheduled).max(0);
    let letters = (claimed + count(gauges.claimed_aside)).min(counts.dead_letters);
    let oldest = gauges.oldest_overdue.filter(|oldest| *oldest <= now);
    answer::ok(&Stats {
        namespace: namespace.as_str().to_owned(),
        accepted: counts.accepted(),
        scheduled: counts.scheduled - others,
        firing: others + claimed,
        paused: counts.paused,
        done: counts.done,
        dead: counts.dead - claimed,
        cancelled: counts.cancelled,
        dead_letters: counts.dead_letters - letters,
        queued: gauges.queued,
        parked_lanes: gauges.parked_lanes,
        oldest_overdue: oldest.map(|oldest| oldest.to_string()),
        oldest_overdue_ms: oldest.map_or(0, |oldest| lag_ms(now, oldest)),
    })
}
