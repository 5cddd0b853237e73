//! A task that was parsed and checked, before it is sent to its owner.

use punctual_core::NewTask;
use punctual_engine::{Condition, Receipt, ScheduleCommand, StartState};

/// A checked task, and the state in which it starts.
#[derive(Debug, Clone)]
pub(crate) struct TaskToSchedule {
    pub(crate) new_task: NewTask,
    pub(crate) start: StartState,
}

impl TaskToSchedule {
    /// `paused` is what the caller sent; absent means false.
    pub(crate) fn new(new_task: NewTask, paused: Option<bool>) -> Self {
        let start = match paused {
            Some(true) => StartState::Paused,
            Some(false) | None => StartState::Scheduled,
        };
        Self { new_task, start }
    }

    /// The command for the owner of the task.
    pub(crate) fn into_command(
        self,
        condition: Condition,
        receipt: Option<Receipt>,
    ) -> ScheduleCommand {
        let Self { new_task, start } = self;
        ScheduleCommand { new_task: new_task.into(), condition, receipt, start }
    }
}
