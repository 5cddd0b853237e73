//! Writing: decisions become durable, in batches, and only then take effect.
//!
//! In: [`Decision`]s. Out: one batch at a time for the store; when it has answered, the effects, in
//! the order of the decisions, and some in each turn, so that a large batch holds up nobody's time. Whatever is decided while a batch is under way makes the next one: under
//! load batches grow by themselves, and one fsync answers everyone who waited.
//! Invariant: a batch that may or may not have been made is sent again under its number, and as it was, until the store
//! says which: an earlier sending may still come to it. Where that cannot be, the owner ends, and the next epoch fences all of them. A
//! store that has forgotten batches that it answered is sent them again (`rewind`) before the next. With nothing
//! more to write, an empty batch asks a little later whether the last ones are still there.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use punctual_core::{
    FireEnd, FireId, FireRecord, Namespace, NextStep, Task, TaskId, TaskState, Timestamp, Version,
};
use punctual_store::{Batch, BatchNo, Change, Resource, StoreError};
use smallvec::SmallVec;

use crate::commands::read_tracker::Scope;
use crate::commit::retained_batches::RetainedBatches;
use crate::event::Action;
use crate::handle::command::{Asked, EngineError, Reply};
use crate::owner::{Owner, STORE_PAUSE};

/// How long after the last batch a store that may forget is asked whether it still has it: longer than a replica is usually behind.
pub(crate) const CONFIRM_AFTER: Duration = Duration::from_secs(2);

/// Decisions that take effect in one turn: about a millisecond.
const EFFECTS_MAX: usize = 512;

/// Changes that belong together, and what follows once they are durable. Small, because the line of them grows long when a crowd is
/// due: what is large is kept once, behind a pointer, and changes are shared with the batch that carries them.
#[derive(Debug, Default)]
pub(crate) struct Decision {
    pub(crate) changes: SmallVec<[Arc<Change>; 2]>,
    pub(crate) effects: SmallVec<[Effect; 1]>,
    /// Who is answered, and with what.
    pub(crate) asked: Option<Asked>,
    answer: Option<Box<Reply>>,
}

const _: () = assert!(size_of::<Decision>() <= 256);

impl Decision {
    /// One that answers a command.
    pub(crate) fn answering(asked: Asked) -> Self {
        Self { asked: Some(asked), ..Self::default() }
    }

    /// One of the owner's own: a change, and what follows.
    pub(crate) fn own(change: Change, effect: Effect) -> Self {
        let mut decision = Self::default();
        decision.change(change);
        decision.effects.push(effect);
        decision
    }

    /// With one change more.
    pub(crate) fn change(&mut self, change: Change) {
        self.changes.push(Arc::new(change));
    }

    /// With what is said to whoever asked.
    pub(crate) fn answers(&mut self, answer: Reply) {
        self.answer = Some(Box::new(answer));
    }

    /// What is said to whoever asked.
    fn into_answer(self) -> Result<Reply, EngineError> {
        self.answer.map(|answer| *answer).ok_or(EngineError::Stopped)
    }

    /// A fire of a task is over, by `change` of how the task stood and how it stands then, and the task goes on or ends.
    pub(crate) fn next_step(
        id: TaskId,
        next_step: NextStep,
        was: TaskState,
        now: Timestamp,
        change: impl FnOnce(Option<Task>, TaskState) -> Change,
    ) -> Self {
        let mut decision = Self::default();
        match &next_step.skipped {
            None => {
                let next = next_step.next.clone().map(Task::earliest);
                decision.change(change(next, was));
            }
            Some((task, _)) => {
                decision.change(change(Some(task.clone()), was));
            }
        }
        decision.skip_fires(id, next_step, now);
        decision
    }

    /// A watch was touched while it was told to be silent: it is armed, without being told again.
    pub(crate) fn silent_no_more(task: &Task, now: Timestamp) -> Self {
        let record = FireRecord::of(task, FireEnd::Replaced, now);
        let over = |next, was| Change::Settle { record, next, was };
        Self::next_step(task.id, task.next_step(TaskState::Done, now), task.state, now, over)
    }

    /// The fires of a task that are overlapping end with it, or with its definition. Out: the task without them.
    pub(crate) fn end_aside(&mut self, mut task: Task, end: FireEnd, now: Timestamp) -> Task {
        while let Some(nominal_at) =
            task.overlapping.last().map(|overlapping| overlapping.nominal_at)
        {
            let before = task.before_overlapping(nominal_at);
            let record = before.map(|before| FireRecord::of(&before, end, now));
            task.overlapping.pop();
            let (next, was) = (Some(task.clone()), task.state);
            if let Some(record) = record {
                self.change(Change::Settle { record, next, was });
            }
        }
        task
    }

