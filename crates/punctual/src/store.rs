//! `punctual store`: inspects the embedded store of a broker that is not running.
//!
//! Prints a list for people, or with `--json` one JSON object. The exit code is 1 if a problem was
//! found. A store that is in use is refused, and the error names the process that uses it.

#![expect(clippy::print_stdout, reason = "this command prints its report")]

use std::path::PathBuf;

use anyhow::{Context as _, bail};
use clap::Subcommand;
use punctual_store_embedded::{check, stats};
use serde_json::{Map, Value, json};

#[derive(Debug, Subcommand)]
pub(crate) enum StoreCommand {
    /// Read and verify everything in the store; nothing is changed
    #[command(after_help = "Example:\n  punctual store check ./punctual-data")]
    Check(StoreDirArgs),
    /// Show the size of the store on disk and in memory
    #[command(after_help = "Example:\n  punctual store stats ./punctual-data --json")]
    Stats(StoreDirArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct StoreDirArgs {
    /// Data directory of the broker
    dir: PathBuf,
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
}

/// Runs a command.
pub(crate) fn run(command: StoreCommand, runtime: &tokio::runtime::Runtime) -> anyhow::Result<()> {
    // The store starts its readers on the current runtime.
    let _guard = runtime.enter();
    match command {
        StoreCommand::Check(args) => run_check(&args),
        StoreCommand::Stats(args) => run_stats(&args),
    }
}

fn run_check(args: &StoreDirArgs) -> anyhow::Result<()> {
    let report = check(&args.dir).with_context(|| cannot("check", args))?;
    print(
        args,
        json!({
            "scheduled": report.scheduled,
            "paused": report.paused,
            "silent_watches": report.silent_watches,
            "names": report.names,
            "dead_letters": report.dead_letters,
            "history_records": report.records,
            "runs": report.runs,
            "run_bytes": report.run_bytes,
            "commits_in_journal_only": report.replayed,
            "problems": report.problems,
        }),
    );
    match report.problems.len() {
        0 => Ok(()),
        1 => bail!("the store has 1 problem"),
        count => bail!("the store has {count} problems"),
    }
}

fn run_stats(args: &StoreDirArgs) -> anyhow::Result<()> {
    let stats = stats(&args.dir).with_context(|| cannot("open", args))?;
    print(
        args,
        json!({
            "tasks_buffered": stats.tasks_buffered,
            "tasks_in_runs": stats.tasks_in_runs,
            "tasks_ended": stats.tasks_ended,
            "slices": stats.slices,
            "runs": stats.runs,
            "run_bytes": stats.run_bytes,
            "history_runs": stats.history_runs,
            "history_bytes": stats.history_bytes,
            "catalog_bytes": stats.catalog_bytes,
            "journal_bytes": stats.journal_bytes,
            "buffer_bytes": stats.buffer_bytes,
            "index_bytes": stats.index_bytes,
            "journal_preallocated_bytes": stats.journal_preallocated_bytes,
            "journal_disk_full": stats.journal_disk_full,
        }),
    );
    Ok(())
}

fn cannot(verb: &str, args: &StoreDirArgs) -> String {
    format!("cannot {verb} the store in {}", args.dir.display())
}

fn print(args: &StoreDirArgs, report: Value) {
    if args.json {
        println!("{report}");
        return;
    }
    let fields: Map<String, Value> = report.as_object().cloned().unwrap_or_default();
    let width = fields.keys().map(String::len).max().unwrap_or(0);
    for (name, value) in &fields {
        match value {
            Value::Array(items) if items.is_empty() => println!("{name:width$}  none"),
            Value::Array(items) => {
                println!("{name}:");
                items.iter().for_each(|item| println!("  {}", item.as_str().unwrap_or_default()));
            }
            value => println!("{name:width$}  {value}"),
        }
    }
}
