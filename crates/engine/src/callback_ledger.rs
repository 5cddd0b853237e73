//! A ledger of callbacks, for tests: follows the batches that a store has, and checks that every
//! end of a fire is reported exactly once.
//!
//! A batch that ends a fire with a callback has that callback, and no batch has another one. The
//! provisional callback of a claim is removed by the batch that ends the claim; if no owner was
//! left that knew the outcome, it is the report. A callback has no key and no callbacks.

use std::collections::BTreeMap;
use std::sync::Arc;

use punctual_core::{
    Callbacks, DeadReason, FireEnd, FireId, Target, Task, TaskId, TaskState, Version,
};
use punctual_store::{Batch, Change};

/// Follows batches in the order in which a store has them.
#[derive(Debug, Default)]
pub struct CallbackLedger {
    /// The callbacks of living tasks.
    of_tasks: BTreeMap<TaskId, Arc<Callbacks>>,
    /// At-most-once fires whose outcome is not known.
    claims: BTreeMap<FireId, ClaimEntry>,
    /// The callbacks that were created and not removed, and the fires that they report.
    callbacks: BTreeMap<TaskId, FireId>,
}

#[derive(Debug)]
struct ClaimEntry {
    version: Version,
    /// The task did not end with the fire.
    task_continues: bool,
    callbacks: Option<Arc<Callbacks>>,
    provisional: Option<TaskId>,
}

/// What a batch must contain, and what it contains.
#[derive(Debug, Default)]
struct BatchEntry {
    /// Ends that are to be reported.
    ends: Vec<(FireId, Target)>,
    /// Callbacks that are created.
    created: Vec<(TaskId, FireId, Target)>,
    /// Provisional callbacks of claims that end.
    ended: Vec<TaskId>,
    /// Callbacks that are removed.
    removed: Vec<TaskId>,
    /// Fires that are claimed.
    claimed: Vec<FireId>,
}

impl CallbackLedger {
    /// Adds a batch. Returns what is wrong with it.
    pub fn add(&mut self, batch: &Batch) -> Result<(), String> {
        let mut entry = BatchEntry::default();
        for change in &batch.changes {
            self.add_change(change, &mut entry)?;
        }
        for (fire_id, target) in &entry.ends {
            let reports = |it: &&(TaskId, FireId, Target)| it.1 == *fire_id && it.2 == *target;
            let count = entry.created.iter().filter(reports).count();
            let due = entry.ends.iter().filter(|it| it.0 == *fire_id).count();
            if count != due {
                return Err(format!("{count} callbacks of {due} ends of {fire_id}"));
            }
        }
        if entry.created.len() != entry.ends.len() {
            return Err(format!("{:?} for {:?}", entry.created, entry.ends));
        }
        entry.ended.sort();
        entry.removed.sort();
        if entry.ended != entry.removed {
            return Err(format!("removed {:?}, ended claims of {:?}", entry.removed, entry.ended));
        }
        for (id, fire_id, _) in &entry.created {
            self.callbacks.insert(*id, *fire_id);
            if entry.claimed.contains(fire_id)
                && let Some(claim) = self.claims.get_mut(fire_id)
            {
                claim.provisional = Some(*id);
            }
        }
        entry.removed.iter().for_each(|id| _ = self.callbacks.remove(id));
        Ok(())
    }

    /// Returns the callbacks that must be received or become dead letters, with the fires that they
    /// report.
    pub fn callbacks(&self) -> impl Iterator<Item = (TaskId, FireId)> {
        self.callbacks.iter().map(|(id, fire_id)| (*id, *fire_id))
    }

    fn add_change(&mut self, change: &Change, entry: &mut BatchEntry) -> Result<(), String> {
        match change {
            Change::Put(task) => {
                self.note(task);
                let definition = &task.definition;
                let Some(fire_id) = definition.callback_of else { return Ok(()) };
                if definition.callbacks.is_some() || definition.key.is_some() {
                    return Err(format!("a callback with callbacks or a key: {}", task.id));
                }
                entry.created.push((task.id, fire_id, definition.target.clone()));
            }
            Change::Refile { task, .. } => self.note(task),
            Change::Postpone { .. } => {}
            Change::Settle { record, next, was } => {
                let (id, fire_id) = (record.task_id(), record.fire_id);
                if record.end == FireEnd::Replaced && self.callbacks.contains_key(&id) {
                    entry.removed.push(id);
                }
                let callbacks = match self.end_claim(fire_id, was.state, entry) {
                    Some(claim) => claim.callbacks,
                    None => self.of_tasks.get(&id).cloned(),
                };
                expect(callbacks, fire_id, record.end, entry);
                self.continue_with(id, next.as_deref(), was.state);
            }
            Change::Dead { letter, next, was } => {
                let (task, fire_id) = (&letter.task, letter.fire_id());
                self.end_claim(fire_id, was.state, entry);
                let callbacks = task.definition.callbacks.clone();
                expect(callbacks.clone(), fire_id, FireEnd::Dead(letter.reason), entry);
                if letter.reason == DeadReason::Unknown && is_of_task(was.state) {
                    entry.claimed.push(fire_id);
                    let (version, task_continues) = (task.version, next.is_some());
                    let provisional = None;
                    let claim = ClaimEntry { version, task_continues, callbacks, provisional };
                    self.claims.insert(fire_id, claim);
                }
                self.continue_with(task.id, next.as_deref(), was.state);
            }
            Change::Redrive { fire_id, task } => {
                let claim = self.claims.remove(fire_id);
                // With another version a caller has redriven the letter that a crash left.
                let unsent = claim.filter(|claim| claim.version == task.version);
                entry.ended.extend(unsent.and_then(|claim| claim.provisional));
                self.note(task);
            }
            // The letter of a claim that ends is deleted before the end is written.
            Change::DeleteLetter { .. } => {}
        }
        Ok(())
    }

    /// Ends the claim of a fire whose outcome is known now.
    fn end_claim(
        &mut self,
        fire_id: FireId,
        was: TaskState,
        entry: &mut BatchEntry,
    ) -> Option<ClaimEntry> {
        let task_continues = self.claims.get(&fire_id)?.task_continues;
        // A watch that has fired may end while its claim continues.
        let ends = was == TaskState::Firing || (was == TaskState::Dead && !task_continues);
        let claim = ends.then(|| self.claims.remove(&fire_id)).flatten();
        entry.ended.extend(claim.as_ref().and_then(|claim| claim.provisional));
        claim
    }

    fn note(&mut self, task: &Task) {
        match &task.definition.callbacks {
            Some(callbacks) => _ = self.of_tasks.insert(task.id, Arc::clone(callbacks)),
            None => _ = self.of_tasks.remove(&task.id),
        }
    }

    fn continue_with(&mut self, id: TaskId, next: Option<&Task>, was: TaskState) {
        match next {
            Some(next) => self.note(next),
            None if was != TaskState::Firing => _ = self.of_tasks.remove(&id),
            None => {}
        }
    }
}

/// Whether a fire that ends was a fire of its task, and not the claim of one.
const fn is_of_task(was: TaskState) -> bool {
    matches!(was, TaskState::Scheduled | TaskState::Paused)
}

fn expect(
    callbacks: Option<Arc<Callbacks>>,
    fire_id: FireId,
    end: FireEnd,
    entry: &mut BatchEntry,
) {
    let target = callbacks.as_ref().and_then(|callbacks| callbacks.target_of(end));
    entry.ends.extend(target.map(|target| (fire_id, target.clone())));
}
