//! The catalog: rows with keys, and the list of runs. A fjall database.
//!
//! A checkpoint commits one batch, wholly or not at all. `CatalogMeta` in it says up to which
//! commit the files are complete, so the catalog is the manifest of the store. This is the only
//! file that uses fjall; `rows` spells keys and values.
//! fjall takes damage inside its journal for a torn tail and cuts it off silently (fjall #311).
//! Then `CatalogMeta` is older than the journal of the store expects, and opening refuses.

mod due_rows;
mod rows;
#[cfg(test)]
mod tests;

use std::fs::{self, File};
use std::path::Path;
use std::time::Duration;

use fjall::{AbstractTree as _, Database, Keyspace, KeyspaceCreateOptions, PersistMode, Readable};
use punctual_core::{FireId, Lease, PartitionId, TaskId};
use punctual_store::codec::{
    CodecError, HourCounts, Reader, put_letter_groups, put_varint, read_head, read_letter_groups,
};
use punctual_store::{BatchNo, Counts, DueHour, DueMinute, DueSteps, Head, LetterGroups};

use crate::fault::{ReadContext, StorageFault};
use crate::key::EntryKey;
use crate::options::EmbeddedOptions;
use crate::run::{Generation, RunNo};
use crate::state::due::SeriesRow;
use crate::state::names::NameKey;
use crate::state::order::{ListedKind, OrderKey, postponed_key};
use crate::state::relocation::Relocation;

use due_rows::{hour_key, read_hour_key};
pub(crate) use due_rows::{namespace_prefix, read_series_key, series_key};
use rows::{
    BATCH, BITS, COUNTED, COUNTS, GROUPS, META, ORDER_KEY_BYTES, RELOCATION_KEY_BYTES, RUN, SEAT,
    bits_key, dead_key, numbered, order_key, put_seat, read_dead_key, read_partition, read_word,
    relocation_key,
};
pub(crate) use rows::{
    CatalogMeta, LastBatch, ListedRun, Paused, RunKind, put_counts, put_lease, read_counts,
    read_lease,
};

/// Small memtables: rows in use are in the layers of the state.
const MEMTABLE_BYTES: u64 = 8 << 20;
/// The pause before it is asked again whether a memtable is written.
const FLUSH_POLL: Duration = Duration::from_millis(2);
/// The least that fjall accepts.
const JOURNAL_BYTES: u64 = 64 << 20;

/// The tables of the catalog.
#[derive(Clone)]
pub(crate) struct Catalog {
    database: Database,
    pub(crate) names: Keyspace,
    pub(crate) relocations: Keyspace,
    pub(crate) paused: Keyspace,
    pub(crate) dead: Keyspace,
    order: Keyspace,
    due: Keyspace,
    series: Keyspace,
    rest: Keyspace,
}

impl std::fmt::Debug for Catalog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Catalog")
    }
}

/// Everything that opening reads into memory.
#[derive(Debug, Default)]
pub(crate) struct CatalogContents {
    pub(crate) meta: Option<CatalogMeta>,
    pub(crate) runs: Vec<ListedRun>,
    pub(crate) bits: Vec<(RunNo, u32, Vec<u8>)>,
    pub(crate) counts: Vec<(PartitionId, String, Counts)>,
    pub(crate) letter_groups: Vec<(PartitionId, String, LetterGroups)>,
    /// Whether due counts, series and groups are those of all tasks.
    pub(crate) counted: bool,
    pub(crate) leases: Vec<Lease>,
    pub(crate) last_batches: Vec<(PartitionId, LastBatch)>,
}

impl Catalog {
    /// Opens the catalog in a directory, and creates it if the directory does not exist.
    pub(crate) fn open(dir: &Path, options: &EmbeddedOptions) -> Result<Self, StorageFault> {
        if !dir.exists() {
            Self::create(dir, options)?;
        }
        Self::open_tables(dir, options)
    }

