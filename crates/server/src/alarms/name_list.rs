//! Lists of names in the store: which namespaces have alarms, and which alarms a namespace has.
//!
//! Each list is a paused task beside the alarms, with the names as its payload, so that alarms are
//! found by their keys and without reading other tasks of the partition. A name is added before its
//! alarm is stored and once more afterwards, and after it was removed the alarm is looked for once
//! more (`stored`): so no alarm is missing from its list, whatever happens at the same time.

use std::collections::BTreeSet;
use std::pin::Pin;

use punctual_core::{Invalid, Namespace, PartitionId, Payload, Task, TaskKey};
use punctual_engine::{Command, Condition, EngineError, Subject};
use punctual_store::{Head, StoreError, TaskStore as _};

use super::stored::{is_conflict, store_paused};
use crate::broker::Broker;
use crate::problem::Problem;

/// How often a change is tried again because the list was changed in between.
const TRIES: usize = 8;
/// Keys that are looked up at once.
const READ: usize = 256;

/// A list: its key, how many names it may have, and what to say if it has them.
#[derive(Debug)]
pub(super) struct NameList {
    key: TaskKey,
    max: usize,
    is_full: String,
}

impl NameList {
    pub(super) const fn new(key: TaskKey, max: usize, is_full: String) -> Self {
        Self { key, max, is_full }
    }

    /// Adds a name unless the list has it.
    pub(super) async fn add(&self, broker: &Broker, name: &str) -> Result<(), Problem> {
        for _ in 0..TRIES {
            let (mut names, condition) = self.read(broker).await?;
            if names.contains(name) {
                return Ok(());
            }
            if names.len() >= self.max {
                return Err(Invalid::new("name", self.is_full.clone()).into());
            }
            names.insert(name.to_owned());
            match self.store(broker, &names, condition).await {
                Err(error) if is_conflict(&error) => {}
                stored => return Ok(stored?),
            }
        }
        Err(EngineError::Busy.into())
    }

    /// Removes a name. Returns whether the list is empty now.
    pub(super) async fn remove(&self, broker: &Broker, name: &str) -> Result<bool, EngineError> {
        for _ in 0..TRIES {
            let (mut names, condition) = self.read(broker).await?;
            if !names.remove(name) {
                return Ok(names.is_empty());
            }
            match self.store(broker, &names, condition).await {
                Err(error) if is_conflict(&error) => {}
                stored => return stored.map(|()| names.is_empty()),
            }
        }
        Err(EngineError::Busy)
    }

    /// Whether the list has no names.
    pub(super) async fn is_empty(&self, broker: &Broker) -> Result<bool, EngineError> {
        Ok(self.read(broker).await?.0.is_empty())
    }

    /// Returns the names, and the condition under which they may be changed.
    async fn read(&self, broker: &Broker) -> Result<(BTreeSet<String>, Condition), EngineError> {
        let namespace = Namespace::of_alarms();
        let owner = broker.owners.of_key(&namespace, &self.key);
        let subject = Subject::Key(namespace.clone(), self.key.clone());
        match owner.task(Command::Get(subject)).await {
            Ok(task) => Ok((names_of(&task), Condition::Version(task.version))),
            Err(EngineError::NotFound) => Ok((BTreeSet::new(), Condition::Absent)),
            Err(error) => Err(error),
        }
    }

    async fn store(
        &self,
        broker: &Broker,
        names: &BTreeSet<String>,
        condition: Condition,
    ) -> Result<(), EngineError> {
        let names = serde_json::to_vec(names).expect("names only");
        store_paused(broker, self.key.clone(), Payload::Json(names.into()), condition).await?;
        Ok(())
    }
}

/// Returns the names of lists by their keys, as the store has them.
pub(super) async fn read_lists(
    broker: &Broker,
    keys: &[TaskKey],
) -> Result<Vec<BTreeSet<String>>, StoreError> {
    let tasks = read_tasks(broker, keys).await?;
    Ok(tasks.iter().map(|task| task.as_ref().map(names_of).unwrap_or_default()).collect())
}

/// The tasks of keys. The type of the future is erased, because those of several calls are nested
/// in it.
type ReadTasks<'a> = Pin<Box<dyn Future<Output = ReadResult> + Send + 'a>>;
type ReadResult = Result<Vec<Option<Task>>, StoreError>;

/// Returns the task of each key, as the store has it.
pub(super) fn read_tasks<'a>(broker: &'a Broker, keys: &'a [TaskKey]) -> ReadTasks<'a> {
    Box::pin(async move {
        let namespace = Namespace::of_alarms();
        let mut tasks = Vec::with_capacity(keys.len());
        for keys in keys.chunks(READ) {
            let heads = broker.store.find(PartitionId::FIRST, &namespace, keys).await?;
            let ids: Vec<_> = heads.iter().flatten().map(|head| head.id).collect();
            let mut found = broker.store.get(PartitionId::FIRST, &ids).await?.into_iter();
            let task = |head: &Option<Head>| head.as_ref().and_then(|_| found.next().flatten());
            tasks.extend(heads.iter().map(task));
        }
        Ok(tasks)
    })
}

/// A list that cannot be read counts as empty; that is logged.
fn names_of(task: &Task) -> BTreeSet<String> {
    let names = serde_json::from_slice(task.definition.payload.bytes());
    names.unwrap_or_else(|error| {
        tracing::error!(key = ?task.definition.key, %error, "list of alarms cannot be read");
        BTreeSet::new()
    })
}
