//! Lanes: the deliveries of one namespace to one target, in order.
//!
//! A lane takes due tasks and gives out the next one to send as long as it has capacity. The lane
//! of a webhook adapts its capacity to the outcomes of its deliveries; the capacity of a queue is
//! what its workers ask for. Tasks on time go before late ones and retries, which get a share of
//! their own. At most [`QUEUED_MAX`] tasks of a lane wait in memory; the others are spilled, which
//! means that they stay in the store and are loaded again later (a refill).

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use punctual_core::{
    ConnectionName, Namespace, NewTask, Outcome, Queue, Target, Task, TaskId, Timestamp,
    origin_group,
};
use punctual_store::Position;
use rapidhash::fast::RandomState;
use slab::Slab;

use crate::delivery::lane_failures::{ClosedLanes, LaneFailures, LastFailure};
use crate::delivery::permit::SendPermit;
use crate::loaded::budget::Budget;
use crate::loaded::loaded_ref::LoadedRef;
use crate::shares::NamespaceShares;

/// Tasks of one lane that wait in memory: a fifth of a second for the fastest workers, and few
/// enough that they are still in a cache when their turn comes (twice as many drain 10 % slower).
const QUEUED_MAX: usize = 32_768;
/// A lane that has spilled tasks is refilled when fewer than this are left.
const QUEUED_LOW: usize = QUEUED_MAX / 4;
/// Deliveries to one webhook that are in flight at once: enough to keep a fast receiver busy, few
/// enough not to overload a slow one.
const INFLIGHT_MAX: usize = 256;
/// The least, for a receiver that does not answer in time.
const INFLIGHT_MIN: usize = 4;
/// Deliveries to one place of a connection that are in flight at once: a batch on its way, and the
/// next one that waits for it.
const SINK_INFLIGHT_MAX: usize = 1024;
/// Every fourth delivery is a late one, if there is any.
const LATE_SHARE: u32 = 4;
/// Deliveries beyond twice those in flight that a lane remembers as handed out, so that they are
/// not looked through each time.
const HANDED_OUT_SLACK: usize = 64;

/// The namespace and target of a lane.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct LaneId {
    namespace: Namespace,
    target: LaneTarget,
}

/// What the targets of one lane have in common.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum LaneTarget {
    /// Scheme, host and port of webhooks and gRPC methods.
    Origin(Box<str>),
    /// A queue.
    Queue(Queue),
    /// All mails.
    Mail,
    /// A connection, and what has a lane of its own at its other side.
    Sink(ConnectionName, Box<str>),
}

impl LaneTarget {
    /// The lane of a target.
    #[must_use]
    pub fn of(target: &Target) -> Self {
        match target {
            Target::Queue(queue) => Self::Queue(queue.clone()),
            Target::Http(http) => Self::Origin(http.origin().into()),
            Target::Mail(_) => Self::Mail,
            Target::Sink(sink) => Self::Sink(sink.connection.clone(), sink.lane().into()),
            Target::Grpc(grpc) => Self::Origin(grpc.origin().into()),
        }
    }

    /// The name of the target, as [`Target::group`] has it.
    #[must_use]
    pub fn group(&self) -> String {
        match self {
            Self::Origin(origin) => origin_group(origin).to_owned(),
            Self::Queue(queue) => format!("queue {}", queue.as_str()),
            Self::Mail => "mail".to_owned(),
            Self::Sink(connection, lane) if lane.is_empty() => connection.to_string(),
            Self::Sink(connection, lane) => format!("{connection} {lane}"),
        }
    }
}

impl LaneId {
    fn of(definition: &NewTask) -> Self {
        let target = LaneTarget::of(&definition.target);
        Self { namespace: definition.namespace.clone(), target }
    }

    pub(crate) const fn of_queue(namespace: Namespace, queue: Queue) -> Self {
        Self { namespace, target: LaneTarget::Queue(queue) }
    }

    /// Whether this is the lane of a task.
    fn is_of(&self, definition: &NewTask) -> bool {
        self.is_to(&definition.target) && self.namespace == definition.namespace
    }

    pub(crate) const fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    pub(crate) const fn target(&self) -> &LaneTarget {
        &self.target
    }

