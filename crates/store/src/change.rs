//! Changes: the only way in which the tasks of a partition change.
//!
//! The owner decides (`core`, `engine`) and sends changes in a [`Batch`]. This file defines what
//! each change means for a store; the conformance suite checks it. How changes move the counts is
//! in `counts`.

use std::sync::Arc;

use punctual_core::{
    Answer, AttemptRecord, Backoff, DeadLetter, FireId, FireRecord, Labels, Namespace, Outcome,
    QUEUE_BYTES_MAX, SinkAddress, Target, Task, TaskId, TaskKind, TaskState, Timestamp, Version,
};

use crate::query::Head;

/// A task before a change, as far as the counts depend on it. The owner knows it from the task or
/// the head in hand, so that no store has to read the task to count it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prior {
    /// The state of the task.
    pub state: TaskState,
    /// The kind of its schedule.
    pub kind: TaskKind,
    /// When it was due. Exact for `once` tasks and watches, which are counted by it. The open fires
    /// of a series may have other times.
    pub fire_at: Timestamp,
}

impl Prior {
    /// Returns what a task is before it changes.
    #[must_use]
    pub fn of(task: &Task) -> Self {
        let kind = task.definition.schedule.kind();
        Self { state: task.state, kind, fire_at: task.fire_at }
    }

    /// Returns what the task of a head is before it changes.
    #[must_use]
    pub const fn of_head(head: &Head) -> Self {
        Self { state: head.state, kind: head.schedule.kind(), fire_at: head.fire_at }
    }

    /// Returns the task of a fire that is no longer a part of it. See [`Change::Settle`].
    #[must_use]
    pub const fn apart(record: &FireRecord) -> Self {
        let (state, kind) = (TaskState::Firing, TaskKind::Once);
        Self { state, kind, fire_at: record.due_at }
    }

    /// Returns the same task in another state. See [`Change::Settle`] for `Firing` and `Dead`.
    #[must_use]
    pub const fn in_state(self, state: TaskState) -> Self {
        Self { state, ..self }
    }
}

/// One change of one task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Stores a new task under a new id. If it has a key, the key names this task from now on; a
    /// task that the key named before was settled as replaced earlier in the same batch.
    Put(Task),

    /// Stores a task again under its id with another `fire_at` (earlier or later), attempts, state
    /// or version. The definition is unchanged unless it was edited, in which case the version
    /// grew.
    Refile {
        /// The task from now on.
        task: Task,
        /// The task before. Its state is `Scheduled` or `Paused`, or `Done` or `Dead` for a watch
        /// that had fired.
        was: Prior,
    },

    /// Moves a scheduled `once` task or watch to a later time and sets its version; nothing else
    /// changes. A store writes some tens of bytes for it, whatever the size of the payload.
    Postpone {
        /// The task.
        id: TaskId,
        /// The namespace of the task, for the counts.
        namespace: Namespace,
        /// When it is due from now on: its new `fire_at` and nominal time, later than before.
        fire_at: Timestamp,
        /// Its version from now on.
        version: Version,
        /// When it was touched: its `updated_at` from now on.
        updated_at: Timestamp,
        /// The task before.
        was: Prior,
    },

    /// A fire of a task ended, and not as a dead letter. The record is kept as history. Without
    /// `next` the task ends and its key becomes free. The task is [`FireRecord::task_id`]: a fire
    /// that was redriven as a task of its own ends that task, and its record is one of the task
    /// that the fire belongs to, whose key it has and which does not change.
    Settle {
        /// How the fire ended.
        record: FireRecord,
        /// The task from now on, under the same id, if it continues. Boxed, because most tasks end
        /// with their first fire, and a batch has thousands of changes.
        next: Option<Box<Task>>,
        /// The task before. Its state is `Scheduled` or `Paused`. `Dead` if the task had ended as a
        /// dead letter with an unknown outcome that is now known; the letter is forgotten earlier
        /// in the same batch. `Firing` if the fire is no longer a part of its task, as with such a
        /// letter of a task that had continued, or whose key was given to another task: then there
        /// is no `next`, and the task, its key and its counts do not change.
        was: Prior,
    },

    /// A fire of a task ended as a dead letter. The letter is kept until it is redriven, deleted or
    /// past its retention. Its record ([`FireRecord::of`] the letter's task, at `died_at`) is kept
    /// as history. Without `next` the task of the letter ends and its key becomes free.
    Dead {
        /// The dead letter.
        letter: DeadLetter,
        /// The task from now on, under the same id, if it continues.
        next: Option<Box<Task>>,
        /// The task before. Its state is `Scheduled` or `Paused`. `Dead` if the task had ended as a
        /// dead letter with an unknown outcome that is now known; the letter is forgotten earlier
        /// in the same batch. `Firing` if the fire is no longer a part of its task, as with such a
        /// letter of a task that had continued: then there is no `next`, and the task, its key and
        /// its counts do not change.
        was: Prior,
    },

    /// Schedules a dead letter again whose task had ended with it: deletes the letter and stores
    /// the task. If the task has a key, the key names it again.
    Redrive {
        /// The fire of the letter.
        fire_id: FireId,
        /// The task from now on, under the id of the letter's task.
        task: Task,
    },

    /// Deletes a dead letter: the caller asked for it, or its task had continued and the fire is
    /// redriven as a task of its own.
    DeleteLetter {
        /// The fire of the letter.
        fire_id: FireId,
        /// The namespace of the letter, for the counts.
        namespace: Namespace,
    },
}

