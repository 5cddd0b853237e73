//! Workload `neighbour`: whether a target that hangs changes the lag of another target. The lag of
//! a thousand tasks per second is measured alone, and again while thousands of webhooks wait for a
//! receiver that accepts connections and never answers.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use anyhow::{Context as _, ensure};
use serde_json::json;

use super::schedule::fill;
use crate::clock::millis;
use crate::connection::{HttpConnection, NAMESPACE};
use crate::context::BenchContext;
use crate::receiver::{AnswerManner, BenchReceiver};
use crate::report::LagHistogram;
use crate::worker;

/// Webhooks to the target that hangs.
const HANGING: u64 = 5000;

pub(crate) async fn run(bench: &mut BenchContext) -> anyhow::Result<()> {
    let alone = measure_lag(bench).await?;
    let hanging = BenchReceiver::start(Ipv4Addr::LOCALHOST, AnswerManner::Hang, |_| ()).await?;
    let url = format!("http://{}/hang", hanging.address);
    hang(bench, &url).await?;
    let beside = measure_lag(bench).await?;
    drop(hanging);
    let reached = format!("alone {}; beside it {}", alone.words(), beside.words());
    let figures = json!({"alone": alone.figures(), "beside": beside.figures()});
    let what = format!("lag to a worker beside {HANGING} webhooks to a target that hangs");
    bench.report.row(what, reached, "the same", figures);
    Ok(())
}

/// Schedules webhooks that are due at once, to a target that never answers.
async fn hang(bench: &BenchContext, url: &str) -> anyhow::Result<()> {
    let mut connection = HttpConnection::connect(&bench.broker.address).await?;
    let line = format!(
        r#"{{"in":"0s","target":{{"http":{{"url":"{url}"}}}},"timeout":"30s","payload":{{"a":1}}}}"#
    );
    let body = vec![line; usize::try_from(HANGING)?].join("\n");
    let path = format!("/v1/{NAMESPACE}/tasks");
    let (status, answer) =
        connection.request("POST", &path, "application/x-ndjson", body.as_bytes()).await?;
    ensure!(status == 200, "{status}: {}", String::from_utf8_lossy(answer));
    Ok(())
}

async fn measure_lag(bench: &BenchContext) -> anyhow::Result<LagHistogram> {
    let count = 10_000 / bench.divisor;
    let received = Arc::new(AtomicU64::new(0));
    let worker = worker::start(bench.broker.address.clone(), count, received);
    let begin = millis() + 2000;
    fill(bench, count, move |number| begin + number).await?;
    ensure!(millis() < begin, "creating the tasks took too long");
    Ok(worker.await.context("the worker panicked")??.lags)
}
