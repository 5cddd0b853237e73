//! Dead letters that are listed and redriven in a loop. A worker refuses every delivery, so they
//! are dead again at once.

use anyhow::ensure;
use punctual_proto::v1::{Refuse, Settle};
use serde_json::Value;
use tokio::task::JoinSet;

use super::requests::queued;
use crate::connection::{HttpConnection, channel, workers};
use crate::tenants::context::{LoadContext, NAMESPACE};
use crate::worker::BenchWorkerStream;

const TASKS: u64 = 100_000;
const QUEUE: &str = "refused";
const CREDIT: u32 = 16_384;
/// Callers that list, and callers that redrive.
const LISTING: u64 = 2;
const REDRIVING: u64 = 2;

pub(super) async fn run(context: &LoadContext) -> anyhow::Result<()> {
    let mut loops = JoinSet::new();
    context.repeat(&mut loops, 1, |context, _| async move { refuse(&context).await });
    let tasks = context.sized(TASKS);
    context.schedule(tasks, |number| queued(number, QUEUE.to_owned())).await?;
    context.wait_for("refused", context.count("tasks") / 2).await?;
    context.repeat(&mut loops, LISTING, |context, _| async move { list(&context).await });
    context.repeat(&mut loops, REDRIVING, |context, _| async move { redrive(&context).await });
    context.wait_for("calls to redrive", 1).await?;
    context.establish_for_good().await
}

async fn refuse(context: &LoadContext) -> anyhow::Result<()> {
    let mut workers = workers(channel(&context.address).await?);
    let mut stream = BenchWorkerStream::open(&mut workers, NAMESPACE, QUEUE, CREDIT).await?;
    loop {
        let deliveries = stream.deliveries().await?;
        let reason = || "no such order".to_owned();
        let refuse = deliveries.iter().map(|one| Refuse { token: one.token, reason: reason() });
        let settle = Settle { refuse: refuse.collect(), ..Settle::default() };
        stream.settle(settle).await?;
        context.add("refused", deliveries.len() as u64);
    }
}

async fn list(context: &LoadContext) -> anyhow::Result<()> {
    let mut connection = HttpConnection::connect(&context.address).await?;
    let mut cursor = String::new();
    loop {
        let path = format!("/v1/{NAMESPACE}/dead?limit=1000&cursor={cursor}");
        let (status, body) = connection.request("GET", &path, "application/json", b"").await?;
        ensure!(status == 200, "{status}: {}", String::from_utf8_lossy(body));
        let page: Value = serde_json::from_slice(body)?;
        page["next"].as_str().unwrap_or_default().clone_into(&mut cursor);
        context.add("pages", 1);
    }
}

async fn redrive(context: &LoadContext) -> anyhow::Result<()> {
    let mut connection = HttpConnection::connect(&context.address).await?;
    let path = format!("/v1/{NAMESPACE}/dead/redrive");
    loop {
        let body = br#"{"all":true}"#;
        context.add("calls to redrive", 1);
        let (status, body) = connection.request("POST", &path, "application/json", body).await?;
        ensure!(status == 200, "{status}: {}", String::from_utf8_lossy(body));
        let answer: Value = serde_json::from_slice(body)?;
        context.add("redriven", answer["redriven"].as_u64().unwrap_or_default());
    }
}
