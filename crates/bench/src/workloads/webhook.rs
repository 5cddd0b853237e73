//! Workload `webhook`: tasks that are due at once, to a receiver in this process that answers as
//! fast as it can.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::ensure;
use serde_json::json;

use super::drain::wait_until_done;
use crate::clock::millis;
use crate::connection::{HttpConnection, NAMESPACE};
use crate::context::BenchContext;
use crate::receiver::{AnswerManner, BenchReceiver, WebhookHead};
use crate::report::grouped;
use crate::rounds::{TurnResult, TurnTimer};

/// Tasks in a request.
const BATCH: u64 = 1000;

pub(crate) async fn run(bench: &mut BenchContext) -> anyhow::Result<()> {
    let count = 100_000 / bench.divisor;
    let received = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&received);
    let count_one = move |_: &WebhookHead| {
        counter.fetch_add(1, Ordering::Relaxed);
    };
    let receiver = BenchReceiver::start(Ipv4Addr::LOCALHOST, AnswerManner::Keep, count_one).await?;
    let url = format!("http://{}/hook", receiver.address);
    // Due a little later, so that scheduling is not measured.
    let begin = millis() + 3000;
    let mut connection = HttpConnection::connect(&bench.broker.address).await?;
    let path = format!("/v1/{NAMESPACE}/tasks");
    for _ in 0..count / BATCH {
        let line = format!(
            r#"{{"at":{begin},"target":{{"http":{{"url":"{url}"}}}},"payload":{{"a":1}}}}"#
        );
        let body = vec![line; usize::try_from(BATCH)?].join("\n");
        let (status, answer) =
            connection.request("POST", &path, "application/x-ndjson", body.as_bytes()).await?;
        ensure!(status == 200, "{status}: {}", String::from_utf8_lossy(answer));
    }
    ensure!(millis() < begin, "creating the tasks took too long");
    crate::clock::pause(begin.saturating_sub(millis())).await;
    let turn = TurnTimer::of_broker(bench);
    wait_until_done(bench, count).await?;
    let TurnResult { per_second, cpu_us: cpu, .. } = turn.finish_of_broker(count, bench);
    drop(receiver);
    let extra = received.load(Ordering::Relaxed).saturating_sub(count);
    let cpu_words = cpu.map_or(String::new(), |cpu| format!("{cpu:.1} µs of broker CPU each; "));
    let reached = format!("{}/s ({cpu_words}doubled {extra})", grouped(per_second));
    let figures = json!({"per_second": per_second, "doubled": extra, "cpu_us": cpu});
    bench.report.row(
        format!("{count} webhooks to a fast local receiver"),
        reached,
        "≥ 20,000/s",
        figures,
    );
    Ok(())
}
