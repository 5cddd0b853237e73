//! Claims: fires that may be received at most once, from the moment their claim is durable until their outcome is known.
//!
//! In: tasks whose claim the store has; it knows them as dead letters whose outcome is unknown, and has let go of their names. Out: the
//! task back, when its courier is. A crash loses all of this, and leaves just those letters.

use std::collections::{HashMap, HashSet};

use punctual_core::{AttemptNo, FireId, Namespace, Task, TaskState, Timestamp};
use rapidhash::fast::RandomState;

use crate::handle::command::Subject;

#[derive(Debug, Default)]
pub(crate) struct Claims {
    fires: HashMap<FireId, Claim, RandomState>,
    /// The same by the names under which callers ask.
    by_subject: HashMap<Subject, FireId, RandomState>,
    /// Those whose name was given to another task since.
    key_reused: HashSet<FireId, RandomState>,
}

/// A fire on its way.
#[derive(Debug, Clone)]
pub(crate) struct Claim {
    pub(crate) task: Task,
    /// The task goes on without this fire: it stands in the store before its next one.
    pub(crate) task_continues: bool,
    /// When it was sent.
    pub(crate) fired_at: Timestamp,
}

impl Claims {
    pub(crate) fn insert(&mut self, task: Task, task_continues: bool, fired_at: Timestamp) {
        let fire_id = task.fire().id;
        for subject in subjects(&task) {
            self.by_subject.insert(subject, fire_id);
        }
        self.fires.insert(fire_id, Claim { task, task_continues, fired_at });
    }

    pub(crate) fn get(&self, fire_id: FireId) -> Option<&Claim> {
        self.fires.get(&fire_id)
    }

    /// Its outcome is durable.
    pub(crate) fn remove(&mut self, fire_id: FireId) {
        let Some(Claim { task, .. }) = self.fires.remove(&fire_id) else {
            return;
        };
        self.key_reused.remove(&fire_id);
        for subject in subjects(&task) {
            // The name may have been given to another task, and that one claimed, meanwhile.
            if self.by_subject.get(&subject) == Some(&fire_id) {
                self.by_subject.remove(&subject);
            }
        }
    }

    /// A task was put under a name: a claimed one that bore it is as good as replaced, should it come back unsent.
    pub(crate) fn named(&mut self, task: &Task) {
        if self.fires.is_empty() {
            return;
        }
        let definition = &task.definition;
        if let Some(key) = definition.key.clone() {
            let subject = Subject::Key(definition.namespace.clone(), key);
            self.key_reused.extend(self.by_subject.get(&subject));
        }
    }

    /// The name of a claimed task was given to another.
    pub(crate) fn succeed(&mut self, fire_id: FireId) {
        self.key_reused.insert(fire_id);
    }

    /// All of them, and whether the name of each was given to another task since.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Claim, bool)> {
        self.fires.iter().map(|(fire_id, claim)| (claim, self.is_succeeded(*fire_id)))
    }

    pub(crate) fn is_succeeded(&self, fire_id: FireId) -> bool {
        self.key_reused.contains(&fire_id)
    }

    pub(crate) fn has(&self, fire_id: FireId) -> bool {
        self.fires.contains_key(&fire_id)
    }

    /// How many there are, of one namespace or of all: of tasks that end with them, and of tasks that go on.
    pub(crate) fn count(&self, namespace: Option<&Namespace>) -> (usize, usize) {
        let of = |claim: &&Claim| namespace.is_none_or(|it| claim.task.definition.namespace == *it);
        let task_continues =
            self.fires.values().filter(of).filter(|claim| claim.task_continues).count();
        (self.fires.values().filter(of).count() - task_continues, task_continues)
    }

    /// The task that a caller asks for, firing.
    pub(crate) fn firing(&self, subject: &Subject) -> Option<Task> {
        let task = &self.fires.get(self.by_subject.get(subject)?)?.task;
        Some(Task { state: TaskState::Firing, ..task.clone() })
    }

    /// The attempt under way of whom a caller asks for.
    pub(crate) fn attempt(&self, subject: &Subject) -> Option<AttemptNo> {
        let fire_id = self.by_subject.get(subject)?;
        self.fires.get(fire_id).map(|claim| claim.task.attempt_next())
    }
}

fn subjects(task: &Task) -> impl Iterator<Item = Subject> + use<> {
    let namespace = &task.definition.namespace;
    let key = task.definition.key.clone().map(|key| Subject::Key(namespace.clone(), key));
    let id = Subject::Id(namespace.clone(), task.id);
    key.into_iter().chain([id])
}
