//! `cluster`: three brokers that share a Redis: how much goes through them, how late it is when it comes to the wrong one, and what it
//! costs that one of them leaves or dies.
//!
//! Workers stand at every broker. What was lost, doubled or early is counted throughout.

mod field;

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use punctual_proto::v1::{NewTask, ScheduleBatch};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::clock::{Stopwatch, micros, millis, pause};
use super::report::{Lags, Report, grouped, rate};
use super::schedule::{send_as_they_come, send_batches};
use super::wire::{Http, NAMESPACE, task};
use super::worker;
use field::{BROKERS, Field};

/// Tasks of one batch.
const BATCH: u64 = 1000;
/// How far ahead tasks are sent that go to the wrong broker.
const AHEAD_MS: u64 = 20;
/// How often some are sent then.
const TICK_MS: u64 = 10;

pub(super) async fn run(report: &mut Report, dir: &Path, shrink: u64) -> anyhow::Result<()> {
    let mut field = Field::start(dir).await?;
    flow(&field, report, 300_000 / shrink).await?;
    wrong_broker(&field, report, 20_000 / shrink).await?;
    hand_over(&mut field, report, 10_000 / shrink).await?;
    field.replace().await?;
    kill(&mut field, report, 10_000 / shrink).await?;
    field.stop().await
}

/// Everything that is sent is due: the way through schedule, fire, delivery and settlement.
async fn flow(field: &Field, report: &mut Report, count: u64) -> anyhow::Result<()> {
    let book = Book::new(count);
    let workers = listen_all(field, &book);
    let (redis, brokers) = (field.redis_usage(), field.broker_cpu());
    report.begin();
    let stopwatch = Stopwatch::start();
    let bar = report.bar("through three brokers", count);
    let mut senders = Vec::new();
    for (index, address) in field.addresses().into_iter().enumerate() {
        let mut first = index as u64 * BATCH;
        let next = move || {
            let begin = first;
            first += BROKERS as u64 * BATCH;
            let now = millis();
            let tasks = begin..(begin + BATCH).min(count);
            (begin < count).then(|| batch(begin, tasks.map(|number| task(number, now)).collect()))
        };
        let sent = AtomicU64::new(0);
        senders.push(tokio::spawn(async move { send_batches(&address, next, &sent).await }));
    }
    for sender in senders {
        sender.await.context("a sender panicked")??;
    }
    book.until_all(&bar, workers).await?;
    settled(field, count).await?;
    let took = stopwatch.elapsed();
    let per_second = rate(count, took);
    let redis_us = match (redis, field.redis_usage()) {
        (Some(before), Some(after)) => each(after.cpu.saturating_sub(before.cpu), count),
        _ => 0.0,
    };
    let broker_us = each(field.broker_cpu().saturating_sub(brokers), count);
    let judged = book.judge(0..count);
    let figures = json!({"per_second": per_second, "redis_cpu_us": redis_us, "broker_cpu_us": broker_us,
        "lost": judged.lost, "doubled": judged.doubled});
    let reached =
        format!("{}/s (lost {}, doubled {})", grouped(per_second), judged.lost, judged.doubled);
    let what = format!("{count} tasks end to end through {BROKERS} brokers, acked and settled");
    report.row(what, reached, "≥ 50,000/s", figures);
    let reached = format!("{redis_us:.1} µs of Redis, {broker_us:.1} µs of brokers");
    let figures = json!({"redis_cpu_us": redis_us, "broker_cpu_us": broker_us});
    report.row("CPU for the life of one of them", reached, "≤ 12 µs of Redis", figures);
    Ok(())
}

