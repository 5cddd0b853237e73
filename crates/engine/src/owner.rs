//! The owner of a partition: all that is known about it, and the one door for events.
//!
//! In: an [`Event`] and `now`. Out: [`Action`]s. Invariant: between two calls of [`Owner::on`] nothing is half done.
//! The rooms are
//! `command`, `look`, `write`, `load`, `fire`, `deliver`, `settle` and `sweep`, each with its part of the owner's methods.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use punctual_core::{Epoch, PartitionId, Sequence, TaskId, Timestamp};
use punctual_store::StoreError;
use rapidhash::fast::RandomState;

use crate::commands::lookup::Lookup;
use crate::commands::read_tracker::{ReadToken, ReadTracker};
use crate::commit::writer::Writer;
use crate::delivery::claim::Claims;
use crate::delivery::deliver::Delivery;
use crate::delivery::lane::{LaneId, Lanes};
use crate::event::{Action, Event};
use crate::gauges::Skips;
use crate::handle::call::Calls;
use crate::handle::command::{EngineError, Queued, Subject};
use crate::loaded::loader::Loader;
use crate::loaded::tasks::Memory;
use crate::ownership::hand_over::{HandOver, Inherited};
use crate::ownership::lease::Lease;
use crate::ownership::recover::Ownership;
use crate::ownership::sweep::Sweeper;
use crate::shell::thread::OwnerConfig;

/// How long to leave a store alone that could not answer.
pub(crate) const STORE_PAUSE: Duration = Duration::from_millis(100);

/// Decides everything about one partition.
#[derive(Debug)]
pub struct Owner {
    pub(crate) partition: PartitionId,
    pub(crate) epoch: Epoch,
    pub(crate) lease: Lease,
    /// Of the next id; `None` when the epoch is used up.
    pub(crate) sequence: Option<Sequence>,
    pub(crate) memory: Memory,
    pub(crate) loader: Loader,
    pub(crate) lanes: Lanes,
    pub(crate) sweeper: Sweeper,
    pub(crate) writer: Writer,
    pub(crate) recent: ReadTracker,
    /// What may be received at most once and is on its way.
    pub(crate) claims: Claims,
    /// What is under way at other brokers.
    pub(crate) inherited: Inherited,
    /// What policies have left out.
    pub(crate) skips: Skips,
    /// Who waits for answers.
    pub(crate) calls: Calls,
    /// Commands by whom they are about. The first of a queue is being decided, or is gone and its
    /// decision is on its way.
    pub(crate) queues: HashMap<Subject, VecDeque<Queued>, RandomState>,
    /// Reads about subjects that are under way.
    pub(crate) lookups: HashMap<Subject, ReadToken, RandomState>,
    /// Reads that go out at the end of this turn.
    pub(crate) lookups_wanted: Vec<Lookup>,
    /// Subjects to look at again when what is on its way about a task is durable.
    pub(crate) watchers: HashMap<TaskId, Vec<Subject>, RandomState>,
    /// Subjects to look at again when the store has all batches that it had forgotten.
    pub(crate) under_repair: Vec<Subject>,
    /// Deliveries that go out at the end of this turn.
    pub(crate) outbox: Vec<Delivery>,
    /// When lanes are looked over for such that nobody serves.
    pub(crate) parks_at: Timestamp,
    pub(crate) actions: Vec<Action>,
    /// What a store that could not answer is asked again, and when.
    pub(crate) later: Vec<(Timestamp, Action)>,
    /// The store did not answer when it was asked last; it is being asked again.
    pub(crate) away: bool,
    pub(crate) draining: bool,
    pub(crate) handing_over: Option<HandOver>,
    stopped: bool,
}

impl Owner {
    /// An owner that has just taken its partition and knows nothing yet.
    #[must_use]
    pub fn new(ownership: Ownership, terms: OwnerConfig, now: Timestamp) -> Self {
        Self {
            partition: ownership.partition,
            epoch: ownership.epoch,
            lease: Lease::new(ownership.until),
            sequence: Some(Sequence::FIRST),
            memory: Memory::new(terms.budget, now),
            loader: Loader::new(),
            lanes: Lanes::default(),
            sweeper: Sweeper::new(now),
            writer: Writer::new(terms.keeps_batches),
            recent: ReadTracker::default(),
            claims: Claims::default(),
            inherited: Inherited::default(),
            skips: Skips::default(),
            calls: Calls::default(),
            queues: HashMap::default(),
            lookups: HashMap::default(),
            lookups_wanted: Vec::new(),
            watchers: HashMap::default(),
            under_repair: Vec::new(),
            outbox: Vec::new(),
            parks_at: now,
            actions: Vec::new(),
            later: Vec::new(),
            away: false,
            draining: false,
            handing_over: None,
            stopped: false,
        }
    }

