//! Calls about many tasks: commands go to their owners together, and their answers come back in order.
//!
//! In: commands, one after the other. Out: one answer each, in the same order. Each owner is asked once, so that one commit of the
//! store answers many.

use std::collections::BTreeMap;

use punctual_core::PartitionId;
use punctual_engine::{Answer, Command, EngineError};

use crate::broker::Owners;

/// Commands on their way to their owners.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    by_owner: BTreeMap<PartitionId, (Vec<usize>, Vec<Command>)>,
    count: usize,
}

impl Calls {
    /// One more.
    pub(crate) fn push(&mut self, partition: PartitionId, command: Command) {
        let (places, commands) = self.by_owner.entry(partition).or_default();
        places.push(self.count);
        commands.push(command);
        self.count += 1;
    }

    /// Asks all owners at once.
    pub(crate) async fn ask(self, owners: &Owners) -> Vec<Result<Answer, EngineError>> {
        let mut answers: Vec<_> = (0..self.count).map(|_| Err(EngineError::Stopped)).collect();
        let mut asked = Vec::new();
        for (partition, (places, commands)) in self.by_owner {
            match owners.of(partition).cloned() {
                Some(owner) => {
                    asked.push((places, tokio::spawn(async move { owner.call(commands).await })));
                }
                // An id that no owner made.
                None => places.into_iter().for_each(|at| answers[at] = Err(EngineError::NotFound)),
            }
        }
        for (places, answering) in asked {
            match answering.await.unwrap_or(Err(EngineError::Stopped)) {
                Ok(given) => places.into_iter().zip(given).for_each(|(at, a)| answers[at] = a),
                Err(error) => places.into_iter().for_each(|at| answers[at] = Err(error.clone())),
            }
        }
        answers
    }
}
