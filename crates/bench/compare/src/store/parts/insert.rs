//! Durable insert, and growth of the store.

use std::error::Error;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use punctual_core::PartitionId;
use punctual_store::Change;

use crate::figures::StoreFigures;
use crate::machine;
use crate::owners::{BATCH, BenchOwner, BenchProgress, BenchResult, SUM_MASK, StoreBench, sum_of};
use crate::tasks::{EPOCH, TaskMaker, id_of};

/// No answer should take longer.
const LONG_WAIT: Duration = Duration::from_millis(250);
/// The growth is divided into this many parts, whose rates are reported.
pub const TENTHS: usize = 10;

/// CPU time to build a task, without a store, in µs.
fn making(maker: &TaskMaker) -> f64 {
    const TASKS: u64 = 1_000_000;
    let cpu = machine::cpu("self");
    for first in (0..TASKS).step_by(BATCH as usize) {
        let make = |sequence| Change::Put(maker.task(PartitionId::FIRST, sequence));
        let changes: Vec<Change> = (first..first + BATCH).map(make).collect();
        std::hint::black_box(&changes);
    }
    (machine::cpu("self") - cpu).as_secs_f64() * 1e6 / TASKS as f64
}

/// Measures durable inserts and growth. With `then_more`, inserts further tasks until it is killed,
/// and prints how many were acknowledged.
pub fn insert(dir: &Path, tasks: u64, owners: u64, then_more: bool) -> BenchResult<StoreFigures> {
    let mut figures = StoreFigures::default();
    let mut bench = StoreBench::open(dir, owners)?;
    figures.set("making_cpu_micros", making(&bench.maker));
    figures.set("record_bytes", bench.maker.record_bytes());
    figures.set("memory_before_mib", machine::memory_mib("VmRSS"));
    assert!(bench.leases.iter().all(|lease| lease.epoch.get() == EPOCH), "the store is new");
    let each = tasks / owners / BATCH * BATCH;
    let tasks = each * owners;
    let progress = BenchProgress::new("insert", tasks);
    let (begun, cpu, written) = (machine::start(), machine::cpu("self"), machine::written(dir));
    let ticks = machine::ticks();
    let done = bench.run(&progress, |mut owner| async move {
        for first in (0..each).step_by(BATCH as usize) {
            let make = |sequence| Change::Put(owner.maker.task(owner.partition, sequence));
            let changes = (first..first + BATCH).map(make).collect();
            owner.apply(changes).await?;
        }
        Ok(owner)
    })?;
    let seconds = begun.elapsed().as_secs_f64();
    let cpu = machine::cpu("self") - cpu;
    let (all, stolen) = machine::ticks();
    figures.set("stolen_percent", (stolen - ticks.1) * 100.0 / (all - ticks.0).max(1.0));
    figures.set("memory_mib", machine::memory_mib("VmRSS"));
    figures.set("memory_anon_mib", machine::memory_mib("RssAnon"));
    figures.set("memory_peak_mib", machine::memory_mib("VmHWM"));
    figures.set("tasks", tasks as f64);
    figures.set("per_second", tasks as f64 / seconds);
    figures.set("cpu_micros", cpu.as_secs_f64() * 1e6 / tasks as f64);
    let calls = machine::written(dir).calls - written.calls;
    figures.set("written_bytes", calls as f64 / tasks as f64);
    note_answers(&mut figures, begun, &done);
    let stats = bench.store.stats()?;
    figures.set("fsync_max_ms", stats.journal.fsync_micros_max as f64 / 1e3);
    figures.set("file_waits", stats.journal.file_waits as f64);
    figures
        .set("files_made", (stats.journal.files_filled + stats.journal.files_preallocated) as f64);
    figures.set("files_begun", stats.journal.files_begun as f64);
    figures.set("checkpoints", stats.checkpoints as f64);
    figures.set("runs", stats.runs as f64);
    figures.set("index_mib", stats.index_bytes as f64 / f64::from(1 << 20));
    assert_eq!(bench.scheduled()?, tasks, "every acknowledged task is counted");
    // After the clock has stopped. Ids are computed from their numbers.
    let sum = done.iter().fold(0, |sum, owner| {
        (sum + sum_of((0..each).map(|sequence| id_of(owner.partition, sequence)))) & SUM_MASK
    });
    figures.set("sum", sum as f64);
    if then_more {
        print!("{figures}");
        println!("end 1");
        insert_more(&mut bench, done, each)?;
    }
    Ok(figures)
}

