//! How far the store was read into memory, and which page is being read.
//!
//! Two readings share one page at a time. The first reads ahead of time up to the horizon, so that
//! no fire waits for a scan. The second, the refill, reads again from an earlier position on what
//! full lanes have spilled. `load` has the steps of the owner that use this.

use std::collections::HashMap;
use std::time::Duration;

use punctual_core::{Task, TaskId, Timestamp};
use punctual_store::Position;

use crate::commands::read_tracker::ReadToken;

/// How far ahead of time memory is loaded by default, unless it is short: long enough to hide a
/// slow disk or a Redis that fails over, short enough to hold only what is due soon.
pub(crate) const AHEAD: Duration = Duration::from_secs(30);
/// The least.
const AHEAD_MIN: Duration = Duration::from_secs(1);

/// How far loading has come.
#[derive(Debug)]
pub(crate) struct Loader {
    cursor: Position,
    /// How far ahead to load.
    ahead: Duration,
    /// The most.
    ahead_max: Duration,
    /// How far the refill has come, while there is one.
    refill: Option<Position>,
    /// The refill was set to an earlier position since its last page was requested.
    refill_moved: bool,
    page: Option<PendingPage>,
    /// Tasks that were read while a decision about them was not durable. If the decision is undone,
    /// they are as they were read.
    set_aside: HashMap<TaskId, Task>,
}

/// A page that is being read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PendingPage {
    pub(crate) kind: PageKind,
    pub(crate) read: ReadToken,
}

/// What a page is for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum PageKind {
    /// The next tasks up to the horizon.
    Ahead {
        /// Exclusive end of the page.
        until: Timestamp,
    },
    /// Nothing any more: the cursor was moved after the page was requested.
    Void,
    /// Tasks that lanes have spilled.
    Refill,
}

impl Loader {
    pub(crate) fn new(ahead_max: Duration) -> Self {
        Self {
            cursor: Position::START,
            ahead: ahead_max,
            ahead_max,
            refill: None,
            refill_moved: false,
            page: None,
            set_aside: HashMap::new(),
        }
    }

    /// Returns how far the store was read.
    pub(crate) const fn cursor(&self) -> Position {
        self.cursor
    }

    /// Returns how far the refill has come, while there is one.
    pub(crate) const fn refill_position(&self) -> Option<Position> {
        self.refill
    }

    /// Whether the task at a position is held in memory: it is before the cursor, or within the
    /// page that is being read.
    pub(crate) fn covers(&self, position: Position) -> bool {
        let in_page = match self.page {
            Some(PendingPage { kind: PageKind::Ahead { until }, .. }) => position.fire_at < until,
            _ => false,
        };
        position <= self.cursor || in_page
    }

    /// Keeps a task that was read while a decision about it was not durable.
    pub(crate) fn set_aside(&mut self, task: Task) {
        self.set_aside.insert(task.id, task);
    }

    pub(crate) fn take_aside(&mut self, id: TaskId) -> Option<Task> {
        self.set_aside.remove(&id)
    }

    pub(crate) fn forget_aside(&mut self, id: TaskId) {
        if !self.set_aside.is_empty() {
            self.set_aside.remove(&id);
        }
    }

    /// Reads the store again from the beginning and ignores the page that is being read. What is in
    /// memory stays.
    pub(crate) const fn restart(&mut self) {
        self.cursor = Position::START;
        if let Some(page) = &mut self.page {
            page.kind = PageKind::Void;
        }
    }

    /// Whether the page that is being read is ignored.
    pub(crate) const fn ignores_page(&self) -> bool {
        matches!(self.page, Some(PendingPage { kind: PageKind::Void, .. }))
    }

    /// Reads again what a lane has spilled, from a position on.
    pub(crate) fn refill_from(&mut self, spilled: Position) {
        // Not from the beginning of its millisecond: of many tasks that are due at once, all before
        // this one are in memory or done.
        let from = spilled.just_before();
        self.refill = Some(self.refill.map_or(from, |refill| refill.min(from)));
        // The page that is being read may lack what was spilled since it was requested.
        self.refill_moved = true;
    }

    /// Ends the refill, or continues it from the end of its last page. Returns `false` if it was
    /// set to an earlier position meanwhile and continues there.
    pub(crate) const fn continue_refill(&mut self, from: Option<Position>) -> bool {
        if !self.refill_moved {
            self.refill = from;
        }
        !self.refill_moved
    }

    pub(crate) const fn is_reading(&self) -> bool {
        self.page.is_some()
    }

    /// Whether the first reading has come so near to the present that it must continue.
    pub(crate) fn is_behind(&self, now: Timestamp) -> bool {
        self.cursor.fire_at <= now.after(self.ahead / 2)
    }

    /// Requests the next page up to the horizon. Returns its start and end.
    pub(crate) fn request_ahead(
        &mut self,
        read: ReadToken,
        now: Timestamp,
    ) -> (Position, Timestamp) {
        let until = now.after(self.ahead);
        self.page = Some(PendingPage { kind: PageKind::Ahead { until }, read });
        (self.cursor, until)
    }

    /// Requests the next page of the refill. Returns its start and end.
    pub(crate) fn request_refill(
        &mut self,
        after: Position,
        read: ReadToken,
    ) -> (Position, Timestamp) {
        self.refill_moved = false;
        self.page = Some(PendingPage { kind: PageKind::Refill, read });
        (after, self.cursor.fire_at.after(Duration::from_millis(1)))
    }

    /// Takes the page that was being read.
    pub(crate) const fn take_page(&mut self) -> Option<PendingPage> {
        self.page.take()
    }

    /// The first reading has come to `cursor`.
    pub(crate) const fn advance(&mut self, cursor: Position) {
        self.cursor = cursor;
    }

    /// Doubles how far ahead to load.
    pub(crate) fn load_further(&mut self) {
        self.ahead = (self.ahead * 2).min(self.ahead_max);
    }

    /// Halves how far ahead to load. If the store was read further than that, moves the cursor
    /// back, ignores the page that is being read ahead, and returns the new horizon.
    pub(crate) fn load_nearer(&mut self, now: Timestamp) -> Option<Position> {
        self.ahead = (self.ahead / 2).max(AHEAD_MIN);
        let horizon = Position::before(now.after(self.ahead));
        if horizon >= self.cursor {
            return None;
        }
        self.cursor = horizon;
        if let Some(PendingPage { kind: kind @ PageKind::Ahead { .. }, .. }) = &mut self.page {
            *kind = PageKind::Void;
        }
        Some(horizon)
    }

    /// Returns when the next page is due.
    pub(crate) fn next_page_at(&self) -> Timestamp {
        let millis = self.cursor.fire_at.as_millis();
        let ahead = u64::try_from((self.ahead / 2).as_millis()).unwrap_or(u64::MAX);
        Timestamp::from_millis(millis.saturating_sub(ahead))
    }
}
