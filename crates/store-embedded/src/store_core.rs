//! What the parts of a store share: the state behind its lock, the files, the catalog, and the
//! requests to the background thread.
//!
//! The lock of the state is never held while the disk is read or written. A store that is broken
//! stays broken until it is opened again.

use std::sync::atomic::{AtomicI64, AtomicU8, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

use bytes::Bytes;
use punctual_core::{PartitionId, Task, TaskId, TaskState};
use punctual_journal::{Class, CommitNo};
use punctual_store::StoreError;
use punctual_store::codec::{Interner, read_body};
use tokio::sync::Notify;

use crate::catalog::Catalog;
use crate::fault::{ReadContext, StorageFault};
use crate::key::EntryKey;
use crate::options::EmbeddedOptions;
use crate::read::load::Loading;
use crate::run::{KeysCache, RunFiles};
use crate::state::StoreState;
use crate::state::relocation::Moved;

/// So many full buffers make every write wait for the background thread. Writes that add tasks wait
/// much earlier.
const BUFFERS_MAX: usize = 4;
/// The same for changed rows, as a multiple of what triggers a checkpoint.
const ROWS_MAX: usize = 2;

#[derive(Debug)]
pub(crate) struct StoreCore {
    pub(crate) options: EmbeddedOptions,
    pub(crate) files: RunFiles,
    pub(crate) catalog: Catalog,
    pub(crate) interner: Interner,
    /// Entries, rows and names that listing has examined.
    pub(crate) examined: AtomicU64,
    /// The keys of blocks that were read recently.
    pub(crate) block_keys: Mutex<KeysCache>,
    /// Where the owner of each partition continues to load.
    pub(crate) loadings: Vec<Mutex<Option<Loading>>>,
    state: Mutex<StoreState>,
    broken: OnceLock<String>,
    /// What the background thread has to do.
    pub(crate) work: Mutex<BackgroundWork>,
    pub(crate) work_changed: Condvar,
    /// Wakes writers that wait for the background thread.
    pub(crate) relieved: Notify,
    /// Which writes have to wait. Changes only under the lock of the state, so that no write waits
    /// for what has already happened.
    pressure: AtomicU8,
    /// Why the last checkpoint failed, if the disk was full.
    full: Mutex<Option<String>>,
    /// For tests: the number of steps after which a checkpoint stops as in a crash; negative for
    /// never.
    steps_left: AtomicI64,
}

/// How far the background thread is behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Pressure {
    None,
    /// Writes that add tasks wait.
    Some,
    /// All writes wait: settling and touching also need memory until they are written.
    Much,
}

/// What the background thread is asked to do.
#[derive(Debug, Default)]
pub(crate) struct BackgroundWork {
    pub(crate) stop: bool,
    pub(crate) checkpoint: bool,
    pub(crate) resolve: bool,
    /// Finished rounds, for callers that wait for one.
    pub(crate) rounds: u64,
    /// Whether a round is running.
    pub(crate) busy: bool,
}

impl StoreCore {
    pub(crate) fn new(
        options: EmbeddedOptions,
        files: RunFiles,
        catalog: Catalog,
        state: StoreState,
    ) -> Self {
        let loadings = options.partitions.iter().map(|_| Mutex::default()).collect();
        Self {
            options,
            files,
            catalog,
            interner: Interner::default(),
            examined: AtomicU64::new(0),
            block_keys: Mutex::default(),
            loadings,
            state: Mutex::new(state),
            broken: OnceLock::new(),
            work: Mutex::default(),
            work_changed: Condvar::new(),
            relieved: Notify::new(),
            pressure: AtomicU8::new(Pressure::None as u8),
            full: Mutex::default(),
            steps_left: AtomicI64::new(-1),
        }
    }

