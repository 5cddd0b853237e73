//! The shell of a broker: carries out what its member and its owners decide.
//!
//! It turns their actions into requests to the store, deliveries and messages to other brokers. The
//! counterpart of the shells of `engine` and `cluster`. `directives` moves partitions,
//! `couriers` sends deliveries and passes reports on, and `gauges` checks what owners show.

mod couriers;
mod directives;
mod gauges;

use std::time::Duration;

use punctual_cluster::{Directive, MemberAction, MemberEvent, MoveAction, MoveEvent};
use punctual_core::{BrokerId, Epoch, Outcome, PartitionId, Queue, Reason, Target, Timestamp};
use punctual_engine::{
    Action as OwnerAction, Budget, Delivery, EngineError, Event as OwnerEvent, InFlight,
    NotSendable, Owner, OwnerConfig, Ownership, Reply, Report,
};
use punctual_store::Retention;
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::TryRecvError;

use crate::broker::{BrokerState, OfferReply, OpenCall, RunningOwner, WaitingDelivery};
use crate::checker::{SentDelivery, describe};
use crate::event_queue::{PartitionTake, SimEvent};
use crate::simulation::{LinkState, Simulation};
use crate::store::{StoreAnswer, StoreRequest};
use crate::variant::Variant;
use crate::waits::{CourierWait, QUEUES};

/// Turns of a broker at one moment before it counts as a busy loop.
const TURNS_MAX: u32 = 1_000;
/// How far ahead the owners' clock is in the variant in which they are early.
const EARLY_MS: u64 = 3_000;

impl Simulation {
    /// Handles an event for a broker that runs.
    pub(crate) fn at_broker(&mut self, number: usize, event: SimEvent) {
        match event {
            SimEvent::Wake => {
                self.brokers[number].wakes_at = None;
                self.act_on_moves(number);
                self.mark_due_ready(number);
            }
            SimEvent::StoreAnswered(request, answer) => {
                self.answered(number, request, Some(answer))
            }
            SimEvent::StoreTimedOut(request) => self.answered(number, request, None),
            SimEvent::MemberActs(actions, then) => self.perform(number, actions, then),
            SimEvent::OwnerActs(partition, epoch, actions) => {
                self.perform_of_owner(number, partition, epoch, actions);
            }
            SimEvent::FirstByte(delivery) => self.first_byte(number, delivery),
            SimEvent::WaitEnds(delivery, outcome) => self.end_wait(number, delivery, outcome),
            SimEvent::Workers(queue, capacity) => self.set_workers(number, queue, capacity),
            SimEvent::DeliveryEnded(partition, epoch, report) => {
                let broker = &mut self.brokers[number];
                broker.in_flight_count -= 1;
                if let Some(sent) = broker.sent.get_mut(&(partition, epoch)) {
                    *sent = sent.saturating_sub(1);
                }
                self.report(number, partition, epoch, report);
            }
            SimEvent::ForwardReports(partition, reports, until) => {
                self.brokers[number].in_flight_count -= 1;
                self.read_owner(number, partition);
                self.pass_on(number, partition, reports, until);
            }
            SimEvent::ReportsAccepted => self.brokers[number].in_flight_count -= 1,
            SimEvent::ReportsForwarded { from, partition, reports, until } => {
                if self.brokers[number].decides(partition) {
                    self.notify_owner(number, partition, OwnerEvent::Ended(reports));
                    let at = self.now + self.latency();
                    self.events.send(at, Some(from), SimEvent::ReportsAccepted);
                } else {
                    self.forward_later(from, partition, reports, until);
                }
            }
            SimEvent::CallArrived(call) | SimEvent::RetryCall(call) => {
                self.call_owner(number, call)
            }
            SimEvent::PeerCall { from, call, partition, command } => {
                self.on_peer_call(number, from, call, partition, *command);
            }
            SimEvent::PeerReply(call, answer) => self.on_reply(number, call, *answer),
            SimEvent::Take { from, take: PartitionTake { partition, before, in_flight } } => {
                let reply = OfferReply { partition, before, to: from };
                self.on_move(number, MoveEvent::Offered { partition, before, in_flight, reply });
            }
            SimEvent::Taken { partition, before: epoch, by, epoch: taken } => {
                let successor = self.brokers[by].id.clone();
                self.on_move(number, MoveEvent::Notified { partition, epoch, successor, taken });
            }
            event => unreachable!("not an event of a broker: {event:?}"),
        }
    }

    fn local_time(&self, number: usize) -> Timestamp {
        self.brokers[number].clock.at(self.now)
    }

    /// Returns the time that owners use.
    fn owner_time(&self, number: usize) -> Timestamp {
        let local_time = self.local_time(number);
        match self.variant {
            Variant::OwnersAreEarly => Timestamp::from_millis(local_time.as_millis() + EARLY_MS),
            _ => local_time,
        }
    }

