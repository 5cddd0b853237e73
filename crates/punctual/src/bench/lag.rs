//! `lag`: how late tasks arrive at a worker, by the worker's clock: a thousand a second for twenty seconds, and twenty thousand
//! that are due in the same millisecond.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use anyhow::Context as _;

use super::Stage;
use super::clock::{millis, pause};
use super::schedule::fill;
use super::worker;

pub(super) async fn run(stage: &mut Stage) -> anyhow::Result<()> {
    let count = 20_000 / stage.shrink;
    measure(
        stage,
        count,
        |number| number,
        "a thousand a second",
        "p99 ≤ 2 ms, p99.9 ≤ 10 ms, early 0",
    )
    .await?;
    let crowd = 20_000 / stage.shrink;
    measure(stage, crowd, |_| 0, "all in the same millisecond", "p99 ≤ 60 ms").await
}

async fn measure(
    stage: &mut Stage,
    count: u64,
    offset: fn(u64) -> u64,
    name: &str,
    wanted: &'static str,
) -> anyhow::Result<()> {
    let received = Arc::new(AtomicU64::new(0));
    let worker = worker::start(stage.broker.address.clone(), count, received);
    // Far enough ahead that filling is over when the first is due.
    let begin = millis() + 3000;
    fill(stage, count, move |number| begin + offset(number)).await?;
    stage.report.begin();
    let late = millis() >= begin;
    let seen = worker.await.context("the worker panicked")??;
    pause(50).await;
    let (lost, doubled) = (seen.lost(), seen.doubled());
    let words = seen.lags.words();
    let mut reached = format!("{words}; lost {lost}, doubled {doubled}, early {}", seen.lags.early);
    if late {
        reached.push_str(" (filling took too long: not a fair figure)");
    }
    let mut figures = seen.lags.figures();
    figures["lost"] = lost.into();
    figures["doubled"] = doubled.into();
    stage.report.row(format!("lag of {count} tasks, {name}"), reached, wanted, figures);
    Ok(())
}
