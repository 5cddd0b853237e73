//! Overlapping fires: fires of one series that are open at the same time.
//!
//! With [`Overlap::Allow`] the next fire comes due while earlier ones have not ended. One fire is
//! the current one, described by the fields of the task itself; the others are in
//! [`Task::overlapping`]. Each is settled on its own. At most [`OVERLAPS_MAX`] are open at once.

use crate::attempt::AttemptRecord;
use crate::limits::OVERLAPS_MAX;
use crate::{Guarantee, Occasion, Overlap, Task, Timestamp};

/// A fire that has not ended and is not the current fire of its task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OverlappingFire {
    /// When the schedule had it due.
    pub nominal_at: Timestamp,
    /// When its next attempt is due.
    pub fire_at: Timestamp,
    /// The attempts made so far.
    pub attempts: Vec<AttemptRecord>,
    /// Why there is this fire.
    pub occasion: Occasion,
}

impl Task {
    /// Whether the next fire may come due before the open ones have ended. Never with
    /// at-most-once: a claimed fire has left its task, so nothing overlaps in the task.
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

    /// Returns the task with the earliest other fire that is not in flight as its current fire,
    /// and the current fire among the overlapping ones. That fire is an overlapping one or the
    /// next of the schedule. `in_flight` has the nominal times of the fires in flight.
    #[must_use]
    pub fn with_next_fire(&self, in_flight: &[Timestamp]) -> Option<Self> {
        let waits = |fire: &&OverlappingFire| !in_flight.contains(&fire.nominal_at);
        let earliest = self.overlapping.iter().filter(waits).min_by_key(|fire| fire.fire_at);
        let upcoming = self.may_overlap().then(|| self.next_of_series()).flatten();
        match (earliest, upcoming) {
            (Some(fire), next) if next.as_ref().is_none_or(|next| fire.fire_at <= next.fire_at) => {
                Some(self.with_current(fire.clone(), next.as_ref()))
            }
            (_, Some(next)) => {
                let mut overlapping = self.overlapping.clone();
                overlapping.push(self.as_overlapping());
                Some(Self { overlapping, ..next })
            }
            (_, None) => None,
        }
    }

    /// Returns the task as a store keeps it: with the fire that is due first as its current fire.
    #[must_use]
    pub fn earliest(self) -> Self {
        if self.overlapping.is_empty() && self.attempts.is_empty() {
            return self;
        }
        match self.with_next_fire(&[]).filter(|next| next.fire_at < self.fire_at) {
            Some(next) => next,
            None => self,
        }
    }

    /// Returns the task with the first pending retry of an overlapping fire at `now`; `None` if
    /// there is none.
    pub(super) fn with_overlapping_retry_at(&self, now: Timestamp) -> Option<Self> {
        let retried = self.overlapping.iter().filter(|fire| !fire.attempts.is_empty());
        let first = retried.min_by_key(|fire| fire.fire_at)?;
        let fire_at = now.min(first.fire_at);
        let retry = OverlappingFire { fire_at, ..first.clone() };
        Some(self.with_overlapping(first.nominal_at, Some(retry)).earliest())
    }

    /// Returns the task with a manual fire as its current one. The fire that was the current one
    /// keeps its time among the overlapping ones. If no more fires may overlap, nothing changes.
    pub(super) fn with_manual_fire(&self, at: Timestamp) -> Self {
        if !self.may_overlap() {
            return self.clone();
        }
        let (attempts, occasion) = (Vec::new(), Occasion::Manual);
        let manual = OverlappingFire { nominal_at: at, fire_at: at, attempts, occasion };
        self.with_current(manual, self.next_of_series().as_ref())
    }

    /// When the first open fire is due. Stores order tasks by this time.
    #[must_use]
    pub fn first_due(&self) -> Timestamp {
        self.overlapping.iter().map(|fire| fire.fire_at).fold(self.fire_at, Timestamp::min)
    }

    /// Returns the task with an overlapping fire as its current one, to settle that fire. The
    /// list of overlapping fires is unchanged. `None` if there is no such fire.
    #[must_use]
    pub fn before_overlapping(&self, nominal_at: Timestamp) -> Option<Self> {
        let fire = self.overlapping.iter().find(|fire| fire.nominal_at == nominal_at)?;
        let OverlappingFire { nominal_at, fire_at, attempts, occasion } = fire.clone();
        Some(Self { nominal_at, fire_at, attempts, occasion, ..self.clone() })
    }

    /// Returns the task after an overlapping fire was settled: without it, or with `again` in its
    /// stead if it is retried.
    #[must_use]
    pub fn with_overlapping(&self, nominal_at: Timestamp, again: Option<OverlappingFire>) -> Self {
        let overlapping = self.overlapping_except(nominal_at).chain(again).collect();
        Self { overlapping, ..self.clone() }
    }