    /// Whether somebody asked for it and it was decided by what the store said of a name.
    pub(crate) fn rests_on_a_look(&self) -> bool {
        self.asked.as_ref().is_some_and(|asked| asked.reply.is_some() && asked.subject.is_some())
    }

    /// Whether it makes a task.
    fn grows(&self) -> bool {
        self.changes.iter().any(|change| change.grows())
    }

    /// Fires are left out, if any, and the task goes on or ends.
    pub(crate) fn skip_fires(&mut self, id: TaskId, next_step: NextStep, now: Timestamp) {
        let next = next_step.next.map(Task::earliest);
        if let Some((task, skipped)) = next_step.skipped {
            let record = FireRecord::of(&task, FireEnd::Skipped(skipped), now);
            let was = task.state;
            self.change(Change::Settle { record, next: next.clone(), was });
        }
        self.effects.push(next.map_or(Effect::Leave(id), Effect::file));
    }
}

/// What follows from a decision once it is durable.
#[derive(Debug)]
pub(crate) enum Effect {
    /// A task stands thus from now on: hold it if it is due before the horizon.
    File(Box<Task>),
    /// A task stands thus from now on, and the attempt that is under way goes on.
    Stand(Box<Task>),
    /// A task is due later than before.
    Postpone { namespace: Namespace, id: TaskId, fire_at: Timestamp, version: Version },
    /// A task has ended.
    Leave(TaskId),
    /// At most once: the claim is durable, the first byte may be sent. The task goes on, if it does.
    Send { id: TaskId, next: Option<Box<Task>> },
    /// At most once: the outcome is durable.
    Unclaim(FireId),
}

impl Effect {
    pub(crate) fn file(task: Task) -> Self {
        Self::File(Box::new(task))
    }

    pub(crate) fn stand(task: Task) -> Self {
        Self::Stand(Box::new(task))
    }
}

/// What is decided and has not taken effect.
#[derive(Debug)]
pub(crate) struct Writer {
    pub(crate) next: BatchNo,
    /// In the order in which they were made: first those that are durable, then those under way, then those that wait.
    pub(crate) decisions: VecDeque<Decision>,
    durable: usize,
    pub(crate) sent: usize,
    /// The batch of what was decided last was sent before, and what came of it is not known: it is sent as it was, or never again.
    pub(crate) in_doubt: bool,
    /// What the store has answered, for a store that may forget.
    pub(crate) kept: Option<RetainedBatches>,
    /// The one of these that is under way, because the store has forgotten it.
    again: Option<BatchNo>,
    /// Why the owner ends when the store has all that it had forgotten, and a batch without changes in place of the one in doubt.
    pub(crate) ends: Option<StoreError>,
    /// When the store is asked whether it still has what it answered last.
    pub(crate) confirms_at: Option<Timestamp>,
}

impl Writer {
    pub(crate) fn new(keeps_batches: bool) -> Self {
        Self {
            next: BatchNo::FIRST,
            decisions: VecDeque::new(),
            durable: 0,
            sent: 0,
            in_doubt: false,
            kept: keeps_batches.then(RetainedBatches::default),
            again: None,
            ends: None,
            confirms_at: None,
        }
    }

    /// When the store is asked whether it still has what it answered last.
    pub(crate) const fn confirms_at(&self) -> Option<Timestamp> {
        self.confirms_at
    }

    /// Asks that now, if it is to be asked at all: a batch without changes finds a gap like any other.
    pub(crate) fn confirm(&mut self) {
        if self.confirms_at.take().is_some() && self.is_idle() {
            self.decisions.push_back(Decision::default());
        }
    }

    /// Whether everything decided has taken effect.
    pub(crate) fn is_idle(&self) -> bool {
        self.decisions.is_empty()
    }

    /// Whether something is durable that has not taken effect.
    pub(crate) const fn is_behind(&self) -> bool {
        self.durable > 0
    }

    /// The batch under way was not made, unless it was an earlier time that it was sent.
    fn refused(&mut self) {
        if !self.in_doubt {
            self.sent = 0;
        }
    }

    /// Whether a sending of the batch under way that nobody waits for any more may still make a task. Where no network
    /// is between, none is left behind.
    fn may_grow_late(&self) -> bool {
        self.in_doubt && self.kept.is_some() && self.under_way().any(Decision::grows)
    }

    /// What the store has certainly not made.
    pub(crate) fn take_unsent(&mut self) -> VecDeque<Decision> {
        self.decisions.split_off(self.durable + self.sent)
    }

