//! The course of a task: what it is after its present fire, when it goes on.
//!
//! In: a task as it stands, and `now`. Out: the task as it goes on, and what a policy skipped on the way. All of it is decided here
//! and nowhere else, so that every broker decides the same before and after a crash.
//! Invariant: a nominal time is given out once, in order; whatever is not fired is said to be skipped.
//! Not here: the times themselves (`schedule`, `cron`), whether an attempt is tried again (`settle`).

use std::sync::Arc;
use std::time::Duration;

use crate::fire::{AttemptNo, AttemptRecord, SkipReason, Skipped};
use crate::limits::{MISFIRE_AFTER, MISFIRES_MAX, OVERLAPS_MAX};
use crate::{FireId, Guarantee, Misfire, NewTask, Overlap, Schedule, Task, TaskState, Timestamp};

/// Why there is a fire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Occasion {
    /// It is due by the schedule.
    #[default]
    Due,
    /// Somebody asked for it, besides the schedule.
    Manual,
    /// A watch that had fired was touched.
    Return,
}

/// A fire that is not over, beside the present one: another of the same task has come up to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OverlappingFire {
    /// When it was due by the schedule.
    pub nominal_at: Timestamp,
    /// When its next attempt is due.
    pub fire_at: Timestamp,
    /// The attempts already made of it.
    pub attempts: Vec<AttemptRecord>,
    /// Why there is one.
    pub occasion: Occasion,
}

/// A task under another definition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Edited {
    /// Its times are the same: whatever is open stays so, and further attempts are of the new definition.
    SameTimes(Task),
    /// It begins anew, under its id: whatever was open is over.
    Anew(Task),
}

/// What follows a fire.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NextStep {
    /// Fires that a policy left out: the task as it would have stood before the first of them, and which.
    pub skipped: Option<(Task, Skipped)>,
    /// The task as it goes on, if it does.
    pub next: Option<Task>,
}

impl Task {
    /// When its present fire is due: by the schedule, and by chance where that was asked for.
    #[must_use]
    pub fn due_at(&self) -> Timestamp {
        match self.definition.schedule.series() {
            Some(series) if self.occasion == Occasion::Due => {
                let fire_id = FireId { task: self.id, nominal_at: self.nominal_at };
                self.nominal_at.after(spread(series.jitter, fire_id))
            }
            _ => self.nominal_at,
        }
    }

    /// Whether it stays after a fire: it is due again, or will be when it is touched.
    #[must_use]
    pub fn goes_on(&self) -> bool {
        !matches!(self.definition.schedule, Schedule::Once(_))
    }

    /// The same task with a fire at `now`, besides those of its schedule.
    #[must_use]
    pub fn fired_manually(self, now: Timestamp) -> Self {
        // Two fires of one nominal time would be one.
        let at = if self.nominal_at == now { now.after(Duration::from_millis(1)) } else { now };
        let silent = matches!(self.state, TaskState::Done | TaskState::Dead);
        let resumes_at = (!silent).then_some(self.nominal_at);
        let (occasion, state) = (Occasion::Manual, TaskState::Scheduled);
        Self { fire_at: at, nominal_at: at, resumes_at, occasion, state, ..self }
    }

    /// What follows when its present fire has ended; `silent` is how a watch stands until it is touched.
    #[must_use]
    pub fn next_step(&self, silent: TaskState, now: Timestamp) -> NextStep {
        let next = match &self.definition.schedule {
            Schedule::Once(_) => self.resumes_at.map(|at| self.at(at)),
            Schedule::Watch { on_return, .. } => {
                Some(self.watch_next_step(*on_return, silent, now))
            }
            Schedule::Every { .. } | Schedule::Cron { .. } => return self.series_next_step(now),
        };
        NextStep { skipped: None, next }
    }

