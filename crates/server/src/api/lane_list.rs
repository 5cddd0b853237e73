//! Sums up the lanes of a namespace over all brokers, for HTTP and gRPC: what waits for each
//! target, what is in flight to it, and what has failed lately.
//!
//! Everything is what owners have in memory. Only if a lane has tasks in the store only, these are
//! counted there (`count_waiting`).

use punctual_core::{Namespace, Timestamp};
use punctual_engine::{LANES_MAX, LaneQuery, LaneTarget, LaneView, LastFailure};

use crate::api::count_waiting::count_waiting;
use crate::broker::Broker;
use crate::namespace_view::ViewQuery;
use crate::problem::Problem;
use crate::view_namespace::{merge_lanes, view_all};

/// The lanes of a namespace.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct LaneSummaries {
    /// By kind and target, at most [`LANES_MAX`].
    pub(crate) lanes: Vec<LaneSummary>,
    /// Whether these are all.
    pub(crate) complete: bool,
}

/// One lane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LaneSummary {
    pub(crate) target: LaneTarget,
    pub(crate) state: LaneState,
    /// Since when there is no worker, or since when the connection is away.
    pub(crate) since: Option<Timestamp>,
    /// Due tasks that were not sent.
    pub(crate) waiting: usize,
    /// There are more than `waiting`, which were not counted.
    pub(crate) more: bool,
    pub(crate) in_flight: usize,
    pub(crate) capacity: usize,
    /// When the first task was due that was not sent.
    pub(crate) oldest_overdue: Option<Timestamp>,
    /// Attempts that failed in the last quarter of an hour, and the last of them.
    pub(crate) failed: u64,
    pub(crate) last_failure: Option<LastFailure>,
}

/// Whether a lane can send, and what keeps it from that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LaneState {
    Ready,
    /// As much is in flight as may be at once, and more waits.
    Full,
    /// The receiver did not answer in time, so that less is sent to it at once.
    Slow,
    /// No worker takes the deliveries of the queue.
    NoWorkers,
    /// The connection cannot be reached.
    Away,
}

impl LaneState {
    pub(crate) const ALL: [Self; 5] =
        [Self::Ready, Self::Full, Self::Slow, Self::NoWorkers, Self::Away];

    /// The state in JSON and gRPC.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Full => "full",
            Self::Slow => "slow",
            Self::NoWorkers => "no_workers",
            Self::Away => "away",
        }
    }

    fn of(target: &LaneTarget, lane: &LaneView) -> Self {
        match target {
            // Brokers have sessions of their own: one of them may be away alone.
            LaneTarget::Sink(..) if lane.starved_since.is_some() || lane.capacity == 0 => {
                Self::Away
            }
            LaneTarget::Queue(_) if lane.capacity == 0 => Self::NoWorkers,
            _ if lane.slow => Self::Slow,
            _ if lane.waiting > 0 && lane.in_flight + lane.unsent >= lane.capacity => Self::Full,
            _ => Self::Ready,
        }
    }
}

/// The kinds of lanes in JSON and gRPC.
pub(crate) const LANE_KINDS: [&str; 4] = ["http", "queue", "connection", "mail"];

/// Returns the kind of a lane. gRPC methods share the lanes of webhooks.
pub(crate) const fn kind_of(target: &LaneTarget) -> &'static str {
    match target {
        LaneTarget::Origin(_) => LANE_KINDS[0],
        LaneTarget::Queue(_) => LANE_KINDS[1],
        LaneTarget::Sink(..) => LANE_KINDS[2],
        LaneTarget::Mail => LANE_KINDS[3],
    }
}

/// Returns the lanes that have waiting tasks, deliveries in flight or recent failures.
pub(crate) async fn list_lanes(
    broker: &Broker,
    namespace: &Namespace,
) -> Result<LaneSummaries, Problem> {
    let query = ViewQuery { namespace: namespace.clone(), partition: None, lanes: LaneQuery::All };
    let views = view_all(broker, &query).await?;
    let mut complete = views.iter().all(|(_, view)| !view.owner.more_lanes);
    let lanes = views.into_iter().flat_map(|(_, view)| view.owner.lanes);
    let (lanes, more_lanes) = merge_lanes(lanes);
    complete &= !more_lanes;
    let mut lanes: Vec<_> = lanes.into_iter().filter_map(LaneSummary::of).collect();
    if lanes.iter().any(|lane| lane.more) {
        let (counted, all) = count_waiting(broker, namespace).await?;
        for lane in lanes.iter_mut().filter(|lane| lane.more) {
            lane.waiting = lane.waiting.max(counted.get(&lane.target).copied().unwrap_or(0));
            lane.more = !all;
        }
    }
    lanes.sort_by_cached_key(|lane| (kind_of(&lane.target), lane.target.group()));
    Ok(LaneSummaries { lanes, complete })
}

