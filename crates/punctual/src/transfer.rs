//! `punctual export` and `punctual import`: everything in a store to a file, and back.
//!
//! The work is done in the crate `punctual-transfer`. This file reads the command line, shows how
//! far a transfer is, and prints the summary to standard error, so that standard output is free for
//! the export itself.

#![expect(clippy::print_stderr, reason = "these commands report to a person")]

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use indicatif::{ProgressBar, ProgressStyle};
use punctual_core::Partitions;
use punctual_store_any::StoreLocation;
use punctual_store_sql::SqlStoreOptions;
use punctual_transfer::{
    ExportOptions, ExportOutput, ImportInput, ImportOptions, ImportSummary, TransferEvent,
};

/// How long one call of a shared store may take. Longer than for a broker: no lease depends on it.
const SHARED_TIMEOUT: Duration = Duration::from_secs(10);

/// Which store.
#[derive(Debug, clap::Args)]
struct StoreArgs {
    #[command(flatten)]
    kind: StoreKindArgs,

    /// Name of the cluster in Redis, of its schema in PostgreSQL, or of the beginning of its tables
    /// in MySQL
    #[arg(long, value_name = "NAME", default_value = "punctual")]
    cluster: String,

    /// PEM file of the certificate authority to trust for rediss://, instead of the public ones
    #[arg(long, value_name = "FILE")]
    redis_ca: Option<PathBuf>,

    /// PEM file of the certificate authority to trust for PostgreSQL; TLS is required with it
    #[arg(long, value_name = "FILE")]
    postgres_ca: Option<PathBuf>,

    /// PEM file of the certificate authority to trust for MySQL; TLS is required with it
    #[arg(long, value_name = "FILE")]
    mysql_ca: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
struct StoreKindArgs {
    /// Data directory of a broker that is not running
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,

    /// URL of a Redis server; repeat it for further servers of a Redis Cluster
    #[arg(long, value_name = "URL")]
    redis: Vec<String>,

    /// URL of a PostgreSQL database, or a file that holds it (`@FILE`)
    #[arg(long, value_name = "URL")]
    postgres: Option<String>,

    /// URL of a MySQL or MariaDB database, or a file that holds it (`@FILE`)
    #[arg(long, value_name = "URL")]
    mysql: Option<String>,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Example:
  punctual export --data-dir ./punctual-data --out export.ndjson")]
pub(crate) struct ExportArgs {
    #[command(flatten)]
    store: StoreArgs,

    /// File to write; standard output if not given
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,

    /// Leave out the records of fires that have ended
    #[arg(long)]
    without_history: bool,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Example:
  punctual import --redis redis://10.0.0.5:6379 --cluster shop --in export.ndjson")]
pub(crate) struct ImportArgs {
    #[command(flatten)]
    store: StoreArgs,

    /// File to read; standard input if not given
    #[arg(long = "in", value_name = "FILE")]
    file: Option<PathBuf>,

    /// Number of partitions of a new store; as many as the exported store had if not given
    #[arg(long, value_name = "COUNT")]
    partitions: Option<u16>,

    /// Replace live tasks that have the key of an imported task, instead of keeping them
    #[arg(long)]
    replace: bool,
}

impl StoreArgs {
    fn location(&self) -> anyhow::Result<StoreLocation> {
        if let Some(dir) = &self.kind.data_dir {
            return Ok(StoreLocation::Embedded(dir.clone()));
        }
        if let Some(url) = &self.kind.postgres {
            return self.database(url, self.postgres_ca.as_deref()).map(StoreLocation::Postgres);
        }
        if let Some(url) = &self.kind.mysql {
            return self.database(url, self.mysql_ca.as_deref()).map(StoreLocation::Mysql);
        }
        let urls = self.kind.redis.clone();
        let mut options =
            punctual_store_redis::RedisOptions::new(urls, &self.cluster, Partitions::ONE);
        options.timeout = SHARED_TIMEOUT;
        if let Some(file) = &self.redis_ca {
            options.authority_pem = Some(read_certificates(file)?);
        }
        Ok(StoreLocation::Redis(options))
    }

