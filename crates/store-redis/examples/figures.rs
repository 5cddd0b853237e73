//! Measures what a task costs Redis, from schedule to settlement: CPU time of the server, step by
//! step.
//!
//! ```text
//! redis-server --port 7777 --save '' --appendonly yes --appendfsync everysec \
//!     --dir "$(mktemp -d)" &
//! cargo run --release -p punctual-store-redis --example figures -- \
//!     redis://127.0.0.1:7777 200000 500
//! ```
//!
//! The arguments are the address, the number of tasks and the number of tasks in a batch. Each task
//! has 128 bytes of payload and is due within an hour. It is put, loaded, and settled after one
//! attempt; its record is kept. One in 10,000 becomes a dead letter. Then the same number of tasks
//! with keys is put, found, touched and cancelled. At last pages of 100 ended fires are read, and
//! all records are swept. CPU time is `used_cpu_user` + `used_cpu_sys` of the server, including the
//! threads that sync its file. Memory is `used_memory` per ended fire.

#![allow(clippy::print_stdout, reason = "prints results")]
#![allow(clippy::unwrap_used, reason = "an example that stops where it fails")]

use std::time::Duration;

use punctual_core::{
    AttemptRecord, BrokerId, EndKind, Epoch, FireEnd, FireRecord, Namespace, Outcome, PartitionId,
    Partitions, Payload, Seat, Task, Timestamp, Version,
};
use punctual_store::conformance::fixtures::{NOW, die, id, shop, task};
use punctual_store::{
    Batch, BatchNo, Change, FireFilter, LeaseStore, Position, Prior, Retention, TaskStore,
};
use punctual_store_redis::{RedisOptions, RedisStore};

const P: PartitionId = PartitionId::FIRST;
/// One in this many fires becomes a dead letter.
const DEAD_ONE_IN: u64 = 10_000;
/// How many pages are read of each list.
const PAGES: usize = 200;

struct CostBench {
    store: RedisStore,
    connection: redis::aio::MultiplexedConnection,
    epoch: Epoch,
    number: BatchNo,
    batch: usize,
    tasks: u64,
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let mut arguments = std::env::args().skip(1);
    let url = arguments.next().unwrap_or_else(|| "redis://127.0.0.1:7777".to_owned());
    let tasks: u64 = arguments.next().map_or(200_000, |argument| argument.parse().unwrap());
    let batch: usize = arguments.next().map_or(500, |argument| argument.parse().unwrap());
    let client = redis::Client::open(url.as_str()).unwrap();
    let connection = client.get_multiplexed_async_connection().await.unwrap();
    let name = format!("figures-{}", std::process::id());
    let options = RedisOptions::new(vec![url], &name, Partitions::ONE);
    let (store, warnings) = RedisStore::open(options).await.unwrap();
    for warning in warnings {
        println!("warning: {warning}");
    }
    let ttl = Duration::from_secs(3600);
    let lease = store.acquire(Seat::Partition(P), &BrokerId::new("a:1"), ttl, NOW).await.unwrap();
    let (epoch, number) = (lease.epoch, BatchNo::FIRST);
    let mut bench = CostBench { store, connection, epoch, number, batch, tasks };
    println!("{tasks} tasks in batches of {batch}");
    println!("step       tasks/s   Redis CPU µs/task");
    let before = bench.memory().await;
    let total = bench.without_keys().await;
    println!("total      {:>9}   {total:>8.2}", "");
    let without_keys = bench.memory().await;
    bench.with_keys().await;
    let with_keys = bench.memory().await;
    let per_task = |bytes: u64| bytes / bench.tasks;
    println!("bytes of memory per ended fire: {}", per_task(without_keys - before));
    println!("the same with a key: {}", per_task(with_keys - without_keys));
    bench.pages().await;
    bench.sweep().await;
}

