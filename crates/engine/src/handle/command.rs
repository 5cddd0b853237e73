//! Commands: what callers ask of one partition. The values are checked already (`server/api` and
//! `core`); each command names its subject, by which `commands` puts them in order.

use std::sync::Arc;

use punctual_core::{Due, FireId, Namespace, NewTask, Task, TaskId, TaskKey, TaskState, Version};

/// The task that a command is about.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Subject {
    /// The task that a key names.
    Key(Namespace, TaskKey),
    /// The task with an id, if it belongs to this namespace.
    Id(Namespace, TaskId),
}

impl Subject {
    /// Returns the namespace of the task.
    #[must_use]
    pub const fn namespace(&self) -> &Namespace {
        match self {
            Self::Key(namespace, _) | Self::Id(namespace, _) => namespace,
        }
    }
}

/// What a caller asks for.
#[derive(Debug, Clone)]
pub enum Command {
    /// Create a task, or replace the one that its key names.
    Schedule(ScheduleCommand),
    /// Bind an idempotency key to a definition, in the partition to which the key alone leads. The
    /// task itself may be in another partition.
    Bind(Namespace, Receipt),
    /// End a task before its next fire.
    Cancel(Subject),
    /// Read a task.
    Get(Subject),
    /// Move the next fire of a task.
    Touch(Subject, TouchTo),
    /// Stop firing a task until it is resumed.
    Pause(Subject),
    /// Fire a paused task again.
    Resume(Subject),
    /// Fire a task once, now, in addition to its schedule.
    Fire(Subject),
    /// Schedule a dead letter again.
    Redrive {
        /// The key of its task, or the id if the task has no key.
        subject: Subject,
        /// The fire that the letter is about.
        fire_id: FireId,
    },
    /// Delete a dead letter.
    DeleteLetter {
        /// The letter must belong to this namespace.
        namespace: Namespace,
        /// The fire that the letter is about.
        fire_id: FireId,
    },
}

impl Command {
    /// Whether the command creates a task without reading anything from the store.
    pub(crate) fn only_adds(&self) -> bool {
        let Self::Schedule(schedule) = self else { return false };
        schedule.new_task.key.is_none() && schedule.receipt.is_none()
    }

    /// Returns the task, or the receipt, that the command is about; `None` if it
    /// [only adds](Self::only_adds) one.
    pub(crate) fn subject(&self) -> Option<Subject> {
        match self {
            Self::Schedule(schedule) => match schedule.new_task.key.clone() {
                Some(key) => Some(Subject::Key(schedule.new_task.namespace.clone(), key)),
                None => schedule.receipt_subject(),
            },
            Self::Bind(namespace, receipt) => Some(receipt.subject(namespace)),
            Self::Cancel(subject)
            | Self::Get(subject)
            | Self::Touch(subject, _)
            | Self::Pause(subject)
            | Self::Resume(subject)
            | Self::Fire(subject)
            | Self::Redrive { subject, .. } => Some(subject.clone()),
            Self::DeleteLetter { namespace, fire_id } => {
                Some(Subject::Id(namespace.clone(), fire_id.task))
            }
        }
    }
}

/// A task to schedule.
#[derive(Debug, Clone)]
pub struct ScheduleCommand {
    /// The definition, already checked.
    pub new_task: Arc<NewTask>,
    /// Whether the task may be created, replaced, or both.
    pub condition: Condition,
    /// With a receipt, repeating the command creates nothing.
    pub receipt: Option<Receipt>,
    /// Whether the task starts paused.
    pub start: StartState,
}

/// The state in which a scheduled task starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StartState {
    /// A new task is scheduled. A task that is edited in place keeps its state.
    #[default]
    Scheduled,
    /// The task is paused until it is resumed.
    Paused,
}

impl StartState {
    /// Returns a task that was created or edited, in the state in which it starts.
    pub(crate) fn begin(self, task: Task) -> Task {
        match self {
            Self::Scheduled => task,
            Self::Paused => Task { state: TaskState::Paused, ..task },
        }
    }
}

impl ScheduleCommand {
    /// Returns the name under which the receipt is stored.
    pub(crate) fn receipt_subject(&self) -> Option<Subject> {
        Some(self.receipt.as_ref()?.subject(&self.new_task.namespace))
    }
}

/// What is remembered about a task that was created with an idempotency key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Receipt {
    /// The key of the receipt: made of the idempotency key and, if the task has one, of its key.
    pub key: TaskKey,
    /// Digest of the definition that was sent. The same key with another digest is a conflict.
    pub digest: String,
}

impl Receipt {
    fn subject(&self, namespace: &Namespace) -> Subject {
        Subject::Key(namespace.of_receipts(), self.key.clone())
    }
}

/// What must hold for a task to be scheduled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Condition {
    /// No condition: create or replace.
    Always,
    /// The key names no task yet.
    Absent,
    /// The key names a task of this version.
    Version(Version),
}

impl Condition {
    /// Whether the task must exist in a version.
    pub(crate) const fn is_version(self) -> bool {
        matches!(self, Self::Version(_))
    }
}

/// Where a touch moves the next fire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TouchTo {
    /// By the duration of the watch's schedule.
    Within,
    /// To a time that the caller gives.
    To(Due),
}
