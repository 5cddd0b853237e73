//! Rates of the embedded store, for tuning: inserts, loads and settles, touches, cancels, memory, bytes written, opening.
//!
//! `cargo run --release -p punctual-store-embedded --example rates -- [tasks] [dir]`. The official figures come from the bench command.

#![allow(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a tool that measures and prints"
)]

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use punctual_core::{
    BrokerId, Due, FireEnd, FireRecord, Lease, Namespace, NewTask, PartitionId, Partitions,
    Payload, Queue, Schedule, Seat, Sequence, Target, Task, TaskId, TaskKey, TaskState, Timestamp,
    Version,
};
use punctual_store::{Batch, BatchNo, Change, LeaseStore, Position, TaskStore};
use punctual_store_embedded::{EmbeddedStore, Options};

type Outcome<T> = Result<T, Box<dyn Error>>;

const START: Timestamp = Timestamp::from_millis(1_800_000_000_000);
const BATCH: u64 = 1000;
const P: PartitionId = PartitionId::FIRST;
const MONTH_MILLIS: u64 = 30 * 86_400_000;

struct Owner {
    store: Arc<EmbeddedStore>,
    lease: Lease,
    number: BatchNo,
    sequence: u64,
    random: u64,
}

impl Owner {
    async fn take(store: Arc<EmbeddedStore>) -> Outcome<Self> {
        let broker = BrokerId::new("rates:1");
        let seat = Seat::Partition(P);
        let lease = store.acquire(seat, &broker, Duration::from_secs(3600), START).await?;
        Ok(Self {
            store,
            lease,
            number: BatchNo::FIRST,
            sequence: 0,
            random: 0x1234_5678_9abc_def1,
        })
    }

    fn random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    async fn apply(&mut self, changes: Vec<Change>) -> Outcome<()> {
        let batch = Batch { number: self.number, changes };
        self.store.apply(P, self.lease.epoch, batch).await?;
        self.number = self.number.next();
        Ok(())
    }

    fn task(&mut self, base: &NewTask, due: Timestamp, payload: bytes::Bytes) -> Outcome<Task> {
        let sequence = Sequence::new(self.sequence).ok_or("used up")?;
        self.sequence += 1;
        let id = TaskId::new(due, P, self.lease.epoch, sequence);
        let definition = NewTask {
            payload: Payload::Binary { bytes: payload, content_type: "a/b".into() },
            schedule: Schedule::Once(Due::At(due)),
            ..base.clone()
        };
        Ok(Task::new(id, Arc::new(definition), START, Version::FIRST))
    }
}

fn main() -> Outcome<()> {
    let mut args = std::env::args().skip(1);
    let tasks: u64 = args.next().map_or(Ok(1_000_000), |text| text.parse())?;
    let dir = args.next().map_or_else(|| PathBuf::from("/work/tmp-rates"), PathBuf::from);
    let _ = std::fs::remove_dir_all(&dir);
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(measure(tasks, &dir))?;
    std::fs::remove_dir_all(&dir)?;
    Ok(())
}

async fn measure(tasks: u64, dir: &Path) -> Outcome<()> {
    let options = Options::new(Partitions::ONE);
    let (store, _) = EmbeddedStore::open(dir, options.clone())?;
    let mut owner = Owner::take(Arc::new(store)).await?;
    let base = NewTask::new(
        Namespace::new("bench")?,
        Schedule::Once(Due::At(START)),
        Target::Queue(Queue::new("orders")?),
    );
    let ids = insert(&mut owner, &base, tasks).await?;
    report_disk(dir)?;
    cancel(&mut owner, &ids).await?;
    drop(ids);

    let begun = Instant::now();
    drop(owner);
    println!("drop            {:>8.2} s", begun.elapsed().as_secs_f64());
    let begun = Instant::now();
    let (store, report) = EmbeddedStore::open(dir, options.clone())?;
    let mut owner = Owner::take(Arc::new(store)).await?;
    let first = owner.store.load(P, Position::START, Timestamp::MAX, 1).await?;
    let opened = begun.elapsed().as_secs_f64();
    println!(
        "open            {opened:>8.2} s   replayed {}, first task {}",
        report.replayed,
        first.len()
    );

    load_and_settle(&mut owner).await?;
    owner.store.checkpoint().await?;
    owner.store.checkpoint().await?;
    report_disk(dir)?;
    touch(&mut owner, &base).await?;
    println!("memory          {:>8} MiB", resident_mib()?);
    Ok(())
}

