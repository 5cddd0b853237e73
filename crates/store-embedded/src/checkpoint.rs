//! Checkpoints: write memory to disk, so that the journal up to that commit is no longer needed.
//!
//! The state is frozen at one moment, under the lock. Then run files are written and synced, a run
//! of history with its index; then one batch of the catalog makes them part of the store; only then
//! journal files are released and old runs deleted. A crash at any point leaves either the old list
//! of runs or the new one; files of runs that are not listed are removed at the next opening.
//! Postponements are written ahead of that batch (`rows`): replaying them again changes nothing.
//! One thread (`background`) writes checkpoints, merges runs (`rewrite`) and sets bits (`resolve`),
//! so that these never overlap.

pub(crate) mod background;
mod relocations_before;
mod resolve;
mod rewrite;
mod rows;

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};

use bytes::Bytes;
use punctual_core::{FireId, Lease, PartitionId, TaskId, Timestamp};
use punctual_journal::{CommitNo, StoreStopwatch};
use punctual_store::{Counts, LetterGroups};

use crate::catalog::{CatalogBatch, CatalogMeta, LastBatch, ListedRun, Paused, RunKind};
use crate::checkpoint::relocations_before::RelocationsBefore;
use crate::fault::{ReadContext, StorageFault};
use crate::fire_index::FireIndex;
use crate::key::EntryKey;
use crate::run::{Generation, RunNo, RunWriter, SortedRun};
use crate::state::buffer::Buffer;
use crate::state::due::{MinuteCounts, SeriesRows};
use crate::state::endings::Endings;
use crate::state::history::HistoryBuffer;
use crate::state::layers::IdHash;
use crate::state::names::{NameHash, NameRow};
use crate::state::partition::PartitionState;
use crate::state::relocation::Relocation;
use crate::state::row_table::RowTable;
use crate::state::timeline::{Slice, Timeline};
use crate::state::{PROGRESS_STEPS, StoreState};
use crate::store_core::StoreCore;

/// The part of the state that one checkpoint writes.
pub(crate) struct FrozenState {
    pub(crate) commit: CommitNo,
    generation: Generation,
    buffer: Arc<Buffer>,
    history: Arc<HistoryBuffer>,
    endings: Arc<Endings>,
    timeline: Arc<Timeline>,
    relocations: Arc<RowTable<TaskId, Option<Relocation>, IdHash>>,
    relocations_before: RelocationsBefore,
    /// Whether the catalog has any relocations, and any paused tasks.
    in_catalog: (bool, bool),
    names: Arc<RowTable<NameRow, (), NameHash>>,
    paused: Arc<RowTable<TaskId, Option<Paused>, IdHash>>,
    dead: Arc<RowTable<FireId, Option<Bytes>, IdHash>>,
    counts: Vec<(PartitionId, String, Counts)>,
    due: Vec<(PartitionId, String, Arc<MinuteCounts>)>,
    series: Arc<SeriesRows>,
    letter_groups: Vec<(PartitionId, String, LetterGroups)>,
    leases: Vec<Lease>,
    last_batches: Vec<(PartitionId, LastBatch)>,
    history_finished: Vec<Arc<SortedRun>>,
    history_swept: Vec<ListedRun>,
    now: Timestamp,
}

/// Runs a part of a checkpoint and logs how long it took.
pub(crate) fn timed<T>(part: &'static str, work: impl FnOnce() -> T) -> T {
    let stopwatch = StoreStopwatch::start();
    let done = work();
    let took_ms = stopwatch.elapsed().as_secs_f64() * 1e3;
    tracing::debug!(part, took_ms, "checkpoint");
    done
}

/// Progress of writing a buffer, for writes that wait for it. Each entry counts once when it is
/// written to its file and once when the file is synced.
struct WriteProgress<'a> {
    core: &'a StoreCore,
    total: usize,
    done: usize,
    reported: usize,
}

