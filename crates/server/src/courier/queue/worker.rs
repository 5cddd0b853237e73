//! Workers on a stream and long polls: what happens to their deliveries when they go away.
//!
//! Deliveries that a worker has received stay leased until their time is over. Deliveries that were
//! leased to it and not yet received go back to the front of their line.

use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};

use super::hub::{CREDIT_MAX, Hub, HubState, LineId, ReportBatch, WorkerNo, line_of};
use super::settlement::Leased;

/// A worker on a stream, from [`Hub::join`] until it is dropped.
#[derive(Debug)]
pub(crate) struct StreamWorker {
    pub(super) hub: Arc<Hub>,
    pub(super) number: WorkerNo,
    pub(super) receiver: mpsc::UnboundedReceiver<Vec<Leased>>,
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
                    leases.give_back(leased, lines.entry(line_id).or_default());
                }
            }
            if state.closed {
                let abandoned = state.leases.take(|lease| lease.worker == Some(self.number));
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
pub(super) struct PollGuard<'a> {
    pub(super) hub: &'a Hub,
    pub(super) line_id: LineId,
    pub(super) receiver: oneshot::Receiver<Vec<Leased>>,
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
                unseen.into_iter().rev().for_each(|leased| leases.give_back(leased, line));
            }
            self.hub.dispatch_all(lines);
        }
        self.hub.announce_capacity(lines);
    }
}
