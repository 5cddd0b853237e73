//! Commands are decided one at a time per task, against what the store has.
//!
//! A call arrives in `decide`, which queues its commands by subject; `lookup` reads what the store
//! has about a subject; then the command is decided in the file of its verb. Commands about one
//! subject are decided in the order in which they arrived, each after the one before is durable.

pub(crate) mod cancel;
pub(crate) mod decide;
pub(crate) mod idempotency;
pub(crate) mod lookup;
pub(crate) mod lookup_results;
pub(crate) mod pause;
pub(crate) mod queue;
pub(crate) mod read_tracker;
pub(crate) mod redrive;
pub(crate) mod schedule;
pub(crate) mod touch;

use std::collections::{HashMap, VecDeque};

use punctual_core::TaskId;
use rapidhash::fast::RandomState;

use crate::commands::lookup::Lookup;
use crate::commands::queue::QueuedCommand;
use crate::commands::read_tracker::ReadToken;
use crate::handle::call::{PendingCalls, ReplyTo};
use crate::handle::command::Subject;
use crate::handle::error::EngineError;
use crate::handle::reply::Reply;
use crate::ownership::in_flight::InFlight;

/// Pending calls, the queues of their commands, and the lookups that these need.
#[derive(Debug, Default)]
pub(crate) struct Commands {
    calls: PendingCalls,
    /// Commands by subject. Each command needs its subject here three times, so the lookup in
    /// flight is part of the queue.
    queues: HashMap<Subject, SubjectQueue, RandomState>,
    /// Lookups that are sent at the end of this turn.
    lookups_wanted: Vec<Lookup>,
    /// Subjects to look up again when no decision about a task is pending.
    watchers: HashMap<TaskId, Vec<Subject>, RandomState>,
    /// Subjects to look up again when the store has every batch that it had lost.
    under_repair: Vec<Subject>,
}

/// The commands about one subject.
#[derive(Debug)]
struct SubjectQueue {
    /// In arrival order. The first is being looked up, or was taken and its decision is not
    /// durable.
    commands: VecDeque<QueuedCommand>,
    /// The lookup in flight.
    lookup: Option<ReadToken>,
}

impl Commands {
    /// Whether no command is queued or being decided.
    pub(crate) fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    pub(crate) fn has_pending_calls(&self) -> bool {
        !self.calls.is_empty()
    }

    pub(crate) fn reply(&mut self, to: ReplyTo, reply: Result<Reply, EngineError>) {
        self.calls.answer(to, reply);
    }

    /// Answers all pending calls: queued commands and `unsent` ones are not carried out, and it is
    /// not known whether the others are.
    pub(crate) fn refuse_all(&mut self, unsent: impl Iterator<Item = ReplyTo>) {
        let queued = self.queues.drain().flat_map(|(_, queue)| queue.commands);
        for reply in queued.filter_map(|command| command.reply()).chain(unsent) {
            self.calls.answer(reply, Err(EngineError::Stopped));
        }
        self.calls.lose_all();
    }

    /// Answers what callers want of a subject as not carried out, all of it, so that a caller that
    /// tries again does so in the same order. The owner's own commands stay.
    fn refuse_queued(&mut self, subject: &Subject) {
        let Some(SubjectQueue { commands: queue, .. }) = self.queues.get_mut(subject) else {
            return;
        };
        let (refused, own): (VecDeque<_>, VecDeque<_>) =
            std::mem::take(queue).into_iter().partition(|command| command.reply().is_some());
        *queue = own;
        for reply in refused.into_iter().filter_map(|command| command.reply()) {
            self.calls.answer(reply, Err(EngineError::Stopped));
        }
    }

    /// Returns the lookup that the first command about a subject needs.
    fn first_lookup(&self, subject: &Subject) -> Option<Lookup> {
        let first = self.queues.get(subject)?.commands.front()?;
        Some(first.lookup(subject))
    }

    /// Returns the deliveries in flight at another broker whose lookups are pending.
    pub(crate) fn adoptions(&self) -> impl Iterator<Item = &InFlight> {
        let commands = self.queues.values().flat_map(|queue| &queue.commands);
        commands.filter_map(QueuedCommand::adoption)
    }

    /// Returns the subjects to look up again after a repair.
    pub(crate) fn take_under_repair(&mut self) -> Vec<Subject> {
        std::mem::take(&mut self.under_repair)
    }
}
