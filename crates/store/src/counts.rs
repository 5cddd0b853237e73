//! Counts: how many tasks of a namespace are in each state, updated with every change.
//!
//! [`count`] computes by how much a change moves each count. All stores use this one function, so
//! that counts mean the same in each of them and add up: every accepted task is scheduled, paused,
//! done, dead or cancelled.

use punctual_core::{FireEnd, Namespace, TaskState};

use crate::change::Change;

/// Tasks of one namespace by state. Tasks that are firing count as scheduled: a store does not know
/// which attempts are in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Tasks that wait for their time.
    pub scheduled: i64,
    /// Tasks that wait to be resumed.
    pub paused: i64,
    /// Tasks that ended with a successful fire, since the store was created, and watches in state
    /// `Done`.
    pub done: i64,
    /// Tasks that ended as a dead letter and were not redriven since, and watches in state `Dead`.
    pub dead: i64,
    /// Tasks that were cancelled, since the store was created.
    pub cancelled: i64,
    /// Dead letters in the store, whether their task ended with them or continued.
    pub dead_letters: i64,
}

/// A namespace of a partition, with its counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CountedNamespace {
    /// The namespace.
    pub name: Namespace,
    /// Its tasks by state.
    pub counts: Counts,
}

impl Counts {
    const ZERO: Self =
        Self { scheduled: 0, paused: 0, done: 0, dead: 0, cancelled: 0, dead_letters: 0 };

    /// Returns the number of tasks accepted since the store was created.
    #[must_use]
    pub const fn accepted(&self) -> i64 {
        self.scheduled + self.paused + self.done + self.dead + self.cancelled
    }

    /// Returns whether every count is zero.
    #[must_use]
    pub fn is_zero(&self) -> bool {
        *self == Self::ZERO
    }

    /// Adds the result of [`count`] for one change.
    pub const fn add(&mut self, other: Self) {
        self.scheduled += other.scheduled;
        self.paused += other.paused;
        self.done += other.done;
        self.dead += other.dead;
        self.cancelled += other.cancelled;
        self.dead_letters += other.dead_letters;
    }

    const fn of(state: TaskState, by: i64) -> Self {
        let mut counts = Self::ZERO;
        match state {
            TaskState::Scheduled | TaskState::Firing => counts.scheduled = by,
            TaskState::Paused => counts.paused = by,
            TaskState::Done => counts.done = by,
            TaskState::Dead => counts.dead = by,
            TaskState::Cancelled => counts.cancelled = by,
        }
        counts
    }
}

/// Returns the namespace whose counts a change moves, and by how much, or `None` if it moves none.
///
/// Counts are of tasks, not of fires: the end of a fire of a task that continues moves a count only
/// if the state of the task changes.
#[must_use]
pub fn count(change: &Change) -> Option<(&Namespace, Counts)> {
    let (namespace, counts) = match change {
        Change::Put(task) => (&task.definition.namespace, Counts::of(task.state, 1)),
        Change::Refile { task, was } => {
            (&task.definition.namespace, moved(was.state, Some(task.state)))
        }
        Change::Postpone { .. } => return None,
        Change::Settle { record, next, was } => {
            let to = match (next, record.end) {
                (Some(task), _) => Some(task.state),
                // The last fire of a series ends the task even if that fire was skipped.
                (None, FireEnd::Done | FireEnd::Skipped(_)) => Some(TaskState::Done),
                (None, FireEnd::Dead(_)) => Some(TaskState::Dead),
                (None, FireEnd::Cancelled) => Some(TaskState::Cancelled),
                // The replacement counts: it is the same task under another id.
                (None, FireEnd::Replaced) => None,
            };
            (&record.namespace, settled(was.state, to))
        }
        Change::Dead { letter, next, was } => {
            let to = next.as_ref().map_or(TaskState::Dead, |task| task.state);
            let counts = Counts { dead_letters: 1, ..settled(was.state, Some(to)) };
            (&letter.task.definition.namespace, counts)
        }
        Change::Redrive { task, .. } => {
            let counts = Counts { dead_letters: -1, ..moved(TaskState::Dead, Some(task.state)) };
            (&task.definition.namespace, counts)
        }
        Change::DeleteLetter { namespace, .. } => {
            (namespace, Counts { dead_letters: -1, ..Counts::ZERO })
        }
    };
    (!counts.is_zero()).then_some((namespace, counts))
}

