//! What the parts of a store share: the state behind its lock, the files, the catalog.
//!
//! Invariant: the lock is never held over a read or write of the disk. Once broken, a store stays so.

use std::sync::atomic::{AtomicI64, AtomicU8, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

use bytes::Bytes;
use punctual_core::{PartitionId, Task, TaskId, TaskState};
use punctual_store::StoreError;
use punctual_store::codec::{Interner, read_body};
use tokio::sync::Notify;

use crate::catalog::Catalog;
use crate::fault::{ReadContext, StorageFault};
use crate::journal::{Class, CommitNo};
use crate::key::EntryKey;
use crate::options::EmbeddedOptions;
use crate::read::load::Loading;
use crate::run::RunFiles;
use crate::state::StoreState;
use crate::state::relocation::Moved;

/// Buffers of which everybody who writes waits for the background; tasks wait long before.
const BUFFERS_MAX: usize = 4;
/// The same for changed rows: as many as make a checkpoint necessary, so many times.
const ROWS_MAX: usize = 2;

#[derive(Debug)]
pub(crate) struct StoreCore {
    pub(crate) options: EmbeddedOptions,
    pub(crate) files: RunFiles,
    pub(crate) catalog: Catalog,
    pub(crate) interner: Interner,
    /// Entries, rows and names that listing has looked at.
    pub(crate) looked_at: AtomicU64,
    /// Where each partition's owner goes on loading.
    pub(crate) loadings: Vec<Mutex<Option<Loading>>>,
    state: Mutex<StoreState>,
    broken: OnceLock<String>,
    /// What the background has to do.
    pub(crate) work: Mutex<BackgroundWork>,
    pub(crate) work_changed: Condvar,
    /// Told when writers may go on.
    pub(crate) relief: Notify,
    /// Who waits for it. Changes only under the lock of the state, so that nobody waits for what has happened already.
    pressure: AtomicU8,
    /// Why the last checkpoint had no room.
    full: Mutex<Option<String>>,
    /// For tests: how many steps of a checkpoint are made before it stops as a crash would.
    steps_left: AtomicI64,
}

/// How far the background is behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Pressure {
    None,
    /// What adds tasks waits.
    Some,
    /// Everything that writes waits: what settles and touches takes memory too until it is written.
    Much,
}

/// What the background is asked for.
#[derive(Debug, Default)]
pub(crate) struct BackgroundWork {
    pub(crate) stop: bool,
    pub(crate) checkpoint: bool,
    pub(crate) resolve: bool,
    /// Rounds done, for whoever waits for one.
    pub(crate) rounds: u64,
    /// Whether a round is under way.
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
            looked_at: AtomicU64::new(0),
            loadings,
            state: Mutex::new(state),
            broken: OnceLock::new(),
            work: Mutex::default(),
            work_changed: Condvar::new(),
            relief: Notify::new(),
            pressure: AtomicU8::new(Pressure::None as u8),
            full: Mutex::default(),
            steps_left: AtomicI64::new(-1),
        }
    }

    /// The state; a panic under its lock may have left half a commit in it, so it is broken then.
    pub(crate) fn state(&self) -> Result<MutexGuard<'_, StoreState>, StorageFault> {
        if let Some(why) = self.broken.get() {
            return Err(StorageFault::Broken(why.as_str().into()));
        }
        self.state.lock().map_err(|_| {
            self.break_with("a commit has panicked half-way");
            StorageFault::Broken("a commit has panicked half-way".into())
        })
    }

    /// Nothing is answered any more but that the store is broken.
    pub(crate) fn break_with(&self, why: &str) {
        if self.broken.set(why.to_owned()).is_ok() {
            tracing::error!(why, "store: broken");
        }
        // Nobody waits for what will not come.
        self.relief.notify_waiters();
        self.request(|_| {});
    }

    pub(crate) fn broken(&self) -> Option<&str> {
        self.broken.get().map(String::as_str)
    }

    /// A step of a checkpoint, after which a crash may come.
    pub(crate) fn step(&self) -> Result<(), StorageFault> {
        match self.steps_left.load(Ordering::Acquire) {
            ..0 => Ok(()),
            0 => Err(StorageFault::Broken("a test stopped it here".into())),
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

    /// Notes that there is no room for a checkpoint, or that there is again.
    pub(crate) fn set_full(&self, why: Option<String>) {
        *self.full.lock().unwrap_or_else(PoisonError::into_inner) = why;
        self.relief.notify_waiters();
    }

    /// Why nothing may be added.
    pub(crate) fn full(&self) -> Option<String> {
        self.full.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Takes a durable commit in.
    pub(crate) fn apply(&self, commit: CommitNo, frame: &Bytes) -> Result<(), StorageFault> {
        let mut state = self.state()?;
        state.apply(commit, frame).inspect_err(|fault| self.break_with(&fault.to_string()))?;
        self.request_work(state);
        Ok(())
    }

    /// Whatever puts something into the state asks the background to write it, when it is enough.
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

    /// Sees anew who has to wait, and lets on who has not.
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
            self.relief.notify_waiters();
        }
    }

    /// Waits if the background is too far behind for this kind of writer: once, so that all who wait go on by turns.
    pub(crate) async fn throttle(&self, class: Class) {
        let bearable = match class {
            Class::Grow => Pressure::None,
            Class::Shrink => Pressure::Some,
        };
        let relief = self.relief.notified();
        // With no room on the disk nothing is written, and waiting would be for ever.
        let hopeless = self.broken().is_some() || self.full().is_some();
        if self.pressure.load(Ordering::Acquire) > bearable as u8 && !hopeless {
            relief.await;
        }
    }

    /// Asks the background for something.
    pub(crate) fn request(&self, ask: impl FnOnce(&mut BackgroundWork)) {
        ask(&mut self.work.lock().unwrap_or_else(PoisonError::into_inner));
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

    /// A task from its entry.
    pub(crate) fn task(
        &self,
        key: EntryKey,
        body: &[u8],
        moved: Option<Moved>,
    ) -> Result<Task, StorageFault> {
        let mut task = read_body(key.id, key.at, body, &self.interner).reading("task")?;
        if let Some(Moved { fire_at, version }) = moved {
            task.fire_at = fire_at;
            task.nominal_at = fire_at;
            task.version = version;
        }
        Ok(task)
    }

    /// A paused task from its record.
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
