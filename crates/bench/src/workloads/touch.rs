//! Workload `touch`: watches are touched in batches of a thousand, over gRPC and over HTTP.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use punctual_proto::v1::{TouchRequest, new_task};
use serde_json::json;

use super::schedule::{batch, cpu_each, send_batches};
use crate::clock::BenchTimer;
use crate::connection::{HttpConnection, NAMESPACE, channel, tasks};
use crate::context::BenchContext;
use crate::report::{grouped, rate};

const BATCH: u64 = 1000;
const HOUR_MS: u64 = 3_600_000;
const CONNECTIONS: u64 = 8;

pub(crate) async fn run(bench: &mut BenchContext) -> anyhow::Result<()> {
    let keys = (bench.keys / bench.divisor).max(BATCH);
    create_watches(bench, keys).await?;
    for (grpc, name, wanted) in [(true, "gRPC", "≥ 200,000/s"), (false, "HTTP", "≥ 100,000/s")]
    {
        let before = bench.broker.usage();
        let done = Arc::new(AtomicU64::new(0));
        let timer = BenchTimer::start();
        let length = Duration::from_secs(bench.seconds);
        let mut senders = Vec::new();
        for sender in 0..CONNECTIONS {
            let (address, done) = (bench.broker.address.clone(), Arc::clone(&done));
            senders.push(tokio::spawn(async move {
                let mut first = sender * BATCH;
                let mut http = HttpConnection::connect(&address).await?;
                let mut tasks = tasks(channel(&address).await?);
                while timer.elapsed() < length {
                    let names: Vec<_> = (0..BATCH).map(|n| key((first + n) % keys)).collect();
                    let touched = if grpc {
                        let request = TouchRequest {
                            namespace: NAMESPACE.to_owned(),
                            keys: names,
                            to: None,
                            create: None,
                        };
                        tasks.touch(request).await?.into_inner().touched
                    } else {
                        let body = json!({ "keys": names }).to_string();
                        let path = format!("/v1/{NAMESPACE}/touch");
                        let answer =
                            http.request("POST", &path, "application/json", body.as_bytes());
                        let (status, answer) = answer.await?;
                        ensure!(status == 200, "{status}: {}", String::from_utf8_lossy(answer));
                        serde_json::from_slice::<serde_json::Value>(answer)?["touched"]
                            .as_u64()
                            .unwrap_or(0)
                    };
                    ensure!(touched == BATCH, "{touched} of {BATCH} were touched");
                    done.fetch_add(touched, Ordering::Relaxed);
                    first += CONNECTIONS * BATCH;
                }
                anyhow::Ok(())
            }));
        }
        for sender in senders {
            sender.await.context("a sender panicked")??;
        }
        let count = done.load(Ordering::Relaxed);
        let per_second = rate(count, timer.elapsed());
        let cpu = cpu_each(&bench.broker, before, count);
        let memory = bench.broker.usage().map(|usage| usage.resident_bytes >> 20);
        let words = cpu.zip(memory).map_or(String::new(), |(cpu, memory)| {
            format!(" ({cpu:.1} µs of broker CPU each; {memory} MiB resident afterwards)")
        });
        let reached = format!("{}/s{words}", grouped(per_second));
        let figures = json!({"per_second": per_second, "cpu_us": cpu, "memory_mib": memory});
        let what = format!("touch by key, batches of 1,000, {} keys, {name}", grouped(keys));
        bench.report.row(what, reached, wanted, figures);
    }
    Ok(())
}

fn key(number: u64) -> String {
    format!("device/{number:08}")
}

/// Creates a watch for every key.
async fn create_watches(bench: &BenchContext, keys: u64) -> anyhow::Result<()> {
    let bar = bench.report.bar("creating watches", keys);
    let done = AtomicU64::new(0);
    let mut first = 0;
    let next = move || {
        (first < keys).then(|| {
            let mut batch = batch(first, |_| 0);
            for (task, number) in batch.tasks.iter_mut().zip(first..) {
                task.key = key(number);
                task.when = Some(new_task::When::WithinMs(48 * HOUR_MS));
            }
            first += BATCH;
            batch
        })
    };
    send_batches(&bench.broker.address, next, &done).await?;
    bar.finish_and_clear();
    Ok(())
}
