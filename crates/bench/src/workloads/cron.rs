//! Workload `cron`: a hundred thousand cron tasks that are due at the same second, and the lag of
//! another namespace at the same time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context as _, ensure};
use punctual_proto::v1::{Cron, Series, new_task};
use serde_json::json;

use super::schedule::{IN_FLIGHT, batch, fill, send_batches};
use crate::clock::{BenchTimer, millis};
use crate::context::BenchContext;
use crate::report::{LagHistogram, grouped};
use crate::rounds::BATCH;
use crate::worker::{self, listen};

/// The namespace of the cron tasks. The tasks that are compared are in another.
const CROWD: &str = "crowd";

pub(crate) async fn run(bench: &mut BenchContext) -> anyhow::Result<()> {
    let tasks = 100_000 / bench.divisor;
    let alone = lag_of_others(bench, None).await?;
    // Far enough ahead to create all tasks and to start the other namespace.
    let due = (millis() / 1000 + 20) * 1000;
    crowd(bench, tasks, due).await?;
    ensure!(millis() + 7000 < due, "creating the tasks took too long");
    let received = Arc::new(AtomicU64::new(0));
    let crowd = tokio::spawn(receive(bench.broker.address.clone(), tasks, received));
    let beside = lag_of_others(bench, Some(due - 4000)).await?;
    let (lags, twice) = crowd.await.context("the worker panicked")??;
    let reached = format!("{}; doubled {twice}, early {}", lags.words(), lags.early);
    let mut figures = lags.figures();
    figures["doubled"] = twice.into();
    let what = format!("{} cron tasks at the same second, to a worker", grouped(tasks));
    bench.report.row(what, reached, "all within 1 s", figures);
    let reached = format!("alone {}; meanwhile {}", alone.words(), beside.words());
    let figures = json!({"alone": alone.figures(), "meanwhile": beside.figures()});
    bench.report.row("lag of another namespace meanwhile", reached, "p99 ≤ 2 × alone", figures);
    Ok(())
}

/// Creates cron tasks that fire once, at this second.
async fn crowd(bench: &BenchContext, tasks: u64, due: u64) -> anyhow::Result<()> {
    let seconds = due / 1000;
    let (second, minute, hour) = (seconds % 60, seconds / 60 % 60, seconds / 3600 % 24);
    let expression = format!("{second} {minute} {hour} * * *");
    let bar = bench.report.bar("creating tasks", tasks);
    let mut first = 0;
    let next = move || {
        (first < tasks).then(|| {
            let mut batch = batch(first, |_| 0);
            batch.namespace = CROWD.to_owned();
            for (task, number) in batch.tasks.iter_mut().zip(first..) {
                task.key = format!("report/{number}");
                let expression = expression.clone();
                task.when = Some(new_task::When::Cron(Cron { expression, ..Cron::default() }));
                task.series = Some(Series { count: Some(1), ..Series::default() });
            }
            first += BATCH;
            batch
        })
    };
    send_batches(&bench.broker.address, IN_FLIGHT, next).await?;
    bar.finish_and_clear();
    Ok(())
}

async fn receive(
    address: String,
    count: u64,
    received: Arc<AtomicU64>,
) -> anyhow::Result<(LagHistogram, u64)> {
    let mut times = vec![0u8; usize::try_from(count)?];
    let mut lags = LagHistogram::new();
    let timer = BenchTimer::start();
    let timeout = std::time::Duration::from_secs(60);
    let enough = || received.load(Ordering::Relaxed) >= count || timer.elapsed() > timeout;
    listen(&address, CROWD, enough, |number, delivery, now| {
        lags.note(delivery.fire_at_ms * 1000, now);
        let times = times.get_mut(usize::try_from(number)?).context("an unknown payload")?;
        received.fetch_add(u64::from(*times == 0), Ordering::Relaxed);
        *times = times.saturating_add(1);
        Ok(())
    })
    .await?;
    let delivered = times.iter().filter(|times| **times > 0).count() as u64;
    ensure!(delivered == count, "{} of {count} were not delivered", count - delivered);
    let twice = times.iter().map(|times| u64::from(times.saturating_sub(1))).sum();
    Ok((lags, twice))
}

/// Measures the lag of a thousand tasks per second, from `begin` on.
async fn lag_of_others(bench: &BenchContext, begin: Option<u64>) -> anyhow::Result<LagHistogram> {
    let count = 8000 / bench.divisor;
    let received = Arc::new(AtomicU64::new(0));
    let worker = worker::start(bench.broker.address.clone(), count, received);
    let begin = begin.unwrap_or_else(|| millis() + 2000);
    fill(bench, count, move |number| begin + number).await?;
    ensure!(millis() < begin, "creating the tasks took too long");
    Ok(worker.await.context("the worker panicked")??.lags)
}
