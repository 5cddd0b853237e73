//! Looking: what the store knows of the subjects of commands, read in batches.
//!
//! In: [`Look`]s that commands want. Out: [`Sight`]s, believed only if nothing about the task was decided since the read was issued.
//! Many looks are one read: what is wanted between two turns of the owner goes to the store together.

use punctual_core::{DeadLetter, FireId, FireRecord, PartitionId, Task, TaskId, Timestamp};
use punctual_store::{Head, StoreError, TaskStore};

use crate::command::Subject;
use crate::event::Action;
use crate::owner::{Owner, STORE_PAUSE};
use crate::recent::Matter;

/// Subjects of one read: some milliseconds of the store's time.
const LOOKS_MAX: usize = 1024;

/// A read about one subject.
#[derive(Debug, Clone)]
pub struct Look {
    /// After whom.
    pub subject: Subject,
    /// How much of the task is wanted.
    pub depth: Depth,
    /// A dead letter that is wanted too.
    pub letter: Option<FireId>,
    /// A receipt that is wanted too.
    pub receipt: Option<Subject>,
}

/// How much of a task is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// What its name leads to.
    Head,
    /// All of it; if there is none, how its last fire ended.
    Task,
}

/// What the store knows of a subject.
#[derive(Debug, Default)]
pub struct Sight {
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
pub struct Looked {
    /// After whom.
    pub look: Look,
    /// What was found.
    pub result: Result<Sight, StoreError>,
}

impl Looked {
    /// Asks the store about all of them. That it may change in between does not matter: what is out of date is noticed when it
    /// comes back.
    pub async fn read<S: TaskStore>(
        store: &S,
        partition: PartitionId,
        looks: Vec<Look>,
    ) -> Vec<Self> {
        match Sight::read(store, partition, &looks).await {
            Ok(sights) => {
                let pairs = looks.into_iter().zip(sights);
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
                let all = looks.into_iter();
                all.map(|look| Self { look, result: Err(again(&error)) }).collect()
            }
        }
    }
}

impl Sight {
    async fn read<S: TaskStore>(
        store: &S,
        partition: PartitionId,
        looks: &[Look],
    ) -> Result<Vec<Self>, StoreError> {
        let mut sights: Vec<Self> = looks.iter().map(|_| Self::default()).collect();
        find(store, partition, looks, &mut sights).await?;
        get(store, partition, looks, &mut sights).await?;
        for (look, sight) in looks.iter().zip(&mut sights) {
            if sight.task.is_none()
                && look.depth == Depth::Task
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
    looks: &[Look],
    sights: &mut [Sight],
) -> Result<(), StoreError> {
    let mut named: Vec<_> = looks
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
    looks: &[Look],
    sights: &mut [Sight],
) -> Result<(), StoreError> {
    let wanted: Vec<_> = looks
        .iter()
        .zip(sights.iter())
        .enumerate()
        // By id there is no head without the task.
        .filter(|(_, (look, _))| {
            look.depth == Depth::Task || matches!(look.subject, Subject::Id(..))
        })
        .filter_map(|(index, (look, sight))| Some((index, id_of(look, sight)?)))
        .collect();
    if wanted.is_empty() {
        return Ok(());
    }
    let ids: Vec<_> = wanted.iter().map(|(_, id)| *id).collect();
    let tasks = store.get(partition, &ids).await?;
    for (task, (index, _)) in tasks.into_iter().zip(wanted) {
        let namespace = looks[index].subject.namespace();
        let task = task.filter(|task| task.definition.namespace == *namespace);
        sights[index].head = task.as_ref().map(Head::of);
        sights[index].task = task;
    }
    Ok(())
}

fn id_of(look: &Look, sight: &Sight) -> Option<TaskId> {
    match &look.subject {
        Subject::Id(_, id) => Some(*id),
        Subject::Key(..) => sight.head.as_ref().map(|head| head.id),
    }
}

impl Owner {
    /// Wants a look; it goes to the store with all others of this turn.
    pub(crate) fn look(&mut self, look: Look) {
        self.looks.insert(look.subject.clone(), self.recent.open());
        self.looks_wanted.push(look);
    }

    /// Sends out the looks that are wanted.
    pub(crate) fn send_looks(&mut self) {
        while !self.looks_wanted.is_empty() {
            let count = self.looks_wanted.len().min(LOOKS_MAX);
            let looks = self.looks_wanted.drain(..count).collect();
            self.actions.push(Action::Look(looks));
        }
    }

    pub(crate) fn on_looked(&mut self, looked: Vec<Looked>, now: Timestamp) {
        let mut away = Vec::new();
        for Looked { look, result } in looked {
            let Some(issued) = self.looks.remove(&look.subject) else {
                continue;
            };
            self.recent.close(issued);
            let sight = match result {
                Ok(sight) => sight,
                Err(StoreError::Unavailable(_)) => {
                    let Some(look) = self.still_wanted(look, now) else {
                        continue;
                    };
                    self.looks.insert(look.subject.clone(), self.recent.open());
                    away.push(look);
                    continue;
                }
                Err(error) => return self.stop(error),
            };
            if self.writer.is_rewound() {
                self.distrusted.push(look.subject);
                continue;
            }
            if !self.recent.is_trusted(issued) {
                self.look_again(&look.subject);
                continue;
            }
            let task = sight.head.as_ref().map(|head| Matter::Task(head.id));
            let letter = look.letter.map(|id| [Matter::Task(id.task), Matter::Letters(id.task)]);
            let mut matters = task.into_iter().chain(letter.into_iter().flatten());
            match matters.find(|matter| self.recent.changed_since(*matter, issued)) {
                Some(matter) => self.look_when_durable(look.subject, matter),
                None => self.sighted(look.subject, sight, now),
            }
        }
        if !away.is_empty() {
            self.later.push((now.after(STORE_PAUSE), Action::Look(away)));
        }
    }

    /// Looks again: what the store said is already out of date. If the change is not durable yet, only
    /// once it is.
    fn look_when_durable(&mut self, subject: Subject, matter: Matter) {
        let (Matter::Task(id) | Matter::Letters(id)) = matter;
        if self.recent.is_undurable(matter) {
            self.watchers.entry(id).or_default().push(subject);
        } else {
            self.look_again(&subject);
        }
    }

    /// Looks again for those who waited for a decision about a task, once none is on its way.
    pub(crate) fn wake_watchers(&mut self, id: TaskId) {
        let matters = [Matter::Task(id), Matter::Letters(id)];
        if self.watchers.is_empty() || matters.iter().any(|one| self.recent.is_undurable(*one)) {
            return;
        }
        for subject in self.watchers.remove(&id).unwrap_or_default() {
            self.look_again(&subject);
        }
    }
}
