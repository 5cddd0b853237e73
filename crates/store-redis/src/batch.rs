//! Batches: what many changes, made in their order, come down to.
//!
//! In: a batch. Out: the sections that `apply.lua` makes with one command for many tasks. A task, a name, a letter or
//! a record that several changes are about is written once, as the last of them leaves it; so the
//! sections may be made in any order, and the script need not look at values.
//! Invariant: what depends on what Redis has (is the task there, does the name still lead to it) is decided in the
//! script; everything else here.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::sync::Arc;

use punctual_core::{
    DeadLetter, Epoch, FireEnd, FireId, FireRecord, Namespace, Task, TaskId, TaskState, Timestamp,
};
use punctual_store::{Batch, BatchNo, Change, Counts, Head, count};

use crate::codec::{self, Postponement};

/// Fires in one piece of history: a sweep deletes a piece in one go.
const PIECE_FIRES_MAX: usize = 1000;

/// A list of arguments in one buffer.
#[derive(Debug, Default)]
pub(crate) struct ArgumentList {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl ArgumentList {
    fn push(&mut self, argument: &[u8]) {
        self.write(|out| out.extend_from_slice(argument));
    }

    fn push_number(&mut self, number: impl Into<i128>) {
        self.push(number.into().to_string().as_bytes());
    }

    fn write(&mut self, argument: impl FnOnce(&mut Vec<u8>)) {
        argument(&mut self.bytes);
        self.ends.push(self.bytes.len());
    }

    pub(crate) const fn len(&self) -> usize {
        self.ends.len()
    }

    pub(crate) const fn bytes(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn arguments(&self) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, end)| &self.bytes[start..*end])
    }
}

/// The sections of a batch, in the order of `apply.lua`.
#[derive(Debug, Default)]
pub(crate) struct BatchArguments {
    back: ArgumentList,
    back_fires: ArgumentList,
    gone: ArgumentList,
    ended: ArgumentList,
    due: ArgumentList,
    paused: ArgumentList,
    was_paused: ArgumentList,
    was_due: ArgumentList,
    postponed: ArgumentList,
    named: ArgumentList,
    unnamed: ArgumentList,
    unnamed_if: ArgumentList,
    unnamed_from: ArgumentList,
    letters: ArgumentList,
    dead: ArgumentList,
    dead_ages: ArgumentList,
    redriven: ArgumentList,
    redriven_from: ArgumentList,
    history: ArgumentList,
    fires: ArgumentList,
    ages: ArgumentList,
    counts: ArgumentList,
    /// Whether there are new tasks, which need room.
    pub(crate) grows: bool,
}

impl BatchArguments {
    /// What a batch of an epoch comes down to.
    pub(crate) fn of(epoch: Epoch, batch: Batch) -> Self {
        let mut folded = FoldedBatch::default();
        for change in batch.changes {
            folded.add(Arc::unwrap_or_clone(change));
        }
        folded.write(epoch, batch.number)
    }

    pub(crate) const fn all(&self) -> [&ArgumentList; 22] {
        [
            &self.back,
            &self.back_fires,
            &self.gone,
            &self.ended,
            &self.due,
            &self.paused,
            &self.was_paused,
            &self.was_due,
            &self.postponed,
            &self.named,
            &self.unnamed,
            &self.unnamed_if,
            &self.unnamed_from,
            &self.letters,
            &self.dead,
            &self.dead_ages,
            &self.redriven,
            &self.redriven_from,
            &self.history,
            &self.fires,
            &self.ages,
            &self.counts,
        ]
    }

    pub(crate) fn bytes(&self) -> usize {
        self.all().iter().map(|section| section.bytes()).sum()
    }

    pub(crate) fn arguments(&self) -> usize {
        self.all().iter().map(|section| section.len()).sum()
    }
}

/// How a task stands after the changes so far.
#[derive(Debug)]
enum FoldedTask {
    /// Filed; a fresh one was not there before.
    Filed { task: Box<Task>, fresh: bool },
    /// Due later, if it is there.
    Postponed(Postponement),
    /// Gone.
    Ended,
}

impl FoldedTask {
    /// When it is due, as far as that is known.
    fn fire_at(&self, id: TaskId) -> Timestamp {
        match self {
            Self::Filed { task, .. } => task.fire_at,
            Self::Postponed(late) => late.fire_at,
            Self::Ended => id.due(),
        }
    }
}

/// Where a name leads after the changes so far.
#[derive(Debug)]
enum FoldedName {
    /// To what was filed in this batch.
    To(Box<Head>),
    /// Nowhere.
    Free,
    /// Nowhere, if it led to one of these.
    FreeFrom(Vec<TaskId>),
}

