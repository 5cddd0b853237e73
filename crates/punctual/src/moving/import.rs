//! `punctual import`: puts what an export has into a store.
//!
//! In: a file. Out: tasks, letters and records in the store, exactly as they stood; and how many of each. Lines are read, and written in
//! batches, some thousands at a time.
//! Invariants: nothing doubles, however often it is done and wherever it broke off: a task keeps its id, or gets one that follows from it;
//! whatever is there under its id is left as it is. No id is ever made again: the store's epochs are above all that came.
//! Not here: what the lines look like (`form`), how partitions are held and written to (`seats`).

#![expect(clippy::print_stderr, reason = "this is what a person reads")]

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use punctual_core::{
    DeadLetter, Epoch, FireEnd, FireId, FireRecord, Namespace, NewTask, PartitionId, Partitions,
    Sequence, Task, TaskId, TaskKey, TaskState, Timestamp, partition_of,
};
use punctual_store::{Batch, Change, Head};
use xxhash_rust::xxh3::xxh3_64;

use super::file::Reader;
use super::form::{Line, letter_of, record_of, task_of};
use super::house::{House, Missing};
use super::seats::Seats;
use super::{Where, bar, now};

/// Lines that are worked on together, and their weight: what is in memory at once.
const TOGETHER_MAX: usize = 4096;
const TOGETHER_WEIGHT_MAX: usize = 8 << 20;
/// Changes of one batch.
const CHANGES_MAX: usize = 1000;
/// Conflicts that are named; further ones are counted.
const NAMED_MAX: u64 = 20;
/// Set in the sequence of an id that follows from another, which no owner counts up to.
const FOLLOWS: u64 = 1 << 41;

#[derive(Debug, clap::Args)]
pub(crate) struct Import {
    #[command(flatten)]
    place: Where,

    /// The file to read; without it the import comes from the standard input
    #[arg(long = "in", value_name = "FILE")]
    file: Option<PathBuf>,

    /// The partitions of a store that is not there yet; as many as the export had if nobody says
    #[arg(long, value_name = "COUNT")]
    partitions: Option<u16>,

    /// Replace living tasks whose keys are taken, instead of leaving them
    #[arg(long)]
    replace: bool,
}

/// Does it.
pub(crate) async fn import(flags: Import) -> anyhow::Result<()> {
    let (source, length): (Box<dyn BufRead>, _) = match &flags.file {
        None => (Box::new(BufReader::new(std::io::stdin())), None),
        Some(path) => {
            let file =
                File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
            let length = file.metadata().ok().map(|file| file.len());
            (Box::new(BufReader::new(file)), length)
        }
    };
    let (reader, header) = Reader::begin(source)?;
    let partitions = Partitions::new(flags.partitions.unwrap_or(header.partitions))?;
    let house = House::open(&flags.place, Missing::Make(partitions)).await?;
    house.warnings.iter().for_each(|warning| eprintln!("{warning}"));
    if flags.partitions.is_some_and(|asked| asked != house.partitions.count()) {
        bail!("{} has {} partitions already", house.name, house.partitions.count());
    }
    let epoch_max = Epoch::new(header.epoch_max).context("the header has no epoch")?;
    let seats = match Seats::take(&house, epoch_max).await {
        Ok(seats) => seats,
        Err(error) => {
            house.close().await?;
            return Err(error);
        }
    };
    let mut work = Work {
        kept: header.partitions == house.partitions.count(),
        exported_at: header.exported_at.0,
        replace: flags.replace,
        house: &house,
        seats,
        items: Vec::new(),
        weight: 0,
        names: HashSet::new(),
        done: Done::default(),
    };
    let read = work.read(reader, length).await;
    let done = work.done;
    work.seats.leave().await;
    house.close().await?;
    done.tell();
    read.context(
        "what is told above was imported. Nothing doubles if a whole file is imported now",
    )?;
    match done.conflicts {
        0 => Ok(()),
        count => bail!(
            "{count} tasks were not imported: their keys name other living tasks. --replace replaces those"
        ),
    }
}

/// What was done.
#[derive(Debug, Clone, Copy, Default)]
struct Done {
    tasks: u64,
    dead: u64,
    fires: u64,
    there: u64,
    ended: u64,
    new_ids: u64,
    replaced: u64,
    conflicts: u64,
    receipts: u64,
}

impl Done {
    fn tell(&self) {
        let Self { tasks, dead, fires, .. } = self;
        eprintln!("imported {tasks} tasks, {dead} dead letters, {fires} records of fires");
        for (count, what) in [
            (self.there, "were there already, and were left as they are"),
            (self.ended, "have ended here since the export, and were left out"),
            (
                self.new_ids,
                "lines are of tasks with a new id, because their partition is another here",
            ),
            (self.replaced, "living tasks were replaced"),
            (
                self.receipts,
                "receipts of idempotency keys were left out: they belong to partitions that are others here",
            ),
        ] {
            if count > 0 {
                eprintln!("{count} {what}");
            }
        }
    }
}

