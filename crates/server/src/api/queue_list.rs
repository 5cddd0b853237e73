//! Sums up the queues of a namespace over all brokers, for HTTP and gRPC.
//!
//! Owners know what waits in memory, hubs which workers are connected. Tasks that wait in the store
//! only are counted there (`count_waiting`).

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;

use punctual_core::{Namespace, Queue, Timestamp};
use punctual_engine::{LaneQuery, LaneTarget};

use crate::api::count_waiting::count_waiting;
use crate::broker::Broker;
use crate::courier::queue::{WorkerLabel, WorkerView};
use crate::namespace_view::{NamespaceView, ViewQuery};
use crate::problem::Problem;
use crate::view_namespace::view_all;

/// One queue.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct QueueSummary {
    /// Due tasks that wait for a worker.
    pub(crate) waiting: usize,
    /// There are more than `waiting`, which were not counted.
    pub(crate) more: bool,
    /// Deliveries that workers have and have not settled.
    pub(crate) in_flight: usize,
    /// Workers that are connected.
    pub(crate) workers: usize,
    /// When the first task was due that was not sent yet.
    pub(crate) oldest_overdue: Option<Timestamp>,
}

/// Returns the queues that have due tasks, deliveries in flight or workers, by name.
pub(crate) async fn list_queues(
    broker: &Broker,
    namespace: &Namespace,
) -> Result<BTreeMap<Queue, QueueSummary>, Problem> {
    let views = all_views(broker, namespace).await?;
    let mut queues = sum_up(&views);
    if queues.values().any(|queue| queue.more) {
        let (counted, complete) = count_waiting(broker, namespace).await?;
        for (name, queue) in &mut queues {
            let target = LaneTarget::Queue(name.clone());
            queue.waiting = queue.waiting.max(counted.get(&target).copied().unwrap_or_default());
            queue.more &= !complete;
        }
    }
    Ok(queues)
}

/// Returns the workers of all brokers, with the address of the broker of each.
pub(crate) async fn list_workers(
    broker: &Broker,
    namespace: &Namespace,
) -> Result<Vec<(String, WorkerView)>, Problem> {
    let views = all_views(broker, namespace).await?.into_iter();
    let workers = views.flat_map(|(address, view)| {
        view.workers.into_iter().map(move |worker| (address.clone(), worker))
    });
    let mut workers: Vec<_> = workers.collect();
    sort_workers(&mut workers);
    Ok(workers)
}

/// Sorts by name and age. Every broker gives the same order, also of workers that are as old.
fn sort_workers(workers: &mut [(String, WorkerView)]) {
    workers.sort_by(|one, other| {
        let order = |(broker, worker): &(String, WorkerView)| {
            let WorkerLabel { name, address } = worker.label.clone();
            (name, worker.since, broker.clone(), address)
        };
        order(one).cmp(&order(other))
    });
}

async fn all_views(
    broker: &Broker,
    namespace: &Namespace,
) -> Result<Vec<(String, NamespaceView)>, Problem> {
    let lanes = LaneQuery::Queues;
    let query = ViewQuery { namespace: namespace.clone(), partition: None, lanes };
    Ok(view_all(broker, &query).await?)
}

/// Adds up what brokers know. `more` is set for queues that have tasks in the store only.
fn sum_up(views: &[(String, NamespaceView)]) -> BTreeMap<Queue, QueueSummary> {
    let mut queues: BTreeMap<Queue, QueueSummary> = BTreeMap::new();
    for lane in views.iter().flat_map(|(_, view)| &view.owner.lanes) {
        let Some(name) = lane.queue() else { continue };
        let queue = queues.entry(name.clone()).or_default();
        queue.waiting += lane.waiting + lane.unsent;
        queue.more |= lane.spilled_since.is_some();
        queue.in_flight += lane.in_flight;
        queue.oldest_overdue =
            [queue.oldest_overdue, lane.oldest_overdue].into_iter().flatten().min();
    }
    for (name, workers) in count_workers(views) {
        queues.entry(name).or_default().workers = workers;
    }
    queues
}

