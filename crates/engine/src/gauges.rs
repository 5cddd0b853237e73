//! Gauges: how much there is at this moment, for metrics and statistics.
//!
//! In: nothing. Out: numbers, in a time that grows with the lanes that are open and not with the tasks.

use punctual_core::{Namespace, SkipReason, Skipped, Timestamp};

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
    /// Tasks of which a delivery is under way, other than such as may be received at most once.
    pub firing: usize,
    /// Tasks that may be received at most once and are under way: the store knows them as dead until their outcome is known.
    pub claimed: usize,
    /// Fires of the same kind whose tasks go on: of these the store knows a dead letter.
    pub claimed_aside: usize,
    /// Lanes.
    pub lanes: usize,
    /// Lanes that have tasks and nobody to take them.
    pub parked_lanes: usize,
    /// The earliest `fire_at` that has come and not been fired.
    pub oldest_overdue: Option<Timestamp>,
    /// Fires that a policy has left out since the owner began, of all namespaces.
    pub skips: Skips,
}

/// Fires that were left out, by why.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Skips {
    /// They were missed.
    pub misfire: u64,
    /// The one before was not over.
    pub overlap: u64,
    /// The task was paused.
    pub paused: u64,
}

impl Skips {
    pub(crate) fn count(&mut self, skipped: Skipped) {
        let count = match skipped.why {
            SkipReason::Misfire => &mut self.misfire,
            SkipReason::Overlap => &mut self.overlap,
            SkipReason::Paused => &mut self.paused,
        };
        *count += u64::from(skipped.fires);
    }

    fn and(self, other: Self) -> Self {
        Self {
            misfire: self.misfire + other.misfire,
            overlap: self.overlap + other.overlap,
            paused: self.paused + other.paused,
        }
    }
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
            firing: self.firing + other.firing,
            claimed: self.claimed + other.claimed,
            claimed_aside: self.claimed_aside + other.claimed_aside,
            lanes: self.lanes + other.lanes,
            parked_lanes: self.parked_lanes + other.parked_lanes,
            oldest_overdue: oldest,
            skips: self.skips.and(other.skips),
        }
    }
}

impl Owner {
    pub(crate) fn gauges(&self, namespace: Option<&Namespace>, now: Timestamp) -> Gauges {
        let (claimed, claimed_aside) = self.claims.count(namespace);
        let (loaded, skips) = (self.memory.len(), self.skips);
        let mut gauges = Gauges { loaded, claimed, claimed_aside, skips, ..Gauges::default() };
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
        let not_firing = claimed + claimed_aside + self.memory.overlaps(namespace);
        gauges.firing = gauges.inflight.saturating_sub(not_firing);
        gauges.oldest_overdue = oldest;
        gauges
    }
}
