//! Gauges: how much an owner has at the moment, for metrics and statistics.

use punctual_core::{SkipReason, Skipped, Timestamp};

/// How much an owner has at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Gauges {
    /// Tasks in memory, of all namespaces.
    pub loaded: usize,
    /// Due tasks that wait in their lanes, or in couriers before anything was sent.
    pub queued: usize,
    /// Deliveries in flight.
    pub in_flight: usize,
    /// Tasks with a delivery in flight, except at-most-once tasks.
    pub firing: usize,
    /// At-most-once tasks in flight. The store has them as dead letters until the outcome is known.
    pub claimed: usize,
    /// At-most-once tasks of which nothing was sent yet, and that the store has as dead letters.
    pub claimed_unsent: usize,
    /// At-most-once fires, sent or not, whose tasks have a next fire. The store has a dead letter
    /// for each of them until the outcome is known.
    pub claimed_overlapping: usize,
    /// Lanes with waiting tasks or deliveries in flight.
    pub lanes: usize,
    /// Lanes with waiting tasks and no capacity.
    pub parked_lanes: usize,
    /// The earliest `fire_at` that has passed without a first attempt.
    pub oldest_overdue: Option<Timestamp>,
    /// How far the store was read, if that time has passed: tasks after it may be overdue and are
    /// not in memory.
    pub unread_since: Option<Timestamp>,
    /// Fires that policies have skipped since the owner started, of all namespaces.
    pub skips: Skips,
}

/// Skipped fires by reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Skips {
    /// Skipped because the fire came too late.
    pub misfire: u64,
    /// Skipped because the fire before was still in flight.
    pub overlap: u64,
    /// Skipped because the task was paused.
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
    /// Adds the gauges of two owners.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            loaded: self.loaded + other.loaded,
            queued: self.queued + other.queued,
            in_flight: self.in_flight + other.in_flight,
            firing: self.firing + other.firing,
            claimed: self.claimed + other.claimed,
            claimed_unsent: self.claimed_unsent + other.claimed_unsent,
            claimed_overlapping: self.claimed_overlapping + other.claimed_overlapping,
            lanes: self.lanes + other.lanes,
            parked_lanes: self.parked_lanes + other.parked_lanes,
            oldest_overdue: earliest(self.oldest_overdue, other.oldest_overdue),
            unread_since: earliest(self.unread_since, other.unread_since),
            skips: self.skips.and(other.skips),
        }
    }
}

fn earliest(one: Option<Timestamp>, other: Option<Timestamp>) -> Option<Timestamp> {
    [one, other].into_iter().flatten().min()
}
