//! Workload `drain`: workers connect when many tasks are due already.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use anyhow::{Context as _, bail, ensure};
use serde_json::Value;

use super::schedule::{fill, fill_peer};
use crate::clock::{millis, pause};
use crate::connection::{HttpConnection, NAMESPACE};
use crate::context::BenchContext;
use crate::peer::{BenchPeer, PeerTask};
use crate::rounds::{RateRow, SendShape, TurnResult, TurnTimer};
use crate::{senders, worker};

/// How often the stats are read from a broker that answers 503, and how long between.
const STATS_TRIES_MAX: u64 = 100;
const STATS_EVERY_MS: u64 = 100;
/// Workers, each with a stream of its own.
const WORKERS: u64 = 2;

/// Deliveries that should not be.
#[derive(Debug, Clone, Copy, Default)]
struct WrongDeliveries {
    lost: u64,
    doubled: u64,
}

pub(crate) async fn run(bench: &mut BenchContext) -> anyhow::Result<()> {
    let count = 200_000 / bench.divisor;
    let wrong = Cell::new(WrongDeliveries::default());
    let results = bench
        .rounds(
            async |bench| {
                let (turn, found) = drain(bench, count).await?;
                let WrongDeliveries { lost, doubled } = wrong.get();
                let (lost, doubled) = (lost + found.lost, doubled + found.doubled);
                wrong.set(WrongDeliveries { lost, doubled });
                Ok(turn)
            },
            async |peer| drain_peer(peer, count).await,
        )
        .await?;
    let WrongDeliveries { lost, doubled } = wrong.get();
    let what = format!("drain of {count} due tasks to {WORKERS} workers, acked");
    let shape = SendShape::One { connections: WORKERS };
    let mut row = RateRow::new(what, shape, "≥ 250,000/s");
    row.notes.push((format!("lost {lost}"), "lost", lost.into()));
    row.notes.push((format!("doubled {doubled}"), "doubled", doubled.into()));
    row.report(&results, &mut bench.report);
    Ok(())
}

async fn drain(bench: &BenchContext, count: u64) -> anyhow::Result<(TurnResult, WrongDeliveries)> {
    let done_before = done(bench).await?;
    let due = millis() - 1000;
    fill(bench, count, move |_| due).await?;
    let received = Arc::new(AtomicU64::new(0));
    let turn = TurnTimer::of_broker(bench);
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
    // An ack counts when the broker has settled the task, not when it was sent.
    wait_until_done(bench, done_before + count).await?;
    let wrong = WrongDeliveries { lost: tally.lost(), doubled: tally.doubled() };
    Ok((turn.finish_of_broker(count, bench), wrong))
}

async fn drain_peer(peer: &BenchPeer, count: u64) -> anyhow::Result<TurnResult> {
    let due = millis() - 1000;
    fill_peer(peer, count, move |number| PeerTask::unnamed(number, due)).await?;
    let received = Arc::new(AtomicU64::new(0));
    let turn = TurnTimer::of_peer(peer);
    let worker = |_| peer.target().drain(count, Arc::clone(&received));
    let acked = senders::run(WORKERS, worker).await?;
    ensure!(acked == count, "the other system has acked {acked} of {count} tasks");
    Ok(turn.finish_of_peer(count, peer))
}

/// Waits until the broker has settled `count` tasks as done.
pub(crate) async fn wait_until_done(bench: &BenchContext, count: u64) -> anyhow::Result<()> {
    while done(bench).await? < count {
        pause(5).await;
    }
    Ok(())
}

/// How many tasks the broker has settled as done.
pub(crate) async fn done(bench: &BenchContext) -> anyhow::Result<u64> {
    stat(bench, "done").await
}

/// Returns a number of the stats of the namespace. A broker that cannot reach its store in time, on
/// a machine that is too busy, answers 503 for a while.
pub(crate) async fn stat(bench: &BenchContext, name: &str) -> anyhow::Result<u64> {
    let mut connection = HttpConnection::connect(&bench.broker.address).await?;
    let path = format!("/v1/{NAMESPACE}/stats");
    for _ in 0..STATS_TRIES_MAX {
        let (status, body) = connection.request("GET", &path, "application/json", b"").await?;
        if status == 503 {
            pause(STATS_EVERY_MS).await;
            continue;
        }
        ensure!(status == 200, "stats: {status}");
        let stats: Value = serde_json::from_slice(body)?;
        return stats[name].as_u64().with_context(|| format!("the stats have no number {name}"));
    }
    bail!("the broker does not own all partitions: its stats are not available")
}
