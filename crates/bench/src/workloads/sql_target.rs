//! Workload `sql-target`: tasks that are due at once and run an SQL statement, until it is
//! committed and they are settled.

use anyhow::{Context as _, ensure};
use serde_json::json;

use super::drain::{done, wait_until_done};
use crate::clock::{millis, pause};
use crate::connection::{HttpConnection, NAMESPACE};
use crate::context::BenchContext;
use crate::report::grouped;
use crate::rounds::{TurnResult, TurnTimer};

/// Tasks in a request.
const BATCH: u64 = 1000;

pub(crate) async fn run(bench: &mut BenchContext) -> anyhow::Result<()> {
    for guarantee in ["at_least_once", "exactly_once"] {
        measure(bench, guarantee, 100_000 / bench.divisor).await?;
    }
    Ok(())
}

async fn measure(bench: &mut BenchContext, guarantee: &str, count: u64) -> anyhow::Result<()> {
    let connected = bench.connected.as_ref().context("no database was started")?;
    let mut session = connected.session().await?;
    let effects = "SELECT count(*) FROM effects";
    let (had, before) = (session.number(effects).await?, done(bench).await?);
    // Due a little later, so that scheduling is not measured.
    let begin = millis() + 10_000;
    let mut connection = HttpConnection::connect(&bench.broker.address).await?;
    let path = format!("/v1/{NAMESPACE}/tasks");
    for first in (0..count).step_by(usize::try_from(BATCH)?) {
        let line = |number: u64| {
            let target = json!({"sql": {"connection": "shop", "statement": "note"}});
            let payload = json!({"number": number});
            json!({"at": begin, "target": target, "guarantee": guarantee, "payload": payload})
                .to_string()
        };
        let body = (first..first + BATCH).map(line).collect::<Vec<_>>().join("\n");
        let (status, answer) =
            connection.request("POST", &path, "application/x-ndjson", body.as_bytes()).await?;
        ensure!(status == 200, "{status}: {}", String::from_utf8_lossy(answer));
    }
    ensure!(millis() < begin, "creating the tasks took too long");
    pause(begin.saturating_sub(millis())).await;
    bench.report.begin();
    let turn = TurnTimer::of_broker(bench);
    wait_until_done(bench, before + count).await?;
    let TurnResult { per_second, cpu_us, .. } = turn.finish_of_broker(count, bench);
    let rows = session.number(effects).await?.saturating_sub(had);
    ensure!(rows == count, "{count} statements have {rows} effects");
    let cpu = cpu_us.map_or(String::new(), |cpu| format!(" ({cpu:.1} µs of broker CPU each)"));
    let figures = json!({"per_second": per_second, "cpu_us": cpu_us});
    let product = bench.connected.as_ref().map_or("a database", |connected| connected.product());
    bench.report.row(
        format!("{count} SQL statements in {product}, {guarantee}"),
        format!("{}/s{cpu}", grouped(per_second)),
        "≥ 10,000/s",
        figures,
    );
    Ok(())
}