/// A fire that is no longer a part of its task moves no count of the task.
fn settled(was: TaskState, to: Option<TaskState>) -> Counts {
    if was == TaskState::Firing { Counts::ZERO } else { moved(was, to) }
}

fn moved(from: TaskState, to: Option<TaskState>) -> Counts {
    let mut counts = Counts::of(from, -1);
    if let Some(to) = to {
        counts.add(Counts::of(to, 1));
    }
    counts
}

#[cfg(test)]
mod tests {
    use punctual_core::{DeadReason, Task};

    use super::*;
    use crate::conformance::fixtures::{
        NOW, at, die, epoch, id, in_state, namespace, next_fire, partition, postpone, refile,
        settle, settle_with_next, task,
    };

    fn counts(moves: &[(TaskState, i64)], dead_letters: i64) -> Option<Counts> {
        let mut counts = Counts { dead_letters, ..Counts::ZERO };
        for (state, by) in moves {
            counts.add(Counts::of(*state, *by));
        }
        Some(counts)
    }

    #[test]
    fn every_change_moves_a_task_from_its_old_state_to_its_new_one() {
        use TaskState::{Cancelled, Dead, Done, Paused, Scheduled};
        let id = id(at(1), partition(0), epoch(1), 1);
        let waits = task(id).namespace("other").build();
        let paused = in_state(&waits, Paused);
        let next = next_fire(&waits, at(2));
        let redrive =
            |task: &Task| Change::Redrive { fire_id: waits.fire().id, task: task.clone() };
        let forget =
            Change::DeleteLetter { fire_id: waits.fire().id, namespace: namespace("other") };
        let continued_paused = settle_with_next(&waits, NOW, &in_state(&next, Paused));
        let dead = FireEnd::Dead(DeadReason::Refused);
        for (change, want) in [
            (Change::Put(waits.clone()), counts(&[(Scheduled, 1)], 0)),
            (Change::Put(paused.clone()), counts(&[(Paused, 1)], 0)),
            (refile(&waits, &next), None),
            (refile(&waits, &paused), counts(&[(Scheduled, -1), (Paused, 1)], 0)),
            (refile(&paused, &waits), counts(&[(Scheduled, 1), (Paused, -1)], 0)),
            (postpone(&waits, at(9)).1, None),
            (settle(&waits, FireEnd::Done, NOW), counts(&[(Scheduled, -1), (Done, 1)], 0)),
            (settle(&paused, FireEnd::Cancelled, NOW), counts(&[(Paused, -1), (Cancelled, 1)], 0)),
            (settle(&waits, FireEnd::Replaced, NOW), counts(&[(Scheduled, -1)], 0)),
            (settle(&waits, dead, NOW), counts(&[(Scheduled, -1), (Dead, 1)], 0)),
            (settle_with_next(&waits, NOW, &next), None),
            (continued_paused, counts(&[(Scheduled, -1), (Paused, 1)], 0)),
            (die(&waits, NOW, None), counts(&[(Scheduled, -1), (Dead, 1)], 1)),
            (die(&waits, NOW, Some(&next)), counts(&[], 1)),
            (redrive(&waits), counts(&[(Scheduled, 1), (Dead, -1)], -1)),
            (redrive(&paused), counts(&[(Paused, 1), (Dead, -1)], -1)),
            (forget, counts(&[], -1)),
        ] {
            let got = count(&change).map(|(namespace, counts)| {
                assert_eq!(namespace.as_str(), "other", "{change:?}");
                counts
            });
            assert_eq!(got, want, "{change:?}");
        }
    }

    #[test]
    fn a_firing_task_counts_as_scheduled() {
        assert_eq!(Counts::of(TaskState::Firing, 1), Counts::of(TaskState::Scheduled, 1));
    }

    #[test]
    fn accepted_is_the_sum_of_all_states_without_dead_letters() {
        let counts = Counts {
            scheduled: 1,
            paused: 10,
            done: 100,
            dead: 1000,
            cancelled: 10_000,
            dead_letters: 100_000,
        };
        assert_eq!(counts.accepted(), 11_111);
    }
}
