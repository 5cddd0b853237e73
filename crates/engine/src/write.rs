//! Writing: decisions become durable, in batches, and only then take effect.
//!
//! In: [`Decision`]s. Out: one batch at a time for the store; when it has answered, the effects, in
//! the order of the decisions. Whatever is decided while a batch is under way makes the next one: under
//! load batches grow by themselves, and one fsync answers everyone who waited.
//! Invariant: a batch that may or may not have been made is sent again under its number until the store
//! says which.

use punctual_core::{Task, TaskId, Timestamp};
use punctual_store::{Batch, BatchNo, Change, StoreError};

use crate::command::{Cancelled, EngineError, Reply, Scheduled, Subject};
use crate::event::Action;
use crate::owner::{Owner, STORE_PAUSE};

/// Changes that belong together, and what follows once they are durable.
#[derive(Debug, Default)]
pub(crate) struct Decision {
    pub(crate) changes: Vec<Change>,
    pub(crate) effects: Vec<Effect>,
}

/// What follows from a decision once it is durable.
#[derive(Debug)]
pub(crate) enum Effect {
    /// A task stands thus from now on: hold it if it is due before the horizon.
    File(Task),
    /// A task has ended.
    Leave(TaskId),
    /// At most once: the claim is durable, the first byte may be sent.
    Send(Task),
    /// Answer.
    Scheduled(Reply<Scheduled>, Box<Scheduled>),
    /// Answer.
    Cancelled(Reply<Cancelled>),
    /// Decide the next command about this subject.
    Free(Subject),
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
        self.sent.extend(self.waiting.drain(..count));
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
            self.loader.aside.remove(&id);
            self.wake_watchers(id);
        }
        for effect in decision.effects {
            match effect {
                Effect::File(task) => self.file(task),
                Effect::Leave(id) => {
                    self.unclaim(id);
                    self.memory.remove(id);
                }
                Effect::Send(task) => {
                    self.claim(&task);
                    self.enqueue(task.id, now);
                }
                Effect::Scheduled(reply, scheduled) => reply.send(Ok(*scheduled)),
                Effect::Cancelled(reply) => reply.send(Ok(Cancelled::Cancelled)),
                Effect::Free(subject) => self.free(subject),
            }
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
            if let Some((delivery, outcome)) = self.memory.staying(id) {
                self.settle(delivery, outcome, now);
            }
            if !self.recent.is_undurable(id)
                && let Some(task) = self.loader.aside.remove(&id)
            {
                self.file(task);
            }
            self.wake_watchers(id);
        }
        for effect in decision.effects {
            match effect {
                Effect::Scheduled(reply, _) => reply.send(Err(EngineError::Full)),
                Effect::Cancelled(reply) => reply.send(Err(EngineError::Full)),
                Effect::Free(subject) => self.free(subject),
                Effect::File(_) | Effect::Leave(_) | Effect::Send(_) => {}
            }
        }
    }

    fn send_again(&mut self, now: Timestamp) {
        if self.writer.sent.is_empty() {
            return;
        }
        let batch = self.writer.batch();
        self.later.push((now.after(STORE_PAUSE), Action::Apply(batch)));
    }

    /// Looks again for those who waited for a decision about a task, once none is on its way.
    fn wake_watchers(&mut self, id: TaskId) {
        if self.recent.is_undurable(id) {
            return;
        }
        for subject in self.watchers.remove(&id).unwrap_or_default() {
            self.look(subject);
        }
    }

    fn claim(&mut self, task: &Task) {
        let definition = &task.definition;
        if let Some(key) = definition.key.clone() {
            self.claims.insert(Subject::Key(definition.namespace.clone(), key), task.id);
        }
    }

    fn unclaim(&mut self, id: TaskId) {
        let Some(loaded) = self.memory.get(id) else {
            return;
        };
        let definition = &loaded.task.definition;
        let Some(key) = definition.key.clone() else {
            return;
        };
        let subject = Subject::Key(definition.namespace.clone(), key);
        if self.claims.get(&subject) == Some(&id) {
            self.claims.remove(&subject);
        }
    }
}
