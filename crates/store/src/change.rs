//! Changes: the only way in which a partition's tasks change.
//!
//! In: decisions of the owner. Out: what each means for a store, in prose that the conformance suite
//! follows word for word. Not here: deciding (`core`, `engine`), counting (`counts`).

use std::sync::Arc;

use punctual_core::{
    AttemptRecord, Backoff, DeadLetter, FireId, FireRecord, Outcome, Target, Task, TaskId,
    TaskState, Timestamp, Version,
};

/// What happens to one task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// A task is filed under a new id. If it has a key, the key names it from now on; whoever
    /// the key named before is settled as replaced earlier in the same batch.
    Put(Task),

    /// A task stands differently from now on, under its old id: another `fire_at` (earlier or later),
    /// attempt, state or version. Its definition is as it was, unless it was edited, which the version says.
    Refile {
        /// As it stands from now on.
        task: Task,
        /// How it stood before: `Scheduled` or `Paused`, or `Done` or `Dead` if it is a watch that had fired.
        was: TaskState,
    },

    /// A scheduled task is due later than before, and nothing else about it but its version changes. Small: a
    /// store writes some tens of bytes, whatever the payload and however far the time.
    Postpone {
        /// Which.
        id: TaskId,
        /// When it is due from now on, by schedule and in fact; later than before.
        fire_at: Timestamp,
        /// Its version from now on.
        version: Version,
    },

    /// A fire of a task has ended other than dead. Its record is kept as history. The task ends with it, and
    /// its key is free again, unless `next` says how it goes on.
    Settle {
        /// How the fire ended.
        record: FireRecord,
        /// The task as it stands from now on, under the same id, if it goes on.
        next: Option<Task>,
        /// How the task stood before: `Scheduled` or `Paused`. `Dead` if it had ended as a dead letter whose outcome was
        /// not known and now is; the letter is forgotten earlier in the same batch. `Firing` if the fire stood aside of its task, as
        /// such a letter of a task that went on: then there is no `next`, and the task, its name and its counts are not touched.
        was: TaskState,
    },

    /// A fire of a task is dead. The letter is kept until it is redriven, deleted or past its retention, and its
    /// record ([`FireRecord::of`] the letter's task, at `died_at`) is kept as history. The task ends with it, and its key is free again, unless `next` says how it
    /// goes on.
    Dead {
        /// What is kept.
        letter: DeadLetter,
        /// The task as it stands from now on, under the same id, if it goes on.
        next: Option<Task>,
        /// How the task stood before: `Scheduled` or `Paused`. `Dead` if it had ended as a dead letter whose outcome was
        /// not known and now is; the letter is forgotten earlier in the same batch. `Firing` if the fire stood aside of its task, as
        /// such a letter of a task that went on: then there is no `next`, and the task, its name and its counts are not touched.
        was: TaskState,
    },

    /// A dead letter whose task ended with it goes back to be fired: the letter is gone, the task is filed as it
    /// stands here. If it has a key, the key names it again.
    Redrive {
        /// Which letter.
        fire_id: FireId,
        /// As it stands from now on, under the id of the letter's task.
        task: Task,
    },

    /// A dead letter is deleted: nobody wants it, or it was of a task that went on and is redriven as a task of its own.
    Forget {
        /// Which letter.
        fire_id: FireId,
        /// Whose, for the counts.
        namespace: punctual_core::Namespace,
    },
}

impl Change {
    /// The task that it is about.
    #[must_use]
    pub const fn task_id(&self) -> TaskId {
        match self {
            Self::Put(task) | Self::Refile { task, .. } => task.id,
            Self::Postpone { id, .. } => *id,
            Self::Settle { record, .. } => record.fire_id.task,
            Self::Dead { letter, .. } => letter.task.id,
            Self::Redrive { fire_id, .. } | Self::Forget { fire_id, .. } => fire_id.task,
        }
    }

    /// Whether it makes a task. A store that runs out of room refuses these first, and all others for as long as it can: they give
    /// back what they take, and firing, cancelling and sending a letter back go on.
    #[must_use]
    pub const fn grows(&self) -> bool {
        matches!(self, Self::Put(_))
    }

