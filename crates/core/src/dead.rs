//! Dead letters: fires that came to nothing, kept to be looked at.
//!
//! In: a fire that `settle` gave up. Out: the letter, with the task as it stood and why. It stays until it is redriven,
//! deleted or past its retention.

use crate::{FireId, Task, Timestamp};

/// Why a fire is dead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DeadReason {
    /// No attempt is left.
    Exhausted,
    /// The receiver does not want it.
    Refused,
    /// It no longer makes sense.
    Expired,
    /// At most once: it was sent, and nobody knows whether it arrived.
    Unknown,
}

/// A fire with no attempt left, or refused, kept to be looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetter {
    /// The task as it stood before this fire, attempts included.
    pub task: Task,
    /// Since when.
    pub died_at: Timestamp,
    /// Why.
    pub reason: DeadReason,
}

impl DeadLetter {
    /// Which fire.
    #[must_use]
    pub const fn fire_id(&self) -> FireId {
        self.task.fire().id
    }
}