    /// The next one that is durable.
    fn take_durable(&mut self) -> Option<Decision> {
        self.durable = self.durable.checked_sub(1)?;
        self.decisions.pop_front()
    }

    /// Those of the batch under way.
    pub(crate) fn under_way(&self) -> impl Iterator<Item = &Decision> {
        self.decisions.range(self.durable..self.durable + self.sent)
    }

    /// Counts waiting decisions as sent, as many as fit a batch.
    fn fill(&mut self) {
        let (mut changes, mut weight) = (0, 0);
        let fits = |decision: &Decision| {
            changes += decision.changes.len();
            weight += decision.changes.iter().map(|change| change.weight()).sum::<usize>();
            changes <= Batch::CHANGES_MAX && weight <= Batch::WEIGHT_MAX
        };
        let waiting = self.decisions.range(self.durable..);
        let (count, fitting) = (waiting.len(), waiting.map(fits).take_while(|fits| *fits).count());
        // One decision alone always goes, or nothing ever would.
        self.sent = fitting.max(1).min(count);
    }

    /// Whether batches that the store has forgotten are being sent again.
    pub(crate) const fn is_rewound(&self) -> bool {
        self.again.is_some()
    }

    /// Lets go of what is kept no longer, unless it is being sent again.
    pub(crate) fn forget(&mut self, now: Timestamp) {
        if let (Some(kept), None) = (&mut self.kept, self.again) {
            kept.forget(now);
        }
    }

    /// What of the batches that were answered is sent next, from a number on; false if it is not kept. With none left it is
    /// the turn of the batch that the store refused.
    fn rewind_to(&mut self, number: BatchNo) -> bool {
        self.again = (number < self.next).then_some(number);
        let kept = |number| self.kept.as_ref().is_some_and(|kept| kept.get(number).is_some());
        self.again.is_none_or(kept)
    }

    /// The batch that is under way.
    fn batch(&self) -> Batch {
        let forgotten = self.again.and_then(|number| self.kept.as_ref()?.get(number));
        if let Some(batch) = forgotten {
            return batch.clone();
        }
        if self.ends.is_some() {
            // In its place, so that it is not made, if it can still be prevented.
            return Batch { number: self.next, changes: Vec::new() };
        }
        self.latest()
    }

    /// The batch of what was decided last.
    fn latest(&self) -> Batch {
        // Sized before: the largest are some megabytes, which growing step by step would move again and again.
        let mut changes = Vec::with_capacity(self.under_way().map(|it| it.changes.len()).sum());
        changes.extend(self.under_way().flat_map(|decision| &decision.changes).cloned());
        Batch { number: self.next, changes }
    }
}

impl Owner {
    /// Decides: from here on the tasks concerned stand as the decision says, durable or not.
    pub(crate) fn write(&mut self, decision: Decision) {
        for change in &decision.changes {
            let matter = Scope::of(change);
            self.recent.decided(matter);
            if let Scope::Task(id) = matter {
                self.memory.leaving(id);
            }
        }
        self.writer.decisions.push_back(decision);
    }

    /// Sends the next batch unless one is under way. Called when all events at hand are taken in, so
    /// that what came together is written together.
    pub(crate) fn flush(&mut self) {
        if self.writer.sent == 0 && self.writer.decisions.len() > self.writer.durable {
            self.writer.fill();
            self.actions.push(Action::Apply(self.writer.batch()));
        }
    }

    pub(crate) fn on_applied(&mut self, result: Result<(), StoreError>, now: Timestamp) {
        let forgot = matches!(result, Err(StoreError::Gap { .. }));
        if !self.writer.is_rewound()
            && !forgot
            && let Some(why) = self.writer.ends.take()
        {
            return self.stop(why);
        }
        match (result, self.writer.again) {
            (Ok(()), Some(number)) => {
                self.writer.rewind_to(number.next());
                if !self.writer.is_rewound() {
                    self.end_repair(now);
                }
                self.actions.push(Action::Apply(self.writer.batch()));
            }
            // These were taken once, and are not given up.
            (Err(StoreError::Full { .. }), Some(_)) => self.send_again(now),
            (Ok(()), None) => self.on_durable(now),
            // An earlier sending may find room yet, so that nobody can be told that there was none.
            (Err(error @ StoreError::Full { .. }), None) if self.writer.may_grow_late() => {
                self.stop(error);
            }
            (Err(StoreError::Full { room, .. }), None) => self.refuse_growth(room, now),
            (Err(StoreError::Unavailable(_)), again) => {
                self.writer.in_doubt |= again.is_none();
                self.send_again(now);
            }
            (Err(StoreError::Gap { expected, given, partition }), _) if expected < given => {
                if !self.writer.rewind_to(expected) {
                    self.writer.refused();
                    return self.stop(StoreError::Gap { expected, given, partition });
                }
                tracing::warn!(%partition, ?expected, ?given, "the store has forgotten batches; they are sent again");
                self.begin_repair(expected, now);
                self.actions.push(Action::Apply(self.writer.batch()));
            }
            (Err(error @ StoreError::Fenced { .. }), _) => {
                self.writer.refused();
                self.stop(error);
            }
            (Err(error), _) => self.stop(error),
        }
    }

