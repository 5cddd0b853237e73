//! Loading: tasks are copied from the store into memory ahead of their time.
//!
//! Every scheduled task before the loader's cursor is in memory, or its lane has spilled it, or a
//! decision about it is not durable. One race is decided in [`Owner::file`]: a task that becomes
//! durable while the page it belongs to is being read. It is held if it is before the cursor or
//! within that page, and the copy in the page is ignored. When the budget is used up, the longest
//! lane spills its later half or the horizon comes nearer.

use punctual_core::{Namespace, Task, TaskId, TaskState, Timestamp, Version};
use punctual_store::{Position, StoreError};

use crate::commands::read_tracker::{ReadToken, Scope};
use crate::commit::decision::{Decision, Effect};
use crate::event::Action;
use crate::handle::call::Requester;
use crate::handle::command::Subject;
use crate::loaded::loader::{PageKind, PendingPage};
use crate::owner::Owner;

/// Tasks in one page: a few milliseconds of reading.
const PAGE_MAX: usize = 4096;

impl Owner {
    /// Holds a durable task in memory if it is due before the horizon, and removes it otherwise.
    pub(crate) fn file(&mut self, task: Task) {
        if self.tasks.is_full() {
            self.make_space();
        }
        if task.state == TaskState::Scheduled && self.loader.covers(Position::of(&task)) {
            self.tasks.insert(task);
        } else {
            self.tasks.remove(task.id);
        }
    }

    /// Holds a durable task that no one has read yet in memory if it is due before the horizon.
    pub(crate) fn file_new(&mut self, task: &Task) {
        if task.state == TaskState::Scheduled && self.loader.covers(Position::of(task)) {
            self.file(task.clone());
        }
    }

    /// Holds a durable task that may have overlapping fires in flight: it stays in memory until
    /// they have ended, whenever it is due.
    pub(crate) fn file_durable(&mut self, task: Task, now: Timestamp) {
        if self.tasks.get(task.id).is_none_or(|loaded| !loaded.has_overlapping_in_flight()) {
            return self.file(task);
        }
        let id = task.id;
        for report in self.tasks.replace(task) {
            self.settle(id, report, now);
        }
    }

    /// Holds a durable task of which only the time and the version have changed.
    pub(crate) fn file_postponed(
        &mut self,
        namespace: Namespace,
        id: TaskId,
        fire_at: Timestamp,
        version: Version,
        updated_at: Timestamp,
    ) {
        if let Some(loaded) = self.tasks.get(id) {
            let (nominal_at, task) = (fire_at, loaded.task().clone());
            let task = Task { fire_at, nominal_at, version, updated_at, ..task };
            self.file(task);
        } else if self.loader.covers(Position { fire_at, id }) {
            self.queue_load(namespace, id);
        }
    }

    /// Reads the next page if it is due and the budget allows it.
    pub(crate) fn load(&mut self, now: Timestamp) {
        if let Some(action) = self.next_page(now) {
            self.actions.push(action);
        }
    }

    fn next_page(&mut self, now: Timestamp) -> Option<Action> {
        if self.loader.is_reading() || self.must_not_load() {
            return None;
        }
        if self.tasks.is_full() {
            self.make_space();
        }
        let behind = self.loader.is_behind(now);
        let refill = self.loader.refill_position();
        if self.tasks.is_full() || !(behind || refill.is_some()) {
            return None;
        }
        let read = self.reads.open();
        let (after, until) = match refill {
            Some(after) if !behind => self.loader.request_refill(after, read),
            _ => self.loader.request_ahead(read, now),
        };
        Some(Action::Load { after, until, limit: PAGE_MAX })
    }

    /// Due tasks in memory go to their lanes first: only then it is known which lanes are full. And
    /// a store that has lost batches is not read until it has them again.
    fn must_not_load(&self) -> bool {
        self.tasks.has_expired() || self.writer.is_repairing()
    }

