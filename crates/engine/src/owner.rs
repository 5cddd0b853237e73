//! The owner of a partition: all that is known about it, and the one door for events.
//!
//! In: an [`Event`] and `now`. Out: [`Action`]s. Invariant: between two calls of [`Owner::on`] nothing is half done.
//! The rooms are
//! `command`, `write`, `load`, `fire`, `deliver`, `settle` and `sweep`, each with its part of the owner's methods.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use punctual_core::{Epoch, PartitionId, Sequence, TaskId, Timestamp};
use punctual_store::StoreError;

use crate::command::{Command, EngineError, Subject};
use crate::deliver::Lanes;
use crate::event::{Action, Event};
use crate::load::Loader;
use crate::memory::Memory;
use crate::recent::{Issued, Recent};
use crate::recover::Possession;
use crate::sweep::Sweeper;
use crate::write::Writer;

/// How long to leave a store alone that could not answer.
pub(crate) const STORE_PAUSE: Duration = Duration::from_millis(100);

/// Decides everything about one partition.
#[derive(Debug)]
pub struct Owner {
    pub(crate) partition: PartitionId,
    pub(crate) epoch: Epoch,
    /// Of the next id; `None` when the epoch is used up.
    pub(crate) sequence: Option<Sequence>,
    pub(crate) memory: Memory,
    pub(crate) loader: Loader,
    pub(crate) lanes: Lanes,
    pub(crate) sweeper: Sweeper,
    pub(crate) writer: Writer,
    pub(crate) recent: Recent,
    /// Commands by whom they are about. The first of a queue is being decided, or is gone and its
    /// decision is on its way.
    pub(crate) queues: HashMap<Subject, VecDeque<Command>>,
    /// Reads about subjects that are under way.
    pub(crate) looks: HashMap<Subject, Issued>,
    /// Subjects to look at again when what is on its way about a task is durable.
    pub(crate) watchers: HashMap<TaskId, Vec<Subject>>,
    /// Tasks that may be received at most once, are named, and are firing. The store has let go of their
    /// names.
    pub(crate) claims: HashMap<Subject, TaskId>,
    pub(crate) actions: Vec<Action>,
    /// What a store that could not answer is asked again, and when.
    pub(crate) later: Vec<(Timestamp, Action)>,
    pub(crate) draining: bool,
    stopped: bool,
}

impl Owner {
    /// An owner that has just taken its partition and knows nothing yet.
    #[must_use]
    pub fn new(possession: Possession, now: Timestamp) -> Self {
        Self {
            partition: possession.partition,
            epoch: possession.epoch,
            sequence: Some(Sequence::FIRST),
            memory: Memory::new(now),
            loader: Loader::new(),
            lanes: Lanes::default(),
            sweeper: Sweeper::new(now),
            writer: Writer::new(),
            recent: Recent::default(),
            queues: HashMap::new(),
            looks: HashMap::new(),
            watchers: HashMap::new(),
            claims: HashMap::new(),
            actions: Vec::new(),
            later: Vec::new(),
            draining: false,
            stopped: false,
        }
    }

    /// Takes in an event.
    pub fn on(&mut self, event: Event, now: Timestamp) {
        if self.stopped {
            if let Event::Command(command) = event {
                command.refuse(EngineError::Stopped);
            }
            return;
        }
        match event {
            Event::Command(command) => self.on_command(command, now),
            Event::Applied(result) => self.on_applied(result, now),
            Event::Loaded(result) => self.on_loaded(result, now),
            Event::Looked { subject, result } => self.on_looked(subject, result, now),
            Event::Ended { delivery, outcome } => self.on_ended(delivery, outcome, now),
            Event::Swept(result) => self.on_swept(result, now),
            Event::Drain => self.draining = true,
        }
    }

    /// Fires what is due and gives out all that is to be done, after the events at hand are taken in.
    pub fn act(&mut self, now: Timestamp) -> Vec<Action> {
        if !self.stopped {
            if !self.draining {
                self.fire(now);
                self.load(now);
                self.sweep(now);
            }
            self.flush();
            let due = self.later.extract_if(.., |(at, _)| *at <= now);
            self.actions.extend(due.map(|(_, action)| action));
        }
        std::mem::take(&mut self.actions)
    }

    /// When [`Owner::act`] has something to do even if no event comes.
    #[must_use]
    pub fn wakes_at(&self) -> Option<Timestamp> {
        if self.stopped {
            return None;
        }
        let later = self.later.iter().map(|(at, _)| *at).min();
        let time = [self.memory.next_due(), self.next_load(), self.sweeper.due()]
            .into_iter()
            .flatten()
            .min();
        let time = time.filter(|_| !self.draining);
        [later, time].into_iter().flatten().min()
    }

    /// Whether nothing is under way that somebody waits for: what was asked for when draining.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.stopped || (self.writer.is_idle() && self.queues.is_empty() && self.inflight() == 0)
    }

    /// Tasks in memory.
    #[must_use]
    pub fn loaded(&self) -> usize {
        self.memory.len()
    }

    /// Nothing is decided from here on.
    pub(crate) fn stop(&mut self, error: StoreError) {
        self.stopped = true;
        tracing::error!(partition = %self.partition, %error, "the owner stops");
        for command in self.queues.drain().flat_map(|(_, queue)| queue) {
            command.refuse(EngineError::Stopped);
        }
        self.actions.push(Action::Stop(error));
    }
}
