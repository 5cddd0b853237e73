//! Loading: tasks come from the store into memory ahead of their time.
//!
//! In: the time. Out: reads of the store, page by page, so that everything before the horizon is in memory
//! before it is due, and nothing on the way of a fire waits for a scan.
//! Invariant: every scheduled task before the cursor is in memory, or something about it is on its way.
//! The one race, a task that is filed while the page it belongs to is being read, is decided in [`Owner::file`]: it is
//! held if it is before the cursor or within the page under way, and what the page brings of it is ignored.

use std::collections::HashMap;
use std::time::Duration;

use punctual_core::{Task, TaskId, Timestamp};
use punctual_store::{Position, StoreError};

use crate::event::Action;
use crate::owner::{Owner, STORE_PAUSE};
use crate::recent::Issued;

/// How far ahead of the time memory is loaded: long enough that a slow disk or a failing-over Redis is
/// not noticed, short enough that memory holds what is near only.
const AHEAD: Duration = Duration::from_secs(30);
/// Loading starts again when less than this is left.
const AHEAD_MIN: Duration = Duration::from_secs(15);
/// Tasks in one page: a few milliseconds of reading.
const PAGE_MAX: usize = 4096;

/// How far loading has come.
#[derive(Debug)]
pub(crate) struct Loader {
    cursor: Position,
    under_way: Option<UnderWay>,
    /// Loaded while a decision about them was on its way: should it be undone, they stand as they were.
    pub(crate) aside: HashMap<TaskId, Task>,
}

#[derive(Debug, Clone, Copy)]
struct UnderWay {
    until: Timestamp,
    issued: Issued,
}

impl Loader {
    pub(crate) fn new() -> Self {
        Self { cursor: Position::START, under_way: None, aside: HashMap::new() }
    }
}

impl Owner {
    /// Whether a task due then is held in memory.
    pub(crate) fn covers(&self, fire_at: Timestamp) -> bool {
        let horizon = self.loader.cursor.fire_at;
        let until = self.loader.under_way.map_or(horizon, |page| page.until.max(horizon));
        fire_at < until
    }

    /// Takes note of how a task stands, now that it is durable.
    pub(crate) fn file(&mut self, task: Task) {
        if self.covers(task.fire_at) {
            self.memory.insert(task);
        } else {
            self.memory.remove(task.id);
        }
    }

    /// Reads the next page if it is time to, and there is room.
    pub(crate) fn load(&mut self, now: Timestamp) {
        if let Some(action) = self.next_page(now) {
            self.actions.push(action);
        }
    }

    fn next_page(&mut self, now: Timestamp) -> Option<Action> {
        let near = self.loader.cursor.fire_at <= now.after(AHEAD_MIN);
        if self.loader.under_way.is_some() || !near || self.memory.is_full() {
            return None;
        }
        let until = now.after(AHEAD);
        let issued = self.recent.open();
        self.loader.under_way = Some(UnderWay { until, issued });
        let after = self.loader.cursor;
        Some(Action::Load { after, until, limit: PAGE_MAX })
    }

    pub(crate) fn on_loaded(&mut self, result: Result<Vec<Task>, StoreError>, now: Timestamp) {
        let Some(page) = self.loader.under_way.take() else {
            return;
        };
        self.recent.close(page.issued);
        let tasks = match result {
            Ok(tasks) => tasks,
            Err(StoreError::Unavailable(_)) => {
                let action = self.next_page(now);
                self.later.extend(action.map(|action| (now.after(STORE_PAUSE), action)));
                return;
            }
            Err(error) => return self.stop(error),
        };
        self.loader.cursor = match tasks.last() {
            Some(last) if tasks.len() >= PAGE_MAX => Position::of(last),
            _ => Position::before(page.until),
        };
        for task in tasks {
            if self.memory.contains(task.id) {
                continue;
            }
            if self.recent.is_undurable(task.id) {
                self.loader.aside.insert(task.id, task);
            } else if !self.recent.changed_since(task.id, page.issued) {
                self.memory.insert(task);
            }
        }
    }

    /// When loading goes on by itself.
    pub(crate) fn next_load(&self) -> Option<Timestamp> {
        let waits = self.loader.under_way.is_some() || self.memory.is_full();
        let millis = self.loader.cursor.fire_at.as_millis();
        let ahead = u64::try_from(AHEAD_MIN.as_millis()).unwrap_or(u64::MAX);
        (!waits).then(|| Timestamp::from_millis(millis.saturating_sub(ahead)))
    }
}
