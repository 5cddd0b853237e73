//! The embedded store: the two contracts, built on the rest of this crate.
//!
//! A write is fenced and numbered against what was *admitted* to the journal, which may be ahead of
//! what is durable. The store answers when the journal has made the write durable and the state has
//! applied it, so a read after the answer sees it.
//! Reads that memory can answer are result at once; reads that need the disk run on a blocking
//! thread.

mod leases;

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use punctual_core::{
    DeadLetter, Epoch, FireId, FireRecord, Lease, Namespace, PartitionId, Seat, Task, TaskId,
    TaskKey, Timestamp,
};
use punctual_journal::{
    Class, CommitNo, Journal, JournalEntry, JournalError, JournalOptions, ReplayError, WriterTurn,
};
use punctual_store::{
    Batch, BatchNo, CountedGroup, CountedNamespace, Counts, DueCounts, DueSteps, Filter,
    FireFilter, FirePosition, HISTORY_BYTES_MAX, Head, Page, Position, RepairNo, Resource,
    Retention, StoreError, Swept, TaskStore,
};
use tokio::sync::{Mutex, oneshot};

use crate::catalog::Catalog;
use crate::checkpoint::RunNumbers;
use crate::checkpoint::background::Background;
use crate::fault::StorageFault;
use crate::open::directory::{Directory, EmbeddedOpenError};
use crate::open::{OpenReport, index_history, remove_leftovers, restore};
use crate::options::EmbeddedOptions;
use crate::read::find::names_of;
use crate::run::RunFiles;
use crate::state::partition::stored_name;
use crate::store_core::StoreCore;
use crate::write::commit::{empty_commit, sweep_commit};
use crate::write::encode::{BatchLookups, class_of};

/// Tasks that are decoded on the thread of the caller if they are in memory: some microseconds
/// each, which is less than a change of thread.
const DECODED_HERE_MAX: usize = 16;

/// Tasks kept in a directory, by one process.
#[derive(Debug)]
pub struct EmbeddedStore {
    admission: Mutex<Admission>,
    // Dropped in this order: the thread ends before the journal that it reports checkpoints to, and
    // both end before the lock of the directory is released.
    background: std::sync::Mutex<Background>,
    pub(crate) journal: Arc<Journal<PendingCommit>>,
    pub(crate) core: Arc<StoreCore>,
    _directory: Directory,
}

/// A commit that waits in the journal, and the call that waits for it.
#[derive(Debug)]
pub(crate) struct PendingCommit {
    bytes: Bytes,
    reply: oneshot::Sender<Result<(), StoreError>>,
}

/// Yields what became of a commit.
type CommitResult = oneshot::Receiver<Result<(), StoreError>>;

/// What was admitted to the journal, durable or not.
#[derive(Debug)]
struct Admission {
    seats: BTreeMap<Seat, Lease>,
    batches: Vec<Option<BatchNo>>,
    /// The last repair of each partition and its epoch. Only in memory: an owner does not outlive
    /// the store.
    repairs: HashMap<PartitionId, (Epoch, RepairNo)>,
}