/// Two calls under way at a time cannot be: an owner has one. So this is what one owner gets.
async fn insert(owner: &mut Owner, base: &NewTask, tasks: u64) -> Outcome<Vec<TaskId>> {
    let mut ids = Vec::new();
    let mut slowest = Duration::ZERO;
    let mut meter = Meter::start()?;
    let payload: Vec<u8> = (0..128u32).map(|n| u8::try_from(n).unwrap_or(0)).collect();
    for batch in 0..tasks / BATCH {
        let mut changes = Vec::with_capacity(1000);
        for _ in 0..BATCH {
            let due = Timestamp::from_millis(START.as_millis() + owner.random() % MONTH_MILLIS);
            let payload = bytes::Bytes::copy_from_slice(&payload);
            let task = owner.task(base, due, payload)?;
            if ids.len() < 300_000 && owner.random().is_multiple_of(8) {
                ids.push(task.id);
            }
            changes.push(Change::Put(task));
        }
        let begun = Instant::now();
        owner.apply(changes).await?;
        slowest = slowest.max(begun.elapsed());
        if (batch + 1).is_multiple_of(1000) {
            meter.print("insert", 1_000_000)?;
            println!(
                "                slowest batch {:.1} ms, {} MiB",
                slowest.as_secs_f64() * 1e3,
                resident_mib()?
            );
            slowest = Duration::ZERO;
            meter = Meter::start()?;
        }
    }
    Ok(ids)
}

async fn cancel(owner: &mut Owner, ids: &[TaskId]) -> Outcome<()> {
    let meter = Meter::start()?;
    for chunk in ids.chunks(1000) {
        let tasks = owner.store.get(P, chunk).await?;
        let settle = |task: Task| Change::Settle {
            record: FireRecord::of(&task, FireEnd::Cancelled, START),
            next: None,
            was: TaskState::Scheduled,
        };
        let changes = tasks.into_iter().flatten().map(settle).collect();
        owner.apply(changes).await?;
    }
    meter.print("cancel by id", ids.len() as u64)
}

async fn load_and_settle(owner: &mut Owner) -> Outcome<()> {
    let mut after = Position::START;
    let mut count = 0u64;
    let mut meter = Meter::start()?;
    let mut loading = Duration::ZERO;
    loop {
        let begun = Instant::now();
        let tasks = owner.store.load(P, after, Timestamp::MAX, 1000).await?;
        loading += begun.elapsed();
        let Some(last) = tasks.last() else { break };
        after = Position::of(last);
        count += tasks.len() as u64;
        let settle = |task: &Task| Change::Settle {
            record: FireRecord::of(task, FireEnd::Done, START),
            next: None,
            was: TaskState::Scheduled,
        };
        owner.apply(tasks.iter().map(settle).collect()).await?;
        if count >= 1_000_000 {
            meter.print("load + settle", count)?;
            println!(
                "                loading {:.2} s, {} MiB",
                loading.as_secs_f64(),
                resident_mib()?
            );
            (count, loading, meter) = (0, Duration::ZERO, Meter::start()?);
        }
    }
    Ok(())
}

