//! A handle to one partition: typed calls to its owner.

use std::sync::Arc;

use punctual_core::{PartitionId, Task};
use punctual_engine::{
    Cancelled, Command, EngineError, Replies, Reply, ScheduleCommand, Scheduled, Subject,
};

use super::registry::Owners;

/// The way to the owner of a partition.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Door<'a> {
    pub(super) owners: &'a Arc<Owners>,
    pub(super) partition: PartitionId,
}

impl Door<'_> {
    /// Asks for several things at once; one answer each, in order.
    pub(crate) fn call(
        &self,
        commands: Vec<Command>,
    ) -> impl Future<Output = Result<Replies, EngineError>> + Send + use<> {
        self.owners.ask(self.partition, commands)
    }

    /// Creates a task, or replaces the one that its key names.
    pub(crate) async fn schedule(&self, order: ScheduleCommand) -> Result<Scheduled, EngineError> {
        match self.one(Command::Schedule(order)).await? {
            Reply::Scheduled(scheduled) => Ok(scheduled),
            answer => Err(unlike(&answer)),
        }
    }

    /// Stops a task before its next fire.
    pub(crate) async fn cancel(&self, subject: Subject) -> Result<Cancelled, EngineError> {
        match self.one(Command::Cancel(subject)).await? {
            Reply::Cancelled(cancelled) => Ok(cancelled),
            answer => Err(unlike(&answer)),
        }
    }

    /// Shows a living task.
    pub(crate) async fn get(&self, subject: Subject) -> Result<Task, EngineError> {
        self.task(Command::Get(subject)).await
    }

    /// Does what is answered with a task: get, pause, resume, redrive.
    pub(crate) async fn task(&self, command: Command) -> Result<Task, EngineError> {
        match self.one(command).await? {
            Reply::Task(task) => Ok(task),
            answer => Err(unlike(&answer)),
        }
    }

    async fn one(&self, command: Command) -> Result<Reply, EngineError> {
        let answers = self.call(vec![command]).await?;
        answers.into_iter().next().unwrap_or(Err(EngineError::Lost))
    }
}

/// Another broker may be of another version, and answer what nobody asked: what it did is not known.
fn unlike(answer: &Reply) -> EngineError {
    tracing::error!(?answer, "another command's answer");
    EngineError::Lost
}
