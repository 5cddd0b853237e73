//! Couriers and receivers, and reports of deliveries.
//!
//! A delivery may wait in its courier. At its first byte it passes the same gate as in `server`:
//! its permit, by [`Delivery::send`]. A report whose owner has moved is forwarded to the present
//! owner, as `server/src/membership/orphans.rs` does.

use punctual_cluster::{ORPHAN_FORWARD_MAX, ORPHAN_RETRY_EVERY};

use super::*;
use crate::callers::shop;
use crate::checker::NO_CONNECTION;
use crate::faults::SimFault;
use crate::record::answer_to;
use crate::waits::Waits;

impl Simulation {
    pub(super) fn carry(
        &mut self,
        number: usize,
        partition: PartitionId,
        epoch: Epoch,
        delivery: Delivery,
    ) {
        self.brokers[number].in_flight_count += 1;
        let is_calm = self.healed.is_some();
        let target = &delivery.definition.target;
        let wait = self.waits.as_mut().map(|waits| waits.next(target, is_calm));
        let wait = wait.unwrap_or(CourierWait::Sends(0));
        if wait == CourierWait::Sends(0) {
            return self.send(number, partition, epoch, delivery);
        }
        self.trace.record(self.now, || format!("{} waits: {wait:?}", describe(&delivery)));
        self.figures.waited += 1;
        let waiting =
            self.wait(number, WaitingDelivery { partition, epoch, delivery, ends: false });
        let (after, event) = match wait {
            CourierWait::Sends(after) => (after, SimEvent::FirstByte(waiting)),
            CourierWait::Fails(after) => {
                let reason = Reason::new(NO_CONNECTION);
                let failed = Outcome::Failed { reason, retry_in: None };
                (after, SimEvent::WaitEnds(waiting, Some(failed)))
            }
            CourierWait::Returns(after) => (after, SimEvent::WaitEnds(waiting, None)),
        };
        let to = Some((number, self.brokers[number].incarnation));
        self.events.send(self.now + after, to, event);
        self.stop_while_waiting(number);
    }

    fn wait(&mut self, number: usize, waiting: WaitingDelivery) -> u64 {
        self.waiting_number += 1;
        self.brokers[number].waiting.insert(self.waiting_number, waiting);
        self.waiting_number
    }

    /// Stops the broker for longer than its lease, now and then.
    fn stop_while_waiting(&mut self, number: usize) {
        if self.plan.peaceful || self.healed.is_some() {
            return;
        }
        if let Some((after, length)) = self.waits.as_mut().and_then(Waits::stop) {
            let (pause, wake) = (SimFault::Pause(number), SimFault::Wake(number));
            self.events.send(self.now + after, None, SimEvent::Fault(pause));
            self.events.send(self.now + after + length, None, SimEvent::Fault(wake));
        }
    }

    /// The wait of a delivery is over, unless it has ended before.
    pub(super) fn first_byte(&mut self, number: usize, waiting: u64) {
        if let Some(waiting) = self.brokers[number].waiting.remove(&waiting) {
            let WaitingDelivery { partition, epoch, delivery, .. } = waiting;
            self.send(number, partition, epoch, delivery);
        }
    }

    /// A delivery ends unsent. One that was recalled is of no interest to another owner.
    pub(super) fn end_wait(&mut self, number: usize, waiting: u64, outcome: Option<Outcome>) {
        let Some(waiting) = self.brokers[number].waiting.remove(&waiting) else { return };
        let WaitingDelivery { partition, epoch, delivery, .. } = waiting;
        self.brokers[number].in_flight_count -= 1;
        let is_owner = self.brokers[number].epoch(partition) == Some(epoch);
        if is_owner || !delivery.permit.is_recalled() {
            self.report(number, partition, epoch, delivery.report(outcome));
        }
    }

