//! Workload `life`: tasks that are due when they are sent, in batches, from being scheduled until
//! they are acked and settled; and what each of them costs the broker and the server of its store.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use anyhow::{Context as _, ensure};

use super::drain::{done, wait_until_done};
use super::schedule::fill;
use crate::clock::millis;
use crate::context::BenchContext;
use crate::rounds::{RateRow, SendShape, TurnResult, TurnTimer};
use crate::worker;

/// How tasks are scheduled, as [`fill`] does it.
const SHAPE: SendShape = SendShape::Batches { connections: 4, in_flight: 4 };

pub(crate) async fn run(bench: &mut BenchContext) -> anyhow::Result<()> {
    let count = 300_000 / bench.divisor;
    measure(bench, count, format!("life of {count} tasks, acked and settled")).await?;
    Ok(())
}

/// Measures the lives of `count` tasks. Returns the rate.
pub(crate) async fn measure(
    bench: &mut BenchContext,
    count: u64,
    what: String,
) -> anyhow::Result<u64> {
    let results = bench
        .rounds(
            async |bench| live(bench, count).await,
            async |_| anyhow::bail!("this workload has no Redis side"),
        )
        .await?;
    let per_second = results.broker.per_second();
    RateRow::new(what, SHAPE, "–").report(&results, &mut bench.report);
    Ok(per_second)
}

async fn live(bench: &BenchContext, count: u64) -> anyhow::Result<TurnResult> {
    let before = done(bench).await?;
    let received = Arc::new(AtomicU64::new(0));
    let turn = TurnTimer::of_broker(bench);
    let worker = worker::start(bench.broker.address.clone(), count, received);
    fill(bench, count, |_| millis()).await?;
    let tally = worker.await.context("the worker panicked")??;
    wait_until_done(bench, before + count).await?;
    let turn = turn.finish_of_broker(count, bench);
    ensure!(
        tally.lost() + tally.doubled() == 0,
        "lost {}, doubled {}",
        tally.lost(),
        tally.doubled()
    );
    Ok(turn)
}
