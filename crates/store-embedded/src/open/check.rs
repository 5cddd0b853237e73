//! Checking: read, verify and count everything in the directory of a closed store, without changing
//! it.
//!
//! Damage that prevents opening is an error; all other problems are collected in a [`CheckReport`].
//! What can be read one by one must also be listed: `listing`.

mod listing;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use punctual_core::{FireId, PartitionId, Task, TaskId, TaskState};
use punctual_journal::ReplayError;
use punctual_store::codec::{read_letter, read_record, read_summary};
use punctual_store::{DueMinute, LetterGroups, Position};

use crate::catalog::Catalog;
use crate::fault::{ReadContext, StorageFault};
use crate::fire_index::{FireIndex, IndexCursor};
use crate::key::EntryKey;
use crate::open::check::listing::{CountsByNamespace, RECORDS_PER_SAMPLE, fire_of};
use crate::open::count::CountedPartition;
use crate::open::directory::{Directory, EmbeddedOpenError};
use crate::open::restore;
use crate::options::EmbeddedOptions;
use crate::read::fetch::FetchPart;
use crate::read::list::end_of;
use crate::run::{RunFiles, SortedRun};
use crate::state::history::HistoryRun;
use crate::state::order::ListedKind;
use crate::store_core::StoreCore;

/// Entries that are checked together.
const CHECK_CHUNK: usize = 4096;

/// What a check found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CheckReport {
    /// Scheduled tasks.
    pub scheduled: u64,
    /// Paused tasks.
    pub paused: u64,
    /// Watches that have fired and wait to be touched.
    pub silent_watches: u64,
    /// Names.
    pub names: u64,
    /// Dead letters.
    pub dead_letters: u64,
    /// Records of fires in runs.
    pub records: u64,
    /// Runs of tasks and of history.
    pub runs: u64,
    /// Bytes of all runs and their indexes.
    pub run_bytes: u64,
    /// Commits that are only in the journal.
    pub replayed: u64,
    /// The problems, as sentences.
    pub problems: Vec<String>,
}

/// Reads and verifies everything in the directory of a store that no process has open.
pub fn check(dir: &Path) -> Result<CheckReport, EmbeddedOpenError> {
    let directory = Directory::take_existing(dir)?;
    let mut options = EmbeddedOptions::new(directory.partitions);
    options.slice = std::time::Duration::from_millis(directory.slice_millis);
    let files = RunFiles::new(directory.runs(), options.files_open_max);
    let catalog = Catalog::open(&directory.catalog(), &options)?;
    let restored = restore(&directory, &options, &catalog, &files)?;
    let core = StoreCore::new(options, files, catalog, restored.state);
    let mut replay =
        |no, commit: Bytes| core.apply(no, &commit).map_err(|fault| Arc::new(fault) as ReplayError);
    let after = restored.meta.commit;
    let opened =
        punctual_journal::check(&directory.journal(), directory.store, after, &mut replay)?;
    let mut report = CheckReport { replayed: opened.replayed, ..CheckReport::default() };
    core.check_runs(&mut report)?;
    core.check_names(&mut report)?;
    let mut live = CountsByNamespace::new();
    for partition in core.options.partitions.iter() {
        core.check_partition_of(partition, &mut live, &mut report)?;
    }
    core.compare_counts(&mut live, &mut report)?;
    core.check_lists(&live, &mut report)?;
    Ok(report)
}

/// The live tasks by state, and the dead letters, of one partition and namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct LiveCounts {
    scheduled: i64,
    paused: i64,
    /// Watches that have fired: done or dead.
    done: i64,
    dead: i64,
    dead_letters: i64,
}

impl LiveCounts {
    const fn add(&mut self, state: TaskState) {
        match state {
            TaskState::Paused => self.paused += 1,
            TaskState::Done => self.done += 1,
            TaskState::Dead => self.dead += 1,
            TaskState::Scheduled | TaskState::Firing | TaskState::Cancelled => self.scheduled += 1,
        }
    }

