//! The hub: takes deliveries of owners to queues and leases each to one worker.
//!
//! The hub tells owners how many deliveries the workers of a queue want, and owners send no more
//! than that. A delivery that no worker takes within [`HOLD_MAX`] goes back to its owner unsent.
//! The worker with the fewest unsettled deliveries is served first.
//!
//! Each delivery is reported to its owner exactly once: with the worker's settlement, as expired,
//! or as unsent. A token settles one lease, only while it lasts, and only for the namespace and
//! queue of its delivery.
//!
//! `worker` has the workers and polls that take deliveries from the hub.
//!
//! The lock is never held across an await, and only short work is done under it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use punctual_core::{Clock, Outcome, PartitionId, Timestamp};
use punctual_engine::{Delivery, OwnerHandle, Reports};
use rapidhash::fast::RandomState;
use tokio::sync::futures::Notified;
use tokio::sync::{Notify, mpsc};

use super::ids::{LineId, WorkerNo, is_of, line_of};
use super::lease::{LeasedBy, Leases, OpenLease};
use super::line::QueueLine;
use super::queued_delivery::QueuedDelivery;
use super::report_batch::ReportBatch;
use super::settlement::{Leased, SettleResult, SettleScope, Settlement};
use super::token::LeaseToken;
use super::worker_label::WorkerLabel;
use crate::clock::SystemClock;
use crate::courier::given_up;
use crate::telemetry::Telemetry;

/// How long a delivery waits for a worker before it goes back to its owner unsent.
const HOLD_MAX: Duration = Duration::from_secs(2);
/// How often the hub checks for leases that are over.
const TICK: Duration = Duration::from_millis(20);
/// How long after a poll or a settlement a worker counts as present, for the virtual clock: long
/// enough for a slow client to send its next poll, and hardly noticed where none comes.
const POLL_GAP_MAX: Duration = Duration::from_millis(100);
/// Deliveries in one message to a worker: a few hundred kilobytes if they are small.
const MESSAGE_MAX: usize = 1024;
/// Deliveries that one of several workers gets before the load is compared again.
const PIECE_MAX: usize = 16;

/// Holds deliveries to queues and the workers that take them.
#[derive(Debug)]
pub(crate) struct Hub {
    state: Mutex<HubState>,
    pub(super) clock: Arc<SystemClock>,
    telemetry: Telemetry,
    /// Wakes the virtual clock when leases have ended.
    lease_ends: Notify,
}

/// What a hub has that was not reported to its owners.
#[derive(Debug)]
pub(crate) struct HubBacklog {
    /// Deliveries that no worker has.
    pub(crate) waiting: usize,
    /// Deliveries that workers have.
    pub(crate) leased: Vec<LeaseToken>,
    pub(crate) next_lease_end: Option<Timestamp>,
}

#[derive(Debug, Default)]
pub(super) struct HubState {
    pub(super) lines: HashMap<LineId, QueueLine, RandomState>,
    pub(super) workers: HashMap<WorkerNo, WorkerState, RandomState>,
    last_worker: WorkerNo,
    pub(super) leases: Leases,
    /// When workers of a line have last polled or settled, by the steady clock. Empty unless the
    /// clock is virtual.
    polled_at: HashMap<LineId, Duration, RandomState>,
    /// The owners to which the capacity of each line is announced.
    owners: Vec<(PartitionId, OwnerHandle)>,
    pub(super) closed: bool,
}

#[derive(Debug)]
pub(super) struct WorkerState {
    pub(super) lines: Vec<LineId>,
    pub(super) credit: usize,
    pub(super) unsettled: usize,
    pub(super) label: WorkerLabel,
    /// When it connected.
    pub(super) since: Timestamp,
    sender: mpsc::UnboundedSender<Vec<Leased>>,
}

impl Hub {
    pub(crate) fn new(clock: Arc<SystemClock>, telemetry: Telemetry) -> Arc<Self> {
        let lease_ends = Notify::new();
        Arc::new(Self { state: Mutex::default(), clock, telemetry, lease_ends })
    }

    /// Adds the owner of a partition: capacity is announced to it from now on.
    pub(crate) fn serve(&self, partition: PartitionId, owner: OwnerHandle) {
        let mut state = self.lock();
        for (namespace, queue) in state.lines.keys() {
            let capacity = state.capacity(&(namespace.clone(), queue.clone()));
            owner.set_capacity(namespace.clone(), queue.clone(), capacity);
        }
        state.owners.retain(|(at, _)| *at != partition);
        state.owners.push((partition, owner));
    }

    /// Removes the owner of a partition. Deliveries that it has sent are kept.
    pub(crate) fn forget(&self, partition: PartitionId) {
        self.lock().owners.retain(|(at, _)| *at != partition);
    }

