//! Sweeping: what is over is deleted when its retention is.
//!
//! In: the time. Out: now and then a sweep of the store. Bound: without it, history and dead letters would grow for
//! ever. Not here: how long they are kept (`Retention`), finding them (the store).

use std::time::Duration;

use punctual_core::Timestamp;
use punctual_store::{StoreError, Swept};

use crate::event::Action;
use crate::owner::Owner;

/// From one sweep to the next. Retention is counted in days; a minute more is nothing.
const EVERY: Duration = Duration::from_secs(60);

/// When the next sweep is due; `None` while one is under way.
#[derive(Debug)]
pub(crate) struct Sweeper(Option<Timestamp>);

impl Sweeper {
    /// The first sweep waits its turn: a start has more urgent things to do.
    pub(crate) fn new(now: Timestamp) -> Self {
        Self(Some(now.after(EVERY)))
    }

    pub(crate) const fn due(&self) -> Option<Timestamp> {
        self.0
    }
}

impl Owner {
    pub(crate) fn sweep(&mut self, now: Timestamp) {
        if self.sweeper.0.is_some_and(|at| at <= now) {
            self.sweeper.0 = None;
            self.actions.push(Action::Sweep(now));
        }
    }

    pub(crate) fn on_swept(&mut self, result: Result<Swept, StoreError>, now: Timestamp) {
        self.sweeper.0 = Some(now.after(EVERY));
        match result {
            Ok(Swept { history: 0, dead: 0 }) => {}
            Ok(swept) => {
                let (history, dead) = (swept.history, swept.dead);
                tracing::info!(partition = %self.partition, history, dead, "swept");
            }
            Err(StoreError::Unavailable(_) | StoreError::Full { .. }) => {}
            Err(error) => self.stop(error),
        }
    }
}
