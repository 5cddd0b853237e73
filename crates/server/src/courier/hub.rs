//! The hub: workers come here for deliveries, on a stream with credit or by long poll.
//!
//! In: deliveries of owners to queues, and workers who want some. Out: each delivery is leased to one worker under a token; what the worker
//! says of it, or the end of the lease, is reported to the owner. Least loaded workers are served first.
//! Invariant: a delivery is reported exactly once. A token settles one lease, in its own namespace and under no other queue's name, while it lasts.
//! Bound: owners send no more than they were told there is room for; what nobody takes within [`HOLD_MAX`] goes back unsent.
//! No lock is held across an await, and nothing slow is done under it.
//! Next door: `line` (one queue), `lease` (who has what until when); `api/queues` and `api/grpc` speak to workers.

mod lease;
mod line;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use punctual_core::{Clock, Namespace, Outcome, PartitionId, Queue, Reason, Target, Timestamp};
use punctual_engine::{Delivery, OwnerHandle, Report, Reports};
use rapidhash::fast::RandomState;
use tokio::sync::{mpsc, oneshot};

use super::given_up;
use crate::clock::SystemClock;
use crate::telemetry::Telemetry;
pub(crate) use lease::Token;
use lease::{Held, Leases};
use line::{Line, Poll, Waiting};

/// How long a delivery waits for a worker before it goes back to its owner unsent.
const HOLD_MAX: Duration = Duration::from_secs(2);
/// How often ends of leases are looked for.
const TICK: Duration = Duration::from_millis(20);
/// Unsettled deliveries that one worker may have.
pub(crate) const CREDIT_MAX: usize = 65_536;
/// Deliveries in one message to a worker: what fits a few hundred kilobytes if they are small.
pub(crate) const MESSAGE_MAX: usize = 1024;

/// A delivery in the hands of a worker.
#[derive(Debug)]
pub(crate) struct Leased {
    /// Settles it.
    pub(crate) token: Token,
    /// What travels.
    pub(crate) delivery: Delivery,
    /// For how long.
    pub(crate) lease: Duration,
}

/// What a worker says of a delivery.
#[derive(Debug)]
pub(crate) enum Word {
    Ack,
    Fail {
        reason: Reason,
        retry_in: Option<Duration>,
    },
    Refuse {
        reason: Reason,
    },
    Extend {
        lease: Duration,
    },
    /// It was given to nobody: of a broker that polled for a worker who had gone.
    Unseen,
}

/// What came of a worker's word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Heard {
    /// It counts.
    Taken,
    /// The attempt is over, or there is none: nothing was changed.
    Stale,
}

/// Where a worker says that its deliveries are from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place<'a> {
    pub(crate) namespace: &'a Namespace,
    /// Only of this one. A worker on a stream may have several, and names none.
    pub(crate) queue: Option<&'a Queue>,
}

impl<'a> Place<'a> {
    /// Of any queue.
    pub(crate) const fn anywhere_in(namespace: &'a Namespace) -> Self {
        Self { namespace, queue: None }
    }

    fn has(self, delivery: &Delivery) -> bool {
        let definition = &delivery.definition;
        let is_of = |name| matches!(&definition.target, Target::Queue(queue) if queue == name);
        definition.namespace == *self.namespace && self.queue.is_none_or(is_of)
    }
}

/// Which line of deliveries.
type LineId = (Namespace, Queue);
/// Which worker on a stream. Never given twice: a lease may outlive the stream that it went out on.
type WorkerNo = u64;

#[derive(Debug)]
pub(crate) struct Hub {
    inner: Mutex<Inner>,
    clock: Arc<SystemClock>,
    telemetry: Telemetry,
}

#[derive(Debug, Default)]
struct Inner {
    lines: HashMap<LineId, Line, RandomState>,
    workers: HashMap<WorkerNo, WorkerEntry, RandomState>,
    /// Workers that ever came.
    came: WorkerNo,
    leases: Leases,
    /// Who is told about room.
    owners: Vec<(PartitionId, OwnerHandle)>,
    closed: bool,
}

#[derive(Debug)]
struct WorkerEntry {
    lines: Vec<LineId>,
    credit: usize,
    unsettled: usize,
    sender: mpsc::UnboundedSender<Vec<Leased>>,
}

