//! The simulation: brokers, a store and callers, the true time, and the queue of events.
//!
//! Everything runs in one thread, in the order of the events, and all chance comes from the seed.
//! `inject` applies faults, `requests` carries requests and messages, and `rest` checks the end of
//! a run. `shell` carries out the decisions of members and owners, and `forward` carries calls
//! between brokers.

mod inject;
mod requests;
mod rest;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use punctual_cluster::{Member, MemberConfig, MemberEvent, MoveEvent};
use punctual_core::{BrokerId, Epoch, Lease, PartitionId, Partitions, Seat, TaskState, Topology};
use punctual_engine::{Action as OwnerAction, Event as OwnerEvent, Lookup, LookupResult};
use punctual_store::{BatchNo, Filter, LeaseStore as _, Position, StoreError, TaskStore};

use crate::broker::{BrokerState, SimBroker};
use crate::callers::{self, SimCall, waiting_task};
use crate::checker::{BrokenPromise, PromiseChecker};
use crate::clock::SimClock;
use crate::event_queue::{EventQueue, SimEvent};
use crate::faults::{CutDirection, FaultPlan, SimFault};
use crate::figures::SimFigures;
use crate::random::SimRandom;
use crate::record::SimRecord;
use crate::store::{SimStore, StoreAnswer, StoreRequest, ready};
use crate::trace::RunTrace;
use crate::variant::Variant;
use crate::waits::{QUEUES, Waits};
pub(crate) use requests::LinkState;
use requests::PendingRequest;

/// The true time at which every run begins.
const BEGIN: u64 = 1_700_000_000_000;
/// The largest number of events of one run: several times that of a long one.
const STEPS_MAX: u64 = 400_000;
/// How long after the last fault the cluster may take to come to rest.
const REST_MAX_MS: u64 = 90_000;
/// How long after the last start of a broker partitions may be unbalanced.
const BALANCE_MAX_MS: u64 = 12_000;
/// How far correct clocks differ from the true time.
const CLOCK_ERROR_MS: u64 = 50;
/// How far a clock may differ before the other brokers notice: the limit, measured from a median
/// that may differ too.
const UNNOTICED_MS: i64 = 250 + 2 * CLOCK_ERROR_MS.cast_signed() + 20;
/// How far a clock may differ from the other brokers', as in production.
const SKEW_MAX: Duration = Duration::from_millis(250);
/// How much too fast or slow clocks run, in millionths.
const DRIFT_PPM_MAX: u64 = 500;
/// The timeout of an owner's request to the store.
const OWNER_TIMEOUT_MS: u64 = 1_000;

/// What the workers of a queue take at once when no fault keeps them away.
const CAPACITY: usize = 8;

/// Late batches have random numbers of their own, derived from the seed with this value, so that
/// runs without them are the same as before late batches were added. With this value, no seed that
/// was kept before has them.
const LATE: u64 = 0x01b8_0000_0000;
/// Batches may be late from this long before a failover until this long after it.
const LATE_BEFORE_MS: u64 = 500;
const LATE_AFTER_MS: u64 = 3_000;

pub(crate) struct Simulation {
    pub(crate) plan: FaultPlan,
    pub(crate) random: SimRandom,
    pub(crate) variant: Variant,
    pub(crate) now: u64,
    pub(crate) events: EventQueue,
    pub(crate) store: SimStore,
    pub(crate) brokers: Vec<SimBroker>,
    pub(crate) partitions: Partitions,
    pub(crate) calls: BTreeMap<u64, SimCall>,
    pub(crate) call_number: u64,
    pending: BTreeMap<u64, PendingRequest>,
    request_number: u64,
    pub(crate) checker: PromiseChecker,
    pub(crate) record: SimRecord,
    pub(crate) figures: SimFigures,
    pub(crate) trace: RunTrace,
    pub(crate) healed: Option<u64>,
    /// When the last fault began or ended.
    last_fault_at: u64,
    /// When a broker last began to leave.
    last_leave_at: u64,
    store_unavailable: bool,
    cut_store: BTreeMap<usize, CutDirection>,
    cut_peers: BTreeSet<(usize, usize)>,
    loss: u64,
    slow_ms: u64,
    /// If set, deliveries wait in their couriers.
    pub(crate) waits: Option<Waits>,
    /// The last number given to a delivery that waits.
    pub(crate) waiting_number: u64,
    /// How many deliveries the workers of each queue take at once.
    pub(crate) capacities: [usize; QUEUES.len()],
    /// If set, batches around failovers may reach the store after their owner's timeout.
    late: Option<SimRandom>,
    /// Requests that reach the store after their owner has given them up.
    given_up: BTreeSet<u64>,
    /// The last batch of each owner that the store has acknowledged to it.
    answered: BTreeMap<(PartitionId, Epoch), BatchNo>,
    /// The calls that cancel all recurring tasks were made.
    series_cancelled: bool,
    is_over: bool,
}

