//! `every`: ten thousand tasks that are due each second for a minute, spread over the second, to a worker. Each fire of each task must come
//! once, on its beat.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use punctual_proto::v1::{Series, new_task};

use super::Stage;
use super::clock::{Stopwatch, millis};
use super::report::{Lags, grouped};
use super::schedule::{batch, send_batches};
use super::wire::NAMESPACE;
use super::worker::listen;

const BATCH: u64 = 1000;
const SECOND_MS: u64 = 1000;

/// What came.
struct Came {
    lags: Lags,
    doubled: u64,
    off_beat: u64,
    fires: HashSet<(u64, u64)>,
}

pub(super) async fn run(stage: &mut Stage) -> anyhow::Result<()> {
    let tasks = 10_000 / stage.shrink;
    let beats: u64 = if stage.shrink > 1 { 6 } else { 60 };
    let begin = millis() + 3000;
    let enough = Arc::new(AtomicU64::new(0));
    let worker = tokio::spawn(receive(stage.broker.address.clone(), begin, tasks * beats, enough));
    let mut first = 0;
    let next = move || {
        (first < tasks).then(|| {
            let mut batch = batch(first, |_| 0);
            for (task, number) in batch.tasks.iter_mut().zip(first..) {
                task.key = format!("beat/{number}");
                task.when = Some(new_task::When::EveryMs(SECOND_MS));
                task.series = Some(Series {
                    starts_at_ms: Some(begin + number % SECOND_MS),
                    count: u32::try_from(beats).ok(),
                    ..Series::default()
                });
            }
            first += BATCH;
            batch
        })
    };
    send_batches(&stage.broker.address, next, &AtomicU64::new(0)).await?;
    let filled = millis() < begin;
    let came = worker.await.context("the worker panicked")??;
    let missing = tasks * beats - came.fires.len() as u64;
    let Came { lags, doubled, off_beat, .. } = came;
    let mut reached = format!(
        "{} fires: {}; missing {missing}, doubled {doubled}, off the beat {off_beat}, early {}",
        grouped(lags.count()),
        lags.words(),
        lags.early
    );
    if !filled {
        reached.push_str(" (filling took too long: not a fair figure)");
    }
    let mut figures = lags.figures();
    for (name, figure) in [("missing", missing), ("doubled", doubled), ("off_beat", off_beat)] {
        figures[name] = figure.into();
    }
    let what = format!("{} tasks every 1s for {beats} s, to a worker", grouped(tasks));
    stage.report.row(what, reached, "none missing, none twice, p99 ≤ 10 ms", figures);
    Ok(())
}

async fn receive(
    address: String,
    begin: u64,
    count: u64,
    received: Arc<AtomicU64>,
) -> anyhow::Result<Came> {
    let fires = HashSet::with_capacity(usize::try_from(count)?);
    let mut came = Came { lags: Lags::new(), doubled: 0, off_beat: 0, fires };
    let stopwatch = Stopwatch::start();
    // Whatever is missing does not come any more.
    let patience = Duration::from_millis(begin.saturating_sub(millis()) + 70 * SECOND_MS);
    let enough = || received.load(Ordering::Relaxed) >= count || stopwatch.elapsed() > patience;
    listen(&address, NAMESPACE, enough, |number, delivery, now| {
        let at = delivery.fire_at_ms;
        came.lags.note(at * 1000, now);
        came.off_beat += u64::from(at % SECOND_MS != (begin + number) % SECOND_MS);
        if came.fires.insert((number, at)) {
            received.fetch_add(1, Ordering::Relaxed);
        } else {
            came.doubled += 1;
        }
        Ok(())
    })
    .await?;
    Ok(came)
}