    /// Takes in an event.
    pub fn on(&mut self, event: Event, now: Timestamp) {
        if self.stopped {
            return self.on_afterwards(event);
        }
        let Some(event) = self.unless_adopting(event) else {
            return;
        };
        if let Some(answers) = event.store_answers() {
            self.away = !answers;
        }
        match event {
            Event::Call(call) if self.draining => call.refuse(&EngineError::Stopped),
            Event::Call(call) => self.on_call(call, now),
            Event::Applied(result) => self.on_applied(result, now),
            Event::Loaded(result) => self.on_loaded(result, now),
            Event::LookupResult(looked) => self.on_lookup_result(looked, now),
            Event::Ended(reports) => self.on_ended(reports, now),
            Event::Capacity { namespace, queue, room } => {
                self.lanes.give_room(LaneId::of_queue(namespace, queue), room, now);
            }
            Event::Swept(result) => self.on_swept(result, now),
            Event::Gauge(namespace, reply) => {
                // One who has gone away is no error.
                let _ = reply.send(self.gauges(namespace.as_ref(), now));
            }
            Event::Drain => self.draining = true,
            Event::Extend(until) => self.on_extend(until),
            Event::HandOver(reply) => self.on_hand_over(reply, now),
            Event::End => self.end(),
        }
    }

    /// After the end nothing is done, and nothing falls between: who comes next is asked, or told.
    fn on_afterwards(&mut self, event: Event) {
        match event {
            Event::Call(call) => call.refuse(&EngineError::Stopped),
            Event::Ended(reports) => self.stray(reports),
            // Whoever waits for an answer learns it by the end of the way back.
            _ => {}
        }
    }

    /// Fires what is due and gives out all that is to be done, after the events at hand are taken in.
    pub fn act(&mut self, now: Timestamp) -> Vec<Action> {
        if !self.stopped {
            let acts = self.check_lease(now) && !self.inherited.is_pending();
            if acts {
                self.expire_adopted(now);
            }
            self.take_effect(now);
            if acts && !self.draining {
                self.fire(now);
                self.deliver(now);
                self.park(now);
                self.load(now);
                self.sweep(now);
            }
            self.send_outbox(now);
            self.send_looks();
            if acts && self.writer.confirms_at().is_some_and(|at| at <= now) {
                self.writer.confirm();
            }
            self.flush();
            let due = self.later.extract_if(.., |(at, _)| *at <= now);
            self.actions.extend(due.map(|(_, action)| action));
            self.hand_over(now);
            self.writer.forget(now);
        }
        std::mem::take(&mut self.actions)
    }

    /// When [`Owner::act`] has something to do even if no event comes.
    #[must_use]
    pub fn wakes_at(&self) -> Option<Timestamp> {
        if self.stopped {
            return None;
        }
        if self.is_busy() {
            return Some(self.memory.time());
        }
        let later = self.later.iter().map(|(at, _)| *at).min();
        let parks_at = self.lanes.starved.then_some(self.parks_at);
        let time = [self.memory.next_due(), self.next_load(), self.sweeper.due(), parks_at]
            .into_iter()
            .flatten()
            .min();
        let time = time.filter(|_| !self.draining);
        let time = [time, self.next_adopted_end(), self.writer.confirms_at()];
        let time = time.into_iter().flatten().min();
        // What is due while nothing may be done is no reason to wake up.
        let time = time.filter(|_| self.acts());
        let handing_over = self.handing_over.as_ref().map(HandOver::wakes_at);
        [later, time, handing_over].into_iter().flatten().min()
    }

    /// Whether the last turn left something over that can be done at once.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        let due = self.memory.has_rung() || self.lanes.has_ready();
        !self.stopped && (self.writer.is_behind() || (due && !self.draining && self.acts()))
    }

    /// Whether it may act, as far as it knows.
    fn acts(&self) -> bool {
        !self.lease.lapsed && !self.inherited.is_pending()
    }

    /// Whether nothing is under way that somebody waits for: what was asked for when draining.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        let waits = self.inherited.is_pending() || self.handing_over.is_some();
        let idle = self.writer.is_idle() && self.calls.is_empty() && self.lanes.inflight == 0;
        self.stopped || (idle && !waits)
    }

    /// Tasks in memory.
    #[must_use]
    pub fn loaded(&self) -> usize {
        self.memory.len()
    }

    /// Stops: the store does not let it go on.
    pub(crate) fn stop(&mut self, error: StoreError) {
        tracing::error!(partition = %self.partition, %error, "the owner stops");
        self.close();
        self.actions.push(Action::Stop(error));
    }

    /// Stops because it was told to.
    pub(crate) fn end(&mut self) {
        self.close();
        self.actions.push(Action::End);
    }

    /// Nothing is decided from here on, and everybody is told what came of what they wanted: nothing, or, if it may be on its way
    /// to the store, that it is not known.
    fn close(&mut self) {
        self.stopped = true;
        self.answer_durable();
        let undecided = self.queues.drain().flat_map(|(_, queue)| queue).filter_map(Queued::reply);
        let unsent = self.writer.take_unsent();
        let unsent = unsent.into_iter().filter_map(|decision| decision.asked?.reply);
        for reply in undecided.chain(unsent) {
            self.calls.answer(reply, Err(EngineError::Stopped));
        }
        self.calls.lose_all();
        for event in self.take_held_back() {
            self.on_afterwards(event);
        }
        // Dropped before its time, a hand-over has nothing to give.
        if let Some(reports) = self.handing_over.take().map(HandOver::fail) {
            self.stray(reports);
        }
    }
}
