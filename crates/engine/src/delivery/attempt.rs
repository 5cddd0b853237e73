//! One attempt: the delivery that is sent, and the report about it.

use std::sync::Arc;

use punctual_core::{
    Answer, AttemptNo, FireId, NewTask, Occasion, Outcome, Task, Timestamp, Version,
};

use crate::delivery::lane::LaneShare;
use crate::delivery::permit::{NotSendable, SendPermit};
use crate::loaded::loaded_ref::LoadedRef;
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
    /// When the attempt was sent. Until then, when it was handed to its courier.
    pub fired_at: Timestamp,
    /// Decides, at the first byte, whether the delivery may be sent. If not, it is reported as not
    /// sent.
    pub permit: SendPermit,
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
    pub(crate) share: LaneShare,
    /// The task that was sent. A redriven fire may belong to another.
    pub(crate) task: LoadedRef,
}

impl Delivery {
    /// The next attempt of a task's present fire.
    pub(crate) fn new(
        task: &Task,
        route: ReportRoute,
        now: Timestamp,
        lease_end: LeaseEnd,
    ) -> Self {
        let permit = SendPermit::new(lease_end, task.expires_at());
        Self {
            fire_id: task.fire().id,
            attempt: task.attempt_next(),
            fire_at: task.due_at(),
            occasion: task.occasion,
            redriven: task.redrive.is_some(),
            fired_at: now,
            permit,
            version: task.version,
            definition: task.delivered_definition(),
            route,
        }
    }

    /// For tests of couriers: the next attempt of a task that no owner has.
    #[doc(hidden)]
    #[must_use]
    pub fn of(task: &Task, now: Timestamp) -> Self {
        let route = ReportRoute { share: LaneShare::NONE, task: LoadedRef::without_slot(task.id) };
        Self::new(task, route, now, LeaseEnd::new(Timestamp::MAX))
    }

    /// Called by a courier at the moment at which the first byte is to leave: takes the permit and
    /// sets `fired_at`.
    pub fn send(&mut self, now: Timestamp) -> Result<(), NotSendable> {
        self.permit.send(now)?;
        self.fired_at = now;
        Ok(())
    }

    /// Creates the report of this delivery. `None` means that it was certainly not sent.
    #[must_use]
    pub fn report(&self, outcome: Option<Outcome>) -> Report {
        let Self { fire_id, attempt, fired_at, route, ref permit, .. } = *self;
        let origin = Some(ReportOrigin { route, permit: permit.clone() });
        Report { fire_id, attempt, fired_at, outcome, answer: None, origin }
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
    /// What the receiver answered, if it answered and answers are kept.
    pub answer: Option<Box<Answer>>,
    /// `None` if another owner sent the delivery.
    origin: Option<ReportOrigin>,
}

/// Where a delivery came from, as its own owner has it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ReportOrigin {
    route: ReportRoute,
    permit: SendPermit,
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
        Self { fire_id, attempt, fired_at, outcome, answer: None, origin: None }
    }

    /// The report with what the receiver answered.
    #[must_use]
    pub fn with_answer(self, answer: Option<Box<Answer>>) -> Self {
        Self { answer, ..self }
    }

    /// Returns the report as another owner can read it.
    pub(crate) fn passed_on(self) -> Self {
        Self { origin: None, ..self }
    }

    /// Returns where the delivery was sent from, unless another owner sent it.
    pub(crate) fn route(&self) -> Option<ReportRoute> {
        self.origin.as_ref().map(|origin| origin.route)
    }

    /// Notes that the courier has the delivery no longer.
    pub(crate) fn close_permit(&self) {
        if let Some(origin) = &self.origin {
            origin.permit.close();
        }
    }

    /// Whether the owner has recalled the delivery. Then the report only ends its place in the
    /// lane: what becomes of the fire was decided when it was recalled.
    pub(crate) fn is_recalled(&self) -> bool {
        self.origin.as_ref().is_some_and(|origin| origin.permit.is_recalled())
    }
}
