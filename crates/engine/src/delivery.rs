//! Due tasks are sent to couriers, lane by lane, and the outcomes are settled.
//!
//! `deliver` takes due tasks from `loaded` and sends them; `settle` decides what becomes of a fire
//! whose outcome is known. The lanes, the claims of at-most-once fires and the deliveries inherited
//! from another broker are the private state of this folder.

pub(crate) mod attempt;
pub(crate) mod callbacks;
pub(crate) mod claim;
pub(crate) mod courier;
pub(crate) mod deliver;
pub(crate) mod inherited;
pub(crate) mod lane;
pub(crate) mod lane_failures;
pub(crate) mod lane_view;
pub(crate) mod permit;
pub(crate) mod recall;
pub(crate) mod settle;

use punctual_core::{
    AttemptNo, ConnectionName, FireId, Namespace, NewTask, Task, TaskId, Timestamp,
};

use crate::delivery::attempt::{Delivery, Report};
use crate::delivery::claim::{Claim, ClaimCounts, Claims, RecalledClaim};
use crate::delivery::inherited::Inherited;
use crate::delivery::lane::{ConnectionState, LaneId, LaneNo, Lanes};
use crate::delivery::lane_view::{LaneLoad, LaneQuery, OwnerView};
use crate::event::Event;
use crate::gauges::{Gauges, Skips};
use crate::handle::command::Subject;
use crate::loaded::budget::Budget;
use crate::loaded::tasks::LoadedTasks;
use crate::ownership::in_flight::InFlight;
use crate::shares::NamespaceShares;

/// What waits for its turn and what is in flight.
#[derive(Debug)]
pub(crate) struct DeliveryState {
    lanes: Lanes,
    /// At-most-once fires in flight.
    claims: Claims,
    /// Deliveries in flight at other brokers.
    inherited: Inherited,
    /// Deliveries that are sent at the end of this turn.
    outbox: Vec<Delivery>,
    /// When starved lanes are parked next.
    parks_at: Timestamp,
    skips: Skips,
}

impl DeliveryState {
    pub(crate) fn new(budget: Budget, now: Timestamp) -> Self {
        Self {
            lanes: Lanes::new(budget),
            claims: Claims::default(),
            inherited: Inherited::default(),
            outbox: Vec::new(),
            parks_at: now,
            skips: Skips::default(),
        }
    }

    /// Returns how many deliveries are in flight, inherited ones included.
    pub(crate) const fn in_flight(&self) -> usize {
        self.lanes.in_flight()
    }

    /// Returns how many deliveries to queues are in flight.
    pub(crate) const fn in_flight_to_queues(&self) -> usize {
        self.lanes.in_flight_to_queues()
    }

    /// Returns when lanes without a share of the budget are served again, if there are any.
    pub(crate) fn next_share(&self) -> Option<Timestamp> {
        self.lanes.lacks_share().then_some(self.parks_at)
    }

    /// Whether a lane may have something to send.
    pub(crate) const fn has_ready(&self) -> bool {
        self.lanes.has_ready()
    }

    /// Whether deliveries wait for the end of this turn.
    pub(crate) const fn has_unsent(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// Returns when lanes without capacity or without a share are looked at next, if there may be
    /// any.
    pub(crate) fn next_park(&self) -> Option<Timestamp> {
        let any = self.lanes.may_be_starved() || self.lanes.lacks_share();
        any.then_some(self.parks_at)
    }

    /// Sets how many deliveries the workers of a queue take at once.
    pub(crate) fn set_capacity(&mut self, id: LaneId, capacity: usize, now: Timestamp) {
        self.lanes.set_capacity(id, capacity, now);
    }

    /// Notes that a connection is away, or is back.
    pub(crate) fn set_connection(
        &mut self,
        connection: &ConnectionName,
        state: ConnectionState,
        now: Timestamp,
    ) {
        self.lanes.set_connection(connection, state, now);
    }

    /// Returns the lane with the most waiting tasks, and their number.
    pub(crate) fn longest_lane(&self) -> Option<(LaneNo, usize)> {
        let longest = self.lanes.iter().max_by_key(|(_, lane)| lane.waiting());
        longest.map(|(number, lane)| (number, lane.waiting()))
    }

    /// Whether a spilled task may be loaded again now.
    pub(crate) fn accepts_spilled(&mut self, task: &Task, queued: &NamespaceShares) -> bool {
        self.lanes.accepts_spilled(task, queued)
    }

    /// Whether spilled tasks are being loaded again.
    pub(crate) const fn is_refilling(&self) -> bool {
        self.lanes.is_refilling()
    }

    /// All spilled tasks of the lanes that are refilled were read.
    pub(crate) fn refilled(&mut self) {
        self.lanes.refilled();
    }
}

/// Claims.
impl DeliveryState {
    /// Returns the claimed task that a subject names.
    pub(crate) fn claimed_task(&self, subject: &Subject) -> Option<Task> {
        self.claims.task(subject)
    }

    /// Returns the claimed task that a subject names and of which nothing was sent.
    pub(crate) fn unsent_claim(&self, subject: &Subject) -> Option<&Task> {
        self.claims.unsent(subject)
    }

    /// Returns the attempt in flight of the claimed task that a subject names.
    pub(crate) fn claimed_attempt(&self, subject: &Subject) -> Option<AttemptNo> {
        self.claims.attempt(subject)
    }

    /// Recalls the deliveries of claimed fires of a task that continues. Returns their claims.
    pub(crate) fn recall_claims_of(&mut self, id: TaskId) -> Vec<Claim> {
        self.claims.recall_continuing(id)
    }

