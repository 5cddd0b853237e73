//! Ended fires: what keeping them costs a settlement, and how long pages of them take.

use std::path::Path;
use std::time::Duration;

use punctual_core::{DeadLetter, DeadReason, EndKind, FireEnd, FireRecord, Seat, Task, Timestamp};
use punctual_store::{Change, FireFilter, FirePosition, Position, Prior, TaskStore};

use crate::figures::StoreFigures;
use crate::machine;
use crate::owners::{BATCH, BenchProgress, BenchResult, OWNERS, StoreBench};
use crate::tasks::{DAY, DAYS, NOW, TaskRandom, key_of};

/// One of so many fires is a dead letter.
const DEAD_EVERY: u64 = 10_000;
/// Fires of so many days are in runs when reads begin; those of the others are in memory.
const IN_RUNS_DAYS: u32 = 24;
/// Pages of each kind, and fires per page.
const PAGES: u64 = 1000;
const PAGE: usize = 100;
/// Keys of one call for the last fires.
const KEYS_PER_CALL: usize = 10;

/// The kinds of reads, by the names of their figures.
pub const FIRE_READS: [&str; 6] = ["first", "deep", "dead", "prefix", "narrow", "last"];

/// What a kind of read is.
pub fn fire_read(kind: &str) -> &'static str {
    match kind {
        "first" => "the newest 100 fires",
        "deep" => "100 fires after a random time",
        "dead" => "dead fires, 1 in 10,000",
        "prefix" => "100 fires by a prefix of all keys",
        "narrow" => "fires by a prefix of 100 keys",
        _ => "last fires of 10 keys",
    }
}

/// Settles tasks with keys, then measures pages of their fires, partly in memory and all in runs.
pub fn fires(dir: &Path, tasks: u64) -> BenchResult<StoreFigures> {
    let mut figures = StoreFigures::default();
    let mut bench = StoreBench::open(dir, OWNERS)?;
    let each = tasks / OWNERS / BATCH * BATCH;
    create(&mut bench, each)?;
    settle_until(&mut bench, dir, NOW.after(DAY * IN_RUNS_DAYS), &mut figures)?;
    // The rest stays in memory: it is too little for a checkpoint, which would take CPU from reads.
    bench.checkpoint()?;
    bench.own_again()?;
    let mut rest = StoreFigures::default();
    settle_until(&mut bench, dir, NOW.after(DAY * (DAYS + 1)), &mut rest)?;
    figures.set("fires_in_memory", rest.get("fires"));
    read_all(&bench, each, "memory", &mut figures)?;
    bench.checkpoint()?;
    let stats = bench.store.stats()?;
    figures.set("history_bytes", stats.history_bytes as f64 / (each * OWNERS) as f64);
    figures.set("history_runs", stats.history_runs as f64);
    read_all(&bench, each, "runs", &mut figures)?;
    bench.close()?;
    Ok(figures)
}

fn create(bench: &mut StoreBench, each: u64) -> BenchResult<()> {
    let progress = BenchProgress::new("create tasks with keys", each * OWNERS);
    bench.run(&progress, |mut owner| async move {
        for first in (0..each).step_by(BATCH as usize) {
            let make = |sequence| Change::Put(owner.maker.watch(owner.partition, sequence));
            let changes = (first..first + BATCH).map(make).collect();
            owner.apply(changes).await?;
        }
        Ok(())
    })?;
    bench.checkpoint()?;
    bench.own_again()
}

/// Loads and settles the tasks that are due before a time, in order.
fn settle_until(
    bench: &mut StoreBench,
    dir: &Path,
    until: Timestamp,
    figures: &mut StoreFigures,
) -> BenchResult<()> {
    let progress = BenchProgress::new("load + settle", bench.scheduled()?);
    let journal = bench.store.stats()?.journal.bytes;
    let (begun, cpu, written) = (machine::start(), machine::cpu("self"), machine::written(dir));
    let done = bench.run(&progress, |mut owner| async move {
        let (mut after, mut fires) = (Position::START, 0);
        loop {
            let due = owner.store.load(owner.partition, after, until, BATCH as usize).await?;
            let Some(last) = due.last() else { return Ok(fires) };
            after = Position::of(last);
            fires += due.len() as u64;
            let changes = due.iter().map(settle).collect();
            owner.apply(changes).await?;
        }
    })?;
    let seconds = begun.elapsed().as_secs_f64();
    let cpu = machine::cpu("self") - cpu;
    let fires: u64 = done.iter().sum();
    figures.set("fires", fires as f64);
    figures.set("per_second", fires as f64 / seconds);
    figures.set("cpu_micros", cpu.as_secs_f64() * 1e6 / fires as f64);
    let journal = bench.store.stats()?.journal.bytes - journal;
    figures.set("journal_bytes", journal as f64 / fires as f64);
    let written = machine::written(dir).calls - written.calls;
    figures.set("written_bytes", written as f64 / fires as f64);
    figures.set("memory_peak_mib", machine::memory_mib("VmHWM"));
    Ok(())
}