/// A thousand a second, each sent to a broker that does not own it, shortly before it is due.
async fn wrong_broker(field: &Field, report: &mut Report, count: u64) -> anyhow::Result<()> {
    let book = Book::new(count);
    let workers = listen_all(field, &book);
    let topology = field.topology().await?;
    let mut streams = Vec::new();
    let mut senders = Vec::new();
    for (address, _) in &topology {
        let (sender, batches) = tokio::sync::mpsc::channel(64);
        let (address, sent) = (address.clone(), AtomicU64::new(0));
        let sending = async move { send_as_they_come(&address, batches, &sent).await };
        senders.push(tokio::spawn(sending));
        streams.push(sender);
    }
    // The first batches open the streams; what follows is measured.
    pause(500).await;
    let bar = report.bar("to the wrong broker", count);
    report.begin();
    let mut ticks = tokio::time::interval(Duration::from_millis(TICK_MS));
    for first in (0..count).step_by(usize::try_from(TICK_MS)?) {
        ticks.tick().await;
        let mut batches = vec![Vec::new(); streams.len()];
        let now = millis();
        for number in first..(first + TICK_MS).min(count) {
            let (key, task) = named("wrong", number, now + AHEAD_MS + number - first);
            let partition = field::partition(&key)?;
            let owner = topology.iter().position(|(_, held)| held.contains(&partition));
            let owner = owner.context("a partition without an owner")?;
            let other = 1 + usize::try_from(number)? % (streams.len() - 1);
            batches[(owner + other) % streams.len()].push(task);
        }
        for (stream, tasks) in streams.iter().zip(batches) {
            if !tasks.is_empty() {
                stream.try_send(batch(first, tasks)).context("the brokers do not keep up")?;
            }
        }
    }
    drop(streams);
    for sender in senders {
        sender.await.context("a sender panicked")??;
    }
    book.until_all(&bar, workers).await?;
    let judged = book.judge(0..count);
    let what = format!(
        "lag of {count} tasks, a thousand a second, {AHEAD_MS} ms ahead, all to the wrong broker"
    );
    report.row(what, judged.words(), "p99 ≤ 5 ms, early 0", judged.figures());
    Ok(())
}

/// A thousand a second are due while one of the brokers leaves.
async fn hand_over(field: &mut Field, report: &mut Report, count: u64) -> anyhow::Result<()> {
    let book = Book::new(count);
    let workers = listen_all(field, &book);
    let begin = fill(field, "move", count).await?;
    report.begin();
    until(begin + count / 4).await;
    field.end_last("-TERM").await?;
    let bar = report.bar("a broker leaves", count);
    book.until_all(&bar, workers).await?;
    let judged = book.judge(0..count);
    let what = format!("{count} tasks, a thousand a second, while a broker hands over and leaves");
    report.row(what, judged.words(), "0 lost, 0 doubled, max ≤ 100 ms", judged.figures());
    Ok(())
}

/// A thousand a second are due while one of the brokers is killed.
async fn kill(field: &mut Field, report: &mut Report, count: u64) -> anyhow::Result<()> {
    let book = Book::new(count);
    let workers = listen_all(field, &book);
    let last = field.addresses().last().cloned().context("no broker")?;
    let topology = field.topology().await?;
    let held = topology.into_iter().find(|(address, _)| *address == last);
    let (_, held) = held.context("it is not in the topology")?;
    let begin = fill(field, "kill", count).await?;
    report.begin();
    until(begin + count / 4).await;
    let killed = micros();
    field.end_last("-KILL").await?;
    let bar = report.bar("a broker is killed", count);
    book.until_all(&bar, workers).await?;
    let mut again = Duration::ZERO;
    for partition in &held {
        let numbers = (0..count).filter(|number| {
            let due = (begin + number) * 1000;
            due > killed && field::partition(&format!("kill-{number}")).ok() == Some(*partition)
        });
        let first = numbers.filter_map(|number| book.received(number)).min();
        let after = first.context("a partition never fired again")?.saturating_sub(killed);
        again = again.max(Duration::from_micros(after));
    }
    let judged = book.judge(0..count);
    let reached = format!(
        "{:.2} s; lost {}, doubled {} (delivered again under the same fire id), early {}",
        again.as_secs_f64(),
        judged.lost,
        judged.doubled,
        judged.lags.early
    );
    let mut figures = judged.figures();
    figures["seconds"] = again.as_secs_f64().into();
    let what = format!(
        "kill −9 of a broker, lease {}: all of its {} partitions fire again",
        field::LEASE,
        held.len()
    );
    report.row(what, reached, "≤ 3.5 s", figures);
    Ok(())
}

/// Named tasks over all partitions, one a millisecond, from a little later on. Out: when the first is due.
async fn fill(field: &Field, prefix: &'static str, count: u64) -> anyhow::Result<u64> {
    let begin = millis() + 3000;
    let address = field.addresses()[0].clone();
    let mut first = 0;
    let next = move || {
        let numbers = first..(first + BATCH).min(count);
        first += BATCH;
        let tasks = numbers.clone().map(|number| named(prefix, number, begin + number).1);
        (!numbers.is_empty()).then(|| batch(numbers.start, tasks.collect()))
    };
    let done = AtomicU64::new(0);
    send_batches(&address, next, &done).await?;
    ensure!(done.load(Ordering::Relaxed) == count, "not all tasks were answered");
    ensure!(millis() < begin, "filling took too long");
    Ok(begin)
}

async fn until(at_ms: u64) {
    pause(at_ms.saturating_sub(millis())).await;
}

fn named(prefix: &str, number: u64, at_ms: u64) -> (String, NewTask) {
    let key = format!("{prefix}-{number}");
    (key.clone(), NewTask { key, ..task(number, at_ms) })
}

