//! The channels to an owner's thread and away from it: messages in, orphan reports out.

use std::mem;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use punctual_core::{Epoch, PartitionId};
use tokio::sync::mpsc;

use crate::delivery::attempt::Report;
use crate::event::Event;
use crate::ownership::in_flight::OrphanReport;
use crate::shell::failure::OwnerFailure;

/// Reports of couriers in one event.
const REPORTS_MAX: usize = 256;

/// What the thread of an owner receives.
#[derive(Debug)]
pub(crate) enum Message {
    /// An event for the owner.
    Event(Event),
    /// The batch that the thread polls itself may be written.
    BatchReady,
    /// Work on the runtime panicked, so its event will not arrive.
    Failed(OwnerFailure),
}

/// Where couriers report the outcomes of deliveries. Clones lead to the same owner.
#[derive(Debug, Clone)]
pub struct Reports {
    messages: Sender<Message>,
    /// Tells owners apart.
    owner: (PartitionId, Epoch),
    /// Reports that are sent together at the end of the runtime's turn: at most what is in flight.
    gathered: Arc<Mutex<Vec<Report>>>,
}

impl Reports {
    pub(crate) fn new(messages: Sender<Message>, partition: PartitionId, epoch: Epoch) -> Self {
        Self { messages, owner: (partition, epoch), gathered: Arc::default() }
    }

    /// For tests of couriers: reports that go to no owner.
    #[doc(hidden)]
    #[must_use]
    pub fn collected() -> (Self, CollectedReports) {
        let (messages, received) = channel();
        (Self::new(messages, PartitionId::FIRST, Epoch::NONE), CollectedReports(received))
    }

    /// Reports the outcome of one delivery, together with those that end in the same turn of the
    /// runtime: the owner is woken once for all of them.
    pub async fn send_gathered(&self, report: Report) {
        let is_first = {
            let mut gathered = self.gathered();
            gathered.push(report);
            gathered.len() == 1
        };
        if is_first {
            // Resumes when the tasks that can run now have run.
            tokio::task::yield_now().await;
            let reports = mem::take(&mut *self.gathered());
            self.send(reports);
        }
    }

    fn gathered(&self) -> MutexGuard<'_, Vec<Report>> {
        // Every update is a single step, so the value is consistent even after a panic.
        self.gathered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reports the outcomes of deliveries. If the owner has ended, they are passed on to the next
    /// one.
    pub fn send(&self, reports: Vec<Report>) {
        if reports.len() <= REPORTS_MAX {
            let _ = self.messages.send(Message::Event(Event::Ended(reports)));
            return;
        }
        let mut reports = reports.into_iter();
        while !reports.as_slice().is_empty() {
            let some = reports.by_ref().take(REPORTS_MAX);
            let _ = self.messages.send(Message::Event(Event::Ended(some.collect())));
        }
    }

    /// Whether both lead to the same owner.
    #[must_use]
    pub fn same_as(&self, other: &Self) -> bool {
        self.owner == other.owner
    }
}

/// The reports of couriers in a test.
#[doc(hidden)]
#[derive(Debug)]
pub struct CollectedReports(Receiver<Message>);

impl CollectedReports {
    /// Returns the next reports; none if there are none within a time.
    #[must_use]
    pub fn next(&self, within: Duration) -> Vec<Report> {
        match self.0.recv_timeout(within) {
            Ok(Message::Event(Event::Ended(reports))) => reports,
            _ => Vec::new(),
        }
    }
}

/// Where reports go whose owner has ended. Holds at most what was in flight.
#[derive(Debug, Clone, Default)]
pub struct OrphanReports(Option<mpsc::UnboundedSender<OrphanReport>>);

impl OrphanReports {
    /// Sends them to a channel, whose receiver passes them on to the next owner.
    #[must_use]
    pub const fn to(sender: mpsc::UnboundedSender<OrphanReport>) -> Self {
        Self(Some(sender))
    }

    /// Drops them: for a broker that shares its store with no other.
    #[must_use]
    pub const fn none() -> Self {
        Self(None)
    }

    pub(crate) fn send(&self, partition: PartitionId, mut reports: Vec<Report>) {
        reports.retain(|report| !report.is_recalled());
        if let Some(sender) = &self.0 {
            let reports = reports.into_iter().map(Report::passed_on);
            // A broker that is stopping no longer receives them.
            let _ = sender.send(OrphanReport { partition, reports: reports.collect() });
        }
    }
}

#[cfg(test)]
mod tests {
    use punctual_core::{AttemptNo, FireId, Outcome, TaskId, Timestamp};

    use super::*;

    fn report(millis: u64) -> Report {
        let at = Timestamp::from_millis(millis);
        let fire_id = FireId { task: TaskId::floor(at), nominal_at: at };
        Report::of(fire_id, AttemptNo::FIRST, at, Some(Outcome::Acked))
    }

    #[tokio::test]
    async fn reports_of_one_turn_are_one_message_and_a_lonely_one_is_sent_too() {
        let (messages, received) = channel();
        let reports = Reports::new(messages, PartitionId::FIRST, Epoch::NONE);
        let clone = reports.clone();
        tokio::join!(reports.send_gathered(report(1)), clone.send_gathered(report(2)));
        reports.send_gathered(report(3)).await;
        let sent: Vec<_> = received
            .try_iter()
            .map(|message| match message {
                Message::Event(Event::Ended(reports)) => reports,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(sent, [vec![report(1), report(2)], vec![report(3)]]);
    }
}
