//! Workload `lag`: how late tasks arrive at a worker, by the worker's clock: a thousand per second
//! for twenty seconds, and twenty thousand that are due in the same millisecond.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use anyhow::Context as _;

use super::schedule::fill;
use crate::clock::{millis, pause};
use crate::context::BenchContext;
use crate::worker;

pub(crate) async fn run(bench: &mut BenchContext) -> anyhow::Result<()> {
    let count = 20_000 / bench.divisor;
    measure(
        bench,
        count,
        |number| number,
        "a thousand per second",
        "p99 ≤ 2 ms, p99.9 ≤ 10 ms, early 0",
    )
    .await?;
    let crowd = 20_000 / bench.divisor;
    measure(bench, crowd, |_| 0, "all in the same millisecond", "p99 ≤ 60 ms").await
}

async fn measure(
    bench: &mut BenchContext,
    count: u64,
    offset: fn(u64) -> u64,
    name: &str,
    wanted: &'static str,
) -> anyhow::Result<()> {
    let received = Arc::new(AtomicU64::new(0));
    let worker = worker::start(bench.broker.address.clone(), count, received);
    // Far enough ahead that all tasks are created before the first is due.
    let begin = millis() + 3000;
    fill(bench, count, move |number| begin + offset(number)).await?;
    bench.report.begin();
    let late = millis() >= begin;
    let tally = worker.await.context("the worker panicked")??;
    pause(50).await;
    let (lost, doubled) = (tally.lost(), tally.doubled());
    let words = tally.lags.words();
    let mut reached =
        format!("{words}; lost {lost}, doubled {doubled}, early {}", tally.lags.early);
    if late {
        reached.push_str(" (creating the tasks took too long; this result is not valid)");
    }
    let mut figures = tally.lags.figures();
    figures["lost"] = lost.into();
    figures["doubled"] = doubled.into();
    bench.report.row(format!("lag of {count} tasks, {name}"), reached, wanted, figures);
    Ok(())
}