/// What becomes of a letter.
#[derive(Debug)]
enum FoldedLetter {
    Kept(Box<DeadLetter>),
    Gone(Namespace),
}

/// A map that remembers in which order its keys came, so that the same batch makes the same bytes.
#[derive(Debug)]
struct InsertionMap<K, V> {
    places: HashMap<K, usize>,
    items: Vec<(K, V)>,
}

impl<K, V> Default for InsertionMap<K, V> {
    fn default() -> Self {
        Self { places: HashMap::new(), items: Vec::new() }
    }
}

impl<K: Hash + Eq + Clone, V> InsertionMap<K, V> {
    fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        self.places.get(key).map(|place| &mut self.items[*place].1)
    }

    fn set(&mut self, key: K, value: V) {
        match self.places.entry(key.clone()) {
            Entry::Occupied(place) => self.items[*place.get()].1 = value,
            Entry::Vacant(place) => {
                place.insert(self.items.len());
                self.items.push((key, value));
            }
        }
    }
}

#[derive(Debug, Default)]
struct FoldedBatch {
    tasks: InsertionMap<TaskId, FoldedTask>,
    /// Tasks that ended and were redriven.
    back: Vec<TaskId>,
    names: InsertionMap<Vec<u8>, FoldedName>,
    letters: InsertionMap<FireId, FoldedLetter>,
    records: InsertionMap<FireId, FireRecord>,
    counts: InsertionMap<Namespace, Counts>,
}

impl FoldedBatch {
    fn add(&mut self, change: Change) {
        if let Some((namespace, moved)) = count(&change) {
            match self.counts.get_mut(namespace) {
                Some(counts) => counts.add(moved),
                None => self.counts.set(namespace.clone(), moved),
            }
        }
        match change {
            Change::Put(task) => self.file(task, true),
            Change::Refile { task, .. } => self.file(task, false),
            Change::Postpone { id, fire_at, version } => {
                self.postpone(id, Postponement { fire_at, version });
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
                self.letters.set(fire_id, FoldedLetter::Gone(namespace));
                self.back.push(task.id);
                self.file(task, false);
            }
            Change::Forget { fire_id, namespace } => {
                self.letters.set(fire_id, FoldedLetter::Gone(namespace));
            }
        }
    }

    fn file(&mut self, task: Task, fresh: bool) {
        if let Some(name) = name(&task.definition.namespace, task.definition.key.as_ref()) {
            self.names.set(name, FoldedName::To(Box::new(Head::of(&task))));
        }
        // What this batch put and then files differently was not there before it either.
        let fresh = fresh
            || matches!(self.tasks.get_mut(&task.id), Some(FoldedTask::Filed { fresh: true, .. }));
        self.tasks.set(task.id, FoldedTask::Filed { task: Box::new(task), fresh });
    }

