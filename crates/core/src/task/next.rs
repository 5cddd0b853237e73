//! What follows a fire: the next fire of the task, and the fires that a policy skips before it.
//!
//! Every function here is pure, so each broker decides the same before and after a crash. Each
//! nominal time is given out once and in order, and each one that is not fired is reported as
//! skipped. The times themselves come from `schedule` and `cron`; `settle` decides whether an
//! attempt is retried.

use crate::fire::{SkipReason, Skipped};
use crate::limits::{MISFIRE_AFTER, MISFIRES_MAX};
use crate::{Guarantee, Misfire, Occasion, Overlap, Schedule, Task, TaskState, Timestamp};

/// What follows a fire.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NextStep {
    /// The fires that a policy skips, and the task as it was before the first of them.
    pub skipped: Option<(Task, Skipped)>,
    /// The task before its next fire; `None` if it is over.
    pub next: Option<Task>,
}

impl Task {
    /// What follows when the current fire has ended. `silent` is the state of a watch until it is
    /// touched.
    #[must_use]
    pub fn next_step(&self, silent: TaskState, now: Timestamp) -> NextStep {
        let next = match &self.definition.schedule {
            Schedule::Once(_) => self.resumes_at.map(|at| self.at_nominal(at)),
            Schedule::Watch { on_return, .. } => {
                Some(self.watch_next_step(*on_return, silent, now))
            }
            Schedule::Every { .. } | Schedule::Cron { .. } => return self.series_next_step(now),
        };
        NextStep { skipped: None, next }
    }

    fn series_next_step(&self, now: Timestamp) -> NextStep {
        let Some(next) = self.next_of_series() else {
            return NextStep { skipped: None, next: self.next_overlapping() };
        };
        let overlap = self.definition.schedule.series().map(|series| series.overlap);
        // At most once: the claim is written before the first attempt, with the task's next fire.
        let claimed_at = (self.definition.guarantee == Guarantee::AtMostOnce).then_some(now);
        let started_at = self.attempts.first().map(|attempt| attempt.fired_at).or(claimed_at);
        let floor = match overlap.unwrap_or_default() {
            Overlap::Allow => None,
            Overlap::Skip => started_at.map(|_| now),
            Overlap::QueueOne => started_at,
        };
        match floor.filter(|floor| next.nominal_at < *floor) {
            None => NextStep { skipped: None, next: Some(next) },
            Some(floor) => next.skip_until(floor.millis_before(1), SkipReason::Overlap),
        }
    }

    /// What the misfire policy skips, and what it fires instead, if the current fire is more than
    /// [`MISFIRE_AFTER`] late. `None` if the current fire is to be fired as it is.
    #[must_use]
    pub fn missed(&self, now: Timestamp) -> Option<NextStep> {
        let schedule = &self.definition.schedule;
        let series = schedule.series()?;
        if !self.is_fresh() || now.since(self.fire_at) <= MISFIRE_AFTER {
            return None;
        }
        let last = |until, count| schedule.last_until(self.nominal_at, until, count);
        let first_kept = match series.misfire {
            Misfire::FireOnce => last(now, 1).first().copied(),
            Misfire::FireAll => last(now, MISFIRES_MAX).first().copied(),
            Misfire::Skip => {
                let grace = u64::try_from(MISFIRE_AFTER.as_millis()).unwrap_or_default();
                let until = now.millis_before(grace + 1).max(self.nominal_at);
                return Some(self.skip_until(until, SkipReason::Misfire));
            }
        };
        let first_kept = first_kept.filter(|at| *at > self.nominal_at)?;
        Some(self.skip_until(first_kept.millis_before(1), SkipReason::Misfire))
    }

