//! Workload `cluster`: three brokers that share a Redis.
//!
//! Measures the throughput, the lag of tasks that are sent to the wrong broker, and what happens
//! when a broker leaves or is killed. There is a worker at every broker. Lost, doubled and early
//! deliveries are counted throughout.

mod brokers;
mod deliveries;

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use punctual_proto::v1::{NewTask, ScheduleBatch};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::schedule::{IN_FLIGHT, send_batches, send_from_channel};
use crate::clock::{BenchTimer, micros, millis, pause};
use crate::connection::{HttpConnection, NAMESPACE, task};
use crate::report::{BenchReport, grouped, rate};
use crate::worker;
use brokers::{BROKERS, BenchCluster};
use deliveries::DeliveryLog;

/// Tasks of one batch.
const BATCH: u64 = 1000;
/// How long before its due time a task is sent to the wrong broker.
const AHEAD_MS: u64 = 20;
/// How often a group of such tasks is sent.
const TICK_MS: u64 = 10;

pub(crate) async fn run(report: &mut BenchReport, dir: &Path, divisor: u64) -> anyhow::Result<()> {
    let mut cluster = BenchCluster::start(dir).await?;
    flow(&cluster, report, 300_000 / divisor).await?;
    wrong_broker(&cluster, report, 20_000 / divisor).await?;
    hand_over(&mut cluster, report, 10_000 / divisor).await?;
    cluster.replace().await?;
    kill(&mut cluster, report, 10_000 / divisor).await?;
    cluster.stop().await
}

/// Throughput end to end: every task is due when it is sent, and counts when it is settled.
async fn flow(cluster: &BenchCluster, report: &mut BenchReport, count: u64) -> anyhow::Result<()> {
    let log = DeliveryLog::new(count);
    let workers = listen_all(cluster, &log);
    let (redis, brokers) = (cluster.redis_usage(), cluster.broker_cpu());
    report.begin();
    let timer = BenchTimer::start();
    let bar = report.bar("end to end", count);
    let mut senders = Vec::new();
    for (index, address) in cluster.addresses().into_iter().enumerate() {
        let mut first = index as u64 * BATCH;
        let next = move || {
            let begin = first;
            first += BROKERS as u64 * BATCH;
            let now = millis();
            let tasks = begin..(begin + BATCH).min(count);
            (begin < count).then(|| batch(begin, tasks.map(|number| task(number, now)).collect()))
        };
        senders.push(tokio::spawn(async move { send_batches(&address, IN_FLIGHT, next).await }));
    }
    for sender in senders {
        sender.await.context("a sender panicked")??;
    }
    log.wait_for_all(&bar, workers).await?;
    wait_until_settled(cluster, count).await?;
    let took = timer.elapsed();
    let per_second = rate(count, took);
    let redis_us = match (redis, cluster.redis_usage()) {
        (Some(before), Some(after)) => each(after.cpu.saturating_sub(before.cpu), count),
        _ => 0.0,
    };
    let broker_us = each(cluster.broker_cpu().saturating_sub(brokers), count);
    let summary = log.summarize(0..count);
    let figures = json!({"per_second": per_second,
        "redis_cpu_us": redis_us, "broker_cpu_us": broker_us,
        "lost": summary.lost, "doubled": summary.doubled});
    let reached =
        format!("{}/s (lost {}, doubled {})", grouped(per_second), summary.lost, summary.doubled);
    let what = format!("{count} tasks end to end through {BROKERS} brokers, acked and settled");
    report.row(what, reached, "≥ 50,000/s", figures);
    let reached = format!("{redis_us:.1} µs of Redis, {broker_us:.1} µs of brokers");
    let figures = json!({"redis_cpu_us": redis_us, "broker_cpu_us": broker_us});
    report.row("CPU per task, from schedule to settle", reached, "≤ 12 µs of Redis", figures);
    Ok(())
}

/// A thousand tasks per second, each sent shortly before it is due to a broker that does not own
/// it.
async fn wrong_broker(
    cluster: &BenchCluster,
    report: &mut BenchReport,
    count: u64,
) -> anyhow::Result<()> {
    let log = DeliveryLog::new(count);
    let workers = listen_all(cluster, &log);
    let topology = cluster.topology().await?;
    let mut streams = Vec::new();
    let mut senders = Vec::new();
    for (address, _) in &topology {
        let (sender, batches) = tokio::sync::mpsc::channel(64);
        let address = address.clone();
        let sending = async move { send_from_channel(&address, batches).await };
        senders.push(tokio::spawn(sending));
        streams.push(sender);
    }
    // Wait for the streams to open.
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
            let partition = brokers::partition(&key)?;
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
    log.wait_for_all(&bar, workers).await?;
    let summary = log.summarize(0..count);
    let what = format!(
        "lag of {count} tasks, a thousand per second, {AHEAD_MS} ms ahead, all to the wrong broker"
    );
    report.row(what, summary.words(), "p99 ≤ 5 ms, early 0", summary.figures());
    Ok(())
}

