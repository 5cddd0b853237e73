//! Handing over: a partition goes to another broker, and what is under way is not sent again there.
//!
//! In, at the broker that gives: the wish to hand over. Out: all that was decided is durable, all calls that were taken are answered, and
//! what couriers have not brought back within [`HAND_OVER_WAIT`] is told as [`InFlight`]s. In, at the broker that takes: those. Out: each is under
//! way here as well, in its lane, without being sent; a report that is passed on settles it, or the end of its time.
//! Invariant: until the store has said how all of them stand, nothing is decided here, so what follows cannot tell them from
//! deliveries of our own.
//! Bound: [`FLUSH_MAX`], after which the owner ends with what it could not write, as if it had crashed.
//! Not here: leases, and who takes over (`cluster`); the way between brokers (`server`).

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use punctual_core::{
    AttemptNo, DeadReason, FireId, Namespace, NewTask, Outcome, PartitionId, Task, Timestamp,
};
use rapidhash::fast::RandomState;
use tokio::sync::oneshot;

use crate::commands::lookup::FoundTask;
use crate::delivery::deliver::Report;
use crate::delivery::lane::LaneNo;
use crate::event::{Action, Event};
use crate::handle::command::{EngineError, Queued};
use crate::loaded::tasks::{Loaded, Phase};
use crate::owner::Owner;

/// How long a hand-over waits for deliveries under way: most receivers have answered by then, and nobody notices the pause.
pub const HAND_OVER_WAIT: Duration = Duration::from_millis(50);
/// How long it waits for the store, which is to have everything before another broker reads it.
const FLUSH_MAX: Duration = Duration::from_secs(2);
/// What a courier may take beyond the timeout of a delivery, with the way back to here: after that no word comes any more.
const FLIGHT_SLACK: Duration = Duration::from_secs(5);

/// A delivery that is under way at another broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InFlight {
    /// Of which fire.
    pub fire_id: FireId,
    /// Whose task it is.
    pub namespace: Namespace,
    /// Which attempt.
    pub attempt: AttemptNo,
    /// When it was sent.
    pub fired_at: Timestamp,
    /// After that it is over without a word. An owner counts with the timeout of the task; a courier that has given a worker more time
    /// knows better.
    pub until: Timestamp,
    /// How the store has it.
    pub stands: StoredAs,
}

/// How the store has a fire that is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoredAs {
    /// As a fire of a task that is filed.
    Filed,
    /// At most once: as a dead letter whose outcome is not known.
    Claimed {
        /// The task stands before its next fire; else it has ended with this one.
        task_continues: bool,
        /// Its name was given to another task since.
        key_reused: bool,
    },
}

/// What came of deliveries whose owner is gone: it belongs to the owner who came next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OrphanReport {
    /// Of which partition.
    pub partition: PartitionId,
    /// What couriers said.
    pub reports: Vec<Report>,
}

/// A hand-over that has begun.
#[derive(Debug)]
pub(crate) struct HandOver {
    since: Timestamp,
    /// Deliveries are waited for no longer.
    waited: bool,
    /// What couriers brought after that.
    late: Vec<Report>,
    reply: oneshot::Sender<Result<Vec<InFlight>, EngineError>>,
}

/// What is under way at other brokers.
#[derive(Debug, Default)]
pub(crate) struct Inherited {
    fires: HashMap<FireId, Fire, RandomState>,
    /// By when each is over.
    ends: BTreeSet<(Timestamp, FireId)>,
    /// How many the store is being asked about.
    pending: usize,
    /// What has come meanwhile.
    held_back: Vec<Event>,
}

#[derive(Debug, Clone, Copy)]
struct Fire {
    attempt: AttemptNo,
    fired_at: Timestamp,
    until: Timestamp,
    lane: LaneNo,
}

impl Inherited {
    /// Whether the store is still being asked about some.
    pub(crate) const fn is_pending(&self) -> bool {
        self.pending > 0
    }

