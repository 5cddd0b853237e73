//! Touch by key.

use std::path::Path;
use std::time::Duration;

use punctual_core::Version;
use punctual_store::{Change, Filter, Position, Prior, TaskStore};

use crate::figures::StoreFigures;
use crate::machine;
use crate::owners::{BATCH, BenchProgress, BenchResult, OWNERS, SUM_MASK, StoreBench, sum_of};
use crate::tasks::{DAY, DAYS, NOW, id_of, key_of};

use super::STRIDE;

/// How often each key is touched.
const TOUCHES: u64 = 2;
/// Pages that each owner lists at most, and tasks per page.
const PAGES: u64 = 64;
const PAGE: usize = 100;

/// Measures touch by key: find, then postpone. All keys twice, in a mixed order.
pub fn touch(dir: &Path, keys: u64) -> BenchResult<StoreFigures> {
    let mut figures = StoreFigures::default();
    let mut bench = StoreBench::open(dir, OWNERS)?;
    let each = keys / OWNERS / BATCH * BATCH;
    let progress = BenchProgress::new("create watches", each * OWNERS);
    bench.run(&progress, |mut owner| async move {
        for first in (0..each).step_by(BATCH as usize) {
            let make = |sequence| Change::Put(owner.maker.watch(owner.partition, sequence));
            let changes = (first..first + BATCH).map(make).collect();
            owner.apply(changes).await?;
        }
        Ok(())
    })?;
    bench.checkpoint()?;
    bench.own_again()?;
    let touches = each * OWNERS * TOUCHES;
    let progress = BenchProgress::new("touch", touches);
    let (begun, cpu, before) = (machine::start(), machine::cpu("self"), machine::written(dir));
    let done = bench.run(&progress, |mut owner| async move {
        let mut finding = Duration::ZERO;
        for first in (0..each * TOUCHES).step_by(BATCH as usize) {
            let key = |i: u64| key_of(owner.partition, i * STRIDE % each);
            let keys: Vec<_> = (first..first + BATCH).map(key).collect();
            let started = machine::start();
            let heads = owner.store.find(owner.partition, &owner.maker.namespace, &keys).await?;
            finding += started.elapsed();
            let of = owner.maker.namespace.clone();
            let touch = |head: Option<punctual_store::Head>| {
                let head = head.ok_or("a task with a key is missing")?;
                let (fire_at, updated_at) = (head.fire_at.after(DAY), head.fire_at);
                let (id, version, was) = (head.id, head.version.next(), Prior::of_head(&head));
                let namespace = of.clone();
                Ok(Change::Postpone { id, namespace, fire_at, version, updated_at, was })
            };
            let changes: BenchResult<Vec<Change>> = heads.into_iter().map(touch).collect();
            owner.apply(changes?).await?;
        }
        Ok(finding)
    })?;
    let seconds = begun.elapsed().as_secs_f64();
    let cpu = machine::cpu("self") - cpu;
    bench.checkpoint()?;
    let after = machine::written(dir);
    let per = |bytes: u64| bytes as f64 / touches as f64;
    figures.set("keys", (each * OWNERS) as f64);
    figures.set("touches", touches as f64);
    figures.set("per_second", touches as f64 / seconds);
    figures.set("cpu_micros", cpu.as_secs_f64() * 1e6 / touches as f64);
    figures.set("written_bytes", per(after.calls - before.calls));
    figures.set("written_disk_bytes", per(after.disk - before.disk));
    let finding: f64 = done.iter().map(Duration::as_secs_f64).sum();
    figures.set("find_share", finding / (seconds * OWNERS as f64));
    figures.set("memory_mib", machine::memory_mib("VmRSS"));
    figures.set("memory_peak_mib", machine::memory_mib("VmHWM"));
    list_touched(&mut bench, each, &mut figures)?;
    check_touched(&mut bench, each)?;
    figures.set("checked_memory_mib", machine::memory_mib("VmRSS"));
    bench.close()?;
    Ok(figures)
}

/// Lists pages from the middle of the touched tasks.
fn list_touched(bench: &mut StoreBench, each: u64, figures: &mut StoreFigures) -> BenchResult<()> {
    // Pages start in the middle, so a small store has fewer of them.
    let pages = PAGES.min(each / 4 / PAGE as u64);
    let progress = BenchProgress::new("list", pages * OWNERS);
    let entries_read = |bench: &StoreBench| bench.store.stats().map(|stats| stats.looked_at);
    let (begun, before) = (machine::start(), entries_read(bench)?);
    bench.run(&progress, |owner| async move {
        let filter = Filter::all(owner.maker.namespace.clone());
        let mut after = Position::before(NOW.after(DAY * (DAYS / 2)));
        for _ in 0..pages {
            let page = owner.store.list(owner.partition, &filter, after, PAGE).await?;
            assert_eq!(page.items.len(), PAGE, "every page is full");
            after = page.next.ok_or("a page is missing")?;
            owner.progress.add(1);
        }
        Ok(())
    })?;
    let pages = (pages * OWNERS) as f64;
    figures.set("list_pages_per_second", pages / begun.elapsed().as_secs_f64());
    figures.set("list_looked_at", (entries_read(bench)? - before) as f64 / pages);
    Ok(())
}

/// Checks that every task is loaded once, at the time of its last touch.
fn check_touched(bench: &mut StoreBench, each: u64) -> BenchResult<()> {
    let progress = BenchProgress::new("check what was touched", each * OWNERS);
    let done = bench.run(&progress, |owner| async move {
        let (mut after, mut count, mut sum) = (Position::START, 0, 0);
        loop {
            let until = NOW.after(DAY * (DAYS + 10));
            let due = owner.store.load(owner.partition, after, until, BATCH as usize).await?;
            for task in &due {
                assert!(Position::of(task) > after, "tasks are loaded in order");
                after = Position::of(task);
                assert_eq!(task.fire_at, task.id.due().after(DAY * TOUCHES as u32));
                assert_eq!(task.version, Version::new(1 + TOUCHES));
            }
            count += due.len() as u64;
            sum = (sum + sum_of(due.iter().map(|task| task.id))) & SUM_MASK;
            owner.progress.add(due.len() as u64);
            if due.is_empty() {
                return Ok((owner.partition, count, sum));
            }
        }
    })?;
    for (partition, count, sum) in done {
        assert_eq!(count, each, "{partition}: every task is loaded once");
        assert_eq!(sum, sum_of((0..each).map(|sequence| id_of(partition, sequence))));
    }
    Ok(())
}