/// Inserts tasks until the process is killed.
fn insert_more(bench: &mut StoreBench, done: Vec<BenchOwner>, from: u64) -> BenchResult<()> {
    let acked = Arc::new(AtomicU64::new(0));
    let running = done.into_iter().map(|mut owner| {
        let acked = Arc::clone(&acked);
        bench.runtime.spawn(async move {
            for first in (from..).step_by(BATCH as usize) {
                let make = |sequence| Change::Put(owner.maker.late_task(owner.partition, sequence));
                let changes = (first..first + BATCH).map(make).collect();
                owner.apply(changes).await?;
                let acked = acked.fetch_add(BATCH, Relaxed) + BATCH;
                // Under one lock, so that the printed number is never too high.
                let mut out = std::io::stdout().lock();
                writeln!(out, "acked {acked}")?;
                out.flush()?;
            }
            Ok::<_, Box<dyn Error + Send + Sync>>(())
        })
    });
    let running: Vec<_> = running.collect();
    bench.runtime.block_on(async {
        for owner in running {
            owner.await??;
        }
        Ok(())
    })
}

/// Computes rates over time and the longest waits from the times of the answers.
fn note_answers(figures: &mut StoreFigures, begun: Instant, done: &[BenchOwner]) {
    let mut answers: Vec<(Instant, Duration)> =
        done.iter().flat_map(|owner| owner.answers.iter().copied()).collect();
    answers.sort_unstable();
    let batches = answers.len();
    // The first window is around a million pending tasks; the last has the same size.
    let window = (2_000_000 / BATCH as usize).min(batches / 4).max(1);
    let rate =
        |from: Instant, to: Instant| window as f64 * BATCH as f64 / (to - from).as_secs_f64();
    figures.set("window", window as f64 * BATCH as f64);
    figures.set("per_second_first", rate(begun, answers[window - 1].0));
    figures.set("per_second_last", rate(answers[batches - 1 - window].0, answers[batches - 1].0));
    let mut from = begun;
    for tenth in 1..=TENTHS {
        let last = (batches * tenth / TENTHS).max(1) - 1;
        let first = batches * (tenth - 1) / TENTHS;
        let tasks = (last + 1 - first.min(last)) as f64 * BATCH as f64;
        let seconds = (answers[last].0 - from).as_secs_f64().max(1e-9);
        figures.set(&format!("per_second_tenth_{tenth}"), tasks / seconds);
        from = answers[last].0;
    }
    for pair in answers.windows(2).filter(|pair| pair[1].0 - pair[0].0 > LONG_WAIT) {
        let (at, gap) = (pair[0].0 - begun, pair[1].0 - pair[0].0);
        eprintln!(
            "  no call was answered for {:.0} ms after {:.2} s",
            gap.as_secs_f64() * 1e3,
            at.as_secs_f64()
        );
    }
    let gaps = answers.windows(2).map(|pair| pair[1].0 - pair[0].0);
    figures.set("silence_max_ms", gaps.max().unwrap_or_default().as_secs_f64() * 1e3);
    let mut waits: Vec<Duration> = answers.iter().map(|(_, wait)| *wait).collect();
    waits.sort_unstable();
    let wait = |share: f64| waits[((batches - 1) as f64 * share) as usize].as_secs_f64() * 1e3;
    figures.set("wait_p50_ms", wait(0.5));
    figures.set("wait_p99_ms", wait(0.99));
    figures.set("wait_max_ms", wait(1.0));
    let long = waits.iter().filter(|wait| **wait > LONG_WAIT).count();
    figures.set("waits_over_250_ms", long as f64);
}
