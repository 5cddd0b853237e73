//! Counts the tasks of a namespace by state, for HTTP and gRPC.
//!
//! The store counts states, owners know what is firing. The numbers add up: every accepted task is
//! scheduled, firing, paused, done, dead or cancelled.

use punctual_core::{Namespace, Timestamp};
use punctual_engine::Gauges;
use punctual_store::{Counts, Filter, TaskStore as _};

use super::namespace_pages::namespace_page;
use super::task_pages::{StateFilter, task_page};
use crate::broker::Broker;
use crate::problem::Problem;

/// The tasks of a namespace by state.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TaskStats {
    /// By state, without the tasks that are firing.
    pub(crate) counts: Counts,
    /// Tasks with an attempt in flight.
    pub(crate) firing: i64,
    /// Tasks that are due and wait to be sent.
    pub(crate) queued: usize,
    /// Deliveries in flight.
    pub(crate) in_flight: usize,
    /// Lanes with due tasks that no worker takes.
    pub(crate) parked_lanes: usize,
    /// When the first task was due that was not sent yet.
    pub(crate) oldest_overdue: Option<Timestamp>,
}

impl TaskStats {
    /// Tasks that were ever accepted.
    pub(crate) fn accepted(&self) -> i64 {
        self.counts.accepted() + self.firing
    }
}

/// Counts the tasks of a namespace.
pub(crate) async fn count_tasks(
    broker: &Broker,
    namespace: &Namespace,
    now: Timestamp,
) -> Result<TaskStats, Problem> {
    let mut counts = Counts::default();
    for partition in broker.owners.partitions().iter() {
        counts.add(broker.store.counts(partition, namespace).await?);
    }
    let gauges = broker.owners.gauges(Some(namespace)).await?;
    let oldest_overdue = oldest_overdue(broker, namespace, &gauges, now).await?;
    Ok(TaskStats { oldest_overdue, ..TaskStats::of(counts, &gauges) })
}

/// Counts the tasks of all namespaces. Tasks that are overdue and not in memory are left out of
/// `oldest_overdue`.
pub(crate) async fn count_all_tasks(broker: &Broker, now: Timestamp) -> Result<TaskStats, Problem> {
    let (mut counts, mut after) = (Counts::default(), None);
    for _ in 0..PAGES_MAX {
        let (page, _permit) = namespace_page(broker, after, PAGE).await?;
        page.items.iter().for_each(|namespace| counts.add(namespace.counts));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    let gauges = broker.owners.gauges(None).await?;
    let stats = TaskStats::of(counts, &gauges);
    let oldest_overdue = gauges.oldest_overdue.filter(|oldest| *oldest <= now);
    Ok(TaskStats { oldest_overdue, ..stats })
}

/// Namespaces that are read at a time to count all, and how often: a hundred thousand together.
const PAGE: usize = 1000;
const PAGES_MAX: usize = 100;

impl TaskStats {
    /// Adds what owners know to what the store has counted.
    fn of(mut counts: Counts, gauges: &Gauges) -> Self {
        // In the store a firing task is scheduled; an at-most-once task that is due is dead until
        // its outcome is known. If nothing of it was sent, it is scheduled.
        let count = |number| i64::try_from(number).unwrap_or(i64::MAX);
        let unknown = counts.dead.min(counts.dead_letters);
        let claimed = count(gauges.claimed).min(unknown);
        let unsent = count(gauges.claimed_unsent).min(unknown - claimed);
        let firing = count(gauges.firing).min(counts.scheduled).max(0);
        let letters =
            (claimed + unsent + count(gauges.claimed_overlapping)).min(counts.dead_letters);
        counts.scheduled += unsent - firing;
        counts.dead -= claimed + unsent;
        counts.dead_letters -= letters;
        Self {
            counts,
            firing: firing + claimed,
            queued: gauges.queued,
            in_flight: gauges.in_flight,
            parked_lanes: gauges.parked_lanes,
            oldest_overdue: None,
        }
    }
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