    fn on_durable(&mut self, now: Timestamp) {
        if self.writer.kept.is_some() {
            let batch = self.writer.latest();
            if !batch.changes.is_empty() {
                self.writer.confirms_at = Some(now.after(CONFIRM_AFTER));
            }
            self.writer.kept.get_or_insert_default().keep(batch, now);
        }
        self.writer.next = self.writer.next.next();
        self.writer.in_doubt = false;
        self.writer.durable += std::mem::take(&mut self.writer.sent);
        self.recent.applied();
        self.take_effect(now);
    }

    /// Does what follows from the decisions that are durable, or from the first of them.
    pub(crate) fn take_effect(&mut self, now: Timestamp) {
        if self.writer.durable > EFFECTS_MAX {
            // The store need not wait for it.
            self.flush();
        }
        for _ in 0..EFFECTS_MAX {
            let Some(decision) = self.writer.take_durable() else {
                return;
            };
            self.durable(decision, now);
        }
    }

    /// Replies whoever asked for something that is durable: nothing else follows any more.
    pub(crate) fn answer_durable(&mut self) {
        while let Some(decision) = self.writer.take_durable() {
            if let Some(reply) = decision.asked.as_ref().and_then(|asked| asked.reply) {
                self.calls.answer(reply, decision.into_answer());
            }
        }
    }

    /// Does what follows from a decision.
    fn durable(&mut self, mut decision: Decision, now: Timestamp) {
        for change in &decision.changes {
            let matter = Scope::of(change);
            self.recent.durable(matter);
            if let Change::Put(task) = &**change {
                self.claims.named(task);
            }
            if let Scope::Task(id) = matter {
                self.loader.forget_aside(id);
            }
            self.wake_watchers(change.task_id());
        }
        for effect in decision.effects.drain(..) {
            match effect {
                Effect::File(task) => self.file_durable(*task, now),
                Effect::Stand(task) => {
                    for report in self.memory.stand(*task) {
                        self.settle(report, now);
                    }
                }
                Effect::Postpone { namespace, id, fire_at, version } => {
                    self.postponed(namespace, id, fire_at, version);
                }
                Effect::Leave(id) => self.memory.remove(id),
                Effect::Send { id, next } => self.send_claimed(id, next, now),
                Effect::Unclaim(fire_id) => self.unclaim(fire_id, now),
            }
        }
        if let Some(asked) = decision.asked.take() {
            self.answer(asked, decision.into_answer());
        }
    }

    /// There is no room: new tasks are refused, everything else of the batch goes on without them.
    fn refuse_growth(&mut self, room: Resource, now: Timestamp) {
        while self.writer.is_behind() {
            self.take_effect(now);
        }
        let mut waiting = self.writer.take_unsent();
        let sent = std::mem::take(&mut self.writer.decisions);
        let (refused, mut kept): (VecDeque<_>, VecDeque<_>) =
            sent.into_iter().partition(|it| it.grows());
        self.writer.sent = kept.len();
        kept.append(&mut waiting);
        self.writer.decisions = kept;
        if refused.is_empty() {
            // With nothing to refuse, it waits until there is room: it may not be dropped.
            return self.send_again(now);
        }
        for decision in refused {
            self.undo(decision, EngineError::Full(room), now);
        }
        if self.writer.sent > 0 {
            self.actions.push(Action::Apply(self.writer.batch()));
        }
    }

    pub(crate) fn undo(&mut self, decision: Decision, why: EngineError, now: Timestamp) {
        for change in &decision.changes {
            let id = change.task_id();
            self.recent.undone(Scope::of(change));
            for report in self.memory.staying(id) {
                self.settle(report, now);
            }
            if !self.recent.is_undurable(Scope::Task(id))
                && let Some(task) = self.loader.take_aside(id)
            {
                self.file(task);
            }
            self.wake_watchers(id);
        }
        if let Some(asked) = decision.asked {
            self.answer(asked, Err(why));
        }
    }

    fn send_again(&mut self, now: Timestamp) {
        if self.writer.sent == 0 {
            return;
        }
        let batch = self.writer.batch();
        self.later.push((now.after(STORE_PAUSE), Action::Apply(batch)));
    }
}
