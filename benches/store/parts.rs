//! The parts: what is measured, each in a process of its own, so that memory and CPU are its alone.
//!
//! In: a directory and a number of tasks. Out: figures. Every owner has one partition and one call under way, as the
//! contract wants it; 16 owners on two threads, if nothing else is said.
//! Invariant: what a part did is checked, by counts, order and a sum over ids, so that a figure is one of correct work.

use std::error::Error;
use std::future::Future;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use punctual_core::{
    BrokerId, FireEnd, FireRecord, Lease, PartitionId, Partitions, Seat, Task, TaskId, TaskState,
    Timestamp, Version,
};
use punctual_store::{Batch, BatchNo, Change, Filter, LeaseStore, Position, Retention, TaskStore};
use punctual_store_embedded::{EmbeddedOptions, EmbeddedStore};
use tokio::runtime::Runtime;

use crate::figures::{Figures, grouped};
use crate::machine;
use crate::tasks::{DAY, DAYS, EPOCH, Maker, NOW, hash, id_of, key_of};

pub const OWNERS: u64 = 16;
pub const BATCH: u64 = 1000;
/// Named tasks in the part that touches.
pub const KEYS: u64 = 1_000_000;
/// Times that each of them is touched.
const TOUCHES: u64 = 2;
/// Spreads consecutive numbers over all: prime, and larger than an owner's share of any usual run.
const STRIDE: u64 = 1_000_003;
/// Pages that each owner lists, and tasks on one.
const PAGES: u64 = 64;
const PAGE: usize = 100;
const LEASE: Duration = Duration::from_secs(400 * 86_400);
const THREADS: usize = 2;
/// No answer should take longer.
const LONG_WAIT: Duration = Duration::from_millis(250);
/// Parts of the growth whose rates are told.
pub const TENTHS: usize = 10;

pub type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Sums of ids go through `f64`, which is exact up to here.
const SUM_MASK: u64 = (1 << 48) - 1;

pub fn sum_of(ids: impl Iterator<Item = TaskId>) -> u64 {
    ids.fold(0, |sum, id| (sum + (hash(id) & SUM_MASK)) & SUM_MASK)
}

/// A store with all its partitions owned.
struct Bench {
    store: Arc<EmbeddedStore>,
    leases: Vec<Lease>,
    maker: Maker,
    runtime: Runtime,
}

/// One owner: its partition, and how far it has come.
#[derive(Clone)]
struct Owner {
    store: Arc<EmbeddedStore>,
    partition: PartitionId,
    lease: Lease,
    batch: BatchNo,
    maker: Maker,
    progress: Arc<Progress>,
    /// When each call was answered, and how long it took.
    answers: Vec<(Instant, Duration)>,
}

struct Progress {
    what: &'static str,
    done: AtomicU64,
    total: u64,
    begun: Instant,
}

impl Progress {
    fn new(what: &'static str, total: u64) -> Arc<Progress> {
        Arc::new(Progress { what, done: AtomicU64::new(0), total, begun: machine::start() })
    }

    fn add(&self, tasks: u64) {
        let before = self.done.fetch_add(tasks, Relaxed);
        let (done, step) = (before + tasks, (self.total / 10).max(1));
        if done / step > before / step {
            let rate = done as f64 / self.begun.elapsed().as_secs_f64();
            eprintln!(
                "  {}: {} of {}, {}/s, {:.0} MiB resident",
                self.what,
                grouped(done as f64),
                grouped(self.total as f64),
                grouped(rate),
                machine::memory_mib("VmRSS"),
            );
        }
    }
}

impl Bench {
    fn open(dir: &Path, owners: u64) -> Outcome<Bench> {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(THREADS).build()?;
        let partitions = Partitions::new(u16::try_from(owners)?)?;
        let (store, _) = EmbeddedStore::open(dir, EmbeddedOptions::new(partitions))?;
        let broker = BrokerId::new("bench:1");
        let leases = runtime.block_on(async {
            let mut leases = Vec::new();
            for partition in partitions.iter() {
                let seat = Seat::Partition(partition);
                leases.push(store.acquire(seat, &broker, LEASE, NOW).await?);
            }
            Ok::<_, punctual_store::StoreError>(leases)
        })?;
        Ok(Bench { store: Arc::new(store), leases, maker: Maker::new(), runtime })
    }

