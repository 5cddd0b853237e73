//! A line: the deliveries of one queue that wait for a worker, and the workers and polls that want
//! them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use punctual_core::Timestamp;
use tokio::sync::oneshot;

use super::ids::WorkerNo;
use super::lease::{LeasedBy, Leases};
use super::queued_delivery::QueuedDelivery;
use super::settlement::{Leased, SettleScope};
use super::worker_label::{PolledLease, Poller};

/// A long poll that waits for up to `max` deliveries.
#[derive(Debug)]
pub(super) struct QueuePoll {
    pub(super) max: usize,
    /// How long the leases last; `None` for the timeout of each task.
    pub(super) lease: Option<Duration>,
    /// The worker that polls.
    pub(super) poller: Arc<Poller>,
    pub(super) sender: oneshot::Sender<Vec<Leased>>,
}

/// The line of one queue.
#[derive(Debug, Default)]
pub(super) struct QueueLine {
    pub(super) waiting: VecDeque<QueuedDelivery>,
    /// Deliveries that their owners do not allow to be sent any more: they go back unsent.
    pub(super) unsent: Vec<QueuedDelivery>,
    pub(super) workers: Vec<WorkerNo>,
    pub(super) polls: Vec<QueuePoll>,
    /// Workers that poll, or have polled and may have deliveries.
    pub(super) pollers: Vec<Arc<Poller>>,
    /// Deliveries that are leased to polls.
    pub(super) polled: usize,
}

impl QueueLine {
    /// Returns how many deliveries the polls want, without the polls that have gone away.
    pub(super) fn wanted_by_polls(&self) -> usize {
        let waiting = self.polls.iter().filter(|poll| !poll.sender.is_closed());
        waiting.map(|poll| poll.max).sum()
    }

    /// Leases waiting deliveries to polls, in the order in which the polls came.
    pub(super) fn serve_polls(&mut self, leases: &mut Leases, now: Timestamp) {
        self.polls.retain(|poll| !poll.sender.is_closed());
        while !self.polls.is_empty() && !self.waiting.is_empty() {
            let poll = self.polls.remove(0);
            let count = poll.max.min(self.waiting.len());
            let taken = self.take(count, now);
            if taken.is_empty() {
                self.polls.insert(0, poll);
                continue;
            }
            self.polled += taken.len();
            let leased = taken.into_iter().map(|queued| {
                let lease = poll.lease.unwrap_or(queued.delivery.definition.timeout);
                let holder = LeasedBy::Poll { _counted: PolledLease::new(&poll.poller) };
                leases.begin(queued, holder, lease, now)
            });
            if let Err(unsent) = poll.sender.send(leased.collect()) {
                self.polled -= unsent.len();
                for leased in unsent {
                    self.take_back(leased, leases);
                }
            }
        }
    }

    /// Takes up to `count` waiting deliveries. Those that may no longer be sent move to `unsent`.
    pub(super) fn take(&mut self, count: usize, now: Timestamp) -> Vec<QueuedDelivery> {
        let mut taken = Vec::with_capacity(count);
        while taken.len() < count
            && let Some(queued) = self.waiting.pop_front()
        {
            match queued.delivery.permit.check(now) {
                Ok(()) => taken.push(queued),
                Err(_) => self.unsent.push(queued),
            }
        }
        taken
    }

    /// Ends the lease of a delivery that never reached its worker, and puts the delivery back at
    /// the front of the line.
    pub(super) fn take_back(&mut self, leased: Leased, leases: &mut Leases) {
        let namespace = &leased.delivery.definition.namespace;
        if let Some(lease) = leases.end(leased.token, SettleScope::of_namespace(namespace)) {
            self.waiting.push_front(lease.into_queued());
        }
    }

    /// Returns whether the line can be dropped.
    pub(super) fn is_over(&self) -> bool {
        self.waiting.is_empty()
            && self.unsent.is_empty()
            && self.workers.is_empty()
            && self.polled == 0
            && self.polls.iter().all(|poll| poll.sender.is_closed())
    }
}
