//! Handing a partition over, at the broker that gives it away.
//!
//! Before the owner ends, everything that was decided is durable, all calls that were accepted are
//! answered, and the deliveries that are still in flight are returned as [`InFlight`]s, so that the
//! successor does not send them again (`take_over`). How brokers reach each other is in `server`.

use std::time::Duration;

use punctual_core::{Task, Timestamp};
use tokio::sync::oneshot;

use crate::delivery::attempt::Report;
use crate::delivery::claim::Claim;
use crate::event::Action;
use crate::handle::error::EngineError;
use crate::owner::Owner;
use crate::ownership::in_flight::{InFlight, PendingHandOver, StoredAs};

/// How much longer than the timeout of a delivery its report may take to arrive.
const REPORT_SLACK: Duration = Duration::from_secs(5);

impl Owner {
    pub(crate) fn on_hand_over(
        &mut self,
        reply: oneshot::Sender<Result<Vec<InFlight>, EngineError>>,
        now: Timestamp,
    ) {
        if self.tenure.handing_over.is_some() {
            let _ = reply.send(Err(EngineError::Stopped));
            return;
        }
        self.tenure.drain();
        // The successor sends these itself.
        self.recall_all(now);
        // The successor does not have the batches that the store may have lost.
        self.writer.confirm();
        self.tenure.handing_over = Some(PendingHandOver::new(reply, now));
    }

    /// Returns what is in flight once everything else is done, and ends.
    pub(crate) fn hand_over(&mut self, now: Timestamp) {
        let in_flight = self.deliveries.in_flight();
        let Some(hand_over) = &mut self.tenure.handing_over else {
            return;
        };
        let (waited, overdue) = (hand_over.has_waited(in_flight, now), hand_over.is_overdue(now));
        let decided = self.commands.is_empty() || self.deliveries.is_resolving();
        let flushed = self.writer.is_idle() && !self.commands.has_pending_calls() && decided;
        let ready = waited && flushed && !self.deliveries.has_unsent();
        // A task about which a decision was pending, or a claim, may be unsent still.
        if ready && self.recall_all(now) {
            return;
        }
        let result = match ready {
            true => Ok(self.list_in_flight(now)),
            false if overdue => Err(EngineError::Lost),
            false => return,
        };
        let Some(hand_over) = self.tenure.handing_over.take() else {
            return;
        };
        let partition = self.tenure.partition;
        match &result {
            Ok(list) => tracing::info!(%partition, in_flight = list.len(), "handed over"),
            Err(_) => tracing::warn!(%partition, "hand-over failed: the store took too long"),
        }
        // The list of deliveries in flight must arrive before their reports.
        let late = hand_over.finish(result);
        self.pass_on(late);
        self.end();
    }

    /// Passes reports on to the next owner.
    pub(crate) fn pass_on(&mut self, reports: Vec<Report>) {
        let sent = reports.into_iter().filter(|report| !report.is_recalled());
        let reports: Vec<_> = sent.map(Report::passed_on).collect();
        if !reports.is_empty() {
            self.actions.push(Action::OrphanReport(reports));
        }
    }

    fn list_in_flight(&self, now: Timestamp) -> Vec<InFlight> {
        let filed = self.tasks.in_flight();
        let filed = filed
            .map(|(task, sent_at)| self.describe_in_flight(&task, sent_at, StoredAs::Filed, now));
        let claimed = self.deliveries.claims().map(|(claim, key_reused)| {
            let Claim { task_continues, callback, .. } = *claim;
            let stored_as = StoredAs::Claimed { task_continues, key_reused, callback };
            self.describe_in_flight(&claim.task, claim.sent_at(), stored_as, now)
        });
        // Deliveries whose lookup has not been answered are passed on as they were received.
        filed.chain(claimed).chain(self.commands.adoptions().cloned()).collect()
    }

    fn describe_in_flight(
        &self,
        task: &Task,
        sent_at: Option<Timestamp>,
        stored_as: StoredAs,
        now: Timestamp,
    ) -> InFlight {
        let (fire_id, namespace) = (task.fire().id, task.definition.namespace.clone());
        let own_end = || now.after(task.definition.timeout).after(REPORT_SLACK);
        // A delivery that was inherited keeps its times.
        let inherited = self.deliveries.inherited_times(fire_id);
        let (fired_at, until) = inherited.unwrap_or_else(|| (sent_at.unwrap_or(now), own_end()));
        let attempt = task.attempt_next();
        InFlight { fire_id, task_id: task.id, namespace, attempt, fired_at, until, stored_as }
    }
}
