//! Views of workers: which of them receive deliveries of a namespace, and how many they have.
//!
//! A worker on a stream is listed as long as it is connected. A worker that polls is listed while
//! it waits for deliveries or has some; polls with the same name and address are one worker.

use std::sync::Arc;

use punctual_core::{Namespace, Timestamp};

use super::hub::{Hub, HubState};
use super::line::QueueLine;
use super::worker_label::{Poller, WORKERS_MAX, WorkerLabel, WorkerView};

impl QueueLine {
    /// Returns the poller with this label, added if there is none. Forgets those that neither poll
    /// nor have deliveries.
    pub(super) fn poller(&mut self, label: &WorkerLabel, now: Timestamp) -> Arc<Poller> {
        self.pollers.retain(|poller| Arc::strong_count(poller) > 1);
        if let Some(known) = self.pollers.iter().find(|poller| poller.label == *label) {
            return Arc::clone(known);
        }
        let poller = Arc::new(Poller::new(label.clone(), now));
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
                in_flight: poller.in_flight(),
                credit: line.wanted_by(poller),
                since: poller.since,
            })
        });
        pollers.filter(|worker| worker.in_flight > 0 || worker.credit > 0).collect()
    }
}