impl<'a> WriteProgress<'a> {
    const fn new(core: &'a StoreCore, entries: usize) -> Self {
        Self { core, total: entries * 2, done: 0, reported: 0 }
    }

    fn advance(&mut self, entries: usize) -> Result<(), StorageFault> {
        self.done += entries;
        let written = self.done * PROGRESS_STEPS / self.total;
        if written > self.reported {
            self.reported = written;
            let mut state = self.core.state()?;
            state.written = written;
            self.core.set_pressure(&state);
        }
        Ok(())
    }
}

/// The numbers of new runs.
#[derive(Debug)]
pub(crate) struct RunNumbers(pub(crate) u64);

impl RunNumbers {
    pub(crate) fn take(&mut self) -> RunNo {
        self.0 += 1;
        RunNo(self.0 - 1)
    }
}

/// Runs that a checkpoint adds and removes.
#[derive(Debug, Default)]
pub(crate) struct Exchange {
    pub(crate) added: Vec<(RunKind, Arc<SortedRun>)>,
    pub(crate) dropped: Vec<Arc<SortedRun>>,
    /// The index of the run of history in `added`.
    pub(crate) index: Option<Arc<FireIndex>>,
}

impl StoreCore {
    /// Freezes everything that changed. Returns `None` if the last commit is `unchanged_since` and
    /// nothing else changed either.
    pub(crate) fn freeze(
        &self,
        unchanged_since: Option<CommitNo>,
    ) -> Result<Option<FrozenState>, StorageFault> {
        let mut state = self.state()?;
        let idle = unchanged_since == Some(state.commit)
            && state.buffered() == 0
            && state.changed_bytes() == 0
            && state.ended.len() == 0
            && state.history.finished().is_empty()
            && state.counted;
        if idle {
            return Ok(None);
        }
        Ok(Some(self.freeze_state(&mut state)))
    }

    /// Writes what was frozen together with the result of `rewrite`, and returns the runs that are
    /// no longer needed. If the disk was full, it can be called again.
    pub(crate) fn checkpoint(
        &self,
        frozen: &mut FrozenState,
        mut exchange: Exchange,
        numbers: &mut RunNumbers,
    ) -> Result<Vec<Arc<SortedRun>>, StorageFault> {
        if let Err(fault) = self.write(frozen, &mut exchange, numbers) {
            if !fault.means_full() {
                return Err(fault);
            }
            for (_, run) in &exchange.added {
                self.files.remove(run.no)?;
            }
            return Err(fault);
        }
        timed("thaw", || self.thaw(frozen, &exchange))?;
        self.step()?;
        Ok(exchange.dropped)
    }

    fn freeze_state(&self, state: &mut StoreState) -> FrozenState {
        let generation = state.generation;
        state.generation = Generation(generation.0 + 1);
        let buffer = Arc::new(std::mem::take(&mut state.buffer));
        state.frozen = Some((generation, Arc::clone(&buffer)));
        state.history.buffer.seal();
        let history = Arc::new(std::mem::take(&mut state.history.buffer));
        state.history.frozen = Some(Arc::clone(&history));
        let endings = Arc::new(state.ended.take());
        state.resolving = Some(Arc::clone(&endings));
        state.journal_bytes = 0;
        state.written = 0;
        state.postponed_order.freeze();
        state.paused_order.freeze();
        state.names_order.freeze();
        state.dead_order.freeze();
        FrozenState {
            commit: state.commit,
            generation,
            buffer,
            history,
            endings,
            timeline: Arc::clone(&state.timeline),
            relocations: state.relocations.freeze(),
            // With the rows of two checkpoints and those that change meanwhile, a million watches
            // would be in memory three times.
            relocations_before: RelocationsBefore::new(state.relocations.take_clean()),
            in_catalog: (state.relocations.in_catalog(), state.paused.in_catalog()),
            names: state.names.freeze(),
            paused: state.paused.freeze(),
            dead: state.dead.freeze(),
            due: freeze_due(state),
            series: state.series.freeze(),
            letter_groups: take_groups(state),
            counts: take_counts(state),
            leases: state.leases.values().cloned().collect(),
            last_batches: self
                .options
                .partitions
                .iter()
                .map(|id| (id, last_batch_of(state, id)))
                .collect(),
            history_finished: state.history.finished(),
            history_swept: state.history.take_changed(),
            now: state.now,
        }
    }

