//! Due counts: how many tasks of a namespace are due in each minute, updated with every change.
//!
//! Scheduled `once` tasks and watches count in the minute of their `fire_at`. Series do not: their
//! fires follow from their schedules, and stores have an index of them. A minute depends on the due
//! time alone, never on the present, so that what a change adds, a later one takes away.
//! [`due_move`] computes what a change moves. All stores use this one function.

use punctual_core::{Namespace, Task, TaskKind, TaskState, Timestamp};

use crate::change::{Change, Prior};

const MINUTE_MILLIS: u64 = 60_000;
const HOUR_MINUTES: u32 = 60;

/// A whole minute, counted from 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DueMinute(u32);

impl DueMinute {
    /// The first minute. No task is due earlier.
    pub const FIRST: Self = Self(0);

    /// Returns the minute with this number.
    #[must_use]
    pub const fn new(number: u32) -> Self {
        Self(number)
    }

    /// Returns the minute that has an instant.
    #[must_use]
    pub fn of(at: Timestamp) -> Self {
        // `Timestamp::MAX` is in minute 4,223,370,120.
        Self(u32::try_from(at.as_millis() / MINUTE_MILLIS).unwrap_or(u32::MAX))
    }

    /// Returns the number of the minute.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// Returns the first instant of the minute.
    #[must_use]
    pub fn start(self) -> Timestamp {
        Timestamp::from_millis(u64::from(self.0) * MINUTE_MILLIS)
    }

    /// Returns the hour that has the minute.
    #[must_use]
    pub const fn hour(self) -> DueHour {
        DueHour(self.0 / HOUR_MINUTES)
    }
}

/// A whole hour, counted from 1970. Stores also have the sum of each hour, so that long spans are
/// read as fast as short ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DueHour(u32);

impl DueHour {
    /// Minutes in an hour.
    pub const MINUTES: usize = HOUR_MINUTES as usize;

    /// Returns the hour with this number.
    #[must_use]
    pub const fn new(number: u32) -> Self {
        Self(number)
    }

    /// Returns the number of the hour.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// Returns a minute of the hour, from 0 to 59.
    #[must_use]
    pub const fn minute(self, index: u32) -> DueMinute {
        DueMinute(self.0.saturating_mul(HOUR_MINUTES).saturating_add(index))
    }

    /// Returns the minutes of the hour in order.
    pub fn minutes(self) -> impl Iterator<Item = DueMinute> {
        (0..HOUR_MINUTES).map(move |index| self.minute(index))
    }
}

/// Steps of time: each from one bound to the next, without gaps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DueSteps {
    bounds: Vec<DueMinute>,
}

impl DueSteps {
    /// The largest number of steps: what one read returns must not be large.
    pub const COUNT_MAX: usize = 1024;

    /// Returns the steps between these bounds; `None` if the bounds do not ascend, or if there are
    /// no steps or too many.
    #[must_use]
    pub fn new(bounds: Vec<DueMinute>) -> Option<Self> {
        let count = bounds.len().checked_sub(1)?;
        let ascend = bounds.is_sorted_by(|one, other| one < other);
        (ascend && (1..=Self::COUNT_MAX).contains(&count)).then_some(Self { bounds })
    }

    /// Returns the number of steps.
    #[must_use]
    pub const fn count(&self) -> usize {
        self.bounds.len() - 1
    }

    /// Returns the first minute of the first step.
    #[must_use]
    pub fn first(&self) -> DueMinute {
        self.bounds[0]
    }

    /// Returns the first minute after the last step.
    #[must_use]
    pub fn end(&self) -> DueMinute {
        self.bounds[self.count()]
    }

    /// Returns the step that has a minute.
    #[must_use]
    pub fn step_of(&self, minute: DueMinute) -> Option<usize> {
        let begun = self.bounds.partition_point(|bound| *bound <= minute);
        begun.checked_sub(1).filter(|step| *step < self.count())
    }

    /// Returns the step that has all of an hour.
    #[must_use]
    pub fn step_of_hour(&self, hour: DueHour) -> Option<usize> {
        let [first, last] = [0, HOUR_MINUTES - 1].map(|index| self.step_of(hour.minute(index)));
        first.filter(|_| first == last)
    }
}

/// How many tasks are due in each step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DueCounts {
    /// By step.
    pub tasks: Vec<i64>,
    /// From which minute on tasks may be missing; `None` if all were counted. A store of an earlier
    /// version may not have been counted yet.
    pub until: Option<DueMinute>,
}

/// What a change moves: one task from a minute to another. Without `from` the task was not counted,
/// without `to` it is not counted any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DueMove<'a> {
    /// The namespace of the task.
    pub namespace: &'a Namespace,
    /// The minute that has one task less.
    pub from: Option<DueMinute>,
    /// The minute that has one task more.
    pub to: Option<DueMinute>,
}

/// Returns what a change moves, or `None` if the counts stay as they are.
#[must_use]
pub fn due_move(change: &Change) -> Option<DueMove<'_>> {
    let (namespace, from, to) = match change {
        Change::Put(task) | Change::Redrive { task, .. } => {
            (&task.definition.namespace, None, minute_of(task))
        }
        Change::Refile { task, was } => {
            (&task.definition.namespace, minute_before(*was), minute_of(task))
        }
        Change::Postpone { namespace, fire_at, was, .. } => {
            let from = minute_before(*was);
            // A task that is not scheduled keeps its state.
            (namespace, from, from.map(|_| DueMinute::of(*fire_at)))
        }
        Change::Settle { record, next, was } => {
            (&record.namespace, minute_before(*was), next.as_deref().and_then(minute_of))
        }
        Change::Dead { letter, next, was } => {
            let next = next.as_deref().and_then(minute_of);
            (&letter.task.definition.namespace, minute_before(*was), next)
        }
        Change::DeleteLetter { .. } => return None,
    };
    (from != to).then_some(DueMove { namespace, from, to })
}