impl EmbeddedStore {
    /// Opens the store in a directory, or creates one there.
    pub fn open(
        dir: &Path,
        options: EmbeddedOptions,
    ) -> Result<(Self, OpenReport), EmbeddedOpenError> {
        let directory = Directory::take(dir, &options)?;
        let mut options = options;
        options.slice = Duration::from_millis(directory.slice_millis);
        options.fit(directory.disk_bytes()?);
        let runs = directory.runs();
        std::fs::create_dir_all(&runs)
            .map_err(|source| StorageFault::io("create", &runs, source))?;
        let files = RunFiles::new(runs, options.files_open_max);
        let catalog = Catalog::open(&directory.catalog(), &options)?;
        let restored = restore(&directory, &options, &catalog, &files)?;
        let leftovers = remove_leftovers(&files, &restored.state)?;
        let (meta, mut state) = (restored.meta, restored.state);
        index_history(&files, options.block_bytes, &mut state);

        let mut journal_options = JournalOptions::new(directory.store);
        journal_options.file_bytes = options.journal_file_bytes;
        let core = Arc::new(StoreCore::new(options, files, catalog, state));
        let mut replay = |no, commit: Bytes| {
            let taken = core.apply(no, &commit);
            taken.map_err(|fault| Arc::new(fault) as ReplayError)
        };
        let on_durable = {
            let core = Arc::clone(&core);
            move |no: Result<_, &JournalError>, item: PendingCommit| {
                let outcome = match no {
                    Ok(no) => core.apply(no, &item.bytes).map_err(StoreError::from),
                    Err(error) => Err(refusal(&core, error)),
                };
                // The caller may have stopped waiting.
                let _ = item.reply.send(outcome);
            }
        };
        let (journal, opened) = Journal::open(
            &directory.journal(),
            journal_options,
            meta.commit,
            &mut replay,
            on_durable,
        )?;
        let journal = Arc::new(journal);
        if meta.commit == CommitNo(0) && opened.replayed == 0 {
            core.begin_counting()?;
        }
        core.count_if_missing()?;
        let admission = {
            let state = core.state()?;
            Admission {
                seats: state.leases.clone(),
                batches: state.partitions.iter().map(|own| own.batch).collect(),
                repairs: HashMap::new(),
            }
        };
        let numbers = RunNumbers(meta.run_next);
        let background =
            Background::start(Arc::clone(&core), Arc::clone(&journal), numbers, meta.commit)?;
        let report = OpenReport {
            replayed: opened.replayed,
            closed_cleanly: opened.closed_cleanly,
            dropped: opened.dropped,
            leftovers,
            tightened: directory.tightened.clone(),
        };
        let store = Self {
            admission: Mutex::new(admission),
            background: std::sync::Mutex::new(background),
            journal,
            core,
            _directory: directory,
        };
        Ok((store, report))
    }

    /// Writes everything that is in memory to runs and catalog, so that the next opening has
    /// nothing to replay.
    pub async fn checkpoint(&self) -> Result<(), StoreError> {
        self.blocking(|core| {
            core.wait_for_round();
            match core.broken() {
                Some(why) => Err(StorageFault::Broken(why.into())),
                None => Ok(()),
            }
        })
        .await
    }

    /// Closes the store: makes what was accepted durable, writes a checkpoint, and puts the closing
    /// mark in the journal. Dropping the store instead is like a crash.
    pub async fn close(self) -> Result<(), StoreError> {
        self.checkpoint().await?;
        if let Some(why) = self.core.full() {
            tracing::warn!(
                why,
                "store closed without a checkpoint, the next opening replays the journal"
            );
        }
        let closing = tokio::task::spawn_blocking(move || {
            match self.background.lock() {
                Ok(mut background) => background.stop(),
                Err(poisoned) => poisoned.into_inner().stop(),
            }
            self.journal.close().map_err(|error| refusal(&self.core, &error))
        });
        closing.await.map_err(panicked)?
    }

    /// For tests: starts a checkpoint, stops it after so many steps, and leaves the files as they
    /// are then.
    #[doc(hidden)]
    pub fn crash_after(self, steps: u64) {
        self.core.stop_after(steps);
        self.core.wait_for_round();
        drop(self);
    }

    /// Runs a read of the disk on a blocking thread.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&StoreCore) -> Result<T, StorageFault> + Send + 'static,
    ) -> Result<T, StoreError> {
        let core = Arc::clone(&self.core);
        let work = tokio::task::spawn_blocking(move || read(&core, work));
        Ok(work.await.map_err(panicked)??)
    }

    /// Runs a read of memory on this thread.
    fn here<T>(
        &self,
        work: impl FnOnce(&StoreCore) -> Result<T, StorageFault>,
    ) -> Result<T, StoreError> {
        Ok(read(&self.core, work)?)
    }

    /// Appends a commit to the journal. The caller holds the lock of `admission`, which keeps
    /// commits in the order in which they were admitted.
    async fn append(&self, commit: Bytes, class: Class) -> Result<CommitResult, StoreError> {
        let (result, _) = self.append_here(commit, class, Duration::ZERO).await?;
        Ok(result)
    }

    /// The same, for a caller whose thread may be blocked for `spare`: it may get the turn to write
    /// the commit.
    async fn append_here(
        &self,
        commit: Bytes,
        class: Class,
        spare: Duration,
    ) -> Result<(CommitResult, Option<WriterTurn<'_, PendingCommit>>), StoreError> {
        if let Some(why) = self.core.broken() {
            return Err(StoreError::Broken(why.to_owned()));
        }
        if class == Class::Grow
            && let Some(why) = self.core.full()
        {
            return Err(StoreError::Full { resource: Resource::Disk, why });
        }
        let (reply, result) = oneshot::channel();
        let item = PendingCommit { bytes: commit.clone(), reply };
        let entry = JournalEntry { bytes: commit, class, item };
        match self.journal.append(entry, spare).await {
            Ok(turn) => Ok((result, turn)),
            Err(why) => Err(refusal(&self.core, &why)),
        }
    }

    /// Waits until everything that was admitted before is durable and applied.
    async fn settle_admitted(&self) -> Result<(), StoreError> {
        let result = self.append(empty_commit(), Class::Shrink).await?;
        result.await.map_err(|_| journal_gone())?
    }

    /// Whether this batch was admitted before. If so, waits until it is durable and applied.
    async fn admit_again(
        &self,
        partition: PartitionId,
        epoch: Epoch,
        (number, repair): (BatchNo, RepairNo),
    ) -> Result<bool, StoreError> {
        let mut admission = self.admission.lock().await;
        let last = admission.check(partition, epoch, (number, repair))?;
        if last != Some(number) {
            let applied = self.core.state()?.partition(partition).batch;
            if applied != last {
                // The caller of an earlier batch stopped waiting, but the journal still writes that
                // batch.
                self.settle_admitted().await?;
            }
            return Ok(false);
        }
        admission.repairs.insert(partition, (epoch, repair));
        self.settle_admitted().await?;
        Ok(true)
    }
}

