//! Writing: decisions become durable, in batches, and only then take effect.
//!
//! In: [`Decision`]s. Out: one batch at a time for the store; when it has answered, the effects, in
//! the order of the decisions. Whatever is decided while a batch is under way makes the next one: under
//! load batches grow by themselves, and one fsync answers everyone who waited.
//! Invariant: a batch that may or may not have been made is sent again under its number until the store
//! says which.

use punctual_core::{FireId, Namespace, Task, TaskId, Timestamp, Version};
use punctual_store::{Batch, BatchNo, Change, StoreError};
use smallvec::SmallVec;

use crate::command::{Answer, Asked, EngineError};
use crate::event::Action;
use crate::owner::{Owner, STORE_PAUSE};

/// Changes that belong together, and what follows once they are durable.
#[derive(Debug, Default)]
pub(crate) struct Decision {
    pub(crate) changes: SmallVec<[Change; 1]>,
    pub(crate) effects: SmallVec<[Effect; 1]>,
    /// Who is answered, and with what.
    pub(crate) asked: Option<Asked>,
    pub(crate) answer: Option<Answer>,
}

impl Decision {
    /// One that answers a command.
    pub(crate) fn answering(asked: Asked) -> Self {
        Self { asked: Some(asked), ..Self::default() }
    }

    /// One of the owner's own: a change, and what follows.
    pub(crate) fn own(change: Change, effect: Effect) -> Self {
        let (changes, effects) = (SmallVec::from([change]), SmallVec::from([effect]));
        Self { changes, effects, ..Self::default() }
    }
}

/// What follows from a decision once it is durable.
#[derive(Debug)]
pub(crate) enum Effect {
    /// A task stands thus from now on: hold it if it is due before the horizon.
    File(Task),
    /// A task stands thus from now on, and the attempt that is under way goes on.
    Stand(Task),
    /// A task is due later than before.
    Postpone { namespace: Namespace, id: TaskId, fire_at: Timestamp, version: Version },
    /// A task has ended.
    Leave(TaskId),
    /// At most once: the claim is durable, the first byte may be sent.
    Send(TaskId),
    /// At most once: the outcome is durable.
    Unclaim(FireId),
}

/// What is decided and not yet durable.
#[derive(Debug)]
pub(crate) struct Writer {
    next: BatchNo,
    /// Decided since the batch under way was sent.
    waiting: Vec<Decision>,
    /// Under way.
    sent: Vec<Decision>,
}

impl Writer {
    pub(crate) const fn new() -> Self {
        Self { next: BatchNo::FIRST, waiting: Vec::new(), sent: Vec::new() }
    }

    /// Whether everything decided is durable.
    pub(crate) const fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.sent.is_empty()
    }

    /// Moves waiting decisions to `sent`, as many as fit a batch.
    fn fill(&mut self) {
        let (mut changes, mut weight) = (0, 0);
        let fits = |decision: &Decision| {
            changes += decision.changes.len();
            weight += decision.changes.iter().map(Change::weight).sum::<usize>();
            changes <= Batch::CHANGES_MAX && weight <= Batch::WEIGHT_MAX
        };
        let count = self.waiting.iter().map(fits).take_while(|fits| *fits).count();
        // One decision alone always goes, or nothing ever would.
        let count = count.max(1).min(self.waiting.len());
        if count == self.waiting.len() {
            std::mem::swap(&mut self.sent, &mut self.waiting);
        } else {
            self.sent.extend(self.waiting.drain(..count));
        }
    }

    fn batch(&self) -> Batch {
        let changes = self.sent.iter().flat_map(|decision| decision.changes.iter().cloned());
        Batch { number: self.next, changes: changes.collect() }
    }
}

impl Owner {
    /// Decides: from here on the tasks concerned stand as the decision says, durable or not.
    pub(crate) fn write(&mut self, decision: Decision) {
        for change in &decision.changes {
            self.recent.decided(change.task_id());
            self.memory.leaving(change.task_id());
        }
        self.writer.waiting.push(decision);
    }

    /// Sends the next batch unless one is under way. Called when all events at hand are taken in, so
    /// that what came together is written together.
    pub(crate) fn flush(&mut self) {
        if self.writer.sent.is_empty() && !self.writer.waiting.is_empty() {
            self.writer.fill();
            self.actions.push(Action::Apply(self.writer.batch()));
        }
    }

    pub(crate) fn on_applied(&mut self, result: Result<(), StoreError>, now: Timestamp) {
        match result {
            Ok(()) => {
                self.writer.next = self.writer.next.next();
                self.recent.applied();
                for decision in std::mem::take(&mut self.writer.sent) {
                    self.durable(decision, now);
                }
            }
            Err(StoreError::Full(_)) => self.refuse_growth(now),
            Err(StoreError::Unavailable(_)) => self.send_again(now),
            Err(error) => self.stop(error),
        }
    }

    fn durable(&mut self, decision: Decision, now: Timestamp) {
        for change in &decision.changes {
            let id = change.task_id();
            self.recent.durable(id);
            if let Change::Put(task) = change {
                self.claims.named(task);
            }
            self.loader.forget_aside(id);
            self.wake_watchers(id);
        }
        for effect in decision.effects {
            match effect {
                Effect::File(task) => self.file(task),
                Effect::Stand(task) => {
                    if let Some(report) = self.memory.stand(task) {
                        self.settle(report, now);
                    }
                }
                Effect::Postpone { namespace, id, fire_at, version } => {
                    self.postponed(namespace, id, fire_at, version);
                }
                Effect::Leave(id) => self.memory.remove(id),
                Effect::Send(id) => self.send_claimed(id, now),
                Effect::Unclaim(fire_id) => self.claims.remove(fire_id),
            }
        }
        if let Some(asked) = decision.asked {
            self.answer(asked, decision.answer.ok_or(EngineError::Stopped));
        }
    }

    /// The disk is full: new tasks are refused, everything else of the batch goes on without them.
    fn refuse_growth(&mut self, now: Timestamp) {
        let grows = |decision: &Decision| {
            decision.changes.iter().any(|change| matches!(change, Change::Put(_)))
        };
        let (refused, kept) = std::mem::take(&mut self.writer.sent).into_iter().partition(grows);
        self.writer.sent = kept;
        for decision in refused {
            self.undo(decision, now);
        }
        // With nothing left to refuse, the rest waits until there is room: it may not be dropped.
        self.send_again(now);
    }

    fn undo(&mut self, decision: Decision, now: Timestamp) {
        for change in &decision.changes {
            let id = change.task_id();
            self.recent.undone(id);
            if let Some(report) = self.memory.staying(id) {
                self.settle(report, now);
            }
            if !self.recent.is_undurable(id)
                && let Some(task) = self.loader.take_aside(id)
            {
                self.file(task);
            }
            self.wake_watchers(id);
        }
        if let Some(asked) = decision.asked {
            self.answer(asked, Err(EngineError::Full));
        }
    }

    fn send_again(&mut self, now: Timestamp) {
        if self.writer.sent.is_empty() {
            return;
        }
        let batch = self.writer.batch();
        self.later.push((now.after(STORE_PAUSE), Action::Apply(batch)));
    }
}