async fn touch(owner: &mut Owner, base: &NewTask) -> Outcome<()> {
    let within = Duration::from_secs(3600);
    let keys: Vec<TaskKey> = (0..1_000_000)
        .map(|n| TaskKey::new(&format!("device-{n:08}")))
        .collect::<Result<_, _>>()?;
    let meter = Meter::start()?;
    for chunk in keys.chunks(1000) {
        let mut changes = Vec::new();
        for key in chunk {
            let due = START.after(within);
            let mut task = owner.task(base, due, bytes::Bytes::from_static(b"x"))?;
            let mut definition = (*task.definition).clone();
            definition.key = Some(key.clone());
            definition.schedule = Schedule::Watch { within };
            task.definition = Arc::new(definition);
            changes.push(Change::Put(task));
        }
        owner.apply(changes).await?;
    }
    meter.print("put watches", keys.len() as u64)?;
    for round in 1..=4u64 {
        let meter = Meter::start()?;
        let mut slowest = Duration::ZERO;
        for _ in 0..1000 {
            let some: Vec<TaskKey> = (0..1000)
                .map(|_| keys[usize::try_from(owner.random() % 1_000_000).unwrap_or(0)].clone())
                .collect();
            let begun = Instant::now();
            let heads = owner.store.find(P, &base.namespace, &some).await?;
            let fire_at = START.after(within + Duration::from_secs(round));
            let changes = heads
                .into_iter()
                .flatten()
                .map(|head| Change::Postpone { id: head.id, fire_at, version: head.version.next() })
                .collect();
            owner.apply(changes).await?;
            slowest = slowest.max(begun.elapsed());
        }
        meter.print("touch by key", 1_000_000)?;
        println!(
            "                slowest {:.1} ms, {} MiB",
            slowest.as_secs_f64() * 1e3,
            resident_mib()?
        );
    }
    Ok(())
}

struct Meter {
    begun: Instant,
    cpu: f64,
    written: u64,
}

impl Meter {
    fn start() -> Outcome<Self> {
        Ok(Self { begun: Instant::now(), cpu: cpu_seconds()?, written: bytes_written()? })
    }

    fn print(&self, what: &str, count: u64) -> Outcome<()> {
        let seconds = self.begun.elapsed().as_secs_f64();
        let cpu = cpu_seconds()? - self.cpu;
        let written = bytes_written()? - self.written;
        #[allow(clippy::cast_precision_loss, reason = "for people")]
        let (count, written) = (count as f64, written as f64);
        println!(
            "{what:<15} {:>8.0}/s  {:>5.2} us CPU  {:>6.0} bytes written each",
            count / seconds,
            cpu / count * 1e6,
            written / count
        );
        Ok(())
    }
}

fn cpu_seconds() -> Outcome<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or("").split(' ').collect();
    let ticks: f64 = fields[11].parse::<f64>()? + fields[12].parse::<f64>()?;
    Ok(ticks / 100.0)
}

/// Of the device, others included: `/proc/self/io` counts a whole large folio for every page of it that is touched, which on
/// preallocated files is thirty times what is written.
fn bytes_written() -> Outcome<u64> {
    let mut sectors = 0;
    for disk in ["vda", "sda", "nvme0n1"] {
        if let Ok(stat) = std::fs::read_to_string(format!("/sys/block/{disk}/stat")) {
            sectors += stat.split_whitespace().nth(6).unwrap_or("0").parse::<u64>()?;
        }
    }
    Ok(sectors * 512)
}

fn resident_mib() -> Outcome<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib: u64 = line.unwrap_or("0").trim().trim_end_matches(" kB").parse()?;
    Ok(kib / 1024)
}

fn report_disk(dir: &Path) -> Outcome<()> {
    for part in ["runs", "journal", "catalog"] {
        let mut bytes = 0;
        let mut files = 0;
        let mut dirs = vec![dir.join(part)];
        while let Some(dir) = dirs.pop() {
            for entry in std::fs::read_dir(dir)? {
                let entry = entry?;
                if entry.file_type()?.is_dir() {
                    dirs.push(entry.path());
                } else {
                    bytes += entry.metadata()?.len();
                    files += 1;
                }
            }
        }
        println!("disk {part:<10} {:>8} MiB in {files} files", bytes >> 20);
    }
    Ok(())
}
