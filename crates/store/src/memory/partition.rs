//! One partition of the memory store: its living tasks, keys, dead letters and counts.
//!
//! [`MemoryPartition::apply`] makes one change and returns the record of the fire that ended with
//! it, which `history` keeps. `order` has a position for every task, `due` for every scheduled one,
//! `series` for every series, and every entry of `names` leads to a living task.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::time::Duration;

use punctual_core::{
    DeadLetter, FireEnd, FireId, FireRecord, Namespace, Task, TaskId, TaskKey, TaskState, Timestamp,
};

use crate::change::Change;
use crate::counts::{CountedNamespace, Counts, count};
use crate::due::{DueMinute, DueSteps, due_move};
use crate::letter_groups::{CountedGroup, LetterGroups};
use crate::query::{Filter, KindFilter, Page, Position};

/// The largest number of items read for one page: a filter that few tasks match must not hold the
/// lock for long.
const PAGE_READS_MAX: usize = 4096;

#[derive(Debug, Default)]
pub(super) struct MemoryPartition {
    tasks: BTreeMap<TaskId, Task>,
    order: BTreeSet<Position>,
    due: BTreeSet<Position>,
    series: BTreeMap<Namespace, BTreeSet<Position>>,
    names: BTreeMap<(Namespace, TaskKey), TaskId>,
    letters: BTreeMap<FireId, DeadLetter>,
    letter_groups: BTreeMap<Namespace, LetterGroups>,
    counts: BTreeMap<Namespace, Counts>,
    due_counts: BTreeMap<Namespace, BTreeMap<DueMinute, i64>>,
}

impl MemoryPartition {
    /// Makes one change. Returns the record of the fire that ended with it, if one did.
    pub(super) fn apply(&mut self, change: Change) -> Option<FireRecord> {
        if let Some((namespace, moved)) = count(&change) {
            self.counts.entry(namespace.clone()).or_default().add(moved);
        }
        self.count_due(&change);
        match change {
            Change::Put(task) => self.file(task),
            Change::Refile { task, .. } => self.replace(task.id, Some(task)),
            Change::Postpone { id, fire_at, version, updated_at, .. } => {
                if let Some(task) = self.unfile(id) {
                    let nominal_at = fire_at;
                    self.file(Task { fire_at, nominal_at, version, updated_at, ..task });
                }
            }
            Change::Settle { record, next, was } => {
                if was.state != TaskState::Firing {
                    self.replace(record.task_id(), next.map(|next| *next));
                }
                return Some(record);
            }
            Change::Dead { letter, next, was } => {
                let end = FireEnd::Dead(letter.reason);
                let record = FireRecord::of(&letter.task, end, letter.died_at);
                if was.state != TaskState::Firing {
                    self.replace(letter.task.id, next.map(|next| *next));
                }
                self.keep_letter(letter);
                return Some(record);
            }
            Change::Redrive { fire_id, task } => {
                self.delete_letter(fire_id);
                self.file(task);
            }
            Change::DeleteLetter { fire_id, .. } => {
                self.delete_letter(fire_id);
            }
        }
        None
    }

    pub(super) fn task(&self, id: TaskId) -> Option<&Task> {
        self.tasks.get(&id)
    }

    pub(super) fn named(&self, namespace: &Namespace, key: &TaskKey) -> Option<&Task> {
        let name = (namespace.clone(), key.clone());
        self.task(*self.names.get(&name)?)
    }

    pub(super) fn letter(&self, fire_id: FireId) -> Option<&DeadLetter> {
        self.letters.get(&fire_id)
    }

    pub(super) fn counts(&self, namespace: &Namespace) -> Counts {
        self.counts.get(namespace).copied().unwrap_or_default()
    }

    pub(super) fn due_counts(&self, namespace: &Namespace, steps: &DueSteps) -> Vec<i64> {
        let mut counts = vec![0; steps.count()];
        let minutes = self.due_counts.get(namespace).into_iter();
        for (minute, count) in minutes.flat_map(|minutes| minutes.range(steps.first()..)) {
            match steps.step_of(*minute) {
                Some(step) => counts[step] += count,
                None => break,
            }
        }
        counts
    }

    pub(super) fn letter_groups(&self, namespace: &Namespace) -> Vec<CountedGroup> {
        self.letter_groups.get(namespace).into_iter().flat_map(LetterGroups::iter).collect()
    }

    pub(super) fn namespaces(
        &self,
        after: Option<&Namespace>,
        limit: usize,
    ) -> Page<CountedNamespace, Namespace> {
        let after = after.map_or(Bound::Unbounded, Bound::Excluded);
        let counted = self.counts.range::<Namespace, _>((after, Bound::Unbounded));
        let counted = counted.filter(|(_, counts)| !counts.is_zero());
        let counted =
            counted.map(|(name, counts)| CountedNamespace { name: name.clone(), counts: *counts });
        Page::first(counted, limit, |last| last.name.clone())
    }

    pub(super) fn load(&self, after: Position, until: Timestamp, limit: usize) -> Vec<Task> {
        self.due
            .range((Bound::Excluded(after), Bound::Unbounded))
            .take_while(|position| position.fire_at < until)
            .take(limit)
            .map(|position| self.tasks[&position.id].clone())
            .collect()
    }

