//! Firing: a task's time has come.
//!
//! In: the time. Out: tasks in their lanes, in the order of their times. Invariant: nothing passes here before its `fire_at`.

use punctual_core::Timestamp;

use crate::memory::Phase;
use crate::owner::Owner;

impl Owner {
    /// Fires all that is due.
    pub(crate) fn fire(&mut self, now: Timestamp) {
        for id in self.memory.due(now) {
            let Some(loaded) = self.memory.get(id) else {
                continue;
            };
            assert!(loaded.task.fire_at <= now, "a timer was early: {id}");
            assert!(loaded.phase == Phase::Waiting, "only a waiting task has a timer: {id}");
            self.enqueue(id, now);
        }
    }
}
