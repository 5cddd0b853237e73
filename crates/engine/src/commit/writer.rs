//! The queue of decisions that are not durable or have not taken effect, and the batch in flight.
//!
//! One batch is in flight at a time; decisions that are made meanwhile form the next one, so
//! batches grow under load by themselves. A batch whose result is not known (in doubt) is sent
//! again under its number and unchanged, because an earlier sending may still arrive. For a store
//! that may lose batches it has acknowledged, the last ones are retained and sent again in order (a
//! repair).

use std::collections::VecDeque;
use std::time::Duration;

use punctual_core::Timestamp;
use punctual_store::{Batch, BatchNo, RepairNo};

use crate::commit::decision::Decision;
use crate::commit::retained_batches::RetainedBatches;

/// How long after the last batch a store that may lose batches is asked whether it still has it:
/// longer than a replica usually lags.
const CONFIRM_AFTER: Duration = Duration::from_secs(2);

/// Decisions that are not durable or have not taken effect.
#[derive(Debug)]
pub(crate) struct BatchWriter {
    /// The number of the batch in flight, or of the next one.
    next: BatchNo,
    /// In the order in which they were made: durable ones, those in flight, those that wait.
    decisions: VecDeque<Decision>,
    durable: usize,
    sent: usize,
    /// The batch in flight was sent before, and its result is not known: it is sent unchanged,
    /// until a repair fences the earlier sendings.
    in_doubt: bool,
    /// Acknowledged batches, for a store that may lose them.
    retained: Option<RetainedBatches>,
    /// The retained batch that is in flight, because the store has lost it.
    repairing: Option<BatchNo>,
    /// The last repair. A store that has seen a batch of it refuses whatever was sent before.
    repair: RepairNo,
    /// When the store is asked whether it still has the last batch.
    confirms_at: Option<Timestamp>,
}

impl BatchWriter {
    pub(crate) fn new(retains: bool) -> Self {
        Self {
            next: BatchNo::FIRST,
            decisions: VecDeque::new(),
            durable: 0,
            sent: 0,
            in_doubt: false,
            retained: retains.then(RetainedBatches::default),
            repairing: None,
            repair: RepairNo::NONE,
            confirms_at: None,
        }
    }

    /// Adds a decision to the next batch.
    pub(crate) fn push(&mut self, decision: Decision) {
        self.decisions.push_back(decision);
    }

    /// Returns when the store is asked whether it still has the last batch.
    pub(crate) const fn confirms_at(&self) -> Option<Timestamp> {
        self.confirms_at
    }

    /// Asks the store whether it still has the last batch, if that is to be asked at all: an empty
    /// batch finds a gap like any other.
    pub(crate) fn confirm(&mut self) {
        if self.confirms_at.take().is_some() && self.is_idle() {
            self.decisions.push_back(Decision::default());
        }
    }

    /// Whether every decision has taken effect.
    pub(crate) fn is_idle(&self) -> bool {
        self.decisions.is_empty()
    }

    /// Whether a decision is durable that has not taken effect.
    pub(crate) const fn has_durable(&self) -> bool {
        self.durable > 0
    }

    /// Returns how many decisions are durable and have not taken effect.
    pub(crate) const fn count_durable(&self) -> usize {
        self.durable
    }

    /// Takes the next durable decision.
    pub(crate) fn take_durable(&mut self) -> Option<Decision> {
        self.durable = self.durable.checked_sub(1)?;
        self.decisions.pop_front()
    }

    /// Takes the decisions that the store has certainly not written.
    pub(crate) fn take_unsent(&mut self) -> VecDeque<Decision> {
        self.decisions.split_off(self.durable + self.sent)
    }

    pub(crate) const fn has_batch_in_flight(&self) -> bool {
        self.sent > 0
    }

    /// Returns the decisions of the batch in flight.
    fn in_flight(&self) -> impl Iterator<Item = &Decision> {
        self.decisions.range(self.durable..self.durable + self.sent)
    }

    /// Forms the next batch, unless one is in flight or nothing waits.
    pub(crate) fn next_batch(&mut self) -> Option<Batch> {
        if self.sent > 0 || self.decisions.len() <= self.durable {
            return None;
        }
        let (mut changes, mut weight) = (0, 0);
        let fits = |decision: &Decision| {
            changes += decision.changes.len();
            weight += decision.changes.iter().map(|change| change.weight()).sum::<usize>();
            changes <= Batch::CHANGES_MAX && weight <= Batch::WEIGHT_MAX
        };
        let waiting = self.decisions.range(self.durable..);
        let (count, fitting) = (waiting.len(), waiting.map(fits).take_while(|fits| *fits).count());
        // A decision that is too large for any batch is sent by itself.
        self.sent = fitting.max(1).min(count);
        Some(self.batch())
    }

    /// Returns the batch in flight: one that the store has lost, or that of the latest decisions.
    pub(crate) fn batch(&self) -> Batch {
        let lost = self.repairing.and_then(|number| self.retained.as_ref()?.get(number));
        if let Some(batch) = lost {
            return batch.clone().in_repair(self.repair);
        }
        self.latest()
    }

