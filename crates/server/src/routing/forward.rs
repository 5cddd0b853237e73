//! Calls to the owner of a partition.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use punctual_core::PartitionId;
use punctual_engine::{Command, EngineError, Replies, Reply};
use tokio::time::timeout;

use super::registry::{Owners, Place};
use crate::peer::PeerError;
use crate::telemetry::Forwarded;

/// How long a call may wait for the owner who comes: longer than a hand-over, shorter than callers are patient. A crash costs a lease, which may be longer.
const ASK_MAX: Duration = Duration::from_secs(3);
/// How long a call may take altogether where the store is shared: it may be away for longer than anybody waits.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// How long at most until it is looked again who owns a partition, when nobody says that it has changed.
const LOOK_EVERY: Duration = Duration::from_millis(50);

impl Owners {
    /// Asks the owner of a partition; one answer each, in order. With the owner here it is on its way when this
    /// returns: what is asked first is decided first.
    pub(crate) fn ask(
        self: &Arc<Self>,
        partition: PartitionId,
        commands: Vec<Command>,
    ) -> impl Future<Output = Result<Replies, EngineError>> + Send + use<> {
        let again = self.others.is_some().then(|| commands.clone());
        let asked = self.ask_once(partition, commands);
        let owners = Arc::clone(self);
        async move {
            let Some(commands) = again else { return asked.await };
            let answering = async { owners.ask_on(partition, commands, asked.await).await };
            // It goes on being asked for; only nobody waits any longer.
            timeout(ANSWER_MAX, answering).await.unwrap_or(Err(EngineError::Lost))
        }
    }

    /// Asks whoever owns a partition now. [`EngineError::Stopped`] means that nothing was done.
    fn ask_once(
        &self,
        partition: PartitionId,
        commands: Vec<Command>,
    ) -> impl Future<Output = Result<Replies, EngineError>> + Send + use<> {
        let (mut here, mut there) = (None, None);
        match (self.place(partition), &self.others) {
            (Place::Here(handle), _) => here = Some(handle.call(commands)),
            (Place::There(broker), Some(others)) => {
                let asked = others.peers.ask(&broker, partition, &commands);
                there = Some((asked, others.telemetry.clone()));
            }
            _ => {}
        }
        async move {
            match (here, there) {
                (Some(asked), _) => asked.await,
                (None, Some((asked, telemetry))) => {
                    let answered = asked.await;
                    telemetry.forwarded(forwarded(&answered));
                    answered.or_else(undone)
                }
                (None, None) => Err(EngineError::Stopped),
            }
        }
    }

    /// Asks on for what nobody has decided yet.
    async fn ask_on(
        &self,
        partition: PartitionId,
        commands: Vec<Command>,
        first: Result<Replies, EngineError>,
    ) -> Result<Replies, EngineError> {
        let Some(others) = &self.others else { return first };
        let mut asking = Asking::new(commands, first);
        let mut over = pin!(timeout(ASK_MAX, std::future::pending::<()>()));
        let mut changes = others.changes.subscribe();
        while asking.is_open() {
            // Only while nothing is asked: what is under way is waited for.
            tokio::select! {
                _ = &mut over => break,
                _ = timeout(LOOK_EVERY, changes.changed()) => {}
            }
            asking.take(self.ask_once(partition, asking.commands()).await);
        }
        Ok(asking.answers)
    }
}

fn forwarded(answered: &Result<Replies, PeerError>) -> Forwarded {
    match answered {
        Ok(_) => Forwarded::answered,
        Err(PeerError::NotMine) => Forwarded::elsewhere,
        Err(PeerError::Unreachable(_)) => Forwarded::unreachable,
        Err(PeerError::Lost(_)) => Forwarded::lost,
        Err(PeerError::Refused(_) | PeerError::Busy) => Forwarded::refused,
    }
}

/// What an error of a peer says about what was asked.
fn undone(error: PeerError) -> Result<Replies, EngineError> {
    tracing::debug!(%error, "a call was not forwarded");
    Err(match error {
        PeerError::NotMine | PeerError::Unreachable(_) => EngineError::Stopped,
        PeerError::Lost(_) => EngineError::Lost,
        PeerError::Refused(_) | PeerError::Busy => EngineError::Busy,
    })
}

/// Commands of which some are answered.
struct Asking {
    commands: Vec<Command>,
    answers: Replies,
    /// Which nobody has decided yet.
    open: Vec<usize>,
}

impl Asking {
    fn new(commands: Vec<Command>, first: Result<Replies, EngineError>) -> Self {
        let answers = commands.iter().map(|_| Err(EngineError::Stopped)).collect();
        let open = (0..commands.len()).collect();
        let mut asking = Self { commands, answers, open };
        asking.take(first);
        asking
    }

    const fn is_open(&self) -> bool {
        !self.open.is_empty()
    }

    /// Those that are open.
    fn commands(&self) -> Vec<Command> {
        self.open.iter().map(|at| self.commands[*at].clone()).collect()
    }

    /// Takes the answers to those that were open.
    fn take(&mut self, told: Result<Replies, EngineError>) {
        let asked = std::mem::take(&mut self.open);
        match told {
            Ok(answers) => {
                for (at, answer) in asked.into_iter().zip(answers) {
                    self.note(at, answer);
                }
            }
            Err(error) => {
                for at in asked {
                    self.note(at, Err(error.clone()));
                }
            }
        }
    }

    fn note(&mut self, at: usize, answer: Result<Reply, EngineError>) {
        if answer == Err(EngineError::Stopped) {
            self.open.push(at);
        }
        self.answers[at] = answer;
    }
}