    fn postpone(&mut self, id: TaskId, late: Postponement) {
        match self.tasks.get_mut(&id) {
            Some(FoldedTask::Filed { task, .. }) => {
                task.fire_at = late.fire_at;
                task.nominal_at = late.fire_at;
                task.version = late.version;
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
            Some(FoldedTask::Postponed(earlier)) => *earlier = late,
            None => self.tasks.set(id, FoldedTask::Postponed(late)),
        }
    }

    /// A fire has ended: its task goes on as it is told, or ends. One whose fire stood overlapping of it is not touched.
    fn end_fire(&mut self, record: &FireRecord, next: Option<Task>, was: TaskState) {
        match next {
            Some(task) => self.file(task, false),
            None if was == TaskState::Firing => {}
            None => self.end(record),
        }
    }

    fn end(&mut self, record: &FireRecord) {
        let id = record.fire_id.task;
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

    /// Whether a record can stand in the place of its task: the id leads to its fire, and the task has ended.
    fn in_place(&mut self, fire_id: FireId) -> bool {
        codec::is_plain(fire_id)
            && matches!(self.tasks.get_mut(&fire_id.task), Some(FoldedTask::Ended))
    }

    fn write(mut self, epoch: Epoch, number: BatchNo) -> BatchArguments {
        let mut sections = BatchArguments::default();
        for id in &self.back {
            sections.back.push(&codec::id(*id));
            sections.back_fires.push(&codec::fire(FireId { task: *id, nominal_at: id.due() }));
        }
        let records = std::mem::take(&mut self.records.items);
        let placed: Vec<bool> =
            records.iter().map(|(fire_id, _)| self.in_place(*fire_id)).collect();
        let size = write_history(&mut sections, &records, &placed, epoch, number);
        let in_place = records.iter().zip(&placed).filter(|(_, placed)| **placed);
        let in_place: HashSet<TaskId> = in_place.map(|((fire, _), _)| fire.task).collect();
        // By time, as they stand in the sorted set: neighbours are found in the cache of whoever files them.
        self.tasks.items.sort_by_key(|(id, folded)| folded.fire_at(*id));
        for (id, folded) in &self.tasks.items {
            write_task(&mut sections, *id, folded, in_place.contains(id));
        }
        for (name, leads) in &self.names.items {
            write_name(&mut sections, name, leads);
        }
        for (fire_id, letter) in &self.letters.items {
            write_letter(&mut sections, *fire_id, letter);
        }
        for (namespace, counts) in &self.counts.items {
            for (letter, by) in codec::by_letter(counts) {
                if by != 0 {
                    let namespace = namespace.as_str();
                    sections.counts.write(|out| codec::put_count_field(out, namespace, letter));
                    sections.counts.push_number(by);
                }
            }
        }
        if size > 0 {
            sections.counts.push(codec::HISTORY_BYTES_FIELD);
            sections.counts.push_number(size);
        }
        sections
    }
}

fn name(namespace: &Namespace, key: Option<&punctual_core::TaskKey>) -> Option<Vec<u8>> {
    let key = key?.as_str();
    let mut name = Vec::with_capacity(namespace.as_str().len() + 1 + key.len());
    codec::put_name(&mut name, namespace.as_str(), key);
    Some(name)
}

fn write_task(sections: &mut BatchArguments, id: TaskId, folded: &FoldedTask, in_place: bool) {
    let id = codec::id(id);
    match folded {
        FoldedTask::Filed { task, fresh } => {
            let paused = codec::is_paused(task);
            let (index, was) = match paused {
                true => (&mut sections.paused, &mut sections.was_due),
                false => (&mut sections.due, &mut sections.was_paused),
            };
            index.push_number(task.fire_at.as_millis());
            index.push(&id);
            index.write(|out| codec::put_task(out, task));
            if !fresh {
                was.push(&id);
            }
            sections.grows |= fresh;
        }
        FoldedTask::Postponed(late) => {
            sections.postponed.push_number(late.fire_at.as_millis());
            sections.postponed.push(&id);
            sections.postponed.write(|out| codec::put_postponement(out, *late));
        }
        // Its record says that it has ended.
        FoldedTask::Ended if in_place => {}
        FoldedTask::Ended => sections.gone.push(&id),
    }
}

fn write_name(sections: &mut BatchArguments, name: &[u8], leads: &FoldedName) {
    match leads {
        FoldedName::To(head) => {
            sections.named.push(name);
            sections.named.write(|out| codec::put_head(out, head));
        }
        FoldedName::Free => sections.unnamed.push(name),
        FoldedName::FreeFrom(ids) => {
            for id in ids {
                sections.unnamed_if.push(name);
                sections.unnamed_from.push(&codec::id(*id));
            }
        }
    }
}

fn write_letter(sections: &mut BatchArguments, fire_id: FireId, letter: &FoldedLetter) {
    let place = |out: &mut Vec<u8>, namespace| codec::put_letter_member(out, namespace, fire_id);
    match letter {
        FoldedLetter::Kept(letter) => {
            let namespace = &letter.task.definition.namespace;
            sections.letters.push(&codec::fire(fire_id));
            sections.letters.write(|out| punctual_store::codec::put_letter(out, letter));
            sections.dead.push(b"0");
            sections.dead.write(|out| place(out, namespace));
            sections.dead_ages.push_number(letter.died_at.as_millis());
            sections.dead_ages.write(|out| place(out, namespace));
        }
        FoldedLetter::Gone(namespace) => {
            sections.redriven.push(&codec::fire(fire_id));
            sections.redriven_from.write(|out| place(out, namespace));
        }
    }
}

/// Writes the records, in the place of their tasks or beside them, and the pieces that name them; says how many
/// bytes they are.
fn write_history(
    sections: &mut BatchArguments,
    records: &[(FireId, FireRecord)],
    placed: &[bool],
    epoch: Epoch,
    batch: BatchNo,
) -> u64 {
    let mut size = 0;
    let pieces = records.chunks(PIECE_FIRES_MAX).zip(placed.chunks(PIECE_FIRES_MAX));
    for (number, (piece, placed)) in (0..).zip(pieces) {
        let before = sections.history.bytes() + sections.ended.bytes();
        let mut ended_at = Timestamp::EPOCH;
        for ((fire_id, record), placed) in piece.iter().zip(placed) {
            write_record(sections, *fire_id, record, *placed);
            ended_at = ended_at.max(record.ended_at);
        }
        let bytes = sections.history.bytes() + sections.ended.bytes() - before;
        size += bytes as u64;
        sections.ages.push_number(ended_at.as_millis());
        sections.ages.write(|out| {
            let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
            codec::put_piece_header(out, epoch, batch, number, bytes);
            for (fire_id, _) in piece {
                out.extend_from_slice(&codec::fire(*fire_id));
            }
        });
    }
    size
}

fn write_record(sections: &mut BatchArguments, fire_id: FireId, record: &FireRecord, placed: bool) {
    let fire = codec::fire(fire_id);
    if placed {
        sections.ended.push(&codec::id(fire_id.task));
        sections.ended.write(|out| codec::put_ended(out, record));
        return;
    }
    sections.history.push(&fire);
    sections.history.write(|out| codec::put_record(out, record));
    if !codec::is_plain(fire_id) {
        sections.fires.push(b"0");
        sections.fires.push(&fire);
    }
}

#[cfg(test)]
mod tests {
    use punctual_store::conformance::fixtures::{
        NOW, at, die, epoch, id, partition, postpone, settle, shop, task,
    };

    use super::*;

    fn sections(changes: Vec<Change>) -> BatchArguments {
        BatchArguments::of(epoch(1), Batch::new(BatchNo::FIRST, changes))
    }

    fn number(count: u64) -> TaskId {
        id(at(count), partition(0), epoch(1), count)
    }

    #[test]
    fn a_task_put_and_settled_in_one_batch_leaves_its_record_only() {
        let task = task(number(1)).key("a").build();
        let made = sections(vec![Change::Put(task.clone()), settle(&task, FireEnd::Done, NOW)]);
        assert_eq!((made.due.len(), made.ended.len()), (0, 2));
        assert_eq!((made.named.len(), made.unnamed.len()), (0, 1));
        assert_eq!((made.gone.len(), made.history.len()), (0, 0), "it stands in its place");
        assert!(!made.grows);
    }

    #[test]
    fn postponements_of_one_task_come_down_to_the_last() {
        let first = task(number(1)).build();
        let (second, once) = postpone(&first, at(5));
        let (_, twice) = postpone(&second, at(9));
        let made = sections(vec![once, twice]);
        assert_eq!(made.postponed.len(), 3);
        let at_nine = at(9).as_millis().to_string();
        assert_eq!(made.postponed.arguments().next(), Some(at_nine.as_bytes()));
    }

    #[test]
    fn a_letter_whose_end_is_known_later_does_not_touch_the_task() {
        let task = task(number(1)).key("a").build();
        let fire_id = task.fire().id;
        let forget = Change::Forget { fire_id, namespace: shop() };
        let record = FireRecord::of(&task, FireEnd::Done, NOW);
        let settled = Change::Settle { record, next: None, was: TaskState::Firing };
        let Change::Dead { letter, .. } = die(&task, NOW, None) else { unreachable!() };
        let dead = Change::Dead { letter, next: None, was: TaskState::Firing };
        for change in [settled, dead] {
            let made = sections(vec![forget.clone(), change]);
            assert_eq!((made.ended.len(), made.gone.len()), (0, 0));
            assert_eq!((made.unnamed_if.len(), made.unnamed.len()), (0, 0));
            assert_eq!(made.history.len(), 2);
        }
    }

    #[test]
    fn a_replacement_names_the_new_task_whoever_had_the_name() {
        let [old, new] = [1, 2].map(|count| task(number(count)).key("a").build());
        let made = sections(vec![settle(&old, FireEnd::Replaced, NOW), Change::Put(new)]);
        assert_eq!((made.named.len(), made.unnamed.len(), made.unnamed_if.len()), (2, 0, 0));
        assert!(made.grows);
    }

    #[test]
    fn history_is_in_pieces_that_a_sweep_can_delete() {
        let tasks: Vec<_> = (0..2500).map(|count| task(number(count)).build()).collect();
        let done = |task| settle(task, FireEnd::Done, NOW);
        let made = sections(tasks.iter().map(done).collect());
        assert_eq!(made.ages.len(), 2 * 3);
        assert_eq!(made.fires.len(), 0, "the id leads to each of them");
        let last = made.ages.arguments().last().map(<[u8]>::len);
        assert_eq!(last, Some(codec::PIECE_HEADER_BYTES + 500 * codec::FIRE_BYTES));
    }
}
