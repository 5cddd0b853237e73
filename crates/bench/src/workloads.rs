//! The workloads, one file each.

mod cancel;
pub(crate) mod cluster;
mod cron;
mod drain;
mod every;
mod growth;
mod lag;
mod life;
mod neighbour;
mod outbox;
mod pending;
mod restart;
mod schedule;
mod sql_target;
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
        Workload::Life => life::run(bench).await,
        Workload::Growth => growth::run(bench).await,
        Workload::Outbox => outbox::run(bench).await,
        Workload::SqlTarget => sql_target::run(bench).await,
        Workload::Cluster => Ok(()),
    }
}
