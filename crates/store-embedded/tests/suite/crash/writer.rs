//! The writer: the process that is killed.
//!
//! It gets its configuration from the environment and prints lines to its standard output, each
//! flushed before the next step: `opened`, everything that it reads, `acquire`, and for every batch
//! `plan` before it is passed to the store and `ack` after the store has answered. So every
//! acknowledged batch is in the pipe, however the process ends.

use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use punctual_core::{Partitions, Seat, TaskId, Timestamp};
use punctual_store::conformance::fixtures::{TTL, broker};
use punctual_store::{LeaseStore, Retention, TaskStore};
use punctual_store_embedded::{EmbeddedOptions, EmbeddedStore};

use super::plan::{PlanStart, WriterPlan, digest};
use super::view;

/// Two, so that commits of one wait behind those of the other.
pub(crate) const PARTITIONS: u16 = 2;
/// What the sweeps keep.
pub(crate) const RETENTION: Retention = Retention {
    history_age: Duration::from_secs(300),
    history_bytes: u64::MAX,
    dead_age: Duration::from_secs(u32::MAX as u64),
};

const WRITER_CONFIG: &str = "PUNCTUAL_CRASH_WRITER";

/// The limits of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Budgets {
    /// So small that checkpoints, merges and new journal files never stop.
    Tiny,
    /// The defaults, which a broker uses.
    Usual,
}

/// What a writer is to do.
#[derive(Debug, Clone)]
pub(crate) struct WriterConfig {
    pub(crate) dir: PathBuf,
    pub(crate) budgets: Budgets,
    pub(crate) seed: u64,
    pub(crate) now: Timestamp,
    pub(crate) grows: bool,
    pub(crate) sweeps: bool,
    /// After so many batches of each partition it closes the store, unless it is killed earlier.
    pub(crate) batches_max: u64,
    pub(crate) history_since: Timestamp,
    /// A file with one id per line.
    pub(crate) tracked: PathBuf,
}

impl WriterConfig {
    pub(crate) fn command(&self) -> std::process::Command {
        let this = std::env::current_exe().expect("the path of the test binary");
        let mut command = std::process::Command::new(this);
        command.args([
            "--exact",
            "crash::writer_process",
            "--ignored",
            "--nocapture",
            "--test-threads=1",
        ]);
        let text = format!(
            "{:?}\n{}\n{}\n{}\n{}\n{}\n{}\n{}\n{}",
            self.budgets,
            self.seed,
            self.now.as_millis(),
            self.grows,
            self.sweeps,
            self.batches_max,
            self.history_since.as_millis(),
            self.dir.display(),
            self.tracked.display(),
        );
        command.env(WRITER_CONFIG, text);
        command
    }

    fn from_text(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        let mut next = || lines.next();
        Some(Self {
            budgets: if next()? == "Tiny" { Budgets::Tiny } else { Budgets::Usual },
            seed: next()?.parse().ok()?,
            now: Timestamp::from_millis(next()?.parse().ok()?),
            grows: next()? == "true",
            sweeps: next()? == "true",
            batches_max: next()?.parse().ok()?,
            history_since: Timestamp::from_millis(next()?.parse().ok()?),
            dir: next()?.into(),
            tracked: next()?.into(),
        })
    }

    fn options(&self) -> EmbeddedOptions {
        let partitions = Partitions::new(PARTITIONS).expect("two");
        match self.budgets {
            Budgets::Usual => EmbeddedOptions::new(partitions),
            Budgets::Tiny => EmbeddedOptions {
                // Another size each time, so that one chain has files of several sizes.
                journal_file_bytes: (128 << 10) << (self.seed % 4),
                ..EmbeddedOptions::tiny(partitions)
            },
        }
    }
}

pub(crate) fn partitions() -> Partitions {
    Partitions::new(PARTITIONS).expect("two")
}

pub(crate) fn run_from_environment() {
    let Ok(text) = std::env::var(WRITER_CONFIG) else { return };
    let config = WriterConfig::from_text(&text).expect("the configuration is complete");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build();
    runtime.expect("a runtime").block_on(run(config));
}

/// Prints one line and flushes it.
fn print_line(text: &str) {
    print_all(&format!("\n@{text}\n"));
}

fn print_all(lines: &str) {
    let mut stdout = std::io::stdout().lock();
    stdout
        .write_all(lines.as_bytes())
        .and_then(|()| stdout.flush())
        .expect("the test reads the output");
}

async fn run(config: WriterConfig) {
    print_line("opening");
    let (store, report) = EmbeddedStore::open(&config.dir, config.options()).expect("it opens");
    let clean = report.closed_cleanly;
    print_line(&format!("opened {} {clean} {}", report.replayed, report.dropped.is_some()));
    let store = Arc::new(store);
    let tracked = std::fs::read_to_string(&config.tracked).expect("a list of ids");
    let tracked: Vec<TaskId> = tracked.lines().map(|line| line.parse().expect("an id")).collect();
    for partition in partitions().iter() {
        let own: Vec<_> =
            tracked.iter().copied().filter(|id| id.partition() == partition).collect();
        let number = partition.get();
        let lines = view::lines(store.as_ref(), partition, &own, config.history_since).await;
        print_all(
            &lines.iter().map(|line| format!("\n@view {number} {line}\n")).collect::<String>(),
        );
    }
    print_line("viewed");
    let mut writers = Vec::new();
    for partition in partitions().iter() {
        let number = partition.get();
        print_line(&format!("acquire {number}"));
        let seat = Seat::Partition(partition);
        let lease = store.acquire(seat, &broker("writer"), TTL, config.now).await;
        let epoch = lease.expect("the writer's own seat").epoch;
        print_line(&format!("acquired {number} {}", epoch.get()));
        if config.sweeps {
            store.sweep(partition, epoch, RETENTION, config.now).await.expect("a sweep");
        }
        let (live, letters) = view::tasks_and_letters(store.as_ref(), partition).await;
        let (seed, now) = (config.seed ^ u64::from(number), config.now);
        let start = PlanStart { partition, epoch, seed, now, grows: config.grows, live, letters };
        let (store, batches_max) = (Arc::clone(&store), config.batches_max);
        writers.push(tokio::spawn(async move {
            let mut plan = WriterPlan::new(start);
            for _ in 0..batches_max {
                let batch = plan.batch();
                let no = batch.number.get();
                print_line(&format!("plan {number} {no} {}", digest(&batch)));
                store.apply(partition, epoch, batch).await.expect("a valid batch");
                print_line(&format!("ack {number} {no}"));
            }
        }));
    }
    for writer in writers {
        writer.await.expect("a writer does not panic");
    }
    print_line("closing");
    let store = Arc::try_unwrap(store).expect("the writers have ended");
    store.close().await.expect("it closes");
    print_line("closed");
}