impl Change {
    /// Returns the task that the change is about.
    #[must_use]
    pub fn task_id(&self) -> TaskId {
        match self {
            Self::Put(task) | Self::Refile { task, .. } | Self::Redrive { task, .. } => task.id,
            Self::Postpone { id, .. } => *id,
            Self::Settle { record, .. } => record.task_id(),
            Self::Dead { letter, .. } => letter.task.id,
            Self::DeleteLetter { fire_id, .. } => fire_id.task,
        }
    }

    /// Returns the fire whose record or dead letter the change writes or deletes.
    #[must_use]
    pub fn fire_id(&self) -> Option<FireId> {
        match self {
            Self::Put(_) | Self::Refile { .. } | Self::Postpone { .. } => None,
            Self::Settle { record, .. } => Some(record.fire_id),
            Self::Dead { letter, .. } => Some(letter.fire_id()),
            Self::Redrive { fire_id, .. } | Self::DeleteLetter { fire_id, .. } => Some(*fire_id),
        }
    }

    /// Returns whether the change creates a task at a caller's request. A store that runs out of
    /// space refuses these changes first. It accepts all others as long as it can: tasks can still
    /// fire, be cancelled and be redriven. Most of them free as much as they take. A callback takes
    /// about as much as the record that it reports, and is accepted because the end of its fire is
    /// in the same batch.
    #[must_use]
    pub fn grows(&self) -> bool {
        matches!(self, Self::Put(task) if task.definition.callback_of.is_none())
    }

    /// Returns the approximate size of the change in bytes, rather too large than too small.
    #[must_use]
    pub fn weight(&self) -> usize {
        let weight_of = |next: &Option<Box<Task>>| next.as_deref().map_or(0, weigh);
        match self {
            Self::Put(task) | Self::Refile { task, .. } | Self::Redrive { task, .. } => weigh(task),
            Self::Postpone { .. } | Self::DeleteLetter { .. } => WEIGHT_MIN,
            Self::Settle { record, next, .. } => {
                let labels = weigh_labels(&record.labels);
                WEIGHT_MIN + weigh_attempts(&record.attempts) + labels + weight_of(next)
            }
            // The letter, and the record of the same fire.
            Self::Dead { letter, next, .. } => {
                weigh(&letter.task) + weigh_attempts(&letter.task.attempts) + weight_of(next)
            }
        }
    }
}

/// Bytes of ids, times, numbers and names.
const WEIGHT_MIN: usize = 512;
/// Bytes of an attempt without its reason.
const ATTEMPT_WEIGHT: usize = 64;

fn weigh_attempts(attempts: &[AttemptRecord]) -> usize {
    let reason_bytes = |outcome: &Outcome| match outcome {
        Outcome::Failed { reason, .. } | Outcome::Refused { reason } => reason.as_str().len(),
        Outcome::Acked | Outcome::Expired => 0,
    };
    let answer_bytes = |answer: &Answer| answer.content_type().len() + answer.body().len() + 8;
    let weight = |attempt: &AttemptRecord| {
        let answer = attempt.answer.as_deref().map_or(0, answer_bytes);
        ATTEMPT_WEIGHT + reason_bytes(&attempt.outcome) + answer
    };
    attempts.iter().map(weight).sum()
}

fn weigh_labels(labels: &Labels) -> usize {
    labels.iter().map(|(name, value)| name.len() + value.len() + 8).sum()
}