    fn watch_next_step(&self, on_return: bool, silent: TaskState, now: Timestamp) -> Self {
        match (self.resumes_at, self.occasion) {
            (Some(at), Occasion::Due) if on_return => self.returning(at, now),
            (Some(at), _) => self.at(at),
            (None, _) => {
                let state = if self.state == TaskState::Paused { self.state } else { silent };
                let (fire_at, occasion) = (self.nominal_at, Occasion::Due);
                Self { state, fire_at, occasion, attempts: Vec::new(), ..self.clone() }
            }
        }
    }

    fn series_next_step(&self, now: Timestamp) -> NextStep {
        let Some(next) = self.upcoming() else {
            return NextStep { skipped: None, next: self.overlapping_next() };
        };
        let overlap = self.definition.schedule.series().map(|series| series.overlap);
        // At most once: the claim comes before the first attempt, and the task goes on with it.
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

    /// What is left out and what is fired instead when its present fire comes so late that it was missed; `None` if it is to be
    /// fired as it is.
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

    /// The same task when it is resumed: what was due while it was paused is left out, and a watch begins anew.
    #[must_use]
    pub fn resumed(&self, now: Timestamp) -> NextStep {
        let task = Self { state: TaskState::Scheduled, ..self.clone() };
        let fresh = task.is_fresh();
        match &task.definition.schedule {
            Schedule::Every { .. } | Schedule::Cron { .. } if fresh && task.nominal_at <= now => {
                task.skip_until(now, SkipReason::Paused)
            }
            Schedule::Watch { within, .. } if fresh => {
                let next = Self { armed_at: Some(now), ..task.at(now.after(*within)) };
                NextStep { skipped: None, next: Some(next) }
            }
            _ => NextStep { skipped: None, next: Some(task) },
        }
    }

    /// What follows when its present fire is left out because the one before is not over.
    #[must_use]
    pub fn overlapped(&self, now: Timestamp) -> NextStep {
        self.skip_until(now, SkipReason::Overlap)
    }

    /// When the first of its fires that are not over is due: where a store has it.
    #[must_use]
    pub fn first_due(&self) -> Timestamp {
        let overlapping = self.overlapping.iter().map(|overlapping| overlapping.fire_at);
        overlapping.fold(self.fire_at, Timestamp::min)
    }

    /// Leaves out its present fire and all that are due by the schedule up to an instant.
    fn skip_until(&self, until: Timestamp, why: SkipReason) -> NextStep {
        let schedule = &self.definition.schedule;
        let last = schedule.last_until(self.nominal_at, until, 1);
        let last = last.last().copied().unwrap_or(self.nominal_at);
        let fires = schedule.count_until(self.nominal_at, last);
        let next = schedule.next_at(last).map(|at| self.at(at)).or_else(|| self.overlapping_next());
        NextStep { skipped: Some((self.clone(), Skipped { fires, until: last, why })), next }
    }

    /// It stands before the fire of a nominal time.
    fn at(&self, nominal_at: Timestamp) -> Self {
        let (attempts, resumes_at, occasion) = (Vec::new(), None, Occasion::Due);
        let task = Self { nominal_at, attempts, resumes_at, occasion, ..self.clone() };
        Self { fire_at: task.due_at(), ..task }
    }

    /// The task before the next fire of its series that was not given out yet, or not fired yet.
    fn upcoming(&self) -> Option<Self> {
        let schedule = &self.definition.schedule;
        if let Some(at) = self.resumes_at {
            // It may have been edited since, and end earlier.
            let given_at = self.given_at.filter(|given_at| *given_at > at);
            let next = Self { given_at, ..self.at(at) };
            return schedule.series()?.reaches(at).then_some(next);
        }
        if schedule.series()?.count.is_some_and(|count| self.fires >= count) {
            return None;
        }
        let next = self.at(schedule.next_at(self.latest_at())?);
        Some(Self { fires: self.fires.saturating_add(1), given_at: None, ..next })
    }

    /// The latest nominal time that was given out.
    fn latest_at(&self) -> Timestamp {
        self.given_at.unwrap_or(self.nominal_at)
    }

    /// Whether nothing was done about its present fire, and none after it was given out.
    fn is_fresh(&self) -> bool {
        let last = self.resumes_at.is_none() && self.given_at.is_none();
        last && self.occasion == Occasion::Due && self.attempts.is_empty()
    }

    /// A watch that is touched, from now on until `at`: armed, or first of all told that it is back.
    fn returning(&self, at: Timestamp, now: Timestamp) -> Self {
        let nominal_at = now.max(self.nominal_at.after(Duration::from_millis(1)));
        let next = self.at(nominal_at);
        Self { occasion: Occasion::Return, resumes_at: Some(at), ..next }
    }
}

/// A watch that is touched.
impl Task {
    /// When a touch at `now` has it due, within what touches may put off all together.
    #[must_use]
    pub fn touched_until(&self, within: Duration, now: Timestamp) -> Timestamp {
        let until = now.after(within);
        match &self.definition.schedule {
            Schedule::Watch { postpone_max: Some(max), .. } if self.is_armed() => {
                until.min(self.armed_at.unwrap_or(self.created_at).after(*max))
            }
            _ => until,
        }
    }

