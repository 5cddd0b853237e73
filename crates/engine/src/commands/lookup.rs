//! Lookups: reads of the store for commands, many at a time.
//!
//! A result is used only if no decision about the task was made since the read began
//! (`read_tracker`), so the store may change between the reads of one lookup.

use punctual_core::{
    DeadLetter, FireId, FireRecord, Namespace, PartitionId, Task, TaskId, TaskKey,
};
use punctual_store::{Head, StoreError, TaskStore};

use crate::handle::command::Subject;

/// A read about one subject.
#[derive(Debug, Clone)]
pub struct Lookup {
    /// The task or receipt to read.
    pub subject: Subject,
    /// How much of the task to read.
    pub depth: LookupDepth,
    /// A dead letter to read as well.
    pub letter: Option<FireId>,
    /// A receipt to read as well.
    pub receipt: Option<Subject>,
}

/// How much of a task to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LookupDepth {
    /// Id, version, state and schedule only.
    Head,
    /// The whole task or, if no task has the id and no dead letter is read, the record of its last
    /// fire.
    Task,
    /// The same. If a key names no task, the record of the fire that ended last under the key.
    TaskOrLastFire,
}

impl LookupDepth {
    const fn is_whole(self) -> bool {
        matches!(self, Self::Task | Self::TaskOrLastFire)
    }
}

/// What the store has about a subject. What few commands need is behind a pointer: a lookup
/// carries a thousand of these from thread to thread.
#[derive(Debug, Default)]
pub struct FoundTask {
    /// The head of the task, if only that was to be read.
    pub head: Option<Head>,
    /// The whole task, if it was to be read, or if the subject is an id.
    pub task: Option<Task>,
    /// Without a task: the record of its last fire, if it was to be read and is still kept.
    pub last: Option<Box<FireRecord>>,
    /// The dead letter, if one was to be read.
    pub letter: Option<Box<DeadLetter>>,
    /// The receipt, if one was to be read.
    pub receipt: Option<Box<Task>>,
}

/// The result of one lookup.
#[derive(Debug)]
pub struct LookupResult {
    /// The lookup that is answered.
    pub look: Lookup,
    /// What the store has, or why it could not be read.
    pub result: Result<FoundTask, StoreError>,
}

impl LookupResult {
    /// Reads what the store has about all subjects. A damaged value affects only the subject that
    /// needs it: halves are read apart until it is alone.
    pub async fn read<S: TaskStore>(
        store: &S,
        partition: PartitionId,
        lookups: Vec<Lookup>,
    ) -> Vec<Self> {
        let mut results = Vec::with_capacity(lookups.len());
        let mut parts = vec![lookups];
        while let Some(mut lookups) = parts.pop() {
            match FoundTask::read(store, partition, &lookups).await {
                Ok(found) => {
                    let pairs = lookups.into_iter().zip(found);
                    results.extend(pairs.map(|(look, found)| Self { look, result: Ok(found) }));
                }
                Err(StoreError::Damaged(_)) if lookups.len() > 1 => {
                    let rest = lookups.split_off(lookups.len() / 2);
                    parts.extend([rest, lookups]);
                }
                // If a read fails otherwise, all lookups that it was for fail.
                Err(error) => {
                    let all = lookups.into_iter();
                    results.extend(all.map(|look| Self { look, result: Err(copy_of(&error)) }));
                }
            }
        }
        results
    }
}

fn copy_of(error: &StoreError) -> StoreError {
    match error {
        StoreError::Unavailable(cause) => StoreError::Unavailable(cause.to_string().into()),
        StoreError::Damaged(damage) => StoreError::Damaged(damage.clone()),
        error => StoreError::Broken(error.to_string()),
    }
}

impl FoundTask {
    /// Returns the id of the task that was found.
    pub(crate) fn id(&self) -> Option<TaskId> {
        let head = || self.head.as_ref().map(|head| head.id);
        self.task.as_ref().map(|task| task.id).or_else(head)
    }

    async fn read<S: TaskStore>(
        store: &S,
        partition: PartitionId,
        lookups: &[Lookup],
    ) -> Result<Vec<Self>, StoreError> {
        let mut found: Vec<Self> = lookups.iter().map(|_| Self::default()).collect();
        find(store, partition, lookups, &mut found).await?;
        get(store, partition, lookups, &mut found).await?;
        find_last_fires(store, partition, lookups, &mut found).await?;
        read_letters(store, partition, lookups, &mut found).await?;
        for (lookup, result) in lookups.iter().zip(&mut found) {
            if result.task.is_none()
                && lookup.depth.is_whole()
                && lookup.letter.is_none()
                && let Some(id) = id_of(lookup, result)
            {
                let records = store.history(partition, id, 1).await?;
                let namespace = lookup.subject.namespace();
                let record = records.into_iter().find(|record| record.namespace == *namespace);
                result.last = record.map(Box::new);
            }
            if let Some(Subject::Key(namespace, key)) = &lookup.receipt {
                let heads = store.find(partition, namespace, std::slice::from_ref(key)).await?;
                if let Some(head) = heads.into_iter().flatten().next() {
                    let tasks = store.get(partition, &[head.id]).await?;
                    result.receipt = tasks.into_iter().flatten().next().map(Box::new);
                }
            }
        }
        Ok(found)
    }
}

