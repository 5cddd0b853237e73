//! What an owner is told, and what it wants done: the two closed sets that its shell carries.

use punctual_core::{FireRecord, Outcome, PartitionId, Task, Timestamp};
use punctual_store::{Batch, Position, StoreError, Swept, TaskStore};

use crate::command::{Command, Subject};
use crate::deliver::Delivery;

/// What an owner is told.
#[derive(Debug)]
pub enum Event {
    /// Somebody wants something.
    Command(Command),
    /// The store has answered [`Action::Apply`].
    Applied(Result<(), StoreError>),
    /// The store has answered [`Action::Load`].
    Loaded(Result<Vec<Task>, StoreError>),
    /// The store has answered [`Action::Look`].
    Looked {
        /// After whom.
        subject: Subject,
        /// What it found.
        result: Result<Sight, StoreError>,
    },
    /// A courier has come back.
    Ended {
        /// From where,
        delivery: Delivery,
        /// with what.
        outcome: Outcome,
    },
    /// The store has answered [`Action::Sweep`].
    Swept(Result<Swept, StoreError>),
    /// Start nothing new; what is under way goes on.
    Drain,
}

/// What the store knows of a subject.
#[derive(Debug, Default)]
pub struct Sight {
    /// The living task.
    pub task: Option<Task>,
    /// If there is none: how its last fire ended, as far as that is still known.
    pub last: Option<FireRecord>,
}

impl Sight {
    /// Asks the store, two reads at the most in a row. That it may change in between does not
    /// matter: what is out of date is noticed when it comes back.
    pub async fn look<S: TaskStore>(
        store: &S,
        partition: PartitionId,
        subject: &Subject,
    ) -> Result<Sight, StoreError> {
        let id = match subject {
            Subject::Id(id) => *id,
            Subject::Key(namespace, key) => {
                let heads = store.find(partition, namespace, std::slice::from_ref(key)).await?;
                match heads.into_iter().flatten().next() {
                    Some(head) => head.id,
                    None => return Ok(Sight::default()),
                }
            }
        };
        let task = store.get(partition, &[id]).await?.into_iter().flatten().next();
        let last = match task {
            Some(_) => None,
            None => store.history(partition, id, 1).await?.into_iter().next(),
        };
        Ok(Sight { task, last })
    }
}

/// What an owner wants done.
#[derive(Debug)]
pub enum Action {
    /// Make these changes durable; answer with [`Event::Applied`].
    Apply(Batch),
    /// Read the next tasks by time; answer with [`Event::Loaded`].
    Load {
        /// From here,
        after: Position,
        /// to here,
        until: Timestamp,
        /// at most so many.
        limit: usize,
    },
    /// Look somebody up; answer with [`Event::Looked`].
    Look(Subject),
    /// Delete what is past its retention now; answer with [`Event::Swept`].
    Sweep(Timestamp),
    /// Carry this; answer with [`Event::Ended`].
    Deliver(Delivery),
    /// Stop: this owner may not or cannot go on.
    Stop(StoreError),
}