/// Reads. Damage that one reader finds breaks the store for all.
fn read<T>(
    core: &StoreCore,
    work: impl FnOnce(&StoreCore) -> Result<T, StorageFault>,
) -> Result<T, StorageFault> {
    work(core).inspect_err(|fault| core.break_with(&fault.to_string()))
}

impl Admission {
    /// Checks the epoch, the number and the repair of a batch; returns the number that was
    /// admitted last.
    fn check(
        &self,
        partition: PartitionId,
        ours: Epoch,
        (given, repair): (BatchNo, RepairNo),
    ) -> Result<Option<BatchNo>, StoreError> {
        self.fence(partition, ours)?;
        let seen = self.repairs.get(&partition).filter(|(epoch, _)| *epoch == ours);
        if seen.is_some_and(|(_, seen)| repair < *seen) {
            return Err(StoreError::Fenced { partition, ours, current: ours });
        }
        let last = self.batches[usize::from(partition.get())];
        let expected = last.map_or(BatchNo::FIRST, BatchNo::next);
        if last == Some(given) || expected == given {
            return Ok(last);
        }
        Err(StoreError::Gap { partition, expected, given })
    }

    fn fence(&self, partition: PartitionId, ours: Epoch) -> Result<(), StoreError> {
        let seat = self.seats.get(&Seat::Partition(partition));
        let current = seat.map_or(Epoch::NONE, |lease| lease.epoch);
        if ours == current && current != Epoch::NONE {
            return Ok(());
        }
        Err(StoreError::Fenced { partition, ours, current })
    }
}

impl TaskStore for EmbeddedStore {
    async fn apply(
        &self,
        partition: PartitionId,
        epoch: Epoch,
        batch: Batch,
    ) -> Result<(), StoreError> {
        self.apply_here(partition, epoch, batch, Duration::ZERO).await
    }

    async fn apply_here(
        &self,
        partition: PartitionId,
        epoch: Epoch,
        batch: Batch,
        spare: Duration,
    ) -> Result<(), StoreError> {
        self.core.check_partition(partition)?;
        let (number, repair) = (batch.number, batch.repair);
        if self.admit_again(partition, epoch, (number, repair)).await? {
            return Ok(());
        }
        let class = class_of(&batch);
        let paused = self.core.may_have_paused()?;
        let lookups = BatchLookups::of(&batch, paused);
        let commit = if self.core.needs_disk(&lookups)? {
            self.blocking(move |core| core.encode(partition, &batch, &lookups)).await?
        } else {
            self.core.encode(partition, &batch, &lookups)?
        };
        self.core.throttle(class).await;
        let mut admission = self.admission.lock().await;
        let last = admission.check(partition, epoch, (number, repair))?;
        if last == Some(number) {
            drop(admission);
            return self.settle_admitted().await;
        }
        let (result, turn) = self.append_here(commit, class, spare).await?;
        admission.batches[usize::from(partition.get())] = Some(number);
        if repair > RepairNo::NONE {
            admission.repairs.insert(partition, (epoch, repair));
        }
        // Other partitions are admitted while this thread writes.
        drop(admission);
        if let Some(turn) = turn {
            turn.write();
        }
        let outcome = result.await.map_err(|_| journal_gone())?;
        if outcome.is_err() {
            let mut admission = self.admission.lock().await;
            let admitted = &mut admission.batches[usize::from(partition.get())];
            if *admitted == Some(number) {
                *admitted = last;
            }
        }
        outcome
    }