/// One line, with the ids that it has here.
#[derive(Debug)]
enum Item {
    Task(Task),
    Letter(DeadLetter),
    Fire(FireRecord),
}

struct Work<'a> {
    house: &'a House,
    seats: Seats<'a>,
    exported_at: Timestamp,
    /// Whether all ids are kept, because there are as many partitions.
    kept: bool,
    replace: bool,
    items: Vec<Item>,
    weight: usize,
    /// What the items are about: no two of the same.
    names: HashSet<String>,
    done: Done,
}

impl Work<'_> {
    /// Reads to the end. What was read before a fault is imported all the same.
    async fn read(
        &mut self,
        mut reader: Reader<Box<dyn BufRead>>,
        length: Option<u64>,
    ) -> anyhow::Result<()> {
        let bar = bar(length, "importing");
        let read = loop {
            let item = match reader.next() {
                Ok(Some(line)) => self.item(line),
                Ok(None) => break Ok(()),
                Err(fault) => break Err(fault),
            };
            match item.with_context(|| format!("line {}", reader.number())) {
                Ok(item) => self.add(item).await?,
                Err(fault) => break Err(fault),
            }
            bar.set_position(if length.is_some() { reader.bytes } else { reader.number() });
        };
        bar.finish_and_clear();
        self.flush().await?;
        read
    }

    /// A line as it is here; `None` if it is nothing here.
    fn item(&mut self, line: Line) -> anyhow::Result<Option<Item>> {
        let item = match line {
            Line::Task(form) => {
                let task = task_of(*form)?;
                let id =
                    self.id_here(task.id, &task.definition.namespace, task.definition.key.as_ref());
                id.map(|id| Item::Task(Task { id, ..task }))
            }
            Line::Dead(form) => {
                let letter = letter_of(*form)?;
                let definition = &letter.task.definition;
                let id =
                    self.id_here(letter.task.id, &definition.namespace, definition.key.as_ref());
                id.map(|id| Item::Letter(DeadLetter { task: Task { id, ..letter.task }, ..letter }))
            }
            Line::Fire(form) => {
                let record = record_of(*form)?;
                let id = self.id_here(record.fire_id.task, &record.namespace, record.key.as_ref());
                id.map(|task| {
                    let fire_id = FireId { task, ..record.fire_id };
                    Item::Fire(FireRecord { fire_id, ..record })
                })
            }
            Line::Header(_) | Line::End(_) => None,
        };
        if let Some(Item::Task(task)) = &item
            && matches!(task.state, TaskState::Firing | TaskState::Cancelled)
        {
            bail!("state: a living task has another");
        }
        Ok(item)
    }

    /// The id of a task here: the one it has, if that leads to where it belongs; else one that follows from it.
    fn id_here(
        &mut self,
        id: TaskId,
        namespace: &Namespace,
        key: Option<&TaskKey>,
    ) -> Option<TaskId> {
        if self.kept {
            return Some(id);
        }
        if namespace.is_of_receipts() {
            self.done.receipts += 1;
            return None;
        }
        let here = id_among(id, namespace, key, self.house.partitions);
        self.done.new_ids += u64::from(here != id);
        Some(here)
    }

    async fn add(&mut self, item: Option<Item>) -> anyhow::Result<()> {
        let Some(item) = item else { return Ok(()) };
        let mut names = Vec::new();
        let weight = match &item {
            Item::Task(task) => {
                names.push(format!("t{}", task.id));
                let definition = &task.definition;
                let name = |key: &TaskKey| format!("k{}\0{}", definition.namespace, key.as_str());
                names.extend(definition.key.as_ref().map(name));
                definition.payload.bytes().len()
            }
            Item::Letter(letter) => {
                names.push(format!("f{}", letter.fire_id()));
                if !went_on(letter) {
                    names.push(format!("t{}", letter.task.id));
                }
                letter.task.definition.payload.bytes().len()
            }
            Item::Fire(_) => 0,
        };
        // Of two that are about the same, the second is decided when the first is there.
        let again = names.iter().any(|name| self.names.contains(name));
        let full = self.items.len() >= TOGETHER_MAX || self.weight >= TOGETHER_WEIGHT_MAX;
        if again || full {
            self.flush().await?;
        }
        self.names.extend(names);
        self.weight += weight;
        self.items.push(item);
        Ok(())
    }

    /// Writes what was gathered.
    async fn flush(&mut self) -> anyhow::Result<()> {
        self.names.clear();
        self.weight = 0;
        let mut groups: BTreeMap<PartitionId, Vec<Item>> = BTreeMap::new();
        for item in self.items.drain(..) {
            let id = match &item {
                Item::Task(task) => task.id,
                Item::Letter(letter) => letter.task.id,
                Item::Fire(record) => record.fire_id.task,
            };
            groups.entry(id.partition()).or_default().push(item);
        }
        for (partition, items) in groups {
            self.raise(partition, &items).await?;
            self.write(partition, items).await?;
        }
        self.seats.renew_when_due().await
    }

    /// A broker that took over while a running cluster was exported has made ids of a later epoch than the header says.
    async fn raise(&mut self, partition: PartitionId, items: &[Item]) -> anyhow::Result<()> {
        let epoch = items.iter().map(|item| match item {
            Item::Task(task) => task.id.epoch(),
            Item::Letter(letter) => letter.task.id.epoch(),
            Item::Fire(record) => record.fire_id.task.epoch(),
        });
        let epoch = epoch.max().unwrap_or(Epoch::NONE);
        self.seats.raise(partition, epoch).await
    }

    async fn write(&mut self, partition: PartitionId, items: Vec<Item>) -> anyhow::Result<()> {
        let sight = self.look(partition, &items).await?;
        let mut changes = Vec::new();
        let mut weight = 0;
        // What is not written does not count as done.
        let mut written = self.done;
        for item in items {
            let before = self.done;
            let decided = self.decide(item, &sight).await?;
            let more: usize = decided.iter().map(Change::weight).sum();
            let full =
                changes.len() + decided.len() > CHANGES_MAX || weight + more > Batch::WEIGHT_MAX;
            if full && !changes.is_empty() {
                let applied = self.seats.apply(partition, std::mem::take(&mut changes)).await;
                applied.inspect_err(|_| self.done = written)?;
                (written, weight) = (before, 0);
            }
            changes.extend(decided);
            weight += more;
        }
        if !changes.is_empty() {
            let applied = self.seats.apply(partition, changes).await;
            applied.inspect_err(|_| self.done = written)?;
        }
        Ok(())
    }

    /// What is there of what the items are about.
    async fn look(&mut self, partition: PartitionId, items: &[Item]) -> anyhow::Result<Sight> {
        let mut sight = Sight { used: self.seats.is_used(partition), ..Sight::default() };
        let mut ids = Vec::new();
        let mut keys: HashMap<Namespace, Vec<TaskKey>> = HashMap::new();
        for item in items {
            match item {
                Item::Task(task) => {
                    ids.push(task.id);
                    if let Some(key) = &task.definition.key {
                        let namespace = task.definition.namespace.clone();
                        keys.entry(namespace).or_default().push(key.clone());
                    }
                }
                Item::Letter(letter) => ids.push(letter.task.id),
                Item::Fire(_) => {}
            }
        }
        let found = self.house.get(partition, &ids).await?;
        sight.living = found.into_iter().flatten().map(|task| task.id).collect();
        for (namespace, keys) in keys {
            let heads = self.house.find(partition, &namespace, &keys).await?;
            for (key, head) in keys.into_iter().zip(heads) {
                if let Some(head) = head {
                    sight.named.insert((namespace.clone(), key), head);
                }
            }
        }
        Ok(sight)
    }

    /// What is to be written for one item. Made together, or not at all.
    async fn decide(&mut self, item: Item, sight: &Sight) -> anyhow::Result<Vec<Change>> {
        match item {
            Item::Task(task) => self.decide_task(task, sight).await,
            Item::Letter(letter) => self.decide_letter(letter, sight).await,
            Item::Fire(record) => {
                self.done.fires += 1;
                // Beside its task, whatever has become of that.
                Ok(vec![Change::Settle { record, next: None, was: TaskState::Firing }])
            }
        }
    }

    async fn decide_task(&mut self, task: Task, sight: &Sight) -> anyhow::Result<Vec<Change>> {
        if sight.living.contains(&task.id) {
            self.done.there += 1;
            return Ok(Vec::new());
        }
        if sight.used && self.ended_since(task.id).await? {
            self.done.ended += 1;
            return Ok(Vec::new());
        }
        let mut changes = Vec::new();
        let name = task.definition.key.clone().map(|key| (task.definition.namespace.clone(), key));
        if let Some(head) = name.and_then(|name| sight.named.get(&name)) {
            if !self.replace {
                self.conflict(&task);
                return Ok(Vec::new());
            }
            let other = self.house.get(task.id.partition(), &[head.id]).await?;
            if let Some(other) = other.into_iter().flatten().next() {
                let record = FireRecord::of(&other, FireEnd::Replaced, now());
                changes.push(Change::Settle { record, next: None, was: other.state });
                self.done.replaced += 1;
            }
        }
        self.done.tasks += 1;
        changes.push(Change::Put(task));
        Ok(changes)
    }

    async fn decide_letter(
        &mut self,
        letter: DeadLetter,
        sight: &Sight,
    ) -> anyhow::Result<Vec<Change>> {
        if sight.used && self.house.dead_letter(letter.fire_id()).await?.is_some() {
            self.done.there += 1;
            return Ok(Vec::new());
        }
        // A task that went on is not touched by its letter.
        if went_on(&letter) {
            self.done.dead += 1;
            return Ok(vec![Change::Dead { letter, next: None, was: TaskState::Firing }]);
        }
        if sight.living.contains(&letter.task.id) {
            self.done.there += 1;
            return Ok(Vec::new());
        }
        if sight.used && self.ended_since(letter.task.id).await? {
            self.done.ended += 1;
            return Ok(Vec::new());
        }
        self.done.dead += 1;
        // The task was, and has ended with its letter; its name may be another's by now, so it comes without one.
        let definition = NewTask { key: None, ..NewTask::clone(&letter.task.definition) };
        let was = TaskState::Scheduled;
        let task = Task { definition: Arc::new(definition), state: was, ..letter.task.clone() };
        Ok(vec![Change::Put(task), Change::Dead { letter, next: None, was }])
    }

    /// Whether a task that is not there was, after the export, and has ended.
    async fn ended_since(&self, id: TaskId) -> anyhow::Result<bool> {
        let newest = self.house.history(id, 1).await?;
        Ok(newest.first().is_some_and(|record| record.ended_at > self.exported_at))
    }

    fn conflict(&mut self, task: &Task) {
        self.done.conflicts += 1;
        if self.done.conflicts <= NAMED_MAX {
            let key = task.definition.key.as_ref().map_or("", TaskKey::as_str);
            let key = key.replace(char::is_control, " ");
            eprintln!("{}/{key} names another living task", task.definition.namespace);
        }
    }
}

