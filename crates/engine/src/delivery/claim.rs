//! Claims: at-most-once fires, from the moment their claim is durable until their outcome is known.
//!
//! The store has a claimed fire as a dead letter with an unknown outcome and has freed the key of
//! its task. The task is kept here, to be settled when its courier reports. A crash loses all of
//! this and leaves exactly those letters.

use std::collections::{HashMap, HashSet};

use punctual_core::{AttemptNo, FireId, Namespace, Task, TaskId, TaskState, Timestamp};
use rapidhash::fast::RandomState;

use crate::delivery::permit::SendPermit;
use crate::handle::command::Subject;

#[derive(Debug, Default)]
pub(crate) struct Claims {
    fires: HashMap<FireId, Claim, RandomState>,
    /// The same by the subjects that callers use.
    by_subject: HashMap<Subject, FireId, RandomState>,
    /// Those whose tasks continue, by task.
    of_continuing: HashMap<TaskId, Vec<FireId>, RandomState>,
    /// Those whose key was given to another task since.
    key_reused: HashSet<FireId, RandomState>,
}

/// An at-most-once fire in flight.
#[derive(Debug, Clone)]
pub(crate) struct Claim {
    pub(crate) task: Task,
    /// The store has the task before its next fire, or ended it with later fires that were skipped;
    /// otherwise it ended with this one.
    pub(crate) task_continues: bool,
    /// The provisional callback, which reports an unknown outcome if no owner is left that knows
    /// another.
    pub(crate) callback: Option<TaskId>,
    /// When the attempt was handed out, or sent by another broker.
    pub(crate) fired_at: Timestamp,
    /// Of the delivery; `None` if another broker sent it.
    permit: Option<SendPermit>,
    /// The delivery was recalled, or came back unsent, and the decision about the fire is not
    /// durable yet.
    recalled: bool,
}

impl Claim {
    /// Whether an attempt was sent, here or by another broker.
    fn was_sent(&self) -> bool {
        self.permit.as_ref().is_none_or(|permit| permit.sent_at().is_some())
    }

    /// Returns when the attempt was sent, if this broker has sent it.
    pub(crate) fn sent_at(&self) -> Option<Timestamp> {
        self.permit.as_ref().and_then(SendPermit::sent_at)
    }
}

/// How many claims there are.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ClaimCounts {
    /// Sent, and their tasks ended with them.
    pub(crate) claimed: usize,
    /// Not sent, and their tasks ended with them.
    pub(crate) claimed_unsent: usize,
    /// Of tasks that continue, sent or not.
    pub(crate) claimed_overlapping: usize,
    /// Sent, of any task.
    pub(crate) sent: usize,
}

/// What became of the attempt to recall the delivery of a claim.
#[derive(Debug)]
pub(crate) enum RecalledClaim {
    /// It was not sent and will not be. The caller ends the claim.
    Recalled(FireId),
    /// It was recalled or came back before; the claim is being ended.
    Ending,
    /// It was sent, or the subject names no claim.
    No,
}

impl Claims {
    pub(crate) fn insert(
        &mut self,
        task: Task,
        task_continues: bool,
        callback: Option<TaskId>,
        fired_at: Timestamp,
        permit: Option<SendPermit>,
    ) {
        let fire_id = task.fire().id;
        for subject in subjects(&task) {
            // Another task that was claimed under the same key has lost it.
            let before = self.by_subject.insert(subject, fire_id);
            self.key_reused.extend(before.filter(|before| before.task != fire_id.task));
        }
        if task_continues {
            self.of_continuing.entry(fire_id.task).or_default().push(fire_id);
        }
        let claim = Claim { task, task_continues, callback, fired_at, permit, recalled: false };
        self.fires.insert(fire_id, claim);
    }

    pub(crate) fn get(&self, fire_id: FireId) -> Option<&Claim> {
        self.fires.get(&fire_id)
    }

    pub(crate) fn contains(&self, fire_id: FireId) -> bool {
        self.fires.contains_key(&fire_id)
    }

    /// Recalls the deliveries of a task that continues. Returns their claims.
    pub(crate) fn recall_continuing(&mut self, id: TaskId) -> Vec<Claim> {
        let Some(fire_ids) = self.of_continuing.get(&id) else {
            return Vec::new();
        };
        let mut recalled = Vec::new();
        for fire_id in fire_ids {
            let Some(claim) = self.fires.get_mut(fire_id).filter(|claim| !claim.recalled) else {
                continue;
            };
            if claim.permit.as_ref().is_some_and(SendPermit::recall) {
                claim.recalled = true;
                recalled.push(claim.clone());
            }
        }
        recalled
    }

    /// Recalls the delivery of the claimed task that a subject names, if the task ended with it.
    pub(crate) fn recall(&mut self, subject: &Subject) -> RecalledClaim {
        let fire_id = self.by_subject.get(subject).copied();
        let Some((fire_id, claim)) = fire_id.and_then(|id| Some((id, self.fires.get_mut(&id)?)))
        else {
            return RecalledClaim::No;
        };
        if claim.recalled {
            return RecalledClaim::Ending;
        }
        let may_recall = !claim.task_continues;
        if may_recall && claim.permit.as_ref().is_some_and(SendPermit::recall) {
            claim.recalled = true;
            return RecalledClaim::Recalled(fire_id);
        }
        RecalledClaim::No
    }

