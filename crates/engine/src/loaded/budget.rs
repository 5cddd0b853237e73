//! How much an owner may hold in memory.

use punctual_core::NewTask;

/// What one owner may hold in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// Tasks. At about half a kilobyte each they are most of the memory of an engine.
    pub tasks: usize,
    /// Bytes of their payloads: a few thousand of the largest take as much again.
    pub payload_bytes: usize,
}

impl Budget {
    /// Returns the share of one owner of what a broker may hold.
    #[must_use]
    pub fn shared_by(owners: u16) -> Self {
        let owners = usize::from(owners.max(1));
        let tasks = (BROKER_TASKS / owners).max(OWNER_TASKS_MIN);
        Self { tasks, payload_bytes: (BROKER_PAYLOAD_BYTES / owners).max(OWNER_PAYLOAD_BYTES_MIN) }
    }

    /// Returns the weight of a task: one, and one more for each share of the payload bytes that a
    /// task has on average when both budgets are used up.
    pub(crate) fn weight(&self, definition: &NewTask) -> usize {
        let average = (self.payload_bytes / self.tasks.max(1)).max(1);
        1 + definition.payload.bytes().len() / average
    }

    /// Returns the weight of due tasks that may wait in lanes. What is left of the budget is for
    /// tasks in flight and for those that are not due yet.
    pub(crate) const fn queued_weight(&self) -> usize {
        self.tasks / 8 * 3
    }

    /// Returns the weight of tasks that may be in flight.
    pub(crate) const fn in_flight_weight(&self) -> usize {
        self.tasks / 8 * 3
    }
}

/// Of one broker. With everything else it stays well below half a gibibyte.
const BROKER_TASKS: usize = 400_000;
const BROKER_PAYLOAD_BYTES: usize = 128 << 20;
/// However many owners there are: one page of loading must fit.
const OWNER_TASKS_MIN: usize = 10_000;
const OWNER_PAYLOAD_BYTES_MIN: usize = 4 << 20;
