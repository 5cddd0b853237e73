//! The writer: the process that is killed.
//!
//! In: a directory and a seed, from the environment. Out: lines on its standard output, each whole and flushed before what it
//! announces: `opened`, what it sees, `acquire`, and for every batch `plan` before it is given to the store and
//! `ack` after the store has answered. So whatever was acknowledged stands in the pipe, however the process ends.

use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use punctual_core::{Partitions, Seat, TaskId, Timestamp};
use punctual_store::conformance::fixtures::{TTL, broker};
use punctual_store::{LeaseStore, Retention, TaskStore};
use punctual_store_embedded::{EmbeddedOptions, EmbeddedStore};

use crate::plan::{Plan, Start, digest};
use crate::sight;

/// Two, so that commits of one wait behind those of the other.
pub(crate) const PARTITIONS: u16 = 2;
/// What history the sweeps leave.
pub(crate) const RETENTION: Retention = Retention {
    history_age: Duration::from_secs(300),
    history_bytes: u64::MAX,
    dead_age: Duration::from_secs(u32::MAX as u64),
};

const ORDERS: &str = "PUNCTUAL_CRASH_ORDERS";

/// How large the store's budgets are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Budgets {
    /// So small that checkpoints, merges and changes of the journal's file never cease.
    Tiny,
    /// Those of a broker.
    Usual,
}

/// What a writer is to do.
#[derive(Debug, Clone)]
pub(crate) struct Orders {
    pub(crate) dir: PathBuf,
    pub(crate) budgets: Budgets,
    pub(crate) seed: u64,
    pub(crate) now: Timestamp,
    pub(crate) grows: bool,
    pub(crate) sweeps: bool,
    /// After so many batches of each partition it closes the store, if it lives that long.
    pub(crate) batches_max: u64,
    pub(crate) history_since: Timestamp,
    /// One id per line.
    pub(crate) asked: PathBuf,
}

impl Orders {
    pub(crate) fn command(&self) -> std::process::Command {
        let this = std::env::current_exe().expect("a program knows where it is");
        let mut command = std::process::Command::new(this);
        command.args(["--exact", "writer_process", "--ignored", "--nocapture", "--test-threads=1"]);
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
            self.asked.display(),
        );
        command.env(ORDERS, text);
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
            asked: next()?.into(),
        })
    }

    fn options(&self) -> EmbeddedOptions {
        let partitions = Partitions::new(PARTITIONS).expect("two");
        match self.budgets {
            Budgets::Usual => EmbeddedOptions::new(partitions),
            Budgets::Tiny => EmbeddedOptions {
                // Another size each time: files of all ages and lengths lie in one chain.
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
    let Ok(text) = std::env::var(ORDERS) else { return };
    let orders = Orders::from_text(&text).expect("the orders are whole");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build();
    runtime.expect("a runtime").block_on(run(orders));
}

/// One line, whole, before anything that comes after it.
fn say(text: &str) {
    say_all(&format!("\n@{text}\n"));
}

fn say_all(lines: &str) {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(lines.as_bytes()).and_then(|()| stdout.flush()).expect("somebody listens");
}

async fn run(orders: Orders) {
    say("opening");
    let (store, report) = EmbeddedStore::open(&orders.dir, orders.options()).expect("it opens");
    let clean = report.closed_cleanly;
    say(&format!("opened {} {clean} {}", report.replayed, report.dropped.is_some()));
    let store = Arc::new(store);
    let asked = std::fs::read_to_string(&orders.asked).expect("a list of ids");
    let asked: Vec<TaskId> = asked.lines().map(|line| line.parse().expect("an id")).collect();
    for partition in partitions().iter() {
        let own: Vec<_> = asked.iter().copied().filter(|id| id.partition() == partition).collect();
        let number = partition.get();
        let lines = sight::lines(store.as_ref(), partition, &own, orders.history_since).await;
        say_all(&lines.iter().map(|line| format!("\n@see {number} {line}\n")).collect::<String>());
    }
    say("seen");
    let mut writers = Vec::new();
    for partition in partitions().iter() {
        let number = partition.get();
        say(&format!("acquire {number}"));
        let seat = Seat::Partition(partition);
        let lease = store.acquire(seat, &broker("writer"), TTL, orders.now).await;
        let epoch = lease.expect("the writer's own seat").epoch;
        say(&format!("acquired {number} {}", epoch.get()));
        if orders.sweeps {
            store.sweep(partition, epoch, RETENTION, orders.now).await.expect("a sweep");
        }
        let (living, letters) = sight::tasks_and_letters(store.as_ref(), partition).await;
        let (seed, now) = (orders.seed ^ u64::from(number), orders.now);
        let start = Start { partition, epoch, seed, now, grows: orders.grows, living, letters };
        let (store, batches_max) = (Arc::clone(&store), orders.batches_max);
        writers.push(tokio::spawn(async move {
            let mut plan = Plan::new(start);
            for _ in 0..batches_max {
                let batch = plan.batch();
                let no = batch.number.get();
                say(&format!("plan {number} {no} {}", digest(&batch)));
                store.apply(partition, epoch, batch).await.expect("a batch in its turn");
                say(&format!("ack {number} {no}"));
            }
        }));
    }
    for writer in writers {
        writer.await.expect("a writer does not panic");
    }
    say("closing");
    let store = Arc::try_unwrap(store).expect("the writers have ended");
    store.close().await.expect("it closes");
    say("closed");
}
