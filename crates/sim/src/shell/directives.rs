//! Directives of the member: starts, extends, hands over and ends owners.
//!
//! The counterpart of `server/src/membership.rs`, with events instead of tasks and calls.

use super::*;

impl Simulation {
    pub(super) fn run_directive(&mut self, number: usize, directive: Directive) {
        if !matches!(directive, Directive::Publish(_) | Directive::Extend { .. }) {
            self.trace.record(self.now, || format!("b{number} directive {directive:?}"));
        }
        match directive {
            Directive::Start { partition, epoch, until } => {
                self.start_owner(number, partition, epoch, until)
            }
            Directive::Extend { partition, epoch, until } => {
                if self.brokers[number].epoch(partition) == Some(epoch) {
                    if let Some(held) = self.brokers[number].owners.get_mut(&partition) {
                        held.until = held.until.max(until);
                    }
                    self.notify_owner(number, partition, OwnerEvent::Extend(until));
                }
            }
            Directive::HandOver { partition, epoch, .. } => {
                if self.brokers[number].epoch(partition) == Some(epoch) {
                    let (reply, in_flight) = oneshot::channel();
                    self.brokers[number].stopping.push((partition, epoch, in_flight));
                    self.notify_owner(number, partition, OwnerEvent::HandOver(reply));
                } else {
                    self.on_quiet(number, partition, epoch, Vec::new());
                }
            }
            Directive::Released { partition, epoch, successor } => {
                self.hand_over(number, partition, epoch, successor.as_ref())
            }
            Directive::Drop { partition, epoch } => {
                self.brokers[number].departing.remove(&partition);
                self.forget(number, partition, epoch);
            }
            Directive::Publish(view) => {
                for (partition, owner) in view.topology.owners() {
                    self.brokers[number].topology.note(
                        partition,
                        owner.broker.clone(),
                        owner.epoch,
                    );
                }
            }
            Directive::Skew(_) => {}
            Directive::Left => {
                self.brokers[number].state = BrokerState::Left;
                self.brokers[number].member = None;
            }
        }
    }

    pub(super) fn start_owner(
        &mut self,
        number: usize,
        partition: PartitionId,
        epoch: Epoch,
        until: Timestamp,
    ) {
        if self.variant == Variant::OwnersDoNotStart
            && partition.get() == 0
            && epoch.get().is_multiple_of(2)
        {
            return;
        }
        let until =
            if self.variant == Variant::OwnersIgnoreTheirLease { Timestamp::MAX } else { until };
        let local_time = self.owner_time(number);
        let budget = Budget { tasks: 1_000_000, payload_bytes: 1 << 30 };
        let terms = OwnerConfig { retention: Retention::default(), budget, retains_batches: true };
        let mut owner = Owner::new(Ownership { partition, epoch, until }, terms, local_time);
        let broker = &mut self.brokers[number];
        let departing = broker.departing.remove(&partition);
        // After a failed hand-over the deliveries in flight are still ours, unless another broker
        // has owned the partition since.
        let kept = departing.filter(|departing| departing.epoch.next() == Some(epoch));
        let kept = kept.map(|departing| departing.in_flight);
        let in_flight = broker.offered.remove(&partition).or(kept).unwrap_or_default();
        self.figures.inherited += in_flight.len() as u64;
        self.figures.owners += 1;
        owner.inherit(in_flight);
        broker.owners.insert(partition, RunningOwner { epoch, owner, until });
        broker.ready_owners.insert(partition);
    }

    pub(super) fn forget(&mut self, number: usize, partition: PartitionId, epoch: Epoch) {
        if self.brokers[number].epoch(partition) != Some(epoch) {
            return;
        }
        // The owner answers open calls and passes on the reports that it has.
        self.notify_owner(number, partition, OwnerEvent::End);
        let local_time = self.owner_time(number);
        let Some(mut held) = self.brokers[number].owners.remove(&partition) else { return };
        for action in held.owner.act(local_time) {
            if let OwnerAction::OrphanReport(reports) = action {
                self.pass_on(number, partition, reports, self.now + FORWARD_MAX_MS);
            }
        }
    }