/// Finds the heads of keys, with one read per namespace.
async fn find<S: TaskStore>(
    store: &S,
    partition: PartitionId,
    lookups: &[Lookup],
    found: &mut [FoundTask],
) -> Result<(), StoreError> {
    for KeyGroup { namespace, keys, indexes } in by_namespace(lookups.iter().enumerate()) {
        let heads = store.find(partition, namespace, &keys).await?;
        for (head, index) in heads.into_iter().zip(indexes) {
            found[index].head = head;
        }
    }
    Ok(())
}

/// Finds the last fires of keys that name no task, with one read per namespace.
async fn find_last_fires<S: TaskStore>(
    store: &S,
    partition: PartitionId,
    lookups: &[Lookup],
    found: &mut [FoundTask],
) -> Result<(), StoreError> {
    let ended = lookups.iter().enumerate().filter(|(index, lookup)| {
        lookup.depth == LookupDepth::TaskOrLastFire && found[*index].task.is_none()
    });
    for KeyGroup { namespace, keys, indexes } in by_namespace(ended) {
        let records = store.last_fires(partition, namespace, &keys).await?;
        for (record, index) in records.into_iter().zip(indexes) {
            found[index].last = record.map(Box::new);
        }
    }
    Ok(())
}

/// Keys of one namespace, and the indexes of their lookups.
struct KeyGroup<'a> {
    namespace: &'a Namespace,
    keys: Vec<TaskKey>,
    indexes: Vec<usize>,
}

/// Groups lookups by key. Those by id are left out.
fn by_namespace<'a>(lookups: impl Iterator<Item = (usize, &'a Lookup)>) -> Vec<KeyGroup<'a>> {
    let mut by_key: Vec<_> = lookups
        .filter_map(|(index, lookup)| match &lookup.subject {
            Subject::Key(namespace, key) => Some((namespace, key, index)),
            Subject::Id(..) => None,
        })
        .collect();
    by_key.sort_by(|a, b| a.0.cmp(b.0));
    let groups = by_key.chunk_by(|a, b| a.0 == b.0).map(|group| KeyGroup {
        namespace: group[0].0,
        keys: group.iter().map(|(_, key, _)| (*key).clone()).collect(),
        indexes: group.iter().map(|(_, _, index)| *index).collect(),
    });
    groups.collect()
}

async fn get<S: TaskStore>(
    store: &S,
    partition: PartitionId,
    lookups: &[Lookup],
    found: &mut [FoundTask],
) -> Result<(), StoreError> {
    let wanted: Vec<_> = lookups
        .iter()
        .zip(found.iter())
        .enumerate()
        // An id leads to the whole task only.
        .filter(|(_, (lookup, _))| {
            lookup.depth.is_whole() || matches!(lookup.subject, Subject::Id(..))
        })
        .filter_map(|(index, (lookup, result))| Some((index, id_of(lookup, result)?)))
        .collect();
    if wanted.is_empty() {
        return Ok(());
    }
    let ids: Vec<_> = wanted.iter().map(|(_, id)| *id).collect();
    let tasks = store.get(partition, &ids).await?;
    for (task, (index, _)) in tasks.into_iter().zip(wanted) {
        let namespace = lookups[index].subject.namespace();
        let task = task.filter(|task| task.definition.namespace == *namespace);
        found[index].head = None;
        found[index].task = task;
    }
    Ok(())
}

/// Reads the dead letters of all lookups at once.
async fn read_letters<S: TaskStore>(
    store: &S,
    partition: PartitionId,
    lookups: &[Lookup],
    found: &mut [FoundTask],
) -> Result<(), StoreError> {
    let (mut indexes, mut fire_ids) = (Vec::new(), Vec::new());
    for (index, lookup) in lookups.iter().enumerate() {
        if let Some(fire_id) = lookup.letter {
            indexes.push(index);
            fire_ids.push(fire_id);
        }
    }
    if fire_ids.is_empty() {
        return Ok(());
    }
    let letters = store.dead_letters(partition, &fire_ids).await?;
    for (letter, index) in letters.into_iter().zip(indexes) {
        let namespace = lookups[index].subject.namespace();
        let letter = letter.filter(|letter| letter.task.definition.namespace == *namespace);
        found[index].letter = letter.map(Box::new);
    }
    Ok(())
}

fn id_of(lookup: &Lookup, result: &FoundTask) -> Option<TaskId> {
    match &lookup.subject {
        Subject::Id(_, id) => Some(*id),
        Subject::Key(..) => result.head.as_ref().map(|head| head.id),
    }
}
