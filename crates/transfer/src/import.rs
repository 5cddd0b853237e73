//! Import: writes everything in an export file to a store.
//!
//! Lines are read and written in batches of some thousands. Nothing is imported twice, however
//! often an import is repeated or interrupted: a task keeps its id, or gets one that is derived
//! from it, and a task that exists under its id is left alone. No id is ever assigned again: the
//! epochs of the store are raised above all epochs in the file. `leases` holds the partitions and
//! writes batches.

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
use punctual_store::{Batch, Change, Head, Prior, TaskStore as _};
use punctual_store_any::{PartitionCount, StoreLocation};
use xxhash_rust::xxh3::xxh3_64;

use crate::export::FIRES_MAX;
use crate::file::ExportReader;
use crate::format::{ExportLine, read_dead_letter, read_fire, read_task};
use crate::leases::ImportLeases;
use crate::store::TransferStore;
use crate::{OnEvent, TransferEvent, now};

/// How many lines, and how many bytes of payload, are in memory at once.
const GROUP_LINES_MAX: usize = 4096;
const GROUP_BYTES_MAX: usize = 8 << 20;
/// Changes of one batch.
const CHANGES_MAX: usize = 1000;
/// How many conflicts are named; further ones are only counted.
const NAMED_MAX: u64 = 20;
/// Marks the sequence of a derived id. No owner counts up to it.
const DERIVED: u64 = 1 << 41;

/// What to import, and where to.
#[derive(Debug)]
pub struct ImportOptions {
    /// The store to write. It is created if it does not exist.
    pub location: StoreLocation,
    /// Where the lines come from.
    pub input: ImportInput,
    /// The number of partitions of a new store. Without it, as many as the exported store had.
    pub partitions: Option<u16>,
    /// Whether a live task is replaced if an imported task has the same key.
    pub replace: bool,
}

/// Where an import is read from.
#[derive(Debug)]
pub enum ImportInput {
    /// The standard input of this process.
    Stdin,
    /// A file that [`crate::export`] wrote.
    File(PathBuf),
}

/// What an import did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ImportSummary {
    /// Tasks that were imported.
    pub tasks: u64,
    /// Dead letters that were imported.
    pub dead_letters: u64,
    /// Records of fires that were imported.
    pub fires: u64,
    /// Tasks and dead letters that existed already.
    pub existing: u64,
    /// Tasks that have ended in this store since the export, and were left out.
    pub ended: u64,
    /// Lines whose task has a new id, because it belongs to another partition in this store.
    pub new_ids: u64,
    /// Live tasks that were replaced.
    pub replaced: u64,
    /// Tasks that were not imported, because their key names another live task.
    pub conflicts: u64,
    /// Receipts of idempotency keys that were left out: they belong to a partition, and the store
    /// has another number of partitions.
    pub receipts: u64,
}

/// Imports a file. The summary is returned also if the import failed: it counts what was
/// written.
pub async fn import(
    options: ImportOptions,
    on_event: OnEvent<'_>,
) -> (ImportSummary, anyhow::Result<()>) {
    let mut summary = ImportSummary::default();
    let result = run(options, &mut summary, on_event).await;
    (summary, result)
}

async fn run(
    options: ImportOptions,
    summary: &mut ImportSummary,
    on_event: OnEvent<'_>,
) -> anyhow::Result<()> {
    let (source, length): (Box<dyn BufRead>, _) = match &options.input {
        ImportInput::Stdin => (Box::new(BufReader::new(std::io::stdin())), None),
        ImportInput::File(path) => {
            let file =
                File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
            let length = file.metadata().ok().map(|file| file.len());
            (Box::new(BufReader::new(file)), length)
        }
    };
    let (reader, header) = ExportReader::begin(source)?;
    let partitions = Partitions::new(options.partitions.unwrap_or(header.partitions))?;
    let wanted = PartitionCount::ExistingOr(partitions);
    let target = TransferStore::open(options.location, wanted, on_event).await?;
    if options.partitions.is_some_and(|wanted| wanted != target.partitions.count()) {
        let (name, count) = (&target.name, target.partitions.count());
        bail!("{name} has {count} partitions, which cannot be changed; leave --partitions out");
    }
    let epoch_max = Epoch::new(header.epoch_max).context("the header has no epoch")?;
    let leases = match ImportLeases::take(&target, epoch_max, on_event).await {
        Ok(leases) => leases,
        Err(error) => {
            target.close().await?;
            return Err(error);
        }
    };
    let mut importer = Importer {
        keeps_ids: header.partitions == target.partitions.count(),
        exported_at: header.exported_at.0,
        replace: options.replace,
        target: &target,
        leases,
        items: Vec::new(),
        payload_bytes: 0,
        subjects: HashSet::new(),
        summary: ImportSummary::default(),
        on_event,
    };
    let read = importer.read(reader, length).await;
    *summary = importer.summary;
    importer.leases.release(importer.on_event).await;
    target.close().await?;
    read.context("the import stopped early; import the complete file, nothing is imported twice")
}