    fn answered(&mut self, number: usize, request: u64, answer: Option<StoreAnswer>) {
        match self.take_answer(request, answer) {
            Some(StoreAnswer::Member(event)) => self.notify_member(number, event),
            Some(StoreAnswer::Owner(partition, epoch, event))
                if self.brokers[number].epoch(partition) == Some(epoch) =>
            {
                self.notify_owner(number, partition, event);
            }
            _ => {}
        }
    }

    pub(crate) fn notify_member(&mut self, number: usize, event: MemberEvent) {
        let local_time = self.local_time(number);
        let broker = &mut self.brokers[number];
        if let Some(member) = &mut broker.member {
            self.trace.record(self.now, || format!("  b{number} member gets {}", short(&event)));
            member.on(event, local_time);
            broker.member_ready = true;
        }
    }

    pub(crate) fn notify_owner(
        &mut self,
        number: usize,
        partition: PartitionId,
        event: OwnerEvent,
    ) {
        let local_time = self.owner_time(number);
        let broker = &mut self.brokers[number];
        if let Some(held) = broker.owners.get_mut(&partition) {
            self.trace.record(self.now, || {
                format!("  b{number} {partition} {} gets {}", held.epoch, short(&event))
            });
            held.owner.on(event, local_time);
            broker.ready_owners.insert(partition);
        }
    }

    pub(crate) fn mark_all_ready(&mut self, number: usize) {
        let broker = &mut self.brokers[number];
        broker.member_ready = true;
        broker.ready_owners.extend(broker.owners.keys().copied());
    }

    fn mark_due_ready(&mut self, number: usize) {
        let (local_time, owner_time) = (self.local_time(number), self.owner_time(number));
        let broker = &mut self.brokers[number];
        let due = |at: Option<Timestamp>, local_time| at.is_some_and(|at| at <= local_time);
        broker.member_ready |=
            broker.member.as_ref().is_some_and(|member| due(member.wakes_at(), local_time));
        for (partition, held) in &broker.owners {
            if due(held.owner.wakes_at(), owner_time) {
                broker.ready_owners.insert(*partition);
            }
        }
    }

    /// Lets a broker decide and act until nothing is left to do at this moment.
    pub(crate) fn drive(&mut self, number: usize) {
        for turn in 0.. {
            if !matches!(self.brokers[number].state, BrokerState::Runs | BrokerState::Left) {
                return;
            }
            // Replies are collected before the next decisions are made.
            let collected = self.collect(number);
            let acted = self.act_member(number) | self.act_owners(number);
            if !acted && !collected {
                break;
            }
            if turn > TURNS_MAX {
                let observed = format!("b{number} never comes to rest");
                return self.checker.break_promise("no busy loop", observed);
            }
        }
        self.send_answers(number);
        self.notice_recalls(number);
        self.check_gauges(number);
        if self.brokers[number].state == BrokerState::Left
            && self.brokers[number].in_flight_count == 0
        {
            return self.kill(number);
        }
        self.set_alarm(number);
    }

    fn set_alarm(&mut self, number: usize) {
        let now = self.now;
        let ahead = if self.variant == Variant::OwnersAreEarly { EARLY_MS } else { 0 };
        let broker = &mut self.brokers[number];
        let member = broker.member.as_ref().and_then(|member| member.wakes_at());
        let moves = broker.moves.wakes_at();
        let owners = broker.owners.values().filter_map(|held| held.owner.wakes_at());
        let owners = owners.map(|at| at.millis_before(ahead));
        let Some(at) = owners.chain(member).chain(moves).min() else { return };
        let at = broker.clock.true_time_of(at, now).max(now + 1);
        if broker.wakes_at.is_none_or(|known| at < known) {
            broker.wakes_at = Some(at);
            self.events.send(at, Some((number, broker.incarnation)), SimEvent::Wake);
        }
    }

    /// Returns the event, unless the broker is to be paused between a decision and its execution:
    /// then the event goes to the inbox.
    fn pause_if_frozen(
        &mut self,
        number: usize,
        event: impl FnOnce() -> SimEvent,
    ) -> Option<SimEvent> {
        let event = event();
        if self.brokers[number].state != BrokerState::Runs {
            return Some(event);
        }
        let Some(millis) = self.brokers[number].freeze_ms.take() else { return Some(event) };
        self.trace
            .record(self.now, || format!("b{number} is paused before it acts on its decision"));
        let broker = &mut self.brokers[number];
        broker.state = BrokerState::Paused;
        broker.inbox.push_front(event);
        let wake = SimEvent::Fault(crate::faults::SimFault::Wake(number));
        self.events.send(self.now + millis, None, wake);
        None
    }

