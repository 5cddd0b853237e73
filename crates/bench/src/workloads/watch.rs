//! Workload `watch`: a hundred thousand watches are touched every ten seconds, and a thousand of
//! them fall silent. Exactly those must fire, on time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use punctual_proto::v1::{NewTask, TouchRequest, new_task};

use super::schedule::fill_with;
use crate::clock::{BenchTimer, millis, pause};
use crate::connection::{NAMESPACE, channel, task, tasks};
use crate::context::BenchContext;
use crate::report::{LagHistogram, grouped};
use crate::rounds::BATCH;
use crate::worker::listen;

const WITHIN_MS: u64 = 15_000;
const TOUCHED_EACH_MS: u64 = 10_000;
/// One in this many watches falls silent.
const SILENT_SHARE: u64 = 100;

pub(crate) async fn run(bench: &mut BenchContext) -> anyhow::Result<()> {
    let watches = 100_000 / bench.divisor;
    let rounds = if bench.divisor > 1 { 3 } else { 4 };
    create(bench, watches).await?;
    let over = Arc::new(AtomicBool::new(false));
    let worker = tokio::spawn(receive(bench.broker.address.clone(), watches, Arc::clone(&over)));
    let memory = bench.broker.usage().map(|usage| usage.resident_bytes);
    let mut touched = 0;
    for round in 0..rounds {
        // From the second round on, some are no longer touched.
        touched += touch_all(bench, watches, round > 0).await?;
    }
    // By now the silent ones have fired, and the others are not due yet.
    let count = watches / SILENT_SHARE;
    over.store(true, Ordering::Relaxed);
    let (lags, silent, wrong) = worker.await.context("the worker panicked")??;
    let grown =
        bench.broker.usage().zip(memory).map(|(usage, before)| (before, usage.resident_bytes));
    let memory = grown.map_or(String::new(), |(before, after)| {
        format!(
            "; memory {} MiB before, {} MiB after {} touches",
            before >> 20,
            after >> 20,
            grouped(touched)
        )
    });
    let reached = format!("{silent} of {count} fired, {wrong} others; {}{memory}", lags.words());
    let mut figures = lags.figures();
    figures["silent"] = silent.into();
    figures["wrong"] = wrong.into();
    let what =
        format!("{} watches touched every 10 s, {} fall silent", grouped(watches), grouped(count));
    bench.report.row(what, reached, "exactly those, p99 ≤ 5 ms", figures);
    Ok(())
}

fn key(number: u64) -> String {
    format!("device/{number:06}")
}

async fn create(bench: &BenchContext, watches: u64) -> anyhow::Result<()> {
    let watch = |number| NewTask {
        key: key(number),
        when: Some(new_task::When::WithinMs(WITHIN_MS)),
        ..task(number, 0)
    };
    fill_with(bench, watches, watch).await
}

/// Touches all watches, spread over ten seconds. Returns how many were touched.
async fn touch_all(bench: &BenchContext, watches: u64, some_silent: bool) -> anyhow::Result<u64> {
    let mut tasks = tasks(channel(&bench.broker.address).await?);
    let batches = watches / BATCH;
    let begin = millis();
    let mut touched = 0;
    for number in 0..batches {
        let due = begin + number * TOUCHED_EACH_MS / batches;
        pause(due.saturating_sub(millis())).await;
        let all = number * BATCH..(number + 1) * BATCH;
        let keys: Vec<_> = all.filter(|n| !(some_silent && is_silent(*n))).map(key).collect();
        let wanted = keys.len() as u64;
        let namespace = NAMESPACE.to_owned();
        let request = TouchRequest { namespace, keys, to: None, create: None };
        let answer = tasks.touch(request).await?.into_inner();
        ensure!(answer.touched == wanted, "{} of {wanted} were touched", answer.touched);
        touched += answer.touched;
    }
    let rest = (begin + TOUCHED_EACH_MS).saturating_sub(millis());
    pause(rest).await;
    Ok(touched)
}

fn is_silent(number: u64) -> bool {
    number.is_multiple_of(SILENT_SHARE)
}

/// Returns the lags, how many silent watches fired once, and how many watches fired wrongly: not
/// silent, or more than once.
async fn receive(
    address: String,
    watches: u64,
    over: Arc<AtomicBool>,
) -> anyhow::Result<(LagHistogram, u64, u64)> {
    let mut lags = LagHistogram::new();
    let mut times = vec![0u8; usize::try_from(watches)?];
    let timer = BenchTimer::start();
    let enough = || over.load(Ordering::Relaxed) || timer.elapsed() > Duration::from_secs(120);
    listen(&address, NAMESPACE, enough, |number, delivery, now| {
        lags.note(delivery.fire_at_ms * 1000, now);
        let times = times.get_mut(usize::try_from(number)?).context("an unknown payload")?;
        *times = times.saturating_add(1);
        Ok(())
    })
    .await?;
    let (mut silent, mut wrong) = (0, 0);
    for (number, times) in (0..).zip(times) {
        match (is_silent(number), times) {
            (true, 1) => silent += 1,
            (_, 0) => {}
            _ => wrong += 1,
        }
    }
    Ok((lags, silent, wrong))
}