    async fn load(
        &self,
        partition: PartitionId,
        after: Position,
        until: Timestamp,
        limit: usize,
    ) -> Result<Vec<Task>, StoreError> {
        self.core.check_partition(partition)?;
        self.blocking(move |core| core.load(partition, after, until, limit)).await
    }

    async fn find(
        &self,
        partition: PartitionId,
        namespace: &Namespace,
        keys: &[TaskKey],
    ) -> Result<Vec<Option<Head>>, StoreError> {
        self.core.check_partition(partition)?;
        let names = names_of(partition, namespace, keys);
        if let Some(heads) = self.core.find_in_memory(&names)? {
            return Ok(heads);
        }
        self.blocking(move |core| core.find(&names)).await
    }

    async fn get(
        &self,
        partition: PartitionId,
        ids: &[TaskId],
    ) -> Result<Vec<Option<Task>>, StoreError> {
        self.core.check_partition(partition)?;
        if ids.len() <= DECODED_HERE_MAX
            && let Some(tasks) = self.here(|core| core.tasks_in_memory(partition, ids))?
        {
            return Ok(tasks);
        }
        let ids = ids.to_vec();
        self.blocking(move |core| core.tasks_of(partition, &ids)).await
    }

    async fn list(
        &self,
        partition: PartitionId,
        filter: &Filter,
        after: Position,
        limit: usize,
    ) -> Result<Page<Task, Position>, StoreError> {
        self.core.check_partition(partition)?;
        let filter = filter.clone();
        self.blocking(move |core| core.list(partition, &filter, after, limit)).await
    }

    async fn dead(
        &self,
        partition: PartitionId,
        namespace: &Namespace,
        after: Option<FireId>,
        limit: usize,
    ) -> Result<Page<DeadLetter, FireId>, StoreError> {
        self.core.check_partition(partition)?;
        let namespace = namespace.clone();
        self.blocking(move |core| core.dead(partition, &namespace, after, limit)).await
    }

    async fn dead_letters(
        &self,
        partition: PartitionId,
        fire_ids: &[FireId],
    ) -> Result<Vec<Option<DeadLetter>>, StoreError> {
        self.core.check_partition(partition)?;
        let fire_ids = fire_ids.to_vec();
        self.blocking(move |core| core.dead_letters(partition, &fire_ids)).await
    }

    async fn history(
        &self,
        partition: PartitionId,
        id: TaskId,
        limit: usize,
    ) -> Result<Vec<FireRecord>, StoreError> {
        self.core.check_partition(partition)?;
        if id.partition() != partition {
            return Ok(Vec::new());
        }
        self.blocking(move |core| core.history(id, limit, HISTORY_BYTES_MAX)).await
    }

    async fn fires(
        &self,
        partition: PartitionId,
        filter: &FireFilter,
        after: Option<FirePosition>,
        limit: usize,
    ) -> Result<Page<FireRecord, FirePosition>, StoreError> {
        self.core.check_partition(partition)?;
        let filter = filter.clone();
        self.blocking(move |core| core.fires(partition, &filter, after, limit)).await
    }

    async fn last_fires(
        &self,
        partition: PartitionId,
        namespace: &Namespace,
        keys: &[TaskKey],
    ) -> Result<Vec<Option<FireRecord>>, StoreError> {
        self.core.check_partition(partition)?;
        let (namespace, keys) = (namespace.clone(), keys.to_vec());
        self.blocking(move |core| core.last_fires(partition, &namespace, &keys)).await
    }

    async fn counts(
        &self,
        partition: PartitionId,
        namespace: &Namespace,
    ) -> Result<Counts, StoreError> {
        self.core.check_partition(partition)?;
        let state = self.core.state()?;
        let tally = state.partition(partition).counts.get(namespace.as_str());
        Ok(tally.map_or_else(Counts::default, |tally| tally.counts))
    }

