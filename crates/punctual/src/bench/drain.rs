//! `drain`: tasks that are due already, when workers come.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};

use super::Stage;
use super::clock::{Stopwatch, millis, pause};
use super::report::{grouped, rate};
use super::schedule::{cpu_each, fill};
use super::wire::{Http, NAMESPACE};
use super::worker;

/// Workers on streams of their own.
const WORKERS: usize = 2;

pub(super) async fn run(stage: &mut Stage) -> anyhow::Result<()> {
    let count = 200_000 / stage.shrink;
    let due = millis() - 1000;
    fill(stage, count, move |_| due).await?;
    let before = stage.broker.usage();
    let received = Arc::new(AtomicU64::new(0));
    let stopwatch = Stopwatch::start();
    let workers: Vec<_> = (0..WORKERS)
        .map(|_| worker::start(stage.broker.address.clone(), count, Arc::clone(&received)))
        .collect();
    let mut all = None;
    for worker in workers {
        let seen = worker.await.context("a worker panicked")??;
        all = Some(match all {
            None => seen,
            Some(others) => seen.and(&others),
        });
    }
    let seen = all.context("no workers")?;
    let (lost, doubled) = (seen.lost(), seen.doubled());
    // Acked is what the broker has settled, not what was sent to it.
    done(stage, count).await?;
    let per_second = rate(count, stopwatch.elapsed());
    let cpu = cpu_each(&stage.broker, before, count);
    let cpu_words = cpu.map_or(String::new(), |cpu| format!("{cpu:.1} µs of broker CPU each; "));
    let reached = format!("{}/s ({cpu_words}lost {lost}, doubled {doubled})", grouped(per_second));
    let figures =
        json!({"per_second": per_second, "lost": lost, "doubled": doubled, "cpu_us": cpu});
    let name = format!("drain of {count} due tasks to {WORKERS} workers, acked");
    stage.report.row(name, reached, "≥ 250,000/s", figures);
    Ok(())
}

/// Waits until the broker counts so many as done.
pub(super) async fn done(stage: &Stage, count: u64) -> anyhow::Result<()> {
    let mut connection = Http::connect(&stage.broker.address).await?;
    let path = format!("/v1/{NAMESPACE}/stats");
    loop {
        let (status, body) = connection.ask("GET", &path, "application/json", b"").await?;
        ensure!(status == 200, "stats: {status}");
        let stats: Value = serde_json::from_slice(body)?;
        if stats["done"].as_u64() >= Some(count) {
            return Ok(());
        }
        pause(5).await;
    }
}
