//! What a hand-over carries: the deliveries in flight, and the state of a hand-over in progress.
//!
//! A hand-over waits up to [`HAND_OVER_WAIT`] for deliveries in flight and up to two seconds for
//! the store; then it fails, and the next owner recovers as after a crash.

use std::time::Duration;

use punctual_core::{AttemptNo, FireId, Namespace, PartitionId, TaskId, Timestamp};
use tokio::sync::oneshot;

use crate::delivery::attempt::Report;
use crate::handle::error::EngineError;

/// How long a hand-over waits for deliveries in flight: most receivers have answered by then, and
/// the pause is too short to be noticed.
pub const HAND_OVER_WAIT: Duration = Duration::from_millis(50);
/// How long a hand-over waits for the store to have everything that was decided.
const FLUSH_MAX: Duration = Duration::from_secs(2);

/// A delivery that is in flight at another broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InFlight {
    /// The fire that is delivered.
    pub fire_id: FireId,
    /// The task in the store that was sent. A redriven fire may belong to another.
    pub task_id: TaskId,
    /// The namespace of its task.
    pub namespace: Namespace,
    /// The attempt in flight.
    pub attempt: AttemptNo,
    /// When the attempt was sent.
    pub fired_at: Timestamp,
    /// After this the attempt counts as expired. An owner computes it from the timeout of the task;
    /// a courier that gave a worker more time has a later value.
    pub until: Timestamp,
    /// How the store has the fire.
    pub stored_as: StoredAs,
}

/// How the store has a fire that is in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoredAs {
    /// As a fire of a stored task.
    Filed,
    /// At most once: as a dead letter with an unknown outcome.
    Claimed {
        /// The task did not end with this fire.
        task_continues: bool,
        /// The key was given to another task since.
        key_reused: bool,
        /// The provisional callback, if the task has a callback for dead letters.
        callback: Option<TaskId>,
    },
}

/// Reports of deliveries whose owner has ended. They belong to the present owner of the partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OrphanReport {
    /// The partition of the deliveries.
    pub partition: PartitionId,
    /// What couriers reported.
    pub reports: Vec<Report>,
}

/// A hand-over in progress.
#[derive(Debug)]
pub(crate) struct PendingHandOver {
    since: Timestamp,
    /// Whether the wait for deliveries is over.
    waited: bool,
    /// Reports that arrived after that.
    late: Vec<Report>,
    reply: oneshot::Sender<Result<Vec<InFlight>, EngineError>>,
}

impl PendingHandOver {
    pub(crate) const fn new(
        reply: oneshot::Sender<Result<Vec<InFlight>, EngineError>>,
        now: Timestamp,
    ) -> Self {
        Self { since: now, waited: false, late: Vec::new(), reply }
    }

    /// Returns whether the wait for deliveries is over: there are none, or it took too long.
    pub(crate) fn has_waited(&mut self, in_flight: usize, now: Timestamp) -> bool {
        self.waited |= in_flight == 0 || self.since.after(HAND_OVER_WAIT) <= now;
        self.waited
    }

    /// Whether the store took too long.
    pub(crate) fn is_overdue(&self, now: Timestamp) -> bool {
        self.since.after(FLUSH_MAX) <= now
    }

    /// Keeps reports that arrive after the wait, and returns the others.
    pub(crate) fn keep_late(&mut self, reports: Vec<Report>) -> Vec<Report> {
        if !self.waited {
            return reports;
        }
        self.late.extend(reports);
        Vec::new()
    }

    /// Sends the result. Returns the reports that arrived late.
    pub(crate) fn finish(self, result: Result<Vec<InFlight>, EngineError>) -> Vec<Report> {
        let _ = self.reply.send(result);
        self.late
    }

    /// Fails the hand-over. Returns the reports that arrived late.
    pub(crate) fn fail(self) -> Vec<Report> {
        self.finish(Err(EngineError::Lost))
    }

    /// Returns when the hand-over continues even if no event arrives.
    pub(crate) fn wakes_at(&self) -> Timestamp {
        self.since.after(if self.waited { FLUSH_MAX } else { HAND_OVER_WAIT })
    }
}