    /// Runs every owner to its end; gives them back.
    fn run<F>(
        &mut self,
        progress: &Arc<Progress>,
        work: impl Fn(Owner) -> F,
    ) -> Outcome<Vec<F::Done>>
    where
        F: Work,
    {
        let owners = self.leases.iter().filter_map(|lease| match lease.seat {
            Seat::Partition(partition) => Some(Owner {
                store: Arc::clone(&self.store),
                partition,
                lease: lease.clone(),
                batch: BatchNo::FIRST,
                maker: self.maker.clone(),
                progress: Arc::clone(progress),
                answers: Vec::new(),
            }),
            Seat::Leader => None,
        });
        let running: Vec<_> = owners.map(|owner| self.runtime.spawn(work(owner))).collect();
        self.runtime.block_on(async {
            let mut done = Vec::new();
            for owner in running {
                done.push(owner.await??);
            }
            Ok(done)
        })
    }

    /// Takes the partitions again, so that batches are numbered anew.
    fn own_again(&mut self) -> Outcome<()> {
        let broker = BrokerId::new("bench:1");
        for lease in &mut self.leases {
            *lease = self.runtime.block_on(self.store.acquire(lease.seat, &broker, LEASE, NOW))?;
        }
        Ok(())
    }

    fn checkpoint(&self) -> Outcome<()> {
        Ok(self.runtime.block_on(self.store.checkpoint())?)
    }

    fn scheduled(&self) -> Outcome<u64> {
        let mut scheduled = 0;
        for lease in &self.leases {
            let Seat::Partition(partition) = lease.seat else { continue };
            let counts = self.store.counts(partition, &self.maker.namespace);
            scheduled += self.runtime.block_on(counts)?.scheduled;
        }
        Ok(u64::try_from(scheduled)?)
    }

    fn close(self) -> Outcome<()> {
        let store = Arc::into_inner(self.store).ok_or("somebody still holds the store")?;
        Ok(self.runtime.block_on(store.close())?)
    }
}

/// What an owner does, as a future.
trait Work: Future<Output = Outcome<Self::Done>> + Send + 'static {
    type Done: Send + 'static;
}

impl<T: Send + 'static, F: Future<Output = Outcome<T>> + Send + 'static> Work for F {
    type Done = T;
}

impl Owner {
    async fn apply(&mut self, changes: Vec<Change>) -> Outcome<()> {
        let tasks = changes.len() as u64;
        let batch = Batch::new(self.batch, changes);
        self.batch = self.batch.next();
        let asked = machine::start();
        self.store.apply(self.partition, self.lease.epoch, batch).await?;
        let answered = machine::start();
        self.answers.push((answered, answered - asked));
        self.progress.add(tasks);
        Ok(())
    }

    /// Tells the store what time it is, as an owner that renews its lease does.
    async fn tell_time(&mut self, now: Timestamp) -> Outcome<()> {
        self.lease = self.store.renew(&self.lease, LEASE, now).await?;
        Ok(())
    }
}

/// CPU that making a task takes, without a store, in µs.
fn making(maker: &Maker) -> f64 {
    const TASKS: u64 = 1_000_000;
    let cpu = machine::cpu("self");
    for first in (0..TASKS).step_by(BATCH as usize) {
        let make = |sequence| Change::Put(maker.task(PartitionId::FIRST, sequence));
        let changes: Vec<Change> = (first..first + BATCH).map(make).collect();
        std::hint::black_box(&changes);
    }
    (machine::cpu("self") - cpu).as_secs_f64() * 1e6 / TASKS as f64
}