    /// Locks the state. A panic under the lock may have left half a commit in it, so the store is
    /// broken then.
    pub(crate) fn state(&self) -> Result<MutexGuard<'_, StoreState>, StorageFault> {
        if let Some(why) = self.broken.get() {
            return Err(StorageFault::Broken(why.as_str().into()));
        }
        self.state.lock().map_err(|_| {
            self.break_with("a commit panicked while it was applied");
            StorageFault::Broken("a commit panicked while it was applied".into())
        })
    }

    /// Breaks the store: from now on every call fails.
    pub(crate) fn break_with(&self, why: &str) {
        if self.broken.set(why.to_owned()).is_ok() {
            tracing::error!(why, "store broken");
        }
        // Wakes all that wait for something that will not happen.
        self.relieved.notify_waiters();
        self.request(|_| {});
    }

    pub(crate) fn broken(&self) -> Option<&str> {
        self.broken.get().map(String::as_str)
    }

    /// Marks a point of a checkpoint at which a test may simulate a crash.
    pub(crate) fn step(&self) -> Result<(), StorageFault> {
        match self.steps_left.load(Ordering::Acquire) {
            ..0 => Ok(()),
            0 => Err(StorageFault::Broken("stopped by a test".into())),
            left => {
                self.steps_left.store(left - 1, Ordering::Release);
                Ok(())
            }
        }
    }

    pub(crate) fn stop_after(&self, steps: u64) {
        let steps = i64::try_from(steps).unwrap_or(i64::MAX);
        self.steps_left.store(steps, Ordering::Release);
    }

    /// Notes that the disk is too full for a checkpoint, or (`None`) that it is not any more.
    pub(crate) fn set_full(&self, why: Option<String>) {
        *self.full.lock().unwrap_or_else(PoisonError::into_inner) = why;
        self.relieved.notify_waiters();
    }

    /// Why writes that add tasks are refused, if they are.
    pub(crate) fn full(&self) -> Option<String> {
        self.full.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Applies a durable commit.
    pub(crate) fn apply(&self, no: CommitNo, commit: &Bytes) -> Result<(), StorageFault> {
        let mut state = self.state()?;
        state.apply(no, commit).inspect_err(|fault| self.break_with(&fault.to_string()))?;
        self.request_work(state);
        Ok(())
    }

    /// Asks the background thread to write when enough has changed. To be called after each change
    /// of the state.
    pub(crate) fn request_work(&self, state: MutexGuard<'_, StoreState>) {
        let (buffered, ended) = (state.buffered(), state.ended.len());
        let full = buffered >= self.options.buffer_bytes_max
            || state.journal_bytes >= self.options.journal_bytes_max
            || state.changed_bytes() >= self.options.rows_changed_bytes_max;
        self.set_pressure(&state);
        drop(state);
        if full {
            self.request(|work| work.checkpoint = true);
        } else if ended >= self.options.ended_max {
            self.request(|work| work.resolve = true);
        }
    }

    /// Decides which writes have to wait, and wakes those that no longer have to.
    pub(crate) fn set_pressure(&self, state: &StoreState) {
        let (buffered, max) = (state.buffered(), self.options.buffer_bytes_max);
        let much = buffered >= max.saturating_mul(BUFFERS_MAX)
            || state.changed_bytes()
                >= self.options.rows_changed_bytes_max.saturating_mul(ROWS_MAX);
        let pressure = match buffered >= state.buffered_max(max) {
            _ if much => Pressure::Much,
            true => Pressure::Some,
            false => Pressure::None,
        };
        let before = self.pressure.swap(pressure as u8, Ordering::AcqRel);
        if (pressure as u8) < before {
            self.relieved.notify_waiters();
        }
    }

    /// Waits once if the background thread is too far behind for this class of write. Once only, so
    /// that waiting writes take turns.
    pub(crate) async fn throttle(&self, class: Class) {
        let tolerated = match class {
            Class::Grow => Pressure::None,
            Class::Shrink => Pressure::Some,
        };
        let relieved = self.relieved.notified();
        // On a full disk nothing is written, and waiting would never end.
        let futile = self.broken().is_some() || self.full().is_some();
        if self.pressure.load(Ordering::Acquire) > tolerated as u8 && !futile {
            relieved.await;
        }
    }

    /// Changes the requests to the background thread and wakes it.
    pub(crate) fn request(&self, change: impl FnOnce(&mut BackgroundWork)) {
        change(&mut self.work.lock().unwrap_or_else(PoisonError::into_inner));
        self.work_changed.notify_all();
    }

    pub(crate) fn check_partition(&self, partition: PartitionId) -> Result<(), StoreError> {
        if partition.get() < self.options.partitions.count() {
            return Ok(());
        }
        Err(StoreError::Outside { partition })
    }

    /// Whether any task may be paused.
    pub(crate) fn may_have_paused(&self) -> Result<bool, StorageFault> {
        let state = self.state()?;
        Ok(state.paused.in_catalog() || state.paused.len() > 0)
    }

    /// Decodes a task from its entry.
    pub(crate) fn task(
        &self,
        key: EntryKey,
        body: &[u8],
        moved: Option<Moved>,
    ) -> Result<Task, StorageFault> {
        let mut task = read_body(key.id, key.at, body, &self.interner).reading("task")?;
        if let Some(moved) = moved {
            moved.apply_to(&mut task);
        }
        Ok(task)
    }

    /// Decodes a paused task.
    pub(crate) fn paused_task(
        &self,
        id: TaskId,
        paused: &crate::catalog::Paused,
    ) -> Result<Task, StorageFault> {
        let task = read_body(id, paused.fire_at, &paused.body, &self.interner).reading("task")?;
        debug_assert_ne!(task.state, TaskState::Scheduled);
        Ok(task)
    }
}
