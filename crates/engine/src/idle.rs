//! When an owner has nothing left to do at the present time, and when it has again.
//!
//! A virtual clock is moved from one instant at which something is due to the next. Before each
//! step, every owner must have fired, delivered, settled and written what was due before. `answer`
//! decides that. Deliveries to queues are not waited for here: only the hub knows whether a worker
//! has them.

mod answer;

use punctual_core::Timestamp;
use tokio::sync::oneshot;

/// What an owner reports when it has nothing left to do at the present time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdleReport {
    /// The earliest instant at which something is due, unless an event arrives before.
    pub next_due: Option<Timestamp>,
    /// Deliveries to queues that are in flight.
    pub in_flight_to_queues: usize,
    /// Fires that became due exactly at the present time, since the owner started. Retries do not
    /// count.
    pub fires: u64,
}

/// The calls that wait until the owner is idle, and what is counted for them.
#[derive(Debug, Default)]
pub(crate) struct IdleWaiters {
    /// One call at a time waits: the clock has one driver. Earlier calls were abandoned.
    waiting: Option<oneshot::Sender<IdleReport>>,
    fires: u64,
}

impl IdleWaiters {
    /// Keeps a call until the owner is idle. It replaces one that waits already: that caller sees
    /// that the sender of its reply is dropped.
    pub(crate) fn push(&mut self, reply: oneshot::Sender<IdleReport>) {
        self.waiting = Some(reply);
    }

    pub(crate) const fn count_fire(&mut self) {
        self.fires += 1;
    }
}
