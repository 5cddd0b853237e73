//! The end of tasks: cancel by id, and load and settle of due tasks.

use std::path::Path;
use std::time::Duration;

use punctual_core::{FireEnd, FireRecord, Seat, Task, TaskId, Timestamp};
use punctual_store::{Change, Filter, Position, Prior, Retention, TaskStore};

use crate::figures::StoreFigures;
use crate::machine;
use crate::owners::{BATCH, BenchProgress, BenchResult, OWNERS, SUM_MASK, StoreBench, sum_of};
use crate::tasks::{DAY, DAYS, NOW, id_of};

use super::STRIDE;

/// Measures cancel by id: get, then settle as cancelled. First random tasks, then the newest.
pub fn cancel(dir: &Path, tasks: u64) -> BenchResult<StoreFigures> {
    let mut figures = StoreFigures::default();
    let mut bench = StoreBench::open(dir, OWNERS)?;
    let each = tasks / OWNERS / BATCH * BATCH;
    let count = (each / 10).min(62_500) / BATCH * BATCH;
    let old = each - count;
    let mut sum = 0;
    for (name, what, id) in [
        ("spread", "cancel", &(|owner, i| id_of(owner, i * STRIDE % old)) as &dyn Fn(_, _) -> _),
        ("young", "cancel the newest", &|owner, i| id_of(owner, old + i)),
    ] {
        if name == "young" {
            bench.own_again()?;
        }
        let progress = BenchProgress::new(what, count * OWNERS);
        let (begun, cpu) = (machine::start(), machine::cpu("self"));
        let done = bench.run(&progress, |mut owner| {
            let ids: Vec<TaskId> = (0..count).map(|i| id(owner.partition, i)).collect();
            async move {
                let mut getting = Duration::ZERO;
                for ids in ids.chunks(BATCH as usize) {
                    let started = machine::start();
                    let found = owner.store.get(owner.partition, ids).await?;
                    getting += started.elapsed();
                    let cancel = |task: Option<Task>| {
                        let task = task.ok_or("a task is missing that was not cancelled")?;
                        Ok(settle(&task, FireEnd::Cancelled, NOW))
                    };
                    let changes: BenchResult<Vec<Change>> = found.into_iter().map(cancel).collect();
                    owner.apply(changes?).await?;
                }
                Ok((getting, sum_of(ids.into_iter())))
            }
        })?;
        let seconds = begun.elapsed().as_secs_f64();
        let cancelled = (count * OWNERS) as f64;
        figures.set(&format!("{name}_per_second"), cancelled / seconds);
        let cpu = machine::cpu("self") - cpu;
        figures.set(&format!("{name}_cpu_micros"), cpu.as_secs_f64() * 1e6 / cancelled);
        let getting: f64 = done.iter().map(|(getting, _)| getting.as_secs_f64()).sum();
        figures.set(&format!("{name}_get_share"), getting / (seconds * OWNERS as f64));
        sum = done.iter().fold(sum, |sum, (_, ids)| (sum + ids) & SUM_MASK);
    }
    figures.set("cancelled", (count * OWNERS * 2) as f64);
    figures.set("sum", sum as f64);
    figures.set("memory_peak_mib", machine::memory_mib("VmHWM"));
    bench.close()?;
    Ok(figures)
}

fn settle(task: &Task, end: FireEnd, at: Timestamp) -> Change {
    Change::Settle { record: FireRecord::of(task, end, at), next: None, was: Prior::of(task) }
}

