//! What a task is, when it is due, and what follows from each attempt to deliver it.
//!
//! Everything here is a value or a pure function. There is no clock, no IO, no runtime and no wire
//! format: `now` is an argument, and JSON and bytes on disk are defined in other crates.
//!
//! Read in this order. A request becomes a [`NewTask`], whose [`Schedule`] gives its due times;
//! with a [`TaskId`] it is a [`Task`]. A due time is a [`Fire`], which is delivered in
//! [attempts](AttemptNo). [`settle()`] decides what follows from the [`Outcome`] of each, and
//! [`Task::next_step`] what follows the fire. [`PartitionId`], [`Epoch`] and [`Lease`] say which
//! broker may decide.
//!
//! The crate `wheel` waits for due times, `store` keeps tasks, and `engine` acts on the decisions.

mod alarm;
mod answer_rules;
mod attempt;
mod cron;
mod dead;
mod duration;
mod fire;
mod grpc_target;
mod id;
mod lease;
mod limits;
mod mail;
mod name;
mod partition;
mod retry;
mod schedule;
mod series;
mod settle;
mod sink;
mod target;
mod task;
mod time;
mod topology;
mod zone;

pub use alarm::{
    AlarmCondition, AlarmReceiver, AlarmRule, AlarmState, AlarmStatus, AlarmValue, ChatKind,
    ChatRobot, Notice, Reading,
};
pub use answer_rules::{AnswerRules, ExpectedValue};
pub use attempt::{Answer, AttemptNo, AttemptRecord, AttemptResult, Outcome, Reason};
#[cfg(any(test, feature = "oracle"))]
#[doc(hidden)]
pub use cron::oracle as cron_oracle;
pub use cron::{CRON_BYTES_MAX, CRON_NICKNAMES, Cron, Dst, Gap, Twice, parse_every};
pub use dead::{DeadLetter, DeadReason, LetterGroup, origin_group};
pub use duration::{DurationError, format_duration, parse_duration};
pub use fire::{EndKind, Fire, FireEnd, FireRecord, SkipReason, Skipped};
pub use grpc_target::GrpcTarget;
pub use id::{FireId, IdError, Sequence, TaskId};
pub use lease::{BrokerId, Epoch, Lease, Seat};
pub use limits::*;
pub use mail::MailTarget;
pub use name::{AlarmName, ConnectionName, Labels, Namespace, Queue, StatementName, TaskKey};
pub use partition::{PartitionId, Partitions, partition_of};
pub use retry::{Backoff, Jitter, RetryPolicy};
pub use schedule::{Due, Schedule, TaskKind};
pub use series::{Misfire, Overlap, Series};
pub use settle::{SettleContext, Verdict, settle};
pub use sink::{
    MESSAGE_HEADERS_RESERVED_PREFIXES, MessageAddress, MessageOptions, MessageSystem, MqttQos,
    SinkAddress, SinkTarget, SqlCall, SqlParam, is_param_name,
};
pub use target::{HEADERS_RESERVED, HEADERS_RESERVED_PREFIXES, HttpTarget, Method, Target};
pub use task::{
    Callbacks, Edited, Guarantee, NewTask, NextStep, Occasion, Origin, OverlappingFire, Payload,
    Redrive, RenderRecord, Task, TaskState, Version,
};
pub use time::{Clock, Timestamp, TimestampError};
pub use topology::{Assignment, Heartbeat, PartitionOwner, Topology};
pub use zone::{ZONE_NAME_BYTES_MAX, Zone, zones_version};

/// A value of a caller that is not allowed: which field, and what is allowed.
///
/// It is the only error of validation, so that HTTP, gRPC and the command line can all name the
/// field.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct Invalid {
    /// The field as the caller wrote it, with dots where it is nested: `retry.backoff.list`.
    pub field: String,
    /// What is wrong, and what is allowed.
    pub problem: String,
}

impl Invalid {
    /// Makes an error about one field.
    pub fn new(field: impl Into<String>, problem: impl Into<String>) -> Self {
        Self { field: field.into(), problem: problem.into() }
    }

    /// Puts the name of an outer field before the field: `url` within `target.http` becomes
    /// `target.http.url`.
    #[must_use]
    pub fn within(self, outer: &str) -> Self {
        Self { field: format!("{outer}.{}", self.field), problem: self.problem }
    }
}