/// One line, with the ids that it has in the target.
#[derive(Debug)]
enum ImportItem {
    Task(Task),
    Letter(DeadLetter),
    Fire(FireRecord),
}

struct Importer<'a, 'e> {
    target: &'a TransferStore,
    leases: ImportLeases<'a>,
    exported_at: Timestamp,
    /// Whether all ids stay the same, because the number of partitions is the same.
    keeps_ids: bool,
    replace: bool,
    items: Vec<ImportItem>,
    /// The size of all payloads in `items`.
    payload_bytes: usize,
    /// The tasks, keys and fires that `items` are about. No two items share one.
    subjects: HashSet<String>,
    summary: ImportSummary,
    on_event: OnEvent<'e>,
}

impl Importer<'_, '_> {
    /// Reads and imports all lines. If a line is damaged, the lines before it are imported.
    async fn read(
        &mut self,
        mut reader: ExportReader<Box<dyn BufRead>>,
        length: Option<u64>,
    ) -> anyhow::Result<()> {
        (self.on_event)(TransferEvent::Started { total: length });
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
            let done = if length.is_some() { reader.bytes } else { reader.number() };
            (self.on_event)(TransferEvent::Progress(done));
        };
        (self.on_event)(TransferEvent::Finished);
        self.flush().await?;
        read
    }

    /// Reads a line, and gives it the ids that it has in the target. Returns `None` for a line that
    /// is not imported.
    fn item(&mut self, line: ExportLine) -> anyhow::Result<Option<ImportItem>> {
        let item = match line {
            ExportLine::Task(exported) => {
                let task = read_task(*exported)?;
                self.target_task(task).map(ImportItem::Task)
            }
            ExportLine::Dead(exported) => {
                let letter = read_dead_letter(*exported)?;
                let task = self.target_task(letter.task);
                task.map(|task| ImportItem::Letter(DeadLetter { task, ..letter }))
            }
            ExportLine::Fire(exported) => {
                let record = read_fire(*exported)?;
                let key = record.key.as_ref();
                let id = self.target_id(record.fire_id.task, &record.namespace, key);
                let redriven_as =
                    record.redriven_as.map(|id| self.same_id(id, &record.namespace, key));
                id.map(|task| {
                    let fire_id = FireId { task, ..record.fire_id };
                    ImportItem::Fire(FireRecord { fire_id, redriven_as, ..record })
                })
            }
            ExportLine::Header(_) | ExportLine::End(_) => None,
        };
        if let Some(ImportItem::Task(task)) = &item
            && matches!(task.state, TaskState::Firing | TaskState::Cancelled)
        {
            bail!("state: a task in an export is scheduled, paused, done or dead");
        }
        Ok(item)
    }

    /// Returns a task with the ids that it has in the target. A redriven fire stays in the
    /// partition of the task that it belongs to. Returns `None` for a receipt that is left out.
    fn target_task(&mut self, mut task: Task) -> Option<Task> {
        let origin = task.redrive.as_mut().and_then(|redrive| redrive.origin.as_mut());
        let namespace = &task.definition.namespace;
        let key = origin.as_ref().map_or(&task.definition.key, |origin| &origin.key).clone();
        if let Some(origin) = origin {
            origin.fire_id.task = self.same_id(origin.fire_id.task, namespace, key.as_ref());
        }
        let id = self.target_id(task.id, namespace, key.as_ref())?;
        Some(Task { id, ..task })
    }

    /// Returns the id of a task that another line has.
    fn same_id(&self, id: TaskId, namespace: &Namespace, key: Option<&TaskKey>) -> TaskId {
        if self.keeps_ids {
            return id;
        }
        derive_id(id, namespace, key, self.target.partitions)
    }

    /// Returns the id of a task in the target: its own, if the task belongs to the same partition
    /// there, or one that is derived from it. Returns `None` for a receipt that is left out.
    fn target_id(
        &mut self,
        id: TaskId,
        namespace: &Namespace,
        key: Option<&TaskKey>,
    ) -> Option<TaskId> {
        // Every store has the partition of notices. Without its receipt a notice could be sent
        // twice.
        if self.keeps_ids || namespace.is_of_notice_receipts() {
            return Some(id);
        }
        if namespace.is_of_receipts() {
            self.summary.receipts += 1;
            return None;
        }
        let target_id = self.same_id(id, namespace, key);
        self.summary.new_ids += u64::from(target_id != id);
        Some(target_id)
    }

    async fn add(&mut self, item: Option<ImportItem>) -> anyhow::Result<()> {
        let Some(item) = item else { return Ok(()) };
        let mut subjects = Vec::new();
        let payload_bytes = match &item {
            ImportItem::Task(task) => {
                subjects.push(format!("t{}", task.id));
                let definition = &task.definition;
                let subject =
                    |key: &TaskKey| format!("k{}\0{}", definition.namespace, key.as_str());
                subjects.extend(definition.key.as_ref().map(subject));
                definition.payload.bytes().len()
            }
            ImportItem::Letter(letter) => {
                subjects.push(format!("f{}", letter.fire_id()));
                if !letter.task.continued() {
                    subjects.push(format!("t{}", letter.task.id));
                }
                letter.task.definition.payload.bytes().len()
            }
            ImportItem::Fire(_) => 0,
        };
        // Two lines about the same subject: the second is decided after the first is written.
        let again = subjects.iter().any(|subject| self.subjects.contains(subject));
        let full = self.items.len() >= GROUP_LINES_MAX || self.payload_bytes >= GROUP_BYTES_MAX;
        if again || full {
            self.flush().await?;
        }
        self.subjects.extend(subjects);
        self.payload_bytes += payload_bytes;
        self.items.push(item);
        Ok(())
    }

    /// Writes all items.
    async fn flush(&mut self) -> anyhow::Result<()> {
        self.subjects.clear();
        self.payload_bytes = 0;
        let mut groups: BTreeMap<PartitionId, Vec<ImportItem>> = BTreeMap::new();
        for item in self.items.drain(..) {
            let id = match &item {
                ImportItem::Task(task) => task.id,
                ImportItem::Letter(letter) => letter.task.id,
                ImportItem::Fire(record) => record.fire_id.task,
            };
            groups.entry(id.partition()).or_default().push(item);
        }
        for (partition, items) in groups {
            self.raise(partition, &items).await?;
            self.write(partition, items).await?;
        }
        self.leases.renew_when_due().await
    }

    /// Raises the epoch of a partition above those of the items. An export of a running cluster can
    /// contain ids of a later epoch than its header, if a broker took over meanwhile.
    async fn raise(&mut self, partition: PartitionId, items: &[ImportItem]) -> anyhow::Result<()> {
        let epoch = items.iter().map(|item| match item {
            ImportItem::Task(task) => task.id.epoch(),
            ImportItem::Letter(letter) => letter.task.id.epoch(),
            ImportItem::Fire(record) => record.fire_id.task.epoch(),
        });
        let epoch = epoch.max().unwrap_or(Epoch::NONE);
        self.leases.raise(partition, epoch).await
    }

    async fn write(
        &mut self,
        partition: PartitionId,
        items: Vec<ImportItem>,
    ) -> anyhow::Result<()> {
        let stored = self.look_up(partition, &items).await?;
        let mut changes = Vec::new();
        let mut weight = 0;
        // If a batch fails, only what was written before it is counted.
        let mut written = self.summary;
        for item in items {
            let before = self.summary;
            let decided = self.decide(item, &stored).await?;
            let more: usize = decided.iter().map(Change::weight).sum();
            let full =
                changes.len() + decided.len() > CHANGES_MAX || weight + more > Batch::WEIGHT_MAX;
            if full && !changes.is_empty() {
                let applied = self.leases.apply(partition, std::mem::take(&mut changes)).await;
                applied.inspect_err(|_| self.summary = written)?;
                (written, weight) = (before, 0);
            }
            changes.extend(decided);
            weight += more;
        }
        if !changes.is_empty() {
            let applied = self.leases.apply(partition, changes).await;
            applied.inspect_err(|_| self.summary = written)?;
        }
        Ok(())
    }

    /// Reads what the target has of the subjects of the items.
    async fn look_up(
        &mut self,
        partition: PartitionId,
        items: &[ImportItem],
    ) -> anyhow::Result<StoredState> {
        let mut stored =
            StoredState { used: self.leases.is_used(partition), ..StoredState::default() };
        let mut ids = Vec::new();
        let mut keys: HashMap<Namespace, Vec<TaskKey>> = HashMap::new();
        for item in items {
            match item {
                ImportItem::Task(task) => {
                    ids.push(task.id);
                    if let Some(key) = &task.definition.key {
                        let namespace = task.definition.namespace.clone();
                        keys.entry(namespace).or_default().push(key.clone());
                    }
                }
                ImportItem::Letter(letter) => ids.push(letter.task.id),
                ImportItem::Fire(_) => {}
            }
        }
        let found = self.target.store.get(partition, &ids).await?;
        stored.live = found.into_iter().flatten().map(|task| task.id).collect();
        for (namespace, keys) in keys {
            let heads = self.target.store.find(partition, &namespace, &keys).await?;
            for (key, head) in keys.into_iter().zip(heads) {
                if let Some(head) = head {
                    stored.by_key.insert((namespace.clone(), key), head);
                }
            }
        }
        Ok(stored)
    }

    /// Returns the changes of one item. They are written in one batch.
    async fn decide(
        &mut self,
        item: ImportItem,
        stored: &StoredState,
    ) -> anyhow::Result<Vec<Change>> {
        match item {
            ImportItem::Task(task) => self.decide_task(task, stored).await,
            ImportItem::Letter(letter) => self.decide_letter(letter, stored).await,
            ImportItem::Fire(record) => {
                self.summary.fires += 1;
                // A record is written independently of the state of its task.
                let was = Prior::apart(&record);
                Ok(vec![Change::Settle { record, next: None, was }])
            }
        }
    }

    async fn decide_task(
        &mut self,
        task: Task,
        stored: &StoredState,
    ) -> anyhow::Result<Vec<Change>> {
        if stored.live.contains(&task.id) {
            self.summary.existing += 1;
            return Ok(Vec::new());
        }
        if stored.used && self.task_ended_since(&task).await? {
            self.summary.ended += 1;
            return Ok(Vec::new());
        }
        let mut changes = Vec::new();
        let name = task.definition.key.clone().map(|key| (task.definition.namespace.clone(), key));
        if let Some(head) = name.and_then(|name| stored.by_key.get(&name)) {
            if !self.replace {
                self.conflict(&task);
                return Ok(Vec::new());
            }
            let other = self.target.store.get(task.id.partition(), &[head.id]).await?;
            if let Some(other) = other.into_iter().flatten().next() {
                let record = FireRecord::of(&other, FireEnd::Replaced, now());
                changes.push(Change::Settle { record, next: None, was: Prior::of(&other) });
                self.summary.replaced += 1;
            }
        }
        self.summary.tasks += 1;
        changes.push(Change::Put(task));
        Ok(changes)
    }

    async fn decide_letter(
        &mut self,
        letter: DeadLetter,
        stored: &StoredState,
    ) -> anyhow::Result<Vec<Change>> {
        let (partition, fire_id) = (letter.task.id.partition(), letter.fire_id());
        let stored_letters = if stored.used {
            self.target.store.dead_letters(partition, &[fire_id]).await?
        } else {
            Vec::new()
        };
        if stored_letters.iter().any(Option::is_some) {
            self.summary.existing += 1;
            return Ok(Vec::new());
        }
        // The letter of a task that continues does not change the task.
        if letter.task.continued() {
            if stored.used && self.fire_ended_since(fire_id).await? {
                self.summary.ended += 1;
                return Ok(Vec::new());
            }
            self.summary.dead_letters += 1;
            let was = Prior::of(&letter.task).in_state(TaskState::Firing);
            return Ok(vec![Change::Dead { letter, next: None, was }]);
        }
        if stored.live.contains(&letter.task.id) {
            self.summary.existing += 1;
            return Ok(Vec::new());
        }
        if stored.used && self.task_ended_since(&letter.task).await? {
            self.summary.ended += 1;
            return Ok(Vec::new());
        }
        self.summary.dead_letters += 1;
        // The task ended with its letter. Another task may have its key by now, so the key is left
        // out.
        let definition = NewTask { key: None, ..NewTask::clone(&letter.task.definition) };
        let state = TaskState::Scheduled;
        let task = Task { definition: Arc::new(definition), state, ..letter.task.clone() };
        let was = Prior::of(&task);
        Ok(vec![Change::Put(task), Change::Dead { letter, next: None, was }])
    }

    /// Whether a task that does not exist has ended after the export.
    async fn task_ended_since(&self, task: &Task) -> anyhow::Result<bool> {
        if task.origin().is_some() {
            return self.fire_ended_since(task.fire().id).await;
        }
        let newest = self.target.store.history(task.id.partition(), task.id, 1).await?;
        Ok(newest.first().is_some_and(|record| record.ended_at > self.exported_at))
    }

    /// Whether a fire has ended after the export, as a fire of its task or redriven apart from it.
    async fn fire_ended_since(&self, fire_id: FireId) -> anyhow::Result<bool> {
        let id = fire_id.task;
        let records = self.target.store.history(id.partition(), id, FIRES_MAX).await?;
        let mut records = records.iter().filter(|record| record.fire_id == fire_id);
        Ok(records.any(|record| record.ended_at > self.exported_at))
    }

    fn conflict(&mut self, task: &Task) {
        self.summary.conflicts += 1;
        if self.summary.conflicts <= NAMED_MAX {
            let key = task.definition.key.as_ref().map_or("", TaskKey::as_str);
            let key = key.replace(char::is_control, " ");
            let namespace = &task.definition.namespace;
            let notice = format!("{namespace}/{key} names another live task");
            (self.on_event)(TransferEvent::Notice(notice));
        }
    }
}

