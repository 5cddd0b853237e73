//! Gauges: how much there is at this moment, for metrics and statistics.
//!
//! In: nothing. Out: numbers, in a time that grows with the lanes that are open and not with the tasks.

use punctual_core::{Namespace, Timestamp};

use crate::owner::Owner;

/// How much there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Gauges {
    /// Tasks in memory, of all namespaces.
    pub loaded: usize,
    /// Tasks whose time has come and that stand in line.
    pub queued: usize,
    /// Deliveries under way.
    pub inflight: usize,
    /// Of those, the ones that the store knows as dead letters until their outcome is known: they may be received at most once.
    pub claimed: usize,
    /// Lanes.
    pub lanes: usize,
    /// Lanes that have tasks and nobody to take them.
    pub parked_lanes: usize,
    /// The earliest `fire_at` that has come and not been fired.
    pub oldest_overdue: Option<Timestamp>,
}

impl Gauges {
    /// Of two owners together.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let oldest = [self.oldest_overdue, other.oldest_overdue].into_iter().flatten().min();
        Self {
            loaded: self.loaded + other.loaded,
            queued: self.queued + other.queued,
            inflight: self.inflight + other.inflight,
            claimed: self.claimed + other.claimed,
            lanes: self.lanes + other.lanes,
            parked_lanes: self.parked_lanes + other.parked_lanes,
            oldest_overdue: oldest,
        }
    }
}

impl Owner {
    pub(crate) fn gauges(&self, namespace: Option<&Namespace>, now: Timestamp) -> Gauges {
        let (loaded, claimed) = (self.memory.len(), self.claims.count(namespace));
        let mut gauges = Gauges { loaded, claimed, ..Gauges::default() };
        // What was not read yet may be overdue as well.
        let unread = Some(self.loader.cursor().fire_at).filter(|unread| *unread < now);
        let mut oldest = unread.filter(|_| namespace.is_none());
        for (_, lane) in self.lanes.iter() {
            if namespace.is_some_and(|namespace| lane.id.0 != *namespace) {
                continue;
            }
            gauges.lanes += 1;
            gauges.queued += lane.len();
            gauges.inflight += lane.inflight;
            let waits = lane.len() > 0 || lane.spilled.is_some();
            gauges.parked_lanes += usize::from(waits && lane.is_starved());
            let first = lane.first().and_then(|id| self.memory.get(id));
            let first = first.map(|loaded| loaded.task.fire_at);
            let spilled = lane.spilled.map(|spilled| spilled.fire_at);
            oldest = [oldest, first, spilled].into_iter().flatten().min();
        }
        gauges.oldest_overdue = oldest;
        gauges
    }
}
