//! What a long poll asks for.

use std::time::Duration;

use punctual_core::{Namespace, Queue};

use super::worker_label::WorkerLabel;

/// What a poll asks for.
#[derive(Debug, Clone)]
pub(crate) struct PollOptions {
    pub(crate) namespace: Namespace,
    pub(crate) queue: Queue,
    pub(crate) max: usize,
    pub(crate) wait: Duration,
    pub(crate) lease: Option<Duration>,
    pub(crate) label: WorkerLabel,
}
