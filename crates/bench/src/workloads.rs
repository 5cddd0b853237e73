//! The workloads, one file each.

mod cancel;
pub(crate) mod cluster;
mod cron;
mod drain;
mod every;
mod lag;
mod neighbour;
mod pending;
mod restart;
mod schedule;
mod touch;
mod watch;
mod webhook;

use crate::context::{BenchContext, Workload};

/// Runs a workload on one broker. The workload `cluster` starts its own brokers and is not run
/// here.
pub(crate) async fn run(workload: Workload, bench: &mut BenchContext) -> anyhow::Result<()> {
    match workload {
        Workload::Schedule => schedule::run(bench).await,
        Workload::Lag => lag::run(bench).await,
        Workload::Drain => drain::run(bench).await,
        Workload::Webhook => webhook::run(bench).await,
        Workload::Neighbour => neighbour::run(bench).await,
        Workload::Touch => touch::run(bench).await,
        Workload::Cancel => cancel::run(bench).await,
        Workload::Restart => restart::run(bench).await,
        Workload::Pending => pending::run(bench).await,
        Workload::Every => every::run(bench).await,
        Workload::Cron => cron::run(bench).await,
        Workload::Watch => watch::run(bench).await,
        Workload::Cluster => Ok(()),
    }
}
