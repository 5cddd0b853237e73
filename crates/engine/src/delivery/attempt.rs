//! One attempt: the delivery that is sent, and the report about it.

use std::sync::Arc;

use punctual_core::{
    AttemptNo, FireId, NewTask, Occasion, Outcome, Task, TaskId, Timestamp, Version,
};

use crate::delivery::lane::LaneNo;
use crate::ownership::lease::LeaseEnd;

/// What is sent for one attempt.
#[derive(Debug, Clone)]
pub struct Delivery {
    /// The same for every attempt of a fire, so that receivers can deduplicate.
    pub fire_id: FireId,
    /// The number of the attempt, from one. A redrive continues the numbers.
    pub attempt: AttemptNo,
    /// When the fire was due.
    pub fire_at: Timestamp,
    /// Why there is a fire.
    pub occasion: Occasion,
    /// Whether the fire was a dead letter that was scheduled again, long after `fire_at`.
    pub redriven: bool,
    /// When the attempt was sent. A courier that waits before it sends sets the later time.
    pub fired_at: Timestamp,
    /// From this time on the delivery must not be sent and is reported as not sent: another broker
    /// may own the partition and may have answered that the task is cancelled.
    pub lease_end: LeaseEnd,
    /// The version of the task.
    pub version: Version,
    /// Target, payload and timeout.
    pub definition: Arc<NewTask>,
    route: ReportRoute,
}

/// Where the report of a delivery goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReportRoute {
    /// The lane that counts the delivery as in flight.
    pub(crate) lane: LaneNo,
    /// The task that was sent. A redriven fire may belong to another.
    pub(crate) task_id: TaskId,
}

impl Delivery {
    /// The next attempt of a task's present fire.
    pub(crate) fn new(task: &Task, lane: LaneNo, now: Timestamp, lease_end: LeaseEnd) -> Self {
        Self {
            fire_id: task.fire().id,
            attempt: task.attempt_next(),
            fire_at: task.due_at(),
            occasion: task.occasion,
            redriven: task.redrive.is_some(),
            fired_at: now,
            lease_end,
            version: task.version,
            definition: task.delivered_definition(),
            route: ReportRoute { lane, task_id: task.id },
        }
    }

    /// For tests of couriers: the next attempt of a task that no owner has.
    #[doc(hidden)]
    #[must_use]
    pub fn of(task: &Task, now: Timestamp) -> Self {
        Self::new(task, LaneNo::NONE, now, LeaseEnd::new(Timestamp::MAX))
    }

    /// Creates the report of this delivery. `None` means that it was certainly not sent.
    #[must_use]
    pub fn report(&self, outcome: Option<Outcome>) -> Report {
        let Self { fire_id, attempt, fired_at, route, .. } = *self;
        Report { fire_id, attempt, fired_at, outcome, route: Some(route) }
    }
}

/// What a courier reports about a delivery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The fire that was delivered.
    pub fire_id: FireId,
    /// The attempt that ended.
    pub attempt: AttemptNo,
    /// When the attempt was sent.
    pub fired_at: Timestamp,
    /// The outcome; `None` if the delivery was certainly not sent.
    pub outcome: Option<Outcome>,
    /// Where the delivery was sent from. Another owner has other lanes.
    route: Option<ReportRoute>,
}

impl Report {
    /// A report that another broker passes on.
    #[must_use]
    pub const fn of(
        fire_id: FireId,
        attempt: AttemptNo,
        fired_at: Timestamp,
        outcome: Option<Outcome>,
    ) -> Self {
        Self { fire_id, attempt, fired_at, outcome, route: None }
    }

    /// Returns the report as another owner can read it.
    pub(crate) fn passed_on(self) -> Self {
        Self { route: None, ..self }
    }

    /// Returns where the delivery was sent from, unless another owner sent it.
    pub(crate) const fn route(&self) -> Option<ReportRoute> {
        self.route
    }
}
