//! The load generator behind `punctual bench`: how fast a broker is on this machine, and whether it
//! keeps its guarantees under load.
//!
//! The broker is another process, so its memory, CPU time and disk are measured apart from those of
//! the bench; both share the machine. Every workload counts lost, doubled and early deliveries.
//! `broker` runs the broker, `connection` sends load from many `senders`, `worker` receives,
//! `machine` watches the machine, `report` collects the rows, and `workloads` has one file per
//! workload. `rounds` measures a rate several times, in turns with a `peer` if one runs beside.
//! `tenants` measures one namespace beside another that does harm.
//!
//! Comparisons of the store and the wheel with other systems are in `crates/bench/compare`.

mod broker;
mod clock;
mod connected;
mod connection;
mod context;
mod machine;
mod names;
mod peer;
mod receiver;
mod redis;
mod report;
mod rounds;
mod senders;
mod store;
mod tenants;
mod worker;
mod workloads;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use clap::ValueEnum as _;

use broker::BenchBroker;
use connected::ConnectedDatabase;
use context::{BenchContext, Workload};
use peer::{BenchPeer, Beside};
use report::{BenchReport, MEASUREMENTS};
use store::{BenchStore, StoreChoice};
use tenants::TenantsArgs;

pub use names::SlowNameServer;
pub use redis::{BenchRedis, Fsync, RespConnection};
pub use tenants::TenantLoad;

/// The flags of `punctual bench`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  punctual bench --quick
  punctual bench --only lag,drain
  punctual bench --only schedule,touch,cancel,drain --beside redis
  punctual bench --only schedule --broker http://127.0.0.1:7400
  punctual bench --only life,lag --store postgres
  punctual bench --only outbox,sql-target
  punctual bench tenants --quick")]
#[command(args_conflicts_with_subcommands = true)]
pub struct BenchArgs {
    #[command(subcommand)]
    command: Option<BenchCommand>,

    /// URL of a running broker; without it, each workload starts its own, with a new store
    #[arg(long, value_name = "URL")]
    broker: Option<String>,

    /// Workloads to run, separated by commas; if not given, all but growth, outbox and sql-target
    #[arg(long, value_delimiter = ',', value_name = "WORKLOAD")]
    only: Vec<Workload>,

    /// Where a directory for the data of the started brokers is created; it is removed at the end
    #[arg(long, default_value = "/tmp")]
    dir: PathBuf,

    /// The store of the started brokers
    ///
    /// The bench starts a server of its own, which syncs each commit before it answers. `outbox`
    /// and `sql-target` use the same server if it is a database, else a PostgreSQL.
    #[arg(long, default_value = "embedded", value_name = "STORE", conflicts_with = "broker")]
    store: StoreChoice,

    /// Number of partitions of the started brokers
    #[arg(long, default_value_t = 1, value_name = "COUNT")]
    partitions: u16,

    /// How long each rate is measured, in seconds
    #[arg(long, default_value_t = 5)]
    seconds: u64,

    /// Do the same work with another system in turns, and print the ratio of each rate
    ///
    /// Starts a redis-server with `appendfsync always`, or a PostgreSQL server, which sync before
    /// each answer as a broker does. `schedule`, `touch`, `cancel` and `drain` have the other side.
    #[arg(long, value_name = "SYSTEM")]
    beside: Option<Beside>,

    /// How often each rate is measured; the median counts. The default is 3 with --beside, else 1
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..=99))]
    rounds: Option<u64>,

    /// Run everything at a tenth of its size, as a smoke test
    #[arg(long)]
    quick: bool,

    /// Number of pending tasks in the workloads `pending` and `growth`
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
    let columns = args.beside.map_or(MEASUREMENTS, Beside::columns);
    let mut report = BenchReport::new(columns, args.json);
    let all = Workload::value_variants().iter().copied().filter(|workload| workload.is_default());
    let workloads = if args.only.is_empty() { all.collect() } else { args.only.clone() };
    let divisor = if args.quick { 10 } else { 1 };
    for workload in workloads {
        if workload == Workload::Cluster {
            workloads::cluster::run(&mut report, &args.dir, divisor).await?;
            continue;
        }
        let mut bench = args.context(workload, report, divisor).await?;
        bench.report.begin();
        workloads::run(workload, &mut bench).await?;
        report = bench.report;
        bench.broker.stop().await?;
    }
    Ok(report.finish())
}

impl BenchArgs {
    /// Starts the servers of a workload.
    async fn context(
        &self,
        workload: Workload,
        report: BenchReport,
        divisor: u64,
    ) -> anyhow::Result<BenchContext> {
        let peer = match self.beside {
            Some(beside) => {
                let peer = BenchPeer::start(beside, &self.dir).await;
                Some(peer.context("--beside needs a server of its own")?)
            }
            None => None,
        };
        let store = BenchStore::start(self.store, &self.dir).await?;
        let mut flags = vec!["--partitions".to_owned(), self.partitions.to_string()];
        let connected = match workload.is_connected() {
            true => {
                ensure!(
                    self.broker.is_none(),
                    "this workload configures its broker; leave --broker out"
                );
                let connected = ConnectedDatabase::start(&store, &self.dir).await?;
                flags.extend(connected.flags());
                Some(connected)
            }
            false => None,
        };
        let broker = match &self.broker {
            Some(url) => BenchBroker::running(url)?,
            None => BenchBroker::start(&store, &self.dir, &flags).await?,
        };
        let rounds = self.rounds.unwrap_or(if self.beside.is_some() { 3 } else { 1 });
        Ok(BenchContext {
            broker,
            store,
            connected,
            peer,
            report,
            divisor,
            length: Duration::from_millis(self.seconds.max(1) * 1000 / divisor),
            rounds: usize::try_from(rounds)?,
            dir: self.dir.clone(),
            pending: self.pending,
            keys: self.keys,
        })
    }
}