fn settle(task: &Task) -> Change {
    let (ended_at, was) = (task.fire_at.after(Duration::from_millis(20)), Prior::of(task));
    if task.id.sequence().get().is_multiple_of(DEAD_EVERY) {
        let reason = DeadReason::Exhausted;
        let letter = DeadLetter { task: task.clone(), died_at: ended_at, reason };
        return Change::Dead { letter, next: None, was };
    }
    Change::Settle { record: FireRecord::of(task, FireEnd::Done, ended_at), next: None, was }
}

/// Measures each kind of read in turns, each with another partition.
fn read_all(
    bench: &StoreBench,
    each: u64,
    state: &str,
    figures: &mut StoreFigures,
) -> BenchResult<()> {
    let progress = BenchProgress::new("pages of fires", PAGES);
    let mut random = TaskRandom(11);
    let mut took = vec![Vec::new(); FIRE_READS.len()];
    for _ in 0..PAGES {
        for (kind, took) in FIRE_READS.iter().zip(&mut took) {
            let lease = &bench.leases[random.below(OWNERS) as usize];
            let Seat::Partition(partition) = lease.seat else { continue };
            let filter = FireFilter::all(bench.maker.namespace.clone());
            let key = key_of(partition, random.below(each));
            let prefix = |letters: usize| key.as_str()[..letters].to_owned();
            let length = key.as_str().len();
            let deep = Duration::from_millis(random.below((DAY * DAYS).as_millis() as u64));
            let (filter, after) = match *kind {
                "deep" => (filter, Some(position_at(key_task(bench, &key, each), deep))),
                "dead" => (FireFilter { end: Some(EndKind::Dead), ..filter }, None),
                // All keys of the partition, and a hundred of them.
                "prefix" => (FireFilter { key_prefix: prefix(length - 6), ..filter }, None),
                "narrow" => (FireFilter { key_prefix: prefix(length - 2), ..filter }, None),
                _ => (filter, None),
            };
            let started = machine::start();
            if *kind == "last" {
                let keys: Vec<_> = (0..KEYS_PER_CALL as u64)
                    .map(|_| key_of(partition, random.below(each)))
                    .collect();
                let last = bench.store.last_fires(partition, &filter.namespace, &keys);
                bench.runtime.block_on(last)?;
            } else {
                let page = bench.store.fires(partition, &filter, after, PAGE);
                bench.runtime.block_on(page)?;
            }
            took.push(started.elapsed());
        }
        progress.add(1);
    }
    for (kind, mut took) in FIRE_READS.iter().zip(took) {
        took.sort_unstable();
        let at = |percent: usize| took[(took.len() - 1) * percent / 100].as_secs_f64() * 1e3;
        figures.set(&format!("{state}_{kind}_p50_ms"), at(50));
        figures.set(&format!("{state}_{kind}_p99_ms"), at(99));
        figures.set(&format!("{state}_{kind}_max_ms"), at(100));
    }
    Ok(())
}

/// A fire of the partition, as the place after which a page begins.
fn key_task(bench: &StoreBench, key: &punctual_core::TaskKey, each: u64) -> Task {
    let sequence = key.as_str().rsplit('/').next().and_then(|text| text.parse().ok());
    bench.maker.watch(punctual_core::PartitionId::FIRST, sequence.unwrap_or(0) % each)
}

fn position_at(task: Task, time: Duration) -> FirePosition {
    let ended_at: Timestamp = NOW.after(time);
    FirePosition { ended_at, fire_id: task.fire().id }
}