    /// What follows when a paused task is resumed: a series skips the fires that were due
    /// meanwhile, and a watch is armed anew. Fires that were given out before stay: a retry, a
    /// manual fire, overlapping fires.
    #[must_use]
    pub fn resumed(&self, now: Timestamp) -> NextStep {
        let task = Self { state: TaskState::Scheduled, ..self.clone() };
        let fresh = task.is_fresh();
        match &task.definition.schedule {
            Schedule::Every { .. } | Schedule::Cron { .. } if fresh && task.nominal_at <= now => {
                task.skip_until(now, SkipReason::Paused)
            }
            Schedule::Every { .. } | Schedule::Cron { .. } if !fresh => {
                task.skip_later_until(now, SkipReason::Paused)
            }
            Schedule::Watch { within, .. } if fresh => {
                let next = Self { armed_at: Some(now), ..task.at_nominal(now.after(*within)) };
                NextStep { skipped: None, next: Some(next) }
            }
            _ => NextStep { skipped: None, next: Some(task) },
        }
    }

    /// What follows when a paused task is resumed whose current fire is in flight: it stays, and a
    /// series skips the later fires that were due meanwhile.
    #[must_use]
    pub fn resumed_in_flight(&self, now: Timestamp) -> NextStep {
        let task = Self { state: TaskState::Scheduled, ..self.clone() };
        match &task.definition.schedule {
            Schedule::Every { .. } | Schedule::Cron { .. } => {
                task.skip_later_until(now, SkipReason::Paused)
            }
            Schedule::Once(_) | Schedule::Watch { .. } => {
                NextStep { skipped: None, next: Some(task) }
            }
        }
    }

    /// What follows when the current fire is skipped because the previous one has not ended.
    #[must_use]
    pub fn overlapped(&self, now: Timestamp) -> NextStep {
        self.skip_until(now, SkipReason::Overlap)
    }

    /// Skips the current fire and all later ones of the schedule up to and including `until`.
    fn skip_until(&self, until: Timestamp, why: SkipReason) -> NextStep {
        let schedule = &self.definition.schedule;
        let last = schedule.last_until(self.nominal_at, until, 1);
        let last = last.last().copied().unwrap_or(self.nominal_at);
        let fires = schedule.count_until(self.nominal_at, last);
        let next = schedule.next_at(last).map(|at| self.at_nominal(at));
        let next = next.or_else(|| self.next_overlapping());
        NextStep { skipped: Some((self.clone(), Skipped { fires, until: last, why })), next }
    }

    /// Skips the fires of the schedule that were not given out yet, up to and including `until`.
    fn skip_later_until(self, until: Timestamp, why: SkipReason) -> NextStep {
        let upcoming = self.next_of_series().filter(|next| next.nominal_at <= until);
        let Some(upcoming) = upcoming else {
            return NextStep { skipped: None, next: Some(self) };
        };
        let skipped = upcoming.skip_until(until, why).skipped;
        let given_at = skipped.as_ref().map(|(_, skipped)| skipped.until);
        // A fire that is skipped does not count, as in `skip_until`.
        let fires = upcoming.fires.saturating_sub(1);
        NextStep { skipped, next: Some(Self { resumes_at: None, given_at, fires, ..self }) }
    }

    /// The task before the fire of a nominal time, which the schedule gives it.
    pub(super) fn at_nominal(&self, nominal_at: Timestamp) -> Self {
        let (attempts, resumes_at, occasion) = (Vec::new(), None, Occasion::Due);
        let redrive = None;
        let task = Self { nominal_at, attempts, resumes_at, occasion, redrive, ..self.clone() };
        Self { fire_at: task.due_at(), ..task }
    }

    /// The task before the next fire of its series: the one that `resumes_at` remembers, or the
    /// first that was not given out yet.
    pub(super) fn next_of_series(&self) -> Option<Self> {
        let schedule = &self.definition.schedule;
        if let Some(at) = self.resumes_at {
            // An edit may have moved the end before that time.
            let given_at = self.given_at.filter(|given_at| *given_at > at);
            let next = Self { given_at, ..self.at_nominal(at) };
            return schedule.series()?.reaches(at).then_some(next);
        }
        if schedule.series()?.count.is_some_and(|count| self.fires >= count) {
            return None;
        }
        let next = self.at_nominal(schedule.next_at(self.latest_nominal_at())?);
        Some(Self { fires: self.fires.saturating_add(1), given_at: None, ..next })
    }