    pub(crate) fn on_loaded(&mut self, result: Result<Vec<Task>, StoreError>, now: Timestamp) {
        let confirms = self.writer.must_confirm_reads() && !self.loader.ignores_page();
        match result {
            // An empty page needs no confirmation: after a repair, all pages are read again.
            Ok(tasks) if confirms && !tasks.is_empty() => {
                self.write(Decision::confirming_read(Effect::TakePage(tasks), None));
            }
            Ok(tasks) => self.take_page(tasks),
            Err(StoreError::Unavailable(_)) => {
                self.end_page();
                if let Some(action) = self.next_page(now) {
                    self.actions.retry(action, now);
                }
            }
            Err(error) => self.stop(error),
        }
    }

    /// Ends the pending page.
    fn end_page(&mut self) -> Option<PendingPage> {
        let page = self.loader.take_page()?;
        self.reads.close(page.read);
        Some(page)
    }

    /// Holds the tasks of the pending page.
    pub(crate) fn take_page(&mut self, tasks: Vec<Task>) {
        let Some(PendingPage { kind, read }) = self.end_page() else {
            return;
        };
        let end = tasks.last().filter(|_| tasks.len() >= PAGE_MAX).map(Position::of);
        match kind {
            PageKind::Void => {}
            PageKind::Ahead { until } => {
                self.loader.advance(end.unwrap_or(Position::before(until)));
                if end.is_none() && self.tasks.is_half_empty() {
                    self.loader.load_further();
                }
                tasks.into_iter().for_each(|task| self.take_loaded(task, read));
            }
            PageKind::Refill => self.on_refill(tasks, end, read),
        }
    }

    /// Holds a task that was read, unless a decision about it was made since.
    fn take_loaded(&mut self, task: Task, read: ReadToken) {
        if let Some(task) = self.unless_changed(task, read) {
            self.tasks.insert(task);
        }
    }

    /// Returns a task that was read, unless it is in memory or a decision about it was made since.
    /// While one is pending, the task is set aside.
    fn unless_changed(&mut self, task: Task, read: ReadToken) -> Option<Task> {
        let scope = Scope::Task(task.id);
        if self.tasks.contains(task.id) || self.reads.durable_since(scope, read) {
            return None;
        }
        if self.reads.is_undurable(scope) {
            self.loader.set_aside(task);
            return None;
        }
        Some(task)
    }

    /// Holds a task that was looked up for this, if it is due before the horizon.
    pub(crate) fn on_looked_up(&mut self, task: Task, subject: Subject) {
        let read = self.reads.open();
        if !self.writer.must_confirm_reads() {
            self.take_lookup(task, read);
            return self.decide_next(subject);
        }
        let requester = Requester { reply: None, subject: Some(subject) };
        let effect = Effect::TakeLookup(Box::new(task), read);
        self.write(Decision::confirming_read(effect, Some(requester)));
    }

    /// Holds a task as of a read, if it is due before the horizon.
    pub(crate) fn take_lookup(&mut self, task: Task, read: ReadToken) {
        self.reads.close(read);
        if let Some(task) = self.unless_changed(task, read) {
            self.file(task);
        }
    }

    fn on_refill(&mut self, tasks: Vec<Task>, end: Option<Position>, read: ReadToken) {
        for task in tasks {
            if self.deliveries.accepts_spilled(&task, self.tasks.queued()) {
                self.take_loaded(task, read);
            }
        }
        let next = end.filter(|_| self.deliveries.is_refilling());
        if self.loader.continue_refill(next) && next.is_none() {
            self.deliveries.refilled();
        }
    }

    /// Makes space: if lanes hold most of memory, the longest spills its later half; otherwise the
    /// horizon comes nearer.
    fn make_space(&mut self) {
        if let Some((lane, len)) = self.deliveries.longest_lane()
            && len >= self.tasks.len() / 4
            && len > 1
        {
            return self.shorten_lane(lane, len / 2);
        }
        if let Some(horizon) = self.loader.load_nearer(self.tasks.time()) {
            self.tasks.remove_waiting_after(horizon);
        }
    }

    /// Returns when the next page is due.
    pub(crate) fn next_load(&self) -> Option<Timestamp> {
        let waits = self.must_not_load() || self.loader.is_reading() || self.tasks.is_full();
        (!waits).then(|| self.loader.next_page_at())
    }
}
