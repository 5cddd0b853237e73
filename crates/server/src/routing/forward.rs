//! Calls to the owner of a partition, on this broker or on another.
//!
//! A command is sent again only if the last try certainly changed nothing, that is if it ended with
//! [`EngineError::Stopped`]. The caller waits at most [`WAIT_FOR_OWNER_MAX`] for an owner and at
//! most [`CALL_MAX`] for the replies.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use punctual_core::PartitionId;
use punctual_engine::{Command, EngineError, Replies, Reply};
use tokio::time::timeout;

use super::registry::{Owners, Route};
use crate::peer::PeerError;
use crate::telemetry::Forwarded;

/// How long a call waits for the next owner of its partition: longer than a hand-over, shorter than
/// the patience of callers. After a crash, the next owner may take longer: up to one lease.
const WAIT_FOR_OWNER_MAX: Duration = Duration::from_secs(3);
/// How long a call may take in a cluster: the shared store may be unavailable for longer.
const CALL_MAX: Duration = Duration::from_secs(5);
/// How often a waiting call checks for an owner when no change is signalled.
const RETRY_EVERY: Duration = Duration::from_millis(50);

impl Owners {
    /// Sends commands to the owner of a partition. Returns one reply per command, in order.
    ///
    /// If the owner is local, the commands are in its queue when this function returns: the owner
    /// decides them in the order of these calls.
    pub(crate) fn call(
        self: &Arc<Self>,
        partition: PartitionId,
        commands: Vec<Command>,
    ) -> impl Future<Output = Result<Replies, EngineError>> + Send + use<> {
        let copy = self.remote.is_some().then(|| commands.clone());
        let first = self.try_call(partition, commands);
        let owners = Arc::clone(self);
        async move {
            let Some(commands) = copy else { return first.await };
            let replies = async { owners.retry(partition, commands, first.await).await };
            // The owner may still execute the commands after this timeout.
            timeout(CALL_MAX, replies).await.unwrap_or(Err(EngineError::Lost))
        }
    }

    /// Sends commands to the present owner, and does not wait for another one.
    pub(crate) async fn call_present(
        &self,
        partition: PartitionId,
        commands: Vec<Command>,
    ) -> Result<Replies, EngineError> {
        let replies = self.try_call(partition, commands);
        timeout(CALL_MAX, replies).await.unwrap_or(Err(EngineError::Lost))
    }

    /// Sends commands to the present owner, once. [`EngineError::Stopped`] means that nothing was
    /// changed.
    fn try_call(
        &self,
        partition: PartitionId,
        commands: Vec<Command>,
    ) -> impl Future<Output = Result<Replies, EngineError>> + Send + use<> {
        let (mut local, mut forwarded) = (None, None);
        match (self.route(partition), &self.remote) {
            (Route::Local(handle), _) => local = Some(handle.call(commands)),
            (Route::Remote(broker), Some(remote)) => {
                let call = remote.peers.forward(&broker, partition, &commands);
                forwarded = Some((call, remote.telemetry.clone()));
            }
            _ => {}
        }
        async move {
            match (local, forwarded) {
                (Some(call), _) => call.await,
                (None, Some((call, telemetry))) => {
                    let result = call.await;
                    telemetry.forwarded(metric_of(&result));
                    result.or_else(to_engine_error)
                }
                (None, None) => Err(EngineError::Stopped),
            }
        }
    }

    /// Sends those commands again that no owner has executed yet.
    async fn retry(
        &self,
        partition: PartitionId,
        commands: Vec<Command>,
        first: Result<Replies, EngineError>,
    ) -> Result<Replies, EngineError> {
        let Some(remote) = &self.remote else { return first };
        let mut open = OpenCommands::new(commands, first);
        let mut deadline = pin!(timeout(WAIT_FOR_OWNER_MAX, std::future::pending::<()>()));
        let mut changes = remote.changes.subscribe();
        while !open.is_empty() {
            // The deadline ends the wait for an owner; it does not interrupt a call in flight.
            tokio::select! {
                _ = &mut deadline => break,
                _ = timeout(RETRY_EVERY, changes.changed()) => {}
            }
            open.record(self.try_call(partition, open.commands()).await);
        }
        Ok(open.replies)
    }
}

fn metric_of(result: &Result<Replies, PeerError>) -> Forwarded {
    match result {
        Ok(_) => Forwarded::answered,
        Err(PeerError::NotMine) => Forwarded::elsewhere,
        Err(PeerError::Unreachable(_)) => Forwarded::unreachable,
        Err(PeerError::Lost(_)) => Forwarded::lost,
        Err(PeerError::Refused(_) | PeerError::Busy) => Forwarded::refused,
    }
}

/// Maps the error of a peer to what it means for the commands.
fn to_engine_error(error: PeerError) -> Result<Replies, EngineError> {
    tracing::debug!(%error, "forward failed");
    Err(match error {
        PeerError::NotMine | PeerError::Unreachable(_) => EngineError::Stopped,
        PeerError::Lost(_) => EngineError::Lost,
        PeerError::Refused(_) | PeerError::Busy => EngineError::Busy,
    })
}

/// The commands of one call and their replies so far.
struct OpenCommands {
    commands: Vec<Command>,
    replies: Replies,
    /// Indexes of the commands that no owner has executed yet.
    open: Vec<usize>,
}

impl OpenCommands {
    fn new(commands: Vec<Command>, first: Result<Replies, EngineError>) -> Self {
        let replies = commands.iter().map(|_| Err(EngineError::Stopped)).collect();
        let open = (0..commands.len()).collect();
        let mut all = Self { commands, replies, open };
        all.record(first);
        all
    }

    const fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Returns the open commands.
    fn commands(&self) -> Vec<Command> {
        self.open.iter().map(|index| self.commands[*index].clone()).collect()
    }

    /// Records the replies to the open commands.
    fn record(&mut self, result: Result<Replies, EngineError>) {
        let sent = std::mem::take(&mut self.open);
        match result {
            Ok(replies) => {
                for (index, reply) in sent.into_iter().zip(replies) {
                    self.record_one(index, reply);
                }
            }
            Err(error) => {
                for index in sent {
                    self.record_one(index, Err(error.clone()));
                }
            }
        }
    }

    fn record_one(&mut self, index: usize, reply: Result<Reply, EngineError>) {
        if reply == Err(EngineError::Stopped) {
            self.open.push(index);
        }
        self.replies[index] = reply;
    }
}
