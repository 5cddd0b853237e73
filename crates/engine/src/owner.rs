//! The owner of a partition: its state, in parts, and the order in which it works.
//!
//! [`Owner::on`] takes an event and `now`; [`Owner::act`] fires what is due and returns the actions
//! that the shell carries out. Between two calls nothing is half done. Each folder keeps its part
//! of the state private and adds the steps that need several parts as methods of the owner.

use std::time::Duration;

use punctual_core::{Namespace, RenderRecord, Timestamp};
use punctual_store::{Retention, StoreError};

use crate::commands::Commands;
use crate::commands::read_tracker::ReadTracker;
use crate::commit::writer::BatchWriter;
use crate::delivery::DeliveryState;
use crate::delivery::lane::LaneId;
use crate::delivery::lane_view::{LaneQuery, OwnerView};
use crate::event::{Action, ActionQueue, Event};
use crate::gauges::Gauges;
use crate::handle::error::EngineError;
use crate::idle::IdleWaiters;
use crate::loaded::budget::Budget;
use crate::loaded::loader::{AHEAD, Loader};
use crate::loaded::tasks::LoadedTasks;
use crate::ownership::Tenure;
use crate::ownership::recover::Ownership;

/// Settings of an owner.
#[derive(Debug, Clone, Copy)]
pub struct OwnerConfig {
    /// How long history and dead letters are kept.
    pub retention: Retention,
    /// What may be held in memory.
    pub budget: Budget,
    /// Whether batches are retained for a while after the store has acknowledged them: for a store
    /// that may lose them when it fails over (Redis).
    pub retains_batches: bool,
    /// Writes the record of a fire as the payload of a callback.
    pub render_record: RenderRecord,
    /// How far ahead of time tasks are loaded into memory, unless it is short.
    pub load_ahead: Duration,
}

impl OwnerConfig {
    /// How far ahead an owner loads that follows the time of the machine.
    pub const LOAD_AHEAD: Duration = AHEAD;
}

/// Decides everything about one partition.
#[derive(Debug)]
pub struct Owner {
    /// The right to act: partition, epoch, lease, drain and hand-over.
    pub(crate) tenure: Tenure,
    /// Pending calls, commands in order, and their lookups.
    pub(crate) commands: Commands,
    /// Which reads of the store are out of date.
    pub(crate) reads: ReadTracker,
    /// Decisions that are not durable, or have not taken effect.
    pub(crate) writer: BatchWriter,
    /// Copies of the tasks that are due soon, and their timers.
    pub(crate) tasks: LoadedTasks,
    /// How far the store was read.
    pub(crate) loader: Loader,
    /// Lanes, claims, and what is in flight.
    pub(crate) deliveries: DeliveryState,
    /// What the shell is to do.
    pub(crate) actions: ActionQueue,
    pub(crate) render_record: RenderRecord,
    /// Calls that wait until the owner has nothing to do.
    pub(crate) idle_waiters: IdleWaiters,
    /// The last answer of the store was that it is unavailable.
    store_away: bool,
    stopped: bool,
}

impl Owner {
    /// Creates an owner that has just acquired its partition and has loaded nothing.
    #[must_use]
    pub fn new(ownership: Ownership, config: OwnerConfig, now: Timestamp) -> Self {
        Self {
            tenure: Tenure::new(ownership, now),
            commands: Commands::default(),
            reads: ReadTracker::default(),
            writer: BatchWriter::new(config.retains_batches),
            tasks: LoadedTasks::new(config.budget, now),
            loader: Loader::new(config.load_ahead),
            deliveries: DeliveryState::new(config.budget, now),
            actions: ActionQueue::default(),
            render_record: config.render_record,
            idle_waiters: IdleWaiters::default(),
            store_away: false,
            stopped: false,
        }
    }

