//! Workload `schedule`: how many tasks per second the broker accepts, one at a time and in batches,
//! over HTTP and gRPC. The tasks are due within the next thirty days, so none fires meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use punctual_proto::v1::{ScheduleBatch, ScheduleRequest, schedule_result};
use serde_json::json;
use tokio_stream::wrappers::ReceiverStream;

use crate::broker::{BenchBroker, ProcessUsage};
use crate::clock::{BenchTimer, millis};
use crate::connection::{HttpConnection, NAMESPACE, channel, task, task_json, tasks};
use crate::context::BenchContext;
use crate::report::{grouped, rate};

const DAY_MS: u64 = 86_400_000;
/// Tasks in a batch.
const BATCH: u64 = 1000;

/// How tasks are sent.
#[derive(Debug, Clone, Copy)]
enum SendMode {
    Http,
    HttpBatch,
    Grpc,
    GrpcBatch,
}

pub(crate) async fn run(bench: &mut BenchContext) -> anyhow::Result<()> {
    for (mode, connections, name, wanted) in [
        (SendMode::Http, 1, "one at a time, HTTP, 1 connection", "–"),
        (SendMode::Http, 16, "one at a time, HTTP, 16 connections", "–"),
        (SendMode::Http, 64, "one at a time, HTTP, 64 connections", "≥ 30,000/s"),
        (SendMode::Grpc, 64, "one at a time, gRPC, 64 connections", "≥ 30,000/s"),
        (SendMode::HttpBatch, 16, "batches of 1,000, HTTP (NDJSON), 16 connections", "–"),
        (SendMode::GrpcBatch, 1, "batches of 1,000, gRPC, 1 connection", "–"),
        (SendMode::GrpcBatch, 16, "batches of 1,000, gRPC, 16 connections", "≥ 300,000/s"),
    ] {
        measure(bench, mode, connections, name, wanted).await?;
    }
    Ok(())
}

async fn measure(
    bench: &mut BenchContext,
    mode: SendMode,
    connections: u64,
    name: &str,
    wanted: &'static str,
) -> anyhow::Result<()> {
    let length = Duration::from_secs(bench.seconds);
    let bar = bench.report.bar("schedule", bench.seconds);
    let done = Arc::new(AtomicU64::new(0));
    let before = bench.broker.usage();
    let timer = BenchTimer::start();
    let mut senders = Vec::new();
    for sender in 0..connections {
        let (address, done) = (bench.broker.address.clone(), Arc::clone(&done));
        senders.push(tokio::spawn(async move {
            match mode {
                SendMode::Http => http(&address, sender, timer, length, &done).await,
                SendMode::HttpBatch => http_batch(&address, sender, timer, length, &done).await,
                SendMode::Grpc => grpc(&address, sender, timer, length, &done).await,
                SendMode::GrpcBatch => grpc_batch(&address, sender, timer, length, done).await,
            }
        }));
    }
    for sender in senders {
        sender.await.context("a sender panicked")??;
    }
    let took = timer.elapsed();
    bar.finish_and_clear();
    let count = done.load(Ordering::Relaxed);
    let per_second = rate(count, took);
    let cpu = cpu_each(&bench.broker, before, count);
    let reached = match cpu {
        Some(cpu) => format!("{}/s ({cpu:.1} µs of broker CPU each)", grouped(per_second)),
        None => format!("{}/s", grouped(per_second)),
    };
    let figures = json!({"per_second": per_second, "count": count, "cpu_us": cpu});
    bench.report.row(format!("schedule, {name}"), reached, wanted, figures);
    Ok(())
}

/// Returns the CPU time that the broker has used since `before` per task, in microseconds. `None`
/// if the broker is not a child of this process.
#[expect(clippy::cast_precision_loss, reason = "an average for people")]
pub(crate) fn cpu_each(
    broker: &BenchBroker,
    before: Option<ProcessUsage>,
    count: u64,
) -> Option<f64> {
    let used = broker.usage()?.cpu.saturating_sub(before?.cpu);
    (count > 0).then(|| used.as_secs_f64() * 1e6 / count as f64)
}

/// Returns a due time at random within the next thirty days.
fn random_due(number: u64) -> u64 {
    millis() + DAY_MS + number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % (29 * DAY_MS)
}

