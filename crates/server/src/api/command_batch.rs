//! Sends many commands to their owners at once.
//!
//! Each owner gets its commands in one call, so that one commit of the store answers many of them.
//! The replies come back in the order in which the commands were pushed. A reply that is missing or
//! belongs to another kind of command is [`EngineError::Lost`]: a broker of another version may
//! answer anything, and what it did is not known.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;

use punctual_core::{PartitionId, Task};
use punctual_engine::{Cancelled, Command, EngineError, Replies, Reply, Scheduled};

use crate::routing::Owners;

/// The reply to one command of a batch, or why there is none.
pub(crate) type CommandResult = Result<Reply, EngineError>;

/// Commands, grouped by the partition that decides them.
#[derive(Debug, Default)]
pub(crate) struct CommandBatch {
    by_partition: BTreeMap<PartitionId, (Vec<usize>, Vec<Command>)>,
    count: usize,
}

/// Calls in flight, each with the positions of its commands in the batch.
pub(crate) struct PendingReplies {
    calls: Vec<(Vec<usize>, PendingCall)>,
    count: usize,
}

type PendingCall = Pin<Box<dyn Future<Output = Result<Replies, EngineError>> + Send>>;

impl CommandBatch {
    pub(crate) fn push(&mut self, partition: PartitionId, command: Command) {
        let (positions, commands) = self.by_partition.entry(partition).or_default();
        positions.push(self.count);
        commands.push(command);
        self.count += 1;
    }

    /// Calls all owners at once. Owners decide batches in the order in which they are sent.
    pub(crate) fn send(self, owners: &Arc<Owners>) -> PendingReplies {
        let calls = self.by_partition.into_iter().map(|(partition, (positions, commands))| {
            let call: PendingCall = match owners.of(partition) {
                Some(owner) => Box::pin(owner.call(commands)),
                // The id names a partition that does not exist, so no task has it.
                None => Box::pin(std::future::ready(Err(EngineError::NotFound))),
            };
            (positions, call)
        });
        PendingReplies { calls: calls.collect(), count: self.count }
    }

    /// Calls all owners at once, and waits for their replies.
    pub(crate) async fn run(self, owners: &Arc<Owners>) -> Vec<CommandResult> {
        self.send(owners).wait().await
    }
}

impl PendingReplies {
    /// Returns one result per command, in order.
    pub(crate) async fn wait(self) -> Vec<CommandResult> {
        let mut results: Vec<_> = (0..self.count).map(|_| Err(EngineError::Lost)).collect();
        // All calls are in flight already, so waiting for one after the other delays none.
        for (positions, call) in self.calls {
            match call.await {
                Ok(replies) => {
                    positions.into_iter().zip(replies).for_each(|(at, reply)| results[at] = reply);
                }
                Err(error) => positions.into_iter().for_each(|at| results[at] = Err(error.clone())),
            }
        }
        results
    }
}

/// The result of a command that was sent; [`EngineError::Lost`] if there are fewer than commands.
pub(crate) fn next_result(results: &mut impl Iterator<Item = CommandResult>) -> CommandResult {
    results.next().unwrap_or(Err(EngineError::Lost))
}

/// The error for a reply to another kind of command. Only the kind is logged, never the task.
pub(crate) fn unexpected_reply(reply: &Reply) -> EngineError {
    let kind = match reply {
        Reply::Scheduled(_) => "scheduled",
        Reply::Bound => "bound",
        Reply::Cancelled(_) => "cancelled",
        Reply::Task(_) => "task",
        Reply::Touched { .. } => "touched",
        Reply::LetterDeleted => "forgotten",
    };
    tracing::error!(reply = kind, "reply does not match the command; do broker versions differ?");
    EngineError::Lost
}

pub(crate) fn expect_scheduled(reply: Reply) -> Result<Scheduled, EngineError> {
    match reply {
        Reply::Scheduled(scheduled) => Ok(scheduled),
        other => Err(unexpected_reply(&other)),
    }
}

pub(crate) fn expect_cancelled(reply: Reply) -> Result<Cancelled, EngineError> {
    match reply {
        Reply::Cancelled(cancelled) => Ok(cancelled),
        other => Err(unexpected_reply(&other)),
    }
}

pub(crate) fn expect_task(reply: Reply) -> Result<Task, EngineError> {
    match reply {
        Reply::Task(task) => Ok(task),
        other => Err(unexpected_reply(&other)),
    }
}

/// Returns when the task is due now.
pub(crate) fn expect_touched(reply: &Reply) -> Result<punctual_core::Timestamp, EngineError> {
    match reply {
        Reply::Touched { fire_at, .. } => Ok(*fire_at),
        other => Err(unexpected_reply(other)),
    }
}

pub(crate) fn expect_bound(reply: &Reply) -> Result<(), EngineError> {
    match reply {
        Reply::Bound => Ok(()),
        other => Err(unexpected_reply(other)),
    }
}

pub(crate) fn expect_forgotten(reply: &Reply) -> Result<(), EngineError> {
    match reply {
        Reply::LetterDeleted => Ok(()),
        other => Err(unexpected_reply(other)),
    }
}

#[cfg(test)]
mod tests {
    use http::StatusCode;
    use punctual_core::{Timestamp, Version};

    use super::*;
    use crate::problem::Problem;

    #[test]
    fn a_reply_to_another_command_leaves_the_outcome_unknown() {
        let touched = Reply::Touched { fire_at: Timestamp::EPOCH, version: Version::FIRST };
        for error in [
            expect_scheduled(touched.clone()).unwrap_err(),
            expect_cancelled(touched.clone()).unwrap_err(),
            expect_task(Reply::Bound).unwrap_err(),
            expect_bound(&Reply::LetterDeleted).unwrap_err(),
            expect_forgotten(&touched).unwrap_err(),
            expect_touched(&Reply::Bound).unwrap_err(),
        ] {
            assert_eq!(error, EngineError::Lost);
            let problem = Problem::from(error);
            let (kind, status, ..) = problem.parts();
            assert_eq!((kind, status), ("urn:punctual:lost", StatusCode::SERVICE_UNAVAILABLE));
        }
        assert_eq!(expect_bound(&Reply::Bound), Ok(()));
        assert_eq!(expect_forgotten(&Reply::LetterDeleted), Ok(()));
    }

    #[tokio::test]
    async fn a_missing_reply_leaves_the_outcome_unknown() {
        let short: PendingCall = Box::pin(std::future::ready(Ok(vec![Ok(Reply::Bound)])));
        let refused: PendingCall = Box::pin(std::future::ready(Err(EngineError::Stopped)));
        let calls = vec![(vec![0, 2], short), (vec![1], refused)];
        let results = PendingReplies { calls, count: 3 }.wait().await;
        let (stopped, lost) = (Err(EngineError::Stopped), Err(EngineError::Lost));
        assert_eq!(results, [Ok(Reply::Bound), stopped, lost]);
        assert_eq!(next_result(&mut std::iter::empty()), Err(EngineError::Lost));
    }
}
