//! Calls that wait for the next batch while one is being written.
//!
//! A small call that only adds tasks cannot be answered before the next batch, so it waits here
//! without waking the owner's thread: waking it for each of 64 callers between two writes costs
//! more than all of their tasks (`docs/adr/0014-fewer-thread-wakeups.md`). When the batch in
//! flight is answered, all waiting calls become events in arrival order. `COMMANDS_MAX` of the
//! handle bounds how many wait.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::handle::call::Call;

/// Commands of a call that may wait. A larger call is better decided while the batch is written.
const WAITING_COMMANDS_MAX: usize = 16;

/// The calls that wait for the batch in flight; `None` while there is none.
#[derive(Debug, Default)]
pub(crate) struct NextBatch(Mutex<Option<Vec<Call>>>);

impl NextBatch {
    /// Lets calls wait: a batch is in flight from now on.
    pub(crate) fn open(&self) {
        self.waiting().get_or_insert_default();
    }

    /// Returns the waiting calls in arrival order. No call waits until the next
    /// [`open`](Self::open).
    pub(crate) fn close(&self) -> Vec<Call> {
        self.waiting().take().unwrap_or_default()
    }

    /// Adds a call, or returns it if it must not wait.
    pub(crate) fn wait(&self, call: Call) -> Option<Call> {
        if !can_wait(&call) {
            return Some(call);
        }
        match self.waiting().as_mut() {
            Some(waiting) => waiting.push(call),
            None => return Some(call),
        }
        None
    }

    fn waiting(&self) -> MutexGuard<'_, Option<Vec<Call>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether the call can only be answered with the next batch.
fn can_wait(call: &Call) -> bool {
    call.commands.len() <= WAITING_COMMANDS_MAX
        && call.commands.iter().all(|command| command.only_adds())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use punctual_core::{Due, Namespace, NewTask, Queue, Schedule, Target, TaskKey};

    use super::*;
    use crate::handle::command::{Command, Condition, ScheduleCommand, StartState, Subject};

    fn schedule(key: Option<&str>) -> Command {
        let due = Schedule::Once(Due::In(Duration::from_secs(1)));
        let target = Target::Queue(Queue::new("mail").unwrap());
        let mut new_task = NewTask::new(Namespace::new("shop").unwrap(), due, target);
        new_task.key = key.map(|key| TaskKey::new(key).unwrap());
        let (new_task, condition) = (Arc::new(new_task), Condition::Always);
        Command::Schedule(ScheduleCommand {
            new_task,
            condition,
            receipt: None,
            start: StartState::Scheduled,
        })
    }

    fn wait(next_batch: &NextBatch, commands: Vec<Command>) -> bool {
        next_batch.wait(Call::new(commands).0).is_none()
    }

    #[test]
    fn small_calls_for_tasks_without_a_key_wait_while_a_batch_is_written() {
        let next_batch = NextBatch::default();
        assert!(!wait(&next_batch, vec![schedule(None)]), "nothing is being written");
        next_batch.open();
        assert!(wait(&next_batch, vec![schedule(None)]));
        assert!(wait(&next_batch, vec![schedule(None), schedule(None)]));
        next_batch.open();
        let waited: Vec<_> = next_batch.close().iter().map(|call| call.commands.len()).collect();
        assert_eq!(waited, [1, 2]);
        assert!(!wait(&next_batch, vec![schedule(None)]), "it is written");
        assert!(next_batch.close().is_empty());
    }

    #[test]
    fn calls_that_need_a_lookup_or_are_large_do_not_wait() {
        let next_batch = NextBatch::default();
        next_batch.open();
        let subject = Subject::Key(Namespace::new("shop").unwrap(), TaskKey::new("a").unwrap());
        assert!(!wait(&next_batch, vec![schedule(Some("a"))]));
        assert!(!wait(&next_batch, vec![Command::Get(subject)]));
        assert!(!wait(&next_batch, vec![schedule(None), schedule(Some("a"))]));
        assert!(!wait(&next_batch, vec![schedule(None); WAITING_COMMANDS_MAX + 1]));
        assert!(next_batch.close().is_empty());
    }
}
