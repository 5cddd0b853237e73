//! Commands: what callers want of a partition, decided one at a time per task.
//!
//! In: a [`Command`]. Out: it is decided in its own room (`schedule`, `cancel`), or answered at once when nothing changes.
//! Invariant: commands about one subject are decided in the order in which they came, each after the one
//! before is durable, and against what the store holds then.
//! Not here: checking what a caller sent (`server/api` and `core`).

use std::collections::VecDeque;

use punctual_core::{
    AttemptNo, Namespace, NewTask, Task, TaskId, TaskKey, TaskState, Timestamp, Version,
};
use punctual_store::StoreError;
use tokio::sync::oneshot;

use crate::event::{Action, Sight};
use crate::memory::Phase;
use crate::owner::{Owner, STORE_PAUSE};

/// Whom a command is about.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Subject {
    /// The task that a key names.
    Key(Namespace, TaskKey),
    /// The task with an id.
    Id(TaskId),
}

/// The way back to a caller. One who has gone away is no error.
#[derive(Debug)]
pub struct Reply<T>(oneshot::Sender<Result<T, EngineError>>);

impl<T> Reply<T> {
    /// A reply and where it arrives.
    #[must_use]
    pub fn new() -> (Self, oneshot::Receiver<Result<T, EngineError>>) {
        let (sender, receiver) = oneshot::channel();
        (Self(sender), receiver)
    }

    pub(crate) fn send(self, result: Result<T, EngineError>) {
        let _ = self.0.send(result);
    }
}

/// What callers want.
#[derive(Debug)]
pub enum Command {
    /// Create a task, or replace the one that its key names.
    Schedule {
        /// What, already checked.
        new_task: Box<NewTask>,
        /// Whether it may be created, replaced, or both.
        condition: Condition,
        /// To whom.
        reply: Reply<Scheduled>,
    },
    /// Stop a task before its next fire.
    Cancel {
        /// Which.
        subject: Subject,
        /// Whose it must be.
        namespace: Namespace,
        /// To whom.
        reply: Reply<Cancelled>,
    },
    /// Show a living task.
    Get {
        /// Which.
        subject: Subject,
        /// Whose it must be.
        namespace: Namespace,
        /// To whom.
        reply: Reply<Task>,
    },
}

/// What must hold for a task to be scheduled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Condition {
    /// Nothing.
    Always,
    /// The key names no task yet.
    Absent,
    /// The key names a task of this version.
    Version(Version),
}

/// The answer to [`Command::Schedule`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scheduled {
    /// A new task.
    Created(Task),
    /// A task in place of another.
    Replaced(Task),
}

/// The answer to [`Command::Cancel`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cancelled {
    /// It will never fire.
    Cancelled,
    /// Too late: this attempt is under way.
    Firing(AttemptNo),
    /// Too late: it has fired, then.
    AlreadyFired(Timestamp),
}

/// Why a command was not done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// There is no such living task.
    #[error("no such task")]
    NotFound,
    /// It was to be created only, and exists.
    #[error("the key names a task already")]
    Exists(Box<Task>),
    /// It was to be replaced at another version.
    #[error("the task is at version {}", .0.get())]
    OtherVersion(Version),
    /// Too much is under way; try again a little later.
    #[error("too many tasks are due at once; try again later")]
    Busy,
    /// The store has no room.
    #[error("the store has no room left")]
    Full,
    /// This broker no longer decides about the task, or is stopping.
    #[error("the broker is stopping")]
    Stopped,
}

impl Command {
    fn subject(&self) -> Option<Subject> {
        match self {
            Self::Schedule { new_task, .. } => {
                let key = new_task.key.clone()?;
                Some(Subject::Key(new_task.namespace.clone(), key))
            }
            Self::Cancel { subject, .. } | Self::Get { subject, .. } => Some(subject.clone()),
        }
    }