/// A thousand tasks per second are due while a broker leaves.
async fn hand_over(
    cluster: &mut BenchCluster,
    report: &mut BenchReport,
    count: u64,
) -> anyhow::Result<()> {
    let log = DeliveryLog::new(count);
    let workers = listen_all(cluster, &log);
    let begin = fill(cluster, "move", count).await?;
    report.begin();
    sleep_until(begin + count / 4).await;
    cluster.end_last("-TERM").await?;
    let bar = report.bar("a broker leaves", count);
    log.wait_for_all(&bar, workers).await?;
    let summary = log.summarize(0..count);
    let what =
        format!("{count} tasks, a thousand per second, while a broker hands over and leaves");
    report.row(what, summary.words(), "0 lost, 0 doubled, max ≤ 100 ms", summary.figures());
    Ok(())
}

/// A thousand tasks per second are due while a broker is killed.
async fn kill(
    cluster: &mut BenchCluster,
    report: &mut BenchReport,
    count: u64,
) -> anyhow::Result<()> {
    let log = DeliveryLog::new(count);
    let workers = listen_all(cluster, &log);
    let last = cluster.addresses().last().cloned().context("no broker")?;
    let topology = cluster.topology().await?;
    let owned = topology.into_iter().find(|(address, _)| *address == last);
    let (_, owned) = owned.context("the broker is not in the topology")?;
    let begin = fill(cluster, "kill", count).await?;
    report.begin();
    sleep_until(begin + count / 4).await;
    let killed = micros();
    cluster.end_last("-KILL").await?;
    let bar = report.bar("a broker is killed", count);
    log.wait_for_all(&bar, workers).await?;
    let mut recovered = Duration::ZERO;
    for partition in &owned {
        let numbers = (0..count).filter(|number| {
            let due = (begin + number) * 1000;
            due > killed && brokers::partition(&format!("kill-{number}")).ok() == Some(*partition)
        });
        let first = numbers.filter_map(|number| log.received(number)).min();
        let after = first.context("a partition did not fire again")?.saturating_sub(killed);
        recovered = recovered.max(Duration::from_micros(after));
    }
    let summary = log.summarize(0..count);
    let reached = format!(
        "{:.2} s; lost {}, doubled {} (delivered again under the same fire id), early {}",
        recovered.as_secs_f64(),
        summary.lost,
        summary.doubled,
        summary.lags.early
    );
    let mut figures = summary.figures();
    figures["seconds"] = recovered.as_secs_f64().into();
    let what = format!(
        "kill −9 of a broker, lease {}: all of its {} partitions fire again",
        brokers::LEASE,
        owned.len()
    );
    report.row(what, reached, "≤ 3.5 s", figures);
    Ok(())
}

/// Creates tasks with keys over all partitions, one per millisecond, that are due soon. Returns
/// when the first is due.
async fn fill(cluster: &BenchCluster, prefix: &'static str, count: u64) -> anyhow::Result<u64> {
    let begin = millis() + 3000;
    let address = cluster.addresses()[0].clone();
    let mut first = 0;
    let next = move || {
        let numbers = first..(first + BATCH).min(count);
        first += BATCH;
        let tasks = numbers.clone().map(|number| named(prefix, number, begin + number).1);
        (!numbers.is_empty()).then(|| batch(numbers.start, tasks.collect()))
    };
    let done = send_batches(&address, IN_FLIGHT, next).await?;
    ensure!(done == count, "{done} of {count} tasks were answered");
    ensure!(millis() < begin, "creating the tasks took too long");
    Ok(begin)
}

async fn sleep_until(at_ms: u64) {
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

/// Waits until no task is scheduled or firing any more.
async fn wait_until_settled(cluster: &BenchCluster, at_least: u64) -> anyhow::Result<()> {
    let mut connection = HttpConnection::connect(&cluster.addresses()[0]).await?;
    let path = format!("/v1/{NAMESPACE}/stats");
    loop {
        let (status, body) = connection.request("GET", &path, "application/json", b"").await?;
        ensure!(status == 200, "stats: {status}");
        let stats: Value = serde_json::from_slice(body)?;
        let open = stats["scheduled"].as_u64().unwrap_or(1) + stats["firing"].as_u64().unwrap_or(1);
        if open == 0 && stats["done"].as_u64() >= Some(at_least) {
            return Ok(());
        }
        pause(10).await;
    }
}

/// Starts a worker at each broker. It ends when all tasks were received, or with its broker.
fn listen_all(cluster: &BenchCluster, log: &DeliveryLog) -> Vec<JoinHandle<()>> {
    let listen = |address: String| {
        let log = log.clone();
        tokio::spawn(async move {
            let enough = || log.is_complete();
            let note = |number, delivery: &punctual_proto::v1::Delivery, now| {
                log.note(number, delivery.fire_at_ms * 1000, now);
                Ok(())
            };
            if let Err(error) = worker::listen(&address, NAMESPACE, enough, note).await {
                tracing::debug!(%error, address, "worker lost its broker");
            }
        })
    };
    cluster.addresses().into_iter().map(listen).collect()
}
