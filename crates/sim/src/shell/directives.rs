//! Directives of the member, and the moves of partitions that follow from them.
//!
//! `PartitionMoves` decides. This file carries its actions out with events, as
//! `server/src/membership.rs` does with tasks and calls.

use super::*;

impl Simulation {
    pub(super) fn run_directive(&mut self, number: usize, directive: Directive) {
        if !matches!(directive, Directive::Publish(_) | Directive::Extend { .. }) {
            self.trace.record(self.now, || format!("b{number} directive {directive:?}"));
        }
        match directive {
            Directive::Start { partition, epoch, .. }
                if self.variant == Variant::OwnersDoNotStart
                    && partition.get() == 0
                    && epoch.get().is_multiple_of(2) => {}
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
            directive => self.on_move(number, MoveEvent::Directive(directive)),
        }
    }

    pub(crate) fn on_move(&mut self, number: usize, event: MoveEvent<InFlight, OfferReply>) {
        let local_time = self.local_time(number);
        self.brokers[number].moves.on(event, local_time);
        self.act_on_moves(number);
    }

    pub(super) fn act_on_moves(&mut self, number: usize) {
        let local_time = self.local_time(number);
        for action in self.brokers[number].moves.act(local_time) {
            self.perform_move(number, action);
        }
    }

    fn perform_move(&mut self, number: usize, action: MoveAction<InFlight, OfferReply>) {
        match action {
            MoveAction::Start { partition, epoch, until, in_flight } => {
                self.start_owner(number, Ownership { partition, epoch, until }, in_flight);
            }
            MoveAction::Extend { partition, until, .. } => {
                if let Some(held) = self.brokers[number].owners.get_mut(&partition) {
                    held.until = held.until.max(until);
                }
                self.notify_owner(number, partition, OwnerEvent::Extend(until));
            }
            MoveAction::Stop { partition, epoch } => {
                let (reply, in_flight) = oneshot::channel();
                self.brokers[number].stopping.push((partition, epoch, in_flight));
                self.notify_owner(number, partition, OwnerEvent::HandOver(reply));
            }
            MoveAction::End { partition, epoch } => self.end_owner(number, partition, epoch),
            MoveAction::Notify { partition, epoch, successor, in_flight, within } => {
                let take = PartitionTake { partition, before: epoch, in_flight };
                self.notify_successor(number, &successor, take, within);
            }
            MoveAction::HandedOver { partition, successor, epoch, .. } => {
                self.figures.hand_overs += 1;
                self.brokers[number].topology.note(partition, successor, epoch);
            }
            MoveAction::Answer { reply, taken } => {
                self.brokers[number].answers.push((reply, taken));
            }
            MoveAction::Report(event) => self.notify_member(number, event),
        }
    }

    fn start_owner(&mut self, number: usize, ownership: Ownership, in_flight: Vec<InFlight>) {
        let Ownership { partition, epoch, until } = ownership;
        let until =
            if self.variant == Variant::OwnersIgnoreTheirLease { Timestamp::MAX } else { until };
        let local_time = self.owner_time(number);
        let budget = Budget { tasks: 1_000_000, payload_bytes: 1 << 30 };
        let terms = OwnerConfig {
            retention: Retention::default(),
            budget,
            retains_batches: true,
            render_record: |record| record.fire_id.to_string().into(),
            load_ahead: OwnerConfig::LOAD_AHEAD,
        };
        let mut owner = Owner::new(Ownership { partition, epoch, until }, terms, local_time);
        let inherited = in_flight.len();
        self.figures.inherited += inherited as u64;
        self.figures.owners += 1;
        owner.inherit(in_flight);
        let broker = &mut self.brokers[number];
        broker.owners.insert(partition, RunningOwner { epoch, owner, until, inherited });
        broker.ready_owners.insert(partition);
        for (queue, capacity) in broker.capacities.into_iter().enumerate() {
            self.announce_workers(number, partition, queue, capacity);
        }
    }

    fn end_owner(&mut self, number: usize, partition: PartitionId, epoch: Epoch) {
        if self.brokers[number].epoch(partition) != Some(epoch) {
            return;
        }
        // The owner answers open calls and passes on the reports that it has.
        self.notify_owner(number, partition, OwnerEvent::End);
        let local_time = self.owner_time(number);
        let Some(mut held) = self.brokers[number].owners.remove(&partition) else { return };
        for action in held.owner.act(local_time) {
            if let OwnerAction::OrphanReport(reports) = action {
                self.pass_on(number, partition, reports, self.forward_until());
            }
        }
    }

    fn notify_successor(
        &mut self,
        number: usize,
        successor: &BrokerId,
        mut take: PartitionTake,
        within: Duration,
    ) {
        let Some(successor) = self.number_of(successor) else { return };
        if self.variant == Variant::HandOverForgetsInFlight {
            take.in_flight.clear();
        }
        let from = (number, self.brokers[number].incarnation);
        let (partition, before) = (take.partition, take.before);
        let after = match self.link_to(number, successor) {
            LinkState::Open => {
                let at = self.now + self.latency();
                let to = Some((successor, self.brokers[successor].incarnation));
                self.events.send(at, to, SimEvent::Take { from, take });
                millis(within)
            }
            LinkState::Lost => millis(within),
            LinkState::None => 1,
        };
        let late = SimEvent::Taken { partition, before, by: successor, epoch: None };
        self.events.send(self.now + after, Some(from), late);
    }

    /// Sends the answers to offers, after everything else that is done at this moment.
    pub(super) fn send_answers(&mut self, number: usize) {
        for (reply, epoch) in std::mem::take(&mut self.brokers[number].answers) {
            let OfferReply { partition, before, to } = reply;
            if self.link_to(number, to.0) == LinkState::Open {
                let at = self.now + self.latency();
                let taken = SimEvent::Taken { partition, before, by: number, epoch };
                self.events.send(at, Some(to), taken);
            }
        }
    }
}