    /// Returns the batch of the latest decisions.
    fn latest(&self) -> Batch {
        // Sized before: the largest are some megabytes, which growing would copy several times.
        let mut changes = Vec::with_capacity(self.in_flight().map(|it| it.changes.len()).sum());
        changes.extend(self.in_flight().flat_map(|decision| &decision.changes).cloned());
        Batch { number: self.next, repair: self.repair, changes }
    }

    /// The store has written the batch of the latest decisions.
    pub(crate) fn acknowledged(&mut self, now: Timestamp) {
        if self.retained.is_some() {
            let batch = self.latest();
            if !batch.changes.is_empty() {
                self.confirms_at = Some(now.after(CONFIRM_AFTER));
            }
            self.retained.get_or_insert_default().add(batch, now);
        }
        self.next = self.next.next();
        self.in_doubt = false;
        self.durable += std::mem::take(&mut self.sent);
    }

    /// The store has refused the batch in flight. It is not written, unless by an earlier sending.
    pub(crate) const fn refused(&mut self) {
        if !self.in_doubt {
            self.sent = 0;
        }
    }

    /// The store was unavailable: whether the batch in flight is written is not known. Batches of a
    /// repair were acknowledged before and are never in doubt.
    pub(crate) const fn unavailable(&mut self) {
        self.in_doubt |= self.repairing.is_none();
    }

    /// Whether an earlier sending of the batch in flight may still create a task. A store without a
    /// network in between has none.
    pub(crate) fn may_grow_late(&self) -> bool {
        self.in_doubt && self.retained.is_some() && self.in_flight().any(Decision::grows)
    }

    /// Removes the decisions that create tasks from the batch in flight and returns them. Every
    /// durable decision must have taken effect.
    pub(crate) fn take_growing(&mut self) -> VecDeque<Decision> {
        let mut waiting = self.take_unsent();
        let sent = std::mem::take(&mut self.decisions);
        let (growing, mut kept): (VecDeque<_>, VecDeque<_>) =
            sent.into_iter().partition(Decision::grows);
        self.sent = kept.len();
        kept.append(&mut waiting);
        self.decisions = kept;
        growing
    }
}

/// Batches that the store has lost.
impl BatchWriter {
    /// Whether the store may have lost batches that it could be sent again: what is read from it
    /// holds only if it accepts a later batch.
    pub(crate) fn must_confirm_reads(&self) -> bool {
        self.retained.as_ref().is_some_and(|retained| !retained.is_empty())
    }

    /// Whether batches that the store has lost are being sent again.
    pub(crate) const fn is_repairing(&self) -> bool {
        self.repairing.is_some()
    }

    /// Returns the lost batch that is in flight.
    pub(crate) const fn repairing(&self) -> Option<BatchNo> {
        self.repairing
    }

    /// Begins a repair: sends the retained batches from a number on, then the one that the store
    /// refused. Returns `false` if that number is not retained.
    pub(crate) fn begin_repair(&mut self, number: BatchNo) -> bool {
        self.repair = self.repair.next();
        self.repair_from(number)
    }

    /// Continues a repair with the batch of a number. Returns `false` if it is not retained.
    pub(crate) fn repair_from(&mut self, number: BatchNo) -> bool {
        self.repairing = (number < self.next).then_some(number);
        let retained = |number| self.retained.as_ref().is_some_and(|it| it.get(number).is_some());
        self.repairing.is_none_or(retained)
    }

    /// Drops retained batches that are too old, unless a repair needs them.
    pub(crate) fn forget_retained(&mut self, now: Timestamp) {
        if let (Some(retained), None) = (&mut self.retained, self.repairing) {
            retained.forget(now);
        }
    }

    /// The store has a batch of the repair, so no earlier sending of the batch in doubt is ever
    /// written. Returns whether there was one.
    pub(crate) const fn fence_doubt(&mut self) -> bool {
        std::mem::replace(&mut self.in_doubt, false)
    }

    /// Removes the decisions that may rest on what the store has lost and returns them. A batch in
    /// doubt stays unchanged until it is fenced. Every durable decision must have taken effect.
    pub(crate) fn take_unfounded(&mut self) -> Vec<Decision> {
        let in_doubt = if self.in_doubt { self.sent } else { 0 };
        let decisions = std::mem::take(&mut self.decisions);
        let sent = std::mem::take(&mut self.sent);
        let mut unfounded = Vec::new();
        for (index, decision) in decisions.into_iter().enumerate() {
            // Without changes, a decision is no part of what was sent.
            let replaceable = index >= in_doubt && decision.rests_on_lookup();
            if replaceable || decision.confirms_read() {
                unfounded.push(decision);
            } else {
                self.sent += usize::from(index < sent);
                self.decisions.push_back(decision);
            }
        }
        if self.sent == 0 {
            // The batch that the store refused is sent again in the end, even if it is empty.
            self.decisions.push_front(Decision::default());
            self.sent = 1;
        }
        unfounded
    }

    /// The store has every batch that it had lost. It may lose them again, so it is asked later.
    pub(crate) fn repaired(&mut self, now: Timestamp) {
        self.confirms_at = Some(now.after(CONFIRM_AFTER));
    }
}