    /// Couriers stop waiting for deliveries that were recalled.
    pub(super) fn notice_recalls(&mut self, number: usize) {
        let Some(waits) = &mut self.waits else { return };
        let broker = &mut self.brokers[number];
        let to = Some((number, broker.incarnation));
        for (waiting, held) in &mut broker.waiting {
            if !held.ends && held.delivery.permit.is_recalled() {
                held.ends = true;
                self.figures.recalled += 1;
                let at = self.now + waits.notice();
                // In this variant the courier does not stop waiting, and sends it.
                if self.variant != Variant::CouriersIgnoreRecalls {
                    self.events.send(at, to, SimEvent::WaitEnds(*waiting, None));
                }
            }
        }
    }

    /// The first byte of a delivery is to leave.
    fn send(
        &mut self,
        number: usize,
        partition: PartitionId,
        epoch: Epoch,
        mut delivery: Delivery,
    ) {
        let local_time = self.local_time(number);
        let handed_out_at = delivery.fired_at;
        if let Err(why) = self.gate(&mut delivery, local_time) {
            self.trace.record(self.now, || format!("{} is not sent: {why}", describe(&delivery)));
            self.figures.lease_over += u64::from(why == NotSendable::LeaseOver);
            let waiting = WaitingDelivery { partition, epoch, delivery, ends: true };
            let waiting = self.wait(number, waiting);
            let to = Some((number, self.brokers[number].incarnation));
            return self.events.send(self.now + 1, to, SimEvent::WaitEnds(waiting, None));
        }
        if self.variant == Variant::CouriersStampEarly {
            delivery.fired_at = handed_out_at;
        }
        *self.brokers[number].sent.entry((partition, epoch)).or_default() += 1;
        let error_max = self.error_max(number);
        let seen = SentDelivery {
            delivery: &delivery,
            partition,
            epoch,
            now: self.now,
            local_time,
            error_max,
        };
        self.checker.receive(&seen, &self.store);
        self.record.receive(&delivery, &mut self.checker);
        let timeout = millis(delivery.definition.timeout);
        let (after, outcome) = self.receiver(&delivery, timeout);
        self.trace.record(self.now, || {
            format!("b{number} sends {}: {} in {after} ms", describe(&delivery), short(&outcome))
        });
        self.checker.receiver_answered(delivery.fire_id, &outcome, after <= timeout);
        let outcome = match outcome {
            Outcome::Failed { .. } if self.variant == Variant::CouriersLie => Outcome::Acked,
            // The answer is too late for the courier, though the receiver has sent it.
            _ if after > timeout => Outcome::Expired,
            outcome => outcome,
        };
        let answer = answer_to(delivery.fire_id, delivery.attempt, &outcome);
        let answer = answer.filter(|_| self.variant != Variant::CouriersForgetAnswers);
        let report = delivery.report(Some(outcome)).with_answer(answer.map(Box::new));
        let back = SimEvent::DeliveryEnded(partition, epoch, report);
        let to = Some((number, self.brokers[number].incarnation));
        self.events.send(self.now + after.min(timeout), to, back);
    }

    /// The gate of the product, except in variants that are broken on purpose.
    fn gate(&self, delivery: &mut Delivery, now: Timestamp) -> Result<(), NotSendable> {
        match (delivery.send(now), self.variant) {
            (Err(NotSendable::Recalled), Variant::CouriersIgnoreRecalls)
            | (Err(NotSendable::LeaseOver), Variant::CouriersIgnoreLeases) => {
                delivery.fired_at = now;
                Ok(())
            }
            (result, _) => result,
        }
    }

    /// The workers of a queue come or go.
    pub(super) fn set_workers(&mut self, number: usize, queue: usize, capacity: usize) {
        self.brokers[number].capacities[queue] = capacity;
        let partitions: Vec<_> = self.brokers[number].owners.keys().copied().collect();
        for partition in partitions {
            self.announce_workers(number, partition, queue, capacity);
        }
    }

    /// Tells an owner how many deliveries the workers of a queue take.
    pub(super) fn announce_workers(
        &mut self,
        number: usize,
        partition: PartitionId,
        queue: usize,
        capacity: usize,
    ) {
        if self.waits.is_some() {
            let queue = Queue::new(QUEUES[queue]).expect("a word");
            let event = OwnerEvent::Capacity { namespace: shop(), queue, capacity };
            self.notify_owner(number, partition, event);
        }
    }