    /// Creates an empty catalog beside `dir`, then renames it. fjall cannot open a directory in
    /// which it was killed while it created a database or a table, so such a directory must never
    /// have the name of the catalog.
    fn create(dir: &Path, options: &EmbeddedOptions) -> Result<(), StorageFault> {
        let unfinished = dir.with_extension("new");
        if unfinished.exists() {
            fs::remove_dir_all(&unfinished)
                .map_err(|source| StorageFault::io("remove", &unfinished, source))?;
        }
        let catalog = Self::open_tables(&unfinished, options)?;
        catalog.database.persist(PersistMode::SyncAll)?;
        // The threads of the database end here: they would write under the old name.
        drop(catalog);
        fs::rename(&unfinished, dir)
            .map_err(|source| StorageFault::io("rename", &unfinished, source))?;
        let parent = dir.parent().unwrap_or(dir);
        File::open(parent)
            .and_then(|parent| parent.sync_all())
            .map_err(|source| StorageFault::io("sync", parent, source))
    }

    fn open_tables(dir: &Path, options: &EmbeddedOptions) -> Result<Self, StorageFault> {
        let database = Database::builder(dir)
            .cache_size(options.catalog_cache_bytes)
            .worker_threads(1)
            .max_cached_files(Some(64))
            .max_journaling_size(JOURNAL_BYTES)
            .open()?;
        let table = |name| {
            database.keyspace(name, || {
                KeyspaceCreateOptions::default().max_memtable_size(MEMTABLE_BYTES)
            })
        };
        Ok(Self {
            names: table("names")?,
            relocations: table("standings")?,
            paused: table("paused")?,
            dead: table("dead")?,
            order: table("order")?,
            due: table("due")?,
            series: table("series")?,
            rest: table("rest")?,
            database,
        })
    }

