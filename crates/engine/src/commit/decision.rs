//! A decision: changes that are written together, and what follows once they are durable.

use std::sync::Arc;

use punctual_core::{
    FireEnd, FireId, FireRecord, Namespace, NextStep, Task, TaskId, TaskState, Timestamp, Version,
};
use punctual_store::{Change, Prior};
use smallvec::SmallVec;

use crate::commands::read_tracker::ReadToken;
use crate::handle::call::Requester;
use crate::handle::error::EngineError;
use crate::handle::reply::{Cancelled, Reply, Scheduled};

/// Changes that are written together, and what follows once they are durable.
///
/// Small, because many decisions queue up when many tasks are due at once: large values are behind
/// a pointer, and changes are shared with the batch that carries them.
#[derive(Debug, Default)]
pub(crate) struct Decision {
    pub(crate) changes: SmallVec<[Arc<Change>; 2]>,
    pub(crate) effects: SmallVec<[Effect; 1]>,
    pub(crate) requester: Option<Requester>,
    reply: Option<DecidedReply>,
    /// The task as the decision leaves it, if the next command is expected to read it.
    pub(crate) task_after: Option<Box<Task>>,
}

/// The reply to the requester. Replies of commands that come in large batches are small.
#[derive(Debug)]
enum DecidedReply {
    /// The task of the last change was created.
    Created,
    /// The task of the last change replaces another.
    Replaced,
    Cancelled(Cancelled),
    Touched {
        fire_at: Timestamp,
        version: Version,
    },
    Other(Box<Reply>),
}

const _: () = assert!(size_of::<Decision>() <= 256);

impl Decision {
    /// A decision that answers a command.
    pub(crate) fn answering(requester: Requester) -> Self {
        Self { requester: Some(requester), ..Self::default() }
    }

    /// A decision of the owner's own: a change and its effect.
    pub(crate) fn own(change: Change, effect: Effect) -> Self {
        let mut decision = Self::default();
        decision.change(change);
        decision.effects.push(effect);
        decision
    }

    /// A decision that changes nothing and uses what was read. It is durable with a batch that was
    /// sent after the read, which the store refuses if it lacked an earlier batch.
    pub(crate) fn confirming_read(effect: Effect, requester: Option<Requester>) -> Self {
        let effects = SmallVec::from_iter([effect]);
        Self { effects, requester, ..Self::default() }
    }

    /// Whether the decision changes nothing, and only uses or answers what was read.
    pub(crate) fn confirms_read(&self) -> bool {
        let takes =
            |effect: &Effect| matches!(effect, Effect::TakePage(_) | Effect::TakeLookup(..));
        self.changes.is_empty() && (self.requester.is_some() || self.effects.iter().any(takes))
    }

    /// Adds a change.
    pub(crate) fn change(&mut self, change: Change) {
        self.changes.push(Arc::new(change));
    }

    /// Adds a task under a new id. It is held in memory if it is due before the horizon.
    pub(crate) fn put(&mut self, task: Task) {
        self.effects.push(Effect::FilePut(self.changes.len()));
        self.change(Change::Put(task));
    }

    /// Sets the reply to the requester.
    pub(crate) fn replies(&mut self, reply: Reply) {
        self.reply = Some(match reply {
            Reply::Cancelled(cancelled) => DecidedReply::Cancelled(cancelled),
            Reply::Touched { fire_at, version } => DecidedReply::Touched { fire_at, version },
            other => DecidedReply::Other(Box::new(other)),
        });
    }

    /// Replies that the task of the last change, which is a [`Change::Put`], was created, or that
    /// it replaces another.
    pub(crate) fn replies_scheduled(&mut self, old: Option<&Task>) {
        let reply = if old.is_some() { DecidedReply::Replaced } else { DecidedReply::Created };
        self.reply = Some(reply);
    }

    /// Returns the reply to the requester.
    pub(crate) fn into_reply(mut self) -> Result<Reply, EngineError> {
        let reply = match self.reply.take().ok_or(EngineError::Stopped)? {
            DecidedReply::Created => Reply::Scheduled(Scheduled::Created(self.take_put()?)),
            DecidedReply::Replaced => Reply::Scheduled(Scheduled::Replaced(self.take_put()?)),
            DecidedReply::Cancelled(cancelled) => Reply::Cancelled(cancelled),
            DecidedReply::Touched { fire_at, version } => Reply::Touched { fire_at, version },
            DecidedReply::Other(reply) => *reply,
        };
        Ok(reply)
    }

    /// Takes the task of the last change. It is copied only if the change is shared: by then the
    /// store has dropped its batch, unless batches are retained.
    fn take_put(&mut self) -> Result<Task, EngineError> {
        match self.changes.pop().map(Arc::unwrap_or_clone) {
            Some(Change::Put(task)) => Ok(task),
            _ => Err(EngineError::Stopped),
        }
    }

