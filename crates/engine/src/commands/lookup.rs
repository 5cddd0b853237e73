//! Looking: what the store knows of the subjects of commands, read in batches.
//!
//! In: [`Lookup`]s that commands want. Out: [`FoundTask`]s, believed only if nothing about the task was decided since the read was issued.
//! Many lookups are one read: what is wanted between two turns of the owner goes to the store together.

use punctual_core::{DeadLetter, FireId, FireRecord, PartitionId, Task, TaskId, Timestamp};
use punctual_store::{Head, StoreError, TaskStore};

use crate::commands::read_tracker::Scope;
use crate::event::Action;
use crate::handle::command::Subject;
use crate::owner::{Owner, STORE_PAUSE};

/// Subjects of one read: some milliseconds of the store's time.
const LOOKS_MAX: usize = 1024;

/// A read about one subject.
#[derive(Debug, Clone)]
pub struct Lookup {
    /// After whom.
    pub subject: Subject,
    /// How much of the task is wanted.
    pub depth: LookupDepth,
    /// A dead letter that is wanted too.
    pub letter: Option<FireId>,
    /// A receipt that is wanted too.
    pub receipt: Option<Subject>,
}

/// How much of a task is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LookupDepth {
    /// What its name leads to.
    Head,
    /// All of it; if there is none, how its last fire ended.
    Task,
}

/// What the store knows of a subject.
#[derive(Debug, Default)]
pub struct FoundTask {
    /// What the name of a living task leads to; always there if `task` is.
    pub head: Option<Head>,
    /// The living task.
    pub task: Option<Task>,
    /// If there is none: how its last fire ended, as far as that is still known.
    pub last: Option<FireRecord>,
    /// The dead letter that was asked for.
    pub letter: Option<DeadLetter>,
    /// The receipt that was asked for.
    pub receipt: Option<Task>,
}

/// What came of a look.
#[derive(Debug)]
pub struct LookupResult {
    /// After whom.
    pub look: Lookup,
    /// What was found.
    pub result: Result<FoundTask, StoreError>,
}

impl LookupResult {
    /// Asks the store about all of them. That it may change in between does not matter: what is out of date is noticed when it
    /// comes back.
    pub async fn read<S: TaskStore>(
        store: &S,
        partition: PartitionId,
        lookups: Vec<Lookup>,
    ) -> Vec<Self> {
        match FoundTask::read(store, partition, &lookups).await {
            Ok(sights) => {
                let pairs = lookups.into_iter().zip(sights);
                pairs.map(|(look, sight)| Self { look, result: Ok(sight) }).collect()
            }
            // A store that cannot answer one is asked for all again; one that is broken is broken for all.
            Err(error) => {
                let again = |error: &StoreError| match error {
                    StoreError::Unavailable(cause) => {
                        StoreError::Unavailable(cause.to_string().into())
                    }
                    error => StoreError::Broken(error.to_string()),
                };
                let all = lookups.into_iter();
                all.map(|look| Self { look, result: Err(again(&error)) }).collect()
            }
        }
    }
}

impl FoundTask {
    async fn read<S: TaskStore>(
        store: &S,
        partition: PartitionId,
        lookups: &[Lookup],
    ) -> Result<Vec<Self>, StoreError> {
        let mut sights: Vec<Self> = lookups.iter().map(|_| Self::default()).collect();
        find(store, partition, lookups, &mut sights).await?;
        get(store, partition, lookups, &mut sights).await?;
        for (look, sight) in lookups.iter().zip(&mut sights) {
            if sight.task.is_none()
                && look.depth == LookupDepth::Task
                && let Some(id) = id_of(look, sight)
            {
                let records = store.history(partition, id, 1).await?;
                let namespace = look.subject.namespace();
                sight.last = records.into_iter().find(|record| record.namespace == *namespace);
            }
            if let Some(Subject::Key(namespace, key)) = &look.receipt {
                let heads = store.find(partition, namespace, std::slice::from_ref(key)).await?;
                if let Some(head) = heads.into_iter().flatten().next() {
                    let tasks = store.get(partition, &[head.id]).await?;
                    sight.receipt = tasks.into_iter().flatten().next();
                }
            }
            if let Some(fire_id) = look.letter {
                let letter = store.dead_letter(partition, fire_id).await?;
                let namespace = look.subject.namespace();
                sight.letter =
                    letter.filter(|letter| letter.task.definition.namespace == *namespace);
            }
        }
        Ok(sights)
    }
}