    const fn silent_watches(self) -> i64 {
        self.done + self.dead
    }

    const fn tasks(self) -> i64 {
        self.scheduled + self.paused + self.silent_watches()
    }
}

impl CheckReport {
    fn note(&mut self, outcome: Result<(), StorageFault>) {
        if let Err(fault) = outcome {
            self.problems.push(fault.to_string());
        }
    }
}

impl StoreCore {
    /// Verifies every block of every run: checksums, order, and that each body can be decoded.
    fn check_runs(&self, report: &mut CheckReport) -> Result<(), StorageFault> {
        let (tasks, history): (Vec<Arc<SortedRun>>, Vec<HistoryRun>) = {
            let state = self.state()?;
            (state.timeline.runs().cloned().collect(), state.history.runs.clone())
        };
        for run in &tasks {
            report.runs += 1;
            report.run_bytes += run.file_bytes;
            let outcome = self.check_run(run, |key, body| {
                read_summary(key.id, key.at, body).reading("task").map(|_| ())
            });
            report.note(outcome);
        }
        let mut samples = self.sampled_in_memory()?;
        for history in &history {
            let run = &history.run;
            report.runs += 1;
            report.run_bytes += history.file_bytes();
            report.records += u64::from(run.count());
            let (mut records, mut sampled) = (0, Vec::<FireId>::new());
            let outcome = self.check_run(run, |_, body| {
                read_record(body, &self.interner).reading("record of a fire")?;
                if records % RECORDS_PER_SAMPLE == 0 {
                    sampled.push(fire_of(body)?);
                }
                records += 1;
                Ok(())
            });
            report.note(outcome);
            report.note(self.check_index(run));
            sampled.retain(|fire_id| !history.is_swept(fire_id.task.partition()));
            samples.extend(sampled);
        }
        self.check_samples(&samples, report)
    }

    /// Verifies every block of the index of a run of history, and that it has what the records say.
    /// A run without an index is no problem: the next opening writes it.
    fn check_index(&self, run: &SortedRun) -> Result<(), StorageFault> {
        let Some(index) = FireIndex::open(&self.files, run)? else { return Ok(()) };
        let wanted = FireIndex::of_run(&self.files, run, self.options.block_bytes)?;
        let mut found = IndexCursor::seek(&self.files, Arc::new(index), &[])?;
        let mut wanted = IndexCursor::seek(&self.files, Arc::new(wanted), &[])?;
        while found.entry() == wanted.entry() {
            if found.entry().is_none() {
                return Ok(());
            }
            found.advance(&self.files)?;
            wanted.advance(&self.files)?;
        }
        let what = "it does not have what the records of its run say";
        Err(StorageFault::damaged(&self.files.index_path(run.no), 0, what))
    }

    fn check_run(
        &self,
        run: &SortedRun,
        mut each: impl FnMut(EntryKey, &[u8]) -> Result<(), StorageFault>,
    ) -> Result<(), StorageFault> {
        let mut last: Option<EntryKey> = None;
        for block_no in 0..run.footer.fences.len() {
            let block = run.read_block(&self.files, block_no)?;
            let damaged = |what| run.damaged(&self.files, block_no, what);
            for index in 0..block.keys.len() {
                let key = block.keys.key(index).map_err(damaged)?;
                if last.is_some_and(|last| last > key) {
                    return Err(damaged("its entries are not in order"));
                }
                last = Some(key);
                each(key, &block.body(index).map_err(damaged)?)?;
            }
        }
        if last != Some(run.last()) {
            return Err(StorageFault::damaged(
                &self.files.path(run.no),
                0,
                "its last entry is not the one in the footer",
            ));
        }
        Ok(())
    }

