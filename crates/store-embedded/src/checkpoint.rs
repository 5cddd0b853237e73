//! Checkpoints: memory goes to disk, and the journal up to it may go.
//!
//! In: the state at one moment, frozen under the lock. Out: run files, synced; then one batch of the catalog, which makes them
//! count; then, and only then, the journal is told and dropped files are removed. A crash at any point
//! leaves either the old list or the new one, and files that no list names are leftovers.
//! One thread does this, and merging and resolving with it, so that none of them sees another half-way.

mod rows;

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};

use bytes::Bytes;
use punctual_core::{FireId, Lease, PartitionId, TaskId, Timestamp};
use punctual_store::Counts;
use punctual_store::codec::read_record_id;

use crate::buffer::Buffer;
use crate::catalog::{Batch, Listed, Meta, Owned, Paused, RunKind};
use crate::fault::{Fault, Reading};
use crate::history::HistoryBuffer;
use crate::inner::Inner;
use crate::journal::{CommitNo, Stopwatch};
use crate::key::Key;
use crate::layers::{IdHash, Rows};
use crate::names::{NameHash, NameRow};
use crate::run::{Birth, Run, RunNo, RunWriter};
use crate::standing::Standing;
use crate::state::{Endings, PACES, State};
use crate::timeline::{Slice, Timeline};

/// What is written by one checkpoint.
pub(crate) struct Frozen {
    pub(crate) commit: CommitNo,
    birth: Birth,
    buffer: Arc<Buffer>,
    history: Arc<HistoryBuffer>,
    endings: Arc<Endings>,
    timeline: Arc<Timeline>,
    standings: Arc<Rows<TaskId, Option<Standing>, IdHash>>,
    /// What the catalog has of them, as far as memory knows it.
    standings_before: Option<Arc<Rows<TaskId, Option<Standing>, IdHash>>>,
    /// Whether the catalog has any standings, and any paused tasks.
    beneath: (bool, bool),
    names: Arc<Rows<NameRow, (), NameHash>>,
    paused: Arc<Rows<TaskId, Option<Paused>, IdHash>>,
    dead: Arc<Rows<FireId, Option<Bytes>, IdHash>>,
    counts: Vec<(PartitionId, String, Counts)>,
    leases: Vec<Lease>,
    owned: Vec<(PartitionId, Owned)>,
    history_finished: Vec<Arc<Run>>,
    history_swept: Vec<Listed>,
    now: Timestamp,
}

/// Does a part of a checkpoint, and says how long it took.
pub(crate) fn timed<T>(part: &'static str, work: impl FnOnce() -> T) -> T {
    let stopwatch = Stopwatch::start();
    let done = work();
    let took_ms = stopwatch.elapsed().as_secs_f64() * 1e3;
    tracing::debug!(part, took_ms, "checkpoint");
    done
}

/// How far the writing of a buffer has come, told to those who wait for it: each entry counts once when it is put into its file, and
/// once when that is on disk.
struct Pace<'a> {
    inner: &'a Inner,
    total: usize,
    done: usize,
    told: usize,
}

impl<'a> Pace<'a> {
    const fn new(inner: &'a Inner, entries: usize) -> Self {
        Self { inner, total: entries * 2, done: 0, told: 0 }
    }

    fn go_on(&mut self, entries: usize) -> Result<(), Fault> {
        self.done += entries;
        let written = self.done * PACES / self.total;
        if written > self.told {
            self.told = written;
            let mut state = self.inner.state()?;
            state.written = written;
            self.inner.set_pressure(&state);
        }
        Ok(())
    }
}

/// Numbers of runs to come.
#[derive(Debug)]
pub(crate) struct RunNumbers(pub(crate) u64);

impl RunNumbers {
    pub(crate) fn take(&mut self) -> RunNo {
        self.0 += 1;
        RunNo(self.0 - 1)
    }
}

/// Runs that a checkpoint adds and drops.
#[derive(Debug, Default)]
pub(crate) struct Exchange {
    pub(crate) added: Vec<(RunKind, Arc<Run>)>,
    pub(crate) dropped: Vec<Arc<Run>>,
}

impl Inner {
    /// Takes everything that changed out of the way of writers, to be written. None if nothing did since `unless`.
    pub(crate) fn freeze(&self, unless: Option<CommitNo>) -> Result<Option<Frozen>, Fault> {
        let mut state = self.state()?;
        let idle = unless == Some(state.commit)
            && state.buffered() == 0
            && state.changed_bytes() == 0
            && state.ended.len() == 0
            && state.history.finished().is_empty();
        if idle {
            return Ok(None);
        }
        Ok(Some(self.freeze_state(&mut state)))
    }

