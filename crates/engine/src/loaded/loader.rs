//! Loading: tasks come from the store into memory ahead of their time.
//!
//! In: the time. Out: reads of the store, page by page, so that everything before the horizon is in memory
//! before it is due, and nothing on the way of a fire waits for a scan. A second reading goes on *behind* the first: it brings
//! back what full lanes let go of, as far as they have room again.
//! Invariant: every scheduled task before the cursor is in memory, or a lane has let go of it, or something about it is on its way.
//! The one race, a task that is filed while the page it belongs to is being read, is decided in [`Owner::file`]: it is
//! held if it is before the cursor or within the page under way, and what the page brings of it is ignored.
//! Bound: the budget of `memory`. When it is used up, the horizon comes nearer and the longest lanes let go of their ends.

use std::collections::HashMap;
use std::time::Duration;

use punctual_core::{Namespace, Task, TaskId, TaskState, Timestamp, Version};
use punctual_store::{Position, StoreError};

use crate::commands::read_tracker::{ReadToken, Scope};
use crate::event::Action;
use crate::owner::{Owner, STORE_PAUSE};

/// How far ahead of the time memory is loaded, unless memory is short: long enough that a slow disk or a failing-over Redis is
/// not noticed, short enough that memory holds what is near only.
const AHEAD: Duration = Duration::from_secs(30);
/// And at least.
const AHEAD_MIN: Duration = Duration::from_secs(1);
/// Tasks in one page: a few milliseconds of reading.
const PAGE_MAX: usize = 4096;

/// How far loading has come.
#[derive(Debug)]
pub(crate) struct Loader {
    cursor: Position,
    /// How far ahead to load.
    ahead: Duration,
    /// How far the second reading has come, while there is one.
    behind: Option<Position>,
    /// It was sent back since its last page was wanted.
    sent_back: bool,
    under_way: Option<UnderWay>,
    /// Loaded while a decision about them was on its way: should it be undone, they stand as they were.
    aside: HashMap<TaskId, Task>,
}

#[derive(Debug, Clone, Copy)]
struct UnderWay {
    page: Page,
    issued: ReadToken,
}

#[derive(Debug, Clone, Copy)]
enum Page {
    Ahead {
        until: Timestamp,
    },
    /// The horizon came nearer after it was wanted: what it brings is ignored.
    Void,
    Behind,
}

impl Loader {
    pub(crate) fn new() -> Self {
        let (cursor, aside) = (Position::START, HashMap::new());
        Self { cursor, ahead: AHEAD, behind: None, sent_back: false, under_way: None, aside }
    }

    pub(crate) fn take_aside(&mut self, id: TaskId) -> Option<Task> {
        self.aside.remove(&id)
    }

    pub(crate) fn forget_aside(&mut self, id: TaskId) {
        if !self.aside.is_empty() {
            self.aside.remove(&id);
        }
    }

    /// What was read is read again from the beginning, and the page under way is ignored. What is in memory stays.
    pub(crate) fn begin_again(&mut self) {
        self.cursor = Position::START;
        if let Some(under_way) = &mut self.under_way {
            under_way.page = Page::Void;
        }
    }

    /// How far the store was read.
    pub(crate) const fn cursor(&self) -> Position {
        self.cursor
    }

    /// Has what a lane let go of, from a place on, brought back.
    pub(crate) fn feed(&mut self, spilled: Position) {
        // Not from the beginning of its millisecond: of a crowd that is due at once, all before it is here or done.
        let from = spilled.just_before();
        self.behind = Some(self.behind.map_or(from, |behind| behind.min(from)));
        // A page that is under way may have missed what was let go of since it was wanted: it is read again.
        self.sent_back = true;
    }

    /// How far the second reading has come, while there is one.
    pub(crate) const fn behind(&self) -> Option<Position> {
        self.behind
    }

    /// Whether a task of this place is held in memory.
    fn covers(&self, position: Position) -> bool {
        let reading = match self.under_way {
            Some(UnderWay { page: Page::Ahead { until }, .. }) => position.fire_at < until,
            _ => false,
        };
        position <= self.cursor || reading
    }
}

impl Owner {
    /// Takes note of how a task stands, now that it is durable.
    pub(crate) fn file(&mut self, task: Task) {
        if self.memory.is_full() {
            self.relieve();
        }
        if task.state == TaskState::Scheduled && self.loader.covers(Position::of(&task)) {
            self.memory.insert(task);
        } else {
            self.memory.remove(task.id);
        }
    }

    /// The same when other fires of the task may be under way: as long as they are, it stays in memory wherever it stands.
    pub(crate) fn file_durable(&mut self, task: Task, now: Timestamp) {
        if self.memory.get(task.id).is_none_or(|loaded| loaded.in_flight.is_empty()) {
            return self.file(task);
        }
        for report in self.memory.refile(task) {
            self.settle(report, now);
        }
    }

    /// The same when only the time and the version of a task have changed.
    pub(crate) fn postponed(
        &mut self,
        namespace: Namespace,
        id: TaskId,
        fire_at: Timestamp,
        version: Version,
    ) {
        if let Some(loaded) = self.memory.get(id) {
            let task = Task { fire_at, nominal_at: fire_at, version, ..loaded.task.clone() };
            self.file(task);
        } else if self.loader.covers(Position { fire_at, id }) {
            self.hold(namespace, id);
        }
    }

