//! Batches: folds many changes into the arguments of one script call.
//!
//! `apply.lua` makes the sections of a batch with one command for many tasks. A task, name, dead
//! letter or record that several changes touch is written once, with the last value. So the order
//! of sections does not matter, and the script does not decode values. Decisions that depend on the
//! contents of Redis (whether a task exists, whether a name still leads to it) are made in the
//! script; all others are made here.

mod arguments;

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::Hash;
use std::sync::Arc;

use punctual_core::{
    DeadLetter, Epoch, FireEnd, FireId, FireRecord, Namespace, Task, TaskId, TaskState, Timestamp,
};
use punctual_store::codec::{DueDifferences, put_letter_group};
use punctual_store::{Batch, BatchNo, Change, Counts, Head, Prior, count, due_move};

pub(crate) use self::arguments::{ArgumentList, BatchArguments, SeriesArguments};
use crate::format::codec::{self, Postponement};
use crate::format::ends::{self, FireGroup, GroupOrigin};

/// The largest number of fires in one piece of history: a sweep deletes a whole piece.
const PIECE_FIRES_MAX: usize = 1000;

impl BatchArguments {
    /// Folds a batch of an epoch.
    pub(crate) fn of(epoch: Epoch, batch: Batch) -> Self {
        let mut folded = FoldedBatch::default();
        for change in batch.changes {
            folded.add(Arc::unwrap_or_clone(change));
        }
        folded.write(epoch, batch.number)
    }
}

/// The state of a task after the changes so far.
#[derive(Debug)]
enum FoldedTask {
    /// Stored. A `fresh` task was not in Redis before the batch.
    Filed { task: Box<Task>, fresh: bool },
    /// Due later, if Redis has it.
    Postponed(Postponement),
    /// Ended.
    Ended,
}

impl FoldedTask {
    /// Returns when the task is due, as far as the batch tells.
    fn fire_at(&self, id: TaskId) -> Timestamp {
        match self {
            Self::Filed { task, .. } => task.fire_at,
            Self::Postponed(postponement) => postponement.fire_at,
            Self::Ended => id.due(),
        }
    }
}

/// Where a name leads after the changes so far.
#[derive(Debug)]
enum FoldedName {
    /// To a task that this batch stores.
    To(Box<Head>),
    /// Nowhere: the name is free.
    Free,
    /// Nowhere, if it led to one of these tasks.
    FreeFrom(Vec<TaskId>),
}

/// The state of a dead letter after the changes so far.
#[derive(Debug)]
enum FoldedLetter {
    Kept(Box<DeadLetter>),
    Removed(Namespace),
}

/// A map in the order of insertion, so that the same batch has the same bytes.
#[derive(Debug)]
struct InsertionMap<K, V> {
    indexes: HashMap<K, usize>,
    items: Vec<(K, V)>,
}

impl<K, V> Default for InsertionMap<K, V> {
    fn default() -> Self {
        Self { indexes: HashMap::new(), items: Vec::new() }
    }
}

impl<K: Hash + Eq + Clone, V> InsertionMap<K, V> {
    fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        self.indexes.get(key).map(|index| &mut self.items[*index].1)
    }

    fn set(&mut self, key: K, value: V) {
        match self.indexes.entry(key.clone()) {
            Entry::Occupied(index) => self.items[*index.get()].1 = value,
            Entry::Vacant(index) => {
                index.insert(self.items.len());
                self.items.push((key, value));
            }
        }
    }
}

/// The state of everything that a batch changes.
#[derive(Debug, Default)]
struct FoldedBatch {
    tasks: InsertionMap<TaskId, FoldedTask>,
    /// Tasks that had ended and are redriven.
    restored: Vec<TaskId>,
    names: InsertionMap<Vec<u8>, FoldedName>,
    letters: InsertionMap<FireId, FoldedLetter>,
    records: InsertionMap<FireId, FireRecord>,
    counts: InsertionMap<Namespace, Counts>,
    due: DueDifferences,
    /// When series are due, by namespace; `None` for tasks that are no series any more.
    series: BTreeMap<Namespace, InsertionMap<TaskId, Option<Timestamp>>>,
}