    fn act_member(&mut self, number: usize) -> bool {
        let local_time = self.local_time(number);
        let broker = &mut self.brokers[number];
        if !std::mem::take(&mut broker.member_ready) {
            return false;
        }
        let Some(member) = &mut broker.member else { return false };
        let actions = member.act(local_time);
        if actions.is_empty() {
            return false;
        }
        if let Some(SimEvent::MemberActs(actions, then)) =
            self.pause_if_frozen(number, || SimEvent::MemberActs(actions, local_time))
        {
            self.perform(number, actions, then);
        }
        true
    }

    fn perform(&mut self, number: usize, actions: Vec<MemberAction>, then: Timestamp) {
        for action in actions {
            match action {
                MemberAction::Directive(directive) => self.run_directive(number, directive),
                sent => self.ask(number, StoreRequest::Member(sent, then)),
            }
        }
    }

    fn act_owners(&mut self, number: usize) -> bool {
        let local_time = self.owner_time(number);
        let mut acted = false;
        while self.brokers[number].state != BrokerState::Paused
            && let Some(partition) = self.brokers[number].ready_owners.pop_first()
        {
            let Some(held) = self.brokers[number].owners.get_mut(&partition) else { continue };
            let epoch = held.epoch;
            let actions = held.owner.act(local_time);
            if actions.is_empty() {
                continue;
            }
            acted = true;
            let event =
                self.pause_if_frozen(number, || SimEvent::OwnerActs(partition, epoch, actions));
            if let Some(SimEvent::OwnerActs(partition, epoch, actions)) = event {
                self.perform_of_owner(number, partition, epoch, actions);
            }
        }
        acted
    }

    fn perform_of_owner(
        &mut self,
        number: usize,
        partition: PartitionId,
        epoch: Epoch,
        actions: Vec<OwnerAction>,
    ) {
        let ends = |action: &OwnerAction| matches!(action, OwnerAction::End | OwnerAction::Stop(_));
        if actions.iter().any(ends) {
            self.brokers[number].ended.insert((partition, epoch));
        }
        for action in actions {
            self.trace.record(self.now, || {
                format!("b{number} {partition} {epoch} does {}", short(&action))
            });
            match action {
                OwnerAction::Deliver(deliveries) => {
                    for delivery in deliveries {
                        self.carry(number, partition, epoch, delivery);
                    }
                }
                OwnerAction::OrphanReport(reports) => {
                    self.pass_on(number, partition, reports, self.forward_until());
                }
                OwnerAction::Stop(_) => {
                    self.on_move(number, MoveEvent::Ended { partition, epoch });
                }
                // The broker ended this owner itself.
                OwnerAction::End => {}
                sent => self.ask(number, StoreRequest::Owner(partition, epoch, sent)),
            }
        }
    }

    /// Collects the replies of owners. Returns whether there were any.
    fn collect(&mut self, number: usize) -> bool {
        let mut collected = false;
        for (partition, epoch, mut in_flight) in std::mem::take(&mut self.brokers[number].stopping)
        {
            match in_flight.try_recv() {
                Err(TryRecvError::Empty) => {
                    self.brokers[number].stopping.push((partition, epoch, in_flight));
                    continue;
                }
                on_reply => {
                    collected = true;
                    // An owner that has ended in the meantime has nothing in flight.
                    let in_flight =
                        on_reply.unwrap_or(Err(EngineError::Stopped)).unwrap_or_default();
                    self.on_move(number, MoveEvent::Stopped { partition, epoch, in_flight });
                }
            }
        }
        for mut open in std::mem::take(&mut self.brokers[number].open) {
            let answer = match open.answers.try_recv() {
                Err(TryRecvError::Empty) => {
                    self.brokers[number].open.push(open);
                    continue;
                }
                Ok(answers) => answers.into_iter().next().unwrap_or(Err(EngineError::Lost)),
                Err(TryRecvError::Closed) => Err(EngineError::Lost),
            };
            collected = true;
            self.answer(number, open, answer);
        }
        collected
    }

    fn answer(&mut self, number: usize, open: OpenCall, answer: Result<Reply, EngineError>) {
        let OpenCall { call, from, command, epoch, .. } = open;
        self.trace
            .record(self.now, || format!("b{number} answers call {call}: {}", short(&answer)));
        self.checker.answered(&command, epoch, &answer, &self.store.disturbed);
        self.record.answered(call, &command, &answer, &self.store, &mut self.checker);
        if from == (number, self.brokers[number].incarnation) {
            return self.on_reply(number, call, answer);
        }
        if self.link_to(number, from.0) == LinkState::Open {
            let at = self.now + self.latency();
            self.events.send(at, Some(from), SimEvent::PeerReply(call, Box::new(answer)));
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Returns the beginning of the debug output of a value.
fn short(event: &impl std::fmt::Debug) -> String {
    let text = format!("{event:?}");
    text.chars().take(220).collect()
}