/// Returns the minute in which a task counts, if it does.
#[must_use]
pub fn minute_of(task: &Task) -> Option<DueMinute> {
    minute_before(Prior::of(task))
}

/// A fire that is no longer a part of its task (`Firing`) moves nothing.
fn minute_before(was: Prior) -> Option<DueMinute> {
    let counts =
        was.state == TaskState::Scheduled && matches!(was.kind, TaskKind::Once | TaskKind::Watch);
    counts.then(|| DueMinute::of(was.fire_at))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use punctual_core::{FireEnd, Schedule};

    use super::*;
    use crate::conformance::fixtures::{
        NOW, at, die, due_at, epoch, id, in_state, next_fire, partition, postpone, refile, settle,
        settle_with_next, shop, task,
    };

    #[test]
    fn every_change_moves_a_task_from_its_old_minute_to_its_new_one() {
        let waits = task(id(at(0), partition(0), epoch(1), 1)).build();
        let paused = in_state(&waits, TaskState::Paused);
        let moved = due_at(&waits, at(600));
        let next = next_fire(&waits, at(600));
        let every = task(waits.id).schedule(Schedule::every(Duration::from_secs(1))).build();
        let fire_id = waits.fire().id;
        let [then, later] = [0, 600].map(|second| DueMinute::of(at(second)));
        let of_claim = |state| match settle(&waits, FireEnd::Done, NOW) {
            Change::Settle { record, was, .. } => {
                Change::Settle { record, next: None, was: was.in_state(state) }
            }
            other => other,
        };
        for (change, from, to) in [
            (Change::Put(waits.clone()), None, Some(then)),
            (Change::Put(paused.clone()), None, None),
            (Change::Put(every.clone()), None, None),
            (refile(&waits, &moved), Some(then), Some(later)),
            (refile(&waits, &due_at(&waits, at(1))), None, None),
            (refile(&waits, &paused), Some(then), None),
            (refile(&paused, &moved), None, Some(later)),
            (refile(&every, &moved), None, Some(later)),
            (postpone(&waits, at(600)).1, Some(then), Some(later)),
            (postpone(&paused, at(600)).1, None, None),
            (settle(&waits, FireEnd::Done, NOW), Some(then), None),
            (settle(&paused, FireEnd::Cancelled, NOW), None, None),
            (settle(&every, FireEnd::Done, NOW), None, None),
            (settle_with_next(&waits, NOW, &next), Some(then), Some(later)),
            (of_claim(TaskState::Firing), None, None),
            (of_claim(TaskState::Dead), None, None),
            (die(&waits, NOW, None), Some(then), None),
            (die(&waits, NOW, Some(&next)), Some(then), Some(later)),
            (Change::Redrive { fire_id, task: moved.clone() }, None, Some(later)),
            (Change::DeleteLetter { fire_id, namespace: shop() }, None, None),
        ] {
            let want = (from, to) != (None, None);
            let got = due_move(&change);
            assert_eq!(got.is_some(), want, "{change:?}");
            assert_eq!(got.map_or((None, None), |it| (it.from, it.to)), (from, to), "{change:?}");
        }
    }

    #[test]
    fn a_minute_has_a_step_and_an_hour_only_if_all_of_it_is_in_one() {
        let steps = |bounds: &[u32]| DueSteps::new(bounds.iter().copied().map(DueMinute).collect());
        for bounds in [&[][..], &[7], &[7, 7], &[9, 7]] {
            assert_eq!(steps(bounds), None, "{bounds:?}");
        }
        assert_eq!(DueSteps::new((0..=1025).map(DueMinute).collect()), None);
        let steps = steps(&[30, 60, 180, 185]).expect("they ascend");
        assert_eq!((steps.count(), steps.first(), steps.end()), (3, DueMinute(30), DueMinute(185)));
        for (minute, step) in
            [(29, None), (30, Some(0)), (59, Some(0)), (60, Some(1)), (184, Some(2)), (185, None)]
        {
            assert_eq!(steps.step_of(DueMinute(minute)), step, "{minute}");
        }
        for (hour, step) in [(0, None), (1, Some(1)), (2, Some(1)), (3, None), (4, None)] {
            assert_eq!(steps.step_of_hour(DueHour(hour)), step, "{hour}");
        }
    }

    #[test]
    fn every_instant_has_a_minute_and_an_hour() {
        assert_eq!(DueMinute::of(Timestamp::EPOCH), DueMinute::FIRST);
        assert_eq!(DueMinute::of(Timestamp::MAX).get(), 4_223_370_120);
        let minute = DueMinute::of(Timestamp::from_millis(3_660_000 + 59_999));
        assert_eq!((minute, minute.hour()), (DueMinute(61), DueHour(1)));
        assert_eq!(minute.start(), Timestamp::from_millis(3_660_000));
        assert_eq!(DueHour(1).minutes().nth(1), Some(minute));
    }
}
