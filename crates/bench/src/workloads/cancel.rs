//! Workload `cancel`: tasks for the next thirty days are cancelled by key or by id, one at a time
//! and in batches. Each turn creates its tasks first, which is not measured.

use std::sync::Arc;

use anyhow::ensure;
use punctual_client::{CancelResult, Client};
use punctual_proto::v1::{CancelRequest, NewTask, cancel_result, schedule_result};
use tokio_stream::wrappers::ReceiverStream;

use super::schedule::{batch, fill_peer, fill_with, random_due, send_to_peer};
use crate::connection::{HttpConnection, NAMESPACE, channel, task, tasks};
use crate::context::BenchContext;
use crate::peer::{BenchPeer, PeerTask, PeerVerb};
use crate::report::grouped;
use crate::rounds::{BATCH, RateRow, SendShape, TurnResult, TurnTimer};
use crate::senders;

/// How tasks are cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CancelMode {
    Client,
    Http,
    BatchById,
    BatchByKey,
}

pub(crate) async fn run(bench: &mut BenchContext) -> anyhow::Result<()> {
    let callers = SendShape::Callers { callers: 64 };
    let one = SendShape::One { connections: 16 };
    let batches = SendShape::Batches { connections: 8, in_flight: 1 };
    for (mode, shape, count, name) in [
        (CancelMode::Client, callers, 100_000, "by key, one at a time, Rust client"),
        (CancelMode::Http, one, 50_000, "by key, one at a time, HTTP"),
        (CancelMode::BatchById, batches, 400_000, "by id, batches of 1,000, gRPC"),
        (CancelMode::BatchByKey, batches, 400_000, "by key, batches of 1,000, gRPC"),
    ] {
        let count = count / bench.divisor;
        let results = bench
            .rounds(
                async |bench| cancel(bench, mode, shape, count).await,
                async |peer| cancel_at_peer(peer, shape, count).await,
            )
            .await?;
        let what = format!("cancel {} tasks {name}", grouped(count));
        RateRow::new(what, shape, "–").report(&results, &mut bench.report);
    }
    Ok(())
}

async fn cancel(
    bench: &BenchContext,
    mode: CancelMode,
    shape: SendShape,
    count: u64,
) -> anyhow::Result<TurnResult> {
    let names = match mode {
        CancelMode::BatchById => create_unnamed(bench, count).await?,
        CancelMode::Client | CancelMode::Http | CancelMode::BatchByKey => {
            create_named(bench, count).await?
        }
    };
    let names = Arc::new(names);
    let client = Client::connect(format!("http://{}", bench.broker.address))?;
    let turn = TurnTimer::of_broker(bench);
    let share = usize::try_from(count.div_ceil(shape.senders()))?;
    let sender = |sender: u64| {
        let (address, client) = (bench.broker.address.clone(), client.clone());
        let names = Arc::clone(&names);
        async move {
            let first = usize::try_from(sender)?.saturating_mul(share).min(names.len());
            let names = &names[first..(first + share).min(names.len())];
            match mode {
                CancelMode::Client => call(&client, names).await,
                CancelMode::Http => http(&address, names).await,
                CancelMode::BatchById | CancelMode::BatchByKey => {
                    grpc_batches(&address, mode, names).await
                }
            }
        }
    };
    let cancelled = senders::run(shape.senders(), sender).await?;
    ensure!(cancelled == count, "{cancelled} of {count} tasks were cancelled");
    Ok(turn.finish_of_broker(count, bench))
}

async fn cancel_at_peer(
    peer: &BenchPeer,
    shape: SendShape,
    count: u64,
) -> anyhow::Result<TurnResult> {
    let make = |number| PeerTask { name: key(number), number, due_ms: random_due(number) };
    fill_peer(peer, count, make).await?;
    let turn = TurnTimer::of_peer(peer);
    let cancelled = send_to_peer(peer, PeerVerb::Cancel, shape, count, make).await?;
    ensure!(cancelled == count, "the other system has cancelled {cancelled} of {count} tasks");
    Ok(turn.finish_of_peer(count, peer))
}

async fn call(client: &Client, keys: &[String]) -> anyhow::Result<u64> {
    let namespace = client.namespace(NAMESPACE);
    for key in keys {
        let result = namespace.cancel(key).await?;
        ensure!(result == CancelResult::Cancelled, "{key} was not cancelled: {result:?}");
    }
    Ok(keys.len() as u64)
}

async fn http(address: &str, keys: &[String]) -> anyhow::Result<u64> {
    let mut connection = HttpConnection::connect(address).await?;
    for key in keys {
        let path = format!("/v1/{NAMESPACE}/tasks/{key}");
        let (status, answer) = connection.request("DELETE", &path, "application/json", b"").await?;
        ensure!(status == 200, "{status}: {}", String::from_utf8_lossy(answer));
    }
    Ok(keys.len() as u64)
}

async fn grpc_batches(address: &str, mode: CancelMode, names: &[String]) -> anyhow::Result<u64> {
    let mut tasks = tasks(channel(address).await?);
    for names in names.chunks(usize::try_from(BATCH)?) {
        let (keys, ids) = match mode {
            CancelMode::BatchById => (Vec::new(), names.to_vec()),
            _ => (names.to_vec(), Vec::new()),
        };
        let request = CancelRequest { namespace: NAMESPACE.to_owned(), keys, ids };
        for result in tasks.cancel(request).await?.into_inner().results {
            let cancelled = matches!(result.result, Some(cancel_result::Result::Cancelled(_)));
            ensure!(cancelled, "not cancelled: {result:?}");
        }
    }
    Ok(names.len() as u64)
}

fn key(number: u64) -> String {
    format!("order-{number:08}")
}

/// Creates tasks with keys, and returns the keys.
async fn create_named(bench: &BenchContext, count: u64) -> anyhow::Result<Vec<String>> {
    let named = |number| NewTask { key: key(number), ..task(number, random_due(number)) };
    fill_with(bench, count, named).await?;
    Ok((0..count).map(key).collect())
}

/// Creates tasks without keys, and returns their ids.
async fn create_unnamed(bench: &BenchContext, count: u64) -> anyhow::Result<Vec<String>> {
    let mut tasks = tasks(channel(&bench.broker.address).await?);
    let (sender, receiver) = tokio::sync::mpsc::channel(4);
    tokio::spawn(async move {
        for first in (0..count).step_by(1000) {
            if sender.send(batch(first, random_due)).await.is_err() {
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
    ensure!(ids.len() as u64 == count, "{} of {count} tasks were created", ids.len());
    Ok(ids)
}