/// Counts the workers of each queue. A worker has a connection to each broker, so that of those
/// with one name and host the broker with the most counts.
fn count_workers(views: &[(String, NamespaceView)]) -> HashMap<Queue, usize> {
    let mut most: HashMap<(&Queue, &str, String), usize> = HashMap::new();
    for (_, view) in views {
        let mut here: HashMap<(&Queue, &str, String), usize> = HashMap::new();
        for worker in &view.workers {
            for queue in &worker.queues {
                let host = host_of(&worker.label.address);
                *here.entry((queue, &worker.label.name, host)).or_default() += 1;
            }
        }
        for (worker, count) in here {
            let most = most.entry(worker).or_default();
            *most = count.max(*most);
        }
    }
    let mut workers: HashMap<Queue, usize> = HashMap::new();
    for ((queue, _, _), count) in most {
        *workers.entry(queue.clone()).or_default() += count;
    }
    workers
}

/// An address without its port.
fn host_of(address: &str) -> String {
    let ip = address.parse::<SocketAddr>().map(|address| address.ip().to_string());
    ip.unwrap_or_else(|_| address.to_owned())
}

#[cfg(test)]
mod tests {
    use punctual_engine::{LaneView, OwnerView};

    use super::*;

    fn queue(name: &str) -> Queue {
        Queue::new(name).unwrap()
    }

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_millis(seconds * 1000)
    }

    fn lane(name: &str, waiting: usize, oldest: Option<u64>) -> LaneView {
        LaneView {
            target: Some(LaneTarget::Queue(queue(name))),
            waiting,
            unsent: 1,
            in_flight: 2,
            capacity: 3,
            spilled_since: None,
            starved_since: None,
            oldest_overdue: oldest.map(at),
            slow: false,
            failed: 0,
            last_failure: None,
        }
    }

    fn worker(name: &str, address: &str, queues: &[&str]) -> WorkerView {
        WorkerView {
            label: WorkerLabel::new(name, address),
            queues: queues.iter().map(|name| queue(name)).collect(),
            in_flight: 0,
            credit: 1,
            since: at(0),
        }
    }

    fn view(lanes: Vec<LaneView>, workers: Vec<WorkerView>) -> (String, NamespaceView) {
        let owner = OwnerView { lanes, ..OwnerView::default() };
        ("a:1".to_owned(), NamespaceView { owner, workers, ..NamespaceView::default() })
    }

    #[test]
    fn workers_are_in_the_same_order_whichever_broker_answers_first() {
        let one = ("a:1".to_owned(), worker("", "10.0.0.9:1", &["emails"]));
        let two = ("b:1".to_owned(), worker("", "10.0.0.1:1", &["emails"]));
        let three = ("b:1".to_owned(), worker("", "10.0.0.1:2", &["emails"]));
        let named = ("a:1".to_owned(), worker("w", "10.0.0.1:1", &["emails"]));
        let mut workers = [&named, &three, &two, &one].map(Clone::clone);
        sort_workers(&mut workers);
        assert_eq!(workers, [one, two, three, named]);
    }

    #[test]
    fn queues_are_added_up_over_brokers_and_workers_counted_once() {
        let spilled = LaneView { spilled_since: Some(at(5)), ..lane("idle", 0, Some(5)) };
        let webhook = LaneView { target: None, ..lane("none", 9, None) };
        let views = [
            view(
                vec![lane("emails", 3, Some(9)), spilled, webhook],
                vec![
                    worker("w", "10.0.0.1:1", &["emails", "reports"]),
                    worker("w", "10.0.0.1:2", &["emails"]),
                    worker("", "10.0.0.2:1", &["emails"]),
                ],
            ),
            view(
                vec![lane("emails", 4, Some(7))],
                vec![
                    worker("w", "10.0.0.1:3", &["emails"]),
                    worker("w", "10.0.0.9:3", &["emails"]),
                ],
            ),
        ];
        let queues = sum_up(&views);
        let names: Vec<_> = queues.keys().map(Queue::as_str).collect();
        assert_eq!(names, ["emails", "idle", "reports"]);
        let emails = QueueSummary {
            waiting: 9,
            more: false,
            in_flight: 4,
            // Two of one name and host, one without a name, one of another host.
            workers: 4,
            oldest_overdue: Some(at(7)),
        };
        assert_eq!(queues[&queue("emails")], emails);
        assert!(queues[&queue("idle")].more);
        assert_eq!(queues[&queue("reports")], QueueSummary { workers: 1, ..Default::default() });
    }
}
