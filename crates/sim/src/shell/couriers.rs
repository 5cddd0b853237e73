//! Couriers and receivers, and reports of deliveries.
//!
//! A report whose owner has moved is forwarded to the present owner, as
//! `server/src/membership/orphans.rs` does.

use punctual_cluster::{ORPHAN_FORWARD_MAX, ORPHAN_RETRY_EVERY};

use super::*;
use crate::record::answer_to;

impl Simulation {
    pub(super) fn carry(
        &mut self,
        number: usize,
        partition: PartitionId,
        epoch: Epoch,
        delivery: &Delivery,
    ) {
        let local_time = self.local_time(number);
        let to = Some((number, self.brokers[number].incarnation));
        self.brokers[number].in_flight_count += 1;
        if delivery.permit.send(local_time).is_err() {
            let back = SimEvent::DeliveryEnded(partition, epoch, delivery.report(None));
            return self.events.send(self.now + 1, to, back);
        }
        let error_max = self.error_max(number);
        let seen =
            SentDelivery { delivery, partition, epoch, now: self.now, local_time, error_max };
        self.checker.receive(&seen, &self.store.disturbed);
        self.record.receive(delivery, &mut self.checker);
        let timeout = millis(delivery.definition.timeout);
        let (after, outcome) = self.receiver(delivery, timeout);
        self.trace.record(self.now, || {
            format!("b{number} sends {}: {} in {after} ms", describe(delivery), short(&outcome))
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
        self.events.send(self.now + after.min(timeout), to, back);
    }

    /// Returns the answer of a receiver, and after how long it comes.
    pub(super) fn receiver(&mut self, delivery: &Delivery, timeout: u64) -> (u64, Outcome) {
        let quick = self.random.between(1, 40);
        let failed = Outcome::Failed { reason: Reason::new("HTTP 500"), retry_in: None };
        let Target::Http(http) = &delivery.definition.target else {
            return (quick, Outcome::Acked);
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