/// Durable insert, and growth. With `then_more`, goes on with further tasks until it is killed, and says how many
/// were acknowledged.
pub fn insert(dir: &Path, tasks: u64, owners: u64, then_more: bool) -> Outcome<Figures> {
    let mut figures = Figures::default();
    let mut bench = Bench::open(dir, owners)?;
    figures.set("making_cpu_micros", making(&bench.maker));
    figures.set("record_bytes", bench.maker.record_bytes());
    figures.set("memory_before_mib", machine::memory_mib("VmRSS"));
    assert!(bench.leases.iter().all(|lease| lease.epoch.get() == EPOCH), "the store is new");
    let each = tasks / owners / BATCH * BATCH;
    let tasks = each * owners;
    let progress = Progress::new("insert", tasks);
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
    figures.set("files_made", (stats.journal.files_filled + stats.journal.files_promised) as f64);
    figures.set("files_begun", stats.journal.files_begun as f64);
    figures.set("checkpoints", stats.checkpoints as f64);
    figures.set("runs", stats.runs as f64);
    figures.set("index_mib", stats.index_bytes as f64 / f64::from(1 << 20));
    assert_eq!(bench.scheduled()?, tasks, "all that was acknowledged is counted");
    // After the clock has stopped: ids follow from their numbers.
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

/// Until it is killed.
fn insert_more(bench: &mut Bench, done: Vec<Owner>, from: u64) -> Outcome<()> {
    let acked = Arc::new(AtomicU64::new(0));
    let running = done.into_iter().map(|mut owner| {
        let acked = Arc::clone(&acked);
        bench.runtime.spawn(async move {
            for first in (from..).step_by(BATCH as usize) {
                let make = |sequence| Change::Put(owner.maker.late_task(owner.partition, sequence));
                let changes = (first..first + BATCH).map(make).collect();
                owner.apply(changes).await?;
                let acked = acked.fetch_add(BATCH, Relaxed) + BATCH;
                // Under one lock, so that the last line that was read is never too high.
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

/// Rates over time and the longest waits, from when each batch was answered.
fn note_answers(figures: &mut Figures, begun: Instant, done: &[Owner]) {
    let mut answers: Vec<(Instant, Duration)> =
        done.iter().flat_map(|owner| owner.answers.iter().copied()).collect();
    answers.sort_unstable();
    let batches = answers.len();
    // Around a million pending, and the same number of tasks at the end.
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
            "  nobody was answered for {:.0} ms after {:.2} s",
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

/// Opening after a crash, until the first due task is loaded; then a clean close.
pub fn open(dir: &Path) -> Outcome<Figures> {
    let mut figures = Figures::default();
    let maker = Maker::new();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(THREADS).build()?;
    let partitions = Partitions::new(OWNERS as u16)?;
    let until = NOW.after(DAY);
    let begun = machine::start();
    let (store, report) = EmbeddedStore::open(dir, EmbeddedOptions::new(partitions))?;
    figures.set("opened_seconds", begun.elapsed().as_secs_f64());
    for partition in partitions.iter() {
        let load = store.load(partition, Position::START, until, BATCH as usize);
        let tasks = runtime.block_on(load)?;
        let first = tasks.first().ok_or("nothing is due on the first day")?;
        maker.check(first);
        if partition == PartitionId::FIRST {
            figures.set("first_seconds", begun.elapsed().as_secs_f64());
        }
    }
    figures.set("all_first_seconds", begun.elapsed().as_secs_f64());
    figures.set("replayed", report.replayed as f64);
    assert!(!report.closed_cleanly, "it was killed");
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

/// Cancel by id: get, then settle as cancelled. First tasks from everywhere, then the youngest.
pub fn cancel(dir: &Path, tasks: u64) -> Outcome<Figures> {
    let mut figures = Figures::default();
    let mut bench = Bench::open(dir, OWNERS)?;
    let each = tasks / OWNERS / BATCH * BATCH;
    let count = (each / 10).min(62_500) / BATCH * BATCH;
    let old = each - count;
    let mut sum = 0;
    for (name, what, id) in [
        ("spread", "cancel", &(|owner, i| id_of(owner, i * STRIDE % old)) as &dyn Fn(_, _) -> _),
        ("young", "cancel the youngest", &|owner, i| id_of(owner, old + i)),
    ] {
        if name == "young" {
            bench.own_again()?;
        }
        let progress = Progress::new(what, count * OWNERS);
        let (begun, cpu) = (machine::start(), machine::cpu("self"));
        let done = bench.run(&progress, |mut owner| {
            let ids: Vec<TaskId> = (0..count).map(|i| id(owner.partition, i)).collect();
            async move {
                let mut getting = Duration::ZERO;
                for ids in ids.chunks(BATCH as usize) {
                    let asked = machine::start();
                    let found = owner.store.get(owner.partition, ids).await?;
                    getting += asked.elapsed();
                    let cancel = |task: Option<Task>| {
                        let task = task.ok_or("a task that was not cancelled is not there")?;
                        Ok(settle(&task, FireEnd::Cancelled, NOW))
                    };
                    let changes: Outcome<Vec<Change>> = found.into_iter().map(cancel).collect();
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
    Change::Settle { record: FireRecord::of(task, end, at), next: None, was: TaskState::Scheduled }
}

/// Load and settle of everything, in order of time; then what is kept of it is swept.
pub fn fire(dir: &Path, tasks: u64) -> Outcome<Figures> {
    let mut figures = Figures::default();
    let mut bench = Bench::open(dir, OWNERS)?;
    // Time moves in steps that have some twenty batches each, so that nearly all batches are full.
    let steps = (tasks / OWNERS / BATCH / 20).clamp(1, u64::from(DAYS)) as u32;
    let progress = Progress::new("load + settle", tasks);
    let (begun, cpu) = (machine::start(), machine::cpu("self"));
    let done = bench.run(&progress, |mut owner| async move {
        let (mut after, mut sum, mut count) = (Position::START, 0, 0);
        let mut loading = Duration::ZERO;
        for step in 1..=steps {
            let until = NOW.after(DAY * DAYS * step / steps);
            loop {
                let asked = machine::start();
                let due = owner.store.load(owner.partition, after, until, BATCH as usize).await?;
                loading += asked.elapsed();
                let last = due.len() < BATCH as usize;
                for task in &due {
                    assert!(Position::of(task) > after, "tasks come in order");
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
            owner.tell_time(until).await?;
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

/// Those that were inserted while waiting to be killed.
fn fire_the_rest(bench: &mut Bench) -> Outcome<()> {
    bench.own_again()?;
    let progress = Progress::new("load + settle the rest", bench.scheduled()?);
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
    assert_eq!(bench.scheduled()?, 0, "everything has fired");
    Ok(())
}

/// A month later: history is past its age, the store has had a checkpoint and was closed.
fn sweep(bench: Bench, dir: &Path, figures: &mut Figures) -> Outcome<()> {
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
        assert!(page.items.is_empty(), "nothing is left");
    }
    figures.set("swept_disk_bytes", machine::disk_bytes(dir) as f64);
    bench.close()?;
    figures.set("closed_disk_bytes", machine::disk_bytes(dir) as f64);
    Ok(())
}

/// Touch by key: find, then postpone. All keys twice, in an order that is far from theirs.
pub fn touch(dir: &Path, keys: u64) -> Outcome<Figures> {
    let mut figures = Figures::default();
    let mut bench = Bench::open(dir, OWNERS)?;
    let each = keys / OWNERS / BATCH * BATCH;
    let progress = Progress::new("name", each * OWNERS);
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
    let progress = Progress::new("touch", touches);
    let (begun, cpu, before) = (machine::start(), machine::cpu("self"), machine::written(dir));
    let done = bench.run(&progress, |mut owner| async move {
        let mut finding = Duration::ZERO;
        for first in (0..each * TOUCHES).step_by(BATCH as usize) {
            let key = |i: u64| key_of(owner.partition, i * STRIDE % each);
            let keys: Vec<_> = (first..first + BATCH).map(key).collect();
            let asked = machine::start();
            let heads = owner.store.find(owner.partition, &owner.maker.namespace, &keys).await?;
            finding += asked.elapsed();
            let touch = |head: Option<punctual_store::Head>| {
                let head = head.ok_or("a named task is not there")?;
                let fire_at = head.fire_at.after(DAY);
                Ok(Change::Postpone { id: head.id, fire_at, version: head.version.next() })
            };
            let changes: Outcome<Vec<Change>> = heads.into_iter().map(touch).collect();
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
    list_touched(&mut bench, &mut figures)?;
    check_touched(&mut bench, each)?;
    figures.set("checked_memory_mib", machine::memory_mib("VmRSS"));
    bench.close()?;
    Ok(figures)
}

/// Pages from the middle of what was touched.
fn list_touched(bench: &mut Bench, figures: &mut Figures) -> Outcome<()> {
    let progress = Progress::new("list", PAGES * OWNERS);
    let looked_at = |bench: &Bench| bench.store.stats().map(|stats| stats.looked_at);
    let (begun, before) = (machine::start(), looked_at(bench)?);
    bench.run(&progress, |owner| async move {
        let filter = Filter::all(owner.maker.namespace.clone());
        let mut after = Position::before(NOW.after(DAY * (DAYS / 2)));
        for _ in 0..PAGES {
            let page = owner.store.list(owner.partition, &filter, after, PAGE).await?;
            assert_eq!(page.items.len(), PAGE, "every page is full");
            after = page.next.ok_or("there is more")?;
            owner.progress.add(1);
        }
        Ok(())
    })?;
    let pages = (PAGES * OWNERS) as f64;
    figures.set("list_pages_per_second", pages / begun.elapsed().as_secs_f64());
    figures.set("list_looked_at", (looked_at(bench)? - before) as f64 / pages);
    Ok(())
}

/// Every task is loaded once, at the time to which it was touched last.
fn check_touched(bench: &mut Bench, each: u64) -> Outcome<()> {
    let progress = Progress::new("check what was touched", each * OWNERS);
    let done = bench.run(&progress, |owner| async move {
        let (mut after, mut count, mut sum) = (Position::START, 0, 0);
        loop {
            let until = NOW.after(DAY * (DAYS + 10));
            let due = owner.store.load(owner.partition, after, until, BATCH as usize).await?;
            for task in &due {
                assert!(Position::of(task) > after, "tasks come in order");
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