    fn is_armed(&self) -> bool {
        let silent = matches!(self.state, TaskState::Done | TaskState::Dead);
        !silent && self.occasion == Occasion::Due && self.attempts.is_empty()
    }

    /// Whether it was touched while it was told to be silent: that need not be told any more.
    #[must_use]
    pub fn touched_while_firing(&self) -> bool {
        matches!(self.definition.schedule, Schedule::Watch { .. })
            && self.resumes_at.is_some()
            && self.occasion == Occasion::Due
    }

    /// The watch as a touch leaves it: armed until an instant, after what it has to tell first.
    #[must_use]
    pub fn touched(&self, until: Timestamp, now: Timestamp) -> Self {
        let Schedule::Watch { on_return, .. } = self.definition.schedule else {
            return self.at(until);
        };
        let told = !self.is_armed() && self.occasion == Occasion::Due;
        let armed_at = if self.is_armed() { self.armed_at } else { Some(now) };
        let task = Self { armed_at, state: TaskState::Scheduled, ..self.clone() };
        match self.occasion {
            // What has to be told is told; it is armed after that.
            Occasion::Manual | Occasion::Return => Self { resumes_at: Some(until), ..task },
            Occasion::Due if told && on_return => task.returning(until, now),
            Occasion::Due => task.at(until),
        }
    }
}

/// A definition that is edited in place.
impl Task {
    /// The same task under another definition, `None` if it would never fire. `fired`: an attempt of a fire of it is under way.
    #[must_use]
    pub fn edited(&self, definition: Arc<NewTask>, fired: bool, now: Timestamp) -> Option<Edited> {
        let new = Arc::clone(&definition);
        let task = Self { definition, version: self.version.next(), ..self.clone() };
        let reaches = |at| new.schedule.series().is_some_and(|series| series.reaches(at));
        let begun = fired || !self.is_fresh();
        let goes_on = begun || reaches(self.nominal_at);
        // What was sent already would be sent again by a definition that says at most once.
        let guarantees = (self.definition.guarantee, new.guarantee);
        let doubles = matches!(guarantees, (old, Guarantee::AtMostOnce) if old != Guarantee::AtMostOnce)
            && (begun || !self.overlapping.is_empty());
        if same_times(&self.definition.schedule, &new.schedule) && goes_on && !doubles {
            return Some(Edited::SameTimes(task));
        }
        let task = Self { overlapping: Vec::new(), resumes_at: None, given_at: None, ..task };
        if let Schedule::Watch { within, .. } = &new.schedule {
            let paused = self.state == TaskState::Paused;
            let state = if paused { self.state } else { TaskState::Scheduled };
            let armed = Self { armed_at: Some(now), state, ..task.at(now.after(*within)) };
            return Some(Edited::Anew(armed));
        }
        let series = new.schedule.series()?;
        // Its present fire may be one of the new ones, and is still to come.
        let next_is = |at: Timestamp| new.schedule.next_at(at.millis_before(1)) == Some(at);
        let cron = matches!(new.schedule, Schedule::Cron { .. });
        if cron && !fired && self.is_fresh() && next_is(self.nominal_at) {
            return Some(Edited::Anew(task.at(self.nominal_at)));
        }
        let fires = task.fires.saturating_add(u32::from(begun));
        if series.count.is_some_and(|count| fires > count) {
            return None;
        }
        let first_at = new.schedule.first_at(now)?;
        Some(Edited::Anew(Self { fires, ..task.at(first_at) }))
    }

