//! Forwarding: a call finds the owner of its partition, here or at another broker.
//!
//! The counterpart of `server/src/owners.rs`: asked again only if it is certain that nothing was done, and no longer than [`ASK_MAX_MS`].

use punctual_core::PartitionId;
use punctual_engine::{Call as OwnerCall, Command, EngineError, Event as ToOwner, Reply};

use crate::broker::{Open, Standing};
use crate::callers::{Call, TRIES_MAX};
use crate::mail::What;
use crate::world::{Passage, World};

/// How long a call looks for somebody to ask.
const ASK_MAX_MS: u64 = 3_000;
/// How long it takes altogether.
const ANSWER_MAX_MS: u64 = 5_000;
/// How often it looks.
const LOOK_EVERY_MS: u64 = 50;

impl World {
    pub(crate) fn new_call(&mut self, call: Call) {
        self.call_number += 1;
        let number = self.call_number;
        self.figures.calls += 1;
        self.calls.insert(number, call);
        self.place_call(number);
    }

    /// A caller turns to some broker.
    pub(crate) fn place_call(&mut self, number: u64) {
        let takes = |standing| matches!(standing, Standing::Runs | Standing::Paused);
        let brokers = self.brokers.iter().enumerate();
        let there: Vec<_> =
            brokers.filter(|(_, it)| takes(it.standing)).map(|(at, _)| at).collect();
        let Some(broker) = self.dice.pick(&there) else {
            return self.mail.send(self.now + 300, None, What::CallAgain(number));
        };
        let life = self.brokers[broker].life;
        let until = self.now + ASK_MAX_MS;
        let Some(call) = self.calls.get_mut(&number) else { return };
        call.at = Some((broker, life, until));
        call.tries += 1;
        if call.partition.is_none() {
            let here: Vec<_> = self.brokers[broker].owners.keys().copied().collect();
            let all: Vec<_> = self.partitions.iter().collect();
            call.partition = self.dice.pick(&here).or_else(|| self.dice.pick(&all));
        }
        self.story.tell(self.now, || format!("call {number} at b{broker}: {call:?}"));
        let at = self.now + self.travel();
        self.mail.send(at, Some((broker, life)), What::Called(number));
        self.mail.send(self.now + ANSWER_MAX_MS, None, What::CallOver(number));
    }

    /// A broker asks whoever owns the partition of a call now.
    pub(crate) fn ask_once(&mut self, number: usize, call: u64) {
        let Some(Call { command, partition: Some(partition), at: Some((at, life, _)), .. }) =
            self.calls.get(&call)
        else {
            return;
        };
        // The caller has turned to another.
        if (*at, *life) != (number, self.brokers[number].life) {
            return;
        }
        let (command, partition, from) = (command.clone(), *partition, (*at, *life));
        if self.brokers[number].owners.contains_key(&partition) {
            return self.ask_here(number, from, call, partition, command);
        }
        let Some(peer) = self.elsewhere(number, partition) else {
            return self.undone(number, call);
        };
        match self.way_to(number, peer) {
            Passage::None => self.undone(number, call),
            // What came of it nobody knows: the caller waits for it in vain.
            Passage::Lost => {}
            Passage::Open => {
                let at = self.now + self.travel();
                let to = Some((peer, self.brokers[peer].life));
                let command = Box::new(command);
                self.mail.send(at, to, What::Asked { from, call, partition, command });
            }
        }
    }

    fn ask_here(
        &mut self,
        number: usize,
        from: (usize, u32),
        call: u64,
        partition: PartitionId,
        command: Command,
    ) {
        let Some(epoch) = self.brokers[number].epoch(partition) else { return };
        let (asked, answers) = OwnerCall::new(vec![command.clone()]);
        self.brokers[number].open.push(Open { call, from, command, epoch, answers });
        self.tell_owner(number, partition, ToOwner::Call(asked));
    }

    pub(crate) fn asked_by_peer(
        &mut self,
        number: usize,
        from: (usize, u32),
        call: u64,
        partition: PartitionId,
        command: Command,
    ) {
        if self.brokers[number].owners.contains_key(&partition) {
            return self.ask_here(number, from, call, partition, command);
        }
        if self.way_to(number, from.0) == Passage::Open {
            let at = self.now + self.travel();
            self.mail.send(at, Some(from), What::Reply(call, Box::new(Err(EngineError::Stopped))));
        }
    }

    /// An owner has answered, here or elsewhere.
    pub(crate) fn told(&mut self, number: usize, call: u64, answer: Result<Reply, EngineError>) {
        if answer == Err(EngineError::Stopped) {
            return self.undone(number, call);
        }
        self.tell_caller(number, call, answer);
    }

    /// Nobody has done anything: it is asked again, for a while.
    fn undone(&mut self, number: usize, call: u64) {
        let Some(Call { at: Some((at, life, until)), .. }) = self.calls.get(&call) else { return };
        if (*at, *life) != (number, self.brokers[number].life) {
            return;
        }
        if self.now < *until {
            let to = Some((*at, *life));
            return self.mail.send(self.now + LOOK_EVERY_MS, to, What::AskAgain(call));
        }
        self.tell_caller(number, call, Err(EngineError::Stopped));
    }

    fn tell_caller(&mut self, number: usize, call: u64, answer: Result<Reply, EngineError>) {
        let asked = self.calls.get(&call).and_then(|call| call.at);
        if asked.is_some_and(|(at, life, _)| (at, life) == (number, self.brokers[number].life)) {
            let at = self.now + self.travel();
            self.mail.send(at, None, What::Heard(call, Box::new(answer)));
        }
    }

    /// A caller hears an answer.
    pub(crate) fn heard(&mut self, number: u64, answer: Result<Reply, EngineError>) {
        let Some(call) = self.calls.get_mut(&number) else { return };
        let undone =
            matches!(answer, Err(EngineError::Stopped | EngineError::Away | EngineError::Busy));
        let unknown = answer == Err(EngineError::Lost) && call.repeatable;
        if (undone || unknown) && call.tries < TRIES_MAX {
            call.at = None;
            let at = self.now + self.dice.between(50, 500);
            return self.mail.send(at, None, What::CallAgain(number));
        }
        self.calls.remove(&number);
    }

    /// A caller waits no longer: what came of it is not known.
    pub(crate) fn call_over(&mut self, number: u64) {
        let Some(Call { at: Some((_, _, until)), .. }) = self.calls.get(&number) else { return };
        // It may be of an earlier try.
        if until + (ANSWER_MAX_MS - ASK_MAX_MS) <= self.now {
            self.heard(number, Err(EngineError::Lost));
        }
    }
}
