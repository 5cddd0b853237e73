//! The background thread: writes checkpoints, merges runs and resolves endings when it is asked.
//!
//! If the disk is full, what was frozen stays in memory and in the journal, and the thread tries
//! again. Any other error breaks the store.

use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use punctual_journal::{CommitNo, Journal};

use crate::checkpoint::{Exchange, FrozenState, RunNumbers, timed};
use crate::fault::StorageFault;
use crate::run::SortedRun;
use crate::store::PendingCommit;
use crate::store_core::StoreCore;

/// The pause before another attempt on a full disk.
const FULL_RETRY: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(crate) struct Background {
    thread: Option<JoinHandle<()>>,
    core: Arc<StoreCore>,
}

struct BackgroundLoop {
    core: Arc<StoreCore>,
    journal: Arc<Journal<PendingCommit>>,
    numbers: RunNumbers,
    last: CommitNo,
    /// A checkpoint that failed because the disk was full.
    unwritten: Option<FrozenState>,
    /// Whether the last round found the disk full, so that another attempt is due.
    disk_full: bool,
    /// Runs that are no longer listed; their files are removed once no reader uses them.
    dropped: Vec<Arc<SortedRun>>,
}

impl Background {
    pub(crate) fn start(
        core: Arc<StoreCore>,
        journal: Arc<Journal<PendingCommit>>,
        numbers: RunNumbers,
        last: CommitNo,
    ) -> Result<Self, StorageFault> {
        let mut work = BackgroundLoop {
            core: Arc::clone(&core),
            journal,
            numbers,
            last,
            unwritten: None,
            disk_full: false,
            dropped: Vec::new(),
        };
        let thread = std::thread::Builder::new()
            .name("store-checkpoint".to_owned())
            .spawn(move || work.run())
            .map_err(|source| StorageFault::io("start", "a thread".as_ref(), source))?;
        Ok(Self { thread: Some(thread), core })
    }

    /// Ends the thread after its current round.
    pub(crate) fn stop(&mut self) {
        self.core.request(|work| work.stop = true);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has already broken the store.
            drop(thread.join());
        }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.stop();
    }
}

impl BackgroundLoop {
    fn run(&mut self) {
        let core = Arc::clone(&self.core);
        let _breaks = BreakStoreOnPanic(&core);
        loop {
            let (checkpoint, resolve) = {
                let mut work = core.work.lock().unwrap_or_else(PoisonError::into_inner);
                while !work.stop && !work.checkpoint && !work.resolve {
                    work = if self.disk_full {
                        let waited = core.work_changed.wait_timeout(work, FULL_RETRY);
                        let (mut work, _) = waited.unwrap_or_else(PoisonError::into_inner);
                        work.checkpoint = true;
                        work
                    } else {
                        core.work_changed.wait(work).unwrap_or_else(PoisonError::into_inner)
                    };
                }
                if work.stop {
                    return;
                }
                work.busy = true;
                (std::mem::take(&mut work.checkpoint), std::mem::take(&mut work.resolve))
            };
            let outcome = match (checkpoint, resolve) {
                (true, _) => self.checkpoint(),
                (false, _) => core.resolve(),
            };
            match outcome {
                Err(fault) if fault.means_full() => {
                    self.disk_full = true;
                    core.set_full(Some(fault.to_string()));
                }
                Err(fault) => return core.break_with(&fault.to_string()),
                // Resolving needs no disk space, so its success does not mean that the disk has
                // some.
                Ok(()) if checkpoint => self.disk_full = false,
                Ok(()) => {}
            }
            core.request(|work| {
                work.rounds += 1;
                work.busy = false;
            });
        }
    }

    fn checkpoint(&mut self) -> Result<(), StorageFault> {
        let mut exchange = Exchange::default();
        let mut frozen = match self.unwritten.take() {
            Some(frozen) => frozen,
            None => {
                // Every task that ended must have its bit set before runs are merged.
                timed("resolve", || self.core.resolve())?;
                exchange = timed("rewrite", || self.core.rewrite(&mut self.numbers))?;
                // Merged runs must be written even if nothing else changed.
                let unchanged_since = exchange.dropped.is_empty().then_some(self.last);
                match timed("freeze", || self.core.freeze(unchanged_since))? {
                    Some(frozen) => frozen,
                    None => return Ok(()),
                }
            }
        };
        match self.core.checkpoint(&mut frozen, exchange, &mut self.numbers) {
            Ok(dropped) => {
                self.last = frozen.commit;
                self.core.set_full(None);
                self.journal.checkpointed(frozen.commit);
                drop(frozen);
                self.dropped.extend(dropped);
                timed("remove", || self.remove_dropped())
            }
            Err(fault) => {
                self.unwritten = Some(frozen);
                Err(fault)
            }
        }
    }
}

impl BackgroundLoop {
    fn remove_dropped(&mut self) -> Result<(), StorageFault> {
        let mut read = Vec::new();
        for run in self.dropped.drain(..) {
            // Only readers of an older timeline still have it.
            if Arc::strong_count(&run) > 1 {
                read.push(run);
            } else {
                self.core.files.remove(run.no)?;
            }
        }
        self.dropped = read;
        Ok(())
    }
}

/// Breaks the store if the thread panics, so that no write waits for it.
struct BreakStoreOnPanic<'a>(&'a StoreCore);

impl Drop for BreakStoreOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.break_with("the background thread panicked");
            self.0.request(|work| work.stop = true);
        }
    }
}
