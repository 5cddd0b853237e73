//! `schedule`: tasks for the next thirty days, one at a time and in batches, over HTTP and gRPC.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use punctual_proto::v1::{ScheduleBatch, ScheduleRequest, schedule_result};
use serde_json::json;
use tokio_stream::wrappers::ReceiverStream;

use super::clock::{Stopwatch, millis};
use super::report::{grouped, rate};
use super::wire::{Http, NAMESPACE, channel, task, task_json, tasks};
use super::{Stage, broker::Broker};

const DAY_MS: u64 = 86_400_000;
/// Tasks in a batch.
const BATCH: u64 = 1000;

/// A way of scheduling.
#[derive(Debug, Clone, Copy)]
enum Way {
    Http,
    HttpBatch,
    Grpc,
    GrpcBatch,
}

pub(super) async fn run(stage: &mut Stage) -> anyhow::Result<()> {
    for (way, connections, name, wanted) in [
        (Way::Http, 1, "one at a time, HTTP, 1 connection", "–"),
        (Way::Http, 16, "one at a time, HTTP, 16 connections", "–"),
        (Way::Http, 64, "one at a time, HTTP, 64 connections", "≥ 30,000/s"),
        (Way::Grpc, 64, "one at a time, gRPC, 64 connections", "≥ 30,000/s"),
        (Way::HttpBatch, 16, "batches of 1,000, HTTP (NDJSON), 16 connections", "–"),
        (Way::GrpcBatch, 1, "batches of 1,000, gRPC, 1 connection", "–"),
        (Way::GrpcBatch, 16, "batches of 1,000, gRPC, 16 connections", "≥ 300,000/s"),
    ] {
        measure(stage, way, connections, name, wanted).await?;
    }
    Ok(())
}

async fn measure(
    stage: &mut Stage,
    way: Way,
    connections: u64,
    name: &str,
    wanted: &'static str,
) -> anyhow::Result<()> {
    let length = Duration::from_secs(stage.seconds);
    let bar = stage.report.bar("schedule", stage.seconds);
    let done = Arc::new(AtomicU64::new(0));
    let before = stage.broker.usage();
    let stopwatch = Stopwatch::start();
    let mut senders = Vec::new();
    for sender in 0..connections {
        let (address, done) = (stage.broker.address.clone(), Arc::clone(&done));
        senders.push(tokio::spawn(async move {
            match way {
                Way::Http => http(&address, sender, stopwatch, length, &done).await,
                Way::HttpBatch => http_batch(&address, sender, stopwatch, length, &done).await,
                Way::Grpc => grpc(&address, sender, stopwatch, length, &done).await,
                Way::GrpcBatch => grpc_batch(&address, sender, stopwatch, length, done).await,
            }
        }));
    }
    for sender in senders {
        sender.await.context("a sender panicked")??;
    }
    let took = stopwatch.elapsed();
    bar.finish_and_clear();
    let count = done.load(Ordering::Relaxed);
    let per_second = rate(count, took);
    let cpu = cpu_each(&stage.broker, before, count);
    let reached = match cpu {
        Some(cpu) => format!("{}/s ({cpu:.1} µs of broker CPU each)", grouped(per_second)),
        None => format!("{}/s", grouped(per_second)),
    };
    let figures = json!({"per_second": per_second, "count": count, "cpu_us": cpu});
    stage.report.row(format!("schedule, {name}"), reached, wanted, figures);
    Ok(())
}

/// Microseconds of the broker's CPU for each of so many, since then.
#[expect(clippy::cast_precision_loss, reason = "a quotient for people")]
pub(super) fn cpu_each(
    broker: &Broker,
    before: Option<super::broker::Usage>,
    count: u64,
) -> Option<f64> {
    let used = broker.usage()?.cpu.saturating_sub(before?.cpu);
    (count > 0).then(|| used.as_secs_f64() * 1e6 / count as f64)
}

/// Due at some time of the next thirty days.
fn due(number: u64) -> u64 {
    millis() + DAY_MS + number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % (29 * DAY_MS)
}