fn batch(number: u64, tasks: Vec<NewTask>) -> ScheduleBatch {
    ScheduleBatch { number, namespace: NAMESPACE.to_owned(), tasks, idempotency_key: String::new() }
}

#[expect(clippy::cast_precision_loss, reason = "a mean")]
fn each(cpu: Duration, count: u64) -> f64 {
    cpu.as_secs_f64() * 1e6 / count as f64
}

/// Waits until the brokers count nothing as scheduled or firing any more.
async fn settled(field: &Field, at_least: u64) -> anyhow::Result<()> {
    let mut connection = Http::connect(&field.addresses()[0]).await?;
    let path = format!("/v1/{NAMESPACE}/stats");
    loop {
        let (status, body) = connection.ask("GET", &path, "application/json", b"").await?;
        ensure!(status == 200, "stats: {status}");
        let stats: Value = serde_json::from_slice(body)?;
        let open = stats["scheduled"].as_u64().unwrap_or(1) + stats["firing"].as_u64().unwrap_or(1);
        if open == 0 && stats["done"].as_u64() >= Some(at_least) {
            return Ok(());
        }
        pause(10).await;
    }
}

/// What all workers have received.
#[derive(Clone)]
struct Book {
    entries: Arc<Mutex<Vec<Entry>>>,
    received: Arc<AtomicU64>,
    count: u64,
}

#[derive(Debug, Clone, Copy, Default)]
struct Entry {
    due: u64,
    first: u64,
    times: u64,
}

impl Book {
    fn new(count: u64) -> Self {
        let entries = vec![Entry::default(); usize::try_from(count).unwrap_or(0)];
        Self { entries: Arc::new(Mutex::new(entries)), received: Arc::default(), count }
    }

    fn note(&self, number: u64, due: u64, now: u64) {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(entry) = usize::try_from(number).ok().and_then(|at| entries.get_mut(at)) else {
            return;
        };
        if entry.times == 0 {
            (entry.due, entry.first) = (due, now);
            self.received.fetch_add(1, Ordering::Relaxed);
        }
        entry.times += 1;
    }

    fn is_whole(&self) -> bool {
        self.received.load(Ordering::Relaxed) >= self.count
    }

    /// When a task came first, if it did.
    fn received(&self, number: u64) -> Option<u64> {
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = entries.get(usize::try_from(number).ok()?)?;
        (entry.times > 0).then_some(entry.first)
    }

    async fn until_all(
        &self,
        bar: &indicatif::ProgressBar,
        workers: Vec<JoinHandle<()>>,
    ) -> anyhow::Result<()> {
        while !self.is_whole() {
            bar.set_position(self.received.load(Ordering::Relaxed));
            pause(20).await;
        }
        // What comes twice comes soon.
        pause(300).await;
        for worker in workers {
            worker.await.context("a worker panicked")?;
        }
        bar.finish_and_clear();
        Ok(())
    }

    fn judge(&self, numbers: std::ops::Range<u64>) -> Judged {
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let mut judged = Judged { lags: Lags::new(), lost: 0, doubled: 0 };
        for number in numbers {
            let entry = usize::try_from(number).ok().and_then(|at| entries.get(at));
            match entry.filter(|entry| entry.times > 0) {
                Some(entry) => {
                    judged.lags.note(entry.due, entry.first);
                    judged.doubled += entry.times - 1;
                }
                None => judged.lost += 1,
            }
        }
        judged
    }
}

struct Judged {
    lags: Lags,
    lost: u64,
    doubled: u64,
}

impl Judged {
    fn words(&self) -> String {
        let Self { lags, lost, doubled } = self;
        format!("{}; lost {lost}, doubled {doubled}, early {}", lags.words(), lags.early)
    }

    fn figures(&self) -> Value {
        let mut figures = self.lags.figures();
        figures["lost"] = self.lost.into();
        figures["doubled"] = self.doubled.into();
        figures
    }
}

/// A worker at each broker, until all has come; one whose broker is gone is gone with it.
fn listen_all(field: &Field, book: &Book) -> Vec<JoinHandle<()>> {
    let listen = |address: String| {
        let book = book.clone();
        tokio::spawn(async move {
            let enough = || book.is_whole();
            let note = |number, delivery: &punctual_proto::v1::Delivery, now| {
                book.note(number, delivery.fire_at_ms * 1000, now);
                Ok(())
            };
            if let Err(error) = worker::listen(&address, NAMESPACE, enough, note).await {
                tracing::debug!(%error, address, "a worker has lost its broker");
            }
        })
    };
    field.addresses().into_iter().map(listen).collect()
}
