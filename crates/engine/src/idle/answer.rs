//! Decides whether an owner is idle, and answers the call that waits for it.

use punctual_core::Timestamp;

use super::IdleReport;
use crate::owner::Owner;

impl Owner {
    /// Answers the call that waits, if the owner is idle.
    pub(crate) fn answer_idle(&mut self, now: Timestamp) {
        if self.idle_waiters.waiting.is_none() || !self.is_idle(now) {
            return;
        }
        let report = IdleReport {
            next_due: self.next_instant(),
            in_flight_to_queues: self.deliveries.in_flight_to_queues(),
            fires: self.idle_waiters.fires,
        };
        if let Some(reply) = self.idle_waiters.waiting.take() {
            // The caller may no longer wait.
            let _ = reply.send(report);
        }
    }

    /// Whether nothing is left to do at `now`: nothing is being decided, written, read or sent,
    /// except deliveries to queues. What is tried again later, because the store was unavailable,
    /// is due later.
    fn is_idle(&self, now: Timestamp) -> bool {
        if self.actions.next_retry().is_some_and(|at| at > now) {
            return true;
        }
        let is_later = |at: Option<Timestamp>| at.is_none_or(|at| at > now);
        let decides = self.commands.has_pending_calls() || !self.commands.is_empty();
        let reads = self.loader.is_reading() || !is_later(self.next_load());
        let sweeps = self.tenure.next_sweep().is_none_or(|at| at <= now);
        let sends = self.deliveries.in_flight() > self.deliveries.in_flight_to_queues();
        let fires = self.is_busy() || !is_later(self.tasks.next_due());
        self.writer.is_idle()
            && !(decides || reads || sweeps || sends || fires)
            && !self.deliveries.is_resolving()
    }

    /// Returns the earliest instant that may change what callers see. Sweeps and the parking of
    /// lanes come at any instant after they are due.
    fn next_instant(&self) -> Option<Timestamp> {
        let due = [
            self.tasks.next_due(),
            self.next_load(),
            self.next_inherited_end(),
            self.deliveries.next_share(),
            self.actions.next_retry(),
        ];
        due.into_iter().flatten().min()
    }
}
