//! Workload `drain`: workers connect when many tasks are due already.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};

use super::schedule::{cpu_each, fill};
use crate::clock::{BenchTimer, millis, pause};
use crate::connection::{HttpConnection, NAMESPACE};
use crate::context::BenchContext;
use crate::report::{grouped, rate};
use crate::worker;

/// Workers, each with a stream of its own.
const WORKERS: usize = 2;

pub(crate) async fn run(bench: &mut BenchContext) -> anyhow::Result<()> {
    let count = 200_000 / bench.divisor;
    let due = millis() - 1000;
    fill(bench, count, move |_| due).await?;
    let before = bench.broker.usage();
    let received = Arc::new(AtomicU64::new(0));
    let timer = BenchTimer::start();
    let workers: Vec<_> = (0..WORKERS)
        .map(|_| worker::start(bench.broker.address.clone(), count, Arc::clone(&received)))
        .collect();
    let mut all = None;
    for worker in workers {
        let tally = worker.await.context("a worker panicked")??;
        all = Some(match all {
            None => tally,
            Some(others) => tally.merge(&others),
        });
    }
    let tally = all.context("no workers")?;
    let (lost, doubled) = (tally.lost(), tally.doubled());
    // An ack counts when the broker has settled the task, not when it was sent.
    wait_until_done(bench, count).await?;
    let per_second = rate(count, timer.elapsed());
    let cpu = cpu_each(&bench.broker, before, count);
    let cpu_words = cpu.map_or(String::new(), |cpu| format!("{cpu:.1} µs of broker CPU each; "));
    let reached = format!("{}/s ({cpu_words}lost {lost}, doubled {doubled})", grouped(per_second));
    let figures =
        json!({"per_second": per_second, "lost": lost, "doubled": doubled, "cpu_us": cpu});
    let name = format!("drain of {count} due tasks to {WORKERS} workers, acked");
    bench.report.row(name, reached, "≥ 250,000/s", figures);
    Ok(())
}

/// Waits until the broker has settled `count` tasks as done.
pub(crate) async fn wait_until_done(bench: &BenchContext, count: u64) -> anyhow::Result<()> {
    let mut connection = HttpConnection::connect(&bench.broker.address).await?;
    let path = format!("/v1/{NAMESPACE}/stats");
    loop {
        let (status, body) = connection.request("GET", &path, "application/json", b"").await?;
        ensure!(status == 200, "stats: {status}");
        let stats: Value = serde_json::from_slice(body)?;
        if stats["done"].as_u64() >= Some(count) {
            return Ok(());
        }
        pause(5).await;
    }
}