    /// Writes what was frozen, and what merging exchanges with it, and gives the runs that are no longer needed. After an
    /// error that passes it can be called again.
    pub(crate) fn checkpoint(
        &self,
        frozen: &Frozen,
        mut exchange: Exchange,
        numbers: &mut RunNumbers,
    ) -> Result<Vec<Arc<Run>>, Fault> {
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

    fn freeze_state(&self, state: &mut State) -> Frozen {
        let birth = state.birth;
        state.birth = Birth(birth.0 + 1);
        let buffer = Arc::new(std::mem::take(&mut state.buffer));
        state.frozen = Some((birth, Arc::clone(&buffer)));
        let history = Arc::new(std::mem::take(&mut state.history.buffer));
        state.history.frozen = Some(Arc::clone(&history));
        let endings = Arc::new(state.ended.take());
        state.resolving = Some(Arc::clone(&endings));
        state.journal_bytes = 0;
        state.written = 0;
        state.postponed_order.freeze();
        state.paused_order.freeze();
        state.names_order.freeze();
        Frozen {
            commit: state.commit,
            birth,
            buffer,
            history,
            endings,
            timeline: Arc::clone(&state.timeline),
            standings: state.standings.freeze(),
            standings_before: state.standings.clean(),
            beneath: (state.standings.beneath(), state.paused.beneath()),
            names: state.names.freeze(),
            paused: state.paused.freeze(),
            dead: state.dead.freeze(),
            counts: take_counts(state),
            leases: state.leases.values().cloned().collect(),
            owned: self.options.partitions.iter().map(|id| (id, owned_of(state, id))).collect(),
            history_finished: state.history.finished(),
            history_swept: state.history.take_changed(),
            now: state.now,
        }
    }

    fn write(
        &self,
        frozen: &Frozen,
        exchange: &mut Exchange,
        numbers: &mut RunNumbers,
    ) -> Result<(), Fault> {
        self.step()?;
        let stale = timed("bits", || self.set_bits(&frozen.endings, &frozen.timeline))?;
        for (_, run) in &exchange.added {
            // Runs that were merged meanwhile are not on the timeline yet.
            self.set_bits_of_merged(frozen, run)?;
        }
        timed("tasks", || self.write_tasks(frozen, exchange, numbers))?;
        let history = timed("history", || self.write_history(frozen, numbers))?;
        self.step()?;
        timed("directory", || self.files.sync_dir())?;

        let mut batch = self.catalog.batch();
        let finished: Vec<Arc<Run>> = frozen
            .timeline
            .runs()
            .filter(|run| run.ended.count() == run.count())
            .filter(|run| !exchange.dropped.iter().any(|dropped| dropped.no == run.no))
            .cloned()
            .collect();
        exchange.dropped.extend(finished);
        exchange.dropped.extend(frozen.history_finished.iter().cloned());
        if let Some(run) = history {
            exchange.added.push((RunKind::History, run));
        }
        self.write_rows(&mut batch, frozen, &stale)?;
        // Before bits are taken: what was taken is not there again when this is tried again.
        self.check_room(batch.bytes())?;
        self.write_runs(&mut batch, frozen, exchange);
        batch.meta(Meta {
            commit: frozen.commit,
            birth: Birth(frozen.birth.0 + 1),
            run_next: numbers.0,
            now: frozen.now.as_millis(),
        });
        self.step()?;
        timed("catalog", || batch.commit())?;
        self.step()
    }

    /// A catalog that runs out of room half-way cannot be used until it is opened anew, so it is not begun then. It writes a
    /// batch to its journal, then to a table, and that table once more when it is merged.
    fn check_room(&self, batch_bytes: u64) -> Result<(), Fault> {
        let need = self.options.room_bytes_min.saturating_add(batch_bytes.saturating_mul(3));
        let dir = self.files.dir();
        let free = rustix::fs::statvfs(dir)
            .map_err(|errno| Fault::io("ask for room in", dir, errno.into()))?;
        if free.f_bavail.saturating_mul(free.f_frsize) >= need {
            return Ok(());
        }
        let full = std::io::Error::from(std::io::ErrorKind::StorageFull);
        Err(Fault::io("checkpoint in", dir, full))
    }

    /// What ended after the merge began stands in the merged runs as living.
    fn set_bits_of_merged(&self, frozen: &Frozen, run: &Arc<Run>) -> Result<(), Fault> {
        for (id, ending) in frozen.endings.iter() {
            let filed_at = match ending.filed_at {
                Some(at) => at,
                None => {
                    let standing = self.catalog.standing(id)?;
                    standing.and_then(|standing| standing.filed_at()).unwrap_or(id.due())
                }
            };
            let key = Key::new(filed_at, id);
            if run.birth < ending.before
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
        frozen: &Frozen,
        exchange: &mut Exchange,
        numbers: &mut RunNumbers,
    ) -> Result<(), Fault> {
        let mut writers: BTreeMap<Slice, RunWriter> = BTreeMap::new();
        let mut pace = Pace::new(self, frozen.buffer.len());
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
            pace.go_on(1)?;
        }
        for (slice, writer) in writers {
            if let Some(written) = writer.finish()? {
                let run = Arc::new(Run::new(written, frozen.birth));
                pace.go_on(run.count() as usize)?;
                exchange.added.push((slice.kind(), run));
            }
            self.step()?;
        }
        Ok(())
    }

    fn write_history(
        &self,
        frozen: &Frozen,
        numbers: &mut RunNumbers,
    ) -> Result<Option<Arc<Run>>, Fault> {
        if frozen.history.is_empty() {
            return Ok(None);
        }
        let no = numbers.take();
        let mut writer = RunWriter::new(&self.files, no, self.options.block_bytes)?;
        for (fire_id, record) in frozen.history.sorted() {
            let (_, ended_at) = read_record_id(record).reading("record of a fire")?;
            writer.note_newest(ended_at);
            writer.push(Key::home(fire_id.task), record)?;
        }
        let written = writer.finish()?;
        Ok(written.map(|written| Arc::new(Run::new(written, frozen.birth))))
    }

    fn write_runs(&self, batch: &mut Batch<'_>, frozen: &Frozen, exchange: &Exchange) {
        for (kind, run) in &exchange.added {
            batch.run(&Listed {
                no: run.no,
                birth: run.birth,
                kind: *kind,
                file_bytes: run.file_bytes,
                swept: Vec::new(),
            });
        }
        // A batch must not both write and remove a row: it has no order within.
        let stays = |no| !exchange.dropped.iter().any(|dropped| dropped.no == no);
        for listed in frozen.history_swept.iter().filter(|listed| stays(listed.no)) {
            batch.run(listed);
        }
        let is_dropped = |run: &Run| exchange.dropped.iter().any(|dropped| dropped.no == run.no);
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

    fn thaw(&self, frozen: &Frozen, exchange: &Exchange) -> Result<(), Fault> {
        let [standings, names, paused, dead] = self.catalog.filled()?;
        let dropped: Vec<RunNo> = exchange.dropped.iter().map(|run| run.no).collect();
        let is_history = |kind: &RunKind| *kind == RunKind::History;
        let (history, tasks): (Vec<_>, Vec<_>) =
            exchange.added.iter().cloned().partition(|(kind, _)| is_history(kind));
        let timeline = Arc::new(frozen.timeline.with(tasks, &dropped));

        let mut state = self.state()?;
        state.timeline = timeline;
        state.history.remove(&dropped);
        for (_, run) in history {
            state.history.add(run, &[]);
        }
        // Taken out here, freed after the lock: a buffer is hundreds of thousands of entries.
        let spent = (
            state.frozen.take(),
            state.history.frozen.take(),
            state.resolving.take(),
            state.standings.thaw(standings),
            state.names.thaw(names),
            state.paused.thaw(paused),
            state.dead.thaw(dead),
        );
        let noted =
            (state.postponed_order.thaw(), state.paused_order.thaw(), state.names_order.thaw());
        state.checkpoints += 1;
        self.set_pressure(&state);
        drop(state);
        drop((spent, noted));
        self.forget_loadings();
        Ok(())
    }

    /// Where loading goes on is found anew on the new timeline; the old one keeps files that may go.
    fn forget_loadings(&self) {
        for loading in &self.loadings {
            let loading = loading.lock().unwrap_or_else(PoisonError::into_inner).take();
            drop(loading);
        }
    }

    /// Waits until the background has done a whole round, begun after this.
    pub(crate) fn wait_for_round(&self) {
        let mut work = self.work.lock().unwrap_or_else(PoisonError::into_inner);
        // The round under way may have begun before what it is wanted for.
        let round = work.rounds + 1 + u64::from(work.busy);
        work.checkpoint = true;
        self.work_come.notify_all();
        while work.rounds < round && !work.stop && self.broken().is_none() {
            work = self.work_come.wait(work).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

fn owned_of(state: &State, id: PartitionId) -> Owned {
    let own = state.partition(id);
    Owned { batch: own.batch }
}

fn take_counts(state: &mut State) -> Vec<(PartitionId, String, Counts)> {
    let mut changed = Vec::new();
    for (own, number) in state.partitions.iter_mut().zip(0u16..) {
        let Some(partition) = PartitionId::new(number) else {
            continue;
        };
        for (namespace, tally) in &mut own.counts {
            if std::mem::take(&mut tally.changed) {
                changed.push((partition, namespace.clone(), tally.counts));
            }
        }
    }
    changed
}