    /// Somebody has brought a report of one. Out: the lane whose place is free again; `None` if it is none of these.
    pub(crate) fn end(&mut self, report: &Report) -> Option<LaneNo> {
        let fire = self.fires.get(&report.fire_id).copied();
        let fire = fire.filter(|fire| fire.attempt == report.attempt)?;
        self.fires.remove(&report.fire_id);
        self.ends.remove(&(fire.until, report.fire_id));
        Some(fire.lane)
    }

    /// What is to be said of those whose time is over.
    fn over(&self, now: Timestamp) -> Vec<Report> {
        let over = self.ends.iter().take_while(|(until, _)| *until <= now);
        let reports = over.filter_map(|(_, fire_id)| {
            let Fire { attempt, fired_at, .. } = self.fires.get(fire_id)?;
            Some(Report::of(*fire_id, *attempt, *fired_at, Some(Outcome::Expired)))
        });
        reports.collect()
    }
}

impl HandOver {
    /// Nothing can be said of what is under way. Out: what came late.
    pub(crate) fn fail(self) -> Vec<Report> {
        let _ = self.reply.send(Err(EngineError::Lost));
        self.late
    }

    /// When it goes on even if nothing comes.
    pub(crate) fn wakes_at(&self) -> Timestamp {
        self.since.after(if self.waited { FLUSH_MAX } else { HAND_OVER_WAIT })
    }
}

/// At the broker that gives.
impl Owner {
    pub(crate) fn on_hand_over(
        &mut self,
        reply: oneshot::Sender<Result<Vec<InFlight>, EngineError>>,
        now: Timestamp,
    ) {
        if self.handing_over.is_some() {
            let _ = reply.send(Err(EngineError::Stopped));
            return;
        }
        self.draining = true;
        // Whoever comes next knows nothing of batches that the store may have forgotten.
        self.writer.confirm();
        let late = Vec::new();
        self.handing_over = Some(HandOver { since: now, waited: false, late, reply });
    }

    /// Keeps what comes too late to be settled here. Out: what does not.
    pub(crate) fn unless_late(&mut self, reports: Vec<Report>) -> Vec<Report> {
        match &mut self.handing_over {
            Some(HandOver { waited: true, late, .. }) => {
                late.extend(reports);
                Vec::new()
            }
            _ => reports,
        }
    }

    /// Tells what is under way once everything else is done, and ends.
    pub(crate) fn hand_over(&mut self, now: Timestamp) {
        let Some(handing_over) = &mut self.handing_over else {
            return;
        };
        let since = handing_over.since;
        handing_over.waited |= self.lanes.inflight == 0 || since.after(HAND_OVER_WAIT) <= now;
        let idle = self.queues.is_empty() || self.inherited.is_pending();
        let flushed = self.writer.is_idle() && self.calls.is_empty() && idle;
        let answer = match handing_over.waited && flushed && self.outbox.is_empty() {
            true => Ok(self.flights(now)),
            false if since.after(FLUSH_MAX) <= now => Err(EngineError::Lost),
            false => return,
        };
        let Some(HandOver { late, reply, .. }) = self.handing_over.take() else {
            return;
        };
        match &answer {
            Ok(flights) => {
                tracing::info!(partition = %self.partition, flights = flights.len(), "handed over");
            }
            Err(_) => tracing::warn!(partition = %self.partition, "cannot be handed over in time"),
        }
        // First what is under way, then what came of it.
        let _ = reply.send(answer);
        self.stray(late);
        self.end();
    }

    /// Passes on what belongs to the owner who comes next.
    pub(crate) fn stray(&mut self, reports: Vec<Report>) {
        if !reports.is_empty() {
            let reports = reports.into_iter().map(Report::passed_on);
            self.actions.push(Action::OrphanReport(reports.collect()));
        }
    }

    fn flights(&self, now: Timestamp) -> Vec<InFlight> {
        let filed = self.memory.firing_tasks().flat_map(|loaded| {
            let under_way = loaded.under_way();
            under_way.map(|task| self.flight(&task, loaded.fired_at, StoredAs::Filed, now))
        });
        let claimed = self.claims.iter().map(|(claim, key_reused)| {
            let stands = StoredAs::Claimed { task_continues: claim.task_continues, key_reused };
            self.flight(&claim.task, claim.fired_at, stands, now)
        });
        // What the store was still being asked about goes on as it came.
        let pending = self.queues.values().flatten().filter_map(Queued::flight);
        filed.chain(claimed).chain(pending.cloned()).collect()
    }

