//! The background: one thread that writes, merges and resolves, when it is asked.
//!
//! In: the work that commits ask for. Out: checkpoints, and the journal told of each. A full disk is waited out: what is
//! frozen stays in memory and in the journal, and is tried again. Any other fault breaks the store.

use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::checkpoint::{Exchange, Frozen, RunNumbers, timed};
use crate::fault::Fault;
use crate::inner::Inner;
use crate::journal::{CommitNo, Journal};
use crate::run::Run;
use crate::store::Item;

/// How long to wait before a full disk is tried again.
const FULL_RETRY: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(crate) struct Background {
    thread: Option<JoinHandle<()>>,
    inner: Arc<Inner>,
}

struct Loop {
    inner: Arc<Inner>,
    journal: Arc<Journal<Item>>,
    numbers: RunNumbers,
    last: CommitNo,
    /// A checkpoint that had no room.
    unwritten: Option<Frozen>,
    /// Whether the last round found the disk full, and is to be tried again.
    no_room: bool,
    /// Runs that are off the list, whose files go when nobody reads them any more.
    doomed: Vec<Arc<Run>>,
}

impl Background {
    pub(crate) fn start(
        inner: Arc<Inner>,
        journal: Arc<Journal<Item>>,
        numbers: RunNumbers,
        last: CommitNo,
    ) -> Result<Self, Fault> {
        let mut work = Loop {
            inner: Arc::clone(&inner),
            journal,
            numbers,
            last,
            unwritten: None,
            no_room: false,
            doomed: Vec::new(),
        };
        let thread = std::thread::Builder::new()
            .name("store-checkpoint".to_owned())
            .spawn(move || work.run())
            .map_err(|source| Fault::io("start", "a thread".as_ref(), source))?;
        Ok(Self { thread: Some(thread), inner })
    }

    /// Ends the thread, after the round that it is in.
    pub(crate) fn stop(&mut self) {
        self.inner.ask(|work| work.stop = true);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has broken the store already.
            drop(thread.join());
        }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Loop {
    fn run(&mut self) {
        let inner = Arc::clone(&self.inner);
        let _breaks = BreakOnPanic(&inner);
        loop {
            let (checkpoint, resolve) = {
                let mut work = inner.work.lock().unwrap_or_else(PoisonError::into_inner);
                while !work.stop && !work.checkpoint && !work.resolve {
                    work = if self.no_room {
                        let waited = inner.work_come.wait_timeout(work, FULL_RETRY);
                        let (mut work, _) = waited.unwrap_or_else(PoisonError::into_inner);
                        work.checkpoint = true;
                        work
                    } else {
                        inner.work_come.wait(work).unwrap_or_else(PoisonError::into_inner)
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
                (false, _) => inner.resolve(),
            };
            match outcome {
                Err(fault) if fault.means_full() => {
                    self.no_room = true;
                    inner.set_full(Some(fault.to_string()));
                }
                Err(fault) => return inner.break_with(&fault.to_string()),
                // Resolving needs no room, so it does not say that there is some.
                Ok(()) if checkpoint => self.no_room = false,
                Ok(()) => {}
            }
            inner.ask(|work| {
                work.rounds += 1;
                work.busy = false;
            });
        }
    }

    fn checkpoint(&mut self) -> Result<(), Fault> {
        let mut exchange = Exchange::default();
        let frozen = match self.unwritten.take() {
            Some(frozen) => frozen,
            None => {
                // What merging reads must not have ended without a bit.
                timed("resolve", || self.inner.resolve())?;
                exchange = timed("rewrite", || self.inner.rewrite(&mut self.numbers))?;
                // With something to exchange there is something to write, also if nothing else changed.
                let unless = exchange.dropped.is_empty().then_some(self.last);
                match timed("freeze", || self.inner.freeze(unless))? {
                    Some(frozen) => frozen,
                    None => return Ok(()),
                }
            }
        };
        match self.inner.checkpoint(&frozen, exchange, &mut self.numbers) {
            Ok(dropped) => {
                self.last = frozen.commit;
                self.inner.set_full(None);
                self.journal.checkpointed(frozen.commit);
                drop(frozen);
                self.doomed.extend(dropped);
                timed("remove", || self.remove_doomed())
            }
            Err(fault) => {
                self.unwritten = Some(frozen);
                Err(fault)
            }
        }
    }
}

impl Loop {
    fn remove_doomed(&mut self) -> Result<(), Fault> {
        let mut read = Vec::new();
        for run in self.doomed.drain(..) {
            // Whoever reads has it from an older timeline; nobody gets it any more.
            if Arc::strong_count(&run) > 1 {
                read.push(run);
            } else {
                self.inner.files.remove(run.no)?;
            }
        }
        self.doomed = read;
        Ok(())
    }
}

/// A panic in the background must not leave writers waiting for it.
struct BreakOnPanic<'a>(&'a Inner);

impl Drop for BreakOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.break_with("the background has panicked");
            self.0.ask(|work| work.stop = true);
        }
    }
}