impl CostBench {
    /// Puts, loads and settles tasks. Returns the CPU time of Redis per task, in microseconds.
    async fn without_keys(&mut self) -> f64 {
        let tasks: Vec<Task> = (0..self.tasks).map(|number| self.task(number, None)).collect();
        let put = tasks.iter().cloned().map(Change::Put).collect();
        let mut total = self.write("put", put).await;
        let before = self.cpu().await;
        let mut loaded = Vec::new();
        let mut after = Position::START;
        let timer = CostTimer::start();
        while loaded.len() < tasks.len() {
            loaded.extend(self.store.load(P, after, Timestamp::MAX, self.batch).await.unwrap());
            after = Position::of(loaded.last().unwrap());
        }
        total += self.report("load", timer, before).await;
        // Settled in the order in which they fire.
        let ended = (0..).zip(&loaded).map(|(index, task)| match index % DEAD_ONE_IN {
            0 => die(task, ended_at(index), None),
            _ => done(task, ended_at(index)),
        });
        total + self.write("settle", ended.collect()).await
    }

    async fn with_keys(&mut self) {
        let shop: Namespace = shop();
        let tasks: Vec<Task> =
            (0..self.tasks).map(|number| self.task(number, Some(number))).collect();
        self.write("put keys", tasks.iter().cloned().map(Change::Put).collect()).await;
        let before = self.cpu().await;
        let timer = CostTimer::start();
        for some in tasks.chunks(self.batch) {
            let keys: Vec<_> =
                some.iter().map(|task| task.definition.key.clone().unwrap()).collect();
            let heads = self.store.find(P, &shop, &keys).await.unwrap();
            assert!(heads.iter().all(Option::is_some));
        }
        self.report("find", timer, before).await;
        let touch = |task: &Task| Change::Postpone {
            id: task.id,
            fire_at: task.fire_at.after(Duration::from_secs(60)),
            version: task.version.next(),
            updated_at: task.fire_at,
            namespace: shop.clone(),
            was: Prior::of(task),
        };
        self.write("touch", tasks.iter().map(touch).collect()).await;
        let first = self.tasks;
        let cancel = |(index, task): (u64, &Task)| Change::Settle {
            record: FireRecord::of(task, FireEnd::Cancelled, ended_at(first + index)),
            next: None,
            was: Prior::of(task),
        };
        self.write("cancel", (0..).zip(&tasks).map(cancel).collect()).await;
    }

    /// Reads pages of ended fires: of all, of one end, and of prefixes of keys.
    async fn pages(&mut self) {
        let all = || FireFilter::all(shop());
        let end = |end| FireFilter { end: Some(end), ..all() };
        let prefix = |text: &str| FireFilter { key_prefix: text.to_owned(), ..all() };
        println!("pages of 100            pages   fires   p50 µs   p99 µs   Redis CPU µs/page");
        for (name, filter) in [
            ("all", all()),
            ("done", end(EndKind::Done)),
            ("dead", end(EndKind::Dead)),
            ("prefix of all keys", prefix("device/")),
            ("prefix of 1 in 9", prefix("device/7")),
            ("prefix of some 1,111", prefix("device/77")),
            ("prefix of some 111", prefix("device/777")),
            ("prefix of one key", prefix("device/77777")),
            ("prefix of no key", prefix("unit/")),
            ("done, prefix of all", FireFilter { end: Some(EndKind::Done), ..prefix("device/") }),
        ] {
            self.pages_of(name, &filter).await;
        }
    }

    /// Deletes all records.
    #[allow(clippy::cast_precision_loss, reason = "printed with two digits")]
    async fn sweep(&mut self) {
        let retention = Retention { history_age: Duration::ZERO, ..Retention::default() };
        let (before, mut swept, mut calls) = (self.cpu().await, 0, 0);
        loop {
            let more = self.store.sweep(P, self.epoch, retention, Timestamp::MAX).await.unwrap();
            if more.history == 0 {
                break;
            }
            (swept, calls) = (swept + more.history, calls + 1);
        }
        let cpu = (self.cpu().await - before) * 1e6;
        let (per_fire, per_call) = (cpu / swept as f64, cpu / f64::from(calls));
        println!("sweep: {swept} fires, Redis CPU {per_fire:.2} µs/fire, {per_call:.0} µs/call");
    }

