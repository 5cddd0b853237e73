//! How workers name themselves, what is shown of them, and the workers that poll.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use punctual_core::{Queue, Timestamp};

/// Workers in one view: more than people read.
pub(crate) const WORKERS_MAX: usize = 1_000;
/// Bytes of the name of a worker: a host name and a process.
pub(crate) const WORKER_NAME_BYTES_MAX: usize = 128;

/// How a worker names itself, and where it connects from.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct WorkerLabel {
    /// Empty if it has not said.
    pub(crate) name: Box<str>,
    /// `HOST:PORT`; empty if not known.
    pub(crate) address: Box<str>,
}

impl WorkerLabel {
    /// Makes a label. The name becomes one line of at most [`WORKER_NAME_BYTES_MAX`] bytes.
    pub(crate) fn new(name: &str, address: &str) -> Self {
        let end = name.floor_char_boundary(WORKER_NAME_BYTES_MAX);
        let name = name[..end].replace(char::is_control, " ").into();
        Self { name, address: address.into() }
    }
}

/// What is known of one worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WorkerView {
    pub(crate) label: WorkerLabel,
    pub(crate) queues: Vec<Queue>,
    /// Deliveries that it has and has not settled.
    pub(crate) in_flight: usize,
    /// On a stream: how many it may have. By polls: how many it waits for.
    pub(crate) credit: usize,
    pub(crate) since: Timestamp,
}

/// A worker that polls, while a poll or a lease refers to it.
#[derive(Debug)]
pub(super) struct Poller {
    pub(super) label: WorkerLabel,
    pub(super) since: Timestamp,
    in_flight: AtomicUsize,
}

impl Poller {
    pub(super) const fn new(label: WorkerLabel, since: Timestamp) -> Self {
        Self { label, since, in_flight: AtomicUsize::new(0) }
    }

    /// Returns how many deliveries it has and has not settled.
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }
}

/// Counts one delivery of a poller as in flight until dropped.
#[derive(Debug)]
pub(super) struct PolledLease(Arc<Poller>);

impl PolledLease {
    pub(super) fn new(poller: &Arc<Poller>) -> Self {
        poller.in_flight.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(poller))
    }
}

impl Drop for PolledLease {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_worker_is_one_short_line() {
        let label = WorkerLabel::new("a\nb\u{1b}c", "127.0.0.1:1");
        assert_eq!((&*label.name, &*label.address), ("a b c", "127.0.0.1:1"));
        assert_eq!(WorkerLabel::new(&"ä".repeat(100), "").name.len(), WORKER_NAME_BYTES_MAX);
    }
}