/// What a partition of the target has already.
#[derive(Debug, Default)]
struct StoredState {
    /// Whether the partition had tasks before the import.
    used: bool,
    live: HashSet<TaskId>,
    by_key: HashMap<(Namespace, TaskKey), Head>,
}

/// Returns the id of a task in a store with this number of partitions. The same id and key always
/// give the same result, so a repeated import finds the task.
fn derive_id(
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
    let number = (xxh3_64(&id.as_u128().to_be_bytes()) % DERIVED) | DERIVED;
    let sequence = Sequence::new(number).unwrap_or(Sequence::MAX);
    TaskId::new(id.due(), belongs, id.epoch(), sequence)
}

#[cfg(test)]
mod tests {
    use punctual_store::conformance::fixtures::{at, epoch, id, key, partition, shop};

    use super::*;

    #[test]
    fn an_id_is_kept_if_its_partition_fits_and_is_derived_from_itself_otherwise() {
        let few = Partitions::new(2).unwrap();
        let unnamed = id(at(5), partition(1), epoch(3), 9);
        assert_eq!(derive_id(unnamed, &shop(), None, few), unnamed);
        let beyond = id(at(5), partition(7), epoch(3), 9);
        let derived = derive_id(beyond, &shop(), None, few);
        assert_eq!(
            (derived.due(), derived.partition(), derived.epoch()),
            (at(5), partition(1), epoch(3))
        );
        assert_ne!(derived, derive_id(id(at(5), partition(7), epoch(3), 8), &shop(), None, few));
        assert_eq!(derived, derive_id(beyond, &shop(), None, few), "the same id again");
        for name in ["a", "b", "c", "d"] {
            let belongs = partition_of(&shop(), &key(name), few);
            let derived = derive_id(unnamed, &shop(), Some(&key(name)), few);
            assert_eq!(derived.partition(), belongs);
            assert_eq!(derived == unnamed, belongs == partition(1), "{name}");
        }
    }
}