    pub(super) fn on_quiet(
        &mut self,
        number: usize,
        partition: PartitionId,
        epoch: Epoch,
        in_flight: Vec<InFlight>,
    ) {
        self.forget(number, partition, epoch);
        self.brokers[number]
            .departing
            .insert(partition, DepartingPartition { epoch, in_flight, successor: None });
        self.notify_member(number, MemberEvent::Quiet { partition, epoch });
    }

    pub(super) fn hand_over(
        &mut self,
        number: usize,
        partition: PartitionId,
        epoch: Epoch,
        successor: Option<&BrokerId>,
    ) {
        let successor = successor
            .and_then(|successor| self.brokers.iter().position(|broker| broker.id == *successor));
        let departing = self.brokers[number].departing.get_mut(&partition);
        let (Some(successor), Some(departing)) =
            (successor, departing.filter(|it| it.epoch == epoch))
        else {
            return self.notify_member(number, MemberEvent::HandedOver { partition, epoch });
        };
        departing.successor = Some(successor);
        let forgets = self.variant == Variant::HandOverForgetsInFlight;
        let in_flight = if forgets { Vec::new() } else { departing.in_flight.clone() };
        let from = (number, self.brokers[number].incarnation);
        let after = match self.link_to(number, successor) {
            LinkState::Open => {
                let at = self.now + self.latency();
                let to = Some((successor, self.brokers[successor].incarnation));
                self.events.send(
                    at,
                    to,
                    SimEvent::Take { from, partition, before: epoch, in_flight },
                );
                TAKE_MAX_MS
            }
            LinkState::Lost => TAKE_MAX_MS,
            LinkState::None => 1,
        };
        let late = SimEvent::TakeTimedOut { partition, before: epoch, by: successor };
        self.events.send(self.now + after, Some(from), late);
    }

    /// Handles the offer of a partition that another broker has released.
    pub(super) fn offered(
        &mut self,
        number: usize,
        from: (usize, u32),
        partition: PartitionId,
        before: Epoch,
        in_flight: Vec<InFlight>,
    ) {
        if self.brokers[number].is_leaving {
            return self.send_taken(number, from, partition, before, None);
        }
        self.brokers[number].offered.insert(partition, in_flight);
        self.brokers[number].taking.push(PendingTake { partition, before, from });
        self.notify_member(number, MemberEvent::Offered { partition });
    }

    pub(super) fn reply_taken(&mut self, number: usize) {
        let taking = std::mem::take(&mut self.brokers[number].taking);
        for one in taking {
            let PendingTake { partition, before, from } = one;
            match self.brokers[number].epoch(partition).filter(|epoch| *epoch > before) {
                Some(epoch) => self.send_taken(number, from, partition, before, Some(epoch)),
                None => self.brokers[number].taking.push(one),
            }
        }
    }

    pub(super) fn send_taken(
        &mut self,
        number: usize,
        to: (usize, u32),
        partition: PartitionId,
        before: Epoch,
        epoch: Option<Epoch>,
    ) {
        if self.link_to(number, to.0) == LinkState::Open {
            let at = self.now + self.latency();
            self.events.send(
                at,
                Some(to),
                SimEvent::Taken { partition, before, by: number, epoch },
            );
        }
    }

    pub(super) fn handed_over(
        &mut self,
        number: usize,
        partition: PartitionId,
        before: Epoch,
        by: usize,
        taken: Option<Epoch>,
    ) {
        let broker = &mut self.brokers[number];
        // An answer to an earlier hand-over is ignored.
        let current = broker.departing.get(&partition);
        if current
            .is_none_or(|departing| (departing.epoch, departing.successor) != (before, Some(by)))
        {
            return;
        }
        let Some(epoch) = taken else {
            return self
                .notify_member(number, MemberEvent::HandOverFailed { partition, epoch: before });
        };
        broker.departing.remove(&partition);
        self.figures.hand_overs += 1;
        let successor = self.brokers[by].id.clone();
        self.brokers[number].topology.note(partition, successor, epoch);
        self.notify_member(number, MemberEvent::HandedOver { partition, epoch: before });
    }
}
