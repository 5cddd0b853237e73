//! Calls: commands that came together, and their answers on the way back.
//!
//! In: a [`Call`] of one command or of ten thousand. Out: one answer each, in order, sent when the last of them is known. A caller
//! who has gone away is no error.
//! Invariant: every command is answered exactly once, also when the owner stops.

use slab::Slab;
use tokio::sync::oneshot;

use crate::handle::command::{Command, EngineError, Reply};

/// The answers to a call, one for each command, in order.
pub type Replies = Vec<Result<Reply, EngineError>>;

/// Commands that came together.
#[derive(Debug)]
pub struct Call {
    /// What is wanted.
    pub commands: Vec<Command>,
    /// To whom all answers go.
    pub reply: oneshot::Sender<Replies>,
}

impl Call {
    /// A call, and where its answers arrive.
    #[must_use]
    pub fn new(commands: Vec<Command>) -> (Self, oneshot::Receiver<Replies>) {
        let (reply, answers) = oneshot::channel();
        (Self { commands, reply }, answers)
    }

    /// Replies all of it at once.
    pub(crate) fn refuse(self, error: &EngineError) {
        let answers = self.commands.iter().map(|_| Err(error.clone())).collect();
        let _ = self.reply.send(answers);
    }
}

/// Where one answer belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReplyTo {
    call: usize,
    index: usize,
}

/// Calls that are not answered yet.
#[derive(Debug, Default)]
pub(crate) struct Calls(Slab<Open>);

#[derive(Debug)]
struct Open {
    answers: Vec<Option<Result<Reply, EngineError>>>,
    missing: usize,
    reply: oneshot::Sender<Replies>,
}

impl Calls {
    /// Takes a call in. Out: its commands, each with where its answer belongs.
    pub(crate) fn open(&mut self, call: Call) -> impl Iterator<Item = (Command, ReplyTo)> + use<> {
        let Call { commands, reply } = call;
        let missing = commands.len();
        let answers = (0..missing).map(|_| None).collect();
        let call = self.0.insert(Open { answers, missing, reply });
        let places = commands.into_iter().enumerate();
        places.map(move |(index, command)| (command, ReplyTo { call, index }))
    }

    /// Gives one answer; with the last one the call is answered.
    pub(crate) fn answer(&mut self, to: ReplyTo, answer: Result<Reply, EngineError>) {
        let open = &mut self.0[to.call];
        let place = &mut open.answers[to.index];
        assert!(place.is_none(), "a command was answered twice");
        *place = Some(answer);
        open.missing -= 1;
        if open.missing == 0 {
            let open = self.0.remove(to.call);
            let _ = open.reply.send(open.answers.into_iter().flatten().collect());
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Replies all that is open: what has no answer yet is [`EngineError::Lost`].
    pub(crate) fn lose_all(&mut self) {
        for Open { answers, reply, .. } in self.0.drain() {
            let answers =
                answers.into_iter().map(|answer| answer.unwrap_or(Err(EngineError::Lost)));
            let _ = reply.send(answers.collect());
        }
    }
}

#[cfg(test)]
mod tests {
    use punctual_core::{Namespace, TaskId, Timestamp};

    use super::*;
    use crate::handle::command::Subject;

    #[test]
    fn a_call_is_answered_in_order_when_its_last_answer_is_known() {
        let mut calls = Calls::default();
        let get = || {
            let namespace = Namespace::new("shop").unwrap();
            Command::Get(Subject::Id(namespace, TaskId::floor(Timestamp::EPOCH)))
        };
        let (call, mut answers) = Call::new(vec![get(), get()]);
        let places: Vec<_> = calls.open(call).map(|(_, place)| place).collect();
        calls.answer(places[1], Err(EngineError::Busy));
        assert!(answers.try_recv().is_err());
        calls.answer(places[0], Err(EngineError::NotFound));
        let answers = answers.try_recv().unwrap();
        assert_eq!(answers, [Err(EngineError::NotFound), Err(EngineError::Busy)]);
        assert!(calls.is_empty());
    }
}