impl LaneSummary {
    /// `None` for a lane that has nothing to show.
    fn of(lane: LaneView) -> Option<Self> {
        let target = lane.target.clone()?;
        let waiting = lane.waiting + lane.unsent;
        let more = lane.spilled_since.is_some();
        if waiting == 0 && !more && lane.in_flight == 0 && lane.failed == 0 {
            return None;
        }
        let state = LaneState::of(&target, &lane);
        let since =
            lane.starved_since.filter(|_| matches!(state, LaneState::NoWorkers | LaneState::Away));
        Some(Self {
            target,
            state,
            since,
            waiting,
            more,
            in_flight: lane.in_flight,
            capacity: lane.capacity,
            oldest_overdue: lane.oldest_overdue,
            failed: lane.failed,
            last_failure: lane.last_failure,
        })
    }

    /// The connection of the lane, if it has one.
    pub(crate) fn connection(&self) -> Option<&str> {
        match &self.target {
            LaneTarget::Sink(connection, _) => Some(connection.as_str()),
            LaneTarget::Origin(_) | LaneTarget::Queue(_) | LaneTarget::Mail => None,
        }
    }
}

const _: () = assert!(LANES_MAX == 1_000, "the documentation of the call has this number");

#[cfg(test)]
mod tests {
    use punctual_core::{ConnectionName, Queue};

    use super::*;

    fn lane(target: &LaneTarget) -> LaneView {
        LaneView {
            target: Some(target.clone()),
            waiting: 0,
            unsent: 0,
            in_flight: 1,
            capacity: 2,
            starved_since: None,
            slow: false,
            spilled_since: None,
            oldest_overdue: None,
            failed: 0,
            last_failure: None,
        }
    }

    #[test]
    fn the_state_says_what_keeps_a_lane_from_sending() {
        let webhook = LaneTarget::Origin("http://h:1".into());
        let queue = LaneTarget::Queue(Queue::new("q").unwrap());
        let sink = LaneTarget::Sink(ConnectionName::new("db").unwrap(), "paid".into());
        let at = Timestamp::from_millis(7);
        let starved = |lane| LaneView { capacity: 0, starved_since: Some(at), ..lane };
        for (lane, state, since) in [
            (lane(&webhook), LaneState::Ready, None),
            (LaneView { in_flight: 2, ..lane(&webhook) }, LaneState::Ready, None),
            (LaneView { waiting: 1, ..lane(&webhook) }, LaneState::Ready, None),
            (LaneView { waiting: 1, unsent: 1, ..lane(&webhook) }, LaneState::Full, None),
            (LaneView { slow: true, waiting: 9, ..lane(&webhook) }, LaneState::Slow, None),
            (LaneView { waiting: 1, in_flight: 2, ..lane(&queue) }, LaneState::Full, None),
            (starved(lane(&queue)), LaneState::NoWorkers, Some(at)),
            (LaneView { starved_since: Some(at), ..lane(&queue) }, LaneState::Ready, None),
            (starved(lane(&sink)), LaneState::Away, Some(at)),
            (LaneView { starved_since: Some(at), ..lane(&sink) }, LaneState::Away, Some(at)),
        ] {
            let text = format!("{lane:?}");
            let summary = LaneSummary::of(lane).unwrap();
            assert_eq!((summary.state, summary.since), (state, since), "{text}");
        }
    }

    #[test]
    fn a_lane_with_nothing_to_show_is_left_out() {
        let queue = LaneTarget::Queue(Queue::new("q").unwrap());
        let idle = LaneView { in_flight: 0, ..lane(&queue) };
        assert_eq!(LaneSummary::of(idle.clone()), None);
        let failed = LaneView { failed: 1, ..idle.clone() };
        assert!(LaneSummary::of(failed).is_some());
        let spilled = LaneView { spilled_since: Some(Timestamp::EPOCH), ..idle.clone() };
        assert!(LaneSummary::of(spilled).is_some_and(|lane| lane.more));
        let unnamed = LaneView { target: None, in_flight: 1, ..idle };
        assert_eq!(LaneSummary::of(unnamed), None, "of a broker of an older version");
    }
}
