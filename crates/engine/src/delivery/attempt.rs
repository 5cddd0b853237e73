//! One attempt: the delivery that is sent, and the report about it.

use std::sync::Arc;

use punctual_core::{AttemptNo, FireId, NewTask, Occasion, Outcome, Task, Timestamp, Version};

use crate::delivery::lane::LaneShare;
use crate::delivery::permit::SendPermit;
use crate::ownership::lease::LeaseEnd;

/// What is sent for one attempt.
#[derive(Debug, Clone)]
pub struct Delivery {
    /// The same for every attempt of a fire, so that receivers can deduplicate.
    pub fire_id: FireId,
    /// The number of the attempt, from one. A redrive starts again at one.
    pub attempt: AttemptNo,
    /// When the fire was due.
    pub fire_at: Timestamp,
    /// Why there is a fire.
    pub occasion: Occasion,
    /// Whether the fire was a dead letter that was scheduled again, long after `fire_at`. A
    /// redriven fire of a task that had continued without it is a new task, and not marked.
    pub redriven: bool,
    /// When the attempt was sent. A courier that waits before it sends sets the later time.
    pub fired_at: Timestamp,
    /// Decides, at the first byte, whether the delivery may be sent. If not, it is reported as not
    /// sent.
    pub permit: SendPermit,
    /// The version of the task.
    pub version: Version,
    /// Target, payload and timeout.
    pub definition: Arc<NewTask>,
    share: LaneShare,
}

impl Delivery {
    /// The next attempt of a task's present fire.
    pub(crate) fn new(task: &Task, share: LaneShare, now: Timestamp, lease_end: LeaseEnd) -> Self {
        let permit = SendPermit::new(lease_end, task.expires_at());
        Self {
            fire_id: task.fire().id,
            attempt: task.attempt_next(),
            fire_at: task.due_at(),
            occasion: task.occasion,
            redriven: is_redriven(task),
            fired_at: now,
            permit,
            version: task.version,
            definition: Arc::clone(&task.definition),
            share,
        }
    }

    /// For tests of couriers: the next attempt of a task that no owner has.
    #[doc(hidden)]
    #[must_use]
    pub fn of(task: &Task, now: Timestamp) -> Self {
        Self::new(task, LaneShare::NONE, now, LeaseEnd::new(Timestamp::MAX))
    }

    /// Creates the report of this delivery. `None` means that it was certainly not sent.
    #[must_use]
    pub fn report(&self, outcome: Option<Outcome>) -> Report {
        let Self { fire_id, attempt, fired_at, share, ref permit, .. } = *self;
        let origin = Some(ReportOrigin { share, permit: permit.clone() });
        Report { fire_id, attempt, fired_at, outcome, origin }
    }
}

/// A redrive keeps the nominal time of the fire, clears its attempts and is due at once. Nothing
/// else moves a `once` task without attempts behind its nominal time. A redrive within the
/// millisecond of the nominal time counts as a first attempt, which it may: it is not late.
fn is_redriven(task: &Task) -> bool {
    !task.recurs() && task.attempts.is_empty() && task.fire_at > task.due_at()
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
    /// `None` if another owner sent the delivery.
    origin: Option<ReportOrigin>,
}

/// Where a delivery came from, as its own owner has it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ReportOrigin {
    share: LaneShare,
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
        Self { fire_id, attempt, fired_at, outcome, origin: None }
    }

    /// Returns the report as another owner can read it.
    pub(crate) fn passed_on(self) -> Self {
        Self { origin: None, ..self }
    }

    /// Returns the lane of the delivery, unless another owner sent it.
    pub(crate) fn lane_share(&self) -> Option<LaneShare> {
        self.origin.as_ref().map(|origin| origin.share)
    }

    /// Whether the owner has recalled the delivery. Then the report only ends its place in the
    /// lane: what becomes of the fire was decided when it was recalled.
    pub(crate) fn is_recalled(&self) -> bool {
        self.origin.as_ref().is_some_and(|origin| origin.permit.is_recalled())
    }
}