    /// Verifies that every name leads to a live task.
    fn check_names(&self, report: &mut CheckReport) -> Result<(), StorageFault> {
        let mut rows = BTreeMap::new();
        self.catalog.all_names(|name, head| {
            rows.insert(name, Some(head.id));
        })?;
        {
            let state = self.state()?;
            let mut known = std::collections::HashSet::new();
            for (row, ()) in state.names.iter() {
                if known.insert(row.clone()) {
                    let in_catalog = self.catalog.head(row.name())?;
                    let head = row.target().reading("name")?.resolve(in_catalog);
                    rows.insert(row.name().into(), head.map(|head| head.id));
                }
            }
        }
        let named: Vec<TaskId> = rows.into_values().flatten().collect();
        report.names = named.len() as u64;
        for chunk in named.chunks(CHECK_CHUNK) {
            for id in chunk {
                let found = self.fetch(id.partition(), &[*id], FetchPart::Presence)?;
                if matches!(found.as_slice(), [None]) {
                    report
                        .problems
                        .push(format!("a name leads to task {id}, which does not exist"));
                }
            }
        }
        Ok(())
    }

    /// Counts the live tasks and the dead letters of a partition, one by one.
    fn check_partition_of(
        &self,
        partition: PartitionId,
        live: &mut CountsByNamespace,
        report: &mut CheckReport,
    ) -> Result<(), StorageFault> {
        let mut counted = CountedPartition::default();
        let relocated = self.each_scheduled(partition, |task| {
            counts_of(live, task).add(task.state);
            counted.add(task);
        })?;
        let mut paused = BTreeSet::new();
        self.each_paused(partition, |task| {
            counts_of(live, &task).add(task.state);
            counted.add(&task);
            paused.insert(EntryKey::new(task.fire_at, task.id));
            Ok(())
        })?;
        let postponed =
            relocated.iter().map(|(id, fire_at)| EntryKey::new(*fire_at, *id)).collect();
        self.check_order(ListedKind::Postponed, partition, postponed, report)?;
        self.check_order(ListedKind::Paused, partition, paused, report)?;
        self.each_letter(partition, |_, letter| {
            let letter = read_letter(&letter, &self.interner).reading("dead letter")?;
            counts_of(live, &letter.task).dead_letters += 1;
            counted.add_letter(&letter);
            Ok(())
        })?;
        // A store of an earlier version is counted when it is opened.
        if self.state()?.counted {
            self.compare_counted(partition, counted, report)
        } else {
            Ok(())
        }
    }

    /// Compares due counts, the index of series and groups of dead letters with what was found.
    fn compare_counted(
        &self,
        partition: PartitionId,
        found: CountedPartition,
        report: &mut CheckReport,
    ) -> Result<(), StorageFault> {
        let stored = self.stored_counts(partition)?;
        let mut problem = |what: String| report.problems.push(format!("{partition}, {what}"));
        let mut names: BTreeSet<&String> = stored.due.keys().chain(found.due.keys()).collect();
        for name in &names {
            let [kept, counted] = [&stored, &found].map(|it| it.due.get(*name));
            let minutes = |due: Option<&BTreeMap<DueMinute, i64>>| {
                due.into_iter().flatten().filter(|(_, count)| **count != 0).count()
            };
            let different = kept.into_iter().flatten().find(|(minute, count)| {
                counted.and_then(|due| due.get(minute)).copied().unwrap_or(0) != **count
            });
            if different.is_some() || minutes(kept) != minutes(counted) {
                let at = different.map(|(minute, _)| minute.start().to_string());
                problem(format!(
                    "namespace {name}: stored counts of due tasks differ from what was found{}",
                    at.map(|at| format!(" in the minute of {at}")).unwrap_or_default()
                ));
            }
        }
        let missing = found.series.difference(&stored.series).count();
        let superfluous = stored.series.difference(&found.series).count();
        if missing + superfluous > 0 {
            problem(format!(
                "{missing} series are not in the index of series, {superfluous} of its entries \
                 lead to no series"
            ));
        }
        names = stored.letter_groups.keys().chain(found.letter_groups.keys()).collect();
        for name in names {
            let [kept, counted] = [&stored, &found]
                .map(|it| it.letter_groups.get(name).map_or(0, LetterGroups::letters));
            if kept != counted {
                problem(format!(
                    "namespace {name}: groups of dead letters have {kept} letters, but {counted} \
                     were found"
                ));
            }
        }
        Ok(())
    }