impl Simulation {
    pub(crate) fn new(seed: u64, variant: Variant, trace: RunTrace) -> Self {
        let mut random = SimRandom::new(seed);
        let mut plan = FaultPlan::new(&mut random);
        let mut late = SimRandom::new(seed ^ LATE);
        let mut late = (late.below(4) == 0 && !plan.peaceful).then_some(late);
        if let Some(late) = &mut late {
            plan.fail_over(late);
        }
        let waits = Waits::new(seed, plan.lease_ms);
        let partitions = Partitions::new(plan.partitions).expect("a few");
        let mut clock = || {
            let ahead = random.plus_minus(CLOCK_ERROR_MS);
            SimClock::new(BEGIN, ahead, random.plus_minus(DRIFT_PPM_MAX))
        };
        let store =
            SimStore::new(partitions, clock(), Duration::from_millis(plan.lease_ms), variant);
        let brokers = (0..plan.brokers).map(|number| {
            let id = BrokerId::new(&format!("b{number}:1"));
            SimBroker::new(id, clock(), Topology::vacant(partitions))
        });
        let brokers = brokers.collect();
        let checker = PromiseChecker::new(plan.peaceful);
        let mut world = Self {
            random,
            variant,
            now: BEGIN,
            events: EventQueue::default(),
            store,
            brokers,
            partitions,
            calls: BTreeMap::new(),
            call_number: 0,
            pending: BTreeMap::new(),
            request_number: 0,
            checker,
            record: SimRecord::new(seed),
            figures: SimFigures::default(),
            trace,
            healed: None,
            last_fault_at: BEGIN,
            last_leave_at: 0,
            store_unavailable: false,
            cut_store: BTreeMap::new(),
            cut_peers: BTreeSet::new(),
            loss: 0,
            slow_ms: 0,
            waits,
            waiting_number: 0,
            capacities: [CAPACITY; QUEUES.len()],
            late,
            given_up: BTreeSet::new(),
            answered: BTreeMap::new(),
            series_cancelled: false,
            is_over: false,
            plan,
        };
        world.begin();
        world
    }

    fn begin(&mut self) {
        let plan = self.plan.clone();
        let FaultPlan { brokers, partitions, lease_ms, peaceful, .. } = plan;
        self.trace.record_fault(self.now, || {
            format!(
                "{brokers} brokers, {partitions} partitions, leases of {lease_ms} ms, \
                 peaceful: {peaceful}"
            )
        });
        for broker in 0..plan.initially_running {
            let at = BEGIN + self.random.below(300);
            self.events.send(at, None, SimEvent::Fault(SimFault::Start(broker)));
        }
        for (at, fault) in plan.faults.iter().filter(|(at, _)| *at < plan.heals_ms) {
            self.events.send(BEGIN + at, None, SimEvent::Fault(*fault));
        }
        for queue in 0..QUEUES.len() {
            self.plan_workers(queue);
        }
        self.events.send(BEGIN + plan.heals_ms, None, SimEvent::Heal);
        for _ in 0..plan.calls {
            let at = BEGIN + self.random.between(200, plan.calls_ms);
            self.events.send(at, None, SimEvent::CallerActs);
        }
    }

