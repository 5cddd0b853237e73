//! Workload `cancel`: tasks are cancelled by id, in batches of a thousand, the newest first.

use anyhow::ensure;
use punctual_proto::v1::{CancelRequest, cancel_result, schedule_result};
use serde_json::json;
use tokio_stream::wrappers::ReceiverStream;

use super::schedule::{batch, cpu_each};
use crate::clock::{BenchTimer, millis};
use crate::connection::{NAMESPACE, channel, tasks};
use crate::context::BenchContext;
use crate::report::{grouped, rate};

const BATCH: u64 = 1000;
const DAY_MS: u64 = 86_400_000;
const CONNECTIONS: usize = 8;

pub(crate) async fn run(bench: &mut BenchContext) -> anyhow::Result<()> {
    let count = 500_000 / bench.divisor;
    let ids = create(bench, count).await?;
    let before = bench.broker.usage();
    let timer = BenchTimer::start();
    let mut senders = Vec::new();
    let share = ids.len().div_ceil(CONNECTIONS);
    for ids in ids.chunks(share).map(<[String]>::to_vec) {
        let address = bench.broker.address.clone();
        senders.push(tokio::spawn(async move {
            let mut tasks = tasks(channel(&address).await?);
            for ids in ids.chunks(usize::try_from(BATCH)?) {
                let (namespace, keys, ids) = (NAMESPACE.to_owned(), Vec::new(), ids.to_vec());
                let answer = tasks.cancel(CancelRequest { namespace, keys, ids }).await?;
                for result in answer.into_inner().results {
                    let cancelled =
                        matches!(result.result, Some(cancel_result::Result::Cancelled(_)));
                    ensure!(cancelled, "not cancelled: {result:?}");
                }
            }
            anyhow::Ok(())
        }));
    }
    for sender in senders {
        sender.await??;
    }
    let per_second = rate(count, timer.elapsed());
    let cpu = cpu_each(&bench.broker, before, count);
    let cpu_words = cpu.map_or(String::new(), |cpu| format!(" ({cpu:.1} µs of broker CPU each)"));
    let reached = format!("{}/s{cpu_words}", grouped(per_second));
    let figures = json!({"per_second": per_second, "cpu_us": cpu});
    let what = format!("cancel by id, batches of 1,000, {} tasks, gRPC", grouped(count));
    bench.report.row(what, reached, "–", figures);
    Ok(())
}

/// Creates tasks for the next thirty days, and returns their ids.
async fn create(bench: &BenchContext, count: u64) -> anyhow::Result<Vec<String>> {
    let mut tasks = tasks(channel(&bench.broker.address).await?);
    let (sender, receiver) = tokio::sync::mpsc::channel(4);
    tokio::spawn(async move {
        for first in (0..count).step_by(1000) {
            let spread = |n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15) % (29 * DAY_MS);
            let batch = batch(first, |number| millis() + DAY_MS + spread(number));
            if sender.send(batch).await.is_err() {
                return;
            }
        }
    });
    let mut answers = tasks.schedule_many(ReceiverStream::new(receiver)).await?.into_inner();
    let mut ids = Vec::new();
    while let Some(answer) = answers.message().await? {
        for result in answer.results {
            if let Some(schedule_result::Result::Scheduled(scheduled)) = result.result {
                ids.push(scheduled.id);
            }
        }
    }
    ensure!(ids.len() as u64 == count, "not all tasks were created");
    Ok(ids)
}