    /// Returns the claimed task that a subject names.
    pub(crate) fn claimed_task_id(&self, subject: &Subject) -> Option<TaskId> {
        self.claims.task_id(subject)
    }

    /// Recalls the delivery of the claimed task that a subject names.
    pub(crate) fn recall_claim(&mut self, subject: &Subject) -> RecalledClaim {
        self.claims.recall(subject)
    }

    /// Recalls the deliveries of all claims. Returns the claims.
    pub(crate) fn recall_claims(&mut self) -> Vec<Claim> {
        self.claims.recall_all()
    }

    pub(crate) fn claim(&self, fire_id: FireId) -> Option<&Claim> {
        self.claims.get(fire_id)
    }

    pub(crate) fn is_claimed(&self, fire_id: FireId) -> bool {
        self.claims.contains(fire_id)
    }

    /// Returns the attempt in flight whose claim has a task as its provisional callback.
    pub(crate) fn awaited_attempt(&self, callback: &Task) -> Option<AttemptNo> {
        let claim = self.claims.get(callback.definition.callback_of?)?;
        let is_provisional = claim.callback == Some(callback.id);
        is_provisional.then(|| claim.task.attempt_next())
    }

    /// Returns the claims, each with whether its key was given to another task since.
    pub(crate) fn claims(&self) -> impl Iterator<Item = (&Claim, bool)> {
        self.claims.iter()
    }

    /// A task was stored under its key: a claimed task with the same key has lost it. Returns the
    /// key if there is one.
    pub(crate) fn stored_under_key(&mut self, task: &Task) -> Option<Subject> {
        self.claims.stored_under_key(task)
    }
}

/// Deliveries in flight at other brokers.
impl DeliveryState {
    /// Whether lookups of inherited deliveries are pending. Until they are answered, the owner
    /// decides nothing.
    pub(crate) const fn is_resolving(&self) -> bool {
        self.inherited.is_resolving()
    }

    pub(crate) const fn expect_inherited(&mut self, count: usize) {
        self.inherited.expect(count);
    }

    /// One of the expected lookups was answered.
    pub(crate) const fn resolved_inherited(&mut self) {
        self.inherited.resolved();
    }

    /// Keeps an event until all lookups of inherited deliveries are answered.
    pub(crate) fn hold_back(&mut self, event: Event) {
        self.inherited.hold_back(event);
    }

    pub(crate) fn take_held_back(&mut self) -> Vec<Event> {
        self.inherited.take_held_back()
    }

    pub(crate) fn is_inherited(&self, fire_id: FireId) -> bool {
        self.inherited.times(fire_id).is_some()
    }

    /// Returns when an inherited delivery was sent and when it expires.
    pub(crate) fn inherited_times(&self, fire_id: FireId) -> Option<(Timestamp, Timestamp)> {
        self.inherited.times(fire_id)
    }

    pub(crate) fn inherit_claim(
        &mut self,
        task: Task,
        task_continues: bool,
        key_reused: bool,
        callback: Option<TaskId>,
        fired_at: Timestamp,
    ) {
        let fire_id = task.fire().id;
        self.claims.insert(task, task_continues, callback, fired_at, None);
        if key_reused {
            self.claims.set_key_reused(fire_id);
        }
    }

    /// Counts a delivery of another broker as in flight in its lane.
    pub(crate) fn inherit(&mut self, delivery: &InFlight, definition: &NewTask, now: Timestamp) {
        let lane = self.lanes.open(definition, now);
        let share = self.lanes.sent(lane, definition);
        self.inherited.insert(delivery, share);
    }

    pub(crate) fn next_inherited_end(&self) -> Option<Timestamp> {
        self.inherited.next_end()
    }

    /// Returns a report for each inherited delivery whose time is over.
    pub(crate) fn expired_inherited(&self, now: Timestamp) -> Vec<Report> {
        self.inherited.expired(now)
    }
}

impl DeliveryState {
    /// Returns the lanes of a namespace that a caller wants to see.
    pub(crate) fn view(
        &self,
        namespace: &Namespace,
        query: &LaneQuery,
        tasks: &LoadedTasks,
        now: Timestamp,
    ) -> OwnerView {
        lane_view::view(&self.lanes, namespace, query, tasks, now)
    }

    /// Returns the gauges of lanes and claims, in a time that grows with the number of lanes and
    /// not with the number of tasks.
    pub(crate) fn gauges(&self, namespace: Option<&Namespace>, tasks: &LoadedTasks) -> Gauges {
        let (claims, skips) = (self.claims.count(namespace), self.skips);
        let ClaimCounts { claimed, claimed_overlapping, claimed_unsent, .. } = claims;
        let mut gauges =
            Gauges { claimed, claimed_overlapping, claimed_unsent, skips, ..Gauges::default() };
        let mut oldest = None;
        for (_, lane) in self.lanes.iter() {
            if namespace.is_some_and(|namespace| lane.namespace() != namespace) {
                continue;
            }
            gauges.lanes += 1;
            let load = LaneLoad::of(lane, tasks);
            gauges.queued += load.waiting + load.unsent;
            gauges.in_flight += load.in_flight;
            let waits = load.waiting > 0 || load.spilled_since.is_some();
            gauges.parked_lanes += usize::from(waits && lane.is_starved());
            oldest = [oldest, load.oldest_overdue].into_iter().flatten().min();
        }
        let not_firing = claims.sent + tasks.overlaps(namespace);
        gauges.firing = gauges.in_flight.saturating_sub(not_firing);
        gauges.oldest_overdue = oldest;
        gauges
    }
}
