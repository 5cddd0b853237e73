//! The tasks of a namespace by state (`count_tasks` counts them).
//!
//! The numbers add up: every accepted task is scheduled, firing, paused, done, dead or cancelled.

use punctual_core::Timestamp;
use punctual_engine::Gauges;
use punctual_store::Counts;

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

impl TaskStats {
    /// Adds what owners know to what the store has counted.
    pub(super) fn of(mut counts: Counts, gauges: &Gauges) -> Self {
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
