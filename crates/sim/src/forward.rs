//! Forwards calls to the owner of their partition, on this broker or on another.
//!
//! The counterpart of `server/src/routing`: a command is sent again only if it certainly was not
//! executed, and for at most [`WAIT_FOR_OWNER_MAX_MS`].

use punctual_core::PartitionId;
use punctual_engine::{
    Call as OwnerCall, Command, EngineError, Event as OwnerEvent, Reply, StartState,
};

use crate::broker::{BrokerState, OpenCall};
use crate::callers::{SimCall, TRIES_MAX};
use crate::event_queue::SimEvent;
use crate::simulation::{LinkState, Simulation};
use crate::variant::Variant;

/// How long a call waits for an owner.
const WAIT_FOR_OWNER_MAX_MS: u64 = 3_000;
/// How long a call may take.
const CALL_MAX_MS: u64 = 5_000;
/// How often a waiting call checks for an owner.
const RETRY_EVERY_MS: u64 = 50;

impl Simulation {
    pub(crate) fn new_call(&mut self, call: SimCall) {
        self.call_number += 1;
        let number = self.call_number;
        self.figures.calls += 1;
        self.record.called(number, &call, &self.store);
        self.calls.insert(number, call);
        self.place_call(number);
    }

    /// Sends a call to a random broker.
    pub(crate) fn place_call(&mut self, number: u64) {
        let takes = |state| matches!(state, BrokerState::Runs | BrokerState::Paused);
        let brokers = self.brokers.iter().enumerate();
        let there: Vec<_> = brokers.filter(|(_, it)| takes(it.state)).map(|(at, _)| at).collect();
        let Some(broker) = self.random.pick(&there) else {
            return self.events.send(self.now + 300, None, SimEvent::CallerRetries(number));
        };
        let incarnation = self.brokers[broker].incarnation;
        let until = self.now + WAIT_FOR_OWNER_MAX_MS;
        let Some(call) = self.calls.get_mut(&number) else { return };
        call.at = Some((broker, incarnation, until));
        call.tries += 1;
        if call.partition.is_none() {
            let here: Vec<_> = self.brokers[broker].owners.keys().copied().collect();
            let all: Vec<_> = self.partitions.iter().collect();
            call.partition = self.random.pick(&here).or_else(|| self.random.pick(&all));
        }
        self.trace.record(self.now, || format!("call {number} at b{broker}: {call:?}"));
        let at = self.now + self.latency();
        self.events.send(at, Some((broker, incarnation)), SimEvent::CallArrived(number));
        self.events.send(self.now + CALL_MAX_MS, None, SimEvent::CallTimedOut(number));
    }

    /// Sends a call to the present owner of its partition.
    pub(crate) fn call_owner(&mut self, number: usize, call: u64) {
        let Some(SimCall {
            command,
            partition: Some(partition),
            at: Some((at, incarnation, _)),
            ..
        }) = self.calls.get(&call)
        else {
            return;
        };
        // The caller has sent the call to another broker since.
        if (*at, *incarnation) != (number, self.brokers[number].incarnation) {
            return;
        }
        let (command, partition, from) = (command.clone(), *partition, (*at, *incarnation));
        if self.brokers[number].owners.contains_key(&partition) {
            return self.call_local_owner(number, from, call, partition, command);
        }
        let Some(peer) = self.remote_owner(number, partition) else {
            return self.not_executed(number, call);
        };
        match self.link_to(number, peer) {
            LinkState::None => self.not_executed(number, call),
            // The reply is lost, and the caller runs into its timeout.
            LinkState::Lost => {}
            LinkState::Open => {
                let at = self.now + self.latency();
                let to = Some((peer, self.brokers[peer].incarnation));
                let command = Box::new(command);
                self.events.send(at, to, SimEvent::PeerCall { from, call, partition, command });
            }
        }
    }

    fn call_local_owner(
        &mut self,
        number: usize,
        from: (usize, u32),
        call: u64,
        partition: PartitionId,
        command: Command,
    ) {
        let Some(epoch) = self.brokers[number].epoch(partition) else { return };
        let mut sent = command.clone();
        if let (Command::Schedule(order), Variant::NothingStartsPaused) = (&mut sent, self.variant)
        {
            order.start = StartState::Scheduled;
        }
        let (sent, answers) = OwnerCall::new(vec![sent]);
        self.brokers[number].open.push(OpenCall { call, from, command, epoch, answers });
        self.notify_owner(number, partition, OwnerEvent::Call(sent));
    }

    pub(crate) fn on_peer_call(
        &mut self,
        number: usize,
        from: (usize, u32),
        call: u64,
        partition: PartitionId,
        command: Command,
    ) {
        if self.brokers[number].owners.contains_key(&partition) {
            return self.call_local_owner(number, from, call, partition, command);
        }
        if self.link_to(number, from.0) == LinkState::Open {
            let at = self.now + self.latency();
            self.events.send(
                at,
                Some(from),
                SimEvent::PeerReply(call, Box::new(Err(EngineError::Stopped))),
            );
        }
    }

    /// Handles the reply of an owner, local or remote.
    pub(crate) fn on_reply(
        &mut self,
        number: usize,
        call: u64,
        answer: Result<Reply, EngineError>,
    ) {
        if answer == Err(EngineError::Stopped) {
            return self.not_executed(number, call);
        }
        self.answer_caller(number, call, answer);
    }

    /// Tries a call again that certainly was not executed, until the wait for an owner is over.
    fn not_executed(&mut self, number: usize, call: u64) {
        let Some(SimCall { at: Some((at, incarnation, until)), .. }) = self.calls.get(&call) else {
            return;
        };
        if (*at, *incarnation) != (number, self.brokers[number].incarnation) {
            return;
        }
        if self.now < *until {
            let to = Some((*at, *incarnation));
            return self.events.send(self.now + RETRY_EVERY_MS, to, SimEvent::RetryCall(call));
        }
        self.answer_caller(number, call, Err(EngineError::Stopped));
    }

    fn answer_caller(&mut self, number: usize, call: u64, answer: Result<Reply, EngineError>) {
        let sent = self.calls.get(&call).and_then(|call| call.at);
        if sent.is_some_and(|(at, incarnation, _)| {
            (at, incarnation) == (number, self.brokers[number].incarnation)
        }) {
            let at = self.now + self.latency();
            self.events.send(at, None, SimEvent::CallerAnswered(call, Box::new(answer)));
        }
    }

    /// Handles an answer at a caller.
    pub(crate) fn on_answer(&mut self, number: u64, answer: Result<Reply, EngineError>) {
        let Some(call) = self.calls.get_mut(&number) else { return };
        let not_executed = matches!(
            answer,
            Err(EngineError::Stopped | EngineError::StoreUnavailable | EngineError::Busy)
        );
        let unknown = answer == Err(EngineError::Lost) && call.repeatable;
        if (not_executed || unknown) && call.tries < TRIES_MAX {
            call.at = None;
            let at = self.now + self.random.between(50, 500);
            return self.events.send(at, None, SimEvent::CallerRetries(number));
        }
        self.calls.remove(&number);
    }

    /// Handles the timeout of a caller: it is not known whether the command was executed.
    pub(crate) fn on_call_timeout(&mut self, number: u64) {
        let Some(SimCall { at: Some((_, _, until)), .. }) = self.calls.get(&number) else { return };
        // The timeout may belong to an earlier try.
        if until + (CALL_MAX_MS - WAIT_FOR_OWNER_MAX_MS) <= self.now {
            self.on_answer(number, Err(EngineError::Lost));
        }
    }
}
