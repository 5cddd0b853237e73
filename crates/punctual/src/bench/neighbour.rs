//! `neighbour`: whether a target that hangs changes the lag of another: a thousand tasks a second to a worker, alone, and again while
//! thousands of webhooks go to a receiver that takes connections and never answers.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use anyhow::{Context as _, ensure};
use serde_json::json;
use tokio::net::TcpListener;

use super::Stage;
use super::clock::millis;
use super::report::Lags;
use super::schedule::fill;
use super::wire::{Http, NAMESPACE};
use super::worker;

/// Tasks for the target that hangs.
const HANGING: u64 = 5000;

pub(super) async fn run(stage: &mut Stage) -> anyhow::Result<()> {
    let alone = lags(stage).await?;
    let listener = TcpListener::bind("127.0.0.1:0").await.context("cannot listen")?;
    let url = format!("http://{}/hang", listener.local_addr()?);
    let hanging = tokio::spawn(async move {
        let mut held = Vec::new();
        while let Ok((stream, _)) = listener.accept().await {
            held.push(stream);
        }
    });
    hang(stage, &url).await?;
    let beside = lags(stage).await?;
    hanging.abort();
    let reached = format!("alone {}; beside it {}", alone.words(), beside.words());
    let figures = json!({"alone": alone.figures(), "beside": beside.figures()});
    let what = format!("lag to a worker beside {HANGING} webhooks to a target that hangs");
    stage.report.row(what, reached, "the same", figures);
    Ok(())
}

/// Schedules webhooks that are due at once, to a target that never answers.
async fn hang(stage: &Stage, url: &str) -> anyhow::Result<()> {
    let mut connection = Http::connect(&stage.broker.address).await?;
    let line = format!(
        r#"{{"in":"0s","target":{{"http":{{"url":"{url}"}}}},"timeout":"30s","payload":{{"a":1}}}}"#
    );
    let body = vec![line; usize::try_from(HANGING)?].join("\n");
    let path = format!("/v1/{NAMESPACE}/tasks");
    let (status, answer) =
        connection.ask("POST", &path, "application/x-ndjson", body.as_bytes()).await?;
    ensure!(status == 200, "{status}: {}", String::from_utf8_lossy(answer));
    Ok(())
}

async fn lags(stage: &Stage) -> anyhow::Result<Lags> {
    let count = 10_000 / stage.shrink;
    let received = Arc::new(AtomicU64::new(0));
    let worker = worker::start(stage.broker.address.clone(), count, received);
    let begin = millis() + 2000;
    fill(stage, count, move |number| begin + number).await?;
    ensure!(millis() < begin, "filling took too long");
    Ok(worker.await.context("the worker panicked")??.lags)
}
