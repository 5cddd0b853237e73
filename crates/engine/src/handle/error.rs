//! Why an owner did not carry out a command: one variant per thing that the caller can do about it.

use punctual_core::{AttemptNo, Task, Version};
use punctual_store::Resource;

/// Why a command was not carried out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// The subject of the command does not exist, or not any more.
    #[error("no such task")]
    NotFound,
    /// The dead letter does not exist, or the outcome of its fire is not known yet.
    #[error("no such dead letter")]
    DeadLetterNotFound,
    /// The command was to create a task only, and there is one.
    #[error("the key names a task already")]
    Exists(Box<Task>),
    /// The command was for another version of the task.
    #[error("the task is at version {}", .0.get())]
    VersionMismatch(Version),
    /// The idempotency key was used for a task with another definition.
    #[error("the idempotency key was used for another task")]
    IdempotencyConflict,
    /// The task cannot be changed while this attempt is in flight.
    #[error("attempt {} of the task is in flight; retry when it has ended", .0.get())]
    Firing(AttemptNo),
    /// A paused task cannot be touched or fired.
    #[error("the task is paused; resume it first")]
    Paused,
    /// A `once` task can only be touched with a time.
    #[error("the task is not a watch: give `in` or `at`")]
    NotAWatch,
    /// A cron or interval task cannot be touched.
    #[error("cron and interval tasks cannot be touched; replace the schedule, or fire it now")]
    NotTouchable,
    /// The schedule has no fire time left.
    #[error("the schedule has no fire time after now")]
    NeverFires,
    /// Too many commands are pending.
    #[error("too many commands are pending; retry later")]
    Busy,
    /// Nothing was done: the store has no space left.
    #[error("the store has no space left {0}")]
    Full(Resource),
    /// Nothing was done: a value of the task in the store cannot be read. The text names it, for
    /// the operator.
    #[error("{0}")]
    Damaged(Box<str>),
    /// Nothing was done: this owner has stopped, or the store must first get back batches that it
    /// lost. The next owner, or the next try, decides.
    #[error("no broker owns this partition right now; retry")]
    Stopped,
    /// Nothing was done: the store is unavailable.
    #[error("the store is unavailable; nothing was done")]
    StoreUnavailable,
    /// The owner ended while the command was pending.
    #[error("it is not known whether the command was carried out")]
    Lost,
}
