//! Firing: a task's time has come.
//!
//! In: the time. Out: tasks in their lanes, ready to be carried; or a decision first, where one is due before the
//! first byte: a fire that is past its sense, and the claim of a task that may be received at most once.
//! Invariant: nothing passes here before its `fire_at`.

use punctual_core::{DeadLetter, DeadReason, Guarantee, TaskId, Timestamp};
use punctual_store::Change;

use crate::memory::Phase;
use crate::owner::Owner;
use crate::write::{Decision, Effect};

impl Owner {
    /// Fires all that is due.
    pub(crate) fn fire(&mut self, now: Timestamp) {
        for id in self.memory.due(now) {
            self.fire_one(id, now);
        }
    }

    fn fire_one(&mut self, id: TaskId, now: Timestamp) {
        let Some(loaded) = self.memory.get(id) else {
            return;
        };
        assert!(loaded.task.fire_at <= now, "a timer was early: {id}");
        assert!(loaded.phase == Phase::Waiting, "only a waiting task has a timer: {id}");
        let task = loaded.task.clone();
        if task.expires_at().is_some_and(|expires_at| expires_at <= now) {
            let letter = DeadLetter { died_at: now, reason: DeadReason::Expired, task };
            let was = letter.task.state;
            let changes = vec![Change::Dead { letter, next: None, was }];
            return self.write(Decision { changes, effects: vec![Effect::Leave(id)] });
        }
        if task.definition.guarantee == Guarantee::AtMostOnce {
            // Whatever happens from here on, it is known as a dead letter with an unknown outcome until
            // its outcome is known. A crash leaves just that.
            let claimed = task.clone();
            let letter = DeadLetter { died_at: now, reason: DeadReason::Unknown, task };
            let was = letter.task.state;
            let changes = vec![Change::Dead { letter, next: None, was }];
            return self.write(Decision { changes, effects: vec![Effect::Send(claimed)] });
        }
        self.enqueue(id, now);
    }
}
