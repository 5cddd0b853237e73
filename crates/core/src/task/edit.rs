//! Editing in place: a new definition for a task that keeps its id.
//!
//! Series and watches are edited in place; a task that is due once is replaced instead. An edit
//! never fires a nominal time twice, and drops none that is still due under both definitions.

use std::sync::Arc;

use crate::{Guarantee, NewTask, Schedule, Task, TaskState, Timestamp};

/// A task with another definition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Edited {
    /// The times are the same: open fires stay open, and their further attempts use the new
    /// definition.
    SameTimes(Task),
    /// The schedule starts again under the same id: open fires are dropped.
    Restarted(Task),
}

impl Task {
    /// Returns the task with another definition, or `None` if it would never fire. `fired` means
    /// that an attempt of one of its fires is in flight.
    #[must_use]
    pub fn edited(&self, definition: Arc<NewTask>, fired: bool, now: Timestamp) -> Option<Edited> {
        let new = Arc::clone(&definition);
        let version = self.version.next();
        let task = Self { definition, version, updated_at: now, ..self.clone() };
        let reaches = |at| new.schedule.series().is_some_and(|series| series.reaches(at));
        let begun = fired || !self.is_fresh();
        let keeps_fire = begun || reaches(self.nominal_at);
        // Under at-most-once, nothing that may have been sent already is sent again.
        let becomes_at_most_once = new.guarantee == Guarantee::AtMostOnce
            && self.definition.guarantee != Guarantee::AtMostOnce;
        let doubles = becomes_at_most_once && (begun || !self.overlapping.is_empty());
        if same_times(&self.definition.schedule, &new.schedule) && keeps_fire && !doubles {
            return Some(Edited::SameTimes(task));
        }
        let task = Self { overlapping: Vec::new(), resumes_at: None, given_at: None, ..task };
        if let Schedule::Watch { within, .. } = &new.schedule {
            let paused = self.state == TaskState::Paused;
            let state = if paused { self.state } else { TaskState::Scheduled };
            let armed = Self { armed_at: Some(now), state, ..task.at_nominal(now.after(*within)) };
            return Some(Edited::Restarted(armed));
        }
        let series = new.schedule.series()?;
        // The current fire may be one of the new schedule, and not sent yet.
        let next_is = |at: Timestamp| new.schedule.next_at(at.millis_before(1)) == Some(at);
        let cron = matches!(new.schedule, Schedule::Cron { .. });
        if cron && !fired && self.is_fresh() && next_is(self.nominal_at) {
            return Some(Edited::Restarted(task.at_nominal(self.nominal_at)));
        }
        let fires = task.fires.saturating_add(u32::from(begun));
        if series.count.is_some_and(|count| fires > count) {
            return None;
        }
        let first_at = new.schedule.first_at(now)?;
        Some(Edited::Restarted(Self { fires, ..task.at_nominal(first_at) }))
    }

    /// Whether a new definition under the same key edits this task, which then keeps its id,
    /// rather than replaces it.
    #[must_use]
    pub fn is_edited_by(&self, new: &NewTask) -> bool {
        let (old, new) = (&self.definition.schedule, &new.schedule);
        let watches = matches!((old, new), (Schedule::Watch { .. }, Schedule::Watch { .. }));
        watches || (old.series().is_some() && new.series().is_some())
    }
}

/// Whether two schedules are due at the same times, apart from where they end.
fn same_times(old: &Schedule, new: &Schedule) -> bool {
    match (old, new) {
        (
            Schedule::Every { interval, series },
            Schedule::Every { interval: other, series: others },
        ) => interval == other && series.starts_at == others.starts_at,
        (Schedule::Cron { cron, .. }, Schedule::Cron { cron: other, .. }) => cron == other,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::fixtures::{SECOND, at, every_second, task, watch};
    use crate::{Cron, Dst, Series, Zone};

    fn edited(task: &Task, schedule: Schedule, fired: bool, now: u64) -> Option<u64> {
        let definition = NewTask { schedule, ..NewTask::clone(&task.definition) };
        let (Edited::SameTimes(edited) | Edited::Restarted(edited)) =
            task.edited(definition.into(), fired, at(now))?;
        assert_eq!((edited.id, edited.version), (task.id, task.version.next()));
        Some(edited.nominal_at.as_millis() / 1000)
    }

    fn cron(expression: &str) -> Schedule {
        let cron = Cron::new(expression, Zone::utc(), Dst::default()).unwrap();
        Schedule::Cron { cron: cron.into(), series: Arc::default() }
    }

    #[test]
    fn an_edited_task_follows_its_new_schedule_and_neither_repeats_nor_loses_a_fire() {
        let minutes = task(cron("* * * * *"));
        assert_eq!(minutes.nominal_at, at(60));
        for (schedule, fired, now, want, why) in [
            (cron("* * * * *"), false, 30, 60, "nothing changes"),
            (cron("* * * * *"), false, 61, 60, "due and not fired yet: it is still fired"),
            (cron("* * * * *"), true, 61, 60, "in flight: it stays so"),
            (cron("*/10 * * * * *"), true, 61, 70, "fired already"),
            (cron("30 * * * * *"), false, 61, 90, "its time is none of the new ones"),
            (cron("*/10 * * * * *"), false, 31, 60, "it is one of the new ones"),
            (Schedule::every(SECOND * 7), false, 30, 37, "from now on"),
        ] {
            assert_eq!(edited(&minutes, schedule, fired, now), Some(want), "{why}");
        }
        let every = every_second(Series::default());
        assert_eq!(edited(&every, Schedule::every(SECOND), false, 0), Some(1));
        let same_interval = edited(&every, Schedule::every(SECOND), true, 5);
        assert_eq!(same_interval, Some(1), "the same interval keeps its phase");
        assert_eq!(edited(&every, Schedule::every(SECOND * 2), false, 0), Some(2));
        let over = Series { ends_at: Some(at(0)), ..Series::default() };
        let over = Schedule::Every { interval: SECOND, series: over.into() };
        assert_eq!(edited(&every, over, false, 0), None, "it would never fire");
        assert_eq!(edited(&watch(false, None), Schedule::watch(SECOND * 5), false, 7), Some(12));
    }
}