impl FoldedBatch {
    fn add(&mut self, change: Change) {
        if let Some((namespace, moved)) = count(&change) {
            match self.counts.get_mut(namespace) {
                Some(counts) => counts.add(moved),
                None => self.counts.set(namespace.clone(), moved),
            }
        }
        if let Some(moved) = due_move(&change) {
            self.due.add(moved);
        }
        match change {
            Change::Put(task) => self.file(task, true),
            Change::Refile { task, was } => {
                self.leave_series(&task.definition.namespace, task.id, was);
                self.file(task, false);
            }
            Change::Postpone { id, fire_at, version, updated_at, .. } => {
                let updated_at = Some(updated_at);
                self.postpone(id, Postponement { fire_at, version, updated_at });
            }
            Change::Settle { record, next, was } => {
                self.end_fire(&record, next, was);
                self.records.set(record.fire_id, record);
            }
            Change::Dead { letter, next, was } => {
                let end = FireEnd::Dead(letter.reason);
                let record = FireRecord::of(&letter.task, end, letter.died_at);
                self.end_fire(&record, next, was);
                self.records.set(record.fire_id, record);
                self.letters.set(letter.fire_id(), FoldedLetter::Kept(Box::new(letter)));
            }
            Change::Redrive { fire_id, task } => {
                let namespace = task.definition.namespace.clone();
                self.letters.set(fire_id, FoldedLetter::Removed(namespace));
                self.restored.push(task.id);
                self.file(task, false);
            }
            Change::DeleteLetter { fire_id, namespace } => {
                self.letters.set(fire_id, FoldedLetter::Removed(namespace));
            }
        }
    }

    fn file(&mut self, task: Task, fresh: bool) {
        if task.definition.schedule.kind().is_series() {
            let series = self.series.entry(task.definition.namespace.clone()).or_default();
            series.set(task.id, Some(task.fire_at));
        }
        if let Some(name) = name(&task.definition.namespace, task.definition.key.as_ref()) {
            self.names.set(name, FoldedName::To(Box::new(Head::of(&task))));
        }
        // A task that this batch created is still new after further changes.
        let fresh = fresh
            || matches!(self.tasks.get_mut(&task.id), Some(FoldedTask::Filed { fresh: true, .. }));
        self.tasks.set(task.id, FoldedTask::Filed { task: Box::new(task), fresh });
    }

    fn postpone(&mut self, id: TaskId, postponement: Postponement) {
        match self.tasks.get_mut(&id) {
            Some(FoldedTask::Filed { task, .. }) => {
                task.fire_at = postponement.fire_at;
                task.nominal_at = postponement.fire_at;
                task.version = postponement.version;
                task.updated_at = postponement.updated_at.unwrap_or(task.updated_at);
                let definition = &task.definition;
                let name = name(&definition.namespace, definition.key.as_ref());
                let head = Head::of(task);
                if let Some(FoldedName::To(named)) = name.and_then(|name| self.names.get_mut(&name))
                    && named.id == id
                {
                    **named = head;
                }
            }
            Some(FoldedTask::Ended) => {}
            Some(FoldedTask::Postponed(earlier)) => *earlier = postponement,
            None => self.tasks.set(id, FoldedTask::Postponed(postponement)),
        }
    }

    /// Ends a fire: its task continues as `next`, or ends. If the fire is no longer a part of its
    /// task, the task does not change.
    fn end_fire(&mut self, record: &FireRecord, next: Option<Box<Task>>, was: Prior) {
        match next {
            Some(task) => self.file(*task, false),
            None if was.state == TaskState::Firing => {}
            None => {
                self.leave_series(&record.namespace, record.task_id(), was);
                self.end(record);
            }
        }
    }

    /// Removes a task from the series, if it was one.
    fn leave_series(&mut self, namespace: &Namespace, id: TaskId, was: Prior) {
        if was.kind.is_series() {
            self.series.entry(namespace.clone()).or_default().set(id, None);
        }
    }

    fn end(&mut self, record: &FireRecord) {
        let id = record.task_id();
        self.tasks.set(id, FoldedTask::Ended);
        let Some(name) = name(&record.namespace, record.key.as_ref()) else { return };
        match self.names.get_mut(&name) {
            Some(FoldedName::To(head)) if head.id != id => {}
            Some(FoldedName::To(_)) => self.names.set(name, FoldedName::Free),
            Some(FoldedName::Free) => {}
            Some(FoldedName::FreeFrom(ids)) => ids.push(id),
            None => self.names.set(name, FoldedName::FreeFrom(vec![id])),
        }
    }

    /// Returns whether a record replaces its task: the task has ended, and its id leads to the
    /// fire.
    fn record_replaces_task(&mut self, fire_id: FireId) -> bool {
        codec::is_plain(fire_id)
            && matches!(self.tasks.get_mut(&fire_id.task), Some(FoldedTask::Ended))
    }