    /// The current fire as an overlapping one.
    #[must_use]
    pub fn as_overlapping(&self) -> OverlappingFire {
        let Self { nominal_at, fire_at, occasion, .. } = *self;
        OverlappingFire { nominal_at, fire_at, attempts: self.attempts.clone(), occasion }
    }

    /// The task when its schedule is over: the earliest overlapping fire is the current one.
    pub(super) fn next_overlapping(&self) -> Option<Self> {
        let first = self.overlapping.iter().min_by_key(|fire| fire.fire_at)?.clone();
        let overlapping = self.overlapping_except(first.nominal_at).collect();
        let OverlappingFire { nominal_at, fire_at, attempts, occasion } = first;
        let (resumes_at, given_at) = (None, Some(self.latest_nominal_at()));
        let task = Self { nominal_at, fire_at, attempts, occasion, overlapping, ..self.clone() };
        Some(Self { resumes_at, given_at, ..task })
    }

    /// Swaps the current fire with an overlapping one. `upcoming` is the task before the next fire
    /// of its schedule, which `resumes_at` then remembers.
    fn with_current(&self, chosen: OverlappingFire, upcoming: Option<&Self>) -> Self {
        let others = self.overlapping_except(chosen.nominal_at);
        let overlapping = others.chain([self.as_overlapping()]).collect();
        let OverlappingFire { nominal_at, fire_at, attempts, occasion } = chosen;
        let resumes_at = upcoming.map(|next| next.nominal_at).or(self.resumes_at);
        let fires = upcoming.map_or(self.fires, |next| next.fires);
        let given_at = match upcoming {
            Some(next) => next.given_at,
            None => Some(self.latest_nominal_at()),
        };
        let task = Self { nominal_at, fire_at, attempts, occasion, overlapping, ..self.clone() };
        Self { resumes_at, fires, given_at, ..task }
    }

    fn overlapping_except(&self, nominal_at: Timestamp) -> impl Iterator<Item = OverlappingFire> {
        self.overlapping.iter().filter(move |fire| fire.nominal_at != nominal_at).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::fixtures::{SECOND, at, every_second, with_attempt};
    use crate::{Series, TaskState};

    #[test]
    fn fires_may_overlap_and_each_is_settled_on_its_own() {
        let task = every_second(Series::default());
        // Second 1 is in flight; second 2 comes due, and then 3.
        let two = task.with_next_fire(&[]).unwrap();
        assert_eq!((two.nominal_at, two.overlapping[0].nominal_at), (at(2), at(1)));
        let three = two.with_next_fire(&[at(1)]).unwrap();
        assert_eq!((three.nominal_at, three.overlapping.len()), (at(3), 2));
        // Second 1 fails and waits for a retry before second 4: that is next.
        let before = three.before_overlapping(at(1)).unwrap();
        assert_eq!((before.fire().id, before.nominal_at), (task.fire().id, at(1)));
        let failed = with_attempt(before, at(1));
        let again = Task { fire_at: at(3).after(SECOND / 2), ..failed }.as_overlapping();
        let three = three.with_overlapping(at(1), Some(again));
        let retry = three.with_next_fire(&[at(2)]).unwrap();
        assert_eq!((retry.nominal_at, retry.resumes_at), (at(1), Some(at(4))));
        assert_eq!((retry.attempts.len(), retry.fires), (1, 4));
        // It is done; second 4 is next, and was counted once.
        let four = retry.next_step(TaskState::Done, at(4)).next.unwrap();
        assert_eq!((four.nominal_at, four.fires, four.overlapping.len()), (at(4), 4, 2));
        // A store files it by its first open fire.
        let stored = four.clone().earliest();
        assert_eq!((stored.nominal_at, stored.resumes_at), (at(2), Some(at(5))));
        assert_eq!(stored.first_due(), four.first_due());
    }

    #[test]
    fn a_series_ends_when_its_last_fires_have_ended_in_any_order() {
        let task = every_second(Series { ends_at: Some(at(2)), ..Series::default() });
        let last = task.with_next_fire(&[]).unwrap();
        assert_eq!(last.with_next_fire(&[at(1)]), None, "no further one");
        // Second 2 is done first: second 1 is left.
        let left = last.next_step(TaskState::Done, at(3)).next.unwrap();
        assert_eq!((left.nominal_at, left.overlapping.len()), (at(1), 0));
        assert_eq!(left.next_step(TaskState::Done, at(3)).next, None, "and no second 2 again");
    }

    #[test]
    fn the_number_of_open_fires_is_bounded() {
        let mut task = every_second(Series::default());
        let mut in_flight = Vec::new();
        while let Some(next) = task.with_next_fire(&in_flight) {
            in_flight.push(task.nominal_at);
            task = next;
        }
        assert_eq!(in_flight.len() + 1, OVERLAPS_MAX);
        let skip = Series { overlap: Overlap::Skip, ..Series::default() };
        assert!(!every_second(skip).may_overlap());
    }
}