    fn database(&self, url: &str, ca: Option<&Path>) -> anyhow::Result<SqlStoreOptions> {
        let mut sql = punctual_sql::SqlOptions::from_url(url)?;
        if let Some(file) = ca {
            sql = sql.with_authority(read_certificates(file)?);
        }
        let mut options = SqlStoreOptions::new(sql, &self.cluster, Partitions::ONE);
        options.sql.statement_timeout = SHARED_TIMEOUT;
        Ok(options)
    }
}

fn read_certificates(file: &Path) -> anyhow::Result<Vec<u8>> {
    std::fs::read(file).with_context(|| format!("cannot read certificates from {}", file.display()))
}

pub(crate) async fn export(args: ExportArgs) -> anyhow::Result<()> {
    let options = ExportOptions {
        location: args.store.location()?,
        output: args.out.map_or(ExportOutput::Stdout, ExportOutput::File),
        history: !args.without_history,
    };
    let mut bar = None;
    let on_event = &mut |event| show(&mut bar, "exporting", event);
    let summary = punctual_transfer::export(options, on_event).await?;
    eprintln!(
        "exported {} tasks, {} dead letters, {} records of fires",
        summary.tasks, summary.dead_letters, summary.fires
    );
    Ok(())
}

pub(crate) async fn import(args: ImportArgs) -> anyhow::Result<()> {
    let options = ImportOptions {
        location: args.store.location()?,
        input: args.file.map_or(ImportInput::Stdin, ImportInput::File),
        partitions: args.partitions,
        replace: args.replace,
    };
    let mut bar = None;
    let on_event = &mut |event| show(&mut bar, "importing", event);
    let (summary, result) = punctual_transfer::import(options, on_event).await;
    if result.is_ok() || summary != ImportSummary::default() {
        print_summary(&summary);
    }
    result?;
    match summary.conflicts {
        0 => Ok(()),
        count => bail!(
            "{count} tasks were not imported: their keys name other live tasks. \
             Import again with --replace to replace those"
        ),
    }
}

fn print_summary(summary: &ImportSummary) {
    let ImportSummary { tasks, dead_letters, fires, .. } = summary;
    eprintln!("imported {tasks} tasks, {dead_letters} dead letters, {fires} records of fires");
    for (count, what) in [
        (summary.existing, "existed already and were left unchanged"),
        (summary.ended, "have ended here since the export and were left out"),
        (summary.new_ids, "lines are of tasks with a new id: the store has other partitions"),
        (summary.replaced, "live tasks were replaced"),
        (
            summary.receipts,
            "receipts of idempotency keys were left out: the store has other partitions",
        ),
    ] {
        if count > 0 {
            eprintln!("{count} {what}");
        }
    }
}

/// Prints notices, and shows progress on a terminal.
fn show(bar: &mut Option<ProgressBar>, what: &str, event: TransferEvent) {
    match event {
        TransferEvent::Notice(text) => match bar {
            Some(bar) => bar.suspend(|| eprintln!("{text}")),
            None => eprintln!("{text}"),
        },
        TransferEvent::Started { total } => *bar = Some(progress_bar(total, what)),
        TransferEvent::Progress(done) => {
            if let Some(bar) = bar {
                bar.set_position(done);
            }
        }
        TransferEvent::Finished => {
            if let Some(bar) = bar.take() {
                bar.finish_and_clear();
            }
        }
    }
}

/// A bar on standard error, if that is a terminal. Without a total it counts.
pub(crate) fn progress_bar(total: Option<u64>, what: &str) -> ProgressBar {
    let bar = total.map_or_else(ProgressBar::new_spinner, ProgressBar::new);
    let template = match total {
        Some(_) => "{msg} {wide_bar} {percent}% {eta}",
        None => "{msg} {spinner} {human_pos} {per_sec}",
    };
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.set_message(what.to_owned());
    bar
}