fn weigh_target(target: &Target) -> usize {
    let http = match target {
        Target::Http(http) => http,
        Target::Queue(_) => return QUEUE_BYTES_MAX,
        Target::Mail(mail) => {
            let addresses = mail.recipients().iter().map(|address| address.len() + 8);
            return addresses.sum::<usize>() + mail.subject().len();
        }
        Target::Sink(sink) => {
            let address = match &sink.address {
                SinkAddress::Sql(call) => {
                    let params = call.params().iter();
                    let params = params.map(|param| param.name.len() + param.value.len() + 8);
                    call.statement().as_str().len() + params.sum::<usize>()
                }
                SinkAddress::Message(message) => {
                    let options = message.options();
                    let headers = options.headers.iter();
                    let headers = headers.map(|(name, value)| name.len() + value.len() + 8);
                    let key = options.key.as_ref().map_or(0, String::len);
                    message.place().len() + key + headers.sum::<usize>()
                }
            };
            return sink.connection.as_str().len() + address;
        }
        Target::Grpc(grpc) => return grpc.url().len() + grpc.method().len(),
    };
    let headers = http.headers().iter().map(|(name, value)| name.len() + value.len() + 8);
    let rules = http.rules().map_or(0, |rules| {
        let json = rules.success_json().iter().map(|it| it.pointer.len() + it.value.len() + 8);
        let statuses = rules.success_statuses().len() + rules.refuse_statuses().len();
        json.sum::<usize>() + 3 * statuses + 8
    });
    http.url().len() + headers.sum::<usize>() + rules
}

fn weigh(task: &Task) -> usize {
    let definition = &task.definition;
    let callbacks = definition.callbacks.as_ref().map_or(0, |callbacks| {
        let targets = [&callbacks.on_done, &callbacks.on_dead].into_iter().flatten();
        targets.map(weigh_target).sum()
    });
    let backoff = match &definition.retry.backoff {
        Backoff::List(pauses) => pauses.len() * 8,
        Backoff::Fixed(_) | Backoff::Exponential { .. } => 0,
    };
    WEIGHT_MIN
        + definition.payload.bytes().len()
        + weigh_target(&definition.target)
        + callbacks
        + weigh_labels(&definition.labels)
        + backoff
        + weigh_attempts(&task.attempts)
}

/// The number of a batch within one epoch of one partition: from 1, without gaps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BatchNo(u64);

impl BatchNo {
    /// The first batch of an epoch.
    pub const FIRST: Self = Self(1);

    /// Creates a batch number.
    #[must_use]
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// Returns the number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns the number of the next batch.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// Counts the repairs of one epoch of one partition: how often its owner has begun to send again
/// what the store had lost. A store refuses batches of an earlier repair than the last it has seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RepairNo(u64);

impl RepairNo {
    /// Before the first repair.
    pub const NONE: Self = Self(0);

    /// Returns the number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns the number of the next repair.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// Changes that a store makes together or not at all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// Distinguishes a batch that is sent again from a new one.
    pub number: BatchNo,
    /// The last repair that its owner had begun when it sent the batch.
    pub repair: RepairNo,
    /// The changes, in the order in which they take effect. Shared, because the owner keeps them
    /// until it knows the result of the batch.
    pub changes: Vec<Arc<Change>>,
}

impl Batch {
    /// Creates a batch of an owner that has repaired nothing.
    #[must_use]
    pub fn new(number: BatchNo, changes: Vec<Change>) -> Self {
        let changes = changes.into_iter().map(Arc::new).collect();
        Self { number, repair: RepairNo::NONE, changes }
    }

    /// Returns the same batch as its owner sends it after it has begun a repair.
    #[must_use]
    pub fn in_repair(self, repair: RepairNo) -> Self {
        Self { repair, ..self }
    }

    /// The largest number of changes in one batch. A store writes a batch as one piece, which must
    /// fit into memory several times over.
    pub const CHANGES_MAX: usize = 16_384;

    /// The largest weight of a batch of several decisions; a single decision may weigh more. Every
    /// store accepts twice as much in one batch.
    pub const WEIGHT_MAX: usize = 4 << 20;
}

#[cfg(test)]
mod tests {
    use punctual_core::{FireEnd, NewTask};

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
            Change::DeleteLetter { fire_id, namespace },
        ] {
            assert_eq!(change.task_id(), task.id, "{change:?}");
        }
    }

    #[test]
    fn only_what_callers_create_counts_as_growth() {
        let task = task(id(at(1), partition(3), epoch(2), 7)).build();
        let callback_of = Some(task.fire().id);
        let definition = NewTask { callback_of, ..NewTask::clone(&task.definition) };
        let callback = Task { definition: definition.into(), ..task.clone() };
        assert!(Change::Put(task.clone()).grows());
        let done = settle(&task, FireEnd::Done, NOW);
        for change in [Change::Put(callback), refile(&task, &task), done] {
            assert!(!change.grows(), "{change:?}");
        }
    }

    #[test]
    fn the_weight_of_a_change_is_at_least_its_encoded_size() {
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