    pub(crate) fn batch(&self) -> CatalogBatch<'_> {
        let batch = self.database.batch().durability(Some(PersistMode::SyncAll));
        CatalogBatch { catalog: self, batch, bytes: 0 }
    }

    /// A batch that is durable with the next one from [`Catalog::batch`], at the latest.
    pub(crate) fn batch_ahead(&self) -> CatalogBatch<'_> {
        CatalogBatch { catalog: self, batch: self.database.batch(), bytes: 0 }
    }

    /// Waits until the catalog has written most of the relocations that it has in memory. Its only
    /// thread also merges tables, and meanwhile a memtable would grow without bound.
    pub(crate) fn flush_relocations(&self) -> Result<(), StorageFault> {
        let tables = [&self.relocations, &self.order];
        let is_large =
            |table: &&&Keyspace| table.tree.active_memtable().size() > 2 * MEMTABLE_BYTES;
        for table in tables.iter().filter(is_large) {
            table.rotate_memtable()?;
            while table.tree.sealed_memtable_count() > 0 {
                // Fails if that thread has failed, so that this does not wait for ever.
                self.database.persist(PersistMode::Buffer)?;
                #[expect(clippy::disallowed_methods, reason = "fjall has no event for this")]
                std::thread::sleep(FLUSH_POLL);
            }
        }
        Ok(())
    }

    pub(crate) fn disk_bytes(&self) -> u64 {
        self.database.disk_space().unwrap_or(0)
    }

    pub(crate) fn head(&self, name: &[u8]) -> Result<Option<Head>, StorageFault> {
        let row = self.names.get(name)?;
        row.map(|row| read_head(&row).reading("name")).transpose()
    }

    pub(crate) fn all_names(
        &self,
        mut each: impl FnMut(NameKey, Head),
    ) -> Result<(), StorageFault> {
        for row in self.names.iter() {
            let (name, row) = row.into_inner()?;
            each(name.to_vec().into_boxed_slice(), read_head(&row).reading("name")?);
        }
        Ok(())
    }

    pub(crate) fn relocation(&self, id: TaskId) -> Result<Option<Relocation>, StorageFault> {
        let row = self.relocations.get(relocation_key(id))?;
        row.map(|row| Relocation::read(&row).reading("relocation")).transpose()
    }

    /// Calls `each` for the relocations of ids between two ids of one partition, both included,
    /// until it returns false.
    pub(crate) fn relocations_between(
        &self,
        first: TaskId,
        last: TaskId,
        mut each: impl FnMut(TaskId, Relocation) -> bool,
    ) -> Result<(), StorageFault> {
        for row in self.relocations.range(relocation_key(first)..=relocation_key(last)) {
            let (key, row) = row.into_inner()?;
            let id =
                Reader::new(key.get(2..).unwrap_or_default()).task_id().reading("relocation")?;
            if !each(id, Relocation::read(&row).reading("relocation")?) {
                break;
            }
        }
        Ok(())
    }

    /// The first keys of the order after one key and before another, at most `limit`.
    pub(crate) fn order_between(
        &self,
        kind: ListedKind,
        (after, end): (EntryKey, EntryKey),
        limit: usize,
    ) -> Result<Vec<EntryKey>, StorageFault> {
        let bounds = (
            std::ops::Bound::Excluded(order_key(kind, OrderKey::of(after))),
            std::ops::Bound::Excluded(order_key(kind, OrderKey::of(end))),
        );
        let mut keys = Vec::new();
        for row in self.order.range(bounds).take(limit) {
            let key = row.key()?;
            keys.push(OrderKey::read(key.get(1..).unwrap_or_default()).reading("order")?);
        }
        Ok(keys)
    }

    /// The first names with a prefix, at most `limit`.
    pub(crate) fn names_from(
        &self,
        prefix: &[u8],
        limit: usize,
    ) -> Result<Vec<NameKey>, StorageFault> {
        let mut names = Vec::new();
        for row in self.names.prefix(prefix).take(limit) {
            names.push(row.key()?.to_vec().into_boxed_slice());
        }
        Ok(names)
    }

    /// The due counts of an hour.
    pub(crate) fn due_hour(
        &self,
        partition: PartitionId,
        namespace: &str,
        hour: DueHour,
    ) -> Result<HourCounts, StorageFault> {
        let row = self.due.get(hour_key(partition, namespace, hour))?;
        let counts = row.map(|row| HourCounts::read(&row).reading("due counts")).transpose()?;
        Ok(counts.unwrap_or_default())
    }

    /// Adds the due counts of a namespace to steps. Returns the generation after that of the last
    /// checkpoint whose differences these counts have; `None` before the first one.
    ///
    /// Both are read from one snapshot: other reads see a part of a batch that is being committed.
    pub(crate) fn add_due(
        &self,
        partition: PartitionId,
        namespace: &str,
        steps: &DueSteps,
        sums: &mut [i64],
    ) -> Result<Option<Generation>, StorageFault> {
        let snapshot = self.database.snapshot();
        let [first, end] = [steps.first().hour(), steps.end().hour()];
        let keys = [first, end].map(|hour| hour_key(partition, namespace, hour));
        let [first, end] = keys;
        for row in snapshot.range(&self.due, first..=end) {
            let (key, row) = row.into_inner()?;
            let (_, hour) = read_hour_key(&key).reading("due counts")?;
            if let Some(step) = steps.step_of_hour(hour) {
                sums[step] += HourCounts::read_sum(&row).reading("due counts")?;
                continue;
            }
            for (minute, count) in HourCounts::read(&row).reading("due counts")?.iter(hour) {
                if let Some(step) = steps.step_of(minute) {
                    sums[step] += count;
                }
            }
        }
        let row = snapshot.get(&self.rest, META)?;
        let meta = row.map(|row| CatalogMeta::read(&row).reading("meta")).transpose()?;
        Ok(meta.map(|meta| meta.generation))
    }

    /// Calls `each` for all due counts of a partition, with their namespaces.
    pub(crate) fn all_due(
        &self,
        partition: PartitionId,
        mut each: impl FnMut(&str, DueMinute, i64),
    ) -> Result<(), StorageFault> {
        for row in self.due.prefix(partition.get().to_be_bytes()) {
            let (key, row) = row.into_inner()?;
            let (namespace, hour) = read_hour_key(&key).reading("due counts")?;
            for (minute, count) in HourCounts::read(&row).reading("due counts")?.iter(hour) {
                each(namespace, minute, count);
            }
        }
        Ok(())
    }

    /// The first keys of the index of series after one key and before another, at most `limit`.
    pub(crate) fn series_between(
        &self,
        after: &[u8],
        end: &[u8],
        limit: usize,
    ) -> Result<Vec<Box<[u8]>>, StorageFault> {
        use std::ops::Bound::Excluded;
        let rows = self.series.range::<&[u8], _>((Excluded(after), Excluded(end))).take(limit);
        rows.map(|row| Ok(row.key()?.to_vec().into_boxed_slice())).collect()
    }

    pub(crate) fn paused(&self, id: TaskId) -> Result<Option<Paused>, StorageFault> {
        let row = self.paused.get(relocation_key(id))?;
        row.map(|row| Paused::read(&row).reading("paused task")).transpose()
    }

    pub(crate) fn paused_of(
        &self,
        partition: PartitionId,
        mut each: impl FnMut(TaskId, Paused),
    ) -> Result<(), StorageFault> {
        for row in self.paused.prefix(partition.get().to_be_bytes()) {
            let (key, row) = row.into_inner()?;
            let id =
                Reader::new(key.get(2..).unwrap_or_default()).task_id().reading("paused task")?;
            each(id, Paused::read(&row).reading("paused task")?);
        }
        Ok(())
    }

    pub(crate) fn letter(&self, fire_id: FireId) -> Result<Option<Vec<u8>>, StorageFault> {
        Ok(self.dead.get(dead_key(fire_id.task.partition(), fire_id))?.map(|row| row.to_vec()))
    }

    /// Calls `each` for the dead letters of a partition after one fire, in order, until it returns
    /// false.
    pub(crate) fn letters_after(
        &self,
        partition: PartitionId,
        after: Option<FireId>,
        mut each: impl FnMut(FireId, &[u8]) -> bool,
    ) -> Result<(), StorageFault> {
        // `after` may be a fire of another partition: a page over all partitions passes the same
        // cursor to each of them.
        let start = after.map_or_else(
            || partition.get().to_be_bytes().to_vec(),
            |fire_id| {
                let mut key = dead_key(partition, fire_id);
                key.push(0);
                key
            },
        );
        for row in self.dead.range(start..) {
            let (key, row) = row.into_inner()?;
            if key.get(..2) != Some(&partition.get().to_be_bytes()) {
                break;
            }
            let fire_id = read_dead_key(&key).reading("dead letter")?;
            if !each(fire_id, &row) {
                break;
            }
        }
        Ok(())
    }

    /// Whether the tables have rows: relocations, names, paused, dead.
    pub(crate) fn filled(&self) -> Result<[bool; 4], StorageFault> {
        let mut filled = [false; 4];
        let tables = [&self.relocations, &self.names, &self.paused, &self.dead];
        for (filled, table) in filled.iter_mut().zip(tables) {
            *filled = !table.is_empty()?;
        }
        Ok(filled)
    }

    /// Reads everything that is held in memory.
    pub(crate) fn contents(&self) -> Result<CatalogContents, StorageFault> {
        let mut contents = CatalogContents::default();
        for row in self.rest.iter() {
            let (key, row) = row.into_inner()?;
            contents.take(&key, &row).reading("row of the catalog")?;
        }
        Ok(contents)
    }
}

