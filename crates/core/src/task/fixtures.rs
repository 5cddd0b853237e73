//! Tasks for the tests of this folder. Their clock starts at second 0.

use std::time::Duration;

use crate::attempt::{Outcome, Reason};
use crate::{
    Due, Namespace, NewTask, Queue, Schedule, Series, Target, Task, TaskId, Timestamp, Version,
};

pub(super) const SECOND: Duration = Duration::from_secs(1);

pub(super) fn at(seconds: u64) -> Timestamp {
    Timestamp::from_millis(seconds * 1000)
}

pub(super) fn task(schedule: Schedule) -> Task {
    let target = Target::Queue(Queue::new("orders").unwrap());
    let new_task = NewTask::new(Namespace::new("shop").unwrap(), schedule, target);
    let first_at = new_task.schedule.first_at(at(0)).unwrap();
    Task::new(TaskId::floor(first_at), new_task.into(), at(0), Version::FIRST)
}

/// Due every second, first at second 1.
pub(super) fn every_second(series: Series) -> Task {
    task(Schedule::Every { interval: SECOND, series: series.into() })
}

pub(super) fn due_once_at(second: u64) -> Task {
    task(Schedule::Once(Due::At(at(second))))
}

/// A watch of ten seconds.
pub(super) fn watch(on_return: bool, postpone_max: Option<Duration>) -> Task {
    task(Schedule::Watch { within: SECOND * 10, postpone_max, on_return })
}

/// The task after one more failed attempt of its current fire.
pub(super) fn with_attempt(task: Task, fired_at: Timestamp) -> Task {
    let outcome = Outcome::Failed { reason: Reason::new("busy"), retry_in: None };
    let mut task = task;
    task.add_attempt(fired_at, fired_at, outcome);
    task
}