    async fn due_counts(
        &self,
        partition: PartitionId,
        namespace: &Namespace,
        steps: &DueSteps,
    ) -> Result<DueCounts, StoreError> {
        self.core.check_partition(partition)?;
        let (namespace, steps) = (namespace.clone(), steps.clone());
        let tasks = self.blocking(move |core| core.due_counts(partition, &namespace, &steps));
        Ok(DueCounts { tasks: tasks.await?, until: None })
    }

    async fn letter_groups(
        &self,
        partition: PartitionId,
        namespace: &Namespace,
    ) -> Result<Vec<CountedGroup>, StoreError> {
        self.core.check_partition(partition)?;
        let state = self.core.state()?;
        let row = state.partition(partition).letter_groups.get(namespace.as_str());
        Ok(row.into_iter().flat_map(|row| row.groups.iter()).collect())
    }

    async fn namespaces(
        &self,
        partition: PartitionId,
        after: Option<&Namespace>,
        limit: usize,
    ) -> Result<Page<CountedNamespace, Namespace>, StoreError> {
        self.core.check_partition(partition)?;
        let state = self.core.state()?;
        let after = after.map_or(Bound::Unbounded, |after| Bound::Excluded(after.as_str()));
        let tallies = state.partition(partition).counts.range::<str, _>((after, Bound::Unbounded));
        let tallies = tallies.filter(|(_, tally)| !tally.counts.is_zero());
        let page = Page::first(tallies, limit, |(name, _)| stored_name(name));
        let counted = page.items.into_iter().map(|(name, tally)| {
            Ok(CountedNamespace { name: stored_name(name)?, counts: tally.counts })
        });
        let items = counted.collect::<Result<Vec<_>, StoreError>>()?;
        Ok(Page { items, next: page.next.transpose()? })
    }

    async fn sweep(
        &self,
        partition: PartitionId,
        epoch: Epoch,
        retention: Retention,
        now: Timestamp,
    ) -> Result<Swept, StoreError> {
        self.core.check_partition(partition)?;
        self.admission.lock().await.fence(partition, epoch)?;
        let past = self.blocking(move |core| core.letters_past(partition, retention, now)).await?;
        let mut counts: Vec<(&str, Counts)> = Vec::new();
        for (_, namespace, _) in &past {
            let moved = Counts { dead_letters: -1, ..Counts::default() };
            match counts.iter_mut().find(|(other, _)| *other == namespace.as_str()) {
                Some((_, counts)) => counts.add(moved),
                None => counts.push((namespace.as_str(), moved)),
            }
        }
        let forgotten: Vec<FireId> = past.iter().map(|(fire_id, ..)| *fire_id).collect();
        let grouped =
            past.iter().map(|(id, namespace, group)| (*id, namespace.as_str(), group.clone()));
        let groups: Vec<_> = grouped.collect();
        let commit = sweep_commit(partition, &counts, &forgotten, &groups, now);
        // Records of a running checkpoint can be dropped only after it.
        let writing = self.core.state()?.history.frozen.is_some();
        if writing {
            self.checkpoint().await?;
        }

        let admission = self.admission.lock().await;
        admission.fence(partition, epoch)?;
        let result = self.append(commit, Class::Shrink).await?;
        drop(admission);
        result.await.map_err(|_| journal_gone())??;
        let mut state = self.core.state()?;
        let history = state.history.sweep(partition, retention, now);
        let finished = !state.history.finished().is_empty();
        drop(state);
        if finished {
            self.core.request(|work| work.checkpoint = true);
        }
        let dead = forgotten.len() as u64;
        Ok(Swept { history, dead })
    }
}

/// What an error of the journal means to a caller.
fn refusal(core: &StoreCore, error: &JournalError) -> StoreError {
    match error {
        JournalError::Full { .. } => {
            StoreError::Full { resource: Resource::Disk, why: error.to_string() }
        }
        // No store accepts such a batch, now or later, so the caller has a bug and must stop. This
        // store is not affected.
        JournalError::TooLarge { .. } => StoreError::Broken(error.to_string()),
        JournalError::Busy => StoreError::Unavailable(Box::new(error.clone())),
        _ => {
            core.break_with(&error.to_string());
            StoreError::Broken(error.to_string())
        }
    }
}

fn journal_gone() -> StoreError {
    StoreError::Broken("the journal ended before it reported the commit".to_owned())
}

fn panicked(error: tokio::task::JoinError) -> StoreError {
    StoreError::Broken(format!("a read of the store panicked: {error}"))
}
