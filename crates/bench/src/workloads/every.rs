//! Workload `every`: ten thousand tasks that fire each second for a minute, spread over the second.
//! Each fire of each task must be delivered once, at its second.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use punctual_proto::v1::{NewTask, Series, new_task};

use super::schedule::fill_with;
use crate::clock::{BenchTimer, millis};
use crate::connection::{NAMESPACE, task};
use crate::context::BenchContext;
use crate::report::{LagHistogram, grouped};
use crate::worker::listen;

const SECOND_MS: u64 = 1000;

/// What the worker received.
struct EveryTally {
    lags: LagHistogram,
    doubled: u64,
    off_beat: u64,
    fires: HashSet<(u64, u64)>,
}

pub(crate) async fn run(bench: &mut BenchContext) -> anyhow::Result<()> {
    let tasks = 10_000 / bench.divisor;
    let beats: u64 = if bench.divisor > 1 { 6 } else { 60 };
    let begin = millis() + 3000;
    let enough = Arc::new(AtomicU64::new(0));
    let worker = tokio::spawn(receive(bench.broker.address.clone(), begin, tasks * beats, enough));
    let every = move |number| NewTask {
        key: format!("beat/{number}"),
        when: Some(new_task::When::EveryMs(SECOND_MS)),
        series: Some(Series {
            starts_at_ms: Some(begin + number % SECOND_MS),
            count: u32::try_from(beats).ok(),
            ..Series::default()
        }),
        ..task(number, 0)
    };
    fill_with(bench, tasks, every).await?;
    let filled = millis() < begin;
    let tally = worker.await.context("the worker panicked")??;
    let missing = tasks * beats - tally.fires.len() as u64;
    let EveryTally { lags, doubled, off_beat, .. } = tally;
    let mut reached = format!(
        "{} fires: {}; missing {missing}, doubled {doubled}, off the beat {off_beat}, early {}",
        grouped(lags.count()),
        lags.words(),
        lags.early
    );
    if !filled {
        reached.push_str(" (creating the tasks took too long; this result is not valid)");
    }
    let mut figures = lags.figures();
    for (name, figure) in [("missing", missing), ("doubled", doubled), ("off_beat", off_beat)] {
        figures[name] = figure.into();
    }
    let what = format!("{} tasks every 1s for {beats} s, to a worker", grouped(tasks));
    bench.report.row(what, reached, "none missing, none twice, p99 ≤ 10 ms", figures);
    Ok(())
}

async fn receive(
    address: String,
    begin: u64,
    count: u64,
    received: Arc<AtomicU64>,
) -> anyhow::Result<EveryTally> {
    let fires = HashSet::with_capacity(usize::try_from(count)?);
    let mut tally = EveryTally { lags: LagHistogram::new(), doubled: 0, off_beat: 0, fires };
    let timer = BenchTimer::start();
    // After this, missing fires are counted as missing.
    let timeout = Duration::from_millis(begin.saturating_sub(millis()) + 70 * SECOND_MS);
    let enough = || received.load(Ordering::Relaxed) >= count || timer.elapsed() > timeout;
    listen(&address, NAMESPACE, enough, |number, delivery, now| {
        let at = delivery.fire_at_ms;
        tally.lags.note(at * 1000, now);
        tally.off_beat += u64::from(at % SECOND_MS != (begin + number) % SECOND_MS);
        if tally.fires.insert((number, at)) {
            received.fetch_add(1, Ordering::Relaxed);
        } else {
            tally.doubled += 1;
        }
        Ok(())
    })
    .await?;
    Ok(tally)
}