    /// Ends a fire of a task and moves the task to its next step. `change` gets the task after the
    /// fire and what it was before.
    pub(crate) fn next_step(
        id: TaskId,
        next_step: NextStep,
        was: Prior,
        now: Timestamp,
        change: impl FnOnce(Option<Box<Task>>, Prior) -> Change,
    ) -> Self {
        let mut decision = Self::default();
        match &next_step.skipped {
            None => {
                let next = next_step.next.clone().map(Task::earliest);
                decision.change(change(next.map(|next| Box::new(changed(next, now))), was));
            }
            Some((task, _)) => {
                decision.change(change(Some(Box::new(changed(task.clone(), now))), was));
            }
        }
        decision.skip_fires(id, next_step, now);
        decision
    }

    /// Arms a watch that was touched while its fire was in flight, without another attempt.
    pub(crate) fn touched_while_firing(task: &Task, now: Timestamp) -> Self {
        let record = FireRecord::of(task, FireEnd::Replaced, now);
        let replaced = |next, was| Change::Settle { record, next, was };
        let next_step = task.next_step(TaskState::Done, now);
        Self::next_step(task.id, next_step, Prior::of(task), now, replaced)
    }

    /// Ends the overlapping fires of a task and returns the task without them.
    pub(crate) fn end_overlapping(&mut self, mut task: Task, end: FireEnd, now: Timestamp) -> Task {
        while let Some(nominal_at) =
            task.overlapping.last().map(|overlapping| overlapping.nominal_at)
        {
            let before = task.before_overlapping(nominal_at);
            let record = before.map(|before| FireRecord::of(&before, end, now));
            let was = Prior::of(&task);
            task.overlapping.pop();
            let next = Some(Box::new(task.clone()));
            if let Some(record) = record {
                self.change(Change::Settle { record, next, was });
            }
        }
        task
    }

    /// Adds skipped fires, if any, and the effect of the next step.
    pub(crate) fn skip_fires(&mut self, id: TaskId, next_step: NextStep, now: Timestamp) {
        let next = next_step.next.map(|next| changed(next.earliest(), now));
        if let Some((task, skipped)) = next_step.skipped {
            let record = FireRecord::of(&task, FireEnd::Skipped(skipped), now);
            let was = Prior::of(&task);
            self.change(Change::Settle { record, next: next.clone().map(Box::new), was });
        }
        self.effects.push(next.map_or(Effect::Remove(id), Effect::file));
    }

    /// Whether the decision answers a caller and was made with the result of a lookup.
    pub(crate) fn rests_on_lookup(&self) -> bool {
        let requester = self.requester.as_ref();
        requester.is_some_and(|it| it.reply.is_some() && it.subject.is_some())
    }

    /// Whether the decision creates a task.
    pub(crate) fn grows(&self) -> bool {
        self.changes.iter().any(|change| change.grows())
    }
}

fn changed(task: Task, now: Timestamp) -> Task {
    Task { updated_at: now, ..task }
}

/// What follows from a decision once it is durable.
#[derive(Debug)]
pub(crate) enum Effect {
    /// Hold a task in memory if it is due before the horizon.
    File(Box<Task>),
    /// The same for the new task that the change of this index stores.
    FilePut(usize),
    /// Update a task whose attempts in flight continue.
    Update(Box<Task>),
    /// Move the task that the first change postpones.
    Postpone(Namespace),
    /// Remove a task that has ended.
    Remove(TaskId),
    /// Send an at-most-once fire whose claim is durable.
    SendClaimed(Box<ClaimedFire>),
    /// Remove the claim of a fire whose outcome is durable.
    ReleaseClaim(FireId),
    /// Hold the tasks of the pending page in memory.
    TakePage(Vec<Task>),
    /// Hold a task in memory that was looked up for this, as of the read.
    TakeLookup(Box<Task>, ReadToken),
}

/// An at-most-once fire that is sent when its claim is durable.
#[derive(Debug)]
pub(crate) struct ClaimedFire {
    pub(crate) id: TaskId,
    /// The task before its next fire, to be filed.
    pub(crate) next: Option<Box<Task>>,
    /// There is a next fire, or the task has ended with fires that were skipped after this one.
    pub(crate) task_continues: bool,
    /// The provisional callback.
    pub(crate) callback: Option<TaskId>,
}

impl Effect {
    pub(crate) fn file(task: Task) -> Self {
        Self::File(Box::new(task))
    }

    pub(crate) fn update(task: Task) -> Self {
        Self::Update(Box::new(task))
    }
}
