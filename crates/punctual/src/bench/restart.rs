//! `restart`: how long until a broker that was killed under load answers again, and whether everything is there.

use anyhow::ensure;
use serde_json::{Value, json};

use super::Stage;
use super::clock::millis;
use super::report::grouped;
use super::schedule::fill;
use super::wire::{Http, NAMESPACE};

const DAY_MS: u64 = 86_400_000;

pub(super) async fn run(stage: &mut Stage) -> anyhow::Result<()> {
    let count = 1_000_000 / stage.shrink;
    let begin = millis() + DAY_MS;
    let spread = |n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15) % (29 * DAY_MS);
    fill(stage, count, move |number| begin + spread(number)).await?;
    let took = stage.broker.kill_and_restart().await?;
    let mut connection = Http::connect(&stage.broker.address).await?;
    let path = format!("/v1/{NAMESPACE}/stats");
    let (status, body) = connection.ask("GET", &path, "application/json", b"").await?;
    ensure!(status == 200, "stats: {status}");
    let there = serde_json::from_slice::<Value>(body)?["scheduled"].as_u64().unwrap_or(0);
    let lost = count.saturating_sub(there);
    let reached = format!("listens after {:.2} s; lost {lost}", took.as_secs_f64());
    let figures = json!({"seconds": took.as_secs_f64(), "lost": lost});
    let what = format!("restart after kill −9 with {} pending", grouped(count));
    stage.report.row(what, reached, "lost 0", figures);
    Ok(())
}
