//! Applies faults to brokers, network, store and clocks, and ends them all when the cluster heals.

use super::*;

impl Simulation {
    pub(super) fn fault(&mut self, fault: SimFault) {
        self.last_fault_at = self.now;
        self.figures.faults += 1;
        self.trace.record_fault(self.now, || format!("{fault:?}"));
        match fault {
            SimFault::Start(broker) => self.start(broker),
            SimFault::Kill(broker) => self.kill(broker),
            SimFault::Leave(broker) => self.leave(broker),
            SimFault::Pause(broker) if self.brokers[broker].state == BrokerState::Runs => {
                self.brokers[broker].state = BrokerState::Paused;
            }
            SimFault::Freeze(broker, millis) => self.brokers[broker].freeze_ms = Some(millis),
            SimFault::Wake(broker) => self.wake(broker),
            SimFault::CutStore(broker, direction) => _ = self.cut_store.insert(broker, direction),
            SimFault::MendStore(broker) => _ = self.cut_store.remove(&broker),
            SimFault::CutPeers(a, b) => self.cut_peers.extend([(a, b), (b, a)]),
            SimFault::MendPeers(a, b) => {
                self.cut_peers.remove(&(a, b));
                self.cut_peers.remove(&(b, a));
            }
            SimFault::StoreUnavailable => self.store_unavailable = true,
            SimFault::StoreAvailable => self.store_unavailable = false,
            SimFault::Loss(share) => self.loss = share,
            SimFault::Slow(millis) => self.slow_ms = millis,
            SimFault::FailOver(millis) => {
                let since = self.store.clock.at(self.now).millis_before(millis);
                let lost = self.store.fail_over(since);
                self.figures.lost_batches += lost as u64;
                self.trace.record_fault(self.now, || format!("{lost} batches are lost"));
            }
            SimFault::SetForward(broker, millis) => {
                let now = self.now;
                let broker = &mut self.brokers[broker];
                broker.clock.set_forward(now, millis);
                if broker.clock.ahead_ms(now) > UNNOTICED_MS {
                    broker.skewed_since.get_or_insert(now);
                }
            }
            SimFault::Pause(_) => {}
        }
    }

    pub(super) fn start(&mut self, number: usize) {
        let now = self.now;
        let lease = Duration::from_millis(self.plan.lease_ms);
        let partitions = self.partitions;
        let broker = &mut self.brokers[number];
        if broker.state == BrokerState::Left {
            return self.events.send(now + 500, None, SimEvent::Fault(SimFault::Start(number)));
        }
        if broker.is_alive() {
            return;
        }
        let (id, incarnation, clock) = (broker.id.clone(), broker.incarnation + 1, broker.clock);
        let skewed = (clock.ahead_ms(now) > UNNOTICED_MS).then_some(now);
        *broker = SimBroker::new(id.clone(), clock, Topology::vacant(partitions));
        broker.incarnation = incarnation;
        broker.state = BrokerState::Runs;
        broker.skewed_since = skewed;
        broker.started_at = now;
        let skew_max = if self.variant == Variant::SkewIsIgnored {
            Duration::from_secs(3_600)
        } else {
            SKEW_MAX
        };
        let terms = MemberConfig { me: id, partitions, lease, skew_max };
        broker.member = Some(Member::new(terms, clock.at(now)));
        broker.member_ready = true;
        broker.capacities = self.capacities;
        self.drive(number);
    }

    pub(crate) fn kill(&mut self, number: usize) {
        let broker = &mut self.brokers[number];
        broker.state = BrokerState::Dead;
        broker.member = None;
        broker.owners.clear();
        broker.waiting.clear();
        broker.sent.clear();
        broker.stopping.clear();
        let (inbox, open) = (std::mem::take(&mut broker.inbox), std::mem::take(&mut broker.open));
        inbox.into_iter().for_each(|event| self.undelivered(event));
        for open in open {
            let lost = Err(punctual_engine::EngineError::Lost);
            self.checker.answered(&open.command, open.epoch, &lost, &self.store.disturbed);
        }
    }

