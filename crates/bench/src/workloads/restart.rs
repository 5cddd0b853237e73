//! Workload `restart`: how long a broker needs to answer again after it was killed, and whether any
//! task was lost.

use anyhow::ensure;
use serde_json::{Value, json};

use super::schedule::fill;
use crate::broker::BrokerEnd;
use crate::clock::millis;
use crate::connection::{HttpConnection, NAMESPACE};
use crate::context::BenchContext;
use crate::report::grouped;

const DAY_MS: u64 = 86_400_000;

pub(crate) async fn run(bench: &mut BenchContext) -> anyhow::Result<()> {
    let count = 1_000_000 / bench.divisor;
    let begin = millis() + DAY_MS;
    let spread = |n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15) % (29 * DAY_MS);
    fill(bench, count, move |number| begin + spread(number)).await?;
    let took = bench.broker.restart(BrokerEnd::Killed).await?;
    let mut connection = HttpConnection::connect(&bench.broker.address).await?;
    let path = format!("/v1/{NAMESPACE}/stats");
    let (status, body) = connection.request("GET", &path, "application/json", b"").await?;
    ensure!(status == 200, "stats: {status}");
    let scheduled = serde_json::from_slice::<Value>(body)?["scheduled"].as_u64().unwrap_or(0);
    let lost = count.saturating_sub(scheduled);
    let reached = format!("answers after {:.2} s; lost {lost}", took.as_secs_f64());
    let figures = json!({"seconds": took.as_secs_f64(), "lost": lost});
    let what = format!("restart after kill −9 with {} pending", grouped(count));
    bench.report.row(what, reached, "lost 0", figures);
    Ok(())
}