    fn flight(
        &self,
        task: &Task,
        fired_at: Timestamp,
        stands: StoredAs,
        now: Timestamp,
    ) -> InFlight {
        let (fire_id, namespace) = (task.fire().id, task.definition.namespace.clone());
        let own_end = || now.after(task.definition.timeout).after(FLIGHT_SLACK);
        // One that came here under way goes on as it came.
        let known = self.inherited.fires.get(&fire_id);
        let (fired_at, until) =
            known.map_or_else(|| (fired_at, own_end()), |fire| (fire.fired_at, fire.until));
        let attempt = task.attempt_next();
        InFlight { fire_id, namespace, attempt, fired_at, until, stands }
    }
}

/// At the broker that takes.
impl Owner {
    /// Takes over deliveries that are under way elsewhere. For an owner that has seen no event yet.
    pub fn adopt(&mut self, flights: Vec<InFlight>) {
        self.inherited.pending += flights.len();
        flights.into_iter().for_each(|flight| self.queue_adoption(flight));
    }

    /// Nothing is decided before all that is under way is known. Out: what can be taken in already.
    pub(crate) fn unless_adopting(&mut self, event: Event) -> Option<Event> {
        if self.inherited.is_pending() && matches!(event, Event::Call(_) | Event::Ended(_)) {
            self.inherited.held_back.push(event);
            return None;
        }
        Some(event)
    }

    /// What was held back while the store was being asked.
    pub(crate) fn take_held_back(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.inherited.held_back)
    }

    /// The store has said how a fire stands that is under way elsewhere. One that it does not know any more is dropped.
    pub(crate) fn adopt_one(&mut self, flight: &InFlight, sight: FoundTask, now: Timestamp) {
        let definition = match flight.stands {
            // It was told twice.
            _ if self.inherited.fires.contains_key(&flight.fire_id) => None,
            StoredAs::Filed => sight.task.and_then(|task| self.memory.adopt(task, flight)),
            StoredAs::Claimed { task_continues, key_reused } => {
                let letter = sight.letter.filter(|letter| letter.reason == DeadReason::Unknown);
                letter.map(|letter| {
                    let definition = Arc::clone(&letter.task.definition);
                    self.claims.insert(letter.task, task_continues, flight.fired_at);
                    if key_reused {
                        self.claims.succeed(flight.fire_id);
                    }
                    definition
                })
            }
        };
        if let Some(definition) = definition {
            self.count_adopted(flight, &definition, now);
        }
        self.inherited.pending -= 1;
        if !self.inherited.is_pending() {
            for event in self.take_held_back() {
                self.on(event, now);
            }
        }
    }

    fn count_adopted(&mut self, flight: &InFlight, definition: &NewTask, now: Timestamp) {
        let lane = self.lanes.open(definition, now);
        self.lanes.sent(lane);
        let InFlight { fire_id, attempt, fired_at, until, .. } = *flight;
        self.inherited.ends.insert((until, fire_id));
        self.inherited.fires.insert(fire_id, Fire { attempt, fired_at, until, lane });
    }

    /// When the next is over without a word.
    pub(crate) fn next_adopted_end(&self) -> Option<Timestamp> {
        let next = self.inherited.ends.first().map(|(until, _)| *until);
        next.filter(|_| self.handing_over.is_none())
    }

    /// Settles what is over without a word. Whoever is handing over leaves that to the next.
    pub(crate) fn expire_adopted(&mut self, now: Timestamp) {
        if self.next_adopted_end().is_some_and(|until| until <= now) {
            let reports = self.inherited.over(now);
            self.on_ended(reports, now);
        }
    }
}

impl Loaded {
    /// The task as it stands before each of its fires that are under way.
    fn under_way(&self) -> impl Iterator<Item = Task> {
        let present = (self.phase == Phase::Firing).then(|| self.task.clone());
        let overlapping = self.in_flight.iter().filter_map(|at| self.task.before_overlapping(*at));
        present.into_iter().chain(overlapping)
    }
}
