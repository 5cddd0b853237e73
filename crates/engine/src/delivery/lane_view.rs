//! Views of lanes: how many tasks wait for one target and how many are in flight, for people who
//! ask what a task waits for.
//!
//! A view is read only and changes nothing. It takes a time that grows with the number of lanes and
//! not with the number of tasks, and has at most [`LANES_MAX`] lanes.

use std::cmp::Reverse;

use punctual_core::{Namespace, Queue, Timestamp};

use crate::delivery::lane::{Lane, LaneId, LaneTarget, Lanes};
use crate::delivery::lane_failures::{LaneFailures, LastFailure};
use crate::loaded::tasks::LoadedTasks;

/// Lanes in one view: more targets than a page shows.
pub const LANES_MAX: usize = 1_000;

/// The lanes of a namespace that a caller wants to see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LaneQuery {
    /// The lanes of all queues.
    Queues,
    /// One lane.
    Lane(LaneTarget),
    /// All lanes, and those that were closed and have failed lately.
    All,
}

/// What an owner knows of some lanes of a namespace.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OwnerView {
    /// The lanes that have waiting tasks or deliveries in flight.
    pub lanes: Vec<LaneView>,
    /// There are more lanes, with fewer waiting tasks.
    pub more_lanes: bool,
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
    /// The target; `None` if a broker of an older version does not say it.
    pub target: Option<LaneTarget>,
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
    /// The capacity is lower than that of other receivers, because this one has not answered in
    /// time.
    pub slow: bool,
    /// When the first task was due that waits in the store only, because too many wait in memory or
    /// because no worker takes them.
    pub spilled_since: Option<Timestamp>,
    /// When the first task was due that was not sent.
    pub oldest_overdue: Option<Timestamp>,
    /// Attempts that failed in the last [`FAILURES_KEPT`](crate::FAILURES_KEPT).
    pub failed: u64,
    /// The last of them.
    pub last_failure: Option<LastFailure>,
}

/// What waits in a lane and what is in flight.
#[derive(Debug)]
pub(super) struct LaneLoad {
    pub(super) waiting: usize,
    pub(super) unsent: usize,
    pub(super) in_flight: usize,
    pub(super) spilled_since: Option<Timestamp>,
    pub(super) oldest_overdue: Option<Timestamp>,
}

/// Returns the lanes of a namespace that a caller wants to see.
pub(super) fn view(
    lanes: &Lanes,
    namespace: &Namespace,
    query: &LaneQuery,
    tasks: &LoadedTasks,
    now: Timestamp,
) -> OwnerView {
    let wanted = lanes.iter().map(|(_, lane)| lane);
    let wanted = wanted.filter(|lane| lane.namespace() == namespace && selects(query, lane.id()));
    let mut wanted: Vec<&Lane> = wanted.collect();
    let more_lanes = wanted.len() > LANES_MAX;
    if more_lanes {
        // Before they are viewed, which costs more.
        let waiting = |lane: &&Lane| Reverse((lane.spilled().is_some(), lane.waiting()));
        wanted.select_nth_unstable_by_key(LANES_MAX, waiting);
        wanted.truncate(LANES_MAX);
    }
    let mut views: Vec<_> = wanted.into_iter().map(|lane| LaneView::of(lane, tasks, now)).collect();
    if *query == LaneQuery::All {
        let closed = lanes.closed_of(namespace, now);
        views.extend(closed.map(|(id, failures)| LaneView::of_closed(lanes, &id, failures, now)));
    }
    let more_lanes = more_lanes || views.len() > LANES_MAX;
    views.truncate(LANES_MAX);
    let share_used_up = !lanes.has_share(namespace);
    OwnerView { lanes: views, more_lanes, share_used_up, ..OwnerView::default() }
}

fn selects(query: &LaneQuery, lane: &LaneId) -> bool {
    match query {
        LaneQuery::Queues => lane.queue().is_some(),
        LaneQuery::Lane(target) => lane.target() == target,
        LaneQuery::All => true,
    }
}

impl LaneLoad {
    pub(super) fn of(lane: &Lane, tasks: &LoadedTasks) -> Self {
        let first = lane.first().and_then(|id| tasks.get(id));
        let first = first.map(|loaded| loaded.task().fire_at);
        let spilled_since = lane.spilled().map(|spilled| spilled.fire_at);
        let oldest_overdue = [first, spilled_since, lane.first_waiting()];
        Self {
            waiting: lane.waiting(),
            unsent: lane.count_waiting(),
            in_flight: lane.count_sent(),
            spilled_since,
            oldest_overdue: oldest_overdue.into_iter().flatten().min(),
        }
    }
}

impl LaneView {
    fn of(lane: &Lane, tasks: &LoadedTasks, now: Timestamp) -> Self {
        let load = LaneLoad::of(lane, tasks);
        let failed = lane.failures().map_or(0, |failures| failures.count(now));
        Self {
            target: Some(lane.id().target().clone()),
            waiting: load.waiting,
            unsent: load.unsent,
            in_flight: load.in_flight,
            capacity: lane.capacity(),
            starved_since: lane.starved_since(),
            slow: lane.is_slow(),
            spilled_since: load.spilled_since,
            oldest_overdue: load.oldest_overdue,
            failed,
            last_failure: lane.failures().filter(|_| failed > 0).map(|it| it.last().clone()),
        }
    }

    /// A lane with nothing waiting and nothing in flight that has failed lately.
    fn of_closed(lanes: &Lanes, id: &LaneId, failures: &LaneFailures, now: Timestamp) -> Self {
        Self {
            target: Some(id.target().clone()),
            waiting: 0,
            unsent: 0,
            in_flight: 0,
            capacity: lanes.first_capacity(id),
            starved_since: lanes.away_since(id),
            slow: false,
            spilled_since: None,
            oldest_overdue: None,
            failed: failures.count(now),
            last_failure: Some(failures.last().clone()),
        }
    }

    /// The queue of the lane; `None` for other lanes.
    #[must_use]
    pub const fn queue(&self) -> Option<&Queue> {
        match &self.target {
            Some(LaneTarget::Queue(queue)) => Some(queue),
            _ => None,
        }
    }

    /// Adds the lane to the same target that another owner has.
    pub fn add(&mut self, other: Self) {
        let earlier = |one: Option<Timestamp>, other| [one, other].into_iter().flatten().min();
        self.waiting += other.waiting;
        self.unsent += other.unsent;
        self.in_flight += other.in_flight;
        self.capacity += other.capacity;
        self.starved_since = earlier(self.starved_since, other.starved_since);
        self.slow |= other.slow;
        self.spilled_since = earlier(self.spilled_since, other.spilled_since);
        self.oldest_overdue = earlier(self.oldest_overdue, other.oldest_overdue);
        self.failed += other.failed;
        let failures = [self.last_failure.take(), other.last_failure];
        self.last_failure = failures.into_iter().flatten().max_by_key(|failure| failure.at);
    }
}
