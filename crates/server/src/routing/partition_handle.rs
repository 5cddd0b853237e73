//! A handle to one partition: typed calls to its owner, wherever the owner runs.

use std::sync::Arc;

use punctual_core::{PartitionId, Task};
use punctual_engine::{
    Cancelled, Command, EngineError, Replies, Reply, ScheduleCommand, Scheduled, Subject,
};

use super::registry::Owners;

/// Calls the owner of one partition.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PartitionHandle<'a> {
    pub(super) owners: &'a Arc<Owners>,
    pub(super) partition: PartitionId,
}

impl PartitionHandle<'_> {
    /// Returns the partition.
    pub(crate) const fn partition(&self) -> PartitionId {
        self.partition
    }

    /// Sends several commands. Returns one reply per command, in order.
    pub(crate) fn call(
        &self,
        commands: Vec<Command>,
    ) -> impl Future<Output = Result<Replies, EngineError>> + Send + use<> {
        self.owners.call(self.partition, commands)
    }

    /// Creates a task, or replaces the task with the same key.
    pub(crate) async fn schedule(
        &self,
        command: ScheduleCommand,
    ) -> Result<Scheduled, EngineError> {
        match self.one(Command::Schedule(command)).await? {
            Reply::Scheduled(scheduled) => Ok(scheduled),
            reply => Err(unexpected(&reply)),
        }
    }

    /// Cancels a task before its next fire.
    pub(crate) async fn cancel(&self, subject: Subject) -> Result<Cancelled, EngineError> {
        match self.one(Command::Cancel(subject)).await? {
            Reply::Cancelled(cancelled) => Ok(cancelled),
            reply => Err(unexpected(&reply)),
        }
    }

    /// Reads a task that is scheduled, firing or paused, without waiting for an owner:
    /// [`EngineError::Stopped`] if there is none right now.
    pub(crate) async fn get_at_once(&self, subject: Subject) -> Result<Task, EngineError> {
        let commands = vec![Command::Get(subject)];
        task_of(first(self.owners.call_present(self.partition, commands).await?)?)
    }

    /// Sends a command whose reply is a task: get, pause, resume or redrive.
    pub(crate) async fn task(&self, command: Command) -> Result<Task, EngineError> {
        task_of(self.one(command).await?)
    }

    async fn one(&self, command: Command) -> Result<Reply, EngineError> {
        first(self.call(vec![command]).await?)
    }
}

fn first(replies: Replies) -> Result<Reply, EngineError> {
    replies.into_iter().next().unwrap_or(Err(EngineError::Lost))
}

fn task_of(reply: Reply) -> Result<Task, EngineError> {
    match reply {
        Reply::Task(task) => Ok(task),
        reply => Err(unexpected(&reply)),
    }
}

/// A peer of another version may send a reply of another kind. What it has done is not known.
fn unexpected(reply: &Reply) -> EngineError {
    tracing::error!(?reply, "peer sent a reply to another command");
    EngineError::Lost
}