    #[allow(clippy::cast_precision_loss, reason = "printed without digits")]
    async fn pages_of(&mut self, name: &str, filter: &FireFilter) {
        let (mut after, mut fires, mut micros) = (None, 0, Vec::new());
        let before = self.cpu().await;
        for _ in 0..PAGES {
            let timer = CostTimer::start();
            let page = self.store.fires(P, filter, after, 100).await.unwrap();
            micros.push(timer.seconds() * 1e6);
            fires += page.items.len();
            // From the beginning again, so that short lists are measured as often.
            after = page.next;
        }
        let cpu = (self.cpu().await - before) * 1e6 / micros.len() as f64;
        micros.sort_by(f64::total_cmp);
        let [p50, p99] = [50, 99].map(|part| micros[micros.len() * part / 100]);
        let pages = micros.len();
        println!("{name:<22} {pages:>6} {fires:>7} {p50:>8.0} {p99:>8.0} {cpu:>10.0}");
    }

    fn task(&self, number: u64, key: Option<u64>) -> Task {
        // Spread over an hour, in pseudo-random order.
        let due = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % 3_600_000;
        let due = NOW.after(Duration::from_millis(due));
        let sequence = number + key.map_or(0, |_| self.tasks);
        let built = task(id(due, P, self.epoch, sequence));
        let built = match key {
            Some(key) => built.key(&format!("device/{key}")),
            None => built,
        };
        let built = built.payload(Payload::Json(vec![b'7'; 128].into())).build();
        Task { version: Version::FIRST, ..built }
    }

    async fn write(&mut self, step: &str, changes: Vec<Change>) -> f64 {
        let before = self.cpu().await;
        let timer = CostTimer::start();
        let mut changes = changes.into_iter().peekable();
        while changes.peek().is_some() {
            let changes = changes.by_ref().take(self.batch).collect();
            let batch = Batch::new(self.number, changes);
            self.store.apply(P, self.epoch, batch).await.unwrap();
            self.number = self.number.next();
        }
        self.report(step, timer, before).await
    }

    #[allow(clippy::cast_precision_loss, reason = "printed with two digits")]
    async fn report(&mut self, step: &str, timer: CostTimer, before: f64) -> f64 {
        let seconds = timer.seconds();
        let cpu = (self.cpu().await - before) * 1e6 / self.tasks as f64;
        println!("{step:<10} {:>9.0}   {cpu:>8.2}", self.tasks as f64 / seconds);
        cpu
    }

    async fn cpu(&mut self) -> f64 {
        let info = self.info("cpu").await;
        value::<f64>(&info, "used_cpu_user:") + value::<f64>(&info, "used_cpu_sys:")
    }

    async fn memory(&mut self) -> u64 {
        value(&self.info("memory").await, "used_memory:")
    }

    async fn info(&mut self, section: &str) -> String {
        redis::cmd("INFO").arg(section).query_async(&mut self.connection).await.unwrap()
    }
}

fn value<T: std::str::FromStr<Err: std::fmt::Debug>>(info: &str, name: &str) -> T {
    let line = info.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim().parse().unwrap()
}

/// Returns when a fire ended: 20 in a millisecond.
fn ended_at(index: u64) -> Timestamp {
    NOW.after(Duration::from_micros(50 * index))
}

fn done(task: &Task, ended_at: Timestamp) -> Change {
    let attempt = AttemptRecord {
        number: punctual_core::AttemptNo::FIRST,
        fired_at: task.fire_at,
        ended_at: task.fire_at.after(Duration::from_millis(3)),
        outcome: Outcome::Acked,
        answer: None,
    };
    let task = Task { attempts: vec![attempt], ..task.clone() };
    Change::Settle {
        record: FireRecord::of(&task, FireEnd::Done, ended_at),
        next: None,
        was: Prior::of(&task),
    }
}

struct CostTimer(std::time::Instant);

impl CostTimer {
    #[expect(clippy::disallowed_methods, reason = "measures real time")]
    fn start() -> Self {
        Self(std::time::Instant::now())
    }

    fn seconds(&self) -> f64 {
        self.0.elapsed().as_secs_f64()
    }
}
