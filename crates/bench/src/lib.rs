//! The load generator behind `punctual bench`: how fast a broker is on this machine, and whether it
//! keeps its guarantees under load.
//!
//! The broker is another process, so its memory, CPU time and disk are measured apart from those of
//! the bench; both share the machine. Every workload counts lost, doubled and early deliveries.
//! `broker` runs the broker, `connection` sends load, `worker` receives, `machine` watches the
//! machine, `report` collects the rows, and `workloads` has one file per workload. `tenants`
//! measures one namespace beside another that does harm.
//!
//! Comparisons of the store and the wheel with other systems are in `crates/bench/compare`.

mod broker;
mod clock;
mod connection;
mod context;
mod machine;
mod names;
mod receiver;
mod report;
mod tenants;
mod worker;
mod workloads;

use std::path::PathBuf;

use clap::ValueEnum;

use broker::BenchBroker;
use context::{BenchContext, Workload};
use report::{BenchReport, MEASUREMENTS};
use tenants::TenantsArgs;

pub use names::SlowNameServer;
pub use tenants::TenantLoad;

/// The flags of `punctual bench`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  punctual bench --quick
  punctual bench --only lag,drain
  punctual bench --only schedule --broker http://127.0.0.1:7400
  punctual bench tenants --quick")]
#[command(args_conflicts_with_subcommands = true)]
pub struct BenchArgs {
    #[command(subcommand)]
    command: Option<BenchCommand>,

    /// URL of a running broker; without it, each workload starts its own, with a new store
    #[arg(long, value_name = "URL")]
    broker: Option<String>,

    /// Workloads to run, separated by commas; all of them if not given
    #[arg(long, value_delimiter = ',', value_name = "WORKLOAD")]
    only: Vec<Workload>,

    /// Where a directory for the data of the started brokers is created; it is removed at the end
    #[arg(long, default_value = "/tmp")]
    dir: PathBuf,

    /// Number of partitions of the started brokers
    #[arg(long, default_value_t = 1, value_name = "COUNT")]
    partitions: u16,

    /// How long each rate is measured, in seconds
    #[arg(long, default_value_t = 5)]
    seconds: u64,

    /// Run everything at a tenth of its size, as a smoke test
    #[arg(long)]
    quick: bool,

    /// Number of pending tasks in the workload `pending`
    #[arg(long, default_value_t = 10_000_000, value_name = "COUNT")]
    pending: u64,

    /// Number of keys in the workload `touch`
    #[arg(long, default_value_t = 1_000_000, value_name = "COUNT")]
    keys: u64,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Subcommand)]
enum BenchCommand {
    /// Measure how much later a namespace becomes while another does harm
    Tenants(TenantsArgs),
}

/// Runs the workloads and returns the report: a table, or one JSON object.
pub async fn run(args: BenchArgs) -> anyhow::Result<String> {
    if let Some(BenchCommand::Tenants(args)) = args.command {
        return tenants::run(args).await;
    }
    let mut report = BenchReport::new(MEASUREMENTS, args.json);
    let all = Workload::value_variants();
    let workloads = if args.only.is_empty() { all } else { &args.only };
    let divisor = if args.quick { 10 } else { 1 };
    for workload in workloads {
        if *workload == Workload::Cluster {
            workloads::cluster::run(&mut report, &args.dir, divisor).await?;
            continue;
        }
        let broker = match &args.broker {
            Some(url) => BenchBroker::running(url)?,
            None => {
                let partitions = args.partitions.to_string();
                BenchBroker::start(&args.dir, &["--partitions", &partitions]).await?
            }
        };
        let seconds = if args.quick { 1 } else { args.seconds.max(1) };
        let (pending, keys) = (args.pending, args.keys);
        let mut bench = BenchContext { broker, report, divisor, seconds, pending, keys };
        bench.report.begin();
        workloads::run(*workload, &mut bench).await?;
        report = bench.report;
        bench.broker.stop().await?;
    }
    Ok(report.finish())
}