    /// Reads the next page if it is time to, and there is room.
    pub(crate) fn load(&mut self, now: Timestamp) {
        if let Some(action) = self.next_page(now) {
            self.actions.push(action);
        }
    }

    fn next_page(&mut self, now: Timestamp) -> Option<Action> {
        // First those that are here and due get their places: whether there is room shows afterwards. And a store that has forgotten
        // batches is asked for nothing until it has them again.
        let waits = self.memory.has_rung() || self.writer.is_rewound();
        if self.loader.under_way.is_some() || waits {
            return None;
        }
        if self.memory.is_full() {
            self.relieve();
        }
        let near = self.loader.cursor.fire_at <= now.after(self.loader.ahead / 2);
        if self.memory.is_full() || !(near || self.loader.behind.is_some()) {
            return None;
        }
        let issued = self.recent.open();
        let limit = PAGE_MAX;
        if near {
            let until = now.after(self.loader.ahead);
            self.loader.under_way = Some(UnderWay { page: Page::Ahead { until }, issued });
            return Some(Action::Load { after: self.loader.cursor, until, limit });
        }
        let after = self.loader.behind?;
        self.loader.sent_back = false;
        let until = self.loader.cursor.fire_at.after(Duration::from_millis(1));
        self.loader.under_way = Some(UnderWay { page: Page::Behind, issued });
        Some(Action::Load { after, until, limit })
    }

    pub(crate) fn on_loaded(&mut self, result: Result<Vec<Task>, StoreError>, now: Timestamp) {
        let Some(UnderWay { page, issued }) = self.loader.under_way.take() else {
            return;
        };
        self.recent.close(issued);
        let tasks = match result {
            Ok(tasks) => tasks,
            Err(StoreError::Unavailable(_)) => {
                let action = self.next_page(now);
                self.later.extend(action.map(|action| (now.after(STORE_PAUSE), action)));
                return;
            }
            Err(error) => return self.stop(error),
        };
        let end = tasks.last().filter(|_| tasks.len() >= PAGE_MAX).map(Position::of);
        match page {
            Page::Void => {}
            Page::Ahead { until } => {
                self.loader.cursor = end.unwrap_or(Position::before(until));
                if end.is_none() && self.memory.is_roomy() {
                    self.loader.ahead = (self.loader.ahead * 2).min(AHEAD);
                }
                tasks.into_iter().for_each(|task| self.take_in(task, issued));
            }
            Page::Behind => self.on_behind(tasks, end, issued),
        }
    }

    /// Holds a task that a page brought, unless something about it was decided since.
    fn take_in(&mut self, task: Task, issued: ReadToken) {
        if self.memory.contains(task.id) {
            return;
        }
        if self.recent.is_undurable(Scope::Task(task.id)) {
            self.loader.aside.insert(task.id, task);
        } else if !self.recent.durable_since(Scope::Task(task.id), issued) {
            self.memory.insert(task);
        }
    }

    fn on_behind(&mut self, tasks: Vec<Task>, end: Option<Position>, issued: ReadToken) {
        for task in tasks {
            if self.lanes.takes(&task) {
                self.take_in(task, issued);
            }
        }
        // It may have been sent back to an earlier place meanwhile; then it goes on from there.
        if self.loader.sent_back {
            return;
        }
        self.loader.behind = end.filter(|_| self.lanes.is_feeding());
        if self.loader.behind.is_none() {
            self.lanes.fed();
        }
    }

    /// Makes room: the longest lane lets go of its later half if lanes hold most of memory, otherwise the horizon comes nearer.
    fn relieve(&mut self) {
        let longest = self.lanes.iter().max_by_key(|(_, lane)| lane.len());
        if let Some((lane, len)) = longest.map(|(lane, line)| (lane, line.len()))
            && len >= self.memory.len() / 4
            && len > 1
        {
            return self.let_go(lane, len / 2);
        }
        let now = self.memory.time();
        self.loader.ahead = (self.loader.ahead / 2).max(AHEAD_MIN);
        let horizon = Position::before(now.after(self.loader.ahead));
        if horizon < self.loader.cursor {
            self.memory.drop_waiting_after(horizon);
            self.loader.cursor = horizon;
            if let Some(UnderWay { page: page @ Page::Ahead { .. }, .. }) =
                &mut self.loader.under_way
            {
                *page = Page::Void;
            }
        }
    }

    /// When loading goes on by itself.
    pub(crate) fn next_load(&self) -> Option<Timestamp> {
        let waits = self.memory.has_rung() || self.writer.is_rewound();
        let waits = waits || self.loader.under_way.is_some() || self.memory.is_full();
        let millis = self.loader.cursor.fire_at.as_millis();
        let ahead = u64::try_from((self.loader.ahead / 2).as_millis()).unwrap_or(u64::MAX);
        (!waits).then(|| Timestamp::from_millis(millis.saturating_sub(ahead)))
    }
}