impl CatalogContents {
    fn take(&mut self, key: &[u8], row: &[u8]) -> Result<(), CodecError> {
        if key == META {
            self.meta = Some(CatalogMeta::read(row)?);
            return Ok(());
        }
        if key == COUNTED {
            self.counted = true;
            return Ok(());
        }
        let (tag, rest) = key.split_first().ok_or(CodecError::Short("key"))?;
        let mut key = Reader::new(rest);
        match *tag {
            RUN => {
                let no = RunNo(read_word(&mut key)?);
                self.runs.push(ListedRun::read(no, row)?);
            }
            BITS => {
                let no = RunNo(read_word(&mut key)?);
                let chunk = key.take(4)?.try_into().map_err(|_| CodecError::Short("key"))?;
                self.bits.push((no, u32::from_be_bytes(chunk), row.to_vec()));
            }
            COUNTS => {
                let partition = read_partition(&mut key)?;
                let namespace = std::str::from_utf8(key.rest());
                let namespace = namespace.map_err(|_| CodecError::Invalid("namespace"))?;
                let counts = read_counts(&mut Reader::new(row))?;
                self.counts.push((partition, namespace.to_owned(), counts));
            }
            GROUPS => {
                let partition = read_partition(&mut key)?;
                let namespace = std::str::from_utf8(key.rest());
                let namespace = namespace.map_err(|_| CodecError::Invalid("namespace"))?;
                let groups = read_letter_groups(&mut Reader::new(row))?;
                self.letter_groups.push((partition, namespace.to_owned(), groups));
            }
            SEAT => self.leases.push(read_lease(&mut Reader::new(row))?),
            BATCH => {
                let partition = read_partition(&mut key)?;
                let number = Reader::new(row).varint()?;
                let last = LastBatch { batch: (number > 0).then_some(BatchNo::new(number)) };
                self.last_batches.push((partition, last));
            }
            _ => return Err(CodecError::Invalid("key")),
        }
        Ok(())
    }
}

