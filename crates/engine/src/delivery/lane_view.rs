//! Views of lanes: how many tasks wait for one target and how many are in flight, for people who
//! ask what a task waits for.
//!
//! A view is read only and changes nothing. It takes a time that grows with the number of lanes and
//! not with the number of tasks, and has at most [`LANES_MAX`] lanes.

use punctual_core::{Namespace, Queue, Timestamp};

use crate::delivery::lane::{Lane, LaneId, LaneTarget, Lanes};
use crate::loaded::tasks::LoadedTasks;

/// Lanes in one view: more queues than a page shows.
pub const LANES_MAX: usize = 1_000;

/// The lanes of a namespace that a caller wants to see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LaneQuery {
    /// The lanes of all queues.
    Queues,
    /// One lane.
    Lane(LaneTarget),
}

/// What an owner knows of some lanes of a namespace.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OwnerView {
    /// The lanes that have waiting tasks or deliveries in flight.
    pub lanes: Vec<LaneView>,
    /// How far the store was read, if that time has passed: tasks after it may be overdue and are
    /// not in memory.
    pub unread_since: Option<Timestamp>,
    /// The namespace has as much in flight as its share of the budget of the owner.
    pub share_used_up: bool,
    /// The last answer of the store was that it is unavailable.
    pub store_away: bool,
}

/// What an owner knows of one lane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaneView {
    /// The queue; `None` for other lanes.
    pub queue: Option<Queue>,
    /// Due tasks that wait in memory.
    pub waiting: usize,
    /// Deliveries that couriers have taken and not sent: they wait for a connection or a worker.
    pub unsent: usize,
    /// Deliveries that were sent and whose outcome is not known.
    pub in_flight: usize,
    /// How many deliveries couriers may have at once. Zero: the queue has no worker, or the
    /// connection is away.
    pub capacity: usize,
    /// Since when the capacity is zero.
    pub starved_since: Option<Timestamp>,
    /// When the first task was due that waits in the store only, because too many wait in memory or
    /// because no worker takes them.
    pub spilled_since: Option<Timestamp>,
    /// When the first task was due that was not sent.
    pub oldest_overdue: Option<Timestamp>,
}

/// Returns the lanes of a namespace that a caller wants to see.
pub(super) fn view(
    lanes: &Lanes,
    namespace: &Namespace,
    query: &LaneQuery,
    tasks: &LoadedTasks,
) -> OwnerView {
    let wanted = lanes.iter().map(|(_, lane)| lane);
    let wanted = wanted.filter(|lane| lane.namespace() == namespace && selects(query, lane.id()));
    let views = wanted.take(LANES_MAX).map(|lane| LaneView::of(lane, tasks));
    let share_used_up = !lanes.has_share(namespace);
    OwnerView { lanes: views.collect(), share_used_up, ..OwnerView::default() }
}

fn selects(query: &LaneQuery, lane: &LaneId) -> bool {
    match query {
        LaneQuery::Queues => lane.queue().is_some(),
        LaneQuery::Lane(target) => lane.target() == target,
    }
}

impl LaneView {
    pub(super) fn of(lane: &Lane, tasks: &LoadedTasks) -> Self {
        let first = lane.first().and_then(|id| tasks.get(id));
        let first = first.map(|loaded| loaded.task().fire_at);
        let spilled_since = lane.spilled().map(|spilled| spilled.fire_at);
        let oldest_overdue = [first, spilled_since, lane.first_waiting()];
        Self {
            queue: lane.id().queue().cloned(),
            waiting: lane.waiting(),
            unsent: lane.count_waiting(),
            in_flight: lane.count_sent(),
            capacity: lane.capacity(),
            starved_since: lane.starved_since(),
            spilled_since,
            oldest_overdue: oldest_overdue.into_iter().flatten().min(),
        }
    }
}
