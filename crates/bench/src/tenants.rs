//! `punctual bench tenants`: how much later the webhooks of a quiet namespace are received while
//! another namespace does harm, one kind of harm at a time.
//!
//! Each row has a broker of its own. The quiet namespace is measured alone first, then beside the
//! hostile load, which runs until all quiet webhooks are received or [`HOLD`] is over. Rows that
//! need rights or files that are missing are skipped and say so. `quiet` sends and receives,
//! `loads` has the hostile loads, `row` judges.

mod context;
mod loads;
mod quiet;
mod row;
mod running;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use clap::ValueEnum as _;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::{Value, json};
use tokio::process::Command;
use tokio::time::timeout;

use crate::broker::{BenchBroker, program};
use crate::clock::{BenchTimer, pause};
use crate::report::{BenchReport, ReportColumns};
use context::TenantScale;
use loads::LoadSetup;
use quiet::QuietRun;
use row::TenantRow;
use running::RunningLoad;

pub use loads::TenantLoad;

/// The columns of the report.
const TENANTS: ReportColumns = &[
    ("load", "hostile load"),
    ("received", "received"),
    ("dead", "dead"),
    ("alone", "alone p50 / p99 / max"),
    ("beside", "beside it p50 / p99 / max"),
    ("ratio", "p99 × alone"),
    ("limit", "limit of p99"),
    ("result", "result"),
    ("notes", "notes"),
];

/// How long the load continues after the last quiet webhook was due, if some are missing.
const HOLD: Duration = Duration::from_secs(20);
const HOLD_QUICK: Duration = Duration::from_secs(10);
/// How long missing webhooks may take after the load has ended.
const REST: Duration = Duration::from_secs(20);
/// How long a load may take until it does its harm.
const ESTABLISH_MAX: Duration = Duration::from_secs(120);
/// How long a whole row may take. The broker of a row that takes longer is killed.
const ROW_MAX: Duration = Duration::from_secs(300);
/// How often a run checks what was received, in milliseconds.
const CHECK_MS: u64 = 20;

/// The flags of `punctual bench tenants`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  punctual bench tenants
  punctual bench tenants --quick --only hanging-origins,slow-names")]
pub(crate) struct TenantsArgs {
    /// Hostile loads to run, separated by commas; all of them if not given
    #[arg(long, value_delimiter = ',', value_name = "LOAD")]
    only: Vec<TenantLoad>,

    /// Where a directory for the data of the started brokers is created; it is removed at the end
    #[arg(long, default_value = "/tmp")]
    dir: PathBuf,

    /// How long the quiet namespace is measured, alone and beside each load, in seconds
    #[arg(long, default_value_t = 10)]
    seconds: u64,

    /// Run everything at a tenth of its size, for two seconds, as a smoke test
    #[arg(long)]
    quick: bool,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the loads and returns the report: a table, or one JSON object.
pub(crate) async fn run(args: TenantsArgs) -> anyhow::Result<String> {
    raise_file_limit();
    let mut report = BenchReport::new(TENANTS, args.json);
    let loads = if args.only.is_empty() { TenantLoad::value_variants() } else { &args.only };
    let scale = if args.quick {
        TenantScale { divisor: 10, seconds: 2, hold: HOLD_QUICK }
    } else {
        TenantScale { divisor: 1, seconds: args.seconds.max(1), hold: HOLD }
    };
    for load in loads {
        let measured = timeout(ROW_MAX, measure(*load, scale, &args.dir, &mut report)).await;
        let measured = measured.context("the row took too long").flatten();
        match measured {
            Ok(row) => report.cells(row.cells(), row.figures()),
            Err(error) => report.cells(failed(*load, &error), json!({"error": error_text(&error)})),
        }
    }
    Ok(report.finish())
}

/// The cells of a row that could not be measured.
fn failed(load: TenantLoad, error: &anyhow::Error) -> Vec<String> {
    let mut cells = vec![load.name()];
    cells.resize(TENANTS.len() - 2, "–".to_owned());
    cells.extend(["not measured".to_owned(), error_text(error)]);
    cells
}

fn error_text(error: &anyhow::Error) -> String {
    format!("{error:#}").replace('\n', " ")
}

/// Measures one row: the quiet namespace alone, then beside the load.
async fn measure(
    load: TenantLoad,
    scale: TenantScale,
    dir: &Path,
    report: &mut BenchReport,
) -> anyhow::Result<TenantRow> {
    let setup = load.setup(scale)?;
    let broker = start_broker(&setup, dir).await?;
    let bar = report.bar(&load.name(), 2 * quiet::planned(scale.seconds));
    let alone = QuietRun::start(&broker.address, &setup.quiet, "alone").await?;
    wait_until_received(&alone, REST, |received| bar.set_position(received)).await;
    let alone = alone.tally();
    let missing = alone.planned - alone.received;
    ensure!(missing == 0, "{missing} of {} webhooks were not received alone", alone.planned);

    let memory_before = resident(&broker);
    let mut running = RunningLoad::start(load, &setup, scale, &broker.address)?;
    running.wait_until_established(ESTABLISH_MAX).await?;
    report.begin();
    let beside = QuietRun::start(&broker.address, &setup.quiet, "beside").await?;
    let mut memory_peak = 0;
    wait_until_received(&beside, scale.hold, |received| {
        memory_peak = memory_peak.max(resident(&broker));
        bar.set_position(alone.planned + received);
    })
    .await;
    let at_end = beside.tally();
    let counts = running.stop().await?;
    wait_until_received(&beside, REST, |_| ()).await;
    let dead = dead_letters(&broker.address, &setup).await;
    let beside = beside.tally();
    bar.finish_and_clear();
    broker.stop().await?;
    let memory_above = memory_peak.saturating_sub(memory_before);
    Ok(TenantRow { load, alone, beside, at_end, dead: dead?, memory_above, counts })
}

async fn start_broker(setup: &LoadSetup, dir: &Path) -> anyhow::Result<BenchBroker> {
    let mut command = Command::new(program()?);
    if let Some(names) = &setup.names {
        command = names.command().into();
        command.arg(program()?);
    }
    let flags: Vec<&str> = setup.flags.iter().map(String::as_str).collect();
    BenchBroker::start_by(command, dir, &flags).await
}

/// Waits until everything was received, for at most `rest` after the last webhook was due. Calls
/// `each` with how many were received.
async fn wait_until_received(run: &QuietRun, rest: Duration, mut each: impl FnMut(u64)) {
    let timer = BenchTimer::start();
    let longest = run.left() + rest;
    while !run.is_complete() && timer.elapsed() < longest {
        each(run.received());
        pause(CHECK_MS).await;
    }
    each(run.received());
}

/// Returns how many dead letters the quiet namespace has.
async fn dead_letters(address: &str, setup: &LoadSetup) -> anyhow::Result<u64> {
    let mut connection = setup.quiet.connect(address).await?;
    let path = format!("/v1/{}/stats", quiet::NAMESPACE);
    let asking = connection.request("GET", &path, "application/json", b"");
    let (status, body) = timeout(REST, asking).await.context("no answer to a call for stats")??;
    ensure!(status == 200, "stats: {status}");
    let stats: Value = serde_json::from_slice(body)?;
    stats["dead_letters"].as_u64().context("no dead letters in stats")
}

/// Returns the resident memory of the broker in bytes.
fn resident(broker: &BenchBroker) -> u64 {
    broker.usage().map_or(0, |usage| usage.resident_bytes)
}

/// Raises the limit of open files to the most that this process may have. Brokers inherit it.
fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, "raising the limit of open files failed");
    }
}