    /// Whether another definition of the same name is an edit of this one: it goes on under its id.
    #[must_use]
    pub fn is_edited_by(&self, new: &NewTask) -> bool {
        let (old, new) = (&self.definition.schedule, &new.schedule);
        let watches = matches!((old, new), (Schedule::Watch { .. }, Schedule::Watch { .. }));
        watches || (old.series().is_some() && new.series().is_some())
    }
}

/// Fires of one task beside each other.
impl Task {
    /// Whether one fire may come up to another. At most once it does by itself: a fire that is claimed is no part of its task any more.
    #[must_use]
    pub fn may_overlap(&self) -> bool {
        self.definition.guarantee != Guarantee::AtMostOnce
            && self.overlapping.len() + 1 < OVERLAPS_MAX
            && self
                .definition
                .schedule
                .series()
                .is_some_and(|series| series.overlap == Overlap::Allow)
    }

    /// The earliest fire that waits, other than the present one; `flying` are those under way. The task with that fire as its
    /// present one, and the present one overlapping.
    #[must_use]
    pub fn with_next_fire(&self, flying: &[Timestamp]) -> Option<Self> {
        let waits = |overlapping: &&OverlappingFire| !flying.contains(&overlapping.nominal_at);
        let earliest =
            self.overlapping.iter().filter(waits).min_by_key(|overlapping| overlapping.fire_at);
        let upcoming = self.may_overlap().then(|| self.upcoming()).flatten();
        match (earliest, upcoming) {
            (Some(overlapping), next)
                if next.as_ref().is_none_or(|next| overlapping.fire_at <= next.fire_at) =>
            {
                Some(self.swapped(overlapping.clone(), next.as_ref()))
            }
            (_, Some(next)) => {
                let mut overlapping = self.overlapping.clone();
                overlapping.push(self.as_aside());
                Some(Self { overlapping, ..next })
            }
            (_, None) => None,
        }
    }

    /// As a store keeps it: the fire that is due first is the present one.
    #[must_use]
    pub fn earliest(self) -> Self {
        if self.overlapping.is_empty() && self.attempts.is_empty() {
            return self;
        }
        match self
            .with_next_fire(&[])
            .filter(|with_next_fire| with_next_fire.fire_at < self.fire_at)
        {
            Some(with_next_fire) => with_next_fire,
            None => self,
        }
    }

    /// The task as it stands before a fire that is overlapping, to see what becomes of that one.
    #[must_use]
    pub fn before_overlapping(&self, nominal_at: Timestamp) -> Option<Self> {
        let overlapping =
            self.overlapping.iter().find(|overlapping| overlapping.nominal_at == nominal_at)?;
        let OverlappingFire { nominal_at, fire_at, attempts, occasion } = overlapping.clone();
        Some(Self { nominal_at, fire_at, attempts, occasion, ..self.clone() })
    }

    /// The task when a fire that was overlapping is over, or waits for another attempt.
    #[must_use]
    pub fn with_aside(&self, nominal_at: Timestamp, again: Option<OverlappingFire>) -> Self {
        let others =
            self.overlapping.iter().filter(|overlapping| overlapping.nominal_at != nominal_at);
        let overlapping = others.cloned().chain(again).collect();
        Self { overlapping, ..self.clone() }
    }

    /// Its present fire as one overlapping.
    #[must_use]
    pub fn as_aside(&self) -> OverlappingFire {
        let Self { nominal_at, fire_at, occasion, .. } = *self;
        OverlappingFire { nominal_at, fire_at, attempts: self.attempts.clone(), occasion }
    }

