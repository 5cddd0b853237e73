//! Views of workers: which of them receive deliveries of a namespace, and how many they have.
//!
//! A worker on a stream is listed as long as it is connected. A worker that polls is listed while
//! it waits for deliveries or has some; polls with the same name and address are one worker.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use punctual_core::{Namespace, Queue, Timestamp};

use super::hub::{Hub, HubState};
use super::line::QueueLine;

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
    label: WorkerLabel,
    since: Timestamp,
    in_flight: AtomicUsize,
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

impl QueueLine {
    /// Returns the poller with this label, added if there is none. Forgets those that neither poll
    /// nor have deliveries.
    pub(super) fn poller(&mut self, label: &WorkerLabel, now: Timestamp) -> Arc<Poller> {
        self.pollers.retain(|poller| Arc::strong_count(poller) > 1);
        if let Some(known) = self.pollers.iter().find(|poller| poller.label == *label) {
            return Arc::clone(known);
        }
        let in_flight = AtomicUsize::new(0);
        let poller = Arc::new(Poller { label: label.clone(), since: now, in_flight });
        self.pollers.push(Arc::clone(&poller));
        poller
    }

    /// Returns how many deliveries the polls of a worker wait for.
    fn wanted_by(&self, poller: &Arc<Poller>) -> usize {
        let polls = self.polls.iter().filter(|poll| !poll.sender.is_closed());
        let polls = polls.filter(|poll| Arc::ptr_eq(&poll.poller, poller));
        polls.map(|poll| poll.max).sum()
    }
}

impl Hub {
    /// Returns the workers of a namespace that are connected to this broker.
    pub(crate) fn workers(&self, namespace: &Namespace) -> Vec<WorkerView> {
        let state = self.lock();
        let mut workers = state.stream_workers(namespace);
        workers.extend(state.poll_workers(namespace));
        workers.truncate(WORKERS_MAX);
        workers
    }
}

impl HubState {
    fn stream_workers(&self, namespace: &Namespace) -> Vec<WorkerView> {
        let of_namespace = self.workers.values().filter(|worker| {
            worker.lines.first().is_some_and(|(namespace_of, _)| namespace_of == namespace)
        });
        let view = of_namespace.map(|worker| WorkerView {
            label: worker.label.clone(),
            queues: worker.lines.iter().map(|(_, queue)| queue.clone()).collect(),
            in_flight: worker.unsettled,
            credit: worker.credit,
            since: worker.since,
        });
        view.collect()
    }

    fn poll_workers(&self, namespace: &Namespace) -> Vec<WorkerView> {
        let lines = self.lines.iter().filter(|((of_line, _), _)| of_line == namespace);
        let pollers = lines.flat_map(|((_, queue), line)| {
            line.pollers.iter().map(move |poller| WorkerView {
                label: poller.label.clone(),
                queues: vec![queue.clone()],
                in_flight: poller.in_flight.load(Ordering::Relaxed),
                credit: line.wanted_by(poller),
                since: poller.since,
            })
        });
        pollers.filter(|worker| worker.in_flight > 0 || worker.credit > 0).collect()
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