    /// Takes an event.
    pub fn on(&mut self, event: Event, now: Timestamp) {
        if self.stopped {
            return self.on_after_stop(event);
        }
        let Some(event) = self.unless_resolving(event) else {
            return;
        };
        if let Some(available) = event.store_available() {
            self.store_away = !available;
        }
        match event {
            Event::Call(call) if self.tenure.is_draining() => call.refuse(&EngineError::Stopped),
            Event::Call(call) => self.on_call(call, now),
            Event::Applied(result) => self.on_applied(result, now),
            Event::Loaded(result) => self.on_loaded(result, now),
            Event::LookupResult(results) => self.on_lookup_results(results, now),
            Event::Ended(reports) => self.on_ended(reports, now),
            Event::Capacity { namespace, queue, capacity } => {
                let lane = LaneId::of_queue(namespace, queue);
                self.deliveries.set_capacity(lane, capacity, now);
            }
            Event::Connection(connection, state) => {
                self.deliveries.set_connection(&connection, state, now);
            }
            Event::Swept(result) => self.on_swept(result, now),
            Event::Gauge(namespace, reply) => {
                // The caller may no longer wait.
                let _ = reply.send(self.gauges(namespace.as_ref(), now));
            }
            Event::View(namespace, query, reply) => {
                let _ = reply.send(self.view(&namespace, &query, now));
            }
            Event::WhenIdle(reply) => self.idle_waiters.push(reply),
            Event::Drain => self.tenure.drain(),
            Event::Extend(until) => self.tenure.extend(until),
            Event::HandOver(reply) => self.on_hand_over(reply, now),
            Event::End => self.end(),
        }
    }

    /// After the end, calls are refused and reports are passed on to the next owner.
    pub(crate) fn on_after_stop(&mut self, event: Event) {
        match event {
            Event::Call(call) => call.refuse(&EngineError::Stopped),
            Event::Ended(reports) => self.pass_on(reports),
            // Other callers see that the sender of their reply is dropped.
            _ => {}
        }
    }

    /// Fires what is due and returns the actions of this turn. Called when all events that have
    /// arrived are taken, so that what arrived together is written together.
    pub fn act(&mut self, now: Timestamp) -> Vec<Action> {
        if !self.stopped {
            let acts = self.tenure.check_lease(now) && !self.deliveries.is_resolving();
            if acts {
                self.expire_inherited(now);
            }
            self.take_effect(now);
            if acts && !self.tenure.is_draining() {
                self.fire(now);
                self.deliver(now);
                self.park(now);
                self.load(now);
                self.sweep(now);
            }
            self.send_outbox(now);
            self.send_lookups();
            if acts && self.writer.confirms_at().is_some_and(|at| at <= now) {
                self.writer.confirm();
            }
            self.flush();
            self.actions.release_due(now);
            self.hand_over(now);
            self.writer.forget_retained(now);
            self.answer_idle(now);
        }
        self.actions.take()
    }

    /// Returns when [`Owner::act`] has something to do even if no event arrives.
    #[must_use]
    pub fn wakes_at(&self) -> Option<Timestamp> {
        if self.stopped {
            return None;
        }
        if self.is_busy() {
            return Some(self.tasks.time());
        }
        let due = [
            self.tasks.next_due(),
            self.next_load(),
            self.tenure.next_sweep(),
            self.deliveries.next_park(),
        ];
        let due = due.into_iter().flatten().min();
        let due = due.filter(|_| !self.tenure.is_draining());
        let due = [due, self.next_inherited_end(), self.writer.confirms_at()];
        // While the owner may not act, nothing that is due is a reason to wake up.
        let due = due.into_iter().flatten().min().filter(|_| self.may_have_work());
        let hand_over = self.tenure.hand_over_wakes_at();
        [self.actions.next_retry(), due, hand_over].into_iter().flatten().min()
    }