    /// Ends leases whose time is over. Never returns.
    pub(crate) async fn watch(&self) {
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.expire();
        }
    }

    /// Takes deliveries to queues from an owner.
    pub(crate) fn carry(&self, deliveries: Vec<Delivery>, reports: &Reports) {
        let now = self.clock.now();
        // A count of their own: that of the channel is shared by all threads.
        let reports = Arc::new(reports.clone());
        let mut deliveries = deliveries.into_iter().peekable();
        let mut state = self.lock();
        // Deliveries come lane by lane, so one lookup of the line serves many of them.
        while let Some(line_id) = deliveries.peek().and_then(line_of) {
            let line = state.lines.entry(line_id.clone()).or_default();
            while let Some(delivery) = deliveries.next_if(|delivery| is_of(delivery, &line_id)) {
                let reports = Arc::clone(&reports);
                let queued = QueuedDelivery { delivery, reports, since: now };
                line.waiting.push_back(queued);
            }
            state.dispatch(&line_id, now);
        }
    }

    /// Stops leasing deliveries.
    ///
    /// Polls return empty, deliveries that wait go back to their owners, and leases of workers that
    /// have gone are given up, because they can no longer be settled: new streams are refused. The
    /// remaining workers may still settle.
    pub(crate) fn close(&self) {
        let mut reports = ReportBatch::default();
        {
            let mut state = self.lock();
            state.closed = true;
            state.lines.values_mut().for_each(|line| line.polls.clear());
            let HubState { workers, leases, .. } = &mut *state;
            let can_settle = |lease: &OpenLease| {
                lease.worker().is_none_or(|number| workers.contains_key(&number))
            };
            let abandoned = leases.take(|lease| !can_settle(lease));
            self.report_abandoned(abandoned, &mut reports);
        }
        reports.send();
        self.expire();
    }

    /// Ends all leases without waiting for the workers. Returns how many there were.
    pub(crate) fn give_up(&self) -> usize {
        let mut reports = ReportBatch::default();
        let count = {
            let abandoned = self.lock().leases.take(|_| true);
            let count = abandoned.len();
            self.report_abandoned(abandoned, &mut reports);
            count
        };
        reports.send();
        count
    }

    /// Returns what the hub has, for the virtual clock.
    pub(crate) fn backlog(&self) -> HubBacklog {
        let state = self.lock();
        let waiting = state.lines.values().map(|line| line.waiting.len() + line.unsent.len());
        HubBacklog {
            waiting: waiting.sum(),
            leased: state.leases.tokens(),
            next_lease_end: state.leases.next_end(),
        }
    }

    /// Returns the lines whose workers poll, or have polled or settled a moment ago and are about
    /// to poll again. Only known with a virtual clock.
    pub(crate) fn polled_lines(&self) -> Vec<LineId> {
        let now = self.clock.reading();
        let mut state = self.lock();
        let HubState { lines, polled_at, .. } = &mut *state;
        polled_at.retain(|line_id, at| {
            let polls = lines.get(line_id).is_some_and(|line| line.wanted_by_polls() > 0);
            polls || now.saturating_sub(*at) < POLL_GAP_MAX
        });
        polled_at.keys().cloned().collect()
    }

    /// Notes that workers of these lines have just polled or settled.
    pub(super) fn saw_pollers(&self, lines: &[LineId]) {
        if self.clock.is_virtual() {
            let now = self.clock.reading();
            let at = lines.iter().map(|line_id| (line_id.clone(), now));
            self.lock().polled_at.extend(at);
        }
    }

    /// Completes when a lease ends after this call.
    pub(crate) fn lease_ends(&self) -> Notified<'_> {
        self.lease_ends.notified()
    }

    /// Returns whether no delivery is leased and none waits.
    pub(crate) fn is_idle(&self) -> bool {
        let state = self.lock();
        state.leases.is_empty() && state.lines.values().all(|line| line.waiting.is_empty())
    }

    pub(super) fn report_abandoned(&self, leases: Vec<OpenLease>, reports: &mut ReportBatch) {
        for lease in leases {
            let outcome = given_up(lease.delivery.definition.guarantee);
            if let Some(outcome) = &outcome {
                self.count(&lease.delivery, outcome);
            }
            reports.push(&lease.reports, lease.delivery.report(outcome));
        }
    }

    /// Takes settlements of a worker. Returns one result per settlement, in order.
    pub(crate) fn settle(
        &self,
        scope: SettleScope<'_>,
        settlements: impl IntoIterator<Item = (LeaseToken, Settlement)>,
    ) -> Vec<SettleResult> {
        let now = self.clock.now();
        let mut reports = ReportBatch::default();
        let mut lines: Vec<LineId> = Vec::new();
        let mut polled = Vec::new();
        let mut results = Vec::new();
        {
            let mut state = self.lock();
            for (token, settlement) in settlements {
                let mut answer = None;
                let outcome = match settlement {
                    Settlement::Extend { lease } => {
                        results.push(state.leases.extend(token, scope, now.after(lease)));
                        continue;
                    }
                    Settlement::Returned => {
                        results.push(state.put_back(token, scope, &mut lines, &mut polled));
                        continue;
                    }
                    Settlement::Ack => Outcome::Acked,
                    Settlement::AckWith { result } => {
                        answer = Some(Box::new(result.into_answer()));
                        Outcome::Acked
                    }
                    Settlement::Fail { reason, retry_in } => Outcome::Failed { reason, retry_in },
                    Settlement::Refuse { reason } => Outcome::Refused { reason },
                };
                let Some(lease) = state.leases.end(token, scope) else {
                    results.push(SettleResult::Stale);
                    continue;
                };
                results.push(SettleResult::Accepted);
                state.release(&lease, &mut lines, &mut polled);
                self.telemetry.attempt(&lease.delivery, &outcome, now);
                let report = lease.delivery.report(Some(outcome)).with_answer(answer);
                reports.push(&lease.reports, report);
            }
            for line_id in &lines {
                state.dispatch(line_id, now);
            }
        }
        reports.send();
        self.announce_capacity(&polled);
        self.saw_pollers(&polled);
        self.lease_ends.notify_waiters();
        results
    }

    /// Ends leases whose time is over, and returns deliveries that no worker took to their owners.
    pub(crate) fn expire(&self) {
        let now = self.clock.now();
        let mut reports = ReportBatch::default();
        let mut lines: Vec<LineId> = Vec::new();
        let mut polled = Vec::new();
        {
            let mut state = self.lock();
            for lease in state.leases.expired(now) {
                state.release(&lease, &mut lines, &mut polled);
                // A worker that reads nothing has not received it.
                let outcome = (!lease.delivery.permit.give_up()).then_some(Outcome::Expired);
                if let Some(outcome) = &outcome {
                    self.count(&lease.delivery, outcome);
                }
                reports.push(&lease.reports, lease.delivery.report(outcome));
            }
            let closed = state.closed;
            for line in state.lines.values_mut() {
                for queued in line.unsent.drain(..) {
                    reports.push(&queued.reports, queued.delivery.report(None));
                }
                while let Some(first) = line.waiting.front()
                    && (closed || first.since.after(HOLD_MAX) <= now)
                    && let Some(queued) = line.waiting.pop_front()
                {
                    reports.push(&queued.reports, queued.delivery.report(None));
                }
            }
            for line_id in &lines {
                state.dispatch(line_id, now);
            }
            state.lines.retain(|_, line| !line.is_over());
        }
        reports.send();
        self.announce_capacity(&polled);
    }

    /// Marks deliveries as sent at the moment at which they are written for their worker. Returns
    /// those that may still be sent; the others go back to their owners unsent.
    pub(crate) fn send_leased(&self, batch: Vec<Leased>) -> Vec<Leased> {
        let now = self.clock.now();
        let mut reports = ReportBatch::default();
        let (mut lines, mut polled, mut sent) = (Vec::new(), Vec::new(), Vec::new());
        sent.reserve_exact(batch.len());
        {
            let mut state = self.lock();
            for mut leased in batch {
                if leased.delivery.send(now).is_ok() {
                    state.leases.sent(leased.token, now);
                    sent.push(leased);
                    continue;
                }
                let scope = SettleScope::of_namespace(&leased.delivery.definition.namespace);
                if let Some(lease) = state.leases.end(leased.token, scope) {
                    state.release(&lease, &mut lines, &mut polled);
                    reports.push(&lease.reports, lease.delivery.report(None));
                }
            }
            for line_id in &lines {
                state.dispatch(line_id, now);
            }
        }
        reports.send();
        self.announce_capacity(&polled);
        sent
    }

    fn count(&self, delivery: &Delivery, outcome: &Outcome) {
        self.telemetry.attempt(delivery, outcome, self.clock.now());
    }

    pub(super) fn dispatch_all(&self, lines: &[LineId]) {
        let now = self.clock.now();
        let mut state = self.lock();
        for line_id in lines {
            state.dispatch(line_id, now);
        }
    }

    /// Tells the owners how many deliveries the workers of these lines want.
    pub(super) fn announce_capacity(&self, lines: &[LineId]) {
        for (namespace, queue) in lines {
            let line_id = (namespace.clone(), queue.clone());
            let state = self.lock();
            let capacity = state.capacity(&line_id);
            // Sent under the lock, so that no older number overtakes a newer one. It is a push into
            // a channel.
            for (_, owner) in &state.owners {
                owner.set_capacity(namespace.clone(), queue.clone(), capacity);
            }
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, HubState> {
        // Every update is a single step, so the state is consistent even after a panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HubState {
    /// Adds a worker to these lines.
    pub(super) fn add_worker(
        &mut self,
        lines: &[LineId],
        credit: usize,
        label: WorkerLabel,
        since: Timestamp,
        sender: mpsc::UnboundedSender<Vec<Leased>>,
    ) -> WorkerNo {
        let lines_of = lines.to_vec();
        let worker = WorkerState { lines: lines_of, credit, unsettled: 0, label, since, sender };
        self.last_worker += 1;
        let number = self.last_worker;
        self.workers.insert(number, worker);
        for line_id in lines {
            self.lines.entry(line_id.clone()).or_default().workers.push(number);
        }
        number
    }

    /// Returns how many deliveries of a line may be in flight: those that workers and polls want,
    /// and those that polls have.
    fn capacity(&self, line_id: &LineId) -> usize {
        let Some(line) = self.lines.get(line_id) else {
            return 0;
        };
        let credit: usize = line.workers.iter().map(|number| self.workers[number].credit).sum();
        credit + line.wanted_by_polls() + line.polled
    }

    /// Puts a leased delivery that no worker has seen back into its line.
    fn put_back(
        &mut self,
        token: LeaseToken,
        scope: SettleScope<'_>,
        lines: &mut Vec<LineId>,
        polled: &mut Vec<LineId>,
    ) -> SettleResult {
        let Some(lease) = self.leases.end(token, scope) else {
            return SettleResult::Stale;
        };
        self.release(&lease, lines, polled);
        let line_id = lease.line();
        // No worker has received it, so it can be recalled again.
        lease.delivery.permit.unsend();
        self.lines.entry(line_id.clone()).or_default().waiting.push_front(lease.into_queued());
        if !lines.contains(&line_id) {
            lines.push(line_id);
        }
        SettleResult::Accepted
    }

    /// Counts the end of a lease: its worker may have another delivery.
    ///
    /// Adds the lines of a worker to `lines`, to be dispatched, and the line of a poll to `polled`,
    /// whose capacity has changed.
    fn release(&mut self, lease: &OpenLease, lines: &mut Vec<LineId>, polled: &mut Vec<LineId>) {
        match lease.worker() {
            Some(number) => {
                if let Some(worker) = self.workers.get_mut(&number) {
                    worker.unsettled = worker.unsettled.saturating_sub(1);
                    for line_id in &worker.lines {
                        if !lines.contains(line_id) {
                            lines.push(line_id.clone());
                        }
                    }
                }
            }
            None => {
                let line_id = lease.line();
                if let Some(line) = self.lines.get_mut(&line_id) {
                    line.polled = line.polled.saturating_sub(1);
                }
                if !polled.contains(&line_id) {
                    polled.push(line_id);
                }
            }
        }
    }

    /// Leases the waiting deliveries of a line: to polls first, then to the least loaded workers.
    fn dispatch(&mut self, line_id: &LineId, now: Timestamp) {
        if self.closed {
            return;
        }
        let Self { lines, workers, leases, .. } = self;
        let Some(line) = lines.get_mut(line_id) else {
            return;
        };
        line.serve_polls(leases, now);
        let mut batches: Vec<(WorkerNo, Vec<Leased>)> = Vec::new();
        while !line.waiting.is_empty() {
            let with_credit = line.workers.iter().copied().filter(|number| {
                let worker = &workers[number];
                worker.unsettled < worker.credit
            });
            let Some(number) = with_credit.min_by_key(|number| workers[number].unsettled) else {
                break;
            };
            let worker = workers.get_mut(&number).expect("a line lists only workers that exist");
            let piece = if line.workers.len() == 1 { MESSAGE_MAX } else { PIECE_MAX };
            let count = piece.min(worker.credit - worker.unsettled).min(line.waiting.len());
            let taken = line.take(count, now);
            worker.unsettled += taken.len();
            let leased = taken.into_iter().map(|queued| {
                let lease = queued.delivery.definition.timeout;
                leases.begin(queued, LeasedBy::Worker(number), lease, now)
            });
            match batches.iter_mut().find(|(to, batch)| *to == number && batch.len() < MESSAGE_MAX)
            {
                Some((_, batch)) => batch.extend(leased),
                None => batches.push((number, leased.collect())),
            }
        }
        for (number, batch) in batches {
            // The worker is just leaving: it has not received these.
            if let Err(unsent) = workers[&number].sender.send(batch) {
                for leased in unsent.0 {
                    line.take_back(leased, leases);
                }
            }
        }
    }
}