    /// The latest nominal time that was given out.
    pub(super) fn latest_nominal_at(&self) -> Timestamp {
        self.given_at.unwrap_or(self.nominal_at)
    }

    /// Whether the current fire comes from the schedule and was not attempted, and no later one
    /// was given out.
    pub(super) fn is_fresh(&self) -> bool {
        let last = self.resumes_at.is_none() && self.given_at.is_none();
        last && self.occasion == Occasion::Due && self.attempts.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Series;
    use crate::task::fixtures::{
        SECOND, at, due_once_at, every_second, task as task_of, with_attempt,
    };

    /// What was skipped (first nominal time, how many, last nominal time), and the nominal time of
    /// the next fire. All in seconds.
    fn in_seconds(next_step: NextStep) -> (Option<(u64, u32, u64)>, Option<u64>) {
        let seconds = |at: Timestamp| at.as_millis() / 1000;
        let skipped = next_step.skipped.map(|(task, skipped)| {
            (seconds(task.nominal_at), skipped.fires, seconds(skipped.until))
        });
        (skipped, next_step.next.map(|next| seconds(next.nominal_at)))
    }

    #[test]
    fn the_overlap_policy_decides_which_fires_follow_one_that_took_long() {
        use Overlap::{Allow, QueueOne, Skip};
        // The fire of second 1 was sent at `started` and ended at `ended`.
        for (overlap, started, ended, want) in [
            (Allow, 1, 1, (None, Some(2))),
            (Allow, 1, 9, (None, Some(2))),
            (Skip, 1, 1, (None, Some(2))),
            (Skip, 1, 2, (None, Some(2))),
            (Skip, 1, 9, (Some((2, 7, 8)), Some(9))),
            (QueueOne, 1, 9, (None, Some(2))),
            (QueueOne, 2, 9, (None, Some(2))),
            (QueueOne, 5, 9, (Some((2, 3, 4)), Some(5))),
        ] {
            let series = Series { overlap, ..Series::default() };
            let task = with_attempt(every_second(series), at(started));
            let next_step = task.next_step(TaskState::Done, at(ended));
            assert_eq!(in_seconds(next_step), want, "{overlap:?} from {started} to {ended}");
        }
    }

    #[test]
    fn a_series_ends_by_its_count_or_its_end() {
        let ends = |ends_at| Series { ends_at: Some(at(ends_at)), ..Series::default() };
        let counts = |count| Series { count: Some(count), ..Series::default() };
        for (series, fires) in [(ends(3), 3), (counts(3), 3), (counts(1), 1)] {
            let mut task = Some(every_second(series.clone()));
            let mut made = Vec::new();
            while let Some(before) = task.filter(|_| made.len() < 9) {
                made.push(before.nominal_at);
                task = before.next_step(TaskState::Done, before.nominal_at).next;
            }
            let want: Vec<_> = (1..=fires).map(at).collect();
            assert_eq!(made, want, "{series:?}");
        }
        // Skipped fires do not count, but no fire is after the end.
        let skip = Series { overlap: Overlap::Skip, ..ends(4) };
        let next_step = with_attempt(every_second(skip), at(1)).next_step(TaskState::Done, at(9));
        assert_eq!(in_seconds(next_step), (Some((2, 3, 4)), None));
    }

    #[test]
    fn the_misfire_policy_decides_which_missed_fires_are_fired_late() {
        use Misfire::{FireAll, FireOnce, Skip};
        for (misfire, now, want) in [
            (FireOnce, 1, None),
            (FireOnce, 6, None),
            (FireOnce, 7, Some((Some((1, 6, 6)), Some(7)))),
            (FireAll, 7, None),
            (FireAll, 100, None),
            (FireAll, 110, Some((Some((1, 10, 10)), Some(11)))),
            (Skip, 6, None),
            (Skip, 7, Some((Some((1, 1, 1)), Some(2)))),
            (Skip, 1000, Some((Some((1, 994, 994)), Some(995)))),
        ] {
            let task = every_second(Series { misfire, ..Series::default() });
            let missed = task.missed(at(now)).map(in_seconds);
            assert_eq!(missed, want, "{misfire:?} at {now}");
        }
        let series = |misfire| Series { misfire, ends_at: Some(at(3)), ..Series::default() };
        let missed = |misfire| every_second(series(misfire)).missed(at(100)).map(in_seconds);
        assert_eq!(missed(FireOnce), Some((Some((1, 2, 2)), Some(3))), "the last one there is");
        assert_eq!(missed(Skip), Some((Some((1, 3, 3)), None)));
    }

    #[test]
    fn retries_manual_fires_and_tasks_due_once_are_never_missed() {
        let task = every_second(Series { misfire: Misfire::Skip, ..Series::default() });
        assert_eq!(with_attempt(task.clone(), at(1)).missed(at(100)), None);
        assert_eq!(task.fired_manually(at(2)).missed(at(100)), None);
        assert_eq!(due_once_at(1).missed(at(100)), None);
    }

    #[test]
    fn a_resumed_series_skips_the_fires_that_were_due_while_it_was_paused() {
        let paused = |task: Task| Task { state: TaskState::Paused, ..task };
        let task = paused(every_second(Series::default()));
        assert_eq!(in_seconds(task.resumed(at(0))), (None, Some(1)));
        assert_eq!(in_seconds(task.resumed(at(5))), (Some((1, 5, 5)), Some(6)));
        // A retry stays.
        let retried = with_attempt(task.clone(), at(1));
        assert_eq!(in_seconds(retried.resumed(at(1))), (None, Some(1)));
        assert_eq!(in_seconds(retried.resumed(at(5))), (Some((2, 4, 5)), Some(1)));
        assert_eq!(in_seconds(paused(due_once_at(1)).resumed(at(5))), (None, Some(1)));
        let watch = paused(task_of(Schedule::watch(SECOND * 60)));
        assert_eq!(in_seconds(watch.resumed(at(100))), (None, Some(160)), "it is armed anew");
    }

    #[test]
    fn fires_that_were_given_out_before_a_pause_stay_and_later_ones_are_skipped() {
        let after = |task: &Task| task.next_of_series().map(|next| next.nominal_at.as_millis());
        let paused = |task: Task| Task { state: TaskState::Paused, ..task };
        // The fires of seconds 1 and 2 wait.
        let series = Series { count: Some(4), ..Series::default() };
        let waiting = every_second(series).with_next_fire(&[]).map(Task::earliest).unwrap();
        let waiting = paused(waiting.before_overlapping(at(1)).unwrap_or(waiting));
        let step = waiting.resumed(at(6));
        let next = step.next.clone().unwrap();
        assert_eq!(in_seconds(step), (Some((3, 4, 6)), Some(1)));
        assert_eq!(next.overlapping, waiting.overlapping);
        assert_eq!(after(&next), Some(at(7).as_millis()));
        // A skipped fire does not use up the count: two were given out, two are left.
        let seventh = next.next_of_series().unwrap();
        let eighth = seventh.next_of_series().unwrap();
        assert_eq!((seventh.fires, eighth.fires), (3, 4));
        assert_eq!(eighth.next_of_series(), None);
        // The same if the current fire is in flight, also if it was not attempted before.
        let in_flight = paused(every_second(Series::default()));
        assert_eq!(in_seconds(in_flight.resumed_in_flight(at(6))), (Some((2, 5, 6)), Some(1)));
        assert_eq!(in_seconds(in_flight.resumed_in_flight(at(1))), (None, Some(1)));
        let watch = paused(task_of(Schedule::watch(SECOND * 60)));
        assert_eq!(in_seconds(watch.resumed_in_flight(at(100))), (None, Some(60)));
        // After a manual fire the schedule continues with the first time that is not past.
        let manual = paused(every_second(Series::default()).fired_manually(at(1)));
        let step = manual.resumed(at(9));
        assert_eq!(after(&step.next.unwrap()), Some(at(10).as_millis()));
    }
}
