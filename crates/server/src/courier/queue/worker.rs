//! Workers on a stream and long polls, as the hub sees them: what becomes of deliveries when they go away.

use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};

use super::hub::{CREDIT_MAX, Hub, Inner, LineId, Outgoing, WorkerNo, line_of};
use super::settlement::Leased;

/// A worker on a stream. When it is dropped, what it has goes on until its lease ends; what it was not yet given goes back.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(super) hub: Arc<Hub>,
    pub(super) number: WorkerNo,
    pub(super) receiver: mpsc::UnboundedReceiver<Vec<Leased>>,
}

impl Worker {
    /// The next deliveries.
    pub(crate) async fn next(&mut self) -> Option<Vec<Leased>> {
        self.receiver.recv().await
    }

    /// What is here already.
    pub(crate) fn next_now(&mut self) -> Option<Vec<Leased>> {
        self.receiver.try_recv().ok()
    }

    /// From now on so many may be unsettled.
    pub(crate) fn set_credit(&self, credit: usize) {
        let lines = {
            let mut inner = self.hub.lock();
            let worker = inner.workers.get_mut(&self.number).expect("it is here until dropped");
            worker.credit = credit.min(CREDIT_MAX);
            worker.lines.clone()
        };
        self.hub.tell_room(&lines);
        self.hub.hand_out_all(&lines);
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.receiver.close();
        let mut outgoing = Outgoing::default();
        let lines = {
            let mut inner = self.hub.lock();
            let entry = inner.workers.remove(&self.number).expect("it is here until dropped");
            for line_id in &entry.lines {
                if let Some(line) = inner.lines.get_mut(line_id) {
                    line.workers.retain(|number| *number != self.number);
                }
            }
            // Nobody has seen these.
            while let Ok(batch) = self.receiver.try_recv() {
                let Inner { lines, leases, .. } = &mut *inner;
                for leased in batch {
                    let Some(line_id) = line_of(&leased.delivery) else { continue };
                    leases.give_back(leased, lines.entry(line_id).or_default());
                }
            }
            if inner.closed {
                let lost = inner.leases.take(|held| held.worker == Some(self.number));
                self.hub.report_given_up(lost, &mut outgoing);
            }
            entry.lines
        };
        outgoing.send();
        self.hub.tell_room(&lines);
        self.hub.hand_out_all(&lines);
    }
}

/// Somebody who polls, until they have gone, in whatever way.
pub(super) struct Polling<'a> {
    pub(super) hub: &'a Hub,
    pub(super) line_id: LineId,
    pub(super) receiver: oneshot::Receiver<Vec<Leased>>,
}

impl Drop for Polling<'_> {
    fn drop(&mut self) {
        self.receiver.close();
        // One who went away in the very moment of being served has not seen these.
        let unseen = self.receiver.try_recv().unwrap_or_default();
        let lines = std::slice::from_ref(&self.line_id);
        if !unseen.is_empty() {
            {
                let mut inner = self.hub.lock();
                let Inner { lines, leases, .. } = &mut *inner;
                let line = lines.entry(self.line_id.clone()).or_default();
                line.polled = line.polled.saturating_sub(unseen.len());
                unseen.into_iter().rev().for_each(|leased| leases.give_back(leased, line));
            }
            self.hub.hand_out_all(lines);
        }
        self.hub.tell_room(lines);
    }
}