    /// Answers that it will not be done.
    pub(crate) fn refuse(self, error: EngineError) {
        match self {
            Self::Schedule { reply, .. } => reply.send(Err(error)),
            Self::Cancel { reply, .. } => reply.send(Err(error)),
            Self::Get { reply, .. } => reply.send(Err(error)),
        }
    }
}

impl Owner {
    pub(crate) fn on_command(&mut self, command: Command, now: Timestamp) {
        let Some(subject) = command.subject() else {
            return self.decide(command, None, Sight::default(), now);
        };
        if let Some(queue) = self.queues.get_mut(&subject) {
            return queue.push_back(command);
        }
        self.queues.insert(subject.clone(), VecDeque::from([command]));
        self.look(subject);
    }

    /// Decides the first command that waits for a subject, now that the store has said what it knows.
    pub(crate) fn on_looked(
        &mut self,
        subject: Subject,
        result: Result<Sight, StoreError>,
        now: Timestamp,
    ) {
        let Some(issued) = self.looks.remove(&subject) else {
            return;
        };
        self.recent.close(issued);
        let sight = match result {
            Ok(sight) => sight,
            Err(StoreError::Unavailable(_)) => return self.look_later(subject, now),
            Err(error) => return self.stop(error),
        };
        if let Some(task) = &sight.task
            && self.recent.changed_since(task.id, issued)
        {
            return self.look_when_durable(subject, task.id);
        }
        let Some(queue) = self.queues.get_mut(&subject) else {
            return;
        };
        let Some(command) = queue.pop_front() else {
            return;
        };
        self.decide(command, Some(subject), sight, now);
    }

    /// Looks again: what the store said is already out of date. If the change is not durable yet, only
    /// once it is.
    fn look_when_durable(&mut self, subject: Subject, id: TaskId) {
        if self.recent.is_undurable(id) {
            self.watchers.entry(id).or_default().push(subject);
        } else {
            self.look(subject);
        }
    }

    pub(crate) fn look(&mut self, subject: Subject) {
        self.looks.insert(subject.clone(), self.recent.open());
        self.actions.push(Action::Look(subject));
    }

    fn look_later(&mut self, subject: Subject, now: Timestamp) {
        self.looks.insert(subject.clone(), self.recent.open());
        self.later.push((now.after(STORE_PAUSE), Action::Look(subject)));
    }

    /// The command before is done; the next one about the same subject may be decided.
    pub(crate) fn free(&mut self, subject: Subject) {
        let Some(queue) = self.queues.get(&subject) else {
            return;
        };
        if queue.is_empty() {
            self.queues.remove(&subject);
        } else {
            self.look(subject);
        }
    }

    fn decide(&mut self, command: Command, subject: Option<Subject>, sight: Sight, now: Timestamp) {
        match command {
            Command::Schedule { new_task, condition, reply } => {
                self.schedule(*new_task, condition, reply, subject, sight.task, now);
            }
            Command::Cancel { namespace, reply, .. } => {
                let sight = sight.of(&namespace);
                self.cancel(reply, subject, sight, now);
            }
            Command::Get { namespace, reply, .. } => {
                let shown = sight.of(&namespace).task.map(|task| self.as_it_stands(task));
                reply.send(shown.ok_or(EngineError::NotFound));
                self.answered(subject);
            }
        }
    }

    pub(crate) fn answered(&mut self, subject: Option<Subject>) {
        if let Some(subject) = subject {
            self.free(subject);
        }
    }

    /// A task as the store has it, with what only memory knows: whether it is firing.
    pub(crate) fn as_it_stands(&self, mut task: Task) -> Task {
        if self.memory.phase(task.id) == Some(Phase::Firing) {
            task.state = TaskState::Firing;
        }
        task
    }
}

impl Sight {
    /// What one namespace may see of it.
    fn of(self, namespace: &Namespace) -> Self {
        Self {
            task: self.task.filter(|task| task.definition.namespace == *namespace),
            last: self.last.filter(|record| record.namespace == *namespace),
        }
    }
}
