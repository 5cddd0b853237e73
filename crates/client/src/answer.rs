//! Answers of brokers to calls about existing tasks: cancel, touch and list.
//!
//! `wire` makes them of their messages, and `namespace` returns them. The answer to a new task is
//! in `task`.

use crate::task::Task;
use crate::{Error, Timestamp};

/// The result of a cancel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum CancelResult {
    /// The task never fires again.
    Cancelled,
    /// Too late: an attempt is in flight.
    Firing {
        /// The number of the attempt, from 1.
        attempt: u32,
    },
    /// Too late: the task has fired.
    AlreadyFired {
        /// When it fired.
        fired_at: Timestamp,
    },
    /// There is no such task.
    NotFound,
}

/// The result of a touch of many tasks.
#[derive(Debug)]
#[non_exhaustive]
pub struct Touched {
    /// How many tasks were touched.
    pub touched: u64,
    /// How many tasks were missing and created.
    pub created: u64,
    /// Keys without a task.
    pub missing: Vec<String>,
    /// Keys of tasks that could not be touched, each with the reason.
    pub problems: Vec<(String, Error)>,
}

/// A page of a list of tasks.
#[derive(Debug)]
#[non_exhaustive]
pub struct Page {
    /// Ordered by due time.
    pub tasks: Vec<Task>,
    /// The cursor of the next page; `None` if this is the last one.
    pub next: Option<String>,
}
