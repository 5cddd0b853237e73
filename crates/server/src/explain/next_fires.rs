//! The next fires of a task, each with its local time and why it is then.

use punctual_core::{OVERLAPS_MAX, Outcome, Schedule, Task, TaskState, Timestamp, format_duration};

use super::zone_of;

/// Fires that an explanation shows.
const NEXT_MAX: usize = 5;

/// One future fire.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UpcomingFire {
    pub(crate) fire_at: Timestamp,
    /// The same time in the time zone of the schedule.
    pub(crate) local: String,
    /// What differs from the plain schedule, if anything does.
    pub(crate) why: Option<String>,
}

/// Returns the next fires if nothing changes. A task that does not fire without a caller has none.
pub(crate) fn next_fires(task: &Task, now: Timestamp) -> Vec<UpcomingFire> {
    let first = match task.state {
        TaskState::Scheduled => Some(task.clone()),
        TaskState::Firing => after_flight(task, now),
        TaskState::Paused | TaskState::Done | TaskState::Dead | TaskState::Cancelled => None,
    };
    let fires = std::iter::successors(first, |task| follows(task, task.fire_at)).take(NEXT_MAX);
    fires.map(|task| UpcomingFire::of(&task)).collect()
}

/// What follows the fire in flight if it ends now: the overlap policy skips what was due meanwhile.
/// Fires that may overlap and are due are in flight or wait in their lane, as many as may be open.
fn after_flight(task: &Task, now: Timestamp) -> Option<Task> {
    let overlapping = task.overlapping.iter().filter(|fire| fire.fire_at > now);
    let mut ended = Task { overlapping: overlapping.cloned().collect(), ..task.clone() };
    if task.fire_at > now {
        // Only fires before this one are in flight.
        return Some(ended);
    }
    ended.add_attempt(task.fire_at, now, Outcome::Acked);
    let mut next = follows(&ended, now)?;
    if task.may_overlap() {
        for _ in task.overlapping.len() + 1..OVERLAPS_MAX {
            if next.fire_at > now {
                break;
            }
            next = follows(&next, now)?;
        }
    }
    Some(next)
}

fn follows(task: &Task, now: Timestamp) -> Option<Task> {
    match task.definition.schedule {
        // What a watch does after its fire is decided by touches.
        Schedule::Watch { .. } => None,
        _ => task.next_step(TaskState::Done, now).next,
    }
}

impl UpcomingFire {
    fn of(task: &Task) -> Self {
        Self { fire_at: task.fire_at, local: zone_of(task).local(task.fire_at), why: why(task) }
    }
}

fn why(task: &Task) -> Option<String> {
    if !task.attempts.is_empty() {
        return Some(format!("attempt {}, a retry", task.attempt_next().get()));
    }
    if task.redrive.is_some() {
        return Some("a dead letter that was redriven".to_owned());
    }
    if let Schedule::Cron { cron, .. } = &task.definition.schedule
        && let Some(note) = cron.note(task.nominal_at)
    {
        return Some(note);
    }
    let moved = task.fire_at.since(task.nominal_at);
    (!moved.is_zero()).then(|| format!("{} of jitter", format_duration(moved)))
}
