//! Lines: commands for one partition at one peer, in the order in which they came.
//!
//! In: commands of callers. Out: one message under way for each partition; whatever comes meanwhile waits and travels together in the next.
//! Invariants: order is kept, because there is never more than one message of a line under way. When it fails, those behind it are told at once
//! that they were not sent.
//! Bound: commands and bytes of a peer, in line and under way together.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use punctual_core::PartitionId;
use punctual_engine::{Command, Replies};
use tokio::runtime;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::super::{PeerError, wire};
use super::Peer;

/// Commands and bytes that travel together, unless one caller has more: enough that a round trip is worth it, few enough that
/// nobody waits long for others.
const TOGETHER_MAX: usize = 10_000;
const TOGETHER_BYTES_MAX: usize = 4 << 20;

/// Lines to one peer. There is an entry as long as somebody drives the line.
#[derive(Debug, Default)]
pub(super) struct Lines(Mutex<HashMap<PartitionId, VecDeque<Asked>>>);

/// What one caller asks.
#[derive(Debug)]
struct Asked {
    count: usize,
    /// Entries of a list of commands.
    commands: Vec<u8>,
    reply: oneshot::Sender<Result<Replies, PeerError>>,
    /// The room that it takes.
    _room: (OwnedSemaphorePermit, OwnedSemaphorePermit),
}

impl Lines {
    /// Puts it in line. Out: whether somebody has to drive the line from here on.
    fn push(&self, partition: PartitionId, asked: Asked) -> bool {
        let mut lines = self.lock();
        let idle = !lines.contains_key(&partition);
        lines.entry(partition).or_default().push_back(asked);
        idle
    }

    /// What travels next; `None` if nothing is left, and the line is driven no more.
    fn take(&self, partition: PartitionId) -> Option<Vec<Asked>> {
        let mut lines = self.lock();
        let line = lines.get_mut(&partition)?;
        let (mut taken, mut count, mut bytes) = (Vec::new(), 0, 0);
        while let Some(first) = line.front() {
            let fits = count + first.count <= TOGETHER_MAX
                && bytes + first.commands.len() <= TOGETHER_BYTES_MAX;
            if !fits && !taken.is_empty() {
                break;
            }
            // Whoever has gone away wants nothing any more.
            if let Some(asked) = line.pop_front().filter(|asked| !asked.reply.is_closed()) {
                count += asked.count;
                bytes += asked.commands.len();
                taken.push(asked);
            }
        }
        if taken.is_empty() {
            lines.remove(&partition);
            return None;
        }
        Some(taken)
    }

    /// Tells all who wait that they were not sent.
    fn refuse(&self, partition: PartitionId, error: &PeerError) {
        let waiting = self.lock().get_mut(&partition).map(std::mem::take);
        for asked in waiting.unwrap_or_default() {
            let _ = asked.reply.send(Err(error.clone()));
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<PartitionId, VecDeque<Asked>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Peer {
    /// Puts commands in line.
    pub(super) fn ask(
        self: &Arc<Self>,
        partition: PartitionId,
        commands: &[Command],
        runtime: &runtime::Handle,
    ) -> Result<oneshot::Receiver<Result<Replies, PeerError>>, PeerError> {
        let count = commands.len();
        let (reply, answers) = oneshot::channel();
        if count == 0 {
            let _ = reply.send(Ok(Replies::new()));
            return Ok(answers);
        }
        let permits = u32::try_from(count).map_err(|_| PeerError::Busy)?;
        let places = Arc::clone(&self.commands).try_acquire_many_owned(permits);
        let places = places.map_err(|_| PeerError::Busy)?;
        let mut encoded = Vec::new();
        commands.iter().for_each(|command| wire::put_command(&mut encoded, command));
        let room = (places, self.reserve(encoded.len())?);
        let asked = Asked { count, commands: encoded, reply, _room: room };
        if self.lines.push(partition, asked) {
            runtime.spawn(Arc::clone(self).drive(partition));
        }
        Ok(answers)
    }

    /// Sends what is in line until nothing is.
    async fn drive(self: Arc<Self>, partition: PartitionId) {
        while let Some(together) = self.lines.take(partition) {
            match self.send_together(partition, &together).await {
                Ok(answers) => hand_out(together, answers),
                // One of them may be to blame: each for itself.
                Err(PeerError::Refused(_)) if together.len() > 1 => {
                    for asked in together {
                        let answers =
                            self.send_together(partition, std::slice::from_ref(&asked)).await;
                        let _ = asked.reply.send(answers);
                    }
                }
                Err(error) => {
                    if let Some(behind) = behind(&error) {
                        self.lines.refuse(partition, &behind);
                    }
                    for asked in together {
                        let _ = asked.reply.send(Err(error.clone()));
                    }
                }
            }
        }
    }

    async fn send_together(
        &self,
        partition: PartitionId,
        together: &[Asked],
    ) -> Result<Replies, PeerError> {
        let count = together.iter().map(|asked| asked.count).sum();
        let entries: Vec<&[u8]> = together.iter().map(|asked| &*asked.commands).collect();
        self.send(partition, count, wire::list(count, &entries)).await
    }
}

/// What an error means for those who were not sent yet; `None` if it says nothing of them.
fn behind(error: &PeerError) -> Option<PeerError> {
    match error {
        PeerError::NotMine => Some(PeerError::NotMine),
        PeerError::Unreachable(why) | PeerError::Lost(why) => {
            Some(PeerError::Unreachable(why.clone()))
        }
        PeerError::Busy | PeerError::Refused(_) => None,
    }
}

/// Gives each caller its answers, of which there are as many as commands.
fn hand_out(together: Vec<Asked>, answers: Replies) {
    let mut answers = answers.into_iter();
    for asked in together {
        let own = answers.by_ref().take(asked.count).collect();
        let _ = asked.reply.send(Ok(own));
    }
}
