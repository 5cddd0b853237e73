//! Counts the tasks of a namespace, or of all, by state, for HTTP and gRPC.
//!
//! The store counts states, owners know what is firing.

use punctual_core::{Namespace, Timestamp};
use punctual_engine::Gauges;
use punctual_store::{Counts, Filter, TaskStore as _};

use super::namespace_pages::namespace_page;
use super::task_pages::{StateFilter, task_page};
use super::task_stats::TaskStats;
use crate::broker::Broker;
use crate::problem::Problem;

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
