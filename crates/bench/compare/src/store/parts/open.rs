//! Opening a store after a crash.

use std::path::Path;

use punctual_core::{PartitionId, Partitions};
use punctual_store::{Position, TaskStore};
use punctual_store_embedded::{EmbeddedOptions, EmbeddedStore};

use crate::figures::StoreFigures;
use crate::machine;
use crate::owners::{BATCH, BenchResult, OWNERS, THREADS};
use crate::tasks::{DAY, NOW, TaskMaker};

/// Measures opening after a crash until the first due task is loaded, then closes the store.
pub fn open(dir: &Path) -> BenchResult<StoreFigures> {
    let mut figures = StoreFigures::default();
    let maker = TaskMaker::new();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(THREADS).build()?;
    let partitions = Partitions::new(OWNERS as u16)?;
    let until = NOW.after(DAY);
    let begun = machine::start();
    let (store, report) = EmbeddedStore::open(dir, EmbeddedOptions::new(partitions))?;
    figures.set("opened_seconds", begun.elapsed().as_secs_f64());
    for partition in partitions.iter() {
        let load = store.load(partition, Position::START, until, BATCH as usize);
        let tasks = runtime.block_on(load)?;
        let first = tasks.first().ok_or("no task is due on the first day")?;
        maker.check(first);
        if partition == PartitionId::FIRST {
            figures.set("first_seconds", begun.elapsed().as_secs_f64());
        }
    }
    figures.set("all_first_seconds", begun.elapsed().as_secs_f64());
    figures.set("replayed", report.replayed as f64);
    assert!(!report.closed_cleanly, "the process was killed");
    let mut scheduled = 0;
    for partition in partitions.iter() {
        let counts = store.counts(partition, &maker.namespace);
        scheduled += runtime.block_on(counts)?.scheduled;
    }
    figures.set("scheduled", scheduled as f64);
    figures.set("memory_mib", machine::memory_mib("VmRSS"));
    figures.set("killed_disk_bytes", machine::disk_bytes(dir) as f64);
    runtime.block_on(store.close())?;
    figures.set("disk_bytes", machine::disk_bytes(dir) as f64);
    Ok(figures)
}