    /// Whether this is a lane to a target. Clones nothing, unlike [`LaneTarget::of`].
    fn is_to(&self, target: &Target) -> bool {
        match (&self.target, target) {
            (LaneTarget::Queue(queue), Target::Queue(other)) => queue == other,
            (LaneTarget::Origin(origin), Target::Http(http)) => **origin == *http.origin(),
            (LaneTarget::Origin(origin), Target::Grpc(grpc)) => **origin == *grpc.origin(),
            (LaneTarget::Mail, Target::Mail(_)) => true,
            (LaneTarget::Sink(connection, lane), Target::Sink(sink)) => {
                *connection == sink.connection && **lane == *sink.lane()
            }
            _ => false,
        }
    }

    /// Returns the queue; `None` for other lanes.
    pub(crate) const fn queue(&self) -> Option<&Queue> {
        match &self.target {
            LaneTarget::Queue(queue) => Some(queue),
            LaneTarget::Origin(_) | LaneTarget::Mail | LaneTarget::Sink(..) => None,
        }
    }
}

/// Whether deliveries can be sent over a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectionState {
    /// They can.
    Ready,
    /// They cannot: its lanes have no capacity.
    Away,
}

/// The number of a lane of one owner. It stays the same while a delivery of the lane is in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LaneNo(u32);

impl LaneNo {
    fn new(slot: usize) -> Self {
        Self(u32::try_from(slot).expect("memory is full long before"))
    }
}

/// The lane of a delivery in flight, and what its task takes of the budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LaneShare {
    lane: LaneNo,
    weight: usize,
}

impl LaneShare {
    /// Of a delivery without an owner.
    pub(crate) const NONE: Self = Self { lane: LaneNo(u32::MAX), weight: 0 };
}

/// Whether a task goes before or behind others of its lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Urgency {
    /// First attempt, on time.
    OnTime,
    /// A retry, or long overdue.
    Late,
}

#[derive(Debug)]
pub(crate) struct Lane {
    id: LaneId,
    on_time: VecDeque<LoadedRef>,
    late: VecDeque<LoadedRef>,
    /// Counts the tasks that were taken, to give late ones their share.
    taken: u32,
    in_flight: usize,
    /// Of those, the at-most-once fires whose claim is being written.
    claiming: usize,
    /// Deliveries in flight in the order in which they were handed out. Those before the first that
    /// its courier still has unsent are forgotten.
    handed_out: VecDeque<HandedOut>,
    /// How many deliveries may be in flight.
    capacity: usize,
    /// Since when the capacity is zero.
    starved_since: Option<Timestamp>,
    /// The earliest task that was spilled.
    spilled: Option<Position>,
    /// The spilled tasks are being loaded again.
    refilling: bool,
    /// Is among the lanes to be served.
    ready: bool,
    failures: Option<Box<LaneFailures>>,
}

/// A delivery that was handed to its courier.
#[derive(Debug)]
pub(crate) struct HandedOut {
    /// When its task was due.
    pub(crate) fire_at: Timestamp,
    pub(crate) permit: SendPermit,
}

impl HandedOut {
    fn is_waiting(&self) -> bool {
        self.permit.is_waiting()
    }

    /// Whether its courier still has it, and nothing was sent: it waits, or was recalled.
    fn is_unsent(&self) -> bool {
        self.permit.is_waiting() || self.permit.is_recalled()
    }
}

impl Lane {
    pub(crate) const fn namespace(&self) -> &Namespace {
        &self.id.namespace
    }

    pub(crate) const fn id(&self) -> &LaneId {
        &self.id
    }

    pub(crate) const fn capacity(&self) -> usize {
        self.capacity
    }

    /// Counts the deliveries that were sent and have not ended.
    pub(crate) fn count_sent(&self) -> usize {
        let unsent = self.handed_out.iter().filter(|delivery| delivery.is_unsent()).count();
        self.in_flight.saturating_sub(self.claiming + unsent)
    }

    pub(crate) const fn spilled(&self) -> Option<Position> {
        self.spilled
    }

    /// Returns how many tasks wait.
    pub(crate) fn waiting(&self) -> usize {
        self.on_time.len() + self.late.len()
    }

