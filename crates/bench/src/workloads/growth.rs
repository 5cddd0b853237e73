//! Workload `growth`: the work of `life` while a tenth of many tasks are pending, and while all of
//! them are; and how soon a broker that was stopped fires again.

use std::cell::Cell;

use serde_json::json;

use super::life;
use super::schedule::{fill, random_due};
use crate::broker::BrokerEnd;
use crate::clock::{BenchTimer, millis};
use crate::connection::NAMESPACE;
use crate::context::BenchContext;
use crate::report::grouped;
use crate::worker;

/// Tasks whose lives are measured.
const LIVES: u64 = 200_000;
/// Tasks that become due while the broker is stopped: a batch.
const OVERDUE: u64 = 1000;

pub(crate) async fn run(bench: &mut BenchContext) -> anyhow::Result<()> {
    let total = (bench.pending / bench.divisor).max(10_000);
    let mut so_far = 0;
    let mut rates = Vec::new();
    for count in [total / 10, total] {
        let timer = BenchTimer::start();
        fill(bench, count - so_far, random_due).await?;
        let filled = timer.elapsed();
        so_far = count;
        bench.report.begin();
        let lives = LIVES / bench.divisor;
        let what = format!("life of {lives} tasks, {} pending", grouped(count));
        rates.push(life::measure(bench, lives, what).await?);
        first_fire(bench, count).await?;
        let disk = bench.store.disk_bytes().or_else(|| bench.broker.disk_bytes()).unwrap_or(0);
        let reached = format!("{:.0} s, {} MiB on disk", filled.as_secs_f64(), disk >> 20);
        let figures = json!({"seconds": filled.as_secs_f64(), "disk_bytes": disk});
        bench.report.row(format!("filled to {}", grouped(count)), reached, "–", figures);
    }
    if let [few, many] = rates[..] {
        #[expect(clippy::cast_precision_loss, reason = "a ratio for people")]
        let ratio = many as f64 / few.max(1) as f64;
        let figures = json!({"ratio": ratio});
        bench.report.row(
            "rate with all pending ÷ a tenth",
            format!("{ratio:.2}"),
            "≥ 0.6",
            figures,
        );
    }
    Ok(())
}

/// Stops the broker in order, and measures how long it takes to answer and to deliver a task that
/// became due meanwhile.
async fn first_fire(bench: &mut BenchContext, pending: u64) -> anyhow::Result<()> {
    let due = millis() + 1500;
    fill(bench, OVERDUE, move |_| due).await?;
    let answers = bench.broker.restart(BrokerEnd::Terminated).await?;
    let timer = BenchTimer::start();
    let (first, received) = (Cell::new(None), Cell::new(0));
    worker::listen(
        &bench.broker.address,
        NAMESPACE,
        || received.get() >= OVERDUE,
        |_, _, _| {
            first.set(first.get().or(Some(timer.elapsed())));
            received.set(received.get() + 1);
            Ok(())
        },
    )
    .await?;
    let first = (answers + first.get().unwrap_or_default()).as_secs_f64();
    let answers = answers.as_secs_f64();
    let reached = format!("answers after {answers:.2} s, first fire after {first:.2} s");
    let figures = json!({"answers_s": answers, "first_fire_s": first});
    let what = format!("start with {} pending", grouped(pending));
    bench.report.row(what, reached, "≤ 3 s", figures);
    Ok(())
}
