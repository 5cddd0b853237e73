//! Calls: commands that arrived together, and their replies.
//!
//! A [`Call`] carries one command or many; its replies are sent together, in the order of the
//! commands, when the last one is known. Every command is answered exactly once, also when the
//! owner stops. A caller that no longer waits is not an error.

use slab::Slab;
use tokio::sync::oneshot;

use crate::handle::command::{Command, Subject};
use crate::handle::error::EngineError;
use crate::handle::reply::Reply;

/// The replies to a call, one for each command, in order.
pub type Replies = Vec<Result<Reply, EngineError>>;

/// Commands that arrived together.
#[derive(Debug)]
pub struct Call {
    /// The commands, decided in this order where they are about the same task.
    pub commands: Vec<Command>,
    /// Receives all replies at once.
    pub reply: oneshot::Sender<Replies>,
}

impl Call {
    /// Creates a call and the receiver of its replies.
    #[must_use]
    pub fn new(commands: Vec<Command>) -> (Self, oneshot::Receiver<Replies>) {
        let (reply, replies) = oneshot::channel();
        (Self { commands, reply }, replies)
    }

    /// Answers all commands with an error.
    pub(crate) fn refuse(self, error: &EngineError) {
        let replies = self.commands.iter().map(|_| Err(error.clone())).collect();
        let _ = self.reply.send(replies);
    }
}

/// Identifies one command of a pending call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReplyTo {
    call: usize,
    index: usize,
}

/// For whom a command is decided, and about which task.
#[derive(Debug, Clone)]
pub(crate) struct Requester {
    /// `None` if the command is the owner's own.
    pub(crate) reply: Option<ReplyTo>,
    /// `None` if no other command can be about the same task.
    pub(crate) subject: Option<Subject>,
}

/// Calls that are not answered yet.
#[derive(Debug, Default)]
pub(crate) struct PendingCalls(Slab<PendingCall>);

#[derive(Debug)]
struct PendingCall {
    replies: Vec<Option<Result<Reply, EngineError>>>,
    missing: usize,
    reply: oneshot::Sender<Replies>,
}

impl PendingCalls {
    /// Registers a call and returns its commands, each with the address of its reply.
    pub(crate) fn open(&mut self, call: Call) -> impl Iterator<Item = (Command, ReplyTo)> + use<> {
        let Call { commands, reply } = call;
        let missing = commands.len();
        let replies = (0..missing).map(|_| None).collect();
        let call = self.0.insert(PendingCall { replies, missing, reply });
        let commands = commands.into_iter().enumerate();
        commands.map(move |(index, command)| (command, ReplyTo { call, index }))
    }

    /// Records one reply. With the last one, the call is answered.
    pub(crate) fn answer(&mut self, to: ReplyTo, reply: Result<Reply, EngineError>) {
        let pending = &mut self.0[to.call];
        let slot = &mut pending.replies[to.index];
        assert!(slot.is_none(), "a command was answered twice");
        *slot = Some(reply);
        pending.missing -= 1;
        if pending.missing == 0 {
            let pending = self.0.remove(to.call);
            let _ = pending.reply.send(pending.replies.into_iter().flatten().collect());
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Answers every pending call; commands without a reply get [`EngineError::Lost`].
    pub(crate) fn lose_all(&mut self) {
        for PendingCall { replies, reply, .. } in self.0.drain() {
            let replies = replies.into_iter().map(|reply| reply.unwrap_or(Err(EngineError::Lost)));
            let _ = reply.send(replies.collect());
        }
    }
}

#[cfg(test)]
mod tests {
    use punctual_core::{Namespace, TaskId, Timestamp};

    use super::*;

    #[test]
    fn a_call_is_answered_in_order_when_its_last_reply_is_known() {
        let mut calls = PendingCalls::default();
        let get = || {
            let namespace = Namespace::new("shop").unwrap();
            Command::Get(Subject::Id(namespace, TaskId::floor(Timestamp::EPOCH)))
        };
        let (call, mut replies) = Call::new(vec![get(), get()]);
        let addresses: Vec<_> = calls.open(call).map(|(_, address)| address).collect();
        calls.answer(addresses[1], Err(EngineError::Busy));
        assert!(replies.try_recv().is_err());
        calls.answer(addresses[0], Err(EngineError::NotFound));
        let replies = replies.try_recv().unwrap();
        assert_eq!(replies, [Err(EngineError::NotFound), Err(EngineError::Busy)]);
        assert!(calls.is_empty());
    }
}
