//! The pure heart of Punctual: what a task is, when it is due, and what becomes of it.
//!
//! In: values. Out: values. No clock, no IO, no runtime, no wire format: `now` is an argument, bytes
//! on disk and JSON are spelled elsewhere, and every decision can be tested in a table.
//!
//! Read in this order: a request becomes a [`NewTask`] (`task`), whose [`Schedule`] says when it is
//! due and whose [`TaskId`] says where it is filed; reaching that time is a [`Fire`], a try to
//! get it done is an [`Attempt`](AttemptNo), and [`settle()`] says what follows from its
//! [`Outcome`]. Who may decide all this is a matter of [`PartitionId`], [`Epoch`] and [`Lease`].
//!
//! Next door: `wheel` waits for the time, `store` keeps the task, `engine` acts on the decisions.

mod cron;
mod dead;
mod duration;
mod fire;
mod id;
mod lease;
mod limits;
mod name;
mod partition;
mod retry;
mod schedule;
mod series;
mod settle;
mod target;
mod task;
mod time;
mod topology;
mod zone;

#[cfg(any(test, feature = "oracle"))]
#[doc(hidden)]
pub use cron::oracle as cron_oracle;
pub use cron::{CRON_BYTES_MAX, Cron, Dst, Gap, Twice, every_of};
pub use dead::{DeadLetter, DeadReason};
pub use duration::{DurationError, format_duration, parse_duration};
pub use fire::{
    AttemptNo, AttemptRecord, Fire, FireEnd, FireRecord, Outcome, Reason, SkipReason, Skipped,
};
pub use id::{FireId, IdError, Sequence, TaskId};
pub use lease::{BrokerId, Epoch, Lease, Seat};
pub use limits::*;
pub use name::{Labels, Namespace, Queue, TaskKey};
pub use partition::{PartitionId, Partitions, partition_of};
pub use retry::{Backoff, Jitter, RetryPolicy};
pub use schedule::{Due, Schedule};
pub use series::{Misfire, Overlap, Series};
pub use settle::{SettleContext, Verdict, settle};
pub use target::{HttpTarget, Method, Target};
pub use task::{
    Edited, Guarantee, NewTask, NextStep, Occasion, OverlappingFire, Payload, Task, TaskState,
    Version,
};
pub use time::{Clock, Timestamp, TimestampError};
pub use topology::{Assignment, Heartbeat, PartitionOwner, Topology};
pub use zone::{Zone, zones_version};

/// A value that a caller sent and that cannot be taken: which field, and what is allowed.
///
/// The only error of validation, so that every edge (HTTP, gRPC, CLI) can name the field.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct Invalid {
    /// The field as the caller wrote it, dotted where nested: `retry.backoff.list`.
    pub field: String,
    /// What is wrong, and the limit that was passed.
    pub problem: String,
}

impl Invalid {
    /// Blames one field.
    pub fn new(field: impl Into<String>, problem: impl Into<String>) -> Self {
        Self { field: field.into(), problem: problem.into() }
    }

    /// The same complaint about a field one level further out: `url` within `target.http`.
    #[must_use]
    pub fn within(self, outer: &str) -> Self {
        Self { field: format!("{outer}.{}", self.field), problem: self.problem }
    }
}
