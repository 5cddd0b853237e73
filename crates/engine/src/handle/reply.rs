//! What an owner replies to commands that it has carried out.

use punctual_core::{AttemptNo, Task, Timestamp, Version};

/// The result of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// To [`Command::Schedule`](crate::Command::Schedule).
    Scheduled(Scheduled),
    /// To [`Command::Bind`](crate::Command::Bind): the idempotency key is bound to this definition.
    Bound,
    /// To [`Command::Cancel`](crate::Command::Cancel).
    Cancelled(Cancelled),
    /// To [`Get`](crate::Command::Get), [`Pause`](crate::Command::Pause),
    /// [`Resume`](crate::Command::Resume), [`Fire`](crate::Command::Fire) and
    /// [`Redrive`](crate::Command::Redrive): the task after the command.
    Task(Task),
    /// To [`Command::Touch`](crate::Command::Touch).
    Touched {
        /// The new due time.
        fire_at: Timestamp,
        /// The new version.
        version: Version,
    },
    /// To [`Command::DeleteLetter`](crate::Command::DeleteLetter).
    LetterDeleted,
}

/// The reply to [`Command::Schedule`](crate::Command::Schedule).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scheduled {
    /// The key named no task before.
    Created(Task),
    /// The task replaces another, or is that one with a new definition.
    Replaced(Task),
}

impl Scheduled {
    /// Returns the task, created or replaced.
    #[must_use]
    pub const fn task(&self) -> &Task {
        match self {
            Self::Created(task) | Self::Replaced(task) => task,
        }
    }
}

/// The reply to [`Command::Cancel`](crate::Command::Cancel).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cancelled {
    /// The task will never fire.
    Cancelled,
    /// Too late: this attempt is in flight.
    Firing(AttemptNo),
    /// Too late: the task fired at this time.
    AlreadyFired(Timestamp),
}