    /// Lets a broker leave. In a peaceful run, only one broker leaves at a time, and only if
    /// another has run for a while: a successor that is not known yet, or that leaves at the same
    /// moment, is not notified of the deliveries in flight.
    pub(super) fn leave(&mut self, number: usize) {
        let known_since = self.now - 2 * self.plan.lease_ms;
        let mut others = self.brokers.iter().enumerate().filter(|(other, _)| *other != number);
        let known = |broker: &SimBroker| {
            broker.state != BrokerState::Runs || broker.started_at < known_since
        };
        let calm = self.brokers.iter().all(known) && self.last_leave_at < known_since;
        let runs =
            others.any(|(_, broker)| broker.state == BrokerState::Runs && !broker.is_leaving);
        if self.plan.peaceful && !(runs && calm) {
            return;
        }
        self.last_leave_at = self.now;
        let broker = &mut self.brokers[number];
        if broker.state == BrokerState::Runs {
            broker.is_leaving = true;
            self.on_move(number, MoveEvent::Leave);
            self.drive(number);
        }
    }

    pub(crate) fn wake(&mut self, number: usize) {
        if self.brokers[number].state != BrokerState::Paused {
            return;
        }
        self.brokers[number].state = BrokerState::Runs;
        self.brokers[number].wakes_at = None;
        self.reorder_inbox(number);
        while let Some(event) = self.brokers[number].inbox.pop_front() {
            // One of the events may pause it again.
            if self.brokers[number].state == BrokerState::Paused {
                self.brokers[number].inbox.push_front(event);
                return;
            }
            self.at_broker(number, event);
            // Either all events in the inbox are handled before anything is decided, or one after
            // the other.
            if self.random.below(2) == 0 {
                self.drive(number);
            }
        }
        self.mark_all_ready(number);
        self.drive(number);
    }

    /// Couriers have threads of their own: those that wait may go on before anything else is
    /// handled.
    fn reorder_inbox(&mut self, number: usize) {
        let inbox = &mut self.brokers[number].inbox;
        if self.waits.as_mut().is_some_and(|waits| waits.random.below(2) == 0) {
            let is_courier = |event: &SimEvent| matches!(event, SimEvent::FirstByte(_));
            inbox.make_contiguous().sort_by_key(|event| !is_courier(event));
        }
    }

    /// Plans when the workers of a queue come and go.
    pub(super) fn plan_workers(&mut self, queue: usize) {
        let Some(waits) = &mut self.waits else { return };
        let mut at = 0;
        while at < self.plan.heals_ms {
            let (lasts, capacity) = waits.workers();
            self.events.send(BEGIN + at, None, SimEvent::Workers(queue, capacity));
            at += lasts;
        }
    }

    /// The workers of a queue come or go, at all brokers.
    pub(super) fn workers_change(&mut self, queue: usize, capacity: usize) {
        if self.waits.is_none() {
            return;
        }
        self.capacities[queue] = capacity;
        for (number, broker) in self.brokers.iter().enumerate() {
            let to = Some((number, broker.incarnation));
            self.events.send(self.now + 1, to, SimEvent::Workers(queue, capacity));
        }
    }

    pub(super) fn heal(&mut self) {
        self.trace.record_fault(self.now, || "all faults end".to_owned());
        self.last_fault_at = self.now;
        self.store_unavailable = false;
        self.cut_store.clear();
        self.cut_peers.clear();
        (self.loss, self.slow_ms) = (0, 0);
        for queue in 0..QUEUES.len() {
            self.workers_change(queue, CAPACITY);
        }
        self.healed = Some(self.now);
        for number in 0..self.brokers.len() {
            self.brokers[number].freeze_ms = None;
            self.wake(number);
            let ahead = self.brokers[number].clock.ahead_ms(self.now);
            if ahead.unsigned_abs() > 2 * CLOCK_ERROR_MS {
                // The clock is corrected while the broker is down: the clock of a running broker
                // never goes back.
                self.kill(number);
                let ahead = self.random.plus_minus(CLOCK_ERROR_MS);
                self.brokers[number].clock = SimClock::new(self.now, ahead, 0);
                self.brokers[number].skewed_since = None;
            }
            let runs = self
                .brokers
                .iter()
                .any(|broker| broker.state == BrokerState::Runs && !broker.is_leaving);
            if !self.brokers[number].is_alive() && (!runs || self.random.below(2) == 0) {
                self.start(number);
            }
        }
        if !self
            .brokers
            .iter()
            .any(|broker| broker.state == BrokerState::Runs && !broker.is_leaving)
        {
            self.events.send(self.now + 30_000, None, SimEvent::Fault(SimFault::Start(0)));
        }
        self.events.send(self.now + BALANCE_MAX_MS, None, SimEvent::CheckRest);
    }
}