    fn write(mut self, epoch: Epoch, number: BatchNo) -> BatchArguments {
        let mut arguments = BatchArguments::default();
        for id in &self.restored {
            arguments.restored.push(&codec::id(*id));
            arguments.restored_fires.push(&codec::fire(FireId { task: *id, nominal_at: id.due() }));
        }
        let records = std::mem::take(&mut self.records.items);
        let replaces_task: Vec<bool> =
            records.iter().map(|(fire_id, _)| self.record_replaces_task(*fire_id)).collect();
        let origin = GroupOrigin { epoch, batch: number };
        let size = write_history(&mut arguments, &records, &replaces_task, origin);
        let replaced =
            records.iter().zip(&replaces_task).filter(|(_, replaces_task)| **replaces_task);
        let replaced: HashSet<TaskId> = replaced.map(|((fire, _), _)| fire.task).collect();
        // By time, the order of the sorted set: neighbours are likely to be in the cache of the
        // server.
        self.tasks.items.sort_by_key(|(id, folded)| folded.fire_at(*id));
        for (id, folded) in &self.tasks.items {
            write_task(&mut arguments, *id, folded, replaced.contains(id));
        }
        for (name, leads) in &self.names.items {
            write_name(&mut arguments, name, leads);
        }
        for (fire_id, letter) in &self.letters.items {
            write_letter(&mut arguments, *fire_id, letter);
        }
        for (namespace, counts) in &self.counts.items {
            for (letter, by) in codec::by_letter(counts) {
                if by != 0 {
                    let namespace = namespace.as_str();
                    arguments.counts.write(|out| codec::put_count_field(out, namespace, letter));
                    arguments.counts.push_number(by);
                }
            }
        }
        if size > 0 {
            arguments.counts.push(codec::HISTORY_BYTES_FIELD);
            arguments.counts.push_number(size);
        }
        if let Some(differences) = self.due.to_bytes() {
            arguments.due_log.push(&differences);
        }
        arguments.series = self.series.into_iter().map(series_arguments).collect();
        arguments
    }
}

fn series_arguments(
    (namespace, tasks): (Namespace, InsertionMap<TaskId, Option<Timestamp>>),
) -> SeriesArguments {
    let [mut due, mut removed] = [ArgumentList::default(), ArgumentList::default()];
    for (id, fire_at) in tasks.items {
        match fire_at {
            Some(fire_at) => {
                due.push_number(fire_at.as_millis());
                due.push(&codec::id(id));
            }
            None => removed.push(&codec::id(id)),
        }
    }
    SeriesArguments { namespace, due, removed }
}

fn name(namespace: &Namespace, key: Option<&punctual_core::TaskKey>) -> Option<Vec<u8>> {
    let key = key?.as_str();
    let mut name = Vec::with_capacity(namespace.as_str().len() + 1 + key.len());
    codec::put_name(&mut name, namespace.as_str(), key);
    Some(name)
}

fn write_task(arguments: &mut BatchArguments, id: TaskId, folded: &FoldedTask, replaced: bool) {
    let id = codec::id(id);
    match folded {
        FoldedTask::Filed { task, fresh } => {
            let paused = codec::is_paused(task);
            let (index, was) = match paused {
                true => (&mut arguments.paused, &mut arguments.was_due),
                false => (&mut arguments.due, &mut arguments.was_paused),
            };
            index.push_number(task.fire_at.as_millis());
            index.push(&id);
            index.write(|out| codec::put_task(out, task));
            if !fresh {
                was.push(&id);
            }
            arguments.grows |= *fresh && task.definition.callback_of.is_none();
        }
        FoldedTask::Postponed(postponement) => {
            arguments.postponed.push_number(postponement.fire_at.as_millis());
            arguments.postponed.push(&id);
            arguments.postponed.write(|out| codec::put_postponement(out, *postponement));
        }
        // The record replaces the task.
        FoldedTask::Ended if replaced => {}
        FoldedTask::Ended => arguments.removed.push(&id),
    }
}

fn write_name(arguments: &mut BatchArguments, name: &[u8], leads: &FoldedName) {
    match leads {
        FoldedName::To(head) => {
            arguments.named.push(name);
            arguments.named.write(|out| codec::put_head(out, head));
        }
        FoldedName::Free => arguments.freed.push(name),
        FoldedName::FreeFrom(ids) => {
            for id in ids {
                arguments.freed_if.push(name);
                arguments.freed_if_ids.push(&codec::id(*id));
            }
        }
    }
}