    /// Runs until the cluster has come to rest or a promise is broken.
    pub(crate) fn run(&mut self) -> Result<SimFigures, BrokenPromise> {
        while let Some((at, to, event)) = self.events.next() {
            self.now = self.now.max(at);
            self.figures.steps += 1;
            self.deliver(to, event);
            if let Some((partition, newer, older)) = self.store.epoch_decreased {
                let observed =
                    format!("{partition} accepted a write of {older} after one of {newer}");
                self.checker.break_promise("G11 epochs never go down", observed);
            }
            if let Some(broken) = self.checker.broken.take() {
                return Err(broken);
            }
            if self.is_over {
                break;
            }
            if self.figures.steps > STEPS_MAX {
                return Err(BrokenPromise {
                    promise: "no busy loop",
                    observed: "too many events".to_owned(),
                });
            }
        }
        self.figures.received = self.checker.received_count() as u64;
        self.figures.orders = self.checker.orders.len() as u64;
        self.figures.millis = self.now - BEGIN;
        self.figures.lag_max_ms = self.checker.lag_max_ms;
        Ok(self.figures)
    }

    /// A broker whose forwarded reports were not accepted tries again.
    fn undelivered(&mut self, event: SimEvent) {
        if let SimEvent::ReportsForwarded { from, partition, reports, until } = event {
            self.forward_later(from, partition, reports, until);
        }
    }

    /// Passes one event to its recipient.
    fn deliver(&mut self, to: Option<(usize, u32)>, event: SimEvent) {
        let Some((broker, incarnation)) = to else {
            return self.handle(event);
        };
        let recipient = &mut self.brokers[broker];
        if recipient.incarnation != incarnation || !recipient.is_alive() {
            return self.undelivered(event);
        }
        if recipient.state == BrokerState::Paused {
            return recipient.inbox.push_back(event);
        }
        // The broker has been given an earlier wake-up since.
        if matches!(event, SimEvent::Wake) && recipient.wakes_at != Some(self.now) {
            return;
        }
        self.at_broker(broker, event);
        self.drive(broker);
    }

    fn handle(&mut self, event: SimEvent) {
        match event {
            SimEvent::StoreReceives(number, broker, request) => {
                self.at_store(number, broker, request)
            }
            SimEvent::CallerActs => self.caller_acts(),
            SimEvent::CallerAnswered(call, answer) => self.on_answer(call, *answer),
            SimEvent::CallerRetries(call) => self.place_call(call),
            SimEvent::CallTimedOut(call) => self.on_call_timeout(call),
            SimEvent::Fault(fault) => self.fault(fault),
            SimEvent::Workers(queue, capacity) => self.workers_change(queue, capacity),
            SimEvent::Heal => self.heal(),
            SimEvent::CheckRest => self.check_rest(),
            event => unreachable!("an event of a broker: {event:?}"),
        }
    }

    fn caller_acts(&mut self) {
        let waiting = self.brokers.iter().flat_map(|broker| broker.waiting.values());
        // A caller that cancels a callback gets no report of the end.
        let waiting = waiting.filter(|it| it.delivery.definition.callback_of.is_none());
        let waiting: Vec<_> = waiting.map(|waiting| waiting_task(&waiting.delivery)).collect();
        let next_call = callers::next_call(
            &mut self.random,
            self.waits.as_mut().map(|waits| (&mut waits.random, &*waiting)),
            &mut self.checker,
            self.variant,
            self.partitions,
            self.now,
        );
        if let Some(mut call) = next_call {
            self.record.decorate(&mut call);
            self.new_call(call);
        }
    }

    /// Reads the last holder of the lease of a partition, if the broker reaches the store.
    pub(crate) fn holder(&self, broker: usize, partition: PartitionId) -> Option<Lease> {
        let sent = self.store.memory.holder(Seat::Partition(partition));
        let away = self.store_unavailable || self.cut_store.contains_key(&broker);
        if away { None } else { ready(sent).ok().flatten() }
    }
}
