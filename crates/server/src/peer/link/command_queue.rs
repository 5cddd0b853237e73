//! One queue of commands per partition and peer, which keeps commands in order.
//!
//! At most one message per partition is in flight. Commands that arrive in the meantime wait and
//! are sent together in the next message. When a message fails, the commands that wait behind it
//! fail at once as not sent. The number and the bytes of commands per peer are bounded, waiting and
//! in flight together.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use punctual_core::PartitionId;
use punctual_engine::{Command, Replies};
use tokio::runtime;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::super::{PeerError, wire};
use super::Peer;

/// Commands and bytes in one message, unless one caller has more: enough to make a round trip worth
/// it, few enough that no caller waits long for others.
const BATCH_MAX: usize = 10_000;
const BATCH_BYTES_MAX: usize = 4 << 20;

/// The queues to one peer. A partition has an entry while a task runs its queue.
#[derive(Debug, Default)]
pub(super) struct CommandQueues(Mutex<HashMap<PartitionId, VecDeque<QueuedCommands>>>);

/// The commands of one caller.
#[derive(Debug)]
struct QueuedCommands {
    count: usize,
    /// Encoded entries of a list of commands.
    commands: Vec<u8>,
    reply: oneshot::Sender<Result<Replies, PeerError>>,
    /// Count against the limits of the peer until dropped.
    _permits: (OwnedSemaphorePermit, OwnedSemaphorePermit),
}

impl CommandQueues {
    /// Appends commands. Returns whether the caller must start a task to run the queue.
    fn push(&self, partition: PartitionId, queued: QueuedCommands) -> bool {
        let mut queues = self.lock();
        let idle = !queues.contains_key(&partition);
        queues.entry(partition).or_default().push_back(queued);
        idle
    }

    /// Takes the next batch. Returns `None` and removes the queue if it is empty.
    fn take(&self, partition: PartitionId) -> Option<Vec<QueuedCommands>> {
        let mut queues = self.lock();
        let queue = queues.get_mut(&partition)?;
        let (mut taken, mut count, mut bytes) = (Vec::new(), 0, 0);
        while let Some(first) = queue.front() {
            let fits =
                count + first.count <= BATCH_MAX && bytes + first.commands.len() <= BATCH_BYTES_MAX;
            if !fits && !taken.is_empty() {
                break;
            }
            // Commands whose caller has gone away are not sent.
            if let Some(queued) = queue.pop_front().filter(|queued| !queued.reply.is_closed()) {
                count += queued.count;
                bytes += queued.commands.len();
                taken.push(queued);
            }
        }
        if taken.is_empty() {
            queues.remove(&partition);
            return None;
        }
        Some(taken)
    }

    /// Fails all waiting commands.
    fn refuse(&self, partition: PartitionId, error: &PeerError) {
        let waiting = self.lock().get_mut(&partition).map(std::mem::take);
        for queued in waiting.unwrap_or_default() {
            let _ = queued.reply.send(Err(error.clone()));
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<PartitionId, VecDeque<QueuedCommands>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Peer {
    /// Appends commands to the queue of a partition.
    pub(super) fn enqueue(
        self: &Arc<Self>,
        partition: PartitionId,
        commands: &[Command],
        runtime: &runtime::Handle,
    ) -> Result<oneshot::Receiver<Result<Replies, PeerError>>, PeerError> {
        let count = commands.len();
        let (reply, replies) = oneshot::channel();
        if count == 0 {
            let _ = reply.send(Ok(Replies::new()));
            return Ok(replies);
        }
        let permits = u32::try_from(count).map_err(|_| PeerError::Busy)?;
        let slots = Arc::clone(&self.commands).try_acquire_many_owned(permits);
        let slots = slots.map_err(|_| PeerError::Busy)?;
        let mut encoded = Vec::new();
        commands.iter().for_each(|command| wire::put_command(&mut encoded, command));
        let permits = (slots, self.reserve(encoded.len())?);
        let queued = QueuedCommands { count, commands: encoded, reply, _permits: permits };
        if self.queues.push(partition, queued) {
            runtime.spawn(Arc::clone(self).run_queue(partition));
        }
        Ok(replies)
    }

    /// Sends batches until the queue is empty.
    async fn run_queue(self: Arc<Self>, partition: PartitionId) {
        while let Some(batch) = self.queues.take(partition) {
            match self.send_batch(partition, &batch).await {
                Ok(replies) => distribute(batch, replies),
                // One of the commands is refused: send those of each caller on their own.
                Err(PeerError::Refused(_)) if batch.len() > 1 => {
                    for queued in batch {
                        let replies =
                            self.send_batch(partition, std::slice::from_ref(&queued)).await;
                        let _ = queued.reply.send(replies);
                    }
                }
                Err(error) => {
                    if let Some(for_the_rest) = for_the_rest(&error) {
                        self.queues.refuse(partition, &for_the_rest);
                    }
                    for queued in batch {
                        let _ = queued.reply.send(Err(error.clone()));
                    }
                }
            }
        }
    }

    async fn send_batch(
        &self,
        partition: PartitionId,
        batch: &[QueuedCommands],
    ) -> Result<Replies, PeerError> {
        let count = batch.iter().map(|queued| queued.count).sum();
        let entries: Vec<&[u8]> = batch.iter().map(|queued| &*queued.commands).collect();
        self.send(partition, count, wire::list(count, &entries)).await
    }
}

/// Returns what the failure of a batch means for the commands behind it; `None` if they can still
/// be sent.
fn for_the_rest(error: &PeerError) -> Option<PeerError> {
    match error {
        PeerError::NotMine => Some(PeerError::NotMine),
        PeerError::Unreachable(why) | PeerError::Lost(why) => {
            Some(PeerError::Unreachable(why.clone()))
        }
        PeerError::Busy | PeerError::Refused(_) => None,
    }
}

/// Sends each caller its replies; there are as many as commands.
fn distribute(batch: Vec<QueuedCommands>, replies: Replies) {
    let mut replies = replies.into_iter();
    for queued in batch {
        let own = replies.by_ref().take(queued.count).collect();
        let _ = queued.reply.send(Ok(own));
    }
}