    /// Returns when the first of the deliveries that wait in their courier was due.
    pub(crate) fn first_waiting(&self) -> Option<Timestamp> {
        let waiting = self.handed_out.iter().filter(|delivery| delivery.is_waiting());
        waiting.map(|delivery| delivery.fire_at).min()
    }

    /// Counts the at-most-once fires whose claim is being written, and the deliveries that wait in
    /// their courier.
    pub(crate) fn count_waiting(&self) -> usize {
        self.claiming + self.handed_out.iter().filter(|delivery| delivery.is_waiting()).count()
    }

    /// Forgets deliveries that their courier does not have unsent any more: the first ones, and all
    /// others if there are many.
    fn forget_sent(&mut self) {
        while self.handed_out.front().is_some_and(|delivery| !delivery.is_unsent()) {
            self.handed_out.pop_front();
        }
        if self.handed_out.len() > 2 * self.in_flight + HANDED_OUT_SLACK {
            self.handed_out.retain(HandedOut::is_unsent);
        }
    }

    /// Returns the task that has waited longest, or nearly so.
    pub(crate) fn first(&self) -> Option<TaskId> {
        [self.late.front(), self.on_time.front()].into_iter().flatten().min().map(|at| at.id)
    }

    /// Whether the next task is spilled.
    pub(crate) fn is_full(&self) -> bool {
        let parked = self.is_starved() && self.spilled.is_some();
        self.waiting() >= QUEUED_MAX || parked
    }

    pub(crate) const fn is_starved(&self) -> bool {
        self.capacity == 0
    }

    /// Whether spilled tasks can be loaded again.
    fn wants_refill(&self) -> bool {
        self.spilled.is_some()
            && !self.refilling
            && !self.is_starved()
            && self.waiting() < QUEUED_LOW
    }

    /// Takes the next task to send, if the lane has capacity.
    pub(crate) fn take(&mut self) -> Option<LoadedRef> {
        if self.in_flight >= self.capacity {
            return None;
        }
        self.taken = self.taken.wrapping_add(1);
        let late_first = self.taken.is_multiple_of(LATE_SHARE);
        let (first, second) = match late_first {
            true => (&mut self.late, &mut self.on_time),
            false => (&mut self.on_time, &mut self.late),
        };
        first.pop_front().or_else(|| second.pop_front())
    }

    /// Removes all tasks but the first `keep` and returns them.
    pub(crate) fn shorten(&mut self, keep: usize) -> Vec<LoadedRef> {
        let late = self.late.split_off(keep.min(self.late.len()));
        let keep = keep - self.late.len();
        let on_time = self.on_time.split_off(keep.min(self.on_time.len()));
        late.into_iter().chain(on_time).collect()
    }

    /// The failed attempts of the lane.
    pub(crate) fn failures(&self) -> Option<&LaneFailures> {
        self.failures.as_deref()
    }

    fn count_failure(&mut self, failure: LastFailure) {
        match &mut self.failures {
            Some(failures) => failures.add(failure),
            None => self.failures = Some(Box::new(LaneFailures::first(failure))),
        }
    }

    /// Whether a receiver gets fewer deliveries at once, because it has not answered in time.
    pub(crate) fn is_slow(&self) -> bool {
        matches!(self.id.target, LaneTarget::Origin(_)) && self.capacity < INFLIGHT_MAX
    }

    /// Since when the lane has no capacity.
    pub(crate) const fn starved_since(&self) -> Option<Timestamp> {
        self.starved_since
    }

    /// Adapts the capacity of a webhook: a delivery that expired halves it, an answer raises it by
    /// one. The capacity of a queue is set by its workers, that of a connection by its state.
    fn adapt(&mut self, outcome: Option<&Outcome>) {
        if matches!(self.id.target, LaneTarget::Queue(_) | LaneTarget::Sink(..)) {
            return;
        }
        self.capacity = match outcome {
            Some(Outcome::Expired) => (self.capacity / 2).max(INFLIGHT_MIN),
            Some(_) => (self.capacity + 1).min(INFLIGHT_MAX),
            None => self.capacity,
        };
    }

    fn is_idle(&self) -> bool {
        self.waiting() == 0 && self.in_flight == 0 && self.spilled.is_none()
    }
}