fn write_letter(arguments: &mut BatchArguments, fire_id: FireId, letter: &FoldedLetter) {
    let member = |out: &mut Vec<u8>, namespace| codec::put_letter_member(out, namespace, fire_id);
    match letter {
        FoldedLetter::Kept(letter) => {
            let namespace = &letter.task.definition.namespace;
            arguments.letters.push(&codec::fire(fire_id));
            arguments.letters.write(|out| punctual_store::codec::put_letter(out, letter));
            arguments.letter_groups.write(|out| put_letter_group(out, &letter.group()));
            arguments.dead.push(b"0");
            arguments.dead.write(|out| member(out, namespace));
            arguments.dead_ages.push_number(letter.died_at.as_millis());
            arguments.dead_ages.write(|out| member(out, namespace));
        }
        FoldedLetter::Removed(namespace) => {
            arguments.removed_letters.push(&codec::fire(fire_id));
            arguments.removed_letter_members.write(|out| member(out, namespace));
        }
    }
}

/// Writes the records, which replace their tasks or are stored apart, and the groups and pieces
/// that list them. Returns the size of the records in bytes.
fn write_history(
    arguments: &mut BatchArguments,
    records: &[(FireId, FireRecord)],
    replaces_task: &[bool],
    origin: GroupOrigin,
) -> u64 {
    let mut size = 0;
    let mut group_numbers = 0..;
    let pieces = records.chunks(PIECE_FIRES_MAX).zip(replaces_task.chunks(PIECE_FIRES_MAX));
    for (number, (piece, replaces_task)) in (0..).zip(pieces) {
        let before = arguments.history.bytes() + arguments.ended.bytes();
        let mut ended_at = Timestamp::EPOCH;
        for ((fire_id, record), replaces_task) in piece.iter().zip(replaces_task) {
            write_record(arguments, *fire_id, record, *replaces_task);
            ended_at = ended_at.max(record.ended_at);
        }
        let bytes = arguments.history.bytes() + arguments.ended.bytes() - before;
        size += bytes as u64;
        let groups = FireGroup::divide(piece.iter().map(|(_, record)| record));
        let groups: Vec<(u32, FireGroup<'_>)> = group_numbers.by_ref().zip(groups).collect();
        arguments.ages.push_number(ended_at.as_millis());
        arguments.ages.write(|out| {
            let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
            ends::put_piece_header(out, origin, number, bytes);
            groups.iter().for_each(|(number, group)| group.put_reference(out, *number));
        });
        for (number, group) in &groups {
            arguments.ends.push(b"0");
            arguments.ends.write(|out| group.put(out, origin, *number));
        }
    }
    write_keyed(arguments, records);
    size
}

/// Writes the fires of tasks with keys, in the order of the sorted set.
fn write_keyed(arguments: &mut BatchArguments, records: &[(FireId, FireRecord)]) {
    let keyed = |(_, record): &(FireId, FireRecord)| {
        let mut member = Vec::new();
        ends::put_keyed(&mut member, record, record.key.as_ref()?);
        Some(member)
    };
    let mut members: Vec<Vec<u8>> = records.iter().filter_map(keyed).collect();
    members.sort_unstable();
    for member in &members {
        arguments.keyed.push(b"0");
        arguments.keyed.push(member);
    }
}

fn write_record(
    arguments: &mut BatchArguments,
    fire_id: FireId,
    record: &FireRecord,
    replaces_task: bool,
) {
    let fire = codec::fire(fire_id);
    if replaces_task {
        arguments.ended.push(&codec::id(fire_id.task));
        arguments.ended.write(|out| codec::put_ended(out, record));
        return;
    }
    arguments.history.push(&fire);
    arguments.history.write(|out| codec::put_record(out, record));
    if !codec::is_plain(fire_id) {
        arguments.fires.push(b"0");
        arguments.fires.push(&fire);
    }
}

#[cfg(test)]
mod tests {
    use punctual_core::NewTask;
    use punctual_store::Prior;
    use punctual_store::conformance::fixtures::{
        NOW, at, die, epoch, id, partition, postpone, settle, shop, task,
    };

    use super::*;

    fn arguments_of(changes: Vec<Change>) -> BatchArguments {
        BatchArguments::of(epoch(1), Batch::new(BatchNo::FIRST, changes))
    }

    fn number(count: u64) -> TaskId {
        id(at(count), partition(0), epoch(1), count)
    }

    #[test]
    fn a_task_put_and_settled_in_one_batch_leaves_only_its_record() {
        let task = task(number(1)).key("a").build();
        let made = arguments_of(vec![Change::Put(task.clone()), settle(&task, FireEnd::Done, NOW)]);
        assert_eq!((made.due.len(), made.ended.len()), (0, 2));
        assert_eq!((made.named.len(), made.freed.len()), (0, 1));
        assert_eq!(
            (made.removed.len(), made.history.len()),
            (0, 0),
            "the record replaces the task"
        );
        assert!(!made.grows);
    }

    #[test]
    fn several_postponements_of_one_task_fold_into_the_last() {
        let first = task(number(1)).build();
        let (second, once) = postpone(&first, at(5));
        let (_, twice) = postpone(&second, at(9));
        let made = arguments_of(vec![once, twice]);
        assert_eq!(made.postponed.len(), 3);
        let at_nine = at(9).as_millis().to_string();
        assert_eq!(made.postponed.arguments().next(), Some(at_nine.as_bytes()));
    }

    #[test]
    fn settling_a_letter_of_unknown_outcome_does_not_change_the_task() {
        let task = task(number(1)).key("a").build();
        let fire_id = task.fire().id;
        let forget = Change::DeleteLetter { fire_id, namespace: shop() };
        let record = FireRecord::of(&task, FireEnd::Done, NOW);
        let detached = Prior::of(&task).in_state(TaskState::Firing);
        let settled = Change::Settle { record, next: None, was: detached };
        let Change::Dead { letter, .. } = die(&task, NOW, None) else { unreachable!() };
        let dead = Change::Dead { letter, next: None, was: detached };
        for change in [settled, dead] {
            let made = arguments_of(vec![forget.clone(), change]);
            assert_eq!((made.ended.len(), made.removed.len()), (0, 0));
            assert_eq!((made.freed_if.len(), made.freed.len()), (0, 0));
            assert_eq!(made.history.len(), 2);
        }
    }

    #[test]
    fn a_replacement_names_the_new_task() {
        let [old, new] = [1, 2].map(|count| task(number(count)).key("a").build());
        let made = arguments_of(vec![settle(&old, FireEnd::Replaced, NOW), Change::Put(new)]);
        assert_eq!((made.named.len(), made.freed.len(), made.freed_if.len()), (2, 0, 0));
        assert!(made.grows);
    }

    #[test]
    fn a_callback_does_not_count_as_growth() {
        let [ended, mut callback] = [1, 2].map(|count| task(number(count)).build());
        let callback_of = Some(ended.fire().id);
        let definition = NewTask { callback_of, ..NewTask::clone(&callback.definition) };
        callback.definition = definition.into();
        let done = settle(&ended, FireEnd::Done, NOW);
        let made = arguments_of(vec![done, Change::Put(callback)]);
        assert_eq!((made.due.len(), made.grows), (3, false));
    }

    #[test]
    fn history_is_split_into_pieces_of_limited_size() {
        let tasks: Vec<_> = (0..2500).map(|count| task(number(count)).build()).collect();
        let done = |task| settle(task, FireEnd::Done, NOW);
        let made = arguments_of(tasks.iter().map(done).collect());
        assert_eq!(made.ages.len(), 2 * 3);
        assert_eq!(made.fires.len(), 0, "the id leads to each of them");
        assert_eq!((made.ends.len(), made.keyed.len()), (2 * 3, 0), "a piece has one group");
        let bytes: usize = made.ends.arguments().map(<[u8]>::len).sum();
        assert!(bytes < 2500 * codec::FIRE_BYTES + 3 * 50, "{bytes} bytes");
    }

    #[test]
    fn fires_of_a_batch_are_listed_by_namespace_and_end_and_those_with_keys_by_key() {
        let tasks: Vec<_> = (0..9).map(|count| task(number(count)).key("a").build()).collect();
        let mut changes: Vec<_> =
            tasks[..6].iter().map(|task| settle(task, FireEnd::Done, NOW)).collect();
        changes.extend(tasks[6..].iter().map(|task| die(task, NOW, None)));
        let made = arguments_of(changes);
        assert_eq!((made.ages.len(), made.ends.len(), made.keyed.len()), (2, 2 * 2, 2 * 9));
        let keyed: Vec<_> = made.keyed.arguments().skip(1).step_by(2).collect();
        assert!(keyed.is_sorted());
    }
}