    /// Returns the answer of a receiver, and after how long it comes.
    pub(super) fn receiver(&mut self, delivery: &Delivery, timeout: u64) -> (u64, Outcome) {
        let quick = self.random.between(1, 40);
        let failed = Outcome::Failed { reason: Reason::new("HTTP 500"), retry_in: None };
        let Target::Http(http) = &delivery.definition.target else {
            let Some(waits) = &mut self.waits else { return (quick, Outcome::Acked) };
            return match waits.random.below(6) {
                0 => (quick, failed),
                1 => (timeout, Outcome::Expired),
                _ => (quick, Outcome::Acked),
            };
        };
        match http.url() {
            url if url.contains("flaky") => match self.random.below(6) {
                0 => (quick, Outcome::Acked),
                1 => (quick, Outcome::Refused { reason: Reason::new("HTTP 410") }),
                _ => (quick, failed),
            },
            url if url.contains("slow") => (self.random.between(50, 3_500), Outcome::Acked),
            url if url.contains("never") => (timeout, Outcome::Expired),
            _ => (quick, Outcome::Acked),
        }
    }

    pub(super) fn report(
        &mut self,
        number: usize,
        partition: PartitionId,
        epoch: Epoch,
        report: Report,
    ) {
        if self.brokers[number].epoch(partition) == Some(epoch) {
            return self.notify_owner(number, partition, OwnerEvent::Ended(vec![report]));
        }
        self.pass_on(number, partition, vec![report], self.forward_until());
    }

    /// Forwards reports to the present owner of a partition, or tries again a little later.
    pub(super) fn pass_on(
        &mut self,
        number: usize,
        partition: PartitionId,
        reports: Vec<Report>,
        until: u64,
    ) {
        let passed_on = |it: Report| {
            Report::of(it.fire_id, it.attempt, it.fired_at, it.outcome).with_answer(it.answer)
        };
        let reports: Vec<_> = reports.into_iter().map(passed_on).collect();
        if self.brokers[number].decides(partition) {
            return self.notify_owner(number, partition, OwnerEvent::Ended(reports));
        }
        if self.now >= until {
            return;
        }
        let from = (number, self.brokers[number].incarnation);
        if let Some(peer) = self.remote_owner(number, partition)
            && self.link_to(number, peer) == LinkState::Open
        {
            let at = self.now + self.latency();
            let to = Some((peer, self.brokers[peer].incarnation));
            self.brokers[number].in_flight_count += 1;
            return self.events.send(
                at,
                to,
                SimEvent::ReportsForwarded { from, partition, reports, until },
            );
        }
        self.brokers[number].in_flight_count += 1;
        self.forward_later(from, partition, reports, until);
    }

    /// Lets a broker try again to forward reports.
    pub(crate) fn forward_later(
        &mut self,
        from: (usize, u32),
        partition: PartitionId,
        reports: Vec<Report>,
        until: u64,
    ) {
        let at = self.now + millis(ORPHAN_RETRY_EVERY);
        self.events.send(at, Some(from), SimEvent::ForwardReports(partition, reports, until));
    }

    /// Returns until when reports are forwarded that have become orphans now.
    pub(super) fn forward_until(&self) -> u64 {
        self.now + millis(ORPHAN_FORWARD_MAX)
    }

    /// A broker that has left gets no new topology, so it reads the lease from the store.
    pub(super) fn read_owner(&mut self, number: usize, partition: PartitionId) {
        if let Some(lease) = self.holder(number, partition) {
            self.brokers[number].topology.note(partition, lease.broker, lease.epoch);
        }
    }

    /// Returns the other broker that owns a partition, as far as this one knows.
    pub(crate) fn remote_owner(&self, number: usize, partition: PartitionId) -> Option<usize> {
        let owner = self.brokers[number].topology.owner(partition)?;
        self.number_of(&owner.broker).filter(|other| *other != number)
    }

    pub(super) fn number_of(&self, id: &BrokerId) -> Option<usize> {
        self.brokers.iter().position(|broker| broker.id == *id)
    }
}