    /// About how many bytes it takes, rather too many than too few.
    #[must_use]
    pub fn weight(&self) -> usize {
        let weight_of = |next: &Option<Task>| next.as_ref().map_or(0, weigh);
        match self {
            Self::Put(task) | Self::Refile { task, .. } | Self::Redrive { task, .. } => weigh(task),
            Self::Postpone { .. } | Self::Forget { .. } => WEIGHT_MIN,
            Self::Settle { record, next, .. } => {
                WEIGHT_MIN + weigh_attempts(&record.attempts) + weight_of(next)
            }
            // The letter, and the record of the same fire.
            Self::Dead { letter, next, .. } => {
                weigh(&letter.task) + weigh_attempts(&letter.task.attempts) + weight_of(next)
            }
        }
    }
}

/// Ids, times, numbers and names.
const WEIGHT_MIN: usize = 512;
/// An attempt, without its reason.
const ATTEMPT_WEIGHT: usize = 64;

fn weigh_attempts(attempts: &[AttemptRecord]) -> usize {
    let reason_bytes = |outcome: &Outcome| match outcome {
        Outcome::Failed { reason, .. } | Outcome::Refused { reason } => reason.as_str().len(),
        Outcome::Acked | Outcome::Expired => 0,
    };
    attempts.iter().map(|attempt| ATTEMPT_WEIGHT + reason_bytes(&attempt.outcome)).sum()
}

fn weigh(task: &Task) -> usize {
    let definition = &task.definition;
    let target = match &definition.target {
        Target::Queue(_) => 0,
        Target::Http(http) => {
            let headers = http.headers().iter().map(|(name, value)| name.len() + value.len() + 8);
            http.url().len() + headers.sum::<usize>()
        }
    };
    let labels = definition.labels.iter().map(|(name, value)| name.len() + value.len() + 8);
    let backoff = match &definition.retry.backoff {
        Backoff::List(pauses) => pauses.len() * 8,
        Backoff::Fixed(_) | Backoff::Exponential { .. } => 0,
    };
    WEIGHT_MIN
        + definition.payload.bytes().len()
        + target
        + labels.sum::<usize>()
        + backoff
        + weigh_attempts(&task.attempts)
}

/// The number of a batch among those of one epoch of one partition, from 1, without gaps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BatchNo(u64);

impl BatchNo {
    /// The first of an epoch.
    pub const FIRST: Self = Self(1);

    /// By its number.
    #[must_use]
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The one after.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// Changes that are made together or not at all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// Tells a batch that is sent again from a new one.
    pub number: BatchNo,
    /// In the order in which they take effect.
    /// Shared: an owner keeps them until it knows what came of the batch.
    pub changes: Vec<Arc<Change>>,
}

impl Batch {
    /// A batch of these.
    #[must_use]
    pub fn new(number: BatchNo, changes: Vec<Change>) -> Self {
        Self { number, changes: changes.into_iter().map(Arc::new).collect() }
    }

    /// Changes in one batch: a store writes them as one piece, and a piece must fit memory
    /// several times over.
    pub const CHANGES_MAX: usize = 16_384;

    /// Weight of one batch, unless a single decision weighs more. Every store takes twice as much in one piece.
    pub const WEIGHT_MAX: usize = 4 << 20;
}

#[cfg(test)]
mod tests {
    use punctual_core::FireEnd;

    use super::*;
    use crate::conformance::fixtures::{
        NOW, at, die, epoch, id, partition, postpone, refile, rich_task, settle, shop, task,
    };

    #[test]
    fn every_change_is_about_one_task() {
        let task = task(id(at(1), partition(3), epoch(2), 7)).build();
        let fire_id = task.fire().id;
        let namespace = shop();
        for change in [
            Change::Put(task.clone()),
            refile(&task, &task),
            postpone(&task, at(9)).1,
            settle(&task, FireEnd::Done, NOW),
            die(&task, NOW, None),
            Change::Redrive { fire_id, task: task.clone() },
            Change::Forget { fire_id, namespace },
        ] {
            assert_eq!(change.task_id(), task.id, "{change:?}");
        }
    }

    #[test]
    fn a_change_weighs_at_least_what_it_takes_to_write() {
        let id = id(at(1), partition(3), epoch(2), 7);
        for task in [task(id).build(), rich_task(id)] {
            let mut bytes = Vec::new();
            crate::codec::put_task(&mut bytes, &task);
            assert!(Change::Put(task.clone()).weight() >= bytes.len(), "{task:?}");
            assert!(die(&task, NOW, None).weight() >= bytes.len(), "{task:?}");
        }
    }

    #[test]
    fn batches_are_numbered_from_one() {
        assert_eq!(BatchNo::FIRST, BatchNo::new(1));
        assert_eq!(BatchNo::FIRST.next().get(), 2);
    }
}