    /// Recalls all deliveries that were not sent. Returns their claims, without those that were
    /// recalled before.
    pub(crate) fn recall_all(&mut self) -> Vec<Claim> {
        let mut recalled = Vec::new();
        for claim in self.fires.values_mut().filter(|claim| !claim.recalled) {
            if claim.permit.as_ref().is_some_and(SendPermit::recall) {
                claim.recalled = true;
                recalled.push(claim.clone());
            }
        }
        recalled
    }

    /// Notes that the delivery of a claim came back unsent, so that no command recalls it again.
    pub(crate) fn came_back(&mut self, fire_id: FireId) {
        if let Some(claim) = self.fires.get_mut(&fire_id) {
            claim.recalled = true;
        }
    }

    /// Removes a claim whose outcome is durable.
    pub(crate) fn remove(&mut self, fire_id: FireId) {
        let Some(Claim { task, .. }) = self.fires.remove(&fire_id) else {
            return;
        };
        self.key_reused.remove(&fire_id);
        if let Some(fire_ids) = self.of_continuing.get_mut(&fire_id.task) {
            fire_ids.retain(|of_task| *of_task != fire_id);
            if fire_ids.is_empty() {
                self.of_continuing.remove(&fire_id.task);
            }
        }
        for subject in subjects(&task) {
            // The key may have been given to another task since, and that task claimed.
            if self.by_subject.get(&subject) == Some(&fire_id) {
                self.by_subject.remove(&subject);
            }
        }
    }

    /// Notes that a task was stored under its key. A claimed task with the same key counts as
    /// replaced if it was not sent. Returns the key if there is one.
    pub(crate) fn stored_under_key(&mut self, task: &Task) -> Option<Subject> {
        if self.fires.is_empty() {
            return None;
        }
        let definition = &task.definition;
        let subject = Subject::Key(definition.namespace.clone(), definition.key.clone()?);
        self.key_reused.insert(*self.by_subject.get(&subject)?);
        Some(subject)
    }

    /// Notes that the key of a claimed task was given to another task.
    pub(crate) fn set_key_reused(&mut self, fire_id: FireId) {
        self.key_reused.insert(fire_id);
    }

    pub(crate) fn is_key_reused(&self, fire_id: FireId) -> bool {
        self.key_reused.contains(&fire_id)
    }

    /// Returns the claims, each with whether its key was given to another task since.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Claim, bool)> {
        self.fires.iter().map(|(fire_id, claim)| (claim, self.is_key_reused(*fire_id)))
    }

    /// Counts the claims of one namespace or of all.
    pub(crate) fn count(&self, namespace: Option<&Namespace>) -> ClaimCounts {
        let of = |claim: &&Claim| namespace.is_none_or(|it| claim.task.definition.namespace == *it);
        let mut counts = ClaimCounts::default();
        for claim in self.fires.values().filter(of) {
            let was_sent = claim.was_sent();
            counts.sent += usize::from(was_sent);
            *match (claim.task_continues, was_sent) {
                (true, _) => &mut counts.claimed_overlapping,
                (false, true) => &mut counts.claimed,
                (false, false) => &mut counts.claimed_unsent,
            } += 1;
        }
        counts
    }

    /// Returns the claimed task that a subject names, if it fires once and nothing was sent. A
    /// series whose last fire is claimed has ended.
    pub(crate) fn unsent(&self, subject: &Subject) -> Option<&Task> {
        let claim = self.fires.get(self.by_subject.get(subject)?)?;
        Some(&claim.task).filter(|task| !claim.was_sent() && !task.recurs())
    }

    /// Returns the claimed task that a subject names.
    pub(crate) fn task_id(&self, subject: &Subject) -> Option<TaskId> {
        let claim = self.fires.get(self.by_subject.get(subject)?)?;
        // A redriven fire may belong to another task.
        Some(claim.task.id)
    }

    /// Returns the claimed task that a subject names: firing if it was sent, else as it was.
    pub(crate) fn task(&self, subject: &Subject) -> Option<Task> {
        let claim = self.fires.get(self.by_subject.get(subject)?)?;
        let state = if claim.was_sent() { TaskState::Firing } else { claim.task.state };
        Some(Task { state, ..claim.task.clone() })
    }

    /// Returns the attempt in flight of the claimed task that a subject names.
    pub(crate) fn attempt(&self, subject: &Subject) -> Option<AttemptNo> {
        let fire_id = self.by_subject.get(subject)?;
        let sent = self.fires.get(fire_id).filter(|claim| !claim.recalled);
        sent.map(|claim| claim.task.attempt_next())
    }
}

fn subjects(task: &Task) -> impl Iterator<Item = Subject> + use<> {
    let namespace = &task.definition.namespace;
    let key = task.definition.key.clone().map(|key| Subject::Key(namespace.clone(), key));
    let id = Subject::Id(namespace.clone(), task.id);
    key.into_iter().chain([id])
}
