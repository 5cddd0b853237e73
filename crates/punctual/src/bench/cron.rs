//! `cron`: a hundred thousand cron tasks that are due at the same second, to a worker, and what that does to the lag of another namespace.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context as _, ensure};
use punctual_proto::v1::{Cron, Series, new_task};
use serde_json::json;

use super::Stage;
use super::clock::{Stopwatch, millis};
use super::report::{Lags, grouped};
use super::schedule::{batch, fill, send_batches};
use super::worker::{self, listen};

const BATCH: u64 = 1000;
/// Another namespace than that of the neighbours.
const CROWD: &str = "crowd";

pub(super) async fn run(stage: &mut Stage) -> anyhow::Result<()> {
    let tasks = 100_000 / stage.shrink;
    let alone = neighbours(stage, None).await?;
    // A whole second, far enough ahead that all are there and the neighbours have begun.
    let due = (millis() / 1000 + 20) * 1000;
    crowd(stage, tasks, due).await?;
    ensure!(millis() + 7000 < due, "filling took too long");
    let received = Arc::new(AtomicU64::new(0));
    let crowd = tokio::spawn(receive(stage.broker.address.clone(), tasks, received));
    let beside = neighbours(stage, Some(due - 4000)).await?;
    let (lags, twice) = crowd.await.context("the worker panicked")??;
    let reached = format!("{}; doubled {twice}, early {}", lags.words(), lags.early);
    let mut figures = lags.figures();
    figures["doubled"] = twice.into();
    let what = format!("{} cron tasks at the same second, to a worker", grouped(tasks));
    stage.report.row(what, reached, "all within 1 s", figures);
    let reached = format!("alone {}; meanwhile {}", alone.words(), beside.words());
    let figures = json!({"alone": alone.figures(), "meanwhile": beside.figures()});
    stage.report.row("lag of another namespace meanwhile", reached, "p99 ≤ 2 × alone", figures);
    Ok(())
}

/// Cron tasks that are due at that second, and once.
async fn crowd(stage: &Stage, tasks: u64, due: u64) -> anyhow::Result<()> {
    let seconds = due / 1000;
    let (second, minute, hour) = (seconds % 60, seconds / 60 % 60, seconds / 3600 % 24);
    let expression = format!("{second} {minute} {hour} * * *");
    let bar = stage.report.bar("filling", tasks);
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
    send_batches(&stage.broker.address, next, &AtomicU64::new(0)).await?;
    bar.finish_and_clear();
    Ok(())
}

async fn receive(
    address: String,
    count: u64,
    received: Arc<AtomicU64>,
) -> anyhow::Result<(Lags, u64)> {
    let mut times = vec![0u8; usize::try_from(count)?];
    let mut lags = Lags::new();
    let stopwatch = Stopwatch::start();
    let patience = std::time::Duration::from_secs(60);
    let enough = || received.load(Ordering::Relaxed) >= count || stopwatch.elapsed() > patience;
    listen(&address, CROWD, enough, |number, delivery, now| {
        lags.note(delivery.fire_at_ms * 1000, now);
        let times = times.get_mut(usize::try_from(number)?).context("not a number of ours")?;
        received.fetch_add(u64::from(*times == 0), Ordering::Relaxed);
        *times = times.saturating_add(1);
        Ok(())
    })
    .await?;
    let came = times.iter().filter(|times| **times > 0).count() as u64;
    ensure!(came == count, "{} of {count} never came", count - came);
    let twice = times.iter().map(|times| u64::from(times.saturating_sub(1))).sum();
    Ok((lags, twice))
}

/// A thousand tasks a second to a worker, for some seconds from then on.
async fn neighbours(stage: &Stage, begin: Option<u64>) -> anyhow::Result<Lags> {
    let count = 8000 / stage.shrink;
    let received = Arc::new(AtomicU64::new(0));
    let worker = worker::start(stage.broker.address.clone(), count, received);
    let begin = begin.unwrap_or_else(|| millis() + 2000);
    fill(stage, count, move |number| begin + number).await?;
    ensure!(millis() < begin, "filling took too long");
    Ok(worker.await.context("the worker panicked")??.lags)
}