/// All lanes with waiting, spilled or in-flight tasks.
#[derive(Debug)]
pub(crate) struct Lanes {
    lanes: Slab<Lane>,
    by_id: HashMap<LaneId, LaneNo, RandomState>,
    /// The lane that was found last: tasks of one lane come together.
    last: Option<LaneNo>,
    /// What the workers of queues ask for, also of queues that have no lane now.
    capacities: HashMap<LaneId, usize, RandomState>,
    /// Connections that are away, and since when: their lanes have no capacity.
    away: HashMap<ConnectionName, Timestamp, RandomState>,
    /// Lanes that were closed and have failed lately.
    closed: ClosedLanes,
    /// Lanes that may have something to send.
    ready: Vec<LaneNo>,
    /// How many lanes are being refilled.
    refilling: usize,
    /// Tasks may wait in lanes without capacity.
    may_be_starved: bool,
    /// Deliveries in flight, of all lanes.
    in_flight: usize,
    /// Of those, the deliveries to queues.
    in_flight_to_queues: usize,
    /// What the tasks in flight take of the budget.
    shares: NamespaceShares,
    budget: Budget,
    /// Lanes whose namespaces have as much in flight, or as much queued, as they may.
    without_share: Vec<LaneNo>,
}

impl Lanes {
    pub(crate) fn new(budget: Budget) -> Self {
        Self {
            lanes: Slab::new(),
            by_id: HashMap::default(),
            last: None,
            capacities: HashMap::default(),
            away: HashMap::default(),
            closed: ClosedLanes::default(),
            ready: Vec::new(),
            refilling: 0,
            may_be_starved: false,
            in_flight: 0,
            in_flight_to_queues: 0,
            shares: NamespaceShares::new(budget.in_flight_weight()),
            budget,
            without_share: Vec::new(),
        }
    }

    /// Returns the lane of a task, opened if there is none.
    pub(crate) fn open(&mut self, definition: &NewTask, now: Timestamp) -> LaneNo {
        if let Some(number) = self.find(definition) {
            return number;
        }
        let id = LaneId::of(definition);
        let capacity = self.first_capacity(&id);
        let starved_since = (capacity == 0).then(|| self.away_since(&id).unwrap_or(now));
        let failures = self.closed.take(&id).map(Box::new);
        let slot = self.lanes.insert(Lane {
            id: id.clone(),
            on_time: VecDeque::new(),
            late: VecDeque::new(),
            taken: 0,
            in_flight: 0,
            claiming: 0,
            handed_out: VecDeque::new(),
            capacity,
            starved_since,
            spilled: None,
            refilling: false,
            ready: false,
            failures,
        });
        let number = LaneNo::new(slot);
        self.by_id.insert(id, number);
        number
    }

    /// The capacity of a lane that is opened now.
    pub(crate) fn first_capacity(&self, id: &LaneId) -> usize {
        match &id.target {
            LaneTarget::Origin(_) => INFLIGHT_MAX,
            LaneTarget::Mail => INFLIGHT_MIN,
            LaneTarget::Sink(connection, _) if self.away.contains_key(connection) => 0,
            LaneTarget::Sink(..) => SINK_INFLIGHT_MAX,
            LaneTarget::Queue(_) => self.capacities.get(id).copied().unwrap_or(0),
        }
    }

    /// Since when the connection of a lane is away.
    pub(crate) fn away_since(&self, id: &LaneId) -> Option<Timestamp> {
        match &id.target {
            LaneTarget::Sink(connection, _) => self.away.get(connection).copied(),
            LaneTarget::Origin(_) | LaneTarget::Queue(_) | LaneTarget::Mail => None,
        }
    }

    /// Returns the lanes of a namespace that were closed and have failed lately.
    pub(crate) fn closed_of(
        &self,
        namespace: &Namespace,
        now: Timestamp,
    ) -> impl Iterator<Item = (LaneId, &LaneFailures)> {
        let closed = self.closed.of_namespace(namespace, now);
        closed.map(|(target, failures)| {
            (LaneId { namespace: namespace.clone(), target: target.clone() }, failures)
        })
    }

