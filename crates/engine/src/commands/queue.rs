//! A queued command: of a caller, or the owner's own, which needs a lookup in the same order.

use punctual_core::FireId;

use crate::commands::lookup::{Lookup, LookupDepth};
use crate::handle::call::ReplyTo;
use crate::handle::command::{Command, Subject};
use crate::ownership::in_flight::{InFlight, StoredAs};

/// A command that waits for its turn.
#[derive(Debug)]
pub(crate) struct QueuedCommand {
    work: QueuedWork,
    /// `None` if the command is the owner's own.
    reply: Option<ReplyTo>,
}

/// What a queued command does.
#[derive(Debug)]
pub(crate) enum QueuedWork {
    /// The command of a caller.
    Caller(Command),
    /// Hold the task in memory if it is due before the horizon.
    Load,
    /// A claimed fire was not sent: store its task again, unless its key was given to another.
    PutBack(FireId),
    /// Count a delivery at another broker as in flight here.
    Adopt(Box<InFlight>),
}

impl QueuedCommand {
    pub(crate) const fn of_caller(command: Command, reply: Option<ReplyTo>) -> Self {
        Self { work: QueuedWork::Caller(command), reply }
    }

    /// A command of the owner's own.
    pub(crate) const fn own(work: QueuedWork) -> Self {
        Self { work, reply: None }
    }

    pub(crate) const fn reply(&self) -> Option<ReplyTo> {
        self.reply
    }

    /// Returns where the task goes, if the command is a caller's that only reads it.
    pub(crate) const fn as_read(&self) -> Option<ReplyTo> {
        match &self.work {
            QueuedWork::Caller(Command::Get(_)) => self.reply,
            _ => None,
        }
    }

    pub(crate) fn into_parts(self) -> (QueuedWork, Option<ReplyTo>) {
        (self.work, self.reply)
    }

    /// Returns the delivery at another broker that the command is about.
    pub(crate) const fn adoption(&self) -> Option<&InFlight> {
        match &self.work {
            QueuedWork::Adopt(delivery) => Some(delivery),
            _ => None,
        }
    }

    /// Returns what must be read to decide the command.
    pub(crate) fn lookup(&self, subject: &Subject) -> Lookup {
        let receipt = match &self.work {
            QueuedWork::Caller(Command::Schedule(schedule)) => schedule.receipt_subject(),
            _ => None,
        };
        let (depth, letter) = match &self.work {
            QueuedWork::Caller(Command::Touch(..)) | QueuedWork::PutBack(_) => {
                (LookupDepth::Head, None)
            }
            QueuedWork::Caller(Command::Cancel(_)) => (LookupDepth::TaskOrLastFire, None),
            QueuedWork::Caller(
                Command::Redrive { fire_id, .. } | Command::DeleteLetter { fire_id, .. },
            ) => (LookupDepth::Task, Some(*fire_id)),
            QueuedWork::Adopt(delivery) => match delivery.stored_as {
                StoredAs::Filed => (LookupDepth::Task, None),
                StoredAs::Claimed { .. } => (LookupDepth::Head, Some(delivery.fire_id)),
            },
            QueuedWork::Caller(_) | QueuedWork::Load => (LookupDepth::Task, None),
        };
        // A task without a key is looked up by its receipt.
        let receipt = receipt.filter(|receipt| receipt != subject);
        Lookup { subject: subject.clone(), depth, letter, receipt }
    }
}
