//! Workers that lease as many deliveries as they get, and settle none.
//!
//! A broker holds at most 400,000 tasks in memory. In a quick run all tasks are in one of many
//! partitions, whose owner has a share of 10,000.

use punctual_proto::v1::NewTask;
use tokio::task::JoinSet;

use super::requests::queued;
use crate::connection::{channel, workers};
use crate::tenants::context::{LoadContext, NAMESPACE};
use crate::tenants::quiet::keys_of_first;
use crate::worker::BenchWorkerStream;

const TASKS: u64 = 450_000;
const TASKS_QUICK: u64 = 15_000;
/// Streams, each with the highest credit.
const STREAMS: u64 = 8;
const CREDIT: u32 = 65_536;
/// The lease of a delivery: longer than the row.
const LEASE_MS: u64 = 900_000;
const QUEUE: &str = "held";

pub(super) async fn run(context: &LoadContext) -> anyhow::Result<()> {
    let mut streams = JoinSet::new();
    context.repeat(&mut streams, STREAMS, |context, _| async move { hold(&context).await });
    match context.partitions {
        Some(partitions) => {
            let keys = keys_of_first(NAMESPACE, "held", partitions, TASKS_QUICK)?;
            let due = move |number: u64| {
                let key = usize::try_from(number).ok().and_then(|at| keys.get(at).cloned());
                NewTask { key: key.unwrap_or_default(), ..held(number) }
            };
            context.schedule(TASKS_QUICK, due).await?;
        }
        None => context.schedule(TASKS, held).await?,
    }
    context.wait_until_steady("deliveries held").await?;
    context.establish_for_good().await
}

fn held(number: u64) -> NewTask {
    NewTask { timeout_ms: LEASE_MS, ..queued(number, QUEUE.to_owned()) }
}

/// Leases deliveries for as long as the broker keeps the stream.
async fn hold(context: &LoadContext) -> anyhow::Result<()> {
    let mut workers = workers(channel(&context.address).await?);
    let mut stream = BenchWorkerStream::open(&mut workers, NAMESPACE, QUEUE, CREDIT).await?;
    loop {
        let deliveries = stream.deliveries().await?;
        context.add("deliveries held", deliveries.len() as u64);
    }
}
