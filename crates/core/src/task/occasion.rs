//! Why there is a fire, and when the current fire of a task is due.
//!
//! A fire comes from the schedule, from a caller who asked for one, or from a watch that was
//! touched after it had fired. Jitter applies only to fires of a schedule. It is derived from the
//! fire id, so every broker computes the same due time before and after a crash.

use std::time::Duration;

use crate::attempt::AttemptNo;
use crate::{Due, FireId, Schedule, Task, TaskState, Timestamp, Version};

/// Why there is a fire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Occasion {
    /// The schedule is due.
    #[default]
    Due,
    /// A caller asked for a fire in addition to the schedule.
    Manual,
    /// A watch was touched after it had fired.
    Return,
}

impl Task {
    /// When the current fire is due: its nominal time, plus jitter for a fire of a series.
    #[must_use]
    pub fn due_at(&self) -> Timestamp {
        let schedule = &self.definition.schedule;
        match (schedule, schedule.series()) {
            // A redriven fire of another task: its schedule has the time at which it was due.
            (Schedule::Once(Due::At(at)), _) if self.origin().is_some() => *at,
            (_, Some(series)) if self.occasion == Occasion::Due => {
                let fire_id = FireId { task: self.id, nominal_at: self.nominal_at };
                self.nominal_at.after(jitter_of(fire_id, series.jitter))
            }
            _ => self.nominal_at,
        }
    }

    /// Whether the task stays after a fire: it is due again, or will be when it is touched.
    #[must_use]
    pub fn recurs(&self) -> bool {
        !matches!(self.definition.schedule, Schedule::Once(_))
    }

    /// Returns the task with a fire that a caller asked for at `now`. A retry or a redrive that is
    /// pending is made now. Otherwise there is a manual fire, and the fires of the schedule follow
    /// at their times.
    #[must_use]
    pub fn fired_manually(self, now: Timestamp) -> Self {
        if self.redrive.is_some() || !self.attempts.is_empty() {
            return Self { fire_at: now.min(self.fire_at), ..self };
        }
        if let Some(task) = self.with_overlapping_retry_at(now) {
            return task;
        }
        match (self.occasion, self.resumes_at) {
            // It is about to be fired.
            (Occasion::Manual | Occasion::Return, _) => self,
            (Occasion::Due, None) if self.overlapping.is_empty() => {
                let silent = matches!(self.state, TaskState::Done | TaskState::Dead);
                let resumes_at = (!silent).then_some(self.nominal_at);
                let at = self.free_nominal_at(now);
                let (occasion, state) = (Occasion::Manual, TaskState::Scheduled);
                let (fire_at, nominal_at, updated_at) = (at, at, now);
                Self { fire_at, nominal_at, resumes_at, occasion, state, updated_at, ..self }
            }
            (Occasion::Due, _) => {
                let at = self.free_nominal_at(now);
                self.with_manual_fire(at)
            }
        }
    }

    /// A fire is identified by its nominal time, so a manual one needs one that no other has. A
    /// manual fire that has ended within this millisecond has changed the task.
    fn free_nominal_at(&self, now: Timestamp) -> Timestamp {
        let changed = self.version != Version::FIRST && self.updated_at >= now;
        let mut at = if changed { now.after(Duration::from_millis(1)) } else { now };
        while self.nominal_at == at || self.overlapping.iter().any(|fire| fire.nominal_at == at) {
            at = at.after(Duration::from_millis(1));
        }
        at
    }
}

/// A part of `jitter`, always the same for the same fire.
fn jitter_of(fire_id: FireId, jitter: Duration) -> Duration {
    let millis = u64::try_from(jitter.as_millis()).unwrap_or(u64::MAX - 1);
    match millis {
        0 => Duration::ZERO,
        millis => Duration::from_millis(fire_id.entropy(AttemptNo::new(0)) % (millis + 1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Series;
    use crate::task::fixtures::{SECOND, at, due_once_at, every_second};

    #[test]
    fn jitter_delays_a_fire_within_its_bound_and_always_by_the_same() {
        let mut task = every_second(Series { jitter: SECOND, ..Series::default() });
        let mut delays = Vec::new();
        for second in 1..50 {
            assert_eq!(task.nominal_at, at(second));
            assert_eq!(task.fire_at, task.due_at());
            delays.push(task.fire_at.since(task.nominal_at));
            task = task.next_step(TaskState::Done, task.fire_at).next.unwrap();
        }
        assert!(delays.iter().all(|delay| *delay <= SECOND));
        delays.sort();
        delays.dedup();
        assert!(delays.len() > 25, "spread: {delays:?}");
    }

    #[test]
    fn a_manual_fire_has_its_own_id_and_leaves_the_schedule_unchanged() {
        let task = due_once_at(7);
        let next = |task: &Task| task.next_step(TaskState::Done, Timestamp::MAX).next;
        assert_eq!(next(&task), None, "due once");
        let manual = task.clone().fired_manually(Timestamp::from_millis(5));
        assert_ne!(manual.fire().id, task.fire().id);
        assert_eq!(manual.fire_at, Timestamp::from_millis(5));
        let updated_at = Timestamp::from_millis(5);
        assert_eq!(next(&manual), Some(Task { updated_at, ..task }));
    }
}
