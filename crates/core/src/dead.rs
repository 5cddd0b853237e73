//! Dead letters: fires that ended without success, kept with their task and their attempts.
//!
//! `settle` decides that a fire is dead. A dead letter stays in the store until it is redriven,
//! deleted, or past its retention.

use crate::{FireId, Task, Timestamp};

/// Why a fire is dead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DeadReason {
    /// No attempt is left.
    Exhausted,
    /// The receiver refused it.
    Refused,
    /// It expired before an attempt succeeded.
    Expired,
    /// At most once: it was sent, and it is not known whether it arrived.
    Unknown,
}

/// A fire that ended without success.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetter {
    /// The task with this fire as its current one, and with its attempts.
    pub task: Task,
    /// When the fire was given up.
    pub died_at: Timestamp,
    /// Why it was given up.
    pub reason: DeadReason,
}

impl DeadLetter {
    /// The fire that is dead.
    #[must_use]
    pub fn fire_id(&self) -> FireId {
        self.task.fire().id
    }
}