    /// Calls `each` for every paused task of a partition, in any order.
    pub(super) fn each_paused(
        &self,
        partition: PartitionId,
        mut each: impl FnMut(Task) -> Result<(), StorageFault>,
    ) -> Result<(), StorageFault> {
        let mut buffered = BTreeMap::new();
        for (id, paused) in self.state()?.paused.iter() {
            if id.partition() == partition {
                buffered.entry(*id).or_insert_with(|| paused.clone());
            }
        }
        let mut result = Ok(());
        self.catalog.paused_of(partition, |id, paused| {
            if result.is_ok() && !buffered.contains_key(&id) {
                result = self.paused_task(id, &paused).and_then(&mut each);
            }
        })?;
        result?;
        for (id, paused) in buffered {
            if let Some(paused) = paused {
                each(self.paused_task(id, &paused)?)?;
            }
        }
        Ok(())
    }

    /// Verifies that every postponed or paused task is listed under its time.
    fn check_order(
        &self,
        kind: ListedKind,
        partition: PartitionId,
        mut wanted: BTreeSet<EntryKey>,
        report: &mut CheckReport,
    ) -> Result<(), StorageFault> {
        let mut after = EntryKey::after(partition, Position::START);
        let end = end_of(partition, punctual_core::Timestamp::MAX);
        while after < end {
            let mut covered = end;
            for key in self.order_after(kind, (after, end), CHECK_CHUNK, &mut covered)? {
                wanted.remove(&key);
            }
            after = covered;
        }
        for EntryKey { at, id, .. } in wanted {
            let at = at.as_millis();
            report
                .problems
                .push(format!("task {id} is due at {at} ms but is not listed at that time"));
        }
        Ok(())
    }

    /// Compares what was found with the stored counts. These also count tasks that have ended as
    /// done or dead, so only a lower number of them is a problem.
    fn compare_counts(
        &self,
        live: &mut CountsByNamespace,
        report: &mut CheckReport,
    ) -> Result<(), StorageFault> {
        let state = self.state()?;
        for partition in self.options.partitions.iter() {
            for namespace in state.partition(partition).counts.keys() {
                live.entry((partition, namespace.clone())).or_default();
            }
        }
        for ((partition, namespace), found) in live {
            report.scheduled += u64::try_from(found.scheduled).unwrap_or(0);
            report.paused += u64::try_from(found.paused).unwrap_or(0);
            report.silent_watches += u64::try_from(found.silent_watches()).unwrap_or(0);
            report.dead_letters += u64::try_from(found.dead_letters).unwrap_or(0);
            let tally = state.partition(*partition).counts.get(namespace);
            let kept = tally.map(|tally| tally.counts).unwrap_or_default();
            let expected = (kept.scheduled, kept.paused, kept.dead_letters);
            let counted = (found.scheduled, found.paused, found.dead_letters);
            if expected != counted {
                report.problems.push(format!(
                    "{partition}, namespace {namespace}: stored counts of scheduled tasks, paused \
                     tasks and dead letters are {expected:?}, but {counted:?} were found"
                ));
            }
            if kept.done < found.done || kept.dead < found.dead {
                let (kept, found) = ((kept.done, kept.dead), (found.done, found.dead));
                report.problems.push(format!(
                    "{partition}, namespace {namespace}: stored counts of done and dead tasks are \
                     {kept:?}, but {found:?} watches in these states were found"
                ));
            }
        }
        Ok(())
    }
}

fn counts_of<'a>(live: &'a mut CountsByNamespace, task: &Task) -> &'a mut LiveCounts {
    let namespace = task.definition.namespace.as_str().to_owned();
    live.entry((task.id.partition(), namespace)).or_default()
}
