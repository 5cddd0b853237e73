//! Workload `outbox`: rows that are committed in transactions of ten, until all of them are tasks;
//! and how late a row that is due at once is at a worker, counted from its commit.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::json;

use super::drain::stat;
use super::schedule::random_due;
use crate::clock::{BenchTimer, micros, pause};
use crate::connected::ConnectedDatabase;
use crate::connection::NAMESPACE;
use crate::context::BenchContext;
use crate::report::{LagHistogram, grouped, rate};
use crate::{senders, worker};

/// Rows of a transaction.
const ROWS: u64 = 10;
/// Sessions that write rows at the same time.
const WRITERS: u64 = 16;
/// How often the outbox is read until it is empty, 5 ms apart.
const DELETED_TRIES_MAX: usize = 2000;
/// The time between two rows whose lag is measured.
const ROW_EVERY: Duration = Duration::from_millis(10);

pub(crate) async fn run(bench: &mut BenchContext) -> anyhow::Result<()> {
    let connected = bench.connected.take().context("no database was started")?;
    flow(bench, &connected, 100_000 / bench.divisor).await?;
    lag(bench, &connected, 2_000 / bench.divisor).await?;
    bench.connected = Some(connected);
    Ok(())
}

/// Writes rows, and waits until the broker has as many tasks more.
async fn flow(
    bench: &mut BenchContext,
    connected: &ConnectedDatabase,
    count: u64,
) -> anyhow::Result<()> {
    let before = accepted(bench).await?;
    let bar = bench.report.bar("rows", count);
    bench.report.begin();
    let timer = BenchTimer::start();
    let mut sessions = Vec::new();
    for _ in 0..WRITERS {
        sessions.push(Some(connected.session().await?));
    }
    let sessions = Arc::new(Mutex::new(sessions));
    let each = count / WRITERS / ROWS * ROWS;
    let writer = |number: u64| {
        let sessions = Arc::clone(&sessions);
        let bar = bar.clone();
        async move {
            let session = sessions.lock().unwrap_or_else(PoisonError::into_inner).pop().flatten();
            let mut session = session.context("a session for each writer")?;
            let first = number * each;
            for first in (first..first + each).step_by(usize::try_from(ROWS)?) {
                let rows: Vec<String> = (first..first + ROWS)
                    .map(|n| format!("('{}')", row(n, &format!("\"at\":{}", random_due(n)))))
                    .collect();
                let rows = rows.join(",");
                session.run(&format!("INSERT INTO punctual_outbox (task) VALUES {rows}")).await?;
                bar.inc(ROWS);
            }
            Ok(each)
        }
    };
    let written = senders::run(WRITERS, writer).await?;
    let committed = timer.elapsed();
    while accepted(bench).await? < before + written {
        pause(5).await;
    }
    let took = timer.elapsed();
    bar.finish_and_clear();
    let per_second = rate(written, took);
    let behind = took.saturating_sub(committed);
    let reached = format!(
        "{}/s; the last commit was {:.1} s before the last task",
        grouped(per_second),
        behind.as_secs_f64()
    );
    let what = format!(
        "{written} rows of an outbox in {} in transactions of {ROWS}, until they are tasks",
        connected.product()
    );
    let figures = json!({"per_second": per_second, "behind_s": behind.as_secs_f64(),
        "committed_per_second": rate(written, committed)});
    bench.report.row(what, reached, "≥ 20,000/s", figures);
    let mut session = connected.session().await?;
    // Rows are deleted after they are tasks.
    let mut left = session.number("SELECT count(*) FROM punctual_outbox").await?;
    for _ in 0..DELETED_TRIES_MAX {
        if left == 0 {
            break;
        }
        pause(5).await;
        left = session.number("SELECT count(*) FROM punctual_outbox").await?;
    }
    let rejected = session.number("SELECT count(*) FROM punctual_outbox_rejected").await?;
    ensure!(left + rejected == 0, "{left} rows are left, {rejected} were rejected");
    Ok(())
}

/// Commits a row at a time, and measures how late each is at a worker.
async fn lag(
    bench: &mut BenchContext,
    connected: &ConnectedDatabase,
    count: u64,
) -> anyhow::Result<()> {
    let arrived: Arc<Mutex<Vec<u64>>> = Arc::new(Mutex::new(vec![0; usize::try_from(count)?]));
    let received = Arc::new(Mutex::new(0));
    let address = bench.broker.address.clone();
    let (log, seen) = (Arc::clone(&arrived), Arc::clone(&received));
    let worker = tokio::spawn(async move {
        let enough = || *seen.lock().unwrap_or_else(PoisonError::into_inner) >= count;
        worker::listen(&address, NAMESPACE, enough, |number, _, now| {
            let at =
                &mut log.lock().unwrap_or_else(PoisonError::into_inner)[usize::try_from(number)?];
            if *at == 0 {
                *at = now;
                *seen.lock().unwrap_or_else(PoisonError::into_inner) += 1;
            }
            Ok(())
        })
        .await
    });
    let mut session = connected.session().await?;
    let mut committed = Vec::new();
    let mut ticks = tokio::time::interval(ROW_EVERY);
    bench.report.begin();
    for number in 0..count {
        ticks.tick().await;
        let row = row(number, "\"in\":\"0s\"");
        session.run(&format!("INSERT INTO punctual_outbox (task) VALUES ('{row}')")).await?;
        committed.push(micros());
    }
    worker.await.context("the worker panicked")??;
    let mut lags = LagHistogram::new();
    let arrived = arrived.lock().unwrap_or_else(PoisonError::into_inner);
    // A row may be there before its writer knows that it is committed.
    committed.iter().zip(&*arrived).for_each(|(at, arrived)| lags.note(*at, (*arrived).max(*at)));
    let what = format!(
        "lag of {count} rows of an outbox in {}, a hundred per second, from commit to worker",
        connected.product()
    );
    bench.report.row(what, lags.words(), "p99 ≤ 150 ms", lags.figures());
    Ok(())
}

/// A task as a row has it.
fn row(number: u64, when: &str) -> String {
    format!("{{{when},\"payload\":{{\"n\":{number},\"x\":\"{}\"}}}}", ".".repeat(98))
}

/// How many tasks the broker has accepted.
async fn accepted(bench: &BenchContext) -> anyhow::Result<u64> {
    stat(bench, "accepted").await
}
