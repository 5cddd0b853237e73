//! Sends lookups and uses their results.
//!
//! Lookups that are wanted in one turn of the owner go to the store together. A result that is out
//! of date is not used: the subject is looked up again, if need be after the decision in question
//! is durable.

use punctual_core::{TaskId, Timestamp};
use punctual_store::StoreError;

use crate::commands::lookup::{Lookup, LookupResult};
use crate::commands::read_tracker::Scope;
use crate::event::Action;
use crate::handle::command::Subject;
use crate::owner::Owner;

/// Subjects of one read: some milliseconds of the store's time.
const LOOKUPS_MAX: usize = 1024;

impl Owner {
    /// Adds a lookup to those of this turn.
    pub(crate) fn look_up(&mut self, lookup: Lookup) {
        if let Some(queue) = self.commands.queues.get_mut(&lookup.subject) {
            queue.lookup = Some(self.reads.open());
            self.commands.lookups_wanted.push(lookup);
        }
    }

    /// Looks up again what the first command about a subject needs.
    pub(crate) fn look_up_again(&mut self, subject: &Subject) {
        if let Some(lookup) = self.commands.first_lookup(subject) {
            self.look_up(lookup);
        }
    }

    /// Sends the lookups of this turn.
    pub(crate) fn send_lookups(&mut self) {
        let wanted = &mut self.commands.lookups_wanted;
        while !wanted.is_empty() {
            let count = wanted.len().min(LOOKUPS_MAX);
            self.actions.push(Action::Lookup(wanted.drain(..count).collect()));
        }
    }

    pub(crate) fn on_lookup_results(&mut self, results: Vec<LookupResult>, now: Timestamp) {
        let mut unavailable = Vec::new();
        for LookupResult { look: lookup, result } in results {
            let Some(queue) = self.commands.queues.get_mut(&lookup.subject) else { continue };
            let Some(read) = queue.lookup.take() else { continue };
            self.reads.close(read);
            let found = match result {
                Ok(found) => Ok(found),
                Err(StoreError::Damaged(damage)) => Err(damage),
                Err(StoreError::Unavailable(_)) => {
                    let Some(lookup) = self.lookup_to_repeat(lookup, now) else {
                        continue;
                    };
                    if let Some(queue) = self.commands.queues.get_mut(&lookup.subject) {
                        queue.lookup = Some(self.reads.open());
                        unavailable.push(lookup);
                    }
                    continue;
                }
                Err(error) => return self.stop(error),
            };
            if self.writer.is_repairing() {
                self.commands.under_repair.push(lookup.subject);
                continue;
            }
            if !self.reads.is_valid(read) {
                self.look_up_again(&lookup.subject);
                continue;
            }
            let found = match found {
                Ok(found) => found,
                Err(damage) => {
                    if let Some(command) = queue.commands.pop_front() {
                        self.on_damaged(command, lookup.subject, &damage, now);
                    }
                    continue;
                }
            };
            let task = found.id().map(Scope::Task);
            let letter = lookup.letter.map(|id| [Scope::Task(id.task), Scope::Letters(id.task)]);
            // The letter of a fire that was redriven apart from its task is redriven as that task.
            let redriven = found.letter.as_ref().map(|letter| Scope::Task(letter.task.id));
            // A task that has ended may be redriven meanwhile.
            let last = found.last.as_ref().map(|last| Scope::Task(last.task_id()));
            let scopes = task.into_iter().chain(letter.into_iter().flatten());
            let mut scopes = scopes.chain(redriven).chain(last);
            match scopes.find(|scope| self.reads.changed_since(*scope, read)) {
                Some(scope) => self.look_up_when_durable(lookup.subject, scope),
                None => {
                    if let Some(command) = queue.commands.pop_front() {
                        self.on_found(command, lookup.subject, found, now);
                    }
                }
            }
        }
        if !unavailable.is_empty() {
            self.actions.retry(Action::Lookup(unavailable), now);
        }
    }

    /// Looks a subject up again because the result is out of date: at once if the change is
    /// durable, otherwise once it is.
    fn look_up_when_durable(&mut self, subject: Subject, scope: Scope) {
        let (Scope::Task(id) | Scope::New(id) | Scope::Letters(id)) = scope;
        if self.reads.is_undurable(scope) {
            self.commands.watchers.entry(id).or_default().push(subject);
        } else {
            self.look_up_again(&subject);
        }
    }

    /// Looks up the subjects that waited for decisions about a task, once none is pending.
    pub(crate) fn wake_watchers(&mut self, id: TaskId) {
        let scopes = [Scope::Task(id), Scope::Letters(id)];
        if self.commands.watchers.is_empty()
            || scopes.iter().any(|scope| self.reads.is_undurable(*scope))
        {
            return;
        }
        for subject in self.commands.watchers.remove(&id).unwrap_or_default() {
            self.look_up_again(&subject);
        }
    }
}