    fn write(
        &self,
        frozen: &mut FrozenState,
        exchange: &mut Exchange,
        numbers: &mut RunNumbers,
    ) -> Result<(), StorageFault> {
        self.step()?;
        let stale = timed("bits", || self.set_bits(&frozen.endings, &frozen.timeline))?;
        for (_, run) in &exchange.added {
            // Merged runs are not on the timeline yet.
            self.set_bits_of_merged(frozen, run)?;
        }
        timed("tasks", || self.write_tasks(frozen, exchange, numbers))?;
        timed("history", || self.write_history(frozen, exchange, numbers))?;
        self.step()?;
        timed("directory", || self.files.sync_dir())?;

        let mut batch = self.catalog.batch();
        let finished: Vec<Arc<SortedRun>> = frozen
            .timeline
            .runs()
            .filter(|run| run.ended.count() == run.count())
            .filter(|run| !exchange.dropped.iter().any(|dropped| dropped.no == run.no))
            .cloned()
            .collect();
        exchange.dropped.extend(finished);
        exchange.dropped.extend(frozen.history_finished.iter().cloned());
        timed("rows", || self.write_rows(&mut batch, frozen))?;
        // Before rows are written ahead, and before changed bits are taken: these would be missing
        // in the next attempt.
        self.check_free_space(batch.bytes() + Self::relocation_bytes_max(frozen, &stale))?;
        timed("relocations", || self.write_relocations(&mut batch, frozen, &stale))?;
        self.write_runs(&mut batch, frozen, exchange);
        batch.meta(CatalogMeta {
            commit: frozen.commit,
            generation: Generation(frozen.generation.0 + 1),
            run_next: numbers.0,
            now: frozen.now.as_millis(),
        });
        self.step()?;
        timed("catalog", || batch.commit())?;
        self.step()
    }

    /// Fails before the catalog is touched if the disk may become full: a catalog whose write
    /// failed cannot be used until it is opened again. It writes a batch to its journal, then to a
    /// table, and that table again when it is merged.
    fn check_free_space(&self, batch_bytes: u64) -> Result<(), StorageFault> {
        let need = self.options.free_bytes_min.saturating_add(batch_bytes.saturating_mul(3));
        let dir = self.files.dir();
        let free = rustix::fs::statvfs(dir)
            .map_err(|errno| StorageFault::io("read the free space of", dir, errno.into()))?;
        if free.f_bavail.saturating_mul(free.f_frsize) >= need {
            return Ok(());
        }
        let full = std::io::Error::from(std::io::ErrorKind::StorageFull);
        Err(StorageFault::io("checkpoint in", dir, full))
    }

    /// Marks tasks that ended after the merge started, which the merged run contains as live.
    fn set_bits_of_merged(
        &self,
        frozen: &FrozenState,
        run: &Arc<SortedRun>,
    ) -> Result<(), StorageFault> {
        for (id, ending) in frozen.endings.iter() {
            let filed_at = match ending.filed_at {
                Some(at) => at,
                None => {
                    let relocation = self.catalog.relocation(id)?;
                    relocation.and_then(|relocation| relocation.filed_at()).unwrap_or(id.due())
                }
            };
            let key = EntryKey::new(filed_at, id);
            if run.generation < ending.before
                && run.may_have(key)
                && let Some(ordinal) = run.ordinal_of(&self.files, key)?
            {
                run.ended.set(ordinal);
            }
        }
        Ok(())
    }