/// Finds what keys lead to: one read for each stretch of keys of one namespace, which is usually all.
async fn find<S: TaskStore>(
    store: &S,
    partition: PartitionId,
    lookups: &[Lookup],
    sights: &mut [FoundTask],
) -> Result<(), StoreError> {
    let mut named: Vec<_> = lookups
        .iter()
        .enumerate()
        .filter_map(|(index, look)| match &look.subject {
            Subject::Key(namespace, key) => Some((namespace, key, index)),
            Subject::Id(..) => None,
        })
        .collect();
    named.sort_by(|a, b| a.0.cmp(b.0));
    for stretch in named.chunk_by(|a, b| a.0 == b.0) {
        let keys: Vec<_> = stretch.iter().map(|(_, key, _)| (*key).clone()).collect();
        let heads = store.find(partition, stretch[0].0, &keys).await?;
        for (head, (_, _, index)) in heads.into_iter().zip(stretch) {
            sights[*index].head = head;
        }
    }
    Ok(())
}

async fn get<S: TaskStore>(
    store: &S,
    partition: PartitionId,
    lookups: &[Lookup],
    sights: &mut [FoundTask],
) -> Result<(), StoreError> {
    let wanted: Vec<_> = lookups
        .iter()
        .zip(sights.iter())
        .enumerate()
        // By id there is no head without the task.
        .filter(|(_, (look, _))| {
            look.depth == LookupDepth::Task || matches!(look.subject, Subject::Id(..))
        })
        .filter_map(|(index, (look, sight))| Some((index, id_of(look, sight)?)))
        .collect();
    if wanted.is_empty() {
        return Ok(());
    }
    let ids: Vec<_> = wanted.iter().map(|(_, id)| *id).collect();
    let tasks = store.get(partition, &ids).await?;
    for (task, (index, _)) in tasks.into_iter().zip(wanted) {
        let namespace = lookups[index].subject.namespace();
        let task = task.filter(|task| task.definition.namespace == *namespace);
        sights[index].head = task.as_ref().map(Head::of);
        sights[index].task = task;
    }
    Ok(())
}

fn id_of(look: &Lookup, sight: &FoundTask) -> Option<TaskId> {
    match &look.subject {
        Subject::Id(_, id) => Some(*id),
        Subject::Key(..) => sight.head.as_ref().map(|head| head.id),
    }
}

impl Owner {
    /// Wants a look; it goes to the store with all others of this turn.
    pub(crate) fn look(&mut self, look: Lookup) {
        self.lookups.insert(look.subject.clone(), self.recent.open());
        self.lookups_wanted.push(look);
    }

    /// Sends out the lookups that are wanted.
    pub(crate) fn send_looks(&mut self) {
        while !self.lookups_wanted.is_empty() {
            let count = self.lookups_wanted.len().min(LOOKS_MAX);
            let lookups = self.lookups_wanted.drain(..count).collect();
            self.actions.push(Action::Lookup(lookups));
        }
    }

    pub(crate) fn on_lookup_result(&mut self, looked: Vec<LookupResult>, now: Timestamp) {
        let mut away = Vec::new();
        for LookupResult { look, result } in looked {
            let Some(issued) = self.lookups.remove(&look.subject) else {
                continue;
            };
            self.recent.close(issued);
            let sight = match result {
                Ok(sight) => sight,
                Err(StoreError::Unavailable(_)) => {
                    let Some(look) = self.still_wanted(look, now) else {
                        continue;
                    };
                    self.lookups.insert(look.subject.clone(), self.recent.open());
                    away.push(look);
                    continue;
                }
                Err(error) => return self.stop(error),
            };
            if self.writer.is_rewound() {
                self.under_repair.push(look.subject);
                continue;
            }
            if !self.recent.is_trusted(issued) {
                self.look_again(&look.subject);
                continue;
            }
            let task = sight.head.as_ref().map(|head| Scope::Task(head.id));
            let letter = look.letter.map(|id| [Scope::Task(id.task), Scope::Letters(id.task)]);
            let mut matters = task.into_iter().chain(letter.into_iter().flatten());
            match matters.find(|matter| self.recent.changed_since(*matter, issued)) {
                Some(matter) => self.look_when_durable(look.subject, matter),
                None => self.on_found(look.subject, sight, now),
            }
        }
        if !away.is_empty() {
            self.later.push((now.after(STORE_PAUSE), Action::Lookup(away)));
        }
    }

    /// Looks again: what the store said is already out of date. If the change is not durable yet, only
    /// once it is.
    fn look_when_durable(&mut self, subject: Subject, matter: Scope) {
        let (Scope::Task(id) | Scope::Letters(id)) = matter;
        if self.recent.is_undurable(matter) {
            self.watchers.entry(id).or_default().push(subject);
        } else {
            self.look_again(&subject);
        }
    }

    /// Looks again for those who waited for a decision about a task, once none is on its way.
    pub(crate) fn wake_watchers(&mut self, id: TaskId) {
        let matters = [Scope::Task(id), Scope::Letters(id)];
        if self.watchers.is_empty() || matters.iter().any(|one| self.recent.is_undurable(*one)) {
            return;
        }
        for subject in self.watchers.remove(&id).unwrap_or_default() {
            self.look_again(&subject);
        }
    }
}
