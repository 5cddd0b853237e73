//! Sweeping: once a minute the store deletes history and dead letters that are past their
//! retention.

use punctual_core::Timestamp;
use punctual_store::{StoreError, Swept};

use crate::event::Action;
use crate::owner::Owner;
use crate::ownership::SWEEP_EVERY;

impl Owner {
    /// Starts a sweep if one is due.
    pub(crate) fn sweep(&mut self, now: Timestamp) {
        if self.tenure.sweeps_at.is_some_and(|at| at <= now) {
            self.tenure.sweeps_at = None;
            self.actions.push(Action::Sweep(now));
        }
    }

    pub(crate) fn on_swept(&mut self, result: Result<Swept, StoreError>, now: Timestamp) {
        self.tenure.sweeps_at = Some(now.after(SWEEP_EVERY));
        match result {
            Ok(Swept { history: 0, dead: 0 }) => {}
            Ok(Swept { history, dead }) => {
                tracing::info!(partition = %self.tenure.partition, history, dead, "swept");
            }
            // The store logs what is damaged.
            Err(StoreError::Unavailable(_) | StoreError::Full { .. } | StoreError::Damaged(_)) => {}
            Err(error) => self.stop(error),
        }
    }
}
