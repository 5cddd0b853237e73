//! A line: the deliveries to one queue that wait, and the workers who want them.

use std::collections::VecDeque;
use std::time::Duration;

use punctual_core::Timestamp;
use punctual_engine::{Delivery, Reports};
use tokio::sync::oneshot;

use super::hub::WorkerNo;
use super::lease::Leases;
use super::settlement::Leased;

/// A delivery that nobody has taken yet.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) delivery: Delivery,
    pub(super) reports: Reports,
    pub(super) since: Timestamp,
}

/// Somebody who waits for up to `max` deliveries.
#[derive(Debug)]
pub(super) struct Poll {
    pub(super) max: usize,
    /// For how long, if the caller said.
    pub(super) lease: Option<Duration>,
    pub(super) sender: oneshot::Sender<Vec<Leased>>,
}

#[derive(Debug, Default)]
pub(super) struct Line {
    pub(super) waiting: VecDeque<Waiting>,
    /// Not to be sent any more: they go back to their owner.
    pub(super) unsent: Vec<Waiting>,
    pub(super) workers: Vec<WorkerNo>,
    pub(super) polls: Vec<Poll>,
    /// Deliveries in the hands of those who polled.
    pub(super) polled: usize,
}

impl Line {
    /// What those who poll want, not counting those who have gone.
    pub(super) fn wanted_by_polls(&self) -> usize {
        let waiting = self.polls.iter().filter(|poll| !poll.sender.is_closed());
        waiting.map(|poll| poll.max).sum()
    }

    /// Gives what waits to those who poll, in the order in which they came.
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
            let leased = taken.into_iter().map(|waiting| {
                let lease = poll.lease.unwrap_or(waiting.delivery.definition.timeout);
                leases.begin(waiting, None, lease, now)
            });
            if let Err(unsent) = poll.sender.send(leased.collect()) {
                self.polled -= unsent.len();
                for leased in unsent {
                    leases.give_back(leased, self);
                }
            }
        }
    }

    /// Takes at most so many that wait, but for those that may not be sent any more.
    pub(super) fn take(&mut self, count: usize, now: Timestamp) -> Vec<Waiting> {
        let mut taken = Vec::with_capacity(count);
        while taken.len() < count
            && let Some(waiting) = self.waiting.pop_front()
        {
            match waiting.delivery.lease_end.is_over(now) {
                false => taken.push(waiting),
                true => self.unsent.push(waiting),
            }
        }
        taken
    }

    /// Whether nothing and nobody is left.
    pub(super) fn is_over(&self) -> bool {
        self.waiting.is_empty()
            && self.unsent.is_empty()
            && self.workers.is_empty()
            && self.polled == 0
            && self.polls.iter().all(|poll| poll.sender.is_closed())
    }
}