    fn write_tasks(
        &self,
        frozen: &FrozenState,
        exchange: &mut Exchange,
        numbers: &mut RunNumbers,
    ) -> Result<(), StorageFault> {
        let mut writers: BTreeMap<Slice, RunWriter> = BTreeMap::new();
        let mut progress = WriteProgress::new(self, frozen.buffer.len());
        for (key, body) in frozen.buffer.iter() {
            let slice = Slice::of(key.at, frozen.now, &self.options);
            let writer = match writers.entry(slice) {
                std::collections::btree_map::Entry::Occupied(entry) => entry.into_mut(),
                std::collections::btree_map::Entry::Vacant(entry) => {
                    let no = numbers.take();
                    entry.insert(RunWriter::new(&self.files, no, self.options.block_bytes)?)
                }
            };
            writer.push(key, body)?;
            progress.advance(1)?;
        }
        for (slice, writer) in writers {
            if let Some(written) = writer.finish()? {
                let run = Arc::new(SortedRun::new(written, frozen.generation));
                progress.advance(run.count() as usize)?;
                exchange.added.push((slice.kind(), run));
            }
            self.step()?;
        }
        Ok(())
    }

    fn write_history(
        &self,
        frozen: &FrozenState,
        exchange: &mut Exchange,
        numbers: &mut RunNumbers,
    ) -> Result<(), StorageFault> {
        if frozen.history.is_empty() {
            return Ok(());
        }
        let no = numbers.take();
        let mut writer = RunWriter::new(&self.files, no, self.options.block_bytes)?;
        let entries = frozen.history.sorted();
        for entry in &entries {
            writer.note_newest(entry.ended_at());
            writer.push(EntryKey::at_due(entry.fire_id().task), &entry.record)?;
        }
        let Some(written) = writer.finish()? else { return Ok(()) };
        let run = Arc::new(SortedRun::new(written, frozen.generation));
        exchange.added.push((RunKind::History, run));
        self.step()?;
        let records = entries.iter().map(|entry| &*entry.record);
        let index = timed("index", || self.write_index(no, records))?;
        exchange.index = Some(Arc::new(index));
        Ok(())
    }