/// The line of a delivery to a queue.
fn line_of(delivery: &Delivery) -> Option<LineId> {
    match &delivery.definition.target {
        Target::Queue(queue) => Some((delivery.definition.namespace.clone(), queue.clone())),
        Target::Http(_) => None,
    }
}

fn is_of(delivery: &Delivery, (namespace, line): &LineId) -> bool {
    let definition = &delivery.definition;
    matches!(&definition.target, Target::Queue(queue) if queue == line)
        && definition.namespace == *namespace
}

/// Reports that go out once the lock is free.
#[derive(Debug, Default)]
struct Outgoing(Vec<(Reports, Vec<Report>)>);

impl Outgoing {
    fn push(&mut self, reports: &Reports, report: Report) {
        match self.0.iter_mut().find(|(to, _)| to.same_as(reports)) {
            Some((_, gathered)) => gathered.push(report),
            None => self.0.push((reports.clone(), vec![report])),
        }
    }

    fn send(self) {
        for (reports, gathered) in self.0 {
            reports.send(gathered);
        }
    }
}

impl Hub {
    pub(crate) fn new(clock: Arc<SystemClock>, telemetry: Telemetry) -> Arc<Self> {
        Arc::new(Self { inner: Mutex::default(), clock, telemetry })
    }

    /// A partition has an owner here: it is told about room, from now on.
    pub(crate) fn serve(&self, partition: PartitionId, owner: OwnerHandle) {
        let mut inner = self.lock();
        for (namespace, queue) in inner.lines.keys() {
            let room = inner.room(&(namespace.clone(), queue.clone()));
            owner.give_room(namespace.clone(), queue.clone(), room);
        }
        inner.owners.retain(|(at, _)| *at != partition);
        inner.owners.push((partition, owner));
    }

    /// The owner of a partition has gone. What it has sent goes on.
    pub(crate) fn forget(&self, partition: PartitionId) {
        self.lock().owners.retain(|(at, _)| *at != partition);
    }