    fn swapped(&self, chosen: OverlappingFire, upcoming: Option<&Self>) -> Self {
        let others = self
            .overlapping
            .iter()
            .filter(|overlapping| overlapping.nominal_at != chosen.nominal_at);
        let overlapping = others.cloned().chain([self.as_aside()]).collect();
        let OverlappingFire { nominal_at, fire_at, attempts, occasion } = chosen;
        let resumes_at = upcoming.map(|next| next.nominal_at).or(self.resumes_at);
        let fires = upcoming.map_or(self.fires, |next| next.fires);
        let given_at = match upcoming {
            Some(next) => next.given_at,
            None => Some(self.latest_at()),
        };
        let task = Self { nominal_at, fire_at, attempts, occasion, overlapping, ..self.clone() };
        Self { resumes_at, fires, given_at, ..task }
    }

    /// Nothing more is due by the schedule: what is overlapping is what is left.
    fn overlapping_next(&self) -> Option<Self> {
        let first = self.overlapping.iter().min_by_key(|overlapping| overlapping.fire_at)?.clone();
        let others = self
            .overlapping
            .iter()
            .filter(|overlapping| overlapping.nominal_at != first.nominal_at);
        let overlapping = others.cloned().collect();
        let OverlappingFire { nominal_at, fire_at, attempts, occasion } = first;
        let (resumes_at, given_at) = (None, Some(self.latest_at()));
        let task = Self { nominal_at, fire_at, attempts, occasion, overlapping, ..self.clone() };
        Some(Self { resumes_at, given_at, ..task })
    }
}

/// Whether two schedules are due at the same times.
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

/// A part of the jitter, the same whenever it is asked for.
fn spread(jitter: Duration, fire_id: FireId) -> Duration {
    let millis = u64::try_from(jitter.as_millis()).unwrap_or(u64::MAX - 1);
    match millis {
        0 => Duration::ZERO,
        millis => Duration::from_millis(fire_id.entropy(AttemptNo::new(0)) % (millis + 1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fire::{Outcome, Reason};
    use crate::{Namespace, Queue, Series, Target, TaskId, Version};

    const SECOND: Duration = Duration::from_secs(1);

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_millis(seconds * 1000)
    }

    fn task(schedule: Schedule) -> Task {
        let target = Target::Queue(Queue::new("orders").unwrap());
        let new_task = NewTask::new(Namespace::new("shop").unwrap(), schedule, target);
        let first_at = new_task.schedule.first_at(at(0)).unwrap();
        Task::new(TaskId::floor(first_at), new_task.into(), at(0), Version::FIRST)
    }

    /// Due at each second from the first.
    fn seconds(series: Series) -> Task {
        task(Schedule::Every { interval: SECOND, series: series.into() })
    }

    fn tried(task: Task, fired_at: Timestamp) -> Task {
        let outcome = Outcome::Failed { reason: Reason::new("busy"), retry_in: None };
        let attempt = AttemptRecord { fired_at, ended_at: fired_at, outcome };
        let attempts = task.attempts.iter().cloned().chain([attempt]).collect();
        Task { attempts, ..task }
    }

    /// What was skipped, as first nominal time, how many and the last, and where the task stands then.
    fn said(next_step: NextStep) -> (Option<(u64, u32, u64)>, Option<u64>) {
        let seconds = |at: Timestamp| at.as_millis() / 1000;
        let skipped = next_step.skipped.map(|(task, skipped)| {
            (seconds(task.nominal_at), skipped.fires, seconds(skipped.until))
        });
        (skipped, next_step.next.map(|next| seconds(next.nominal_at)))
    }

    #[test]
    fn a_series_goes_on_at_its_next_time_however_long_the_fire_took_unless_a_policy_says_otherwise()
    {
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
            let task = tried(seconds(Series { overlap, ..Series::default() }), at(started));
            let next_step = task.next_step(TaskState::Done, at(ended));
            assert_eq!(said(next_step), want, "{overlap:?} from {started} to {ended}");
        }
    }

    #[test]
    fn a_series_ends_by_its_count_or_its_end() {
        let ends = |ends_at| Series { ends_at: Some(at(ends_at)), ..Series::default() };
        let counts = |count| Series { count: Some(count), ..Series::default() };
        for (series, fires) in [(ends(3), 3), (counts(3), 3), (counts(1), 1)] {
            let mut task = Some(seconds(series.clone()));
            let mut made = Vec::new();
            while let Some(before) = task.filter(|_| made.len() < 9) {
                made.push(before.nominal_at);
                task = before.next_step(TaskState::Done, before.nominal_at).next;
            }
            let want: Vec<_> = (1..=fires).map(at).collect();
            assert_eq!(made, want, "{series:?}");
        }
        // What is left out does not count, but no fire is after the end.
        let skip = Series { overlap: Overlap::Skip, ..ends(4) };
        let next_step = tried(seconds(skip), at(1)).next_step(TaskState::Done, at(9));
        assert_eq!(said(next_step), (Some((2, 3, 4)), None));
    }

    #[test]
    fn fires_that_were_missed_are_made_up_for_as_the_policy_says() {
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
            let task = seconds(Series { misfire, ..Series::default() });
            let missed = task.missed(at(now)).map(said);
            assert_eq!(missed, want, "{misfire:?} at {now}");
        }
        let series = |misfire| Series { misfire, ends_at: Some(at(3)), ..Series::default() };
        let missed = |misfire| seconds(series(misfire)).missed(at(100)).map(said);
        assert_eq!(missed(FireOnce), Some((Some((1, 2, 2)), Some(3))), "the last one there is");
        assert_eq!(missed(Skip), Some((Some((1, 3, 3)), None)));
    }

    #[test]
    fn what_was_tried_already_or_asked_for_besides_is_not_missed() {
        let task = seconds(Series { misfire: Misfire::Skip, ..Series::default() });
        assert_eq!(tried(task.clone(), at(1)).missed(at(100)), None);
        assert_eq!(task.fired_manually(at(2)).missed(at(100)), None);
        let once = task_due_once();
        assert_eq!(once.missed(at(100)), None);
    }

    fn task_due_once() -> Task {
        task(Schedule::Once(crate::Due::At(at(1))))
    }

    #[test]
    fn what_was_due_while_a_task_was_paused_is_left_out() {
        let paused = |task: Task| Task { state: TaskState::Paused, ..task };
        let task = paused(seconds(Series::default()));
        assert_eq!(said(task.resumed(at(0))), (None, Some(1)));
        assert_eq!(said(task.resumed(at(5))), (Some((1, 5, 5)), Some(6)));
        // A retry goes on.
        assert_eq!(said(tried(task, at(1)).resumed(at(5))), (None, Some(1)));
        assert_eq!(said(paused(task_due_once()).resumed(at(5))), (None, Some(1)));
        let watch = paused(super::tests::task(Schedule::watch(SECOND * 60)));
        assert_eq!(said(watch.resumed(at(100))), (None, Some(160)), "it begins anew");
    }

    #[test]
    fn jitter_puts_a_fire_off_within_its_bound_and_always_by_the_same() {
        let jitter = Series { jitter: SECOND, ..Series::default() };
        let mut task = seconds(jitter);
        let mut lates = Vec::new();
        for second in 1..50 {
            assert_eq!(task.nominal_at, at(second));
            assert_eq!(task.fire_at, task.due_at());
            lates.push(task.fire_at.since(task.nominal_at));
            task = task.next_step(TaskState::Done, task.fire_at).next.unwrap();
        }
        assert!(lates.iter().all(|late| *late <= SECOND));
        lates.sort();
        lates.dedup();
        assert!(lates.len() > 25, "spread: {lates:?}");
    }

    fn watch(on_return: bool, postpone_max: Option<Duration>) -> Task {
        task(Schedule::Watch { within: SECOND * 10, postpone_max, on_return })
    }

    #[test]
    fn a_watch_that_has_fired_rests_until_it_is_touched() {
        let watch = watch(false, None);
        assert_eq!(watch.fire_at, at(10));
        for end in [TaskState::Done, TaskState::Dead] {
            let rests = tried(watch.clone(), at(10)).next_step(end, at(11)).next.unwrap();
            assert_eq!((rests.state, rests.nominal_at), (end, at(10)));
            let until = rests.touched_until(SECOND * 10, at(50));
            let armed = rests.touched(until, at(50));
            assert_eq!((armed.state, armed.fire_at), (TaskState::Scheduled, at(60)));
            assert_eq!((armed.occasion, armed.attempts.len()), (Occasion::Due, 0));
        }
    }

    #[test]
    fn a_watch_that_comes_back_says_so_once_if_that_was_asked_for() {
        let watch = watch(true, None);
        // A touch in time is none.
        let touched = watch.touched(at(15), at(5));
        assert_eq!((touched.occasion, touched.fire_at), (Occasion::Due, at(15)));
        let rests = watch.next_step(TaskState::Done, at(11)).next.unwrap();
        let returns = rests.touched(at(60), at(50));
        assert_eq!((returns.occasion, returns.fire_at), (Occasion::Return, at(50)));
        // Touched again before that was told: told once, armed by the last touch.
        let returns = returns.touched(at(61), at(51));
        assert_eq!((returns.occasion, returns.fire_at), (Occasion::Return, at(50)));
        let armed = returns.next_step(TaskState::Done, at(52)).next.unwrap();
        assert_eq!((armed.occasion, armed.fire_at), (Occasion::Due, at(61)));
        // Touched while it was told to be silent.
        let touched = Task { resumes_at: Some(at(20)), ..watch };
        let returns = touched.next_step(TaskState::Done, at(12)).next.unwrap();
        assert_eq!((returns.occasion, returns.resumes_at), (Occasion::Return, Some(at(20))));
        assert_ne!(returns.nominal_at, touched.nominal_at, "another fire");
    }

    #[test]
    fn touches_put_a_watch_off_no_further_than_its_limit() {
        let mut watch = watch(false, Some(SECOND * 25));
        for (now, want) in [(5, 15), (14, 24), (20, 25), (24, 25)] {
            let until = watch.touched_until(SECOND * 10, at(now));
            assert_eq!(until, at(want), "touched at {now}");
            watch = watch.touched(until, at(now));
        }
        let rests = watch.next_step(TaskState::Done, at(25)).next.unwrap();
        let again = rests.touched(rests.touched_until(SECOND * 10, at(40)), at(40));
        assert_eq!(again.fire_at, at(50), "the limit is counted anew");
        assert_eq!(again.touched_until(SECOND * 90, at(41)), at(65));
    }

    fn edited(task: &Task, schedule: Schedule, fired: bool, now: u64) -> Option<u64> {
        let definition = NewTask { schedule, ..NewTask::clone(&task.definition) };
        let (Edited::SameTimes(edited) | Edited::Anew(edited)) =
            task.edited(definition.into(), fired, at(now))?;
        assert_eq!((edited.id, edited.version), (task.id, task.version.next()));
        Some(edited.nominal_at.as_millis() / 1000)
    }

    fn cron(expression: &str) -> Schedule {
        let cron = crate::Cron::new(expression, crate::Zone::utc(), crate::Dst::default()).unwrap();
        Schedule::Cron { cron: cron.into(), series: Arc::default() }
    }

    #[test]
    fn an_edited_task_goes_on_by_its_new_schedule_and_fires_no_time_twice_and_none_never() {
        let minutes = task(cron("* * * * *"));
        assert_eq!(minutes.nominal_at, at(60));
        for (schedule, fired, now, want, why) in [
            (cron("* * * * *"), false, 30, 60, "nothing changes"),
            (cron("* * * * *"), false, 61, 60, "due and not fired yet: it is still fired"),
            (cron("* * * * *"), true, 61, 60, "under way: it stays so"),
            (cron("*/10 * * * * *"), true, 61, 70, "fired already"),
            (cron("30 * * * * *"), false, 61, 90, "its time is none of the new ones"),
            (cron("*/10 * * * * *"), false, 31, 60, "it is one of the new ones"),
            (Schedule::every(SECOND * 7), false, 30, 37, "from now on"),
        ] {
            assert_eq!(edited(&minutes, schedule, fired, now), Some(want), "{why}");
        }
        let every = seconds(Series::default());
        assert_eq!(edited(&every, Schedule::every(SECOND), false, 0), Some(1));
        assert_eq!(edited(&every, Schedule::every(SECOND), true, 5), Some(1), "the beat is kept");
        assert_eq!(edited(&every, Schedule::every(SECOND * 2), false, 0), Some(2));
        let over = Series { ends_at: Some(at(0)), ..Series::default() };
        let over = Schedule::Every { interval: SECOND, series: over.into() };
        assert_eq!(edited(&every, over, false, 0), None, "it would never fire");
        assert_eq!(edited(&watch(false, None), Schedule::watch(SECOND * 5), false, 7), Some(12));
    }

    #[test]
    fn fires_may_come_up_to_each_other_and_each_is_settled_by_itself() {
        let task = seconds(Series::default());
        // Second 1 is under way; second 2 comes up to it, and then 3.
        let two = task.with_next_fire(&[]).unwrap();
        assert_eq!((two.nominal_at, two.overlapping[0].nominal_at), (at(2), at(1)));
        let three = two.with_next_fire(&[at(1)]).unwrap();
        assert_eq!((three.nominal_at, three.overlapping.len()), (at(3), 2));
        // Second 1 fails and waits for a retry before second 4: that is next.
        let before = three.before_overlapping(at(1)).unwrap();
        assert_eq!((before.fire().id, before.nominal_at), (task.fire().id, at(1)));
        let again = Task { fire_at: at(3).after(SECOND / 2), ..tried(before, at(1)) }.as_aside();
        let three = three.with_aside(at(1), Some(again));
        let retry = three.with_next_fire(&[at(2)]).unwrap();
        assert_eq!((retry.nominal_at, retry.resumes_at), (at(1), Some(at(4))));
        assert_eq!((retry.attempts.len(), retry.fires), (1, 4));
        // It is done; second 4 is next, and was counted once.
        let four = retry.next_step(TaskState::Done, at(4)).next.unwrap();
        assert_eq!((four.nominal_at, four.fires, four.overlapping.len()), (at(4), 4, 2));
        // A store has it where its first open fire is.
        let stored = four.clone().earliest();
        assert_eq!((stored.nominal_at, stored.resumes_at), (at(2), Some(at(5))));
        assert_eq!(stored.first_due(), four.first_due());
    }

    #[test]
    fn the_last_fires_of_a_series_end_it_in_any_order() {
        let two = Series { ends_at: Some(at(2)), ..Series::default() };
        let task = seconds(two);
        let last = task.with_next_fire(&[]).unwrap();
        assert_eq!(last.with_next_fire(&[at(1)]), None, "no further one");
        // Second 2 is done first: second 1 is what is left.
        let left = last.next_step(TaskState::Done, at(3)).next.unwrap();
        assert_eq!((left.nominal_at, left.overlapping.len()), (at(1), 0));
        assert_eq!(left.next_step(TaskState::Done, at(3)).next, None, "and no second 2 again");
    }

    #[test]
    fn only_so_many_fires_are_open_at_once() {
        let mut task = seconds(Series::default());
        let mut flying = Vec::new();
        while let Some(with_next_fire) = task.with_next_fire(&flying) {
            flying.push(task.nominal_at);
            task = with_next_fire;
        }
        assert_eq!(flying.len() + 1, OVERLAPS_MAX);
        assert!(!seconds(Series { overlap: Overlap::Skip, ..Series::default() }).may_overlap());
    }
}
