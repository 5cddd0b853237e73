//! Calls about many tasks: commands go to their owners together, and their answers come back in order.
//!
//! In: commands, one after the other. Out: one answer each, in the same order. Each owner is asked once, so that one commit of the
//! store answers many.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;

use punctual_core::PartitionId;
use punctual_engine::{Command, EngineError, Replies, Reply};

use crate::owners::Owners;

/// Commands on their way to their owners.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    by_owner: BTreeMap<PartitionId, (Vec<usize>, Vec<Command>)>,
    count: usize,
}

/// Commands that are with their owners.
pub(crate) struct Asked {
    answering: Vec<(Vec<usize>, Answering)>,
    count: usize,
}

type Answering = Pin<Box<dyn Future<Output = Result<Replies, EngineError>> + Send>>;

impl Calls {
    /// One more.
    pub(crate) fn push(&mut self, partition: PartitionId, command: Command) {
        let (places, commands) = self.by_owner.entry(partition).or_default();
        places.push(self.count);
        commands.push(command);
        self.count += 1;
    }

    /// Asks all owners at once. What is sent first is decided first.
    pub(crate) fn send(self, owners: &Arc<Owners>) -> Asked {
        let answering = self.by_owner.into_iter().map(|(partition, (places, commands))| {
            let answering: Answering = match owners.of(partition) {
                Some(owner) => Box::pin(owner.call(commands)),
                // An id that no owner made.
                None => Box::pin(std::future::ready(Err(EngineError::NotFound))),
            };
            (places, answering)
        });
        Asked { answering: answering.collect(), count: self.count }
    }

    /// Asks all owners at once, and waits for their answers.
    pub(crate) async fn ask(self, owners: &Arc<Owners>) -> Vec<Result<Reply, EngineError>> {
        self.send(owners).answers().await
    }
}

impl Asked {
    /// One answer each, in order.
    pub(crate) async fn answers(self) -> Vec<Result<Reply, EngineError>> {
        let mut answers: Vec<_> = (0..self.count).map(|_| Err(EngineError::Stopped)).collect();
        // One after the other: they are all under way.
        for (places, answering) in self.answering {
            match answering.await {
                Ok(given) => places.into_iter().zip(given).for_each(|(at, it)| answers[at] = it),
                Err(error) => places.into_iter().for_each(|at| answers[at] = Err(error.clone())),
            }
        }
        answers
    }
}