    /// Writes the index of a run of history with these records.
    fn write_index<'a>(
        &self,
        no: RunNo,
        records: impl Iterator<Item = &'a [u8]>,
    ) -> Result<FireIndex, StorageFault> {
        let index = FireIndex::build(no, records, self.options.block_bytes);
        index.reading("record of a fire")?.write(&self.files)
    }

    fn write_runs(&self, batch: &mut CatalogBatch<'_>, frozen: &FrozenState, exchange: &Exchange) {
        for (kind, run) in &exchange.added {
            batch.run(&ListedRun {
                no: run.no,
                generation: run.generation,
                kind: *kind,
                file_bytes: run.file_bytes,
                swept: Vec::new(),
            });
        }
        // A batch must not both write and remove a row: its operations have no order.
        let stays = |no| !exchange.dropped.iter().any(|dropped| dropped.no == no);
        for listed in frozen.history_swept.iter().filter(|listed| stays(listed.no)) {
            batch.run(listed);
        }
        let is_dropped =
            |run: &SortedRun| exchange.dropped.iter().any(|dropped| dropped.no == run.no);
        let added = exchange.added.iter().map(|(_, run)| run);
        for run in frozen.timeline.runs().chain(added).filter(|run| !is_dropped(run)) {
            for (chunk, bytes) in run.ended.take_changed() {
                batch.bits(run.no, chunk, bytes);
            }
        }
        for run in &exchange.dropped {
            batch.drop_run(run.no, run.ended.chunks());
        }
    }

    fn thaw(&self, frozen: &FrozenState, exchange: &Exchange) -> Result<(), StorageFault> {
        let [relocations, names, paused, dead] = self.catalog.filled()?;
        let dropped: Vec<RunNo> = exchange.dropped.iter().map(|run| run.no).collect();
        let is_history = |kind: &RunKind| *kind == RunKind::History;
        let (history, tasks): (Vec<_>, Vec<_>) =
            exchange.added.iter().cloned().partition(|(kind, _)| is_history(kind));
        let timeline = Arc::new(frozen.timeline.with(tasks, &dropped));

        let mut state = self.state()?;
        state.timeline = timeline;
        state.history.remove(&dropped);
        for (_, run) in history {
            state.history.add(run, exchange.index.clone(), &[]);
        }
        // Taken out here and freed after the lock is released: a buffer has hundreds of thousands
        // of entries.
        let spent = (
            state.frozen.take(),
            state.history.frozen.take(),
            state.resolving.take(),
            state.relocations.thaw(relocations),
            state.names.thaw(names),
            state.paused.thaw(paused),
            state.dead.thaw(dead),
        );
        let noted = (
            state.postponed_order.thaw(),
            state.paused_order.thaw(),
            state.names_order.thaw(),
            state.dead_order.thaw(),
            state.series.thaw(),
        );
        for (partition, namespace, _) in &frozen.due {
            if let Some(tally) = state.partition_mut(*partition).counts.get_mut(namespace) {
                tally.due.thaw();
            }
        }
        state.counted = true;
        state.checkpoints += 1;
        self.set_pressure(&state);
        drop(state);
        drop((spent, noted));
        self.forget_loadings();
        Ok(())
    }

    /// Drops the positions of loading: they refer to the old timeline and keep its files open.
    fn forget_loadings(&self) {
        for loading in &self.loadings {
            let loading = loading.lock().unwrap_or_else(PoisonError::into_inner).take();
            drop(loading);
        }
    }

    /// Waits for a whole round of the background thread that starts after this call.
    pub(crate) fn wait_for_round(&self) {
        let mut work = self.work.lock().unwrap_or_else(PoisonError::into_inner);
        // A running round may have started before the changes that this call is about.
        let round = work.rounds + 1 + u64::from(work.busy);
        work.checkpoint = true;
        self.work_changed.notify_all();
        while work.rounds < round && !work.stop && self.broken().is_none() {
            work = self.work_changed.wait(work).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

fn last_batch_of(state: &StoreState, id: PartitionId) -> LastBatch {
    let own = state.partition(id);
    LastBatch { batch: own.batch }
}

/// Calls `each` for every partition.
fn each_partition(state: &mut StoreState, mut each: impl FnMut(PartitionId, &mut PartitionState)) {
    for (own, number) in state.partitions.iter_mut().zip(0u16..) {
        if let Some(partition) = PartitionId::new(number) {
            each(partition, own);
        }
    }
}

fn freeze_due(state: &mut StoreState) -> Vec<(PartitionId, String, Arc<MinuteCounts>)> {
    let mut frozen = Vec::new();
    each_partition(state, |partition, own| {
        for (namespace, tally) in &mut own.counts {
            let due = tally.due.freeze();
            frozen.extend(due.map(|due| (partition, namespace.clone(), due)));
        }
    });
    frozen
}

fn take_groups(state: &mut StoreState) -> Vec<(PartitionId, String, LetterGroups)> {
    let mut changed = Vec::new();
    each_partition(state, |partition, own| {
        for (namespace, row) in &mut own.letter_groups {
            if std::mem::take(&mut row.changed) {
                changed.push((partition, namespace.clone(), row.groups.clone()));
            }
        }
        // What is empty is removed from the catalog as well.
        own.letter_groups.retain(|_, row| !row.groups.is_empty());
    });
    changed
}

fn take_counts(state: &mut StoreState) -> Vec<(PartitionId, String, Counts)> {
    let mut changed = Vec::new();
    each_partition(state, |partition, own| {
        for (namespace, tally) in &mut own.counts {
            if std::mem::take(&mut tally.changed) {
                changed.push((partition, namespace.clone(), tally.counts));
            }
        }
    });
    changed
}