/// Measures load and settle of all tasks in time order, then sweeps their history.
pub fn fire(dir: &Path, tasks: u64) -> BenchResult<StoreFigures> {
    let mut figures = StoreFigures::default();
    let mut bench = StoreBench::open(dir, OWNERS)?;
    // Time advances in steps of about twenty batches, so that nearly all batches are full.
    let steps = (tasks / OWNERS / BATCH / 20).clamp(1, u64::from(DAYS)) as u32;
    let progress = BenchProgress::new("load + settle", tasks);
    let (begun, cpu) = (machine::start(), machine::cpu("self"));
    let done = bench.run(&progress, |mut owner| async move {
        let (mut after, mut sum, mut count) = (Position::START, 0, 0);
        let mut loading = Duration::ZERO;
        for step in 1..=steps {
            let until = NOW.after(DAY * DAYS * step / steps);
            loop {
                let started = machine::start();
                let due = owner.store.load(owner.partition, after, until, BATCH as usize).await?;
                loading += started.elapsed();
                let last = due.len() < BATCH as usize;
                for task in &due {
                    assert!(Position::of(task) > after, "tasks are loaded in order");
                    after = Position::of(task);
                }
                due.iter().step_by(997).for_each(|task| owner.maker.check(task));
                count += due.len() as u64;
                sum = (sum + sum_of(due.iter().map(|task| task.id))) & SUM_MASK;
                let changes = due.iter().map(|task| settle(task, FireEnd::Done, task.fire_at));
                let changes: Vec<Change> = changes.collect();
                if !changes.is_empty() {
                    owner.apply(changes).await?;
                }
                if last {
                    break;
                }
            }
            owner.renew_at(until).await?;
        }
        Ok((count, sum, loading, owner.answers.len(), owner.batch))
    })?;
    let seconds = begun.elapsed().as_secs_f64();
    let count: u64 = done.iter().map(|done| done.0).sum();
    let batches: usize = done.iter().map(|done| done.3).sum();
    figures.set("fired", count as f64);
    figures.set("sum", done.iter().fold(0, |sum, done| (sum + done.1) & SUM_MASK) as f64);
    figures.set("per_second", count as f64 / seconds);
    figures.set("per_batch", count as f64 / batches as f64);
    let cpu = machine::cpu("self") - cpu;
    figures.set("cpu_micros", cpu.as_secs_f64() * 1e6 / count as f64);
    let loading: f64 = done.iter().map(|done| done.2.as_secs_f64()).sum();
    figures.set("load_share", loading / (seconds * OWNERS as f64));
    figures.set("memory_peak_mib", machine::memory_mib("VmHWM"));
    fire_the_rest(&mut bench)?;
    sweep(bench, dir, &mut figures)?;
    Ok(figures)
}

/// Fires the tasks that were inserted before the process was killed.
fn fire_the_rest(bench: &mut StoreBench) -> BenchResult<()> {
    bench.own_again()?;
    let progress = BenchProgress::new("load + settle the rest", bench.scheduled()?);
    bench.run(&progress, |mut owner| async move {
        let mut after = Position::before(NOW.after(DAY * DAYS));
        let until = NOW.after(DAY * (DAYS + 2));
        loop {
            let due = owner.store.load(owner.partition, after, until, BATCH as usize).await?;
            let Some(last) = due.last() else { return Ok(()) };
            after = Position::of(last);
            let changes = due.iter().map(|task| settle(task, FireEnd::Done, task.fire_at));
            let changes = changes.collect();
            owner.apply(changes).await?;
        }
    })?;
    assert_eq!(bench.scheduled()?, 0, "every task has fired");
    Ok(())
}

/// A month later: sweeps the history, makes a checkpoint, and closes the store.
fn sweep(bench: StoreBench, dir: &Path, figures: &mut StoreFigures) -> BenchResult<()> {
    bench.checkpoint()?;
    figures.set("fired_disk_bytes", machine::disk_bytes(dir) as f64);
    let now = NOW.after(DAY * DAYS * 2);
    let mut history = 0;
    for lease in &bench.leases {
        let Seat::Partition(partition) = lease.seat else { continue };
        let sweep = bench.store.sweep(partition, lease.epoch, Retention::default(), now);
        history += bench.runtime.block_on(sweep)?.history;
    }
    figures.set("swept", history as f64);
    bench.checkpoint()?;
    for lease in &bench.leases {
        let Seat::Partition(partition) = lease.seat else { continue };
        let filter = Filter::all(bench.maker.namespace.clone());
        let list = bench.store.list(partition, &filter, Position::START, 1);
        let page = bench.runtime.block_on(list)?;
        assert!(page.items.is_empty(), "no task is left");
    }
    figures.set("swept_disk_bytes", machine::disk_bytes(dir) as f64);
    bench.close()?;
    figures.set("closed_disk_bytes", machine::disk_bytes(dir) as f64);
    Ok(())
}