    /// Whether the last turn left work that can be done at once.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        let due = self.tasks.has_expired() || self.deliveries.has_ready();
        let due = due && !self.tenure.is_draining() && self.may_have_work();
        !self.stopped && (self.writer.has_durable() || due)
    }

    /// Returns how long the owner can do without its thread: until something is due. Zero while it
    /// fires, delivers, or hands its partition over.
    #[must_use]
    pub fn spare_time(&self, now: Timestamp) -> Duration {
        let is_needed = self.is_busy()
            || self.deliveries.in_flight() > 0
            || self.deliveries.is_resolving()
            || self.tenure.is_handing_over();
        if is_needed {
            return Duration::ZERO;
        }
        self.wakes_at().map_or(Duration::MAX, |at| at.since(now))
    }

    /// Whether the owner may act, as of the last check of its lease.
    fn may_have_work(&self) -> bool {
        !self.tenure.is_lapsed() && !self.deliveries.is_resolving()
    }

    /// Whether nothing is pending or in flight: a drain has finished.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        let waits = self.deliveries.is_resolving() || self.tenure.is_handing_over();
        let idle = self.writer.is_idle()
            && !self.commands.has_pending_calls()
            && self.deliveries.in_flight() == 0;
        self.stopped || (idle && !waits)
    }

    /// Returns how many tasks are in memory.
    #[must_use]
    pub fn loaded(&self) -> usize {
        self.tasks.len()
    }

    /// Whether the store was unavailable when it last answered.
    pub(crate) const fn is_store_away(&self) -> bool {
        self.store_away
    }

    fn gauges(&self, namespace: Option<&Namespace>, now: Timestamp) -> Gauges {
        let gauges = self.deliveries.gauges(namespace, &self.tasks);
        // Tasks that were not read yet may be overdue as well. Of which namespace is not known.
        let unread_since = self.unread_since(now);
        let unread = unread_since.filter(|_| namespace.is_none());
        let oldest_overdue = [unread, gauges.oldest_overdue].into_iter().flatten().min();
        Gauges { loaded: self.tasks.len(), oldest_overdue, unread_since, ..gauges }
    }

    /// Returns how far the store was read, if that time has passed.
    fn unread_since(&self, now: Timestamp) -> Option<Timestamp> {
        Some(self.loader.cursor().fire_at).filter(|unread| *unread < now)
    }

    fn view(&self, namespace: &Namespace, query: &LaneQuery, now: Timestamp) -> OwnerView {
        let view = self.deliveries.view(namespace, query, &self.tasks, now);
        OwnerView { unread_since: self.unread_since(now), store_away: self.store_away, ..view }
    }

    /// Stops because the store does not let the owner continue.
    pub(crate) fn stop(&mut self, error: StoreError) {
        tracing::error!(partition = %self.tenure.partition(), %error, "owner stopped");
        self.close();
        self.actions.push(Action::Stop(error));
    }

    /// Stops because the epoch has no task ids left. The broker acquires the partition again, under
    /// a new epoch.
    pub(crate) fn stop_out_of_ids(&mut self) {
        self.stop(StoreError::Broken("the epoch has no sequence left".to_owned()));
    }

    /// Stops as requested.
    pub(crate) fn end(&mut self) {
        self.close();
        self.actions.push(Action::End);
    }

    /// Ends after a panic. The actions that are left include those that the panic interrupted.
    pub(crate) fn abandon(&mut self) -> Vec<Action> {
        if !self.stopped {
            self.close();
        }
        self.actions.take()
    }

    /// Answers every pending command and decides nothing from now on. Commands that were not sent
    /// to the store get [`EngineError::Stopped`], those that were get [`EngineError::Lost`].
    fn close(&mut self) {
        self.stopped = true;
        // The next owner sends these itself, or answers that they are cancelled. Fires that are
        // claimed stay dead letters.
        self.tasks.recall_for_good();
        self.deliveries.recall_claims();
        self.answer_durable();
        let unsent = self.writer.take_unsent();
        let unsent = unsent.into_iter().filter_map(|decision| decision.requester?.reply);
        self.commands.refuse_all(unsent);
        for event in self.deliveries.take_held_back() {
            self.on_after_stop(event);
        }
        if let Some(late) = self.tenure.fail_hand_over() {
            self.pass_on(late);
        }
    }
}