    pub(super) fn list(
        &self,
        filter: &Filter,
        after: Position,
        limit: usize,
    ) -> Page<Task, Position> {
        let after = after.max(Position::before(filter.from));
        let none = BTreeSet::new();
        let order = match filter.kind.is_some_and(KindFilter::selects_series) {
            true => self.series.get(&filter.namespace).unwrap_or(&none),
            false => &self.order,
        };
        let positions = order.range((Bound::Excluded(after), Bound::Unbounded));
        let tasks = positions.map(|position| (*position, &self.tasks[&position.id]));
        page(tasks, limit, |task| filter.matches(task))
    }

    pub(super) fn dead(
        &self,
        namespace: &Namespace,
        after: Option<FireId>,
        limit: usize,
    ) -> Page<DeadLetter, FireId> {
        let after = after.map_or(Bound::Unbounded, Bound::Excluded);
        let letters = self.letters.range((after, Bound::Unbounded));
        let letters = letters.map(|(fire_id, letter)| (*fire_id, letter));
        page(letters, limit, |letter| letter.task.definition.namespace == *namespace)
    }

    /// Deletes the dead letters that are past their age, and returns their number.
    pub(super) fn sweep(&mut self, dead_age: Duration, now: Timestamp) -> u64 {
        let past = |letter: &DeadLetter| now.since(letter.died_at) >= dead_age;
        let past: Vec<FireId> =
            self.letters.values().filter(|it| past(it)).map(DeadLetter::fire_id).collect();
        for fire_id in &past {
            if let Some(namespace) = self.delete_letter(*fire_id) {
                self.counts.entry(namespace).or_default().dead_letters -= 1;
            }
        }
        past.len() as u64
    }

    fn keep_letter(&mut self, letter: DeadLetter) {
        let namespace = letter.task.definition.namespace.clone();
        let (fire_id, died_at) = (letter.fire_id(), letter.died_at);
        let groups = self.letter_groups.entry(namespace).or_default();
        groups.add(letter.group(), died_at, fire_id);
        self.letters.insert(fire_id, letter);
    }

    /// Deletes a letter and returns its namespace; `None` if there is no such letter.
    fn delete_letter(&mut self, fire_id: FireId) -> Option<Namespace> {
        let letter = self.letters.remove(&fire_id)?;
        let namespace = letter.task.definition.namespace.clone();
        if let Some(groups) = self.letter_groups.get_mut(&namespace) {
            groups.remove(&letter.group(), fire_id);
        }
        Some(namespace)
    }

    fn count_due(&mut self, change: &Change) {
        let Some(moved) = due_move(change) else { return };
        let minutes = self.due_counts.entry(moved.namespace.clone()).or_default();
        for (minute, by) in [(moved.from, -1), (moved.to, 1)] {
            let Some(minute) = minute else { continue };
            let count = minutes.entry(minute).or_default();
            *count += by;
            if *count == 0 {
                minutes.remove(&minute);
            }
        }
    }

    fn file(&mut self, task: Task) {
        self.unfile(task.id);
        self.order.insert(Position::of(&task));
        if task.state == TaskState::Scheduled {
            self.due.insert(Position::of(&task));
        }
        if task.definition.schedule.kind().is_series() {
            let series = self.series.entry(task.definition.namespace.clone()).or_default();
            series.insert(Position::of(&task));
        }
        if let Some(name) = name_of(&task) {
            self.names.insert(name, task.id);
        }
        self.tasks.insert(task.id, task);
    }

    fn unfile(&mut self, id: TaskId) -> Option<Task> {
        let task = self.tasks.remove(&id)?;
        self.order.remove(&Position::of(&task));
        self.due.remove(&Position::of(&task));
        if let Some(series) = self.series.get_mut(&task.definition.namespace) {
            series.remove(&Position::of(&task));
        }
        // The key may already name another task.
        if let Some(name) = name_of(&task)
            && self.names.get(&name) == Some(&id)
        {
            self.names.remove(&name);
        }
        Some(task)
    }

    /// Removes a task, or replaces it with `next`. A task that is not here stays absent.
    fn replace(&mut self, id: TaskId, next: Option<Task>) {
        let was = self.unfile(id);
        if let (Some(_), Some(next)) = (was, next) {
            self.file(next);
        }
    }
}

fn name_of(task: &Task) -> Option<(Namespace, TaskKey)> {
    let definition = &task.definition;
    let key = definition.key.clone()?;
    Some((definition.namespace.clone(), key))
}

/// Returns a page of the items that match: full, or as many as were found among the items that one
/// page may read.
pub(super) fn page<'a, T: Clone + 'a, C: Copy>(
    rows: impl Iterator<Item = (C, &'a T)>,
    limit: usize,
    matches: impl Fn(&T) -> bool,
) -> Page<T, C> {
    let mut items = Vec::new();
    for (read, (cursor, item)) in rows.enumerate() {
        if matches(item) {
            items.push(item.clone());
        }
        if items.len() >= limit || read + 1 == PAGE_READS_MAX {
            let next = Some(cursor);
            return Page { items, next };
        }
    }
    Page { items, next: None }
}