async fn http(
    address: &str,
    sender: u64,
    stopwatch: Stopwatch,
    length: Duration,
    done: &AtomicU64,
) -> anyhow::Result<()> {
    let mut connection = Http::connect(address).await?;
    let path = format!("/v1/{NAMESPACE}/tasks");
    let mut number = sender << 40;
    while stopwatch.elapsed() < length {
        let body = task_json(number, due(number));
        let (status, answer) =
            connection.ask("POST", &path, "application/json", body.as_bytes()).await?;
        ensure!(status == 201, "{status}: {}", String::from_utf8_lossy(answer));
        number += 1;
        done.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

async fn http_batch(
    address: &str,
    sender: u64,
    stopwatch: Stopwatch,
    length: Duration,
    done: &AtomicU64,
) -> anyhow::Result<()> {
    let mut connection = Http::connect(address).await?;
    let path = format!("/v1/{NAMESPACE}/tasks");
    let mut number = sender << 40;
    while stopwatch.elapsed() < length {
        let lines: Vec<_> = (number..number + BATCH).map(|n| task_json(n, due(n))).collect();
        let body = lines.join("\n");
        let (status, answer) =
            connection.ask("POST", &path, "application/x-ndjson", body.as_bytes()).await?;
        ensure!(status == 200, "{status}: {}", String::from_utf8_lossy(answer));
        number += BATCH;
        done.fetch_add(BATCH, Ordering::Relaxed);
    }
    Ok(())
}

async fn grpc(
    address: &str,
    sender: u64,
    stopwatch: Stopwatch,
    length: Duration,
    done: &AtomicU64,
) -> anyhow::Result<()> {
    let mut tasks = tasks(channel(address).await?);
    let mut number = sender << 40;
    while stopwatch.elapsed() < length {
        let request = ScheduleRequest {
            namespace: NAMESPACE.to_owned(),
            task: Some(task(number, due(number))),
            ..ScheduleRequest::default()
        };
        tasks.schedule(request).await?;
        number += 1;
        done.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// Batches under way on one stream.
const UNDER_WAY: usize = 4;

async fn grpc_batch(
    address: &str,
    sender: u64,
    stopwatch: Stopwatch,
    length: Duration,
    done: Arc<AtomicU64>,
) -> anyhow::Result<()> {
    let numbers = (sender << 40..).step_by(usize::try_from(BATCH)?);
    let mut left = numbers.take_while(move |_| stopwatch.elapsed() < length);
    send_batches(address, move || left.next().map(|first| batch(first, due)), &done).await
}

/// A batch of tasks by their numbers.
pub(super) fn batch(first: u64, due: impl Fn(u64) -> u64) -> ScheduleBatch {
    let tasks = (first..first + BATCH).map(|number| task(number, due(number))).collect();
    let namespace = NAMESPACE.to_owned();
    ScheduleBatch { number: first, namespace, tasks, idempotency_key: String::new() }
}

/// Sends batches on one stream as fast as they are answered, a few ahead.
pub(super) async fn send_batches(
    address: &str,
    mut next: impl FnMut() -> Option<ScheduleBatch> + Send + 'static,
    done: &AtomicU64,
) -> anyhow::Result<()> {
    let (sender, receiver) = tokio::sync::mpsc::channel(UNDER_WAY);
    let making = tokio::spawn(async move {
        while let Some(batch) = next() {
            if sender.send(batch).await.is_err() {
                break;
            }
        }
    });
    send_as_they_come(address, receiver, done).await?;
    making.await.context("making batches panicked")?;
    Ok(())
}

/// Sends batches on one stream, each when it comes.
pub(super) async fn send_as_they_come(
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
pub(super) async fn fill(
    stage: &Stage,
    count: u64,
    due: impl Fn(u64) -> u64 + Send + Sync + Copy + 'static,
) -> anyhow::Result<()> {
    const SENDERS: u64 = 4;
    let bar = stage.report.bar("filling", count);
    let done = Arc::new(AtomicU64::new(0));
    let mut senders = Vec::new();
    for sender in 0..SENDERS {
        let (address, done) = (stage.broker.address.clone(), Arc::clone(&done));
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
