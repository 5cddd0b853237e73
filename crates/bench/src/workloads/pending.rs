//! Workload `pending`: how much memory, disk and CPU many pending tasks need.

use serde_json::json;

use super::schedule::fill;
use crate::clock::millis;
use crate::context::BenchContext;
use crate::report::grouped;
use crate::rounds::{TurnResult, TurnTimer};

const DAY_MS: u64 = 86_400_000;

pub(crate) async fn run(bench: &mut BenchContext) -> anyhow::Result<()> {
    let total = (bench.pending / bench.divisor).max(10_000);
    let mut so_far = 0;
    for count in [total / 10, total] {
        let begin = millis() + DAY_MS;
        let spread = |n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15) % (29 * DAY_MS);
        let turn = TurnTimer::of_broker(bench);
        fill(bench, count - so_far, move |number| begin + spread(number)).await?;
        let TurnResult { per_second, cpu_us, store_us } =
            turn.finish_of_broker(count - so_far, bench);
        so_far = count;
        let resident = bench.broker.usage().map(|usage| usage.resident_bytes);
        let disk = bench.store.disk_bytes().or_else(|| bench.broker.disk_bytes());
        let mib = |bytes: Option<u64>| bytes.map_or("unknown".to_owned(), |b| grouped(b >> 20));
        let cpu_words = cpu_us.map_or(String::new(), |cpu| format!(" ({cpu:.1} µs of CPU each)"));
        let (resident_mib, disk_mib) = (mib(resident), mib(disk));
        let rate = grouped(per_second);
        let reached = format!(
            "{resident_mib} MiB resident, {disk_mib} MiB on disk; created at {rate}/s{cpu_words}"
        );
        let figures = json!({"resident_bytes": resident, "disk_bytes": disk, "pending": count,
            "per_second": per_second, "cpu_us": cpu_us, "store_cpu_us": store_us});
        bench.report.row(
            format!("{} pending", grouped(count)),
            reached,
            "≤ 512 MiB, flat",
            figures,
        );
    }
    Ok(())
}
