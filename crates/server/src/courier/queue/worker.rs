//! Workers on a stream and long polls: how they take deliveries from the hub, and what happens to
//! their deliveries when they go away.
//!
//! Deliveries that a worker has received stay leased until their time is over. Deliveries that were
//! leased to it and not yet received go back to the front of their line.

use std::sync::Arc;
use std::time::Duration;

use punctual_core::{Clock as _, Namespace, Queue};
use tokio::sync::{mpsc, oneshot};

use super::hub::{Hub, HubState};
use super::ids::{LineId, WorkerNo, line_of};
use super::line::QueuePoll;
use super::report_batch::ReportBatch;
use super::settlement::Leased;
use super::worker_label::WorkerLabel;

/// Unsettled deliveries that one worker may have.
const CREDIT_MAX: usize = 65_536;

impl Hub {
    /// Adds a worker on a stream. It stays until the returned value is dropped.
    pub(crate) fn join(
        self: &Arc<Self>,
        namespace: &Namespace,
        queues: &[Queue],
        credit: usize,
        label: WorkerLabel,
    ) -> StreamWorker {
        let (sender, receiver) = mpsc::unbounded_channel();
        let lines: Vec<_> = queues.iter().map(|queue| (namespace.clone(), queue.clone())).collect();
        let (credit, now) = (credit.min(CREDIT_MAX), self.clock.now());
        let number = self.lock().add_worker(&lines, credit, label, now, sender);
        self.announce_capacity(&lines);
        self.dispatch_all(&lines);
        StreamWorker { hub: Arc::clone(self), number, receiver }
    }

    /// Waits up to `wait` for at most `max` deliveries of a queue, for the worker with this label.
    pub(crate) async fn poll(
        &self,
        line_id: LineId,
        max: usize,
        wait: Duration,
        lease: Option<Duration>,
        label: &WorkerLabel,
    ) -> Vec<Leased> {
        let (sender, receiver) = oneshot::channel();
        let mut guard = PollGuard { hub: self, line_id, receiver };
        {
            let mut state = self.lock();
            if state.closed {
                return Vec::new();
            }
            let line = state.lines.entry(guard.line_id.clone()).or_default();
            let poller = line.poller(label, self.clock.now());
            line.polls.push(QueuePoll { max, lease, poller, sender });
        }
        let lines = std::slice::from_ref(&guard.line_id);
        self.saw_pollers(lines);
        self.announce_capacity(lines);
        self.dispatch_all(lines);
        let leased = match tokio::time::timeout(wait, &mut guard.receiver).await {
            Ok(leased) => leased.unwrap_or_default(),
            // It may have been served at the last moment: leased deliveries must not be dropped.
            Err(_) => {
                guard.receiver.close();
                guard.receiver.try_recv().unwrap_or_default()
            }
        };
        drop(guard);
        self.send_leased(leased)
    }
}

/// A worker on a stream, from [`Hub::join`] until it is dropped.
#[derive(Debug)]
pub(crate) struct StreamWorker {
    hub: Arc<Hub>,
    number: WorkerNo,
    receiver: mpsc::UnboundedReceiver<Vec<Leased>>,
}

impl StreamWorker {
    /// Waits for the next deliveries.
    pub(crate) async fn next(&mut self) -> Option<Vec<Leased>> {
        self.receiver.recv().await
    }

    /// Returns the next deliveries if there are any already.
    pub(crate) fn next_now(&mut self) -> Option<Vec<Leased>> {
        self.receiver.try_recv().ok()
    }

    /// Sets how many deliveries may be unsettled at once.
    pub(crate) fn set_credit(&self, credit: usize) {
        let lines = {
            let mut state = self.hub.lock();
            let worker = state.workers.get_mut(&self.number).expect("removed only when dropped");
            worker.credit = credit.min(CREDIT_MAX);
            worker.lines.clone()
        };
        self.hub.announce_capacity(&lines);
        self.hub.dispatch_all(&lines);
    }
}

impl Drop for StreamWorker {
    fn drop(&mut self) {
        self.receiver.close();
        let mut reports = ReportBatch::default();
        let lines = {
            let mut state = self.hub.lock();
            let worker = state.workers.remove(&self.number).expect("removed only when dropped");
            for line_id in &worker.lines {
                if let Some(line) = state.lines.get_mut(line_id) {
                    line.workers.retain(|number| *number != self.number);
                }
            }
            // The worker has not received these.
            while let Ok(batch) = self.receiver.try_recv() {
                let HubState { lines, leases, .. } = &mut *state;
                for leased in batch {
                    let Some(line_id) = line_of(&leased.delivery) else { continue };
                    lines.entry(line_id).or_default().take_back(leased, leases);
                }
            }
            if state.closed {
                let abandoned = state.leases.take(|lease| lease.worker() == Some(self.number));
                self.hub.report_abandoned(abandoned, &mut reports);
            }
            worker.lines
        };
        reports.send();
        self.hub.announce_capacity(&lines);
        self.hub.dispatch_all(&lines);
    }
}

/// A long poll, until it is answered, times out or its caller goes away.
struct PollGuard<'a> {
    hub: &'a Hub,
    line_id: LineId,
    receiver: oneshot::Receiver<Vec<Leased>>,
}

impl Drop for PollGuard<'_> {
    fn drop(&mut self) {
        self.receiver.close();
        // The caller went away just as it was served, so it has not received these.
        let unseen = self.receiver.try_recv().unwrap_or_default();
        let lines = std::slice::from_ref(&self.line_id);
        if !unseen.is_empty() {
            {
                let mut state = self.hub.lock();
                let HubState { lines, leases, .. } = &mut *state;
                let line = lines.entry(self.line_id.clone()).or_default();
                line.polled = line.polled.saturating_sub(unseen.len());
                unseen.into_iter().rev().for_each(|leased| line.take_back(leased, leases));
            }
            self.hub.dispatch_all(lines);
        }
        self.hub.announce_capacity(lines);
        self.hub.saw_pollers(lines);
    }
}
