//! `punctual bench`: how fast this machine's broker is, and whether it keeps its word meanwhile.
//!
//! In: which workloads, and a broker unless it is to start its own. Out: one table, or one JSON object. The broker is another process, so that
//! its memory, CPU and disk are its own; both share this machine. Every workload counts what was lost, doubled or early.
//! Rooms: `broker` (the other process), `wire` (how load is sent), one file a workload, `machine` (what it did meanwhile), `report` (rows).

#![expect(clippy::print_stdout, reason = "this is what a person or a script reads")]

mod broker;
mod cancel;
mod clock;
mod cluster;
mod cron;
mod drain;
mod every;
mod lag;
mod machine;
mod neighbour;
mod pending;
mod report;
mod restart;
mod schedule;
mod touch;
mod watch;
mod webhook;
mod wire;
mod worker;

use clap::ValueEnum;

use broker::Broker;
use report::Report;

#[derive(Debug, clap::Args)]
pub(crate) struct Bench {
    /// A broker that runs already. Otherwise one is started for each workload, in a folder of its own.
    #[arg(long)]
    broker: Option<String>,

    /// Only these workloads.
    #[arg(long, value_delimiter = ',')]
    only: Vec<Workload>,

    /// Where the brokers that are started keep their data; a folder is made in it and removed afterwards.
    #[arg(long, default_value = "/tmp")]
    dir: std::path::PathBuf,

    /// Partitions of the brokers that are started.
    #[arg(long, default_value_t = 1)]
    partitions: u16,

    /// Seconds for each rate.
    #[arg(long, default_value_t = 5)]
    seconds: u64,

    /// A tenth of everything: to see that it works.
    #[arg(long)]
    quick: bool,

    /// Tasks that wait in the workload `pending`.
    #[arg(long, default_value_t = 10_000_000)]
    pending: u64,

    /// Keys in the workload `touch`.
    #[arg(long, default_value_t = 1_000_000)]
    keys: u64,

    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Workload {
    /// Tasks for the next days, one at a time and in batches, over HTTP and gRPC.
    Schedule,
    /// A thousand a second for 20 s, and 20,000 in one millisecond, to a worker.
    Lag,
    /// 200,000 tasks that are due already, to workers, acked.
    Drain,
    /// 20,000 tasks that are due already, to a webhook.
    Webhook,
    /// Lag to a worker beside a target that hangs.
    Neighbour,
    /// Named tasks pushed out, in batches.
    Touch,
    /// Tasks cancelled by id, in batches.
    Cancel,
    /// How long until a broker that was killed answers again.
    Restart,
    /// Memory and disk with many tasks pending.
    Pending,
    /// Ten thousand tasks that are due each second for a minute, to a worker.
    Every,
    /// A hundred thousand cron tasks at the same second, and the lag of another namespace meanwhile.
    Cron,
    /// A hundred thousand watches that are touched every ten seconds, of which a thousand fall silent.
    Watch,
    /// Three brokers that share a Redis: end to end, to the wrong broker, one leaves, one is killed. Needs redis-server.
    Cluster,
}

impl Workload {
    const ALL: [Self; 13] = [
        Self::Schedule,
        Self::Lag,
        Self::Drain,
        Self::Webhook,
        Self::Neighbour,
        Self::Touch,
        Self::Cancel,
        Self::Restart,
        Self::Pending,
        Self::Every,
        Self::Cron,
        Self::Watch,
        Self::Cluster,
    ];
}

/// What all workloads work with.
#[derive(Debug)]
struct Stage {
    broker: Broker,
    report: Report,
    /// By how much everything is smaller.
    shrink: u64,
    seconds: u64,
    pending: u64,
    keys: u64,
}

/// Runs the workloads.
pub(crate) async fn bench(flags: Bench) -> anyhow::Result<()> {
    let mut report = Report::new(flags.json);
    let workloads = if flags.only.is_empty() { Workload::ALL.to_vec() } else { flags.only.clone() };
    for workload in workloads {
        let shrink = if flags.quick { 10 } else { 1 };
        if workload == Workload::Cluster {
            cluster::run(&mut report, &flags.dir, shrink).await?;
            continue;
        }
        let broker = match &flags.broker {
            Some(url) => Broker::running(url)?,
            None => Broker::start(&flags.dir, flags.partitions).await?,
        };
        let seconds = if flags.quick { 1 } else { flags.seconds.max(1) };
        let (pending, keys) = (flags.pending, flags.keys);
        let mut stage = Stage { broker, report, shrink, seconds, pending, keys };
        stage.report.begin();
        match workload {
            Workload::Schedule => schedule::run(&mut stage).await?,
            Workload::Lag => lag::run(&mut stage).await?,
            Workload::Drain => drain::run(&mut stage).await?,
            Workload::Webhook => webhook::run(&mut stage).await?,
            Workload::Neighbour => neighbour::run(&mut stage).await?,
            Workload::Touch => touch::run(&mut stage).await?,
            Workload::Cancel => cancel::run(&mut stage).await?,
            Workload::Restart => restart::run(&mut stage).await?,
            Workload::Pending => pending::run(&mut stage).await?,
            Workload::Every => every::run(&mut stage).await?,
            Workload::Cron => cron::run(&mut stage).await?,
            Workload::Watch => watch::run(&mut stage).await?,
            Workload::Cluster => unreachable!("has brokers of its own"),
        }
        report = stage.report;
        stage.broker.stop().await?;
    }
    println!("{}", report.finish());
    Ok(())
}