async fn http(
    address: &str,
    sender: u64,
    timer: BenchTimer,
    length: Duration,
    done: &AtomicU64,
) -> anyhow::Result<()> {
    let mut connection = HttpConnection::connect(address).await?;
    let path = format!("/v1/{NAMESPACE}/tasks");
    let mut number = sender << 40;
    while timer.elapsed() < length {
        let body = task_json(number, random_due(number));
        let (status, answer) =
            connection.request("POST", &path, "application/json", body.as_bytes()).await?;
        ensure!(status == 201, "{status}: {}", String::from_utf8_lossy(answer));
        number += 1;
        done.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

async fn http_batch(
    address: &str,
    sender: u64,
    timer: BenchTimer,
    length: Duration,
    done: &AtomicU64,
) -> anyhow::Result<()> {
    let mut connection = HttpConnection::connect(address).await?;
    let path = format!("/v1/{NAMESPACE}/tasks");
    let mut number = sender << 40;
    while timer.elapsed() < length {
        let lines: Vec<_> = (number..number + BATCH).map(|n| task_json(n, random_due(n))).collect();
        let body = lines.join("\n");
        let (status, answer) =
            connection.request("POST", &path, "application/x-ndjson", body.as_bytes()).await?;
        ensure!(status == 200, "{status}: {}", String::from_utf8_lossy(answer));
        number += BATCH;
        done.fetch_add(BATCH, Ordering::Relaxed);
    }
    Ok(())
}

async fn grpc(
    address: &str,
    sender: u64,
    timer: BenchTimer,
    length: Duration,
    done: &AtomicU64,
) -> anyhow::Result<()> {
    let mut tasks = tasks(channel(address).await?);
    let mut number = sender << 40;
    while timer.elapsed() < length {
        let request = ScheduleRequest {
            namespace: NAMESPACE.to_owned(),
            task: Some(task(number, random_due(number))),
            ..ScheduleRequest::default()
        };
        tasks.schedule(request).await?;
        number += 1;
        done.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// Batches in flight on one stream.
const IN_FLIGHT: usize = 4;

async fn grpc_batch(
    address: &str,
    sender: u64,
    timer: BenchTimer,
    length: Duration,
    done: Arc<AtomicU64>,
) -> anyhow::Result<()> {
    let numbers = (sender << 40..).step_by(usize::try_from(BATCH)?);
    let mut left = numbers.take_while(move |_| timer.elapsed() < length);
    send_batches(address, move || left.next().map(|first| batch(first, random_due)), &done).await
}

/// Builds a batch of tasks with consecutive numbers.
pub(crate) fn batch(first: u64, due: impl Fn(u64) -> u64) -> ScheduleBatch {
    let tasks = (first..first + BATCH).map(|number| task(number, due(number))).collect();
    let namespace = NAMESPACE.to_owned();
    ScheduleBatch { number: first, namespace, tasks, idempotency_key: String::new() }
}

/// Sends batches on one stream as fast as the broker answers, with a few in flight.
pub(crate) async fn send_batches(
    address: &str,
    mut next: impl FnMut() -> Option<ScheduleBatch> + Send + 'static,
    done: &AtomicU64,
) -> anyhow::Result<()> {
    let (sender, receiver) = tokio::sync::mpsc::channel(IN_FLIGHT);
    let making = tokio::spawn(async move {
        while let Some(batch) = next() {
            if sender.send(batch).await.is_err() {
                break;
            }
        }
    });
    send_from_channel(address, receiver, done).await?;
    making.await.context("the task that builds batches panicked")?;
    Ok(())
}

/// Sends batches from a channel on one stream, and checks the answers.
pub(crate) async fn send_from_channel(
    address: &str,
    batches: tokio::sync::mpsc::Receiver<ScheduleBatch>,
    done: &AtomicU64,
) -> anyhow::Result<()> {
    let mut tasks = tasks(channel(address).await?);
    let mut answers = tasks.schedule_many(ReceiverStream::new(batches)).await?.into_inner();
    while let Some(answer) = answers.message().await? {
        for result in &answer.results {
            let scheduled = matches!(result.result, Some(schedule_result::Result::Scheduled(_)));
            ensure!(scheduled, "a task was refused: {result:?}");
        }
        done.fetch_add(answer.results.len() as u64, Ordering::Relaxed);
    }
    Ok(())
}

/// Schedules `count` tasks, in batches over a few connections.
pub(crate) async fn fill(
    bench: &BenchContext,
    count: u64,
    due: impl Fn(u64) -> u64 + Send + Sync + Copy + 'static,
) -> anyhow::Result<()> {
    const SENDERS: u64 = 4;
    let bar = bench.report.bar("creating tasks", count);
    let done = Arc::new(AtomicU64::new(0));
    let mut senders = Vec::new();
    for sender in 0..SENDERS {
        let (address, done) = (bench.broker.address.clone(), Arc::clone(&done));
        let mut first = sender * BATCH;
        let next = move || {
            let begin = first;
            first += SENDERS * BATCH;
            (begin < count).then(|| {
                let mut batch = batch(begin, due);
                batch.tasks.truncate(usize::try_from(count - begin).unwrap_or(usize::MAX));
                batch
            })
        };
        senders.push(tokio::spawn(async move { send_batches(&address, next, &done).await }));
    }
    for sender in senders {
        sender.await.context("a sender panicked")??;
        bar.set_position(done.load(Ordering::Relaxed));
    }
    bar.finish_and_clear();
    ensure!(done.load(Ordering::Relaxed) == count, "not all tasks were answered");
    Ok(())
}