/// The rows of one checkpoint, written together or not at all.
pub(crate) struct CatalogBatch<'a> {
    catalog: &'a Catalog,
    batch: fjall::OwnedWriteBatch,
    bytes: u64,
}

/// What a row takes on disk in addition to key and value, at most.
const ROW_BYTES: u64 = 24;
/// At most how many bytes [`CatalogBatch::relocate`] adds: a row and two keys of the order.
pub(crate) const RELOCATION_BYTES_MAX: u64 =
    (RELOCATION_KEY_BYTES + Relocation::BYTES_MAX + 2 * ORDER_KEY_BYTES) as u64 + 3 * ROW_BYTES;

impl CatalogBatch<'_> {
    fn insert(
        &mut self,
        table: fn(&Catalog) -> &Keyspace,
        key: impl AsRef<[u8]>,
        row: impl AsRef<[u8]>,
    ) {
        let (key, row) = (key.as_ref(), row.as_ref());
        self.bytes += (key.len() + row.len()) as u64 + ROW_BYTES;
        self.batch.insert(table(self.catalog), key, row);
    }

    fn remove(&mut self, table: fn(&Catalog) -> &Keyspace, key: impl AsRef<[u8]>) {
        let key = key.as_ref();
        self.bytes += key.len() as u64 + ROW_BYTES;
        self.batch.remove(table(self.catalog), key);
    }

    /// About how many bytes its rows have.
    pub(crate) const fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn meta(&mut self, meta: CatalogMeta) {
        self.insert(|catalog| &catalog.rest, META, meta.to_bytes());
    }

    pub(crate) fn run(&mut self, listed: &ListedRun) {
        let key = numbered(RUN, listed.no);
        self.insert(|catalog| &catalog.rest, key, listed.to_bytes());
    }

    /// Removes a run from the list, with its bits.
    pub(crate) fn drop_run(&mut self, no: RunNo, chunks: u32) {
        self.remove(|catalog| &catalog.rest, numbered(RUN, no));
        for chunk in 0..chunks {
            self.remove(|catalog| &catalog.rest, bits_key(no, chunk));
        }
    }

    pub(crate) fn bits(&mut self, no: RunNo, chunk: u32, bytes: Vec<u8>) {
        self.insert(|catalog| &catalog.rest, bits_key(no, chunk), bytes);
    }

    pub(crate) fn counts(&mut self, partition: PartitionId, namespace: &str, counts: &Counts) {
        let mut key = vec![COUNTS];
        key.extend_from_slice(&partition.get().to_be_bytes());
        key.extend_from_slice(namespace.as_bytes());
        let mut row = Vec::new();
        put_counts(&mut row, counts);
        self.insert(|catalog| &catalog.rest, key, row);
    }

    /// Sets the groups of the letters of a namespace.
    pub(crate) fn letter_groups(
        &mut self,
        partition: PartitionId,
        namespace: &str,
        groups: &LetterGroups,
    ) {
        let mut key = vec![GROUPS];
        key.extend_from_slice(&partition.get().to_be_bytes());
        key.extend_from_slice(namespace.as_bytes());
        if groups.is_empty() {
            return self.remove(|catalog| &catalog.rest, key);
        }
        let mut row = Vec::new();
        put_letter_groups(&mut row, groups);
        self.insert(|catalog| &catalog.rest, key, row);
    }

    /// Notes that due counts, series and groups are those of all tasks.
    pub(crate) fn counted(&mut self) {
        self.insert(|catalog| &catalog.rest, COUNTED, []);
    }

    /// Sets the due counts of an hour.
    pub(crate) fn due_hour(
        &mut self,
        partition: PartitionId,
        namespace: &str,
        hour: DueHour,
        counts: &HourCounts,
    ) {
        let key = hour_key(partition, namespace, hour);
        match counts.to_bytes() {
            Some(row) => self.insert(|catalog| &catalog.due, key, row),
            None => self.remove(|catalog| &catalog.due, key),
        }
    }

    /// Sets a row of the index of series.
    pub(crate) fn series(&mut self, key: &[u8], row: SeriesRow) {
        match row {
            SeriesRow::Present => self.insert(|catalog| &catalog.series, key, []),
            SeriesRow::Absent => self.remove(|catalog| &catalog.series, key),
        }
    }

    pub(crate) fn lease(&mut self, lease: &Lease) {
        let mut key = vec![SEAT];
        put_seat(&mut key, lease.seat);
        let mut row = Vec::new();
        put_lease(&mut row, lease);
        self.insert(|catalog| &catalog.rest, key, row);
    }

    pub(crate) fn last_batch(&mut self, partition: PartitionId, last: LastBatch) {
        let mut key = vec![BATCH];
        key.extend_from_slice(&partition.get().to_be_bytes());
        let mut row = Vec::new();
        put_varint(&mut row, last.batch.map_or(0, BatchNo::get));

        self.insert(|catalog| &catalog.rest, key, row);
    }

    pub(crate) fn name(&mut self, name: &[u8], head: Option<&[u8]>) {
        match head {
            Some(head) => self.insert(|catalog| &catalog.names, name, head),
            None => self.remove(|catalog| &catalog.names, name),
        }
    }

    /// Replaces the relocation of a task, and its key in the order.
    pub(crate) fn relocate(
        &mut self,
        id: TaskId,
        before: Option<Relocation>,
        now: Option<Relocation>,
    ) {
        self.order(ListedKind::Postponed, postponed_key(id, before), postponed_key(id, now));
        self.relocation(id, now);
    }

    pub(crate) fn relocation(&mut self, id: TaskId, relocation: Option<Relocation>) {
        let key = relocation_key(id);
        match relocation {
            Some(relocation) => {
                self.insert(|catalog| &catalog.relocations, key, relocation.to_bytes());
            }
            None => self.remove(|catalog| &catalog.relocations, key),
        }
    }

    pub(crate) fn paused(&mut self, id: TaskId, paused: Option<&Paused>) {
        let key = relocation_key(id);
        match paused {
            Some(paused) => self.insert(|catalog| &catalog.paused, key, paused.to_bytes()),
            None => self.remove(|catalog| &catalog.paused, key),
        }
    }

    /// Moves a task in the order from one key to another.
    pub(crate) fn order(
        &mut self,
        kind: ListedKind,
        before: Option<EntryKey>,
        now: Option<EntryKey>,
    ) {
        if let Some(now) = now {
            self.insert(|catalog| &catalog.order, order_key(kind, OrderKey::of(now)), []);
        }
        // A batch must not both write and remove a row: its operations have no order.
        if let Some(before) = before.filter(|before| Some(*before) != now) {
            self.remove(|catalog| &catalog.order, order_key(kind, OrderKey::of(before)));
        }
    }

    pub(crate) fn letter(&mut self, fire_id: FireId, letter: Option<&[u8]>) {
        let key = dead_key(fire_id.task.partition(), fire_id);
        match letter {
            Some(letter) => self.insert(|catalog| &catalog.dead, key, letter),
            None => self.remove(|catalog| &catalog.dead, key),
        }
    }

    /// Makes the batch durable.
    pub(crate) fn commit(self) -> Result<(), StorageFault> {
        Ok(self.batch.commit()?)
    }
}