    /// Returns the lane of a task, if there is one.
    fn find(&mut self, definition: &NewTask) -> Option<LaneNo> {
        let is_of = |number: &LaneNo| self.lanes[number.0 as usize].id.is_of(definition);
        if let Some(number) = self.last.filter(is_of) {
            return Some(number);
        }
        self.last = self.by_id.get(&LaneId::of(definition)).copied();
        self.last
    }

    pub(crate) fn get_mut(&mut self, number: LaneNo) -> &mut Lane {
        &mut self.lanes[number.0 as usize]
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (LaneNo, &Lane)> {
        self.lanes.iter().map(|(slot, lane)| (LaneNo::new(slot), lane))
    }

    /// Returns how many deliveries are in flight, of all lanes.
    pub(crate) const fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Returns how many deliveries to queues are in flight.
    pub(crate) const fn in_flight_to_queues(&self) -> usize {
        self.in_flight_to_queues
    }

    /// Notes that a task of the lane, which is not waiting any more, is in the store only. While
    /// the lane is refilled, every spilled task before `refill` waits here again or is done.
    pub(crate) fn spill(&mut self, number: LaneNo, position: Position, refill: Option<Position>) {
        let lane = self.get_mut(number);
        let before = match (lane.refilling, refill) {
            (true, Some(refill)) => Some(refill),
            _ => lane.spilled,
        };
        lane.spilled = Some(before.map_or(position, |before| before.min(position)));
        self.stop_refill(number);
        self.wake(number);
    }

    /// Starts to refill a lane if it can take spilled tasks, and if its namespace may have many
    /// more due tasks in memory: `queued` is what they have. Returns the position of the first.
    pub(crate) fn start_refill(
        &mut self,
        number: LaneNo,
        queued: &NamespaceShares,
    ) -> Option<Position> {
        let lane = &mut self.lanes[number.0 as usize];
        if !lane.wants_refill() {
            return None;
        }
        if !queued.is_half_empty(&lane.id.namespace) {
            self.without_share.push(number);
            return None;
        }
        lane.refilling = true;
        self.refilling += 1;
        lane.spilled
    }

    fn stop_refill(&mut self, number: LaneNo) {
        let lane = &mut self.lanes[number.0 as usize];
        if lane.refilling {
            lane.refilling = false;
            self.refilling -= 1;
        }
    }

    /// Whether a task that was spilled may be loaded again now. If its lane is full again, the next
    /// refill starts with this task.
    pub(crate) fn accepts_spilled(&mut self, task: &Task, queued: &NamespaceShares) -> bool {
        let Some(number) = self.find(&task.definition) else {
            return true;
        };
        let lane = self.get_mut(number);
        if lane.refilling && (lane.is_full() || !queued.may_take(&lane.id.namespace)) {
            lane.spilled = Some(Position::of(task));
            self.stop_refill(number);
            return false;
        }
        lane.refilling
    }

    pub(crate) const fn is_refilling(&self) -> bool {
        self.refilling > 0
    }

    /// All spilled tasks were read: the lanes that were refilled have them.
    pub(crate) fn refilled(&mut self) {
        let refilled = self.iter().filter(|(_, lane)| lane.refilling);
        let refilled: Vec<_> = refilled.map(|(number, _)| number).collect();
        for number in refilled {
            self.stop_refill(number);
            self.get_mut(number).spilled = None;
            self.wake(number);
        }
    }

    /// Adds a task to a lane.
    pub(crate) fn push(&mut self, number: LaneNo, task: LoadedRef, urgency: Urgency) {
        let lane = self.get_mut(number);
        match urgency {
            Urgency::OnTime => lane.on_time.push_back(task),
            Urgency::Late => lane.late.push_back(task),
        }
        let starved = lane.is_starved();
        self.may_be_starved |= starved;
        self.wake(number);
    }

    /// Has a lane served at the end of this turn.
    pub(crate) fn wake(&mut self, number: LaneNo) {
        let lane = &mut self.lanes[number.0 as usize];
        if !lane.ready {
            lane.ready = true;
            self.ready.push(number);
        }
    }

    pub(crate) const fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    pub(crate) fn take_ready(&mut self) -> Vec<LaneNo> {
        let ready = std::mem::take(&mut self.ready);
        for number in &ready {
            self.lanes[number.0 as usize].ready = false;
        }
        ready
    }

    /// Takes the next task of a lane to send, if the lane has capacity and its namespace a share.
    pub(crate) fn take(&mut self, number: LaneNo) -> Option<LoadedRef> {
        let lane = &mut self.lanes[number.0 as usize];
        if lane.waiting() > 0 && !self.shares.may_take(&lane.id.namespace) {
            self.without_share.push(number);
            return None;
        }
        lane.take()
    }

    /// Counts a delivery of the lane as in flight.
    pub(crate) fn sent(&mut self, lane: LaneNo, definition: &NewTask) -> LaneShare {
        let weight = self.budget.weight(definition);
        let is_queue = matches!(definition.target, Target::Queue(_));
        self.get_mut(lane).in_flight += 1;
        self.in_flight += 1;
        self.in_flight_to_queues += usize::from(is_queue);
        self.shares.add(&definition.namespace, weight);
        LaneShare { lane, weight }
    }

    /// Counts an at-most-once fire of the lane as in flight, while its claim is being written.
    pub(crate) fn claiming(&mut self, lane: LaneNo, definition: &NewTask) -> LaneShare {
        self.get_mut(lane).claiming += 1;
        self.sent(lane, definition)
    }

    /// The claim of an at-most-once fire is durable.
    pub(crate) fn claimed(&mut self, share: LaneShare) {
        let lane = self.get_mut(share.lane);
        lane.claiming = lane.claiming.saturating_sub(1);
    }

    /// Notes that a delivery was handed to its courier.
    pub(crate) fn handed_out(&mut self, share: LaneShare, delivery: HandedOut) {
        let lane = self.get_mut(share.lane);
        lane.forget_sent();
        lane.handed_out.push_back(delivery);
    }

    /// A delivery of a lane is over.
    pub(crate) fn ended(&mut self, share: LaneShare, outcome: Option<&Outcome>, now: Timestamp) {
        self.in_flight -= 1;
        let lane = &mut self.lanes[share.lane.0 as usize];
        lane.in_flight -= 1;
        self.in_flight_to_queues -= usize::from(lane.id.queue().is_some());
        lane.forget_sent();
        lane.adapt(outcome);
        if let Some(failure) = outcome.and_then(|outcome| LastFailure::of(outcome, now)) {
            lane.count_failure(failure);
        }
        self.shares.subtract(&lane.id.namespace, share.weight);
        self.wake(share.lane);
        self.wake_without_share();
    }

    /// Serves lanes again that had no share of the budget.
    pub(crate) fn wake_without_share(&mut self) {
        for number in std::mem::take(&mut self.without_share) {
            if self.lanes.contains(number.0 as usize) {
                self.wake(number);
            }
        }
    }

    /// Whether a namespace may have more in flight.
    pub(crate) fn has_share(&self, namespace: &Namespace) -> bool {
        self.shares.may_take(namespace)
    }

    /// Whether lanes have no share of the budget.
    pub(crate) const fn lacks_share(&self) -> bool {
        !self.without_share.is_empty()
    }

    /// Sets how many deliveries the workers of a queue take at once.
    pub(crate) fn set_capacity(&mut self, id: LaneId, capacity: usize, now: Timestamp) {
        match capacity {
            0 => self.capacities.remove(&id),
            capacity => self.capacities.insert(id.clone(), capacity),
        };
        if let Some(number) = self.by_id.get(&id).copied() {
            self.change_capacity(number, capacity, now);
        }
    }

    fn change_capacity(&mut self, number: LaneNo, capacity: usize, now: Timestamp) {
        let lane = self.get_mut(number);
        lane.capacity = capacity;
        lane.starved_since = (capacity == 0).then(|| lane.starved_since.unwrap_or(now));
        self.may_be_starved |= capacity == 0;
        self.wake(number);
    }

    /// Notes that a connection is away, or is back.
    pub(crate) fn set_connection(
        &mut self,
        connection: &ConnectionName,
        state: ConnectionState,
        now: Timestamp,
    ) {
        match state {
            ConnectionState::Away => {
                self.away.entry(connection.clone()).or_insert(now);
            }
            ConnectionState::Ready => {
                self.away.remove(connection);
            }
        }
        let is_to =
            |lane: &Lane| matches!(&lane.id.target, LaneTarget::Sink(to, _) if to == connection);
        let lanes: Vec<_> =
            self.iter().filter(|(_, lane)| is_to(lane)).map(|(number, _)| number).collect();
        let capacity = match state {
            ConnectionState::Away => 0,
            ConnectionState::Ready => SINK_INFLIGHT_MAX,
        };
        lanes.into_iter().for_each(|number| self.change_capacity(number, capacity, now));
    }

    /// Whether tasks may wait in lanes without capacity.
    pub(crate) const fn may_be_starved(&self) -> bool {
        self.may_be_starved
    }

    /// Returns the lanes with waiting tasks that have had no capacity for that long.
    pub(crate) fn starved_for(&mut self, duration: Duration, now: Timestamp) -> Vec<LaneNo> {
        let waiting = self.iter().filter(|(_, lane)| lane.waiting() > 0);
        let starved = waiting.filter_map(|(number, lane)| Some((number, lane.starved_since?)));
        let starved: Vec<_> = starved.collect();
        let (long, short): (Vec<_>, Vec<_>) =
            starved.into_iter().partition(|(_, since)| since.after(duration) <= now);
        self.may_be_starved = !short.is_empty();
        long.into_iter().map(|(number, _)| number).collect()
    }

    /// Closes a lane without waiting, spilled or in-flight tasks.
    pub(crate) fn close_if_idle(&mut self, number: LaneNo, now: Timestamp) {
        let Some(lane) = self.lanes.get(number.0 as usize) else {
            return;
        };
        if lane.is_idle() && !lane.ready {
            let lane = self.lanes.remove(number.0 as usize);
            self.by_id.remove(&lane.id);
            self.last = None;
            if let Some(failures) = lane.failures {
                self.closed.keep(&lane.id, *failures, now);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use punctual_core::{
        Due, HttpTarget, Method, Reason, Schedule, SinkAddress, SinkTarget, SqlCall, StatementName,
    };

    use super::*;

    const NOW: Timestamp = Timestamp::EPOCH;
    const BUDGET: Budget = Budget { tasks: 1_000, payload_bytes: 1_000_000 };

    fn task(namespace: &str, url: &str) -> NewTask {
        let target = Target::Http(HttpTarget::new(url, Method::Post, vec![]).unwrap());
        let schedule = Schedule::Once(Due::At(NOW));
        NewTask::new(Namespace::new(namespace).unwrap(), schedule, target)
    }

    fn id(n: u64) -> LoadedRef {
        LoadedRef::without_slot(TaskId::floor(Timestamp::from_millis(n)))
    }

    #[test]
    fn a_lane_has_one_namespace_and_one_target() {
        let lane = |namespace: &str, url: &str| LaneId::of(&task(namespace, url));
        assert_eq!(lane("a", "http://h:1/x"), lane("a", "http://h:1/y?z=/"));
        assert_eq!(lane("a", "http://h:1"), lane("a", "http://h:1?z"));
        assert_ne!(lane("a", "http://h:1/x"), lane("a", "http://h:2/x"));
        assert_ne!(lane("a", "http://h:1/x"), lane("a", "https://h:1/x"));
        assert_ne!(lane("a", "http://h:1/x"), lane("b", "http://h:1/x"));
    }

    #[test]
    fn tasks_on_time_go_first_and_late_ones_are_not_starved() {
        let mut lanes = Lanes::new(BUDGET);
        let number = lanes.open(&task("a", "http://h"), NOW);
        for n in 0..4 {
            lanes.push(number, id(n), Urgency::Late);
            lanes.push(number, id(10 + n), Urgency::OnTime);
        }
        let lane = lanes.get_mut(number);
        let order: Vec<_> = std::iter::from_fn(|| lane.take()).map(|at| at.id.due()).collect();
        let want = [10, 11, 12, 0, 13, 1, 2, 3].map(Timestamp::from_millis);
        assert_eq!(order, want);
    }

    #[test]
    fn a_webhook_that_does_not_answer_gets_less_at_once_and_more_again_when_it_does() {
        let mut lanes = Lanes::new(BUDGET);
        let number = lanes.open(&task("a", "http://h"), NOW);
        let failed = Outcome::Failed { reason: Reason::new("no"), retry_in: None };
        for (outcome, want) in [
            (Some(Outcome::Expired), 128),
            (Some(Outcome::Acked), 129),
            (Some(failed), 130),
            (None, 130),
            (Some(Outcome::Expired), 65),
        ] {
            let share = lanes.sent(number, &task("a", "http://h"));
            lanes.ended(share, outcome.as_ref(), NOW);
            assert_eq!(lanes.get_mut(number).capacity, want, "{outcome:?}");
        }
        for _ in 0..9 {
            let share = lanes.sent(number, &task("a", "http://h"));
            lanes.ended(share, Some(&Outcome::Expired), NOW);
        }
        assert_eq!(lanes.get_mut(number).capacity, INFLIGHT_MIN);
    }

    #[test]
    fn the_lane_of_a_queue_has_the_capacity_that_its_workers_ask_for() {
        let queue = Queue::new("orders").unwrap();
        let new_task = NewTask { target: Target::Queue(queue.clone()), ..task("a", "http://h") };
        let lane_id = || LaneId::of_queue(Namespace::new("a").unwrap(), queue.clone());
        let mut lanes = Lanes::new(BUDGET);
        lanes.set_capacity(lane_id(), 7, NOW);
        let number = lanes.open(&new_task, NOW);
        assert_eq!(lanes.get_mut(number).capacity, 7);
        lanes.set_capacity(lane_id(), 0, NOW);
        assert!(lanes.get_mut(number).is_starved());
        lanes.push(number, id(1), Urgency::OnTime);
        assert_eq!(lanes.get_mut(number).take(), None);
        lanes.set_capacity(lane_id(), 1, NOW);
        assert_eq!(lanes.get_mut(number).take(), Some(id(1)));
    }

    #[test]
    fn the_lanes_of_a_connection_have_no_capacity_while_it_is_away() {
        let to = |connection: &str, statement: &str| {
            let call = SqlCall::new(StatementName::new(statement).unwrap(), vec![]).unwrap();
            let connection = ConnectionName::new(connection).unwrap();
            let sink = SinkTarget { connection, address: SinkAddress::Sql(call) };
            NewTask { target: Target::Sink(Box::new(sink)), ..task("a", "http://h") }
        };
        let mut lanes = Lanes::new(BUDGET);
        let number = lanes.open(&to("db", "paid"), NOW);
        let other = lanes.open(&to("other", "paid"), NOW);
        assert_ne!(number, lanes.open(&to("db", "late"), NOW), "a statement has its own lane");
        lanes.push(number, id(1), Urgency::OnTime);
        lanes.push(other, id(2), Urgency::OnTime);
        let db = ConnectionName::new("db").unwrap();
        let later = Timestamp::from_millis(5);
        lanes.set_connection(&db, ConnectionState::Away, later);
        assert_eq!(lanes.get_mut(number).take(), None);
        assert_eq!(lanes.get_mut(number).starved_since(), Some(later));
        assert_eq!(lanes.get_mut(other).take(), Some(id(2)));
        let opened = lanes.open(&to("db", "new"), later);
        assert!(lanes.get_mut(opened).is_starved(), "a lane that is opened while it is away");
        lanes.set_connection(&db, ConnectionState::Ready, later);
        assert_eq!(lanes.get_mut(number).take(), Some(id(1)));
        assert!(!lanes.get_mut(opened).is_starved());
    }

    #[test]
    fn a_shortened_lane_keeps_its_first_tasks() {
        let mut lanes = Lanes::new(BUDGET);
        let number = lanes.open(&task("a", "http://h"), NOW);
        for n in 0..6 {
            lanes.push(number, id(n), if n < 2 { Urgency::Late } else { Urgency::OnTime });
        }
        let lane = lanes.get_mut(number);
        assert_eq!(lane.shorten(3), [id(3), id(4), id(5)]);
        assert_eq!(lane.waiting(), 3);
        assert_eq!(lane.shorten(0).len(), 3);
    }
}