    /// Ends leases whose time is over, for ever.
    pub(crate) async fn watch(&self) {
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.expire();
        }
    }

    /// Takes deliveries to queues.
    pub(crate) fn carry(&self, deliveries: Vec<Delivery>, reports: &Reports) {
        let now = self.clock.now();
        let mut deliveries = deliveries.into_iter().peekable();
        let mut inner = self.lock();
        // Deliveries come lane by lane, so the line is looked up once for many.
        while let Some(line_id) = deliveries.peek().and_then(line_of) {
            let line = inner.lines.entry(line_id.clone()).or_default();
            while let Some(delivery) = deliveries.next_if(|delivery| is_of(delivery, &line_id)) {
                line.waiting.push_back(Waiting { delivery, reports: reports.clone(), since: now });
            }
            inner.hand_out(&line_id, now);
        }
    }

    /// A worker comes, and stays as long as it holds what it gets.
    pub(crate) fn join(
        self: &Arc<Self>,
        namespace: &Namespace,
        queues: &[Queue],
        credit: usize,
    ) -> Worker {
        let (sender, receiver) = mpsc::unbounded_channel();
        let lines: Vec<_> = queues.iter().map(|queue| (namespace.clone(), queue.clone())).collect();
        let number = {
            let mut inner = self.lock();
            let credit = credit.min(CREDIT_MAX);
            let entry = WorkerEntry { lines: lines.clone(), credit, unsettled: 0, sender };
            inner.came += 1;
            let number = inner.came;
            inner.workers.insert(number, entry);
            for line_id in &lines {
                inner.lines.entry(line_id.clone()).or_default().workers.push(number);
            }
            number
        };
        self.tell_room(&lines);
        self.hand_out_all(&lines);
        Worker { hub: Arc::clone(self), number, receiver }
    }

    /// Waits up to `wait` for at most `max` deliveries of a queue.
    pub(crate) async fn poll(
        &self,
        line_id: LineId,
        max: usize,
        wait: Duration,
        lease: Option<Duration>,
    ) -> Vec<Leased> {
        let (sender, receiver) = oneshot::channel();
        let mut polling = Polling { hub: self, line_id, receiver };
        let poll = Poll { max, lease, sender };
        {
            let mut inner = self.lock();
            if inner.closed {
                return Vec::new();
            }
            inner.lines.entry(polling.line_id.clone()).or_default().polls.push(poll);
        }
        let lines = std::slice::from_ref(&polling.line_id);
        self.tell_room(lines);
        self.hand_out_all(lines);
        match tokio::time::timeout(wait, &mut polling.receiver).await {
            Ok(leased) => leased.unwrap_or_default(),
            // It may have been answered in the very last moment: what was leased must not be dropped.
            Err(_) => {
                polling.receiver.close();
                polling.receiver.try_recv().unwrap_or_default()
            }
        }
    }

    /// Hands nothing out from here on. Whoever polls is let go, what nobody has yet goes back to its owner, and what nobody can settle any
    /// more, because new streams are refused, is given up. What workers have they may settle.
    pub(crate) fn close(&self) {
        let mut outgoing = Outgoing::default();
        {
            let mut inner = self.lock();
            inner.closed = true;
            inner.lines.values_mut().for_each(|line| line.polls.clear());
            let Inner { workers, leases, .. } = &mut *inner;
            let here = |held: &Held| held.worker.is_none_or(|number| workers.contains_key(&number));
            let lost = leases.take(|held| !here(held));
            self.report_given_up(lost, &mut outgoing);
        }
        outgoing.send();
        self.expire();
    }

    /// Waits for no worker any more. Out: how many leases were given up; their tokens are stale.
    pub(crate) fn give_up(&self) -> usize {
        let mut outgoing = Outgoing::default();
        let count = {
            let held = self.lock().leases.take(|_| true);
            let count = held.len();
            self.report_given_up(held, &mut outgoing);
            count
        };
        outgoing.send();
        count
    }

    /// Whether no worker has anything, and nothing waits for one.
    pub(crate) fn is_idle(&self) -> bool {
        let inner = self.lock();
        inner.leases.is_empty() && inner.lines.values().all(|line| line.waiting.is_empty())
    }

    fn report_given_up(&self, held: Vec<Held>, outgoing: &mut Outgoing) {
        for held in held {
            let outcome = given_up(&held.delivery);
            if let Some(outcome) = &outcome {
                self.count(&held.delivery, outcome);
            }
            outgoing.push(&held.reports, held.delivery.report(outcome));
        }
    }

    /// Takes a worker's words. Out: what came of each, in order.
    pub(crate) fn settle(
        &self,
        place: Place<'_>,
        words: impl IntoIterator<Item = (Token, Word)>,
    ) -> Vec<Heard> {
        let now = self.clock.now();
        let mut outgoing = Outgoing::default();
        let mut lines: Vec<LineId> = Vec::new();
        let mut polled = Vec::new();
        let mut heard = Vec::new();
        {
            let mut inner = self.lock();
            for (token, word) in words {
                let outcome = match word {
                    Word::Extend { lease } => {
                        heard.push(inner.leases.extend(token, place, now.after(lease)));
                        continue;
                    }
                    Word::Unseen => {
                        heard.push(inner.unseen(token, place, &mut lines, &mut polled));
                        continue;
                    }
                    Word::Ack => Outcome::Acked,
                    Word::Fail { reason, retry_in } => Outcome::Failed { reason, retry_in },
                    Word::Refuse { reason } => Outcome::Refused { reason },
                };
                let Some(held) = inner.leases.end(token, place) else {
                    heard.push(Heard::Stale);
                    continue;
                };
                heard.push(Heard::Taken);
                inner.let_down(&held, &mut lines, &mut polled);
                self.count(&held.delivery, &outcome);
                outgoing.push(&held.reports, held.delivery.report(Some(outcome)));
            }
            for line_id in &lines {
                inner.hand_out(line_id, now);
            }
        }
        outgoing.send();
        self.tell_room(&polled);
        heard
    }

    /// Ends leases whose time is over, and gives back what nobody took.
    fn expire(&self) {
        let now = self.clock.now();
        let mut outgoing = Outgoing::default();
        let mut lines: Vec<LineId> = Vec::new();
        let mut polled = Vec::new();
        {
            let mut inner = self.lock();
            for held in inner.leases.expired(now) {
                inner.let_down(&held, &mut lines, &mut polled);
                self.count(&held.delivery, &Outcome::Expired);
                outgoing.push(&held.reports, held.delivery.report(Some(Outcome::Expired)));
            }
            let closed = inner.closed;
            for line in inner.lines.values_mut() {
                for waiting in line.unsent.drain(..) {
                    outgoing.push(&waiting.reports, waiting.delivery.report(None));
                }
                while let Some(first) = line.waiting.front()
                    && (closed || first.since.after(HOLD_MAX) <= now)
                    && let Some(waiting) = line.waiting.pop_front()
                {
                    outgoing.push(&waiting.reports, waiting.delivery.report(None));
                }
            }
            for line_id in &lines {
                inner.hand_out(line_id, now);
            }
            inner.lines.retain(|_, line| !line.is_over());
        }
        outgoing.send();
        self.tell_room(&polled);
    }

    fn count(&self, delivery: &Delivery, outcome: &Outcome) {
        self.telemetry.attempt(delivery, outcome);
    }

    fn hand_out_all(&self, lines: &[LineId]) {
        let now = self.clock.now();
        let mut inner = self.lock();
        for line_id in lines {
            inner.hand_out(line_id, now);
        }
    }

    /// Tells the owners how much the workers of these lines want.
    fn tell_room(&self, lines: &[LineId]) {
        for (namespace, queue) in lines {
            let line_id = (namespace.clone(), queue.clone());
            let inner = self.lock();
            let room = inner.room(&line_id);
            // Under the lock, so that no older number overtakes a newer one. It is a push into a channel.
            for (_, owner) in &inner.owners {
                owner.give_room(namespace.clone(), queue.clone(), room);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // What it guards is consistent between any two steps.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// How much the workers of a line want at once, what they have included.
    fn room(&self, line_id: &LineId) -> usize {
        let Some(line) = self.lines.get(line_id) else {
            return 0;
        };
        let credit: usize = line.workers.iter().map(|number| self.workers[number].credit).sum();
        credit + line.wanted_by_polls() + line.polled
    }

    /// What was leased was seen by nobody: it stands in line again.
    fn unseen(
        &mut self,
        token: Token,
        place: Place<'_>,
        lines: &mut Vec<LineId>,
        polled: &mut Vec<LineId>,
    ) -> Heard {
        let Some(held) = self.leases.end(token, place) else {
            return Heard::Stale;
        };
        self.let_down(&held, lines, polled);
        let line_id = held.line();
        self.lines.entry(line_id.clone()).or_default().waiting.push_front(held.into_waiting());
        if !lines.contains(&line_id) {
            lines.push(line_id);
        }
        Heard::Taken
    }

    /// A lease is over: its worker may have another delivery.
    fn let_down(&mut self, held: &Held, lines: &mut Vec<LineId>, polled: &mut Vec<LineId>) {
        match held.worker {
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
                let line_id = held.line();
                if let Some(line) = self.lines.get_mut(&line_id) {
                    line.polled = line.polled.saturating_sub(1);
                }
                if !polled.contains(&line_id) {
                    polled.push(line_id);
                }
            }
        }
    }

    /// Gives what waits in a line to those who want it: polls first, then the least loaded worker.
    fn hand_out(&mut self, line_id: &LineId, now: Timestamp) {
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
            // With one worker all goes there; with several, in small pieces, to the least loaded.
            let worker = workers.get_mut(&number).expect("lines know workers that are here");
            let piece = if line.workers.len() == 1 { MESSAGE_MAX } else { 16 };
            let count = piece.min(worker.credit - worker.unsettled).min(line.waiting.len());
            let taken = line.take(count, now);
            worker.unsettled += taken.len();
            let leased = taken.into_iter().map(|waiting| {
                let lease = waiting.delivery.definition.timeout;
                leases.begin(waiting, Some(number), lease, now)
            });
            match batches.iter_mut().find(|(to, batch)| *to == number && batch.len() < MESSAGE_MAX)
            {
                Some((_, batch)) => batch.extend(leased),
                None => batches.push((number, leased.collect())),
            }
        }
        for (number, batch) in batches {
            // A worker that is just leaving gives back what it did not get.
            if let Err(unsent) = workers[&number].sender.send(batch) {
                for leased in unsent.0 {
                    leases.give_back(leased, line);
                }
            }
        }
    }
}

/// A worker on a stream. When it is dropped, what it has goes on until its lease ends; what it was not yet given goes back.
#[derive(Debug)]
pub(crate) struct Worker {
    hub: Arc<Hub>,
    number: WorkerNo,
    receiver: mpsc::UnboundedReceiver<Vec<Leased>>,
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
struct Polling<'a> {
    hub: &'a Hub,
    line_id: LineId,
    receiver: oneshot::Receiver<Vec<Leased>>,
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