/// Whether the task of a letter did not end with it. The same rule by which a letter is redriven.
fn went_on(letter: &DeadLetter) -> bool {
    letter.task.goes_on() || letter.task.resumes_at.is_some()
}

/// What is there already.
#[derive(Debug, Default)]
struct Sight {
    used: bool,
    living: HashSet<TaskId>,
    named: HashMap<(Namespace, TaskKey), Head>,
}

/// The id of a task in a store with so many partitions. The same id and name give the same, so that it is found when it is imported again.
fn id_among(
    id: TaskId,
    namespace: &Namespace,
    key: Option<&TaskKey>,
    partitions: Partitions,
) -> TaskId {
    let own = id.partition();
    let belongs = match key {
        Some(key) => partition_of(namespace, key, partitions),
        None if own.get() < partitions.count() => own,
        None => PartitionId::new(own.get() % partitions.count()).unwrap_or(PartitionId::FIRST),
    };
    if belongs == own {
        return id;
    }
    let number = (xxh3_64(&id.as_u128().to_be_bytes()) % FOLLOWS) | FOLLOWS;
    let sequence = Sequence::new(number).unwrap_or(Sequence::MAX);
    TaskId::new(id.due(), belongs, id.epoch(), sequence)
}

#[cfg(test)]
mod tests {
    use punctual_store::conformance::fixtures::{at, epoch, id, key, partition, shop};

    use super::*;

    #[test]
    fn an_id_is_kept_where_it_leads_to_the_right_partition_and_follows_from_itself_elsewhere() {
        let few = Partitions::new(2).unwrap();
        let unnamed = id(at(5), partition(1), epoch(3), 9);
        assert_eq!(id_among(unnamed, &shop(), None, few), unnamed);
        let beyond = id(at(5), partition(7), epoch(3), 9);
        let here = id_among(beyond, &shop(), None, few);
        assert_eq!((here.due(), here.partition(), here.epoch()), (at(5), partition(1), epoch(3)));
        assert_ne!(here, id_among(id(at(5), partition(7), epoch(3), 8), &shop(), None, few));
        assert_eq!(here, id_among(beyond, &shop(), None, few), "twice is the same");
        for name in ["a", "b", "c", "d"] {
            let belongs = partition_of(&shop(), &key(name), few);
            let here = id_among(unnamed, &shop(), Some(&key(name)), few);
            assert_eq!(here.partition(), belongs);
            assert_eq!(here == unnamed, belongs == partition(1), "{name}");
        }
    }
}
